"""The option `where`: conditions that a task applies before it hands rows to Spark.

Conditions on columns, joined by AND, in SQL's notation:

    queue = 'in' AND size >= 1000 AND node IN ('a', 'b') AND deleted_millis = 0 AND queue IS NOT NULL

They are an option and no push-down, because PySpark 4.1 to 4.3 gives wrong results for sources that take filters: the
filters of one action stay for the next (tests/spark/test_traps.py).
"""

import os
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage_spark.errors import SparkSourceError

# What came over Flight lies wherever the message has it: pyarrow would complain of each batch that is filtered.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")

TOKEN: Final = re.compile(r"\s*(?:('(?:[^']|'')*')|(-?\d+)|([A-Za-z_]\w*)|(<=|>=|!=|<>|=|<|>|\(|\)|,))")
COMPARISONS: Final = {
    "=": "equal",
    "!=": "not_equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


class Where:
    """Parsed conditions: what they need, and which rows hold them all."""

    def __init__(self, text: str) -> None:
        """SparkSourceError says where it is wrong."""
        self.columns: set[str] = set()
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self.expression: Any = None
        if not self._tokens:
            return
        self.expression = self._condition()
        while self._next("AND"):
            self.expression &= self._condition()
        if self._at < len(self._tokens):
            raise self._wrong("the end, or AND")

    def chosen(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that hold them."""
        if self.expression is None:
            yield batch
        else:
            yield from pa.Table.from_batches([batch]).filter(self.expression).to_batches()

    def _condition(self) -> Any:
        kind, name = self._take("a column")
        if kind != "name":
            raise self._wrong("a column")
        self.columns.add(name)
        field = pc.field(name)
        if self._next("IS"):
            is_not = self._next("NOT")
            self._require("NULL")
            return field.is_valid() if is_not else field.is_null()
        if self._next("IN"):
            self._require("(")
            values = [self._literal()]
            while self._next(","):
                values.append(self._literal())
            self._require(")")
            return field.isin(values)
        _, sign = self._take("a comparison")
        if sign not in COMPARISONS:
            raise self._wrong("a comparison")
        value = self._literal()
        return getattr(pc, COMPARISONS[sign])(field, pc.scalar(value))

    def _literal(self) -> Any:
        kind, text = self._take("a value")
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return int(text)
        if kind == "name" and text.upper() in ("TRUE", "FALSE"):
            return text.upper() == "TRUE"
        raise self._wrong("a value: 'text', a number, TRUE or FALSE")

    def _next(self, word: str) -> bool:
        is_there = self._at < len(self._tokens) and self._tokens[self._at][1].upper() == word
        self._at += is_there
        return is_there

    def _require(self, word: str) -> None:
        if not self._next(word):
            raise self._wrong(word)

    def _take(self, what: str) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._wrong(what)
        self._at += 1
        return self._tokens[self._at - 1]

    def _wrong(self, expected: str) -> SparkSourceError:
        return SparkSourceError(f"option where: {self._text!r}: expected {expected} at word {self._at + 1}")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if found is None:
            raise SparkSourceError(f"option where: {text!r}: nothing I know at {text[at:]!r}")
        kind = ("text", "number", "name", "sign")[(found.lastindex or 0) - 1]
        yield kind, found.group(found.lastindex or 0)
        at = found.end()
