"""A provenance event as it is read, and how the events of a transaction are worked out from its operations.

The log says of an event only what the other operations of its transaction do not (`model.Events`). What the FlowFile
was before stands there, what it became follows from them: so an event can be told at any time, without the ledger.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ullage_agent.engine.errors import RepositoryDamaged
from ullage_agent.engine.model import (
    NO_ATTRIBUTES,
    Content,
    EventRun,
    Events,
    EventType,
    FlowFile,
    Operation,
    Update,
    format_uuid,
    split_uuids,
    unpack_attributes,
    updated,
)

EVENT_BYTES = 100
"""What an event takes beside attributes, uuids and dates, in the log and in memory."""

ABRIDGED = "attributes omitted: too large for one transaction"


class EventId(NamedTuple):
    """The transaction that caused an event, and its place among that transaction's events."""

    transaction: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.transaction}.{self.ordinal}"


class ProvenanceEvent(msgspec.Struct, frozen=True, gc=False):
    """What happened to one FlowFile: a snapshot that never changes.

    `sequence` numbers the events of a repository 1, 2, 3 … without a gap, in the order of transactions. `content` and
    the packed `attributes` are as of the commit (SEND: as of the emission), `..._before` as of the one before it, None
    and empty for a new FlowFile. `queue` is the name of the queue it was taken from, empty: none.
    """

    sequence: int
    transaction: int
    ordinal: int
    millis: int
    type: EventType
    uuid: bytes
    component: str
    component_type: str
    relationship: str
    details: str
    transit_uri: str
    alternate_identifier: str
    duration_millis: int
    queue: str
    entry_millis: int
    lineage_millis: int
    parents: bytes
    children: bytes
    attributes_before: bytes
    attributes: bytes
    content_before: Content | None
    content: Content | None

    @property
    def id(self) -> EventId:
        return EventId(self.transaction, self.ordinal)

    @property
    def flow_file(self) -> str:
        """The FlowFile's uuid in its usual notation."""
        return format_uuid(self.uuid)

    @property
    def parent_ids(self) -> list[str]:
        return [format_uuid(uuid) for uuid in split_uuids(self.parents)]

    @property
    def child_ids(self) -> list[str]:
        return [format_uuid(uuid) for uuid in split_uuids(self.children)]

    @property
    def size(self) -> int:
        """Bytes of content at the event."""
        content = self.content or self.content_before
        return content.size if content is not None else 0

    @property
    def filename(self) -> str:
        return self.attribute_map().get("filename", self.flow_file)

    def attribute_map(self) -> dict[str, str]:
        """All attributes at the event, without the derived core ones."""
        return unpack_attributes(self.attributes)

    def previous_attributes(self) -> dict[str, str]:
        """All attributes before it."""
        return unpack_attributes(self.attributes_before)

    def updated_attributes(self) -> dict[str, str | None]:
        """What changed: new values, and None for an attribute that was removed."""
        return changed_attributes(self.attributes_before, self.attributes)


def changed_attributes(before: bytes, after: bytes) -> dict[str, str | None]:
    """The difference between two packed maps; None stands for a removal."""
    if before == after:
        return {}
    old, new = unpack_attributes(before), unpack_attributes(after)
    changed: dict[str, str | None] = {name: value for name, value in new.items() if old.get(name) != value}
    changed.update((name, None) for name in old if name not in new)
    return changed


class Told(NamedTuple):
    """One committed transaction that has events: what has to be kept of it until they are in an event file."""

    transaction: int
    millis: int
    operations: Sequence[Operation]
    events: int


def count_events(operations: Iterable[Operation]) -> int:
    """How many events a transaction has."""
    return sum(run.count for operation in operations if type(operation) is Events for run in operation.runs)


def size_of(told: Told) -> int:
    """About how many bytes of log a transaction's events stand for: attributes, and a constant for all else."""
    attributes = [operation.attributes for operation in told.operations if type(operation) is FlowFile]
    for operation in told.operations:
        if type(operation) is Events:
            attributes += [record.attributes for record in operation.before]
    return sum(map(len, attributes)) + EVENT_BYTES * told.events


def require_subjects(id: int, operations: Sequence[Operation]) -> None:
    """RepositoryDamaged if a transaction tells of FlowFiles that it does not hold: a damaged count has no bounds."""
    for operation in operations:
        if type(operation) is Events:
            held = len(operations) - 1 + len(operation.before)
            if any(run.count < 1 or run.first + run.count > held for run in operation.runs):
                raise RepositoryDamaged(f"transaction {id} has events of FlowFiles that it does not hold")


def expand(told: Told, first_sequence: int, queue_name: Callable[[int], str]) -> Iterator[ProvenanceEvent]:
    """The events of one transaction, numbered from `first_sequence` on. RepositoryDamaged if they contradict it."""
    created = [operation for operation in told.operations if type(operation) is FlowFile]
    updates = {operation.uuid: operation for operation in told.operations if type(operation) is Update}
    ordinal = 0
    for operation in told.operations:
        if type(operation) is not Events:
            continue
        subjects = _Subjects(created, updates, operation, queue_name)
        for run in operation.runs:
            for number in range(run.first, run.first + run.count):
                yield subjects.event(told, operation, run, number, ordinal, first_sequence + ordinal)
                ordinal += 1


class _Subjects:
    """What the events of one operation are about."""

    def __init__(
        self,
        created: list[FlowFile],
        updates: dict[bytes, Update],
        events: Events,
        queue_name: Callable[[int], str],
    ) -> None:
        self._queue_name = queue_name
        self._created = created
        self._updates = updates
        self._before = events.before

    def event(
        self, told: Told, events: Events, run: EventRun, number: int, ordinal: int, sequence: int
    ) -> ProvenanceEvent:
        before, after = self._find(told, number)
        content = run.content or _content_of(after)
        return ProvenanceEvent(
            sequence,
            told.transaction,
            ordinal,
            told.millis,
            run.type,
            after.uuid,
            events.component,
            events.component_type,
            run.relationship,
            (f"{run.details}; {ABRIDGED}" if run.details else ABRIDGED) if events.is_abridged else run.details,
            run.transit_uri,
            run.alternate_identifier,
            run.duration_millis,
            "" if before is None else self._queue_name(before.queue),
            after.entry_millis,
            after.lineage_millis,
            run.parents,
            run.children,
            NO_ATTRIBUTES if before is None else before.attributes,
            after.attributes if run.attributes is None else run.attributes,
            None if before is None else _content_of(before),
            content,
        )

    def _find(self, told: Told, number: int) -> tuple[FlowFile | None, FlowFile]:
        if number < len(self._created):
            return None, self._created[number]
        number -= len(self._created)
        if number >= len(self._before):
            raise RepositoryDamaged(f"transaction {told.transaction} has an event of FlowFile {number}, which it lacks")
        before = self._before[number]
        update = self._updates.get(before.uuid)
        return before, before if update is None else updated(before, update)


def _content_of(record: FlowFile) -> Content:
    return Content(record.claim, record.start, record.size)
