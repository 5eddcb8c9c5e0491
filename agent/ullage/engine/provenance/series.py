"""How the events of a transaction are worked out from its operations.

The log says of an event only what the other operations of its transaction do not (`model.TransactionEvents`). What the
FlowFile was before stands there, what it became follows from them: so an event can be told at any time, without the
ledger.

A batch does the same to thousands of FlowFiles. Its events stay together here, as a series that says once what they
share: an event file is made of columns, and most of them say one thing over and over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ullage.engine.model import (
    NO_ATTRIBUTES,
    Content,
    EventRun,
    FlowFileRecord,
    TransactionEvents,
    Update,
)
from ullage.engine.provenance.events import ProvenanceEvent, RecordedTransaction
from ullage.engine.updates import updated
from ullage.errors import RepositoryDamaged

ABRIDGED = "attributes omitted: too large for one transaction"


class Series(NamedTuple):
    """Events that differ only in their subjects, in the order of their numbers.

    `ordinal` and `sequence` are those of the first one. `before` and `after` are each FlowFile as it was, None for a
    new one, and as it was then.
    """

    told: RecordedTransaction
    events: TransactionEvents
    run: EventRun
    ordinal: int
    sequence: int
    before: Sequence[FlowFileRecord | None]
    after: Sequence[FlowFileRecord]

    def part(self, start: int, end: int) -> Series:
        """Those events of it, counted from 0."""
        return self._replace(
            ordinal=self.ordinal + start,
            sequence=self.sequence + start,
            before=self.before[start:end],
            after=self.after[start:end],
        )

    @property
    def details(self) -> str:
        if not self.events.is_abridged:
            return self.run.details
        return f"{self.run.details}; {ABRIDGED}" if self.run.details else ABRIDGED

    def attributes_before(self) -> list[bytes]:
        """Packed, of each subject."""
        return [NO_ATTRIBUTES if record is None else record.attributes for record in self.before]

    def attributes(self) -> list[bytes]:
        """Packed, of each subject at the event."""
        given = self.run.attributes
        return [record.attributes for record in self.after] if given is None else [given] * len(self.after)

    def weights(self) -> list[int]:
        """The bytes of each event that are no numbers: one may have millions of them, and most have some hundred."""
        run = self.run
        shared = sum(map(len, (run.details, run.transit_uri, run.alternate_identifier, run.parents, run.children)))
        packed = zip(self.attributes_before(), self.attributes(), strict=True)
        return [shared + len(before) + len(after) for before, after in packed]

    def slices(self) -> Sequence[FlowFileRecord | Content]:
        """What each subject's content was at the event: `claim`, `start`, `size`."""
        return self.after if self.run.content is None else [self.run.content] * len(self.after)


def series_of(told: RecordedTransaction, first_sequence: int) -> Iterator[Series]:
    """The events of one transaction, numbered from `first_sequence` on. RepositoryDamaged if they contradict it."""
    created = [operation for operation in told.operations if type(operation) is FlowFileRecord]
    updates = {operation.uuid: operation for operation in told.operations if type(operation) is Update}
    ordinal = 0
    for operation in told.operations:
        if type(operation) is not TransactionEvents:
            continue
        for run in operation.runs:
            before, after = _subjects(told, created, updates, operation, run)
            yield Series(told, operation, run, ordinal, first_sequence + ordinal, before, after)
            ordinal += run.count


def _subjects(
    told: RecordedTransaction,
    created: list[FlowFileRecord],
    updates: dict[bytes, Update],
    events: TransactionEvents,
    run: EventRun,
) -> tuple[Sequence[FlowFileRecord | None], Sequence[FlowFileRecord]]:
    """The FlowFiles of a run, as they were and as they are."""
    end = run.first + run.count
    if end > len(created) + len(events.before):
        raise RepositoryDamaged(
            f"transaction {told.transaction} has an event of FlowFile {end - 1 - len(created)}, which it lacks"
        )
    new = created[run.first : end]
    before = events.before[max(0, run.first - len(created)) : max(0, end - len(created))]
    after: Sequence[FlowFileRecord] = before
    if updates:
        after = [_updated(record, updates) for record in before]
    return ([None] * len(new) + list(before), new + list(after)) if new else (before, after)


def _updated(record: FlowFileRecord, updates: dict[bytes, Update]) -> FlowFileRecord:
    update = updates.get(record.uuid)
    return record if update is None else updated(record, update)


def expand(
    told: RecordedTransaction, first_sequence: int, queue_name: Callable[[int], str]
) -> Iterator[ProvenanceEvent]:
    """The events of one transaction, one by one; as `series_of`."""
    for series in series_of(told, first_sequence):
        events, run, details = series.events, series.run, series.details
        columns = zip(
            *(series.before, series.after, series.attributes_before(), series.attributes(), series.slices()),
            strict=True,
        )
        for number, (before, after, attributes_before, attributes, slice) in enumerate(columns):
            yield ProvenanceEvent(
                series.sequence + number,
                told.transaction,
                series.ordinal + number,
                told.millis,
                run.type,
                after.uuid,
                events.component,
                events.component_type,
                run.relationship,
                details,
                run.transit_uri,
                run.alternate_identifier,
                run.duration_millis,
                "" if before is None else queue_name(before.queue),
                after.entry_millis,
                after.lineage_millis,
                run.parents,
                run.children,
                attributes_before,
                attributes,
                None if before is None else Content(before.claim, before.start, before.size),
                Content(slice.claim, slice.start, slice.size),
            )


def chunks(series: Iterable[Series], events: int, bytes_max: int) -> Iterator[list[Series]]:
    """The same events, at most so many at a time, and of so many bytes of text unless one alone has more; the last ones
    may be fewer.
    """
    chunk: list[Series] = []
    room, bytes_left = events, bytes_max
    for each in series:
        ends = list(accumulate(each.weights(), initial=0))
        at = 0
        while at < len(each.after):
            end = bisect_right(ends, ends[at] + bytes_left, at, min(at + room, len(each.after)) + 1) - 1
            if end == at and not chunk:
                end += 1
            if end > at:
                chunk.append(each.part(at, end))
                room -= end - at
                bytes_left -= ends[end] - ends[at]
            if not room or bytes_left <= 0 or end < len(each.after):
                yield chunk
                chunk, room, bytes_left = [], events, bytes_max
            at = end
    if chunk:
        yield chunk
