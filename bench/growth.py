"""What grows with the number of FlowFiles: recovery, and how long a checkpoint or a drop keeps others waiting."""

import gc
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.rounds import seconds_of, settle
from bench.table import Row, Target, duration, number
from bench.workbench import Workbench, fill, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.model import Update, pack_attributes
from ullage.engine.wal.serde import SerDe

RESIDENT = {"swap_threshold": 1 << 30}
"""No swapping: these cases are about FlowFiles in memory."""

LINEAR = Target(1.25, is_ceiling=True)
"""Ten times the FlowFiles may take ten times as long, with room for caches that no longer fit."""

PAUSE = Target(50, is_ceiling=True)
"""Milliseconds: a few tens."""


def recovery(bench: Workbench) -> Iterator[Row]:
    """Opening a repository from its snapshot, from its log alone, and after a crash; and how that grows."""
    sides = ("from the snapshot", "from the log only", "from the log after a crash")
    costs: dict[str, dict[int, list[float]]] = {side: {} for side in sides}
    floors: list[float] = []
    for count in bench.sizes.recovery:
        path = bench.path("recovery")
        spec = spec_at(path, flow_file=RESIDENT)
        Engine.initialize(spec)
        with Engine.open(spec) as repository:
            fill(repository, "inbox", count, with_attributes=True, say=bench.say)
        bench.say(f"recovering {count:,} FlowFiles from the log")
        costs["from the log only"][count] = _open_times(bench, spec, count)
        costs["from the log after a crash"][count] = _crash_times(bench, path, count)
        with Engine.open(spec) as repository:
            repository.checkpoint()
        bench.say(f"recovering {count:,} FlowFiles from the snapshot")
        costs["from the snapshot"][count] = _open_times(bench, spec, count)
        floor = [_decode_seconds(path / "flowfile" / "snapshot") / count for _ in range(bench.sizes.pause_rounds)]
        floors.append(statistics.median(floor))
        shutil.rmtree(path)
        for side in sides:
            each = costs[side][count]
            yield Row(
                "recovery",
                f"{count:,} FlowFiles {side}",
                "reading and decoding the snapshot into a dict",
                tuple(statistics.median(floor) / cost for cost in each),
                medians=f"{number(1 / statistics.median(each))} FlowFiles/s",
            )
    few, many = bench.sizes.recovery
    for side in sides:
        base = statistics.median(costs[side][few])
        values = tuple(cost / base for cost in costs[side][many])
        memory = f"decoding into a dict grows by {number(floors[1] / floors[0])}"
        yield Row(
            "recovery", f"cost of a FlowFile {side}, {many:,}", f"of {few:,}", values, target=LINEAR, medians=memory
        )


def pauses(bench: Workbench) -> Iterator[Row]:
    """The longest single-record commit while a million FlowFiles are checkpointed, and while 300,000 are dropped."""
    sizes = bench.sizes
    with bench.repository("pauses", flow_file=RESIDENT) as repository:
        fill(repository, "kept", sizes.resident - sizes.dropped, with_attributes=True, say=bench.say)
        fill(repository, "work", 1)
        prober = Prober(repository)
        quiet, by_checkpoint, by_drop = Pauses(), Pauses(), Pauses()
        for _ in range(sizes.pause_rounds):
            fill(repository, "dropped", sizes.dropped, with_attributes=True, say=bench.say)
            settle()
            bench.say("commits in the quiet")
            quiet.add(prober.quiet(sizes.pause_baseline))
            bench.say("commits during a checkpoint")
            by_checkpoint.add(prober.during(repository.checkpoint))
            bench.say("commits during a drop")
            by_drop.add(prober.during(lambda: repository.queues.drop(repository.queue("dropped"))))
    for what, pauses in (
        (f"longest commit during a checkpoint of {sizes.resident:,}", by_checkpoint),
        (f"longest commit while {sizes.dropped:,} are dropped", by_drop),
    ):
        base = statistics.median(quiet.medians)
        medians = (
            f"{number(statistics.median(pauses.longest) / base)} times the quiet median of {duration(base)}; "
            f"median {duration(statistics.median(pauses.medians))}; {sum(pauses.commits):,} commits"
        )
        values = tuple(1e3 * longest for longest in pauses.longest)
        against = f"the longest in the quiet: {duration(max(quiet.longest))}"
        yield Row("pauses", what, against, values, "ms", PAUSE, medians)


