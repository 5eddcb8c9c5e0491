"""The tables, worked out of one moment: functions of it alone, but for provenance and content, which read on, and for
what the process remembers of runs and says of windows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain, compress, islice
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from ullage.contract import NO_QUEUE, QueueUse
from ullage.embedded.asked import events_asked, records_asked
from ullage.embedded.content import pinned
from ullage.embedded.eventtable import event_batches
from ullage.embedded.flowfiles import ROWS, Piece, RecordColumns, Shares, batch_of, joined
from ullage.embedded.keptcolumns import KeptColumns, Room
from ullage.embedded.outgoing import OutgoingBatch, absent, content_chunks
from ullage.embedded.pace import ALONE, Pace
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.byteranges import find_move, unpack_ranges
from ullage.engine.ledger.resident import REFERENCE_BYTES
from ullage.engine.model import HANDLE_QUEUE, Action, FlowFileRecord, format_uuid
from ullage.errors import EventNotFound, FlowFileNotFound, InvalidArgument, NotFound, UllageError
from ullage.wire.matching import RowFilter
from ullage.wire.problems import problem_of
from ullage.wire.provenance import EventQuery
from ullage.wire.schemas import SCHEMAS, schema_sent
from ullage.wire.tickets import TableTicket

Row = tuple[Any, ...]

GATHERED_BYTES: Final = 1 << 20
"""Of a batch of rows that were chosen here and there."""


def bytes_of_now(repository: EmbeddedRepository) -> int:
    """What a moment takes in memory when it is taken, as long as everything that it shows is there anyhow."""
    return REFERENCE_BYTES * repository.engine.ledger.records.references


class Moment:
    """Everything as of one transaction, as tables. With a room, columns are kept for its next reader."""

    def __init__(self, repository: EmbeddedRepository, room: Room | None = None) -> None:
        self.repository = repository
        self._engine = repository.engine
        self._snapshot = repository.engine.snapshot()
        self.kept = KeptColumns(room)
        self.transaction, self.millis = self._snapshot.transaction, self._snapshot.millis

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory, beside columns: more and more as what it shows dies."""
        return self._snapshot.held_bytes(self._engine.ledger)

    def seen_by(self, repository: EmbeddedRepository) -> "Moment":
        """The same as somebody may see it: rules about queues may have changed since it was taken."""
        found = copy(self)
        found.repository = repository
        return found

    def batches(self, wanted: TableTicket, pace: Pace = ALONE) -> Iterator[OutgoingBatch]:
        """A table, or what the ticket wants of it, in record batches. One without rows says that work goes on."""
        schema, rows = schema_of(wanted), rows_of(wanted)
        columns = schema.names
        queues = {number: queue.name for number, queue in self._snapshot.queues.items()}
        asked = records_asked(rows.predicate, queues)
        shares = Shares(self._snapshot, *wanted.part, is_kept=wanted.snapshot is not None, asked=asked)
        if wanted.name == "flowfiles":
            return map(OutgoingBatch, self._flow_files(shares.pieces(), schema, rows, queues, pace))
        if wanted.name == "provenance":
            return self._provenance(wanted, columns, rows, pace)
        reclamation = self.repository.reclamation
        tables: dict[str, Callable[[], Iterable[Row]]] = {
            "claims": partial(self._claims, shares),
            "resource_claims": partial(self._resource_claims, *wanted.part),
            "queues": self._queues,
            "leases": self._leases,
            "runs": lambda: (
                (
                    *(run.id, run.owner, run.reason, run.began_millis, run.ended_millis, run.steps_done),
                    *(run.freed_bytes, 0 if run.report is None else run.report.copied_bytes, run.problem),
                )
                for run in (*self.repository.runs.upkeep(), *reclamation.runs())
            ),
            "windows": lambda: map(attrgetter(*SCHEMAS["windows"].names), reclamation.windows()),
            "content": partial(self._content, shares),
        }
        return packed(iter(tables[wanted.name]()), SCHEMAS[wanted.name], columns, rows)

    def _flow_files(
        self, pieces: Iterator[Piece], schema: pa.Schema, rows: RowFilter, queues: Mapping[int, str], pace: Pace
    ) -> Iterator[pa.RecordBatch]:
        made = RecordColumns(queues, self.kept, pace=pace)
        if not self._sees_all:
            pieces = map(self._visible, pieces)
            seals = partial(self.repository.seals.of, self.repository.acting)
            made = RecordColumns(queues, KeptColumns(), seals, pace)
        return _record_batches(made, pieces, schema, rows, pace)

    @property
    def _sees_all(self) -> bool:
        return self.repository.acting.queues.allows_everywhere(QueueUse.READ)

    def _sees(self, queue: int) -> bool:
        """Whether rows of this queue are shown."""
        found = self._snapshot.queues.get(queue)
        name = NO_QUEUE if queue == HANDLE_QUEUE or found is None else found.name
        return self.repository.acting.queues.allows(QueueUse.READ, name)

    def _visible(self, piece: Piece) -> Piece:
        """The same without what is left out for whoever asks."""

        def read() -> list[FlowFileRecord]:
            records = piece.read()
            seen = {queue for queue in {record.queue for record in records} if self._sees(queue)}
            return [record for record in records if record.queue in seen]

        return piece._replace(read=read)

    def _claims(self, shares: Shares) -> Iterator[Row]:
        containers = {claim.index: claim.container for claim in self._snapshot.resources}
        for claim, claimants in shares.claims().items():
            file, offset = claim.resource, claim.offset
            relocation = self._snapshot.relocations.get(claim.resource)
            if relocation is not None and (move := find_move(relocation.moves, claim.offset)) is not None:
                file, offset = relocation.output, move.target + claim.offset - move.offset
            yield (
                *(claim.resource, claim.offset, claim.length, claim.crc, claimants),
                *(containers.get(file), file, offset),
            )

    def _resource_claims(self, part: int, parts: int) -> Iterator[Row]:
        """Totals of what was born in each; swapped FlowFiles count by their files' summaries, so nothing is read."""
        totals: dict[int, list[int]] = {}
        for claim, claimants in Counter(r.claim for r in self._snapshot.flow_files if r.claim is not None).items():
            _add(totals.setdefault(claim.resource, [0, 0, 0, 0]), 1, claimants, claim.length, claim.end)
        for swap in self._snapshot.swaps:
            for share in swap.shares:
                found = totals.setdefault(share.resource, [0, 0, 0, 0])
                _add(found, 0, share.claimants, share.live_bytes, share.end)
        sections = self._engine.spec.storage.sections
        for file in self._snapshot.resources:
            if file.index % parts != part:
                continue
            relocation = self._snapshot.relocations.get(file.index)
            yield (
                *(file.index, file.container, file.index % sections, file.name, file.created_millis),
                *(file.lifetime, file.length, file.sealed, file.generation, file.archived_millis),
                None if file.intent == Action.NONE else Action(file.intent).name.lower(),
                *totals.get(file.index, [0, 0, 0, 0]),
                sum(run.end - run.offset for run in unpack_ranges(file.holes)),
                file.index if relocation is None else relocation.output,
                file.last_death_millis,
            )

    def _queues(self) -> Iterator[Row]:
        counts: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        swapped: Counter[int] = Counter()
        for record in self._snapshot.flow_files:
            counts[record.queue] += 1
            sizes[record.queue] += record.size
        for swap in self._snapshot.swaps:
            counts[swap.queue] += swap.count
            sizes[swap.queue] += swap.size_bytes
            swapped[swap.queue] += swap.count
        for queue in self._snapshot.queues.values():
            if (queue.is_removed and not counts[queue.number]) or not self._sees(queue.number):
                continue
            yield (
                *(queue.name, queue.number, queue.priority, queue.priority_attribute, queue.count_max),
                *(queue.bytes_max, queue.expiration_millis),
                *(counts[queue.number], sizes[queue.number], swapped[queue.number]),
            )

    def _provenance(
        self, wanted: TableTicket, columns: Sequence[str], rows: RowFilter, pace: Pace
    ) -> Iterator[OutgoingBatch]:
        self.repository.acting.require_everywhere(QueueUse.READ, "the table provenance")
        if wanted.count is not None:  # each event is looked at, so no index can help
            every = EventQuery(after=wanted.after, before=(wanted.through or 0) + 1)
            return map(OutgoingBatch, gathered(self._counted_events(wanted, every, columns, rows, pace)))
        query = events_asked(rows.predicate)
        if query is None:
            return iter(())
        ends = [
            end for end in (query.before, None if wanted.through is None else wanted.through + 1) if end is not None
        ]
        query = msgspec.structs.replace(query, after=max(query.after, wanted.after), before=min(ends, default=None))
        found = event_batches(self._engine, query, self.transaction, columns, rows, pace)
        return map(OutgoingBatch, gathered(found))

    def _counted_events(
        self, wanted: TableTicket, every: EventQuery, columns: Sequence[str], rows: RowFilter, pace: Pace
    ) -> Iterator[pa.RecordBatch]:
        """EventNotFound at the end if there are fewer than the ticket says."""
        count = yield from event_batches(self._engine, every, self.transaction, columns, rows, pace)
        if count != wanted.count:
            raise EventNotFound(
                f"{(wanted.count or 0) - count} of the events after {wanted.after} through {wanted.through} are not "
                "there any more (spec.provenance says how long they are kept)"
            )

    def _leases(self) -> Iterator[Row]:
        for lease in self._snapshot.leases:
            yield (
                *(format_uuid(lease.id), lease.holder, list(lease.resources), lease.transaction),
                *(lease.created_millis, lease.expires_millis, lease.holds_files),
            )

    def _content(self, shares: Shares) -> Iterator[Row]:
        for piece in shares.pieces():
            for record in piece.read():
                if not record.deleted_millis and self._sees(record.queue):
                    yield from self._pieces_of(record)

    def _pieces_of(self, record: FlowFileRecord) -> Iterator[Row]:
        claim, queue = record.claim, self._snapshot.queues.get(record.queue)
        name = None if record.queue == HANDLE_QUEUE or queue is None else queue.name
        if claim is None or record.size == 0:
            yield record.id, name, 0, b"", None
            return
        at = 0
        try:
            with pinned(self._engine, [claim]):
                for piece in self._engine.reader.stream(claim, record.start, record.size, record=record):
                    yield record.id, name, at, piece, None
                    at += len(piece)
        except UllageError as error:
            yield record.id, name, at, None, problem_of(error).slug


