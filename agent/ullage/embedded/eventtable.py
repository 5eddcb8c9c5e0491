"""The table `provenance`, made of the columns of event files: of events that are not wanted only those are read that a
predicate looks at, and of the others those that are asked for.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ullage.embedded.pace import Pace
from ullage.engine.engine import Engine
from ullage.engine.provenance.scan import EventColumns
from ullage.wire.matching import RowFilter
from ullage.wire.provenance import EventQuery
from ullage.wire.schemas import SCHEMAS

SCHEMA: Final = SCHEMAS["provenance"]

MADE_TIMES: Final = 2
"""What a run takes while its table is made, as a multiple of what it takes as it was read."""

STEP_ATTRIBUTES: Final = 50_000
"""Attributes, and changes of them, that are merged at a time: some ten milliseconds."""


class _Source(NamedTuple):
    """What a column is made of, in an event file, and how."""

    names: tuple[str, ...]
    make: Callable[[Mapping[str, pa.Array], Pace], pa.Array]


def event_batches(
    engine: Engine, query: EventQuery, transaction: int, columns: Sequence[str], rows: RowFilter, pace: Pace
) -> Generator[pa.RecordBatch, None, int]:
    """Of the events up to a transaction that a query and a filter want, these columns; a batch without rows says that
    it goes on. Returns how many it has looked at that are within the query's sequences, whatever the filter says.

    ProvenanceDamaged if some of them cannot be read: a table is read to its end or not at all, since who follows it by
    sequence would never come back for these.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    count = 0
    for run in engine.provenance.columns(query):
        pace.make(MADE_TIMES * run.bytes)
        within, batch = _batch(run, query, transaction, schema, rows, pace)
        count += within
        yield batch
    return count


def _batch(
    run: EventColumns, query: EventQuery, transaction: int, schema: pa.Schema, rows: RowFilter, pace: Pace
) -> tuple[int, pa.RecordBatch]:
    """How many of a run's are within the sequences, and the batch of those that are wanted."""
    looked_at = _read(run, ("sequence", "transaction"), rows.columns)
    if looked_at is None:
        return 0, _nothing(schema)
    within = pc.and_(_within(looked_at["sequence"], query), pc.less_equal(looked_at["transaction"], transaction))
    mask = pc.and_(within, rows.mask(lambda name: SOURCES[name].make(looked_at, pace), len(within)))
    if not mask.true_count:
        return within.true_count, _nothing(schema)
    wanted = _read(run, (), schema.names)
    if wanted is None:
        return 0, _nothing(schema)
    is_all = mask.true_count == len(mask)  # of most reads they are, and then nothing need be copied
    chosen = wanted if is_all else {name: column.filter(mask) for name, column in wanted.items()}
    made = pa.record_batch([SOURCES[name].make(chosen, pace) for name in schema.names], schema=schema)
    return within.true_count, made


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def _within(sequences: pa.Array, query: EventQuery) -> pa.Array:
    found = pc.greater(sequences, query.after)
    return found if query.before is None else pc.and_(found, pc.less(sequences, query.before))


def _read(run: EventColumns, always: Sequence[str], names: Sequence[str]) -> dict[str, pa.Array] | None:
    """What these columns are made of; None: retention has taken the events."""
    needed = dict.fromkeys((*always, *(each for name in names for each in SOURCES[name].names)))
    table = run.read(list(needed))
    return None if table is None else {name: _whole(table.column(name)) for name in needed}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _as_it_is(name: str, of: str) -> _Source:
    kind = SCHEMA.field(name).type
    return _Source((of,), lambda columns, _: columns[of].cast(kind))


def _attributes(columns: Mapping[str, pa.Array], pace: Pace) -> pa.Array:
    """As of the event: those before it, with what it has updated, where null says that one is removed."""
    before, updated = columns["attributes_before"], columns["attributes_updated"]
    kind = SCHEMA.field("attributes").type
    if not len(updated.keys):
        return before.cast(kind)
    if not len(before.keys) and not updated.items.null_count:
        return updated.cast(kind)
    made: list[pa.MapArray] = []
    for start, end in pairwise(_steps(before, updated)):
        if made:
            pace.step()
        made.append(_merged(before[start:end], updated[start:end]))
    return pa.concat_arrays(made).cast(kind)


def _steps(before: pa.MapArray, updated: pa.MapArray) -> list[int]:
    """Where each step begins, and the last one ends: one row, or several of so few attributes."""
    ends = pc.add(before.offsets, updated.offsets).to_pylist()
    steps = [0]
    for row in range(1, len(before)):
        if ends[row + 1] - ends[steps[-1]] > STEP_ATTRIBUTES:
            steps.append(row)
    return [*steps, len(before)]


def _merged(before: pa.MapArray, updated: pa.MapArray) -> pa.MapArray:
    """The same of a few events, by Arrow alone: as objects of Python's they take ten times the memory."""
    rows, names, values = zip(_entries(before), _entries(updated), strict=True)
    codes = pa.concat_arrays(names).dictionary_encode()
    ids = pc.add(pc.multiply(pa.concat_arrays(rows), len(codes.dictionary)), codes.indices.cast(pa.int64()))
    old, new = ids[: len(names[0])], ids[len(names[0]) :]
    now = pc.if_else(pc.is_in(old, new), values[1].take(pc.index_in(old, new)), values[0])
    came = pc.and_(pc.invert(pc.is_in(new, old)), values[1].is_valid())
    left = (now.is_valid(), came)
    owners = pa.concat_arrays([each.filter(is_left) for each, is_left in zip(rows, left, strict=True)])
    order = pc.array_sort_indices(owners)  # stable: what a row had before stays before what has come
    counts = dict(zip(*(part.to_pylist() for part in pc.value_counts(owners).flatten()), strict=True))
    return pa.MapArray.from_arrays(
        pa.array(accumulate((counts.get(row, 0) for row in range(len(before))), initial=0), pa.int32()),
        *(
            pa.concat_arrays([each.filter(is_left) for each, is_left in zip(parts, left, strict=True)]).take(order)
            for parts in (names, (now, values[1]))
        ),
    )


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Of each entry the row that has it, its name and its value."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(pc.subtract(maps.offsets, first), maps.keys[first:last]))
    return rows, maps.keys[first:last], maps.items[first:last]


def _duration(columns: Mapping[str, pa.Array], _: Pace) -> pa.Array:
    """-1: nobody has said."""
    return pc.fill_null(columns["duration_millis"], pa.scalar(-1, pa.int64()))


OWN_NAMES: Final = {
    "uuid": "flow_file",
    "millis": "time",
    "entry_millis": "entry_time",
    "lineage_millis": "lineage_time",
}

SOURCES: Final[Mapping[str, _Source]] = {
    **{name: _as_it_is(name, OWN_NAMES.get(name, name)) for name in SCHEMA.names},
    "duration_millis": _Source(("duration_millis",), _duration),
    "attributes": _Source(("attributes_before", "attributes_updated"), _attributes),
}