class Pauses:
    """The waits of one kind, round by round."""

    def __init__(self) -> None:
        self.longest: list[float] = []
        self.medians: list[float] = []
        self.commits: list[int] = []

    def add(self, waits: list[float]) -> None:
        self.longest.append(max(waits))
        self.medians.append(statistics.median(waits))
        self.commits.append(len(waits))


class Prober:
    """Commits single records, with a pause after each, and notes how long each took."""

    def __init__(self, repository: Engine, pause_seconds: float = 0) -> None:
        self._repository = repository
        self._pause_seconds = pause_seconds
        self._uuid = repository.queue("work").records(1)[0].uuid

    def quiet(self, count: int) -> list[float]:
        """With nothing else going on."""
        return [seconds_of(self._commit) for _ in range(count)]

    def during(self, work: Callable[[], object]) -> list[float]:
        """From a thread of its own, until `work` is done."""
        waits: list[float] = []
        started, done = threading.Event(), threading.Event()

        def probe() -> None:
            while not done.is_set():
                waits.append(seconds_of(self._commit))
                started.set()
                if self._pause_seconds:
                    time.sleep(self._pause_seconds)

        thread = threading.Thread(target=probe)
        thread.start()
        started.wait()
        try:
            work()
        finally:
            done.set()
            thread.join()
        return waits

    def _commit(self) -> None:
        update = Update(self._uuid, set_attributes=pack_attributes({"status": "seen"}))
        self._repository.committer.commit([update], creates=False)


def _open_times(bench: Workbench, spec: ContentRepositorySpec, count: int) -> list[float]:
    """Seconds a FlowFile of several opens, each closed cleanly and without a checkpoint."""
    return [open_seconds(spec) / count for _ in range(bench.sizes.pause_rounds)]


def open_seconds(spec: ContentRepositorySpec) -> float:
    """Opening and closing: what is measured is all of it."""
    gc.collect()
    begin = time.perf_counter()
    with Engine.open(spec):
        return time.perf_counter() - begin


def _crash_times(bench: Workbench, path: Path, count: int) -> list[float]:
    """The same without a clean end. An open after a crash publishes a snapshot, so each takes a copy of the ledger."""
    ledger, saved = path / "flowfile", path.with_name("recovery.flowfile")
    shutil.copytree(ledger, saved)
    forget_closes(saved)
    times = []
    for _ in range(bench.sizes.pause_rounds):
        shutil.rmtree(ledger)
        shutil.copytree(saved, ledger)
        settle()
        times.append(open_seconds(spec_at(path, flow_file=RESIDENT)) / count)
    shutil.rmtree(saved)
    return times


def forget_closes(ledger: Path) -> None:
    """Cut off the logs' close frames, as if the process had been killed just before it wrote them."""
    for log in ledger.rglob("*.wal"):
        at = log.read_bytes().rfind(b"ULLc")
        if at >= 0:
            os.truncate(log, at)


def _decode_seconds(snapshot: Path) -> float:
    """The floor: read a snapshot's bytes, decode its blocks with the same decoder, and put the records in a dict."""
    serde = SerDe()
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    try:
        records: dict[bytes, object] = {}
        for payload in _payloads(snapshot):
            for operation in serde.decode_block(payload, serde.version):
                records[getattr(operation, "uuid", b"")] = operation
        return time.perf_counter() - begin
    finally:
        gc.enable()


def _payloads(snapshot: Path) -> Iterator[bytes]:
    """The blocks of a record file: a header of 16 bytes and its body, then length, count, CRC and payload of each."""
    descriptor = os.open(snapshot, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offset = 16 + int.from_bytes(os.pread(descriptor, 4, 8), "little")
        while length := int.from_bytes(os.pread(descriptor, 4, offset), "little"):
            yield os.pread(descriptor, length, offset + 12)
            offset += 12 + length
    finally:
        os.close(descriptor)
