"""The table `flowfiles`: which FlowFiles of a moment are in which part of it, and their columns.

It is the table with most rows: a scan of it is the time of an agent that serves others meanwhile. So nothing is worked
out that was not asked for, no row is ever a tuple, and no more than one piece is decoded at a time.

Resident FlowFiles go by their resource claim, or by uuid where there is no content: what lies together is read
together. At a snapshot swapped ones go by their file, so that each is decoded for one part alone: that costs an agent
ten times what it costs to send them. Columns that were worked out at a snapshot are kept (`keptcolumns.py`).
"""

from array import array
from binascii import hexlify
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, compress
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ullage.embedded.asked import ANY_RECORD, RecordsAsked
from ullage.embedded.keptcolumns import KeptColumns, in_type
from ullage.embedded.pace import ALONE, Pace
from ullage.engine.batches import attribute_maps
from ullage.engine.model import STAGED_QUEUE, UUID_BYTES, ContentClaim, FlowFileRecord, SwapOut
from ullage.engine.snapshots import RepositorySnapshot
from ullage.engine.updates import attribute_count
from ullage.wire.matching import RowFilter
from ullage.wire.schemas import SCHEMAS

ROWS: Final = 10_000
"""FlowFiles of a piece, and rows of a batch: of the widest tables a few MiB. No swap file holds more."""

BATCH_BYTES: Final = 8 << 20
"""What a batch's attributes and parents come to as Arrow has them, unless one row alone has more: while it is made and
sent it is there twice, of each stream. What ordinary flows have of 10,000 FlowFiles is less.
"""

JOINED_ROWS: Final = 3 * ROWS
JOINED_BYTES: Final = 2 << 20
"""Narrow batches go out together up to so many rows and bytes: each costs the node and its reader three tenths of a
millisecond, however few columns it has, which was a quarter of their work for a table whose columns are kept.
"""

ROW_BYTES: Final = 250
"""Of a row beside its attributes and parents: a uuid, a seal, the names of a queue and numbers."""

SCHEMA: Final = SCHEMAS["flowfiles"]
UUID_DIGITS: Final = 2 * UUID_BYTES
UUID_LENGTH: Final = UUID_DIGITS + 4
UUID_PLACES: Final = [digit + sum(digit >= behind for behind in (8, 12, 16, 20)) for digit in range(UUID_DIGITS)]
"""Where each digit stands in the usual notation."""


Sealing = Callable[[Sequence[FlowFileRecord]], Sequence[bytes | None]]
"""What the column `seal` has of some FlowFiles."""


class Piece(NamedTuple):
    """FlowFiles that anybody may see, read when they are asked for; `place` tells it from all others of the moment."""

    place: Hashable
    is_swapped: bool
    read: Callable[[], Sequence[FlowFileRecord]]


class Shares:
    """Part `part` of `parts` of a moment. `is_kept`: the other parts are of the same moment.

    Where they are not, a FlowFile may leave its swap file from one part to the next, and files are no way to share out.
    """

    def __init__(
        self, moment: RepositorySnapshot, part: int, parts: int, *, is_kept: bool, asked: RecordsAsked = ANY_RECORD
    ) -> None:
        """Of FlowFiles without those that are not `asked` for."""
        self._moment = moment
        self._part = part
        self._parts = parts
        self._is_kept = is_kept
        self._asked = asked

    def pieces(self) -> Iterator[Piece]:
        """Each FlowFile is in one piece of one part. RepositoryDamaged, before the first, if a swap file is gone."""
        self._moment.require_swaps()
        for at in range(0, len(self._moment.flow_files), ROWS):
            yield Piece((at, self._part, self._parts), False, partial(self._resident, at))
        swaps = self._moment.swaps
        for swap in swaps[self._part :: self._parts] if self._is_kept else swaps:
            if self._asked.may_hold(swap.queue) and self._may_be_in(swap):
                yield Piece(swap.name, True, partial(self._swapped, swap))

    def claims(self) -> Counter[ContentClaim]:
        """Claims of this part with all their claimants, wherever these are."""
        self._moment.require_swaps()
        blocks = [self._moment.flow_files[at : at + ROWS] for at in range(0, len(self._moment.flow_files), ROWS)]
        found: Counter[ContentClaim] = Counter()
        for records in chain(blocks, map(self._moment.swapped, filter(self._reaches, self._moment.swaps))):
            found.update(claim for record in self._of_part(records) if (claim := record.claim) is not None)
        return found

    def _reaches(self, swap: SwapOut) -> bool:
        """Whether anything in the file claims content of this part."""
        return any(share.resource % self._parts == self._part for share in swap.shares)

    def _resident(self, at: int) -> Sequence[FlowFileRecord]:
        found = self._of_part(self._moment.flow_files[at : at + ROWS])
        return self._only_asked([record for record in found if record.queue != STAGED_QUEUE])

    def _may_be_in(self, swap: SwapOut) -> bool:
        """Whether uuids that are asked for may be in the file."""
        uuids = self._asked.uuids
        return uuids is None or self._moment.swap_files.uuids.may_hold(swap.name, uuids)

    def _swapped(self, swap: SwapOut) -> Sequence[FlowFileRecord]:
        """What is staged is never swapped."""
        found = self._moment.swapped(swap)
        if self._asked.uuids is not None:
            self._moment.swap_files.uuids.keep(swap.name, found)
        return self._only_asked(found if self._is_kept else self._of_part(found))

    def _only_asked(self, records: Sequence[FlowFileRecord]) -> Sequence[FlowFileRecord]:
        if self._asked == ANY_RECORD:
            return records
        return [record for record in records if self._asked.may_be(record)]

    def _of_part(self, records: Sequence[FlowFileRecord]) -> Sequence[FlowFileRecord]:
        part, parts = self._part, self._parts
        if parts == 1:
            return records
        return [
            record
            for record in records
            if (_number(record) if (claim := record.claim) is None else claim.resource) % parts == part
        ]


