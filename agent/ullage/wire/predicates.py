"""Predicates on the rows of a table: what the text of `where` means, whoever evaluates it.

`ullage.wire.where` parses them, `ullage.wire.matching` evaluates them on Arrow's columns. Here is what both go by, and
what can be said of a predicate before any row is read: which values a column has in every row that holds it, or which
range. An index is asked with that; it never decides on a row.

As in SQL a predicate is true, false or unknown, and a row is chosen where it is true.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

Value = str | int | bool | datetime
"""A literal. Times know their offset."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ColumnKind(StrEnum):
    """What a column holds, in SQL's words."""

    TEXT = "string"
    NUMBER = "bigint"
    FLAG = "boolean"
    TIME = "timestamp"
    TEXTS = "array<string>"
    NUMBERS = "array<bigint>"
    MAP = "map<string, string>"
    BYTES = "binary"


class Column(NamedTuple):
    """A column, or with a key what a map has under it."""

    name: str
    key: str | None = None


class Comparison(NamedTuple):
    """`sign` is = != < <= > or >=."""

    column: Column
    sign: str
    value: Value


class Among(NamedTuple):
    """The column is one of these; of an array, one of them is in it."""

    column: Column
    values: tuple[Value, ...]
    is_array: bool = False


class Like(NamedTuple):
    """% stands for any characters, _ for one, and a backslash takes the meaning of the next."""

    column: Column
    pattern: str


class IsNull(NamedTuple):
    """There is no value."""

    column: Column


class Constant(NamedTuple):
    """Of every row the same; None: unknown."""

    value: bool | None


class Not(NamedTuple):
    """True where it is false."""

    part: "Predicate"


class All(NamedTuple):
    """AND."""

    parts: tuple["Predicate", ...]


class Some(NamedTuple):
    """OR."""

    parts: tuple["Predicate", ...]


Leaf = Comparison | Among | Like | IsNull
Predicate = Leaf | Constant | Not | All | Some

EVERY: Final = Constant(True)
"""Holds for every row."""


def every(parts: Iterable[Predicate]) -> Predicate:
    """All of them, flat, without what says nothing."""
    flat = [each for part in parts for each in (part.parts if isinstance(part, All) else (part,)) if each != EVERY]
    if Constant(False) in flat:
        return Constant(False)
    return flat[0] if len(flat) == 1 else All(tuple(flat)) if flat else EVERY


def some(parts: Iterable[Predicate]) -> Predicate:
    """One of them at least, flat."""
    flat = [each for part in parts for each in (part.parts if isinstance(part, Some) else (part,))]
    flat = [each for each in flat if each != Constant(False)]
    if EVERY in flat:
        return EVERY
    return flat[0] if len(flat) == 1 else Some(tuple(flat)) if flat else Constant(False)


def negated(part: Predicate) -> Predicate:
    """NOT."""
    if isinstance(part, Constant):
        return Constant(None if part.value is None else not part.value)
    return part.part if isinstance(part, Not) else Not(part)


def settled(predicate: Predicate, column: str, decide: Callable[[Leaf], bool | None]) -> Predicate:
    """The same once it is known what a column holds: `decide` says of each predicate on it what it is."""
    match predicate:
        case Constant():
            return predicate
        case Not(part):
            return negated(settled(part, column, decide))
        case All(parts):
            return every(settled(part, column, decide) for part in parts)
        case Some(parts):
            return some(settled(part, column, decide) for part in parts)
        case _:
            return Constant(decide(predicate)) if predicate.column.name == column else predicate


def leaves(predicate: Predicate) -> Iterator[Leaf]:
    """What it is made of."""
    match predicate:
        case Constant():
            return
        case Not(part):
            yield from leaves(part)
        case All(parts) | Some(parts):
            for part in parts:
                yield from leaves(part)
        case _:
            yield predicate


def columns_in(predicate: Predicate) -> set[str]:
    """The columns that it looks at."""
    return {leaf.column.name for leaf in leaves(predicate)}


def asked(predicate: Predicate, column: Column) -> frozenset[Value] | None:
    """The values that a column may have in a row that is chosen; None: any."""
    return _asked(
        predicate,
        lambda leaf: leaf.column == column and not (isinstance(leaf, Among) and leaf.is_array),
        lambda known: frozenset.intersection(*known),
    )


