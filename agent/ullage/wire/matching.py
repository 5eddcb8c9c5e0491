"""Predicates on Arrow's columns: which columns tables have for them, and which rows of a batch they choose."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage.errors import InvalidArgument, NotFound
from ullage.wire.predicates import (
    All,
    Among,
    Column,
    ColumnKind,
    Comparison,
    Constant,
    IsNull,
    Leaf,
    Like,
    Not,
    Predicate,
    Value,
    columns_in,
    number_of,
)
from ullage.wire.schemas import SCHEMAS, is_time, name_for_sql
from ullage.wire.where import parse

LATEST_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999: what Python and SQL have no time behind."""

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

Columns = Callable[[str], pa.Array]
"""A column of some rows, by its name for SQL or its own."""


def times(millis: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as SQL's timestamps: 0, which says that there is no such time, is null."""
    ends = pc.min_max(millis)
    if (least := ends["min"].as_py()) and least > 0 and ends["max"].as_py() <= LATEST_MILLIS:
        known = millis  # as nearly always: to look for what is none takes three times as long
    else:
        known = pc.min_element_wise(millis, pa.scalar(LATEST_MILLIS, pa.int64()), skip_nulls=False)
        known = pc.if_else(pc.equal(known, pa.scalar(0, pa.int64())), pa.scalar(None, pa.int64()), known)
    return known.view(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def kind_of(type: pa.DataType) -> ColumnKind:
    """What a predicate may say of a column of this type."""
    if pa.types.is_list(type):
        return ColumnKind.TEXTS if pa.types.is_string(type.value_type) else ColumnKind.NUMBERS
    kinds = {
        ColumnKind.TEXT: pa.types.is_string,
        ColumnKind.NUMBER: pa.types.is_integer,
        ColumnKind.FLAG: pa.types.is_boolean,
        ColumnKind.TIME: pa.types.is_timestamp,
        ColumnKind.MAP: pa.types.is_map,
        ColumnKind.BYTES: pa.types.is_binary,
    }
    return next(kind for kind, is_it in kinds.items() if is_it(type))


@cache
def kinds_of(table: str) -> dict[str, ColumnKind]:
    """The columns of a node's table; a time both as a timestamp and, under its own name, as milliseconds."""
    if table not in SCHEMAS:
        raise NotFound(f"there is no table {table}: {', '.join(SCHEMAS)}")
    found = {field.name: kind_of(field.type) for field in SCHEMAS[table]}
    return found | {name_for_sql(field): ColumnKind.TIME for field in SCHEMAS[table] if is_time(field)}


@cache
def _own_names(table: str) -> dict[str, str]:
    return {name_for_sql(field): field.name for field in SCHEMAS[table]}


class RowFilter:
    """Which rows of a node's table a text chooses, and which columns that takes."""

    def __init__(self, table: str, text: str) -> None:
        """InvalidArgument says what is wrong with the text."""
        self.predicate = parse(text, kinds_of(table), table)
        self._own = _own_names(table)
        self.columns: Sequence[str] = sorted({self._own.get(name, name) for name in columns_in(self.predicate)})
        """Under their own names."""

        try:  # what Arrow itself refuses, it refuses of no rows as well
            self.mask(lambda name: pa.array([], SCHEMAS[table].field(name).type), 0)
        except pa.ArrowException as error:
            raise InvalidArgument(f"where: {error}") from error

    def mask(self, column: Columns, rows: int) -> pa.BooleanArray:
        """True for each of so many rows that is chosen; `column` has the columns by their own names."""

        def named(name: str) -> pa.Array:
            own = self._own.get(name, name)
            return column(own) if own == name else times(column(own))

        return pc.fill_null(holds(self.predicate, named, rows), fill_value=False)

    def __bool__(self) -> bool:
        """Whether it leaves out anything."""
        return bool(self.columns) or self.predicate != Constant(True)


def holds(predicate: Predicate, column: Columns, rows: int) -> pa.BooleanArray:
    """Of each of so many rows whether it is true, false or unknown (null)."""
    match predicate:
        case Constant(value):
            return pa.repeat(pa.scalar(value, pa.bool_()), rows)
        case Not(part):
            return pc.invert(holds(part, column, rows))
        case All(parts):
            return _joined(pc.and_kleene, parts, column, rows)
        case predicate if isinstance(predicate, Leaf):
            return _leaf(predicate, column)
        case _:
            return _joined(pc.or_kleene, predicate.parts, column, rows)


def _joined(join: Callable[[Any, Any], Any], parts: Sequence[Predicate], column: Columns, rows: int) -> Any:
    found = holds(parts[0], column, rows)
    for part in parts[1:]:
        found = join(found, holds(part, column, rows))
    return found


def _leaf(leaf: Leaf, column: Columns) -> pa.BooleanArray:
    array = _array(leaf.column, column)
    match leaf:
        case Comparison(_, sign, value):
            return _COMPARE[sign](array, _values([value], array.type)[0])
        case Among(_, values, True):
            hits = pc.is_in(pc.list_flatten(array), value_set=_values(values, array.type.value_type))
            rows = pc.unique(pc.list_parent_indices(array).filter(hits))
            found = pc.is_in(pa.array(range(len(array)), rows.type), value_set=rows)
            return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.bool_()))
        case Among(_, values, False):
            found = pc.is_in(array, value_set=_values(values, array.type))
            return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.bool_()))
        case Like(_, pattern):
            return pc.match_like(array, pattern)
        case IsNull():
            return array.is_null()


def _array(column: Column, of: Columns) -> pa.Array:
    found = of(column.name)
    return found if column.key is None else pc.map_lookup(found, pa.scalar(column.key), "first")


def _values(values: Sequence[Value], type: pa.DataType) -> pa.Array:
    """Times through their numbers: pyarrow would import pandas to look at Python's."""
    if pa.types.is_timestamp(type):
        return pa.array(list(map(number_of, values)), pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.array(values, pa.int64() if pa.types.is_integer(type) else type)
