"""A FlowFile in the hands of a session: what it was, what it is, and the least that has to be logged of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ullage.engine.committer import ChangingParts
from ullage.engine.content.reader import ContentReader
from ullage.engine.counters import Counters
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.handles import HandleStore
from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_ATTRIBUTES,
    NOT_INHERITED,
    ClaimBlocks,
    Content,
    ContentClaim,
    EventType,
    FlowFileRecord,
    Operation,
    Update,
    new_uuids,
    pack_attributes,
    unpack_attributes,
)
from ullage.engine.updates import attribute_count, require_attributes, updated
from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.errors import SessionMisuse, TransactionTooLarge
from ullage.sessionroom import NOTE_BYTES, SessionRoom, text_bytes


@dataclass(frozen=True, slots=True)
class SessionParts(ChangingParts):
    """The parts of a repository that its sessions work with."""

    queues: QueueManager
    handles: HandleStore
    counters: Counters


RECORD_BYTES: Final = 1_000
"""Of a FlowFile beside its attributes: its record, what becomes of it, and its place in tables."""

CONTENT_BYTES: Final = 500
"""Of a content that was written, until the commit: where it lies, and its checksums."""

PENALTY_MILLIS: Final = 30_000
"""How long a penalized FlowFile stays out of polls, as in NiFi."""

NOTHING_CHANGED: Final[Mapping[str, str]] = MappingProxyType({})


class Working(msgspec.Struct, eq=False, gc=False):
    """One FlowFile in a session: as it was (None: created here), as it is, and where it is to go.

    A batch makes thousands. They refer to nothing that refers to them, and own no container before they need one:
    else the collector would run at every seven hundred of them.

    `spawned` is how one that was created here came to be, from `parents`; `relationship` is the name of its way.
    `is_reported`: a report keeps it as it is now.
    """

    original: FlowFileRecord | None
    current: FlowFileRecord
    source: FlowFileQueue | None
    target: FlowFileQueue | None = None
    changed: Mapping[str, str] = NOTHING_CHANGED
    removed: frozenset[str] = frozenset()
    content: Content | None = None
    is_removed: bool = False
    penalty_millis: int = 0
    relationship: str = ""
    spawned: EventType = EventType.CREATE
    spawned_details: str = ""
    is_reported: bool = False
    parents: bytes = b""


class Settled(NamedTuple):
    """What a session's FlowFiles come to: records to create, changes to log, uuids to delete."""

    created: dict[bytes, FlowFileRecord]
    updates: list[Update]
    removed: list[bytes]

    def claims(self) -> set[ContentClaim | None]:
        """The claims that FlowFiles point at anew."""
        claims = {record.claim for record in self.created.values()}
        return claims | {update.content.claim for update in self.updates if update.content is not None}


def bytes_of(record: FlowFileRecord) -> int:
    """What holding it takes in memory."""
    return RECORD_BYTES + len(record.attributes) + len(record.parents)


def noted_bytes(changed: Mapping[str, str], removed: Iterable[str]) -> int:
    """What knowing of changes of attributes takes in memory."""
    names = sum(NOTE_BYTES + text_bytes(name) for name in chain(changed, removed))
    return names + sum(map(text_bytes, changed.values()))


def work_bytes(current: FlowFileRecord, changed: Collection[str], removed: Collection[str]) -> int:
    """What making this of a FlowFile, and of what was said of it, works on."""
    return bytes_of(current) + NOTE_BYTES * (attribute_count(current.attributes) + len(changed) + len(removed))


def growth(working: Working, current: FlowFileRecord, changed: Mapping[str, str], removed: Iterable[str]) -> int:
    """The same of a FlowFile that becomes `current`, beside what it has: all of it where a report keeps that."""
    more = bytes_of(current) - (0 if working.is_reported else bytes_of(working.current))
    if changed is not working.changed:
        more += noted_bytes(changed, removed) - noted_bytes(working.changed, working.removed)
    return more


def fitting(records: list[FlowFileRecord], room: SessionRoom, source: FlowFileQueue) -> list[FlowFileRecord]:
    """As many of what was taken from a queue as there is room for, which is taken; the others go back there."""
    count = 0
    try:
        count = room.take_first(map(bytes_of, records))
    finally:
        if count < len(records):
            source.requeue(records[count:])
    return records[:count]


def created(originals: Sequence[FlowFileRecord], attributes: dict[str, str], now_millis: int) -> FlowFileRecord:
    """A new, empty FlowFile, which stands in no queue yet; of these parents, if there are any. TransactionTooLarge."""
    made = FlowFileRecord(
        new_uuids(1)[0],
        HANDLE_QUEUE,
        None,
        0,
        0,
        now_millis,
        min((parent.lineage_millis for parent in originals), default=now_millis),
        0,
        pack_attributes(common_attributes(originals) | attributes),
        b"".join(parent.uuid for parent in originals),
    )
    require_attributes(made)
    return made


def ingested(
    queue: int,
    first: int,
    contents: Sequence[bytes],
    claims: Iterable[ContentClaim | None],
    packed: Iterable[bytes],
    now_millis: int,
) -> list[FlowFileRecord]:
    """New FlowFiles in a queue, from place `first` on, with these contents and attributes."""
    count = len(contents)
    return list(
        map(
            FlowFileRecord,
            new_uuids(count),
            repeat(queue),
            claims,
            repeat(0),
            map(len, contents),
            repeat(now_millis),
            repeat(now_millis),
            range(first, first + count),
            packed,
        )
    )


