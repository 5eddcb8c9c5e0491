"""The Python side of `python -m bench --peers`: what it does without Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.arena import SYNCED, UNSYNCED, rows
from bench.harness import SOURCES, Harness, HarnessFailed, version_of
from bench.peers import evict
from bench.rounds import rotate
from bench.table import Target

ROOT = Path(__file__).parents[1]

PEER = """
import json, sys
for line in sys.stdin:
    job = json.loads(line)
    if job["job"] == "hello":
        answer = {"java": "21.0.1"}
    elif job["job"] == "write":
        answer = {"nanos": 1_500_000_000, "count": job["claims"] * job["sessions"]}
    elif job["job"] == "leave":
        sys.exit("out of patience")
    else:
        answer = {"error": "no such job: " + job["job"]}
    print(json.dumps(answer), flush=True)
"""
"""A process that speaks the harness's protocol."""


def harness(directory: Path) -> Harness:
    return Harness([sys.executable, "-c", PEER], directory, "1.2.3")


def test_a_job_is_answered_with_what_was_measured(tmp_path: Path) -> None:
    """Fields go to the process as they are, its answer comes back, and nanoseconds become seconds."""
    with harness(tmp_path) as peer:
        assert (peer.version, peer.java) == ("1.2.3", "21.0.1")
        assert peer.ask("write", "synced", claims=3, sessions=4)["count"] == 12
        assert peer.seconds("write", "synced", claims=1, sessions=1) == 1.5


def test_a_failed_job_says_what_the_peer_said(tmp_path: Path) -> None:
    """An error is an answer of its own; the process goes on and answers the next job."""
    with harness(tmp_path) as peer:
        with pytest.raises(HarnessFailed, match="no such job: dance"):
            peer.ask("dance")
        assert peer.ask("write", claims=1, sessions=1)["count"] == 1


def test_the_end_of_the_process_is_told_with_its_last_words(tmp_path: Path) -> None:
    """A peer that dies in a job fails that job, with what it wrote on stderr."""
    with harness(tmp_path) as peer, pytest.raises(HarnessFailed, match=r"the process ended(.|\n)*out of patience"):
        peer.ask("leave")


def test_versions_are_read_from_poms(tmp_path: Path) -> None:
    """A checkout's own version, the property of the harness's libraries, and a clear word about anything else."""
    pom = tmp_path / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><parent><version>37</version></parent>'
        "<artifactId>nifi</artifactId><version>2.11.0</version></project>",
        encoding="utf-8",
    )
    assert version_of(pom, "version") == "2.11.0"
    assert version_of(SOURCES / "pom.xml", "nifi.version").startswith("2.")
    with pytest.raises(HarnessFailed, match="NIFI_SRC"):
        version_of(pom, "nifi.version")


@pytest.mark.parametrize(
    ("version", "is_chosen"), [("21.0.1", True), ("25", True), ("17.0.15", False), ("1.8.0", False)]
)
def test_a_jdk_is_chosen_by_the_version_it_states(tmp_path: Path, version: str, is_chosen: bool) -> None:
    """JAVA_HOME comes first, if it has a compiler and is of 21 or newer; nothing is installed, `false` being no pip."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "javac").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "bin" / "javac").chmod(0o755)
    (tmp_path / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    found = subprocess.run(
        [ROOT / "tools" / "java"],
        env={**os.environ, "JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHON": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stdout.strip() == str(tmp_path)) is is_chosen


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    """Each side runs once more than it is counted, and another one begins each round."""
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    seconds = rotate(3, {name: (lambda name=name: side(name)) for name in "abc"})  # type: ignore[misc]

    assert "".join(order) == "abcabcbcacab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert seconds["a"] == [4, 9, 11]


def test_a_ratio_above_one_means_that_we_are_faster() -> None:
    """One row for each peer: its seconds over ours, round by round, with the target it has, if any."""
    seconds = {"engine": [1.0, 2.0, 4.0], SYNCED: [2.0, 8.0, 12.0], UNSYNCED: [0.5, 1.0, 2.0]}

    synced, unsynced = rows("updates", "100 a call", 100, seconds, {SYNCED: Target(2)})

    assert synced.values == (2.0, 4.0, 3.0)
    assert synced.cells()[3:6] == ("2.00 - 3.00 - 4.00 x", ">= 2.00", "yes")
    assert unsynced.values == (0.5, 0.5, 0.5)
    assert unsynced.target is None


def test_evicting_pages_keeps_the_bytes(tmp_path: Path) -> None:
    """Cold reads read what was written: forgetting pages loses nothing that was not yet on the disk."""
    nested = tmp_path / "a" / "b"
    nested.parent.mkdir()
    content = os.urandom(100_000)
    nested.write_bytes(content)

    evict(tmp_path)

    assert nested.read_bytes() == content


def test_an_unknown_comparison_is_named_with_those_there_are() -> None:
    """A misspelt case ends with status 2 before anything is built."""
    result = subprocess.run(
        [sys.executable, "-m", "bench", "--peers", "recoverey"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert "recoverey" in result.stderr
    assert "updates" in result.stderr
