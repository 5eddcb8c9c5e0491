"""Provenance: what it costs a commit, how fast events move and are indexed, and how long an answer takes."""

import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from bench.rounds import seconds_of, settle, take_turns
from bench.table import Row, Target, duration
from bench.workbench import Workbench, attributes_of
from ullage.contract import Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import (
    EventRun,
    EventType,
    FlowFileRecord,
    TransactionEvents,
    format_uuid,
    new_uuids,
    pack_attributes,
)
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.store import ProvenanceStore
from ullage.wire.provenance import EventQuery

BATCH = 1_000
KEPT = Quantity(1 << 40)
COST_MAX = 1 / 1.3
"""A commit with its history may take 1.3 times what it takes without: 0.77 of the speed."""

Work = Callable[[Engine], None]


def costs(bench: Workbench) -> Iterator[Row]:
    """Batches of 1,000 with provenance and without, in turns: new ones, changed and routed ones, removed ones."""
    with ExitStack() as stack:
        told = stack.enter_context(bench.repository("told", flow_file={"swap_threshold": 1 << 30}))
        silent = stack.enter_context(
            bench.repository("silent", flow_file={"swap_threshold": 1 << 30}, provenance={"enabled": False})
        )
        for what, work in (
            ("ingested", _ingest),
            ("changed by an attribute and routed", _change),
            ("with new content", _rewrite),
            ("moved on in silence", _move),
            ("removed", _remove),
        ):
            bench.say(f"{BATCH:,} FlowFiles {what}")
            count = bench.sizes.batches
            for repository in (told, silent):
                for _ in range(count * (bench.sizes.rounds + 1)):
                    if work is not _ingest:
                        _ingest(repository)
                repository.checkpoint()
            settle()
            turns = take_turns(bench.sizes.rounds, count, _repeated(told, work, count), _repeated(silent, work, count))
            yield turns.row(
                "provenance", f"{BATCH:,} FlowFiles {what}, a commit", "without provenance", Target(COST_MAX)
            )
            for repository in (told, silent):
                repository.queues.drop(repository.queue("a"))
                repository.queues.drop(repository.queue("b"))


def answers(bench: Workbench) -> Iterator[Row]:
    """Events of 5 attributes in growing numbers: drained, indexed, stored, searched; and a lineage of 1,000 events."""
    for count in bench.sizes.events:
        kept = {"max_storage_size": KEPT, "rollover_events": 200_000, "indexed_attributes": ("filename",)}
        with bench.repository("events", provenance=kept) as repository:
            uuids, moved, indexed = tell(repository, count, bench)
            yield from _stored(repository, count, moved, indexed)
            yield from _found(repository, count, uuids, bench.sizes.queries)
    with bench.repository("lineage") as repository:
        seed = _family(repository)
        repository.provenance.drain()
        repository.provenance.index_step()
        times = tuple(seconds_of(lambda: repository.history.lineage(seed)) * 1e3 for _ in range(bench.sizes.rounds))
        events = len(repository.history.lineage(seed).events)
        yield Row("provenance", f"lineage of {events:,} events", "", times, "ms")


def tell(repository: Engine, count: int, bench: Workbench) -> tuple[list[bytes], float, float]:
    """Commit so many events of FlowFiles that are gone, moving them on as they come.

    Returns some of the uuids, and the seconds it took to drain and to index all.
    """
    chooser = random.Random(count)
    some: list[bytes] = []
    moved = indexed = 0.0
    for first in range(0, count, BATCH):
        records = doomed(first, BATCH)
        some.append(chooser.choice(records).uuid)
        repository.committer.commit(
            [TransactionEvents("bench", "Bench", (EventRun(EventType.DROP, 0, BATCH),), tuple(records))], creates=False
        )
        if first % (200 * BATCH) == 199 * BATCH or first + BATCH >= count:
            bench.say(f"{first + BATCH:,} of {count:,} events")
            moved += seconds_of(repository.provenance.drain)
            indexed += seconds_of(lambda: index_all(repository))
    return some, moved, indexed


def doomed(first: int, count: int) -> list[FlowFileRecord]:
    """FlowFiles of five attributes that are in no queue: what is told of them is that they are gone."""
    return [
        FlowFileRecord(uuid, 1, None, 0, 0, 1, 1, 1, pack_attributes(attributes_of(first + number)))
        for number, uuid in enumerate(new_uuids(count))
    ]


