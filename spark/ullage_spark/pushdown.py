"""Spark's own filters, sent to nodes as the option `where` is: only where PySpark does so right.

In PySpark 4.1 to 4.3 a source that takes filters keeps those of one action for the next, so that counts after a filter
are wrong in silence (tests/spark/test_traps.py). Whether a session's PySpark does is tried with a source of three rows,
and so a release in which it is mended needs no other Ullage.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ullage.wire import predicates
from ullage.wire.predicates import Column, ColumnKind, Comparison, Like, Predicate, every, negated, written
from ullage_spark.errors import SparkSourceError
from ullage_spark.predicates import Where, kinds_of
from ullage_spark.reader import TableReader
from ullage_spark.versions import (
    HAS_FILTERS,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
    lacks,
)
from ullage_spark.workers import begin_planning

ENABLED: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting, which is false unless somebody sets it."""

SIGNS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
PATTERNS: Final[Mapping[type[Filter], str]] = {
    StringStartsWith: "{}%",
    StringEndsWith: "%{}",
    StringContains: "%{}%",
}
KINDS: Final[Mapping[ColumnKind, type]] = {
    ColumnKind.TEXT: str,
    ColumnKind.NUMBER: int,
    ColumnKind.FLAG: bool,
    ColumnKind.TIME: datetime,
}

_tried: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


class PushingReader(TableReader):
    """A reader that takes filters; see the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if not HAS_FILTERS:
            raise lacks("option pushdown", "4.1", "leave it out, and say with option where which rows you mean")
        super().__init__(options, schema)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Those that nodes evaluate are left out of the answer. Beyond the bounds of `where` they are all Spark's."""
        begin_planning()
        kinds = kinds_of(self._settings.table)
        found = [(each, predicate_of(each, kinds)) for each in filters]
        pushed = [predicate for _, predicate in found if predicate is not None]
        text = written(every([self._where.predicate, *pushed]))
        try:
            self._where = Where(self._settings.table, text)
        except SparkSourceError:  # too long, or too much of something: Spark can
            return filters
        self._settings = msgspec.structs.replace(self._settings, where=text)
        return [each for each, predicate in found if predicate is None]


def predicate_of(filter: Filter, kinds: Mapping[str, ColumnKind]) -> Predicate | None:
    """What a node can evaluate in the place of a filter; None: nothing that is the same for every row."""
    if isinstance(filter, Not):
        part = predicate_of(filter.child, kinds)
        return None if part is None else negated(part)
    column = Column(".".join(getattr(filter, "attribute", ())))
    kind = kinds.get(column.name)
    if kind is None:
        return None
    if isinstance(filter, IsNull | IsNotNull):
        is_null = predicates.IsNull(column)
        return is_null if isinstance(filter, IsNull) else negated(is_null)
    return _compared(filter, column, kind)


def _compared(filter: Filter, column: Column, kind: ColumnKind) -> Predicate | None:
    listed = filter.value if isinstance(filter, In) else (getattr(filter, "value", None),)
    values = tuple(dict.fromkeys(each for each in listed if _is_value(each, kind)))
    if not values or not all(_is_value(each, kind) for each in listed):
        return None
    if isinstance(filter, In):
        return predicates.Among(column, values)
    if type(filter) in PATTERNS:
        return Like(column, PATTERNS[type(filter)].format(_escaped(str(values[0]))))
    return Comparison(column, SIGNS[type(filter)], values[0]) if type(filter) in SIGNS else None


def _is_value(value: Any, kind: ColumnKind) -> bool:
    return type(value) is KINDS.get(kind) and (not isinstance(value, datetime) or value.tzinfo is not None)


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_\\" else each for each in text)


def pushes_filters(spark: SparkSession) -> bool:
    """Whether the session hands filters to sources, and forgets them with the action. It is tried once, by some jobs of
    three rows, and only where Spark's setting says that filters are pushed.
    """
    if not HAS_FILTERS or str(spark.conf.get(ENABLED, "false")).lower() != "true":
        return False
    if spark not in _tried:
        spark.dataSource.register(TriedSource)
        rows = spark.read.format(TriedSource.name()).load()
        counts = [rows.filter("a = 1").count(), rows.count(), rows.union(rows.filter("a = 2")).count(), rows.count()]
        _tried[spark] = counts == [1, 3, 4, 3]
    return _tried[spark]


class TriedSource(DataSource):
    """Three rows, and filters are taken."""

    @classmethod
    def name(cls) -> str:
        return "ullage_tried"

    def schema(self) -> str:
        return "a int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TriedReader()


class TriedReader(DataSourceReader):
    """Of the source that a session is tried with."""

    def __init__(self) -> None:
        self._only: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            if isinstance(each, EqualTo):
                self._only = each.value
            elif not isinstance(each, IsNotNull):
                yield each

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in (1, 2, 3) if self._only in (None, number)])
