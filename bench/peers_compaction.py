"""Reclamation beside Ambry's compaction: its own classes on the same shape of data, or what was recorded of them.

`AMBRY_SRC` names a checkout of Ambry, whose store is compiled with a small driver (bench/ambry) and run in a process
for each compaction. Without one, figures that were measured once with these classes stand beside ours, and say so.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.arena import KILOBYTE, MEGABYTE, Arena, PeerSizes
from bench.harness import ROOT, HarnessFailed, built, compile_java, java_home
from bench.reclaim import fragmented, space_ratio
from bench.rounds import seconds_of, settle
from bench.table import Row, Target, number
from bench.workbench import Workbench
from ullage.engine.reclaim.report import ReclamationReport

SOURCES = ROOT / "bench" / "ambry"
MODULES = (
    "ambry-store",
    "ambry-api",
    "ambry-utils",
    "ambry-commons",
    "ambry-messageformat",
    "ambry-clustermap",
    "ambry-account",
)
"""Where a checkout has the classes that its store needs."""

SEVERAL_CLASSES = "ambry-store/src/main/java/com/github/ambry/store/StoreMessageReadSet.java"
"""Has a class that its name does not tell of, and that others need."""

SEGMENT = 64 * MEGABYTE
SEGMENTS_LEAST = 8
"""Smaller runs take smaller segments: Ambry leaves out the newest two."""

RATE = {10 * KILOBYTE: Target(3), MEGABYTE: Target(1)}
"""Of our copying beside Ambry's, by the size of a content."""

READ = Target(1.1, is_ceiling=True)
LEFT = Target(1.05, is_ceiling=True)


class Compacted(NamedTuple):
    """One compaction: bytes copied a second, bytes read for each byte copied, and disk / live when it is over."""

    rate: float
    read: float
    space: float


RECORDED = {
    (10 * KILOBYTE, 50): Compacted(112e6, 2.1, 1.12),
    (10 * KILOBYTE, 80): Compacted(62e6, 5.0, 1.26),
    (MEGABYTE, 50): Compacted(577e6, 1.7, 1.13),
    (MEGABYTE, 80): Compacted(395e6, 2.2, 1.25),
}
"""By the size of a blob and per cent deleted: 2 GiB, 64 MiB segments, two cores of another day."""


def compaction(arena: Arena) -> Iterator[Row]:
    """Contents of 10 KiB and 1 MiB of which half or four fifths die at random, rewritten without a limit."""
    source = os.environ.get("AMBRY_SRC")
    peer = Ambry.compiled(Path(source).resolve()) if source else None
    for size in (10 * KILOBYTE, MEGABYTE):
        for dead in (50, 80):
            what = f"{number(size / KILOBYTE)} KiB, {dead}% dead"
            yield from _rows(arena.bench, arena.sizes, peer, what, (size, dead))


def _rows(bench: Workbench, sizes: PeerSizes, peer: "Ambry | None", what: str, shape: tuple[int, int]) -> Iterator[Row]:
    ours: list[Compacted] = []
    theirs: list[Compacted] = []
    sides: list[tuple[Callable[[int], Compacted], list[Compacted]]] = [
        (lambda turn: _engine(bench, sizes.compacted_bytes, *shape, turn), ours)
    ]
    if peer is not None:
        sides.append((lambda turn: peer.compact(bench, sizes.compacted_bytes, *shape, turn), theirs))
    for turn in range(sizes.many_rounds):
        for side, found in sides if turn % 2 == 0 else reversed(sides):
            bench.say(f"{what}, round {turn + 1}")
            found.append(side(turn))
    yield from comparison(what, ours, theirs, RECORDED[shape], RATE[shape[0]])


def comparison(
    what: str, ours: list[Compacted], theirs: list[Compacted], recorded: Compacted, rate: Target
) -> Iterator[Row]:
    """Three rows. A rate beside a recorded one has no target: it was another day's disk, and can prove nothing."""
    against = "Ambry" if theirs else "Ambry, recorded elsewhere"
    target = rate if theirs else None
    theirs = theirs or [recorded] * len(ours)
    peer = Compacted(*(statistics.median(figures) for figures in zip(*theirs, strict=True)))
    rates = tuple(engine.rate / other.rate for engine, other in zip(ours, theirs, strict=True))
    engine_rate = statistics.median(engine.rate for engine in ours)
    medians = f"{number(engine_rate / 1e6)} MB/s, peer {number(peer.rate / 1e6)} MB/s"
    yield Row("compaction", f"{what}: bytes copied a second", against, rates, "x", target, medians)
    for name, bound, index in (("bytes read for each copied", READ, 1), ("disk / live afterwards", LEFT, 2)):
        values = tuple(engine[index] for engine in ours)
        yield Row("compaction", f"{what}: {name}", f"{against}: {number(peer[index])}", values, "", bound)


def _engine(bench: Workbench, total: int, size: int, dead: int, seed: int) -> Compacted:
    """What is read is counted as Ambry's is: by the system calls of the process."""
    shape = replace(bench, sizes=replace(bench.sizes, stream_bytes=total))
    reports: list[ReclamationReport] = []
    with fragmented(shape, size, dead / 100, seed) as repository:
        compactor = repository.compactor
        before = bytes_read()
        plan = compactor.plan(policy="CompactAll")
        seconds = seconds_of(lambda: reports.append(compactor.execute(plan)))
        read = bytes_read() - before
        copied = max(1, reports[0].copied_bytes)
        return Compacted(copied / seconds, read / copied, space_ratio(repository))


def bytes_read() -> int:
    """That this process has read by system calls so far, whatever the page cache held."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("rchar: "):
            return int(line.removeprefix("rchar: "))
    raise OSError("/proc/self/io has no rchar")


class Ambry:
    """Ambry's store and the driver of the bench, compiled."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    @classmethod
    def compiled(cls, source: Path) -> "Ambry":
        """HarnessFailed says what is missing, or what did not compile."""
        home = java_home()
        paths = [SOURCES, *(source / module / "src" / "main" / "java" for module in MODULES)]
        files = [*sorted(SOURCES.rglob("*.java")), source / SEVERAL_CLASSES]

        def compile_into(place: Path) -> None:
            compile_java(home, place, SOURCES / "pom.xml", (), paths, files)

        classpath = built(home, "ambry", SOURCES, source, compile_into)
        return cls([str(home / "bin" / "java"), "-Xmx2g", "-cp", classpath, "com.github.ambry.store.Compaction"])

    def compact(self, bench: Workbench, total: int, size: int, dead: int, seed: int) -> Compacted:
        """One compaction of a fresh store."""
        directory = bench.path("ambry")
        segment = min(SEGMENT, total // SEGMENTS_LEAST)
        settle()
        command = [*self._command, str(directory), str(size), str(total), str(segment), str(dead), str(seed)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise HarnessFailed(f"Ambry's compaction failed:\n{result.stderr[-4_000:]}")
        answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        occupied = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
        seconds = answer["nanos"] / 1e9
        copied = max(1, answer["copied"])
        return Compacted(copied / seconds, answer["read"] / copied, occupied / answer["live"])
