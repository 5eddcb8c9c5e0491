"""Filters over the columns of an event file: they leave candidates, which `query.matches` then decides on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ullage.engine.arrow import pa, pc
from ullage.engine.provenance.query import texts
from ullage.wire.provenance import EventQuery

MAPS = ("attributes_before", "attributes_updated")


def filter_columns(query: EventQuery) -> list[str]:
    """The columns that a query's filters look at; always one, for the number of rows."""
    columns = ["time"]
    columns += [name for name, _ in texts(query)]
    if query.types:
        columns.append("type")
    if query.size_min is not None or query.size_max is not None:
        columns.append("size")
    if query.related:
        columns += ["flow_file", "parents", "children"]
    if query.filename:
        columns.append("flow_file")
    if query.filename or query.attributes:
        columns += MAPS
    return list(dict.fromkeys(columns))


def candidates(table: pa.Table, query: EventQuery) -> list[int]:
    """The rows that may match, in order."""
    mask = _plain(table, query)
    rows = set(pc.indices_nonzero(mask).to_pylist())
    for name, value in query.attributes.items():
        rows &= rows_with_attribute(table, name, value)
    if query.filename:
        own = pc.equal(_array(table, "flow_file"), query.filename)
        rows &= rows_with_attribute(table, "filename", query.filename) | set(pc.indices_nonzero(own).to_pylist())
    if query.related:
        rows &= _related(table, query.related)
    return sorted(rows)


def _plain(table: pa.Table, query: EventQuery) -> Any:
    """The conditions on one plain column each, as a mask of rows."""
    mask: Any = pa.array([True] * table.num_rows)
    for name, value in texts(query):
        mask = pc.and_(mask, pc.equal(_array(table, name), value))
    if query.types:
        mask = pc.and_(mask, pc.is_in(_array(table, "type"), value_set=pa.array(query.types)))
    times = pc.cast(_array(table, "time"), pa.int64())
    for bound, compare in ((query.since_millis, pc.greater_equal), (query.until_millis, pc.less)):
        if bound is not None:
            mask = pc.and_(mask, compare(times, bound))
    for bound, compare in ((query.size_min, pc.greater_equal), (query.size_max, pc.less_equal)):
        if bound is not None:
            mask = pc.and_(mask, compare(_array(table, "size"), bound))
    return mask


def attribute_values(table: pa.Table, name: str) -> dict[int, str]:
    """An attribute's value at the event, of the rows that have one."""
    values: dict[int, str] = {}
    for column in MAPS:  # what was updated comes last, and None of it means that it was removed
        maps = _array(table, column)
        at = pc.indices_nonzero(pc.equal(maps.keys, name))
        if len(at):
            for row, value in zip(_rows_of(maps, at), maps.items.take(at).to_pylist(), strict=True):
                if value is None:
                    values.pop(row, None)
                else:
                    values[row] = value
    return values


def list_values(table: pa.Table, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows whose list is not empty, with it."""
    lists = _array(table, name)
    if len(lists.values):
        yield from ((row, value) for row, value in enumerate(lists.to_pylist()) if value)


def rows_with_attribute(table: pa.Table, name: str, value: str) -> set[int]:
    """Rows whose FlowFile had this value before, or was given it."""
    rows: set[int] = set()
    for column in MAPS:
        maps = _array(table, column)
        hits = pc.and_(pc.equal(maps.keys, name), pc.fill_null(pc.equal(maps.items, value), fill_value=False))
        rows.update(_rows_of(maps, pc.indices_nonzero(hits)))
    return rows


def _related(table: pa.Table, uuids: Sequence[str]) -> set[int]:
    wanted = pa.array(uuids)
    rows = set(pc.indices_nonzero(pc.is_in(_array(table, "flow_file"), value_set=wanted)).to_pylist())
    for column in ("parents", "children"):
        lists = _array(table, column)
        rows.update(_rows_of(lists, pc.indices_nonzero(pc.is_in(lists.values, value_set=wanted))))
    return rows


def _array(table: pa.Table, name: str) -> Any:
    """A column as one array, so that the values and offsets of a nested one belong together."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _rows_of(nested: Any, positions: Any) -> list[int]:
    """The rows that hold these positions of a nested column's values."""
    values = nested.keys if pa.types.is_map(nested.type) else nested.values
    lists = pa.ListArray.from_arrays(nested.offsets, values)  # what follows would abort the process for a map
    rows: list[int] = pc.list_parent_indices(lists).take(positions).to_pylist()
    return rows