def feed_batches(repository: EmbeddedRepository, wanted: TableTicket, pace: Pace = ALONE) -> Iterator[OutgoingBatch]:
    """What a stream has taken of a queue, as the table `flowfiles`, in the order in which it stands. InvalidArgument if
    that is not what the ticket wants, FlowFileNotFound at the end if there are fewer than it says.
    """
    schema, rows = schema_of(wanted), rows_of(wanted)
    is_whole = wanted.snapshot is None and wanted.part == (0, 1)
    if wanted.name != "flowfiles" or wanted.queue is None or not is_whole:
        raise InvalidArgument("with stream a table is flowfiles, of a queue, after and through a place, whole")
    repository.acting.require(QueueUse.READ, wanted.queue)
    through = (1 << 63) - 1 if wanted.through is None else wanted.through
    records = repository.engine.feeds.records(wanted.stream or "", wanted.queue, wanted.after, through)
    queues = dict.fromkeys((record.queue for record in records), wanted.queue)
    chunks = (records[at : at + ROWS] for at in range(0, len(records), ROWS))
    pieces = (Piece(None, is_swapped=False, read=partial(list, chunk)) for chunk in chunks)
    made = RecordColumns(queues, KeptColumns(), partial(repository.seals.of, repository.acting), pace)
    batches = _record_batches(made, pieces, schema, rows, pace)
    gone = 0 if wanted.count is None else wanted.count - len(records)
    return map(OutgoingBatch, chain(batches, _none_gone(wanted, gone)))


