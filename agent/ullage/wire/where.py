"""The language of `where`: SQL's notation of predicates, parsed once and typed by the columns of a table.

    queue = 'in' AND (size >= 1000 OR attributes['kind'] LIKE 'bill%') AND NOT uuid IN ('...', '...')
    entry_time BETWEEN TIMESTAMP '2026-11-25 08:00:00' AND TIMESTAMP '2026-11-25 09:00:00+01:00'
    queue IS NULL OR array_contains(parents, '...')

It comes from whoever may read a table, so whatever it is costs no more than the bounds below say.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn

from ullage.errors import InvalidArgument
from ullage.wire.predicates import (
    EVERY,
    Among,
    Column,
    ColumnKind,
    Comparison,
    Constant,
    IsNull,
    Like,
    Predicate,
    Value,
    every,
    negated,
    some,
)

TEXT_MAX: Final = 256 * 1024
"""Characters of a predicate: what some thousand uuids take."""

DEPTH_MAX: Final = 32
"""Brackets and NOTs in each other."""

TERMS_MAX: Final = 256
"""Comparisons: each is evaluated on every row that nothing else leaves out."""

VALUES_MAX: Final = 5_000
"""Values of all lists."""

PATTERN_MAX: Final = 1_000
"""Characters of a pattern."""

WILDCARDS_MAX: Final = 16
"""Of each pattern: %, for which a text is looked at as often as there are of them."""

INTEGER_MAX: Final = (1 << 63) - 1
SHOWN_MAX: Final = 60
"""Characters of a text that an error repeats."""

TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*')
    |(?P<number>-?\d+(?![\w.]))
    |(?P<name>[A-Za-z_]\w*)
    |`(?P<quoted>[^`]+)`
    |(?P<sign><=|>=|!=|<>|=|<|>)
    |(?P<mark>[(),\[\]])
    |(?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
WORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"})
COMPARED: Final = {
    ColumnKind.TEXT: "'text'",
    ColumnKind.NUMBER: "a number",
    ColumnKind.FLAG: "TRUE or FALSE",
    ColumnKind.TIME: "TIMESTAMP '...'",
}
"""Kinds that literals are compared with, and how one is written."""

ELEMENTS: Final = {ColumnKind.TEXTS: ColumnKind.TEXT, ColumnKind.NUMBERS: ColumnKind.NUMBER}
KNOWN: Final = (
    "a condition is COLUMN = VALUE (or != < <= > >=), COLUMN [NOT] IN (VALUE, ...), BETWEEN VALUE AND VALUE, LIKE "
    "'PATTERN%', IS [NOT] NULL, or array_contains(COLUMN, VALUE); AND, OR, NOT and brackets join them; a value is "
    "'text', a whole number, TRUE, FALSE, TIMESTAMP '...' or DATE '...', and attributes['NAME'] is a column too"
)


def parse(text: str, columns: Mapping[str, ColumnKind], table: str) -> Predicate:
    """The predicate on rows of a table with these columns; an empty text holds for all of them.

    InvalidArgument says in a paragraph what is wrong with it: unknown words and columns, values of another kind than
    their column, and what is beyond the bounds.
    """
    if len(text) > TEXT_MAX:
        raise InvalidArgument(f"where: {len(text)} characters are more than {TEXT_MAX}")
    return _Parser(text, columns, table).parsed()


class _Parser:
    """One text, on its way from left to right: a word is looked at once, and nothing is tried twice."""

    def __init__(self, text: str, columns: Mapping[str, ColumnKind], table: str) -> None:
        self._text = text
        self._columns = columns
        self._table = table
        self._depth = self._terms = self._listings = 0
        self._at = self._ended = 0
        self._kind = self._word = ""
        self._next()

    def parsed(self) -> Predicate:
        if self._kind == "end":
            return EVERY
        found = self._some()
        if self._kind != "end":
            self._refuse()
        return found

    def _next(self) -> None:
        self._at = self._ended
        found = TOKEN.match(self._text, self._at)
        if found is None:
            self._refuse()
        self._kind = found.lastgroup or ""
        self._word = found[self._kind]
        self._ended = found.end()

    def _refuse(self, why: str = "") -> NoReturn:
        if why:
            raise InvalidArgument(f"where: {why}")
        rest = self._text[self._at :].strip()
        raise InvalidArgument(f"where: nothing I know at {_shown(rest) if rest else 'the end'}: {KNOWN}")

    def _takes(self, *words: str) -> bool:
        """Whether these words come next; then they are passed over."""
        if self._kind not in ("name", "mark", "sign") or self._word.upper() not in words:
            return False
        self._next()
        return True

    def _require(self, word: str) -> None:
        if not self._takes(word):
            self._refuse()

    def _some(self) -> Predicate:
        parts = [self._every()]
        while self._takes("OR"):
            parts.append(self._every())
        return some(parts)

    def _every(self) -> Predicate:
        parts = [self._negation()]
        while self._takes("AND"):
            parts.append(self._negation())
        return every(parts)

    def _negation(self) -> Predicate:
        if (self._kind, self._word.upper()) not in (("name", "NOT"), ("mark", "(")):
            return self._condition()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"brackets and NOTs are in each other more than {DEPTH_MAX} deep")
        if self._takes("NOT"):
            found = negated(self._negation())
        else:
            self._require("(")
            found = self._some()
            self._require(")")
        self._depth -= 1
        return found

    def _condition(self) -> Predicate:
        self._terms += 1
        if self._terms > TERMS_MAX:
            self._refuse(f"there are more than {TERMS_MAX} conditions: IN takes a list of values")
        if self._kind == "name" and self._word.upper() in ("TRUE", "FALSE", "NULL"):
            word = self._word.upper()
            self._next()
            return Constant(None if word == "NULL" else word == "TRUE")
        if self._kind == "name" and self._word.lower() in ("array_contains", "arrays_overlap"):
            return self._of_array()
        column, kind = self._column()
        if self._kind == "sign":
            sign = "!=" if self._word == "<>" else self._word
            self._next()
            return Comparison(column, sign, self._value(column, kind))
        if self._takes("IS"):
            is_not = self._takes("NOT")
            self._require("NULL")
            return negated(IsNull(column)) if is_not else IsNull(column)
        is_not = self._takes("NOT")
        found = self._test(column, kind)
        if found is None and (is_not or kind != ColumnKind.FLAG):
            self._refuse()
        found = Comparison(column, "=", True) if found is None else found
        return negated(found) if is_not else found

    def _test(self, column: Column, kind: ColumnKind) -> Predicate | None:
        """What follows a column and NOT."""
        if self._takes("IN"):
            return Among(column, self._values(column, kind))
        if self._takes("BETWEEN"):
            first = Comparison(column, ">=", self._value(column, kind))
            self._require("AND")
            self._terms += 1
            return every([first, Comparison(column, "<=", self._value(column, kind))])
        if self._takes("LIKE"):
            if kind != ColumnKind.TEXT:
                self._refuse(f"column {column.name} is {kind}: LIKE is for {ColumnKind.TEXT}")
            return Like(column, self._pattern())
        return None

    def _of_array(self) -> Predicate:
        """array_contains(COLUMN, VALUE), arrays_overlap(COLUMN, array(VALUE, ...))."""
        is_one = self._word.lower() == "array_contains"
        self._next()
        self._require("(")
        column, kind = self._column()
        if kind not in ELEMENTS:
            self._refuse(f"column {column.name} is {kind}, and no array")
        self._require(",")
        if is_one:
            values: tuple[Value, ...] = (self._value(column, ELEMENTS[kind]),)
        else:
            self._require("ARRAY")
            values = self._values(column, ELEMENTS[kind])
        self._require(")")
        return Among(column, values, True)

    def _column(self) -> tuple[Column, ColumnKind]:
        if self._kind not in ("name", "quoted") or (self._kind == "name" and self._word.upper() in WORDS):
            self._refuse()
        name = self._word if self._word in self._columns else self._word.lower()
        if name not in self._columns:
            names = ", ".join(self._columns)
            self._refuse(f"table {self._table} has no column {_shown(self._word, quote='')}: {names}")
        self._next()
        kind = self._columns[name]
        if kind != ColumnKind.MAP or not self._takes("["):
            return Column(name), kind
        if self._kind != "text":
            self._refuse()
        key = self._literal()
        self._require("]")
        return Column(name, str(key)), ColumnKind.TEXT

    def _values(self, column: Column, kind: ColumnKind) -> tuple[Value, ...]:
        self._require("(")
        values = [self._listed(column, kind)]
        while self._takes(","):
            values.append(self._listed(column, kind))
        self._require(")")
        return tuple(dict.fromkeys(values))

    def _listed(self, column: Column, kind: ColumnKind) -> Value:
        self._listings += 1
        if self._listings > VALUES_MAX:
            self._refuse(f"more than {VALUES_MAX} values are listed, with those of column {column.name}")
        return self._value(column, kind)

    def _value(self, column: Column, kind: ColumnKind) -> Value:
        """A literal of this kind."""
        if self._kind not in ("text", "number", "name"):
            self._refuse()
        if kind not in COMPARED:
            how = "; array_contains looks into it" if kind in ELEMENTS else ""
            how = f"; {column.name}['NAME'] is text" if kind == ColumnKind.MAP else how
            self._refuse(f"column {column.name} is {kind}: IS NULL and IS NOT NULL are all that is said of it{how}")
        at = self._at
        value = self._literal()
        found = _kind_of(value)
        if found != kind:
            shown = _shown(self._text[at : self._at].strip(), quote="")
            named = column.name if column.key is None else f"{column.name}[{_shown(column.key)}]"
            self._refuse(f"column {named} is {kind}, and {shown} is {found}: write {COMPARED[kind]}")
        return value

    def _literal(self) -> Value:
        kind, word = self._kind, self._word
        self._next()
        if kind == "text":
            return word[1:-1].replace("''", "'")
        if kind == "number":
            number = int(word) if len(word) < 21 else INTEGER_MAX + 1
            if not -INTEGER_MAX <= number <= INTEGER_MAX:
                self._refuse(f"{_shown(word, quote='')} is beyond bigint")
            return number
        if word.upper() in ("TRUE", "FALSE"):
            return word.upper() == "TRUE"
        if word.upper() not in ("TIMESTAMP", "DATE") or self._kind != "text":
            self._refuse(f"{_shown(word, quote='')} is no value: {KNOWN}")
        return self._time(str(self._literal()))

    def _time(self, text: str) -> datetime:
        """Without an offset it is in UTC."""
        try:
            found = datetime.fromisoformat(text.strip())
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise InvalidArgument(
                f"where: {_shown(text)} is no time: TIMESTAMP '2026-11-25 08:00:00' is one, in UTC or with an offset"
            ) from error

    def _pattern(self) -> str:
        if self._kind != "text":
            self._refuse()
        pattern = str(self._literal())
        if len(pattern) > PATTERN_MAX or pattern.count("%") > WILDCARDS_MAX:
            self._refuse(f"a pattern has at most {PATTERN_MAX} characters, and {WILDCARDS_MAX} times %")
        if re.search(r"\\(?![%_\\])", re.sub(r"\\[%_\\]", "", pattern)):
            self._refuse(rf"{_shown(pattern)}: in a pattern a backslash stands before %, _ or another backslash")
        return pattern


def _kind_of(value: Value) -> ColumnKind:
    if isinstance(value, bool):
        return ColumnKind.FLAG
    if isinstance(value, int):
        return ColumnKind.NUMBER
    return ColumnKind.TEXT if isinstance(value, str) else ColumnKind.TIME


def _shown(text: str, quote: str = "'") -> str:
    """Some of it, for an error."""
    return f"{quote}{text}{quote}" if len(text) <= SHOWN_MAX else f"{quote}{text[:SHOWN_MAX]}...{quote}"
