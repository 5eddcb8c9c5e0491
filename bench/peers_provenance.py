"""The engine's provenance beside Apache NiFi's: registering, the index, answers, and the bytes that an event takes."""

import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.arena import SYNCED, UNSYNCED, Arena, rows
from bench.harness import Harness
from bench.provenance import BATCH, KEPT, doomed, index_all, tell
from bench.rounds import Timed, rotate, seconds_of, settle
from bench.table import Row, Target, duration, number
from ullage.engine.engine import Engine
from ullage.engine.model import EventRun, EventType, FlowFileRecord, TransactionEvents, format_uuid, new_uuids
from ullage.wire.provenance import EventQuery

LINEAGE_EVENTS = 10
"""Of one FlowFile, on both sides."""

SETTINGS = {"max_storage_size": KEPT, "rollover_events": 200_000}
"""Nothing expires, and events move when the bench says so."""

REGISTERED = Target(2)
INDEXED = Target(1)
ANSWERED = Target(0.2)
"""Over thirty times the events, an answer may take five times as long."""

COMPRESSION_SECONDS = 60


class Answer(NamedTuple):
    """Seconds that half of the questions, and all but a hundredth of them, took at most."""

    p50: float
    p99: float


def registrations(arena: Arena) -> Iterator[Row]:
    """Events in calls of several sizes: until they are durable, and in event files; and until the index has them."""
    nifi = arena.nifi
    if not _has_provenance(nifi):
        return
    with ExitStack() as stack:
        repository = stack.enter_context(arena.bench.repository("ullage", provenance=SETTINGS))
        for name, is_synced in (("synced", True), ("unsynced", False)):
            nifi.ask("provenance_open", name, sync=is_synced)
            stack.callback(nifi.ask, "provenance_close", name)
        for size, events in arena.sizes.registrations:
            what = f"{size:,} event{'s' if size > 1 else ''} a call"
            arena.bench.say(what)
            yield from _registration_rows(arena, repository, what, size, events)


def _has_provenance(nifi: Harness) -> bool:
    if not nifi.has_provenance:
        print("NiFi's provenance is left out: its classes come from a checkout that NIFI_SRC names", file=sys.stderr)
    return nifi.has_provenance


