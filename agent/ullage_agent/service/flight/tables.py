"""The tables, worked out of one moment: functions of it alone, but for provenance and content, which read on."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from ullage_agent.engine.errors import UllageError
from ullage_agent.engine.flowfile.placement import pin_bytes
from ullage_agent.engine.model import (
    HANDLE_QUEUE,
    Action,
    FlowFile,
    format_uuid,
    unpack_attributes,
)
from ullage_agent.engine.moment import Moment
from ullage_agent.engine.provenance.events import ProvenanceEvent
from ullage_agent.engine.provenance.query import Query
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.runs import find_move, unpack_runs
from ullage_agent.service.errors import BadRequest, NotFound
from ullage_agent.service.flight.columns import KeptColumns, keeps_nothing
from ullage_agent.service.flight.flowfiles import batches_of
from ullage_agent.service.flight.forms import Table
from ullage_agent.service.flight.schemas import SCHEMAS
from ullage_agent.service.flight.shares import ROWS, Piece, Shares
from ullage_agent.service.problems import problem_of

CONTENT_BYTES: Final = 4 << 20
"""Content of a batch."""

Row = tuple[Any, ...]
RowsNow = Callable[[], Sequence[Row]]
"""What the service knows and the repository does not, in the columns of its table."""


class Tables:
    """All tables as of one moment."""

    def __init__(
        self,
        repository: Repository,
        moment: Moment,
        kept: KeptColumns,
        wanted: Table,
        runs: RowsNow,
        windows: RowsNow,
    ) -> None:
        self._repository = repository
        self._moment = moment
        self._part = wanted.part
        self._shares = Shares(moment, *wanted.part, is_kept=wanted.snapshot is not None)
        self._kept = kept
        self._after, self._through = wanted.after, wanted.through
        self._rows: dict[str, Callable[[], Iterator[Row]]] = {
            "claims": self._claims,
            "resource_claims": self._resource_claims,
            "queues": self._queues,
            "provenance": self._provenance,
            "leases": self._leases,
            "runs": lambda: iter(runs()),
            "windows": lambda: iter(windows()),
            "content": self._content,
        }

    def batches(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The table in record batches."""
        return self._flow_files(columns) if name == "flowfiles" else _batches(self._rows[name](), name, columns)

    def _claims(self) -> Iterator[Row]:
        containers = {claim.index: claim.container for claim in self._moment.resources}
        for claim, claimants in self._shares.claims().items():
            file, offset = claim.resource, claim.offset
            relocation = self._moment.relocations.get(claim.resource)
            if relocation is not None and (move := find_move(relocation.moves, claim.offset)) is not None:
                file, offset = relocation.output, move.target + claim.offset - move.offset
            yield (
                *(claim.resource, claim.offset, claim.length, claim.crc, claimants),
                *(containers.get(file), file, offset),
            )

    def _resource_claims(self) -> Iterator[Row]:
        """Totals of what was born in each; swapped FlowFiles count by their files' summaries, so nothing is read."""
        part, parts = self._part
        totals: dict[int, list[int]] = {}
        for claim, claimants in Counter(r.claim for r in self._moment.flow_files if r.claim is not None).items():
            _add(totals.setdefault(claim.resource, [0, 0, 0, 0]), 1, claimants, claim.length, claim.end)
        for swap in self._moment.swaps:
            for share in swap.shares:
                found = totals.setdefault(share.resource, [0, 0, 0, 0])
                _add(found, 0, share.claimants, share.live_bytes, share.end)
        for file in self._moment.resources:
            if file.index % parts != part:
                continue
            relocation = self._moment.relocations.get(file.index)
            sections = self._repository.spec.storage.sections
            yield (
                *(file.index, file.container, file.index % sections, file.name, file.created_millis),
                *(file.lifetime, file.length, file.sealed, file.generation, file.archived_millis),
                None if file.intent == Action.NONE else Action(file.intent).name.lower(),
                *totals.get(file.index, [0, 0, 0, 0]),
                sum(run.end - run.offset for run in unpack_runs(file.holes)),
                file.index if relocation is None else relocation.output,
                file.last_death_millis,
            )

    def _flow_files(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        queues = {number: queue.name for number, queue in self._moment.queues.items()}
        return batches_of(self._shares.pieces(), columns, queues, self._kept)

    def _queues(self) -> Iterator[Row]:
        counts: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        swapped: Counter[int] = Counter()
        for record in self._moment.flow_files:
            counts[record.queue] += 1
            sizes[record.queue] += record.size
        for swap in self._moment.swaps:
            counts[swap.queue] += swap.count
            sizes[swap.queue] += swap.size_bytes
            swapped[swap.queue] += swap.count
        for queue in self._moment.queues.values():
            yield (
                *(queue.name, queue.number, queue.priority, queue.priority_attribute, queue.count_max),
                *(queue.bytes_max, queue.expiration_millis),
                *(counts[queue.number], sizes[queue.number], swapped[queue.number]),
            )

    def _provenance(self) -> Iterator[Row]:
        after, before = self._after, None if self._through is None else self._through + 1
        while before is None or after + 1 < before:
            page = self._repository.history.query(Query(after=after, before=before, limit=ROWS))
            for event in page.events:
                if event.transaction > self._moment.transaction:
                    return
                yield _event_row(event)
            if page.next is None:
                return
            after = page.next

    def _leases(self) -> Iterator[Row]:
        for lease in self._moment.leases:
            yield (
                *(format_uuid(lease.id), lease.holder, list(lease.resources), lease.transaction),
                *(lease.created_millis, lease.expires_millis, lease.holds_files),
            )

    def _content(self) -> Iterator[Row]:
        for piece in self._shares.pieces():
            for record in piece.read():
                if not record.deleted_millis:
                    yield from self._contents(record)

    def _contents(self, record: FlowFile) -> Iterator[Row]:
        claim, queue = record.claim, self._queue_name(record)
        if claim is None or record.size == 0:
            yield record.id, queue, 0, b"", None
            return
        at = 0
        try:
            pin_bytes(self._repository.ledger, claim)
        except UllageError as error:
            yield record.id, queue, at, None, problem_of(error).slug
            return
        try:
            for piece in self._repository.reader.stream(claim, record.start, record.size):
                yield record.id, queue, at, piece, None
                at += len(piece)
        except UllageError as error:
            yield record.id, queue, at, None, problem_of(error).slug
        finally:
            self._repository.ledger.unpin([claim])

    def _queue_name(self, record: FlowFile) -> str | None:
        queue = self._moment.queues.get(record.queue)
        return None if record.queue == HANDLE_QUEUE or queue is None else queue.name


def feed_batches(repository: Repository, wanted: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """What a stream has taken of a queue, as the table `flowfiles`, in the order in which it stands."""
    stream, queue = wanted.stream or "", wanted.queue or ""
    through = (1 << 63) - 1 if wanted.through is None else wanted.through
    records = repository.feeds.records(stream, queue, wanted.after, through)
    queues = dict.fromkeys((record.queue for record in records), queue)
    chunks = (records[at : at + ROWS] for at in range(0, len(records), ROWS))
    pieces = (Piece(None, is_swapped=False, read=partial(list, chunk)) for chunk in chunks)
    return batches_of(pieces, columns, queues, keeps_nothing())


def _batches(rows: Iterator[Row], name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    chosen = schema_of(name, columns)
    wanted = [SCHEMAS[name].names.index(column) for column in columns]
    while chunk := (_content_chunk(rows) if name == "content" else list(islice(rows, ROWS))):
        values = [[row[at] for row in chunk] for at in wanted]
        arrays = [pa.array(column, field.type) for column, field in zip(values, chosen, strict=True)]
        yield pa.record_batch(arrays, schema=chosen)


def columns_of(table: Table) -> list[str]:
    """The columns that a ticket asks for. NotFound for a table, BadRequest for a column, that there is not."""
    schema = SCHEMAS.get(table.name)
    if schema is None:
        raise NotFound(f"there is no table {table.name}: {', '.join(SCHEMAS)}")
    columns = schema.names if table.columns is None else table.columns
    if unknown := [column for column in columns if column not in schema.names]:
        raise BadRequest(f"table {table.name} has no column {', '.join(unknown)}: {', '.join(schema.names)}")
    if not columns or table.part[0] >= table.part[1]:
        raise BadRequest(f"part {table.part[0]} of {table.part[1]} of {len(columns)} columns")
    return list(columns)


def schema_of(name: str, columns: Sequence[str]) -> pa.Schema:
    """These columns of a table."""
    return pa.schema([SCHEMAS[name].field(column) for column in columns])


def _content_chunk(rows: Iterator[Row]) -> list[Row]:
    """As many rows as make a batch of content."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[3] or b"")
        if size >= CONTENT_BYTES or len(chunk) >= ROWS:
            break
    return chunk


def _add(total: list[int], claims: int, claimants: int, live_bytes: int, end: int) -> None:
    total[0] += claims
    total[1] += claimants
    total[2] += live_bytes
    total[3] = max(total[3], end)


def _event_row(event: ProvenanceEvent) -> Row:
    return (
        *(event.sequence, event.transaction, event.ordinal, event.millis, event.type.name, event.flow_file),
        *(event.component, event.component_type, event.relationship, event.details, event.transit_uri),
        *(event.alternate_identifier, event.duration_millis, event.queue, event.entry_millis, event.lineage_millis),
        *(event.size, event.parent_ids, event.child_ids),
        *(_pairs(event.attributes_before), _pairs(event.attributes)),
    )


def _pairs(packed: bytes) -> Iterable[tuple[str, str]]:
    return list(unpack_attributes(packed).items()) if packed else []
