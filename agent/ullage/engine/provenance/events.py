"""A provenance event as it is read, and what is kept of a transaction until its events are in an event file."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ullage.engine.model import (
    Content,
    EventType,
    FlowFileRecord,
    Operation,
    TransactionEvents,
    Undrained,
    Update,
    format_uuid,
    split_uuids,
    unpack_attributes,
)
from ullage.errors import RepositoryDamaged

EVENT_BYTES = 100
"""What an event takes beside attributes, uuids and dates, in the log and in memory."""


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


class RecordedTransaction(NamedTuple):
    """One committed transaction that has events: what has to be kept of it until they are in an event file."""

    transaction: int
    millis: int
    operations: Sequence[Operation]
    events: int


def undrained(told: RecordedTransaction) -> Undrained:
    """The operations that its events are worked out from, in one."""
    telling = (each for each in told.operations if isinstance(each, FlowFileRecord | Update | TransactionEvents))
    return Undrained(told.transaction, told.millis, tuple(telling))


def count_events(operations: Iterable[Operation]) -> int:
    """How many events a transaction has."""
    return sum(run.count for operation in operations if type(operation) is TransactionEvents for run in operation.runs)


def size_of(told: RecordedTransaction) -> int:
    """About how many bytes of log a transaction's events stand for: attributes, and a constant for all else."""
    attributes = [operation.attributes for operation in told.operations if type(operation) is FlowFileRecord]
    for operation in told.operations:
        if type(operation) is TransactionEvents:
            attributes += [record.attributes for record in operation.before]
    return sum(map(len, attributes)) + EVENT_BYTES * told.events


def require_subjects(id: int, operations: Sequence[Operation]) -> None:
    """RepositoryDamaged if a transaction tells of FlowFiles that it does not hold: a damaged count has no bounds."""
    for operation in operations:
        if type(operation) is TransactionEvents:
            held = len(operations) - 1 + len(operation.before)
            if any(run.count < 1 or run.first + run.count > held for run in operation.runs):
                raise RepositoryDamaged(f"transaction {id} has events of FlowFiles that it does not hold")
