"""FlowFiles that come from another system: with the uuid, the dates and the order that they had there.

Several may share a content, also with FlowFiles that came in an earlier transaction: a content is stored once. A
transaction says in receipts of its own, handles whose uuids can be worked out, that it happened: whoever brings the
FlowFiles looks for the receipt, and brings none twice.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from ullage.engine.batches import packed_attributes
from ullage.engine.content.writer import ClaimStream
from ullage.engine.engine import Engine
from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_CONTENT,
    Content,
    ContentClaim,
    FlowFileRecord,
    Operation,
    TransactionEvents,
)
from ullage.engine.session import ProcessSession
from ullage.engine.working import Settled


class ArrivingFlowFile(NamedTuple):
    """One FlowFile on its way: its own uuid and dates, attributes without `uuid`, and a part of a content or none."""

    uuid: bytes
    entry_millis: int
    lineage_millis: int
    attributes: dict[str, str]
    content: Content = NO_CONTENT


class ArrivingSession(ProcessSession):
    """A session that brings them: contents first, then FlowFiles that point at them, then the commit."""

    _receipts: tuple[FlowFileRecord, ...] = ()

    def store(self, contents: list[bytes]) -> Sequence[ContentClaim | None]:
        """Contents, written one behind the other; nothing refers to them yet."""
        return self._writer.put_many(contents)

    def storing(self) -> ClaimStream:
        """A content that comes piece by piece, written behind the others: a context manager with `write`."""
        return self._writer.stream()

    def arrive(self, queue: str, arrivals: Sequence[ArrivingFlowFile]) -> list[FlowFileRecord]:
        """FlowFiles that stand in a queue from the commit on, in this order. Nobody has their uuids: see `known`."""
        packed = list(packed_attributes([each.attributes for each in arrivals], len(arrivals)))
        target = self._parts.queues.queue(queue, self._tenant)
        first = self._parts.queues.take_positions(len(arrivals))
        records = [
            FlowFileRecord(
                each.uuid,
                target.number,
                each.content.claim,
                each.content.start,
                each.content.size,
                each.entry_millis,
                each.lineage_millis,
                place,
                attributes,
            )
            for place, (each, attributes) in enumerate(zip(arrivals, packed, strict=True), start=first)
        ]
        self._ingested.append((target, records))
        self._ingested_count += len(records)
        return records

    def acknowledge(self, uuid: bytes, attributes: dict[str, str]) -> None:
        """Leave a handle of this uuid, without content, in the same transaction."""
        (packed,) = packed_attributes(attributes, 1)
        now = self._parts.clock.now_millis()
        record = FlowFileRecord(uuid, HANDLE_QUEUE, None, 0, 0, now, now, 0, packed)
        self._receipts = (*self._receipts, record)

    def _operations(self, content: list[Operation], settled: Settled) -> list[Operation]:
        operations = super()._operations(content, settled)
        receipts, self._receipts = self._receipts, ()
        # Behind the FlowFiles, which events number from the first one on; and events are the last operation.
        is_told = bool(operations) and isinstance(operations[-1], TransactionEvents)
        return [*operations[:-1], *receipts, operations[-1]] if is_told else [*operations, *receipts]


def receipt(engine: Engine, uuid: bytes) -> FlowFileRecord | None:
    """The handle of this uuid, if there is one; deleted ones count, as long as they are not purged."""
    record = engine.ledger.find_any(uuid)
    return record if record is not None and record.queue == HANDLE_QUEUE else None


class KnownUuids:
    """Which uuids FlowFiles and handles of a repository have, those in swap files included. Of an open repository to
    which nobody else writes.
    """

    def __init__(self, engine: Engine) -> None:
        """RepositoryDamaged if a swap file can't be read: a FlowFile in it may come a second time."""
        self._ledger = engine.ledger
        self._swapped = {record.uuid for record in _swapped(engine)}

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._swapped or self._ledger.find_any(uuid) is not None


def find_all(engine: Engine, uuids: Collection[bytes]) -> Iterator[FlowFileRecord]:
    """Those of these FlowFiles that there are, in memory and in swap files."""
    if uuids:
        for record in engine.ledger.records:
            if record.uuid in uuids:
                yield record
        for record in _swapped(engine):
            if record.uuid in uuids:
                yield record


def _swapped(engine: Engine) -> Iterable[FlowFileRecord]:
    for name in list(engine.ledger.swaps):
        yield from engine.swap_files.read(name).records
