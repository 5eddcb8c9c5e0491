"""The engine beside Apache NiFi where numbers are large: recovery, memory, swapping, and many resource claims dying."""

import gc
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.arena import Arena
from bench.growth import RESIDENT, Prober, forget_closes, open_seconds
from bench.memory import resident_bytes
from bench.rounds import Rounds, Timed, rotate, seconds_of, settle
from bench.table import Row, Target, duration, number
from bench.workbench import BATCH, UnsyncedDisk, Workbench, fill, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine

SWAP_FILE = 10_000
"""FlowFiles in one swap file, on both sides."""

FILES_AT_ONCE = 200
"""Resource claims one filling session makes: each is an open file."""

PROBE_SECONDS = 0.002
"""Between two commits of the thread that waits, on both sides: it is to see pauses, not to cause them."""

PAUSE = Target(50, is_ceiling=True)
"""Milliseconds."""


def many(arena: Arena) -> Iterator[Row]:
    """Many FlowFiles: opening them, what memory each takes, and swapping them out and in."""
    bench, nifi, count = arena.bench, arena.nifi, arena.sizes.many
    path = bench.path("ullage")
    spec = spec_at(path, flow_file=RESIDENT)
    Engine.initialize(spec)
    with Engine.open(spec) as repository:
        fill(repository, "inbox", count, with_attributes=True, say=bench.say)
    bench.say(f"filling NiFi with {count:,} FlowFiles")
    nifi.ask("open", "nifi", sync=False)
    nifi.ask("fill", "nifi", count=count)
    nifi.ask("close", "nifi")
    yield from _from_log(arena, spec)
    with Engine.open(spec) as repository:
        repository.checkpoint()
    yield from _from_snapshot(arena, spec)
    yield _memory(arena, path)
    yield from _swapping(arena, path)


def _from_log(arena: Arena, spec: ContentRepositorySpec) -> Iterator[Row]:
    """Each round starts from the same files: NiFi's start ends with a checkpoint, and so does ours after a crash."""
    count = arena.sizes.many
    arena.bench.say(f"recovering {count:,} FlowFiles from the log")
    ours, theirs = Path(spec.storage.host_path.path) / "flowfile", arena.bench.directory / "nifi" / "flowfile"
    clean, crashed, journal = _copied(ours, "clean"), _copied(ours, "crashed"), _copied(theirs, "journal")
    forget_closes(crashed)

    def engine(saved: Path) -> float:
        _put_back(saved, ours)
        return open_seconds(spec)

    def peer() -> float:
        _put_back(journal, theirs)
        return _open_nifi(arena)

    sides: dict[str, Timed] = {
        "the log": partial(engine, clean),
        "the log, after a crash": partial(engine, crashed),
        "NiFi": peer,
    }
    seconds = rotate(arena.sizes.many_rounds, sides, warm=False)
    for name in ("the log", "the log, after a crash"):
        turns = Rounds(count, seconds[name], seconds["NiFi"])
        yield turns.row("recovery", f"{count:,} FlowFiles from {name}", "NiFi, from its journal", Target(5))
    for saved in (clean, crashed, journal):
        shutil.rmtree(saved)


def _from_snapshot(arena: Arena, spec: ContentRepositorySpec) -> Iterator[Row]:
    count = arena.sizes.many
    arena.bench.say(f"recovering {count:,} FlowFiles from the snapshot")
    sides: dict[str, Timed] = {"engine": partial(open_seconds, spec), "NiFi": partial(_open_nifi, arena)}
    seconds = rotate(arena.sizes.many_rounds, sides, warm=False)
    turns = Rounds(count, seconds["engine"], seconds["NiFi"])
    yield turns.row("recovery", f"{count:,} FlowFiles from the snapshot", "NiFi, from its checkpoint", Target(5))


def _open_nifi(arena: Arena) -> float:
    settle()
    answer = arena.nifi.ask("open", "nifi", sync=False)
    assert answer["count"] == arena.sizes.many
    arena.nifi.ask("close", "nifi")
    return float(answer["nanos"]) / 1e9


def _memory(arena: Arena, path: Path) -> Row:
    """Growth of a fresh process of ours; what live objects of NiFi occupy in its heap, before and after."""
    bench, nifi, count = arena.bench, arena.nifi, arena.sizes.many
    bench.say("memory")
    small = bench.path("small")
    Engine.initialize(spec_at(small))
    engine, peer = [], []
    threshold = RESIDENT["swap_threshold"]
    for _ in range(arena.sizes.many_rounds):
        engine.append((resident_bytes(path, threshold) - resident_bytes(small, threshold)) / count)
        before = nifi.ask("heap")["bytes"]
        nifi.ask("open", "nifi", sync=False)
        peer.append((nifi.ask("heap")["bytes"] - before) / count)
        nifi.ask("close", "nifi")
    return Row(
        "memory",
        f"a FlowFile, of {count:,} in memory: our process beside NiFi's live heap",
        "NiFi",
        tuple(ours / theirs for ours, theirs in zip(engine, peer, strict=True)),
        target=Target(1, is_ceiling=True),
        medians=f"{number(statistics.median(engine))} bytes, peer {number(statistics.median(peer))} bytes",
    )