def _registration_rows(arena: Arena, repository: Engine, what: str, size: int, events: int) -> Iterator[Row]:
    indexed: dict[str, list[float]] = {"engine": [], SYNCED: [], UNSYNCED: []}
    calls = max(1, events // size)

    def engine() -> float:
        batches = [_told(doomed(call * size, size)) for call in range(calls)]
        settle()
        begin = time.perf_counter()
        for batch in batches:
            repository.committer.commit([batch], creates=False)
        repository.provenance.drain()
        registered = time.perf_counter() - begin
        index_all(repository)
        indexed["engine"].append(time.perf_counter() - begin)
        return registered

    def peer(side: str, name: str) -> float:
        settle()
        answer = arena.nifi.ask("register", name, size=size, count=events)
        indexed[side].append(answer["indexed"] / 1e9)
        return float(answer["nanos"]) / 1e9

    sides: dict[str, Timed] = {
        "engine": engine,
        SYNCED: partial(peer, SYNCED, "synced"),
        UNSYNCED: partial(peer, UNSYNCED, "unsynced"),
    }
    registered = rotate(arena.sizes.rounds, sides)
    counted = {side: seconds[1:] for side, seconds in indexed.items()}  # as `rotate`: the first round warms up
    yield from rows("provenance", f"{what}, registered and drained", calls * size, registered, {SYNCED: REGISTERED})
    yield from rows("provenance", f"{what}, until indexed", calls * size, counted, {SYNCED: INDEXED})


def answers(arena: Arena) -> Iterator[Row]:
    """Queries by uuid over as many events as NiFi has and over many more, a lineage, and the bytes of an event."""
    sizes, nifi = arena.sizes, arena.nifi
    if not _has_provenance(nifi):
        return
    nifi.ask("provenance_open", "nifi", sync=False)
    arena.bench.say(f"filling NiFi with {sizes.events:,} events")
    nifi.ask("register", "nifi", size=BATCH, count=sizes.events)
    ours = 0
    for events in (sizes.events, sizes.many_events):
        with arena.bench.repository("ullage", provenance=SETTINGS) as repository:
            uuids, _, _ = tell(repository, events, arena.bench)
            yield from _query_rows(arena, repository, events, uuids)
            if events == sizes.events:
                yield _lineage_row(arena, repository)
                ours = _bytes_below(arena.bench.directory / "ullage" / "provenance")
    nifi.ask("provenance_close", "nifi")
    yield _bytes_row(arena, ours)


def _query_rows(arena: Arena, repository: Engine, events: int, uuids: Sequence[bytes]) -> Iterator[Row]:
    count = arena.sizes.queries
    ours: list[Answer] = []
    theirs: list[Answer] = []
    for turn in range(arena.sizes.rounds):
        arena.bench.say(f"queries over {events:,} events, round {turn + 1}")
        chooser = random.Random(turn)
        queries = [EventQuery(flow_file=format_uuid(chooser.choice(uuids))) for _ in range(count)]
        ours.append(_answer([seconds_of(partial(_found, repository, query, 1)) for query in queries]))
        theirs.append(_nifi_answer(arena, "query", count=count, seed=turn))
    against = f"NiFi, of {arena.sizes.events:,}"
    for index, name in enumerate(Answer._fields):
        ratios = tuple(peer[index] / engine[index] for engine, peer in zip(ours, theirs, strict=True))
        medians = (
            f"{duration(statistics.median(answer[index] for answer in ours))}, "
            f"peer {duration(statistics.median(answer[index] for answer in theirs))}"
        )
        target = ANSWERED if name == "p50" and events > arena.sizes.events else None
        yield Row("provenance", f"query by uuid over {events:,} events, {name}", against, ratios, "x", target, medians)


def _lineage_row(arena: Arena, repository: Engine) -> Row:
    uuid = new_uuids(1)[0]
    for flow_file in doomed(0, LINEAGE_EVENTS):
        repository.committer.commit([_told([_of(uuid, flow_file)], EventType.SEND)], creates=False)
    repository.provenance.drain()
    index_all(repository)
    assert len(repository.history.lineage(format_uuid(uuid)).events) == LINEAGE_EVENTS
    ours, theirs = [], []
    for _ in range(arena.sizes.rounds):
        times = [seconds_of(lambda: repository.history.lineage(format_uuid(uuid))) for _ in range(arena.sizes.queries)]
        ours.append(_answer(times).p50)
        theirs.append(_nifi_answer(arena, "lineage", count=arena.sizes.queries).p50)
    ratios = tuple(peer / engine for engine, peer in zip(ours, theirs, strict=True))
    medians = f"{duration(statistics.median(ours))}, peer {duration(statistics.median(theirs))}"
    return Row("provenance", f"lineage of {LINEAGE_EVENTS} events", "NiFi", ratios, "x", ANSWERED, medians)


def _bytes_row(arena: Arena, ours: int) -> Row:
    """With the index, on both sides, and with NiFi's files compressed: a start does that, and begins a new one."""
    directory, count = arena.bench.directory / "nifi", arena.sizes.events
    arena.nifi.ask("provenance_open", "nifi", sync=False)
    deadline = time.monotonic() + COMPRESSION_SECONDS
    while (plain := len(list(directory.glob("*.prov")))) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    arena.nifi.ask("provenance_close", "nifi")
    theirs = _bytes_below(directory)
    against = "NiFi, not compressed" if plain > 1 else "NiFi, compressed"
    medians = f"{number(ours / count)} bytes, peer {number(theirs / count)} bytes"
    what = f"bytes of an event, of {count:,}, with the index"
    return Row("provenance", what, against, (ours / theirs,), "x", Target(1, is_ceiling=True), medians)


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _found(repository: Engine, query: EventQuery, least: int) -> None:
    assert len(repository.history.query(query).events) >= least


def _answer(times: list[float]) -> Answer:
    times.sort()
    return Answer(times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)])


def _nifi_answer(arena: Arena, job: str, **fields: int) -> Answer:
    answer = arena.nifi.ask(job, "nifi", **fields)
    return Answer(answer["median"] / 1e9, answer["p99"] / 1e9)


def _told(flow_files: Sequence[FlowFileRecord], kind: EventType = EventType.DROP) -> TransactionEvents:
    run = EventRun(kind, 0, len(flow_files), transit_uri="sftp://example.org" if kind == EventType.SEND else "")
    return TransactionEvents("bench", "Bench", (run,), tuple(flow_files))


def _of(uuid: bytes, like: FlowFileRecord) -> FlowFileRecord:
    return FlowFileRecord(uuid, 1, None, 0, 0, 1, 1, 1, like.attributes)