def _record_batches(
    made: RecordColumns, pieces: Iterable[Piece], schema: pa.Schema, rows: RowFilter, pace: Pace
) -> Iterator[pa.RecordBatch]:
    if not rows:
        return joined(made.batches(pieces, schema), pace)
    chosen = gathered(made.chosen(pieces, schema.names, rows))
    return (batch_of(dict(zip(schema.names, batch.columns, strict=True)), schema) for batch in chosen)


def _none_gone(wanted: TableTicket, gone: int) -> Iterator[pa.RecordBatch]:
    """No batch. FlowFileNotFound if some are gone."""
    if gone:
        raise FlowFileNotFound(
            f"{gone} of {wanted.count} FlowFiles that stream {wanted.stream} took of queue {wanted.queue} do not wait "
            "for it any more: it was away for longer than it had asked for, and they went back to the queue"
        )
    return iter(())


def schema_of(wanted: TableTicket) -> pa.Schema:
    """The columns that a ticket asks for. NotFound for a table, InvalidArgument for a column, that there is not."""
    schema = SCHEMAS.get(wanted.name)
    if schema is None:
        raise NotFound(f"there is no table {wanted.name}: {', '.join(SCHEMAS)}")
    columns = schema.names if wanted.columns is None else wanted.columns
    if unknown := [column for column in columns if column not in schema.names]:
        raise InvalidArgument(f"table {wanted.name} has no column {', '.join(unknown)}: {', '.join(schema.names)}")
    is_range = wanted.through is not None and (wanted.stream is not None or wanted.name == "provenance")
    if wanted.count is not None and not is_range:
        raise InvalidArgument("count is of events through a sequence, or of what a stream has taken through a place")
    if not columns or wanted.part[0] >= wanted.part[1]:
        raise InvalidArgument(f"part {wanted.part[0]} of {wanted.part[1]} of {len(columns)} columns")
    return schema_sent(wanted.name, columns, runs=wanted.runs)


