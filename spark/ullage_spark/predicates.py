"""The option `where`: conditions that a task applies before it hands rows to Spark.

Conditions on columns, joined by AND, in SQL's notation:

    queue = 'in' AND size >= 1000 AND node IN ('a', 'b') AND entry_time >= TIMESTAMP '2026-11-25 08:00:00'

They are an option and no push-down, because PySpark 4.1 to 4.3 gives wrong results for sources that take filters: the
filters of one action stay for the next (tests/spark/test_traps.py).
"""

import operator
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage_spark.errors import SparkSourceError

# What came over Flight lies wherever the message has it: pyarrow would complain of each batch that is filtered.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")

LITERAL: Final = r"'(?:[^']|'')*'|-?\d+|TRUE\b|FALSE\b|TIMESTAMP\s*'[^']*'"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LITERALS: Final = re.compile(LITERAL, re.IGNORECASE)
CONDITION: Final = re.compile(
    rf"""
    \s*(?P<column>[A-Z_]\w*)\b\s*
    (?:(?P<sign><=|>=|!=|<>|=|<|>)\s*(?P<value>{LITERAL})
    |IN\s*\(\s*(?P<values>(?:{LITERAL})(?:\s*,\s*(?:{LITERAL}))*)\s*\)
    |(?P<null>IS\s+(?:NOT\s+)?NULL\b))
    \s*(?:AND\b(?=\s*\S)|\Z)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""One condition, and the AND before the next."""

COMPARISONS: Final = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Where:
    """Parsed conditions: what they need, and which rows hold them all."""

    def __init__(self, text: str) -> None:
        """SparkSourceError says where it is wrong."""
        self._text = text
        self.columns: set[str] = set()
        self._expression: Any = None
        at = 0
        while rest := text[at:].strip():
            found = CONDITION.match(text, at)
            if found is None:
                raise SparkSourceError(
                    f"option where: {text!r}: nothing I know at {rest!r}: a condition is COLUMN = VALUE (or != < <= > "
                    ">=), COLUMN IN (VALUE, ...) or COLUMN IS [NOT] NULL, the next one follows AND, and a value is "
                    "'text', a number, TRUE, FALSE or TIMESTAMP '...'"
                )
            self.columns.add(found["column"])
            try:
                condition = _condition(found)
            except (pa.ArrowException, OverflowError, TypeError) as error:
                raise SparkSourceError(f"option where: {found[0].strip()}: {error}") from error
            self._expression = condition if self._expression is None else self._expression & condition
            at = found.end()

    def check(self, schema: pa.Schema) -> None:
        """SparkSourceError if it compares what cannot be compared: before a job begins, and not in each task."""
        try:
            if self._expression is not None:
                schema.empty_table().filter(self._expression)
        except pa.ArrowException as error:
            raise SparkSourceError(
                f"option where: {self._text!r} compares a column with a value of another kind: {error}"
            ) from error

    def chosen(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that hold them."""
        if self._expression is None:
            yield batch
        else:
            yield from pa.Table.from_batches([batch]).filter(self._expression).to_batches()


def _condition(found: re.Match[str]) -> Any:
    field = pc.field(found["column"])
    if found["null"]:
        return field.is_valid() if "NOT" in found["null"].upper() else field.is_null()
    if found["values"]:
        return field.isin([_value(literal) for literal in LITERALS.findall(found["values"])])
    return COMPARISONS[found["sign"]](field, pc.scalar(_value(found["value"])))


def _moment(text: str) -> pa.Scalar:
    """Without an offset it is in UTC. Through Arrow: Python's datetime would have it import pandas."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise SparkSourceError(
            f"option where: {text!r} is no time: TIMESTAMP '2026-11-25 08:00:00' is one, in UTC or with an offset"
        ) from error
    whole = found if found.tzinfo else found.replace(tzinfo=UTC)
    return pa.scalar((whole - EPOCH) // timedelta(microseconds=1), pa.int64()).cast(pa.timestamp("us", "UTC"))


def _value(literal: str) -> Any:
    if literal.upper().startswith("TIMESTAMP"):
        return _moment(literal.partition("'")[2][:-1])
    if literal.startswith("'"):
        return literal[1:-1].replace("''", "'")
    return literal.upper() == "TRUE" if literal[0].isalpha() else int(literal)