def put_back(workings: Iterable[Working], penalized_until: int | None) -> None:
    """Every FlowFile stands in the queue that it was taken from, as it was; or waits there until then."""
    returned: dict[FlowFileQueue, list[FlowFileRecord]] = {}
    for held in workings:
        if held.original is not None and held.source is not None:
            if penalized_until is not None:
                held.source.acknowledge([held.original])
                held.source.penalize(held.original, penalized_until)
            else:
                returned.setdefault(held.source, []).append(held.original)
    for queue, records in returned.items():
        queue.requeue(records)


def settle(workings: Iterable[Working], position: int) -> Settled:
    """Work out the transaction's part for these FlowFiles, which take places in their queues from `position` on.

    One that was created and removed in the session leaves no trace: its clones count for themselves.
    """
    settled = Settled({}, [], [])
    for place, working in enumerate(workings, start=position):
        uuid = working.current.uuid
        if working.is_removed:
            if working.original is not None:
                settled.removed.append(uuid)
            continue
        assert working.target is not None
        if working.original is None:
            settled.created[uuid] = updated(working.current, Update(uuid, queue=working.target.number, queued=place))
        else:
            settled.updates.append(update_of(working, working.target.number, place))
    return settled


def publish(
    parts: SessionParts,
    workings: Iterable[Working],
    ingested: Iterable[tuple[FlowFileQueue, list[FlowFileRecord]]],
    settled: Settled,
) -> None:
    """Show in the queues what a session has made durable."""
    arrivals: dict[FlowFileQueue, list[FlowFileRecord]] = {}
    departures: dict[FlowFileQueue, list[FlowFileRecord]] = {}
    now = parts.clock.now_millis()
    for working in workings:
        if working.source is not None and working.original is not None:
            departures.setdefault(working.source, []).append(working.original)
        if working.is_removed:
            continue
        assert working.target is not None
        record = settled.created.get(working.current.uuid) or parts.ledger.find(working.current.uuid)
        assert record is not None, f"FlowFile {working.current.id} vanished while a session held it"
        arrived = arrivals.setdefault(working.target, [])
        if working.penalty_millis:
            working.target.penalize(record, now + working.penalty_millis)
        else:
            arrived.append(record)
    for queue, records in departures.items():
        queue.acknowledge(records)
    for queue, records in [*ingested, *arrivals.items()]:
        parts.queues.offer(queue, records)


def with_blocks_of(
    claims: set[ContentClaim | None], content: list[Operation], pinned: Iterable[ContentClaim], reader: ContentReader
) -> list[Operation]:
    """Block CRCs of the claims that a transaction names, no others: nobody would ever drop those.

    Those of imported (pinned) claims are among them: if the handle was purged meanwhile, they went with it.
    """
    named = {(claim.resource, claim.offset) for claim in claims if claim is not None}
    kept = [op for op in content if type(op) is not ClaimBlocks or (op.resource, op.offset) in named]
    for claim in dict.fromkeys(pinned):
        crcs = reader.known_blocks(claim) if claim in claims else None
        if crcs is not None:
            kept.append(ClaimBlocks(claim.resource, claim.offset, crcs))
    return kept


def update_of(working: Working, queue: int, position: int) -> Update:
    """Only what changed: one attribute of a hundred costs one attribute."""
    assert working.original is not None
    content = working.content
    original = working.original
    if content is not None and (content.claim, content.start, content.size) == (
        original.claim,
        original.start,
        original.size,
    ):
        content = None
    changed: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    if working.changed or working.removed:
        known = unpack_attributes(original.attributes)
        changed = {name: value for name, value in working.changed.items() if known.get(name) != value}
        removed = tuple(name for name in sorted(working.removed) if name in known)
    return Update(
        original.uuid,
        None if queue == original.queue else queue,
        position,
        content,
        pack_attributes(changed) if changed else None,
        removed,
    )


def common_attributes(parents: Sequence[FlowFileRecord]) -> dict[str, str]:
    """What a FlowFile inherits: all of one parent's attributes, of several those on which they agree."""
    if not parents or all(parent.attributes == NO_ATTRIBUTES for parent in parents):
        return {}
    common = unpack_attributes(parents[0].attributes)
    for parent in parents[1:]:
        other = unpack_attributes(parent.attributes)
        common = {name: value for name, value in common.items() if other.get(name) == value}
    return {name: value for name, value in common.items() if name not in NOT_INHERITED}


def fragment_marks(original: FlowFileRecord, index: int, count: int) -> dict[str, str]:
    """The attributes by which NiFi's MergeContent puts a split FlowFile together again."""
    return {
        "fragment.identifier": original.id,
        "fragment.index": str(index),
        "fragment.count": str(count),
        "segment.original.filename": original.attribute_map()["filename"],
    }


def require_settled(unsettled: Sequence[FlowFileRecord]) -> None:
    """SessionMisuse if there is one."""
    if unsettled:
        raise SessionMisuse(
            f"FlowFile {unsettled[0].id} and {len(unsettled) - 1} others were not transferred or removed"
        )


def require_size(working: Iterable[Working], ingested: int) -> None:
    """TransactionTooLarge for a session that changes too many FlowFiles."""
    count = ingested + sum(held.original is not None or not held.is_removed for held in working)
    if count > OPERATIONS_MAX:
        raise TransactionTooLarge(
            f"this session changes {count} FlowFiles, one transaction at most {OPERATIONS_MAX}: commit in parts"
        )