def rows_of(wanted: TableTicket) -> RowFilter:
    """The rows that a ticket asks for. InvalidArgument says what is wrong with its `where`."""
    return RowFilter(wanted.name, wanted.where)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: few of many are chosen, and each batch has a header. One without rows says that
    work goes on.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows < ROWS // 2 and size < GATHERED_BYTES:
            yield batch.slice(0, 0)
        else:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def packed(
    rows: Iterator[Row], schema: pa.Schema, columns: Sequence[str], wanted: RowFilter
) -> Iterator[OutgoingBatch]:
    """These columns of the rows that are wanted, in batches of a few MiB."""
    content = schema.get_field_index("content")
    if content < 0:
        chunks = iter(lambda: list(islice(rows, ROWS)), [])
        yield from map(OutgoingBatch, gathered(_chosen(chunk, schema, columns, wanted) for chunk in chunks))
        return
    for chunk in content_chunks(rows, content, ROWS):  # also where none of it is wanted: to read it takes its time
        left = _wanted_of(chunk, schema, wanted)
        contents = [row[content] for row in left]
        batch = _batch(left, schema, columns, absent(contents, schema.field(content).type))
        yield OutgoingBatch(batch, [each for each in contents if each] if "content" in columns else ())


def _wanted_of(chunk: list[Row], schema: pa.Schema, wanted: RowFilter) -> list[Row]:
    if not wanted:
        return chunk
    return list(compress(chunk, wanted.mask(lambda name: _column(chunk, schema, name), len(chunk)).to_pylist()))


def _chosen(chunk: list[Row], schema: pa.Schema, columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """Columns of the rows that are wanted: nothing is made of others but what that depends on."""
    return _batch(_wanted_of(chunk, schema, wanted), schema, columns)


def _batch(
    chunk: list[Row], schema: pa.Schema, columns: Sequence[str], contents: pa.Array | None = None
) -> pa.RecordBatch:
    """`contents` is the column `content`, which a table without one has not."""
    arrays = [
        contents if name == "content" and contents is not None else _column(chunk, schema, name) for name in columns
    ]
    return pa.record_batch(arrays, schema=pa.schema([schema.field(name) for name in columns]))


def _column(chunk: list[Row], schema: pa.Schema, name: str) -> pa.Array:
    at = schema.get_field_index(name)
    return pa.array([row[at] for row in chunk], schema.field(at).type)


def _add(total: list[int], claims: int, claimants: int, live_bytes: int, end: int) -> None:
    total[:] = total[0] + claims, total[1] + claimants, total[2] + live_bytes, max(total[3], end)