def _swapping(arena: Arena, path: Path) -> Iterator[Row]:
    bench, nifi, count = arena.bench, arena.nifi, arena.sizes.many
    swap_file = min(SWAP_FILE, count // 10)
    nifi.ask("open", "nifi", sync=True)
    outs, ins = Rounds(1, [], []), Rounds(1, [], [])
    thresholds = {"swap_threshold": 2 * swap_file, "swap_batch": swap_file}
    with Engine.open(spec_at(path, flow_file=thresholds)) as repository:
        for turn in range(arena.sizes.many_rounds):
            bench.say(f"swapping, round {turn + 1}")
            sides: list[Callable[[], None]] = [
                partial(_swap_engine, repository, count, outs.engine, ins.engine),
                partial(_swap_nifi, arena, swap_file, outs.peer, ins.peer),
            ]
            for side in sides if turn % 2 == 0 else reversed(sides):
                gc.collect()
                settle()
                side()
    nifi.forget("nifi")
    yield outs.row("swap", f"{count:,} FlowFiles out, durably", "NiFi, whose swap files are not synced", Target(1))
    yield ins.row("swap", f"{count:,} FlowFiles in, by polling them all", "NiFi", Target(5))


def _swap_engine(repository: Engine, count: int, outs: list[float], ins: list[float]) -> None:
    """Seconds a FlowFile. What the threshold keeps in memory does not count."""
    queue = repository.queue("inbox")
    out_seconds = seconds_of(repository.queues.swap_out_all)
    swapped = queue.figures().swapped
    begin = time.perf_counter()
    records = repository.queues.poll(queue, count)
    in_seconds = time.perf_counter() - begin
    assert len(records) == count
    queue.acknowledge(records)
    queue.offer(records)
    outs.append(out_seconds / swapped)
    ins.append(in_seconds / swapped)


def _swap_nifi(arena: Arena, swap_file: int, outs: list[float], ins: list[float]) -> None:
    for job, seconds in (("swap_out", outs), ("swap_in", ins)):
        answer = arena.nifi.ask(job, "nifi", size=swap_file)
        seconds.append(answer["nanos"] / 1e9 / answer["count"])


def drops(arena: Arena) -> Iterator[Row]:
    """The longest single-record commit, synced, while many resource claims die at once."""
    bench, count = arena.bench, arena.sizes.dropped
    ours: list[float] = []
    theirs: list[dict[str, Any]] = []
    for turn in range(arena.sizes.drop_rounds):
        bench.say(f"dropping {count:,} resource claims, round {turn + 1}")
        ours.append(_drop_engine(bench, count))
        settle()
        arena.nifi.ask("open", "nifi", sync=True)
        theirs.append(arena.nifi.ask("drop", "nifi", count=count))
        arena.nifi.forget("nifi")
        settle()
    worst = [answer["longest"] / 1e9 for answer in theirs]
    what = f"longest commit while {count:,} resource claims go"
    against = f"NiFi: {' - '.join(duration(seconds) for seconds in sorted(worst))}"
    yield Row("pauses", what, against, tuple(1e3 * seconds for seconds in ours), "ms", PAUSE)


def _drop_engine(bench: Workbench, count: int) -> float:
    path = bench.path("ullage")
    one_each = {"max_appendable_size": 1, "max_batch_file": 1, "max_flow_files": 1}
    spec = spec_at(path, claims=one_each, flow_file=RESIDENT, archive={"enabled": False}, storage={"sections": 16})
    Engine.initialize(spec)
    with Engine.open(spec, UnsyncedDisk()) as repository:
        for first in range(0, count, FILES_AT_ONCE):
            with repository.session() as session:
                session.ingest("doomed", [b"x"] * min(FILES_AT_ONCE, count - first))
                session.commit()
            if first % BATCH == 0:
                bench.say(f"making {first:,} of {count:,} resource claims")
        fill(repository, "work", 1)
        repository.checkpoint()
    settle()
    with Engine.open(spec) as repository:

        def drop() -> None:
            repository.queues.drop(repository.queue("doomed"))
            repository.checkpoint()
            repository.reclamation.clean()

        longest = max(Prober(repository, PROBE_SECONDS).during(drop))
    shutil.rmtree(path)
    return longest


def _copied(directory: Path, name: str) -> Path:
    copy = directory.with_name(f"{directory.name}.{name}")
    shutil.copytree(directory, copy)
    return copy


def _put_back(copy: Path, directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    settle()