def index_all(repository: Engine) -> None:
    """Until the index has every event."""
    while repository.provenance.index_step():
        continue


def _stored(repository: Engine, count: int, moved: float, indexed: float) -> Iterator[Row]:
    yield Row("provenance", f"{count:,} events drained into Parquet", "", (count / moved,), "events/s")
    yield Row("provenance", f"{count:,} events indexed", "", (count / indexed,), "events/s")
    assert isinstance(repository.provenance, ProvenanceStore)
    stored = sum(file.bytes for file in repository.provenance.manifest.files)
    page = repository.history.query(EventQuery(limit=BATCH))
    lines = sum(len(_as_json(event)) for event in page.events) / len(page.events)
    yield Row(
        "provenance",
        f"bytes of an event on disk, of {count:,}",
        f"a line of JSON of {lines:.0f} bytes",
        (stored / count / lines,),
        medians=f"{stored / count:.0f} bytes",
    )


def _as_json(event: ProvenanceEvent) -> bytes:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    fields["attributes_before"] = event.previous_attributes()
    fields["attributes"] = event.updated_attributes()
    fields["uuid"] = event.flow_file
    return json.dumps(fields, default=str).encode() + b"\n"


def _found(repository: Engine, count: int, uuids: Sequence[bytes], queries: int) -> Iterator[Row]:
    chooser = random.Random(1)
    by_uuid = [EventQuery(flow_file=format_uuid(chooser.choice(uuids))) for _ in range(queries)]
    names = [attributes_of(chooser.randrange(count))["filename"] for _ in range(queries)]
    by_attribute = [EventQuery(attributes={"filename": name}) for name in names]
    for what, asked in (("uuid", by_uuid), ("attribute", by_attribute)):
        times = [seconds_of(partial(repository.history.query, query)) for query in asked]
        times.sort()
        p50, p99 = statistics.median(times), times[min(len(times) - 1, len(times) * 99 // 100)]
        yield Row(
            "provenance",
            f"query by {what} over {count:,} events: p50 and p99",
            "",
            (p50 * 1e3, p99 * 1e3),
            "ms",
            medians=f"p50 {duration(p50)}, p99 {duration(p99)}",
        )


def _family(repository: Engine) -> str:
    """A FlowFile that becomes 200, each of which is routed, changed, sent, and removed."""
    with repository.session() as session:
        parent = session.write(session.create(), bytes(200))
        session.transfer(parent, "in")
        session.commit()
    with repository.session() as session:
        (parent,) = session.get_many("in", 1)
        session.transfer_many(session.split(parent, [1] * 200), "a", "splits")
        session.remove(parent)
        session.commit()
    with repository.session() as session:
        parts = session.get_many("a", 200)
        session.provenance.send(parts, "sftp://example.org")
        session.transfer_many((session.write(part, b"new") for part in parts), "b", "sent")
        session.commit()
    repository.queues.drop(repository.queue("b"))
    return parent.id


def _repeated(repository: Engine, work: Work, count: int) -> Callable[[], float]:
    def run() -> None:
        for _ in range(count):
            work(repository)

    return lambda: seconds_of(run)


def _ingest(repository: Engine) -> None:
    with repository.session() as session:
        session.ingest("a", [b"x"] * BATCH, [attributes_of(number) for number in range(BATCH)])
        session.commit()


def _change(repository: Engine) -> None:
    with repository.session("c") as session:
        flow_files = session.get_many("a", BATCH)
        for flow_file in flow_files:
            session.put_attribute(flow_file, "seen", "yes")
        session.transfer_many(flow_files, "b", "matched")
        session.commit()


def _rewrite(repository: Engine) -> None:
    with repository.session("c") as session:
        flow_files = session.get_many("a", BATCH)
        for flow_file in flow_files:
            session.write(flow_file, b"other")
        session.transfer_many(flow_files, "b")
        session.commit()


def _move(repository: Engine) -> None:
    with repository.session("c") as session:
        flow_files = session.get_many("a", BATCH)
        session.transfer_many(flow_files, "b")
        session.commit()


def _remove(repository: Engine) -> None:
    with repository.session("c") as session:
        session.remove_many(session.get_many("a", BATCH))
        session.commit()