def asked_of_any(predicate: Predicate, columns: Collection[Column]) -> frozenset[Value] | None:
    """Values of which one of these columns, or arrays, has one in every row that is chosen; None: it cannot be said."""
    # Where all parts of it hold, the shortest list is the least to look for.
    return _asked(predicate, lambda leaf: leaf.column in columns, lambda known: min(known, key=len))


def _asked(
    predicate: Predicate,
    is_about: Callable[[Comparison | Among], bool],
    of_all: Callable[[list[frozenset[Value]]], frozenset[Value]],
) -> frozenset[Value] | None:
    """The values that leaves list which are about what is asked for; `of_all`: where several of them hold."""
    match predicate:
        case Comparison(_, "=", value) if is_about(predicate):
            return frozenset({value})
        case Among(_, values) if is_about(predicate):
            return frozenset(values)
        case Constant(value) if not value:
            return frozenset()
        case All(parts) | Some(parts):
            each = [_asked(part, is_about, of_all) for part in parts]
            known = [values for values in each if values is not None]
            if isinstance(predicate, All):
                return of_all(known) if known else None
            return frozenset().union(*known) if len(known) == len(each) else None
    return None


class Bounds(NamedTuple):
    """From the first to the last, both included; times are microseconds since 1970."""

    first: float
    last: float


ANYWHERE: Final = Bounds(-math.inf, math.inf)
NOWHERE: Final = Bounds(math.inf, -math.inf)


def bounds(predicate: Predicate, column: str) -> Bounds:
    """Where a number or time lies in every row that is chosen."""
    match predicate:
        case Comparison(Column(name, None), sign, value) if name == column:
            return _bounds_of(sign, number_of(value))
        case Among(Column(name, None), values, False) if name == column:
            numbers = [number_of(value) for value in values]
            return Bounds(min(numbers), max(numbers))
        case Constant(value) if not value:
            return NOWHERE
        case All(parts):
            each = [bounds(part, column) for part in parts]
            return Bounds(max(of.first for of in each), min(of.last for of in each))
        case Some(parts):
            each = [bounds(part, column) for part in parts]
            return Bounds(min(of.first for of in each), max(of.last for of in each))
    return ANYWHERE


def _bounds_of(sign: str, number: float) -> Bounds:
    match sign:
        case "=":
            return Bounds(number, number)
        case "<" | "<=":
            return Bounds(-math.inf, number - (sign == "<"))
        case ">" | ">=":
            return Bounds(number + (sign == ">"), math.inf)
    return ANYWHERE


def number_of(value: Value) -> int:
    """A number or time as a whole number; texts have none."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return int(value)


def written(predicate: Predicate) -> str:
    """The text that parses to it; empty for what holds for every row."""
    return "" if predicate == EVERY else _written(predicate)


def _written(predicate: Predicate) -> str:
    match predicate:
        case Constant(value):
            return "NULL" if value is None else str(value).upper()
        case Not(IsNull(column)):
            return f"{_name(column)} IS NOT NULL"
        case Not(part):
            return f"NOT {_bracketed(part)}"
        case All(parts):
            return " AND ".join(_bracketed(part) for part in parts)
        case Some(parts):
            return " OR ".join(_bracketed(part) for part in parts)
        case _:
            return _leaf(predicate)


def _leaf(leaf: Leaf) -> str:
    name = _name(leaf.column)
    match leaf:
        case Comparison(_, sign, value):
            return f"{name} {sign} {_literal(value)}"
        case Among(_, values, is_array):
            listed = ", ".join(map(_literal, values))
            return f"arrays_overlap({name}, array({listed}))" if is_array else f"{name} IN ({listed})"
        case Like(_, pattern):
            return f"{name} LIKE {_literal(pattern)}"
        case IsNull():
            return f"{name} IS NULL"


def _bracketed(part: Predicate) -> str:
    return f"({_written(part)})" if isinstance(part, All | Some) else _written(part)


def _name(column: Column) -> str:
    return f"`{column.name}`" if column.key is None else f"`{column.name}`[{_literal(column.key)}]"


def _literal(value: Value) -> str:
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper()
