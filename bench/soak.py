"""`python -m bench.soak`: an hour of everything at once on one node, and whether it stays as it was.

A node in a process of its own, with its own maintenance. Threads put contents of mixed sizes and delete them, most of
them young; read what lives and verify it; and send FlowFiles through a queue. Each interval one line says what the node
holds: memory, descriptors, disk / live, and how long clients waited.

    warm-up (half) | first third of the rest | second third | last third
                     ^ the medians of the first and the last are compared: what grows shows here

By then what has a bound is full: the answers to requests with a key, for one, are kept for an hour as far as 64 MiB go.

--minutes N      60 by default
--live-mib N     content that is alive at a time
--dir DIR        where to work: on the disk that is to be measured
--picture FILE   draw it over time, as PNG
--write-docs     put the table into docs/performance.md

Exit code 1: something grew, or a content came back wrong.
"""

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from crc32c import crc32c

import ullage
from bench.panels import Panel, draw
from bench.reclaim import NO_GUARDS
from bench.serving import node
from bench.table import Row, Target, describe_machine, markdown, number, write_docs
from ullage import Node, Repository
from ullage.errors import HandleDeleted, HandleNotFound
from ullage_agent.service.limits import DEFAULTS

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = "bench-soak"
MIB: Final = 1 << 20
INTERVALS: Final = 120
"""Lines of a run; the first half of them is the warm-up."""

BATCH: Final = 50
HOT: Final = 0.9
"""Of the deletions these many meet the youngest tenth."""

SPACE_MAX: Final = 1.4
"""Of disk / live, median of the last third: what the settings below are to hold."""

GROWTH_MAX: Final = 1.1
"""Of memory, last third over first."""

DESCRIPTORS_MAX: Final = 1.25
"""The same of descriptors: of some forty a few more or less are open at any moment."""

SECTIONS: Final[dict[str, dict[str, int | bool | str]]] = {
    "truncation": {"frequency": 5_000},
    "compaction": NO_GUARDS | {"check_frequency": 5_000, "deleted_retention": 1},
}
"""Space is given back every few seconds; in an hour there is as much of it as in a day of a busy node."""


class Sample(NamedTuple):
    """One interval: bytes, descriptors, a ratio, milliseconds (99th percentile), operations."""

    resident_bytes: int
    descriptors: int
    space: float
    put_p99: float
    get_p99: float
    flow_p99: float
    puts: int
    gets: int
    flows: int


class Load:
    """What the clients do, and what they saw. `problems` are contents that came back wrong, and errors."""

    def __init__(self, there: Node, live_bytes_max: int) -> None:
        self.problems: list[str] = []
        self._there = there
        self._live_bytes_max = live_bytes_max
        self._live: dict[str, tuple[int, int]] = {}
        self._live_bytes = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._seconds: dict[str, list[float]] = {"put": [], "get": [], "flow": []}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Two that put and delete, two that read, one flow."""
        works = (self._put, self._put, self._get, self._get, self._flow)
        threads = [threading.Thread(target=self._work, args=(work, seed)) for seed, work in enumerate(works)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def waited(self) -> dict[str, list[float]]:
        """Seconds of each operation since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, {name: [] for name in self._seconds}
        return seconds

    def _work(self, work: Callable[[Repository, random.Random], None], seed: int) -> None:
        chooser = random.Random(seed)
        try:
            with _connected(self._there) as repository:
                while not self._over.is_set():
                    work(repository, chooser)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has failed by it
            self.problems.append(f"{work.__name__}: {error!r}")

    def _timed(self, what: str, call: Callable[[], object]) -> None:
        begin = time.perf_counter()
        call()
        with self._lock:
            self._seconds[what].append(time.perf_counter() - begin)

    def _put(self, repository: Repository, chooser: random.Random) -> None:
        draw = chooser.random()
        if draw < 0.7:
            sizes = [chooser.randrange(1, 16 << 10) for _ in range(BATCH)]
        elif draw < 0.95:
            sizes = [chooser.randrange(64 << 10, 256 << 10) for _ in range(4)]
        else:
            sizes = [chooser.randrange(2 * MIB, 6 * MIB)]
        contents = [chooser.randbytes(size) for size in sizes]
        handles: list[str] = []
        self._timed("put", lambda: handles.extend(repository.handles.put_many(contents)))
        with self._lock:
            for handle, content in zip(handles, contents, strict=True):
                self._live[handle] = (len(content), crc32c(content))
            self._live_bytes += sum(sizes)
            doomed = self._doomed(chooser)
        for handle in doomed:
            repository.handles.delete(handle)

    def _doomed(self, chooser: random.Random) -> list[str]:
        """What has to go for the rest to fit; forgotten at once, so that nobody reads it."""
        if self._live_bytes <= self._live_bytes_max:
            return []
        handles = list(self._live)
        edge = len(handles) * 9 // 10
        doomed: dict[str, None] = {}
        while self._live_bytes > self._live_bytes_max:
            handle = handles[
                chooser.randrange(edge, len(handles)) if chooser.random() < HOT else chooser.randrange(edge)
            ]
            if handle not in doomed:
                doomed[handle] = None
                self._live_bytes -= self._live.pop(handle)[0]
        return list(doomed)

    def _get(self, repository: Repository, chooser: random.Random) -> None:
        with self._lock:
            if not self._live:
                return
            handle, (_, crc) = chooser.choice(list(self._live.items()))
        found: list[bytes] = []
        try:
            self._timed("get", lambda: found.append(repository.handles.get(handle)))
        except (HandleNotFound, HandleDeleted):
            with self._lock:
                if handle in self._live:
                    raise
            return  # deleted meanwhile
        if crc32c(found[0]) != crc:
            self.problems.append(f"{handle} came back with other bytes")

    def _flow(self, repository: Repository, chooser: random.Random) -> None:
        content = chooser.randbytes(2_000)

        def through() -> None:
            repository.queues.put_many("soak", [content] * 10, {"kind": "soak"})
            with repository.session() as session:
                session.remove(session.get_many("soak", 10))
                session.commit()

        self._timed("flow", through)


