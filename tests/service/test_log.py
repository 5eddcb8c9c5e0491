"""What is logged, how often, and that nobody waits for who reads it."""

import ast
import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ullage_agent
from tests.service.running import LOCAL, START_SECONDS, Process, document_at
from tests.support import ManualClock
from ullage_agent.service.log import TOLD_AGAIN_SECONDS, WAITING_BYTES_MAX, Outlet, Sparing

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_failure_of_every_second_is_told_once_a_minute() -> None:
    """The first at once, then one for each minute that it lasts."""
    clock = ManualClock()
    sparing = Sparing(clock)
    told = 0
    for _ in range(3 * round(TOLD_AGAIN_SECONDS)):
        told += sparing.is_due("provenance", OSError(*FULL.args))
        clock.advance(1)

    assert told == 3


def test_a_failure_that_is_new_is_told_at_once() -> None:
    """Another task's, and another one of the same task, also when the first comes back."""
    sparing = Sparing(ManualClock())

    assert sparing.is_due("provenance", FULL)
    assert sparing.is_due("index", FULL)
    assert not sparing.is_due("index", FULL)
    assert sparing.is_due("provenance", ValueError("a record that cannot be read"))
    assert sparing.is_due("provenance", FULL)


def test_no_logger_is_bound_at_import() -> None:
    """Bound before `configure`, it would go on writing to stdout, with the local variables of each frame."""
    package = Path(ullage_agent.__file__).parent
    bound = [
        f"{path}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "logger"
    ]
    assert bound == []


@pytest.fixture
def narrow() -> Iterator[tuple[int, int]]:
    """A pipe that holds a page: the end to read, and the end to write."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_what_nobody_reads_is_kept_up_to_a_bound_and_counted_beyond(narrow: tuple[int, int]) -> None:
    """It comes as soon as it is read: whole lines in their order, and one that says how many were lost."""
    outlet = Outlet(narrow[1])
    lines = [f"{number:08} {'x' * 1_014}" for number in range(2 * WAITING_BYTES_MAX // 1_024)]

    for line in lines:
        outlet.write(f"{line}\n")

    with os.fdopen(narrow[0], closefd=False) as stream:
        read = [stream.readline().rstrip("\n") for _ in range(len(lines) // 2)]
    told = [line for line in read if "lines of the log were lost" in line]
    kept = [line for line in read if line not in told]
    assert kept == lines[: len(kept)]
    assert 1 <= len(told) <= 2  # the thread that writes may have come by while the first ones were lost
    lost = [int(re.findall(r"\d+", each.rpartition("lines")[2])[-1]) for each in told]
    assert sum(lost) >= len(lines) // 2 - 8
    outlet.drain()


def test_an_agent_answers_while_nobody_reads_its_log(tmp_path: Path, narrow: tuple[int, int]) -> None:
    """Each refusal leaves a line; a collector that stands still stops neither the agent nor its end."""
    made = Process(tmp_path, document_at(tmp_path / "repository", **LOCAL))
    with subprocess.Popen(
        [sys.executable, "-m", "ullage_agent", "serve", "--init", "-c", str(made.config)],
        stdout=subprocess.PIPE,
        stderr=narrow[1],
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("serving on ").strip()
            with httpx.Client(base_url=url, timeout=START_SECONDS) as client:
                foreign = {"origin": "https://elsewhere.example"}
                refused = [client.post("/v1/handles", headers=foreign).status_code for _ in range(100)]
                assert refused == [403] * 100
                assert client.get("/healthz").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_SECONDS) == 0
        finally:
            process.kill()