class RecordColumns:
    """How columns are made: `queues` are names by number; what is kept is not made again."""

    def __init__(
        self,
        queues: Mapping[int, str],
        kept: KeptColumns,
        seals: Sealing = lambda records: [None] * len(records),
        pace: Pace = ALONE,
    ) -> None:
        self._queues = queues
        self._kept = kept
        self._seals = seals
        self._pace = pace

    def batches(self, pieces: Iterable[Piece], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """These columns of the table, as they are sent, a batch a piece."""
        columns = schema.names
        for piece in pieces:
            found = {name: self._find(piece, name) for name in columns}
            if missing := [name for name, column in found.items() if column is None]:
                first, *others = _parts(piece.read(), columns)
                for part in (first, *others) if others else ():  # too large to be kept
                    self._pace.make(part.size)
                    yield batch_of(self._made(part.records, piece, columns), schema)
                if others:
                    continue
                self._pace.make(first.size)
                for name, column in self._made(first.records, piece, missing).items():
                    self._kept.keep(piece.place, name, column, is_swapped=piece.is_swapped)
                    found[name] = column
            batch = batch_of(found, schema)
            if batch.num_rows:
                yield batch

    def chosen(self, pieces: Iterable[Piece], columns: Sequence[str], rows: RowFilter) -> Iterator[pa.RecordBatch]:
        """The same of the rows that are chosen, a batch a piece, also where there are none. Of others
        nothing is made but what the filter looks at, so nothing is kept.
        """
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for piece in pieces:
            names = {*columns, *rows.columns}
            kept = {name: column for name in names if (column := self._find(piece, name)) is not None}
            known = {name: in_type(column, SCHEMA.field(name).type) for name, column in kept.items()}
            if len(known) < len(names):
                for part in _parts(piece.read(), names):
                    self._pace.make(part.size)
                    found = self._chosen_of(part.records, piece, columns, rows)
                    yield pa.record_batch([found[name] for name in columns], schema=schema)
            else:
                mask = rows.mask(known.__getitem__, len(known[columns[0]]))
                yield pa.record_batch([known[name].filter(mask) for name in columns], schema=schema)

    def _find(self, piece: Piece, name: str) -> pa.Array | None:
        return self._kept.find(piece.place, name, is_swapped=piece.is_swapped)

    def _chosen_of(
        self, records: Sequence[FlowFileRecord], piece: Piece, columns: Sequence[str], rows: RowFilter
    ) -> dict[str, pa.Array]:
        looked_at = self._made(records, piece, rows.columns)
        mask = rows.mask(looked_at.__getitem__, len(records))
        left = list(compress(records, mask.to_pylist()))
        found = {name: column.filter(mask) for name, column in looked_at.items()}
        return found | self._made(left, piece, [name for name in columns if name not in found])

    def _made(self, records: Sequence[FlowFileRecord], piece: Piece, names: Iterable[str]) -> dict[str, pa.Array]:
        """These columns for FlowFiles of a piece."""
        found = {}
        for name in names:
            values: Any
            if name == "queue":
                values = _queues(records, self._queues)
            elif name == "swapped":
                values = pa.repeat(piece.is_swapped, len(records))
            elif name == "seal":
                values = self._seals(records)
            elif name == "attributes":
                values = attribute_maps([record.attributes for record in records], self._pace.step)
            else:
                values = OF_RECORDS[name](records)
            found[name] = values if isinstance(values, pa.Array) else pa.array(values, SCHEMA.field(name).type)
        return found


def batch_of(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Those of the schema, with runs where it says so."""
    return pa.record_batch([in_type(columns[field.name], field.type) for field in schema], schema=schema)


def joined(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches. Between two of those that come in others who wait go first: when each was sent by
    itself, sending gave them the turn, and a swap file takes some fifty milliseconds to decode.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.nbytes
        if held and (rows + batch.num_rows > JOINED_ROWS or size + more > JOINED_BYTES):
            yield _one(held, size, pace)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + more
        pace.step()
    if held:
        yield _one(held, size, pace)


def _one(batches: Sequence[pa.RecordBatch], size: int, pace: Pace) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    pace.make(size)
    return pa.concat_batches(batches)


class _Part(NamedTuple):
    """FlowFiles of a piece that make one batch, and at most how many bytes it takes."""

    records: Sequence[FlowFileRecord]
    size: int


def _parts(records: Sequence[FlowFileRecord], names: Collection[str]) -> list[_Part]:
    """All of them, in several parts where these columns of theirs are large: a batch is made as a whole."""
    rows, large = ROW_BYTES * len(records), {"attributes", "parents"} & set(names)
    packed = 0
    if "attributes" in large:
        packed += sum(map(len, [record.attributes for record in records]))
    if "parents" in large:
        packed += sum(map(len, [record.parents for record in records]))
    if 3 * packed <= BATCH_BYTES:
        return [_Part(records, rows + 3 * packed)]
    ends = list(accumulate((_large_bytes(record, large) for record in records), initial=0))
    parts: list[_Part] = []
    at = 0
    while at < len(records):
        end = max(at + 1, bisect_right(ends, ends[at] + BATCH_BYTES) - 1)
        parts.append(_Part(records[at:end], ends[end] - ends[at] + ROW_BYTES * (end - at)))
        at = end
    return parts


def _large_bytes(record: FlowFileRecord, names: Collection[str]) -> int:
    """What these columns take of a row as Arrow has them: of each text where it begins, in four bytes, and the text."""
    attributes = len(record.attributes) + 8 * attribute_count(record.attributes) if "attributes" in names else 0
    parents = (UUID_LENGTH + 4) * len(record.parents) // UUID_BYTES if "parents" in names else 0
    return attributes + parents


def _queues(records: Sequence[FlowFileRecord], queues: Mapping[int, str]) -> Any:
    """Names. Of a swap file all stand in one queue."""
    numbers = {record.queue for record in records}
    if len(numbers) == 1:
        return pa.repeat(pa.scalar(queues.get(numbers.pop()), pa.string()), len(records))
    return [queues.get(record.queue) for record in records]


def _number(record: FlowFileRecord) -> int:
    return int.from_bytes(record.uuid[:8], "big")


def _uuids(joined: bytes) -> pa.Array:
    """In their usual notation: each digit is put into its place in all of them at once."""
    count = len(joined) // UUID_BYTES
    digits = hexlify(joined)
    text = bytearray(b"-") * (UUID_LENGTH * count)
    for digit, place in enumerate(UUID_PLACES):
        text[place::UUID_LENGTH] = digits[digit::UUID_DIGITS]
    offsets = UUID_OFFSETS if count <= ROWS else _uuid_offsets(count)
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(text))


def _uuid_offsets(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, UUID_LENGTH * count + 1, UUID_LENGTH)))


UUID_OFFSETS: Final = _uuid_offsets(ROWS)
"""Where each uuid begins: the same for all batches."""


def _parents(records: Sequence[FlowFileRecord]) -> pa.Array:
    joined = [record.parents for record in records]
    offsets = _offsets(len(each) // UUID_BYTES for each in joined)
    return pa.ListArray.from_arrays(offsets, _uuids(b"".join(joined)))


def _offsets(lengths: Iterable[int]) -> pa.Array:
    """Where each begins, and the last one ends."""
    numbers = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


OF_RECORDS: Final[dict[str, Callable[[Sequence[FlowFileRecord]], Any]]] = {
    "uuid": lambda records: _uuids(b"".join([record.uuid for record in records])),
    "size": lambda records: [record.size for record in records],
    "resource_claim": lambda records: [None if (claim := each.claim) is None else claim.resource for each in records],
    "claim_offset": lambda records: [None if (claim := each.claim) is None else claim.offset for each in records],
    "claim_length": lambda records: [None if (claim := each.claim) is None else claim.length for each in records],
    "claim_crc32c": lambda records: [None if (claim := each.claim) is None else claim.crc for each in records],
    "start": lambda records: [record.start for record in records],
    "entry_millis": lambda records: [record.entry_millis for record in records],
    "lineage_millis": lambda records: [record.lineage_millis for record in records],
    "expires_millis": lambda records: [record.expires_millis for record in records],
    "deleted_millis": lambda records: [record.deleted_millis for record in records],
    "parents": _parents,
}
"""What records tell but for their attributes. Each is written out: `attrgetter` with `map` takes twice as long."""