def _connected(there: Node) -> Repository:
    return ullage.connect(there.url, flight=there.flight, socket=there.socket)


def samples(there: Node, pid: int, load: Load, seconds: float) -> Iterator[Sample]:
    """One an interval, for so long."""
    process = psutil.Process(pid)
    began = time.monotonic()
    with _connected(there) as repository:
        for turn in range(1, INTERVALS + 1):
            time.sleep(max(0.0, began + turn * seconds / INTERVALS - time.monotonic()))
            containers = repository.reclamation.survey().containers
            live = sum(container.live_bytes for container in containers)
            disk = sum(container.disk_bytes for container in containers)
            waited = load.waited()
            p99 = {what: 1_000 * _p99(found) for what, found in waited.items()}
            yield Sample(
                process.memory_info().rss,
                process.num_fds(),
                disk / max(1, live),
                p99["put"],
                p99["get"],
                p99["flow"],
                *(len(waited[what]) for what in ("put", "get", "flow")),
            )
            if load.problems:
                return


def rows(found: Sequence[Sample], minutes: float) -> list[Row]:
    """The last third beside the first one, after the warm-up."""
    settled = found[len(found) // 2 :]
    third = max(1, len(settled) // 3)
    first, last = settled[:third], settled[-third:]

    def grown(what: str, value: Callable[[Sample], float], target: Target | None, text: Callable[[float], str]) -> Row:
        before = statistics.median(map(value, first))
        values = tuple(value(sample) / max(before, 1e-9) for sample in last)
        medians = f"{text(before)}, then {text(statistics.median(map(value, last)))}"
        return Row("soak", what, f"{number(minutes / 3)} minutes before", values, target=target, medians=medians)

    flat = Target(GROWTH_MAX, is_ceiling=True)
    span = f"last {number(minutes / 6)} of {number(minutes)} minutes"
    return [
        grown(f"memory, {span}", lambda one: one.resident_bytes, flat, lambda value: f"{number(value / MIB)} MiB"),
        grown(f"descriptors, {span}", lambda one: one.descriptors, Target(DESCRIPTORS_MAX, is_ceiling=True), number),
        grown(f"put, 99th percentile, {span}", lambda one: one.put_p99, None, lambda value: f"{number(value)} ms"),
        grown(f"get, 99th percentile, {span}", lambda one: one.get_p99, None, lambda value: f"{number(value)} ms"),
        grown(f"flow, 99th percentile, {span}", lambda one: one.flow_p99, None, lambda value: f"{number(value)} ms"),
        Row("soak", f"disk / live, {span}", "", tuple(one.space for one in last), target=Target(SPACE_MAX, True)),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and judge."""
    options = _parser().parse_args(arguments)
    found: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="ullage-soak-", dir=options.dir) as place:
        machine = describe_machine(Path(place))
        with node(Path(place) / "node", DEFAULTS, **SECTIONS) as (there, pid):
            load = Load(there, options.live_mib * MIB)
            with load.running():
                for sample in samples(there, pid, load, 60 * options.minutes):
                    found.append(sample)
                    print(_line(sample), file=sys.stderr, flush=True)
    if load.problems:
        print("\n".join(load.problems))
        return 1
    judged = rows(found, options.minutes)
    print(f"{machine}\n\n{markdown(judged)}")
    if options.picture is not None:
        draw(_panels(found), f"minutes of {number(options.minutes)}").save(options.picture, optimize=True)
    if options.write_docs:
        write_docs(ROOT / "docs" / "performance.md", TABLE, judged, machine, is_all=True)
    return int(any(row.target is not None and not row.target.is_met(row.median) for row in judged))


def _panels(found: Sequence[Sample]) -> list[Panel]:
    return [
        Panel("memory of the node, MiB", {"": [one.resident_bytes / MIB for one in found]}),
        Panel("disk / live", {"": [one.space for one in found]}),
        Panel("open descriptors", {"": [float(one.descriptors) for one in found]}),
        Panel(
            "99th percentile, ms",
            {
                "put of a batch": [one.put_p99 for one in found],
                "get": [one.get_p99 for one in found],
                "ten through a queue": [one.flow_p99 for one in found],
            },
        ),
    ]


def _line(one: Sample) -> str:
    return (
        f"{number(one.resident_bytes / MIB)} MiB, {one.descriptors} descriptors, disk / live {number(one.space)}, "
        f"{one.puts} puts {number(one.put_p99)} ms, {one.gets} gets {number(one.get_p99)} ms, "
        f"{one.flows} flows {number(one.flow_p99)} ms"
    )


def _p99(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    return ordered[int(0.99 * len(ordered))] if ordered else 0.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Does a node stay as it was?")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--live-mib", type=int, default=512)
    parser.add_argument("--dir", type=Path, help="where to work: on the disk that is to be measured")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw it over time")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
