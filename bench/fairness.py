"""What one client costs another: `python -m bench agent-fairness`.

A good client asks one thing after the other, beside a greedy one that has all that a principal may have of a node
(`bench/greedy.py`), and beside processes that burn as much of the machine as the greedy one does: what is left is what
the node itself makes the good one wait.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

import psutil

from bench.agent import put
from bench.greedy import CONTENT
from bench.serving import node
from bench.table import Row, Target, duration
from bench.workbench import Workbench
from ullage.client.flight import FlightClient
from ullage.client.http import HttpClient
from ullage.client.node import Node
from ullage.client.socket import SocketClient
from ullage.wire import operations
from ullage_agent.service.tokens import line_of, new_token

TWICE: Final = Target(2, is_ceiling=True)

Times = list[float]
"""Seconds of single calls."""

Asked = dict[str, Callable[[], Any]]
"""What the good client asks, by how people call it."""

ANSWER_SECONDS: Final = 600.0
"""However long it takes, it is measured."""

CYCLE_SECONDS: Final = 0.01
BURN: Final = """
import sys, time
share, cycle = map(float, sys.argv[1:])
while True:
    begin = time.monotonic()
    while time.monotonic() - begin < share * cycle:
        pass
    time.sleep((1 - share) * cycle)
"""


def fairness(bench: Workbench) -> Iterator[Row]:
    """The median and the 99th percentile of each kind of call beside the greedy client, against the same without it."""
    tokens = bench.path("access") / "tokens"
    names = ("good", "greedy")
    secrets = {name: new_token() for name in names}
    lines = [line_of(name, ("*",), None, digest) for name, (_, digest) in secrets.items()]
    tokens.write_text("".join(lines), encoding="utf-8")
    os.chmod(tokens, 0o600)
    beside: dict[str, list[Times]] = {}
    alone: dict[str, list[Times]] = {}
    with ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node"), auth={"mode": "TokenFile", "token_file": str(tokens)}))
        content, asked = _asked(stack, there, secrets["good"][0])
        _ask(bench, asked, {}, 0)
        for turn in range(bench.sizes.fair_rounds):
            with _greedy(there, secrets["greedy"][0], content, bench.sizes.fair_part) as process:
                share = _ask(bench, asked, beside, turn, process)
            with _burning(share):
                _ask(bench, asked, alone, turn)
    for what in asked:
        for name, share in (("median", 0.5), ("p99", 0.99)):
            pairs = [(_at(one, share), _at(other, share)) for one, other in zip(beside[what], alone[what], strict=True)]
            ratios = tuple(one / other for one, other in pairs)
            medians = ", alone ".join(duration(sorted(side)[len(side) // 2]) for side in zip(*pairs, strict=True))
            against = "the same beside a process that burns as much"
            yield Row(
                "fairness", f"{name} of a {what} beside a greedy client", against, ratios, "x", TWICE, medians=medians
            )


def _asked(stack: ExitStack, there: Node, token: str) -> tuple[str, Asked]:
    """A content, and what is measured: a get of it, and a put of another one, over each transport."""
    assert there.flight is not None
    assert there.socket is not None
    http = stack.enter_context(closing(HttpClient(there.url, token, timeout_seconds=ANSWER_SECONDS)))
    flight = stack.enter_context(FlightClient(there.flight, token))
    local = stack.enter_context(SocketClient(there.socket, token))
    id = put(http, CONTENT).partition("@")[0]
    uuid = bytes.fromhex(id.replace("-", ""))
    path = f"{operations.PUT_HANDLE.path}/{id}"
    return uuid.hex(), {
        "get over HTTP": lambda: http.content(path),
        "put over HTTP": lambda: put(http, CONTENT),
        "get over Flight": lambda: flight.get_many([id]),
        "put over Flight": lambda: flight.put([CONTENT]),
        "get over the socket": lambda: local.read_all([uuid]),
        "put over the socket": lambda: local.put_many([CONTENT]),
    }


def _ask(
    bench: Workbench, asked: Asked, found: dict[str, list[Times]], turn: int, process: psutil.Process | None = None
) -> float:
    """Ask all of it, so often, and keep how long each took; the share of a core that a process took meanwhile."""
    before, began = 0.0 if process is None else _cpu(process), time.perf_counter()
    for what, work in asked.items():
        bench.say(f"round {turn + 1}: {what}")
        work()
        times = []
        for _ in range(bench.sizes.fair_calls):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        found.setdefault(what, []).append(times)
    spent = 0.0 if process is None else _cpu(process) - before
    return spent / (time.perf_counter() - began)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _at(times: Times, share: float) -> float:
    return sorted(times)[math.ceil(share * len(times)) - 1]


@contextmanager
def _greedy(there: Node, token: str, content: str, part: int) -> Iterator[psutil.Process]:
    """A greedy client at work."""
    assert there.flight is not None
    assert there.socket is not None
    command = [sys.executable, "-m", "bench.greedy", there.url, there.flight, there.socket, token, content, str(part)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the greedy client has failed"
        yield psutil.Process(process.pid)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def _burning(share: float) -> Iterator[None]:
    """Processes that take such a share of the machine's cores, 1 for each."""
    count = max(1, math.ceil(share))
    command = [sys.executable, "-c", BURN, str(share / count), str(CYCLE_SECONDS)]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
