"""The language of `where`: SQLite says of random predicates and rows what SQL means by them."""

import random
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ullage.errors import InvalidArgument
from ullage.wire.matching import holds, kinds_of
from ullage.wire.predicates import (
    All,
    Among,
    Column,
    ColumnKind,
    Comparison,
    Constant,
    IsNull,
    Like,
    Predicate,
    Some,
    asked,
    asked_of_any,
    bounds,
    columns_in,
    every,
    negated,
    settled,
    some,
    written,
)
from ullage.wire.where import DEPTH_MAX, PATTERN_MAX, TERMS_MAX, TEXT_MAX, VALUES_MAX, WILDCARDS_MAX, parse

KINDS = {"q": ColumnKind.TEXT, "n": ColumnKind.NUMBER, "b": ColumnKind.FLAG}
TYPES = {"q": pa.string(), "n": pa.int64(), "b": pa.bool_()}
WORDS = ("in", "out", "it's", "a%b", "", "In", "a_b", "é", "NULL", "x\ny")
Row = tuple[str | None, int | None, bool | None]


def drawn(chance: random.Random, depth: int = 4) -> Predicate:
    """Any predicate on `q`, `n` and `b`."""
    if depth and chance.random() < 0.6:
        parts = [drawn(chance, depth - 1) for _ in range(chance.randint(1, 3))]
        return chance.choice((every, some))(parts) if len(parts) > 1 else negated(parts[0])
    text, number, flag = Column("q"), Column("n"), Column("b")
    pattern = "".join(chance.choice(("a", "%", "_", r"\%", r"\_", "b", "i", "n")) for _ in range(chance.randint(0, 4)))
    sign = chance.choice(("=", "!=", "<", "<=", ">", ">="))
    leaves: Sequence[Predicate] = (
        Comparison(text, sign, chance.choice(WORDS)),
        Comparison(number, sign, chance.randint(-3, 3)),
        Comparison(flag, chance.choice(("=", "!=")), chance.random() < 0.5),
        Among(text, tuple(dict.fromkeys(chance.choices(WORDS, k=chance.randint(1, 3))))),
        Among(number, tuple(dict.fromkeys(chance.choices(range(-3, 4), k=chance.randint(1, 3))))),
        Like(text, pattern),
        IsNull(chance.choice((text, number, flag))),
        Constant(chance.choice((True, False, None))),
    )
    return chance.choice(leaves)


def rows_drawn(chance: random.Random, count: int) -> list[Row]:
    return [
        (chance.choice((None, *WORDS)), chance.choice((None, *range(-3, 4))), chance.choice((None, True, False)))
        for _ in range(count)
    ]


def column_of(rows: Sequence[Row], name: str) -> pa.Array:
    return pa.array([row["qnb".index(name)] for row in rows], TYPES[name])


def is_true(rows: Sequence[Row], predicate: Predicate) -> bool | None:
    """Of the first of them."""
    found: bool | None = holds(predicate, lambda name: column_of(rows, name), len(rows))[0].as_py()
    return found


def test_predicates_mean_what_sql_means_by_them(seed: int) -> None:
    """True, false and unknown, through every way of joining and negating them."""
    chance = random.Random(seed)
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = ON")
    database.execute("CREATE TABLE rows (place INTEGER, q TEXT, n INTEGER, b BOOLEAN)")
    rows = rows_drawn(chance, 120)
    database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", [(at, *row) for at, row in enumerate(rows)])
    for _ in range(400):
        predicate = drawn(chance)
        text = written(predicate)
        sql = text.replace("LIKE", "LIKE/**/") if text else "TRUE"
        sql = "".join(_with_escape(sql)) or "TRUE"
        expected = {
            at: None if value is None else bool(value)
            for at, value in database.execute(f"SELECT place, ({sql}) FROM rows")
        }

        found = holds(predicate, lambda name: column_of(rows, name), len(rows)).to_pylist()

        assert found == [expected[at] for at in range(len(rows))], text


def _with_escape(sql: str) -> list[str]:
    """SQLite has no escape character in patterns unless it is named."""
    head, *others = sql.split("LIKE/**/ ")
    found = [head]
    for other in others:
        end = 1
        while other[end] != "'" or other[end : end + 2] == "''":
            end += 2 if other[end] == "'" else 1
        found.append(f"LIKE {other[: end + 1]} ESCAPE '\\'{other[end + 1 :]}")
    return found


def test_what_is_written_parses_to_the_same(seed: int) -> None:
    """It is the wire's form: what a driver has put together, an agent reads."""
    chance = random.Random(seed)
    for _ in range(500):
        predicate = drawn(chance)

        assert parse(written(predicate), KINDS, "rows") == predicate


def test_what_an_index_is_asked_leaves_out_nothing(seed: int) -> None:
    """Whatever row is chosen has one of the values asked for, and lies within the bounds."""
    chance = random.Random(seed)
    rows = rows_drawn(chance, 150)
    known = 0
    for _ in range(400):
        predicate = drawn(chance)
        values, within = asked(predicate, Column("q")), bounds(predicate, "n")
        either = asked_of_any(predicate, {Column("q"), Column("n")})
        known += values is not None
        for is_chosen, (text, number, _) in zip(
            holds(predicate, lambda name: column_of(rows, name), len(rows)).to_pylist(), rows, strict=True
        ):
            if is_chosen:
                assert values is None or text in values, written(predicate)
                assert either is None or {text, number} & either, written(predicate)
                assert number is None or within.first <= number <= within.last, written(predicate)
    assert known > 20


def test_a_column_that_is_known_beforehand_is_settled(seed: int) -> None:
    """As the node of a task's rows: the rest is the same predicate, and the column is not looked at."""
    chance = random.Random(seed)
    for _ in range(300):
        predicate = drawn(chance)
        decide = partial(is_true, rows_drawn(chance, 1))
        rest = settled(predicate, "q", decide)

        assert "q" not in columns_in(rest)
        assert decide(predicate) == decide(rest), written(predicate)


def test_attributes_arrays_and_times() -> None:
    """What SQLite has no types for."""
    columns = {
        "attributes": pa.array([[("k", "v")], [("k", "w"), ("l", "")], [], None], pa.map_(pa.string(), pa.string())),
        "parents": pa.array([["a", "b"], [], None, ["b"]], pa.list_(pa.string())),
        "entry_time": pa.array([0, 3_600_000_000, None, 1], pa.timestamp("us", "UTC")),
    }
    kinds = {"attributes": ColumnKind.MAP, "parents": ColumnKind.TEXTS, "entry_time": ColumnKind.TIME}

    def chosen(text: str) -> list[int]:
        found = holds(parse(text, kinds, "rows"), columns.__getitem__, 4).to_pylist()
        return [at for at, is_chosen in enumerate(found) if is_chosen]

    assert chosen("attributes['k'] = 'v'") == [0]
    assert chosen("attributes['k'] != 'v'") == [1]
    assert chosen("attributes['k'] IS NULL") == [2, 3]
    assert chosen("attributes IS NULL") == [3]
    assert chosen("attributes['k'] LIKE 'w%' OR attributes['l'] = 'x'") == [1]
    assert chosen("array_contains(parents, 'b')") == [0, 3]
    assert chosen("NOT arrays_overlap(parents, array('a', 'x'))") == [1, 3]
    assert chosen("entry_time BETWEEN TIMESTAMP '1970-01-01' AND TIMESTAMP '1970-01-01 02:00:00+01:00'") == [0, 1, 3]
    assert chosen("entry_time > DATE '1970-01-01' AND NOT entry_time = TIMESTAMP '1970-01-01 00:00:00.000001'") == [1]


def test_words_are_taken_in_any_case_and_spacing() -> None:
    """As everybody writes SQL."""
    predicate = parse("Q='in'and(N between 1 and 2 or b)and not`q`is not null", KINDS, "rows")

    number = Column("n")
    between = All((Comparison(number, ">=", 1), Comparison(number, "<=", 2)))
    assert predicate == All(
        (
            Comparison(Column("q"), "=", "in"),
            Some((between, Comparison(Column("b"), "=", True))),
            IsNull(Column("q")),
        )
    )


def test_a_column_is_not_what_its_array_holds() -> None:
    """Which values an array has does not say what it is; that it has one of them can be looked for."""
    either = Among(Column("parents"), ("a", "b"), True)

    assert asked(either, Column("parents")) is None
    assert asked_of_any(either, {Column("parents")}) == frozenset(either.values)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("size = 'a'", "column size is bigint, and 'a' is string: write a number"),
        ("queue = 5", "column queue is string, and 5 is bigint: write 'text'"),
        ("swapped = 1", "column swapped is boolean, and 1 is bigint: write TRUE or FALSE"),
        (
            "entry_time > '2026-11-25'",
            "column entry_time is timestamp, and '2026-11-25' is string: write TIMESTAMP '...'",
        ),
        ("entry_time > TIMESTAMP 'soon'", "'soon' is no time"),
        ("entry_time > TIMESTAMP '0001-01-01 00:00:00+14:00'", "is no time"),
        ("size IN (1, 'a')", "column size is bigint, and 'a' is string"),
        ("size LIKE '1%'", "column size is bigint: LIKE is for string"),
        ("attributes = 'x'", "attributes['NAME'] is text"),
        ("attributes['x'] = 1", "column attributes['x'] is string, and 1 is bigint"),
        ("parents = 'x'", "array_contains looks into it"),
        ("array_contains(queue, 'x')", "column queue is string, and no array"),
        ("nothing = 1", "table flowfiles has no column nothing: uuid, queue"),
        ("size = 99999999999999999999", "is beyond bigint"),
        ("size = 1.5", "nothing I know at '1.5'"),
        ("size =", "nothing I know at the end"),
        ("queue = 'in", "nothing I know at"),
        ("queue", "nothing I know at the end"),
        ("(queue = 'in'", "nothing I know at the end"),
        ("queue = 'in')", "nothing I know at ')'"),
        ("queue = 'in' size = 1", "nothing I know at 'size = 1'"),
        ("queue = size", "is no value"),
        ("AND queue = 'in'", "nothing I know at 'AND queue"),
        ("queue LIKE 'a\\'", "a backslash stands before"),
    ],
)
def test_what_is_wrong_is_said_in_a_paragraph(text: str, why: str) -> None:
    """It names the option and the column."""
    with pytest.raises(InvalidArgument) as raised:
        parse(text, kinds_of("flowfiles"), "flowfiles")

    assert str(raised.value).startswith("where: ")
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


HOSTILE = {
    "long": "q = '" + "x" * TEXT_MAX + "'",
    "deep": "(" * (DEPTH_MAX + 1) + "b" + ")" * (DEPTH_MAX + 1),
    "deep beyond the stack": "(" * 100_000,
    "negations": "NOT " * 50_000 + "b",
    "wide": " OR ".join(["b"] * (TERMS_MAX + 1)),
    "values": f"n IN ({', '.join(map(str, range(VALUES_MAX + 2)))})",
    "values of several lists": " OR ".join([f"n IN ({', '.join('1' * (VALUES_MAX // 10))})"] * 11),
    "pattern": f"q LIKE '{'x' * (PATTERN_MAX + 1)}'",
    "wildcards": f"q LIKE '{'%a' * 100}'",
    "quotes": "q = '" + "''" * 100_000,
    "digits": "n = " + "9" * 200_000,
    "spaces": " " * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_beyond_the_bounds_is_refused(name: str) -> None:
    """And says so shortly, however long it was."""
    if name == "spaces":
        assert parse(HOSTILE[name], KINDS, "rows") == Constant(True)
        return
    with pytest.raises(InvalidArgument) as raised:
        parse(HOSTILE[name], KINDS, "rows")
    assert len(str(raised.value)) < 600


def test_what_is_within_the_bounds_is_taken() -> None:
    """Just so."""
    assert parse("(" * DEPTH_MAX + "b" + ")" * DEPTH_MAX, KINDS, "rows") == Comparison(Column("b"), "=", True)
    assert isinstance(parse(" OR ".join(f"n = {at}" for at in range(TERMS_MAX)), KINDS, "rows"), Some)
    values = parse(f"n IN ({', '.join(map(str, range(VALUES_MAX)))})", KINDS, "rows")
    assert isinstance(values, Among)
    assert len(values.values) == VALUES_MAX


def test_the_bounds_are_those_that_are_told() -> None:
    """Whoever writes a client reads them in docs/flight.md."""
    told = Path(__file__).parents[2].joinpath("docs", "flight.md").read_text(encoding="utf-8")

    for bound in (
        f"{TEXT_MAX // 1024} KiB",
        f"{TERMS_MAX} comparisons",
        f"{VALUES_MAX:,} values",
        f"{DEPTH_MAX} brackets",
        f"{PATTERN_MAX:,} characters",
        f"{WILDCARDS_MAX} `%`",
    ):
        assert bound in told


def test_any_text_parses_or_is_refused(seed: int) -> None:
    """And nothing else comes of it: pieces of the language in any order."""
    chance = random.Random(seed)
    pieces = ["q", "n", "b", "=", "<=", "'x'", "1", "AND", "OR", "NOT", "IN", "(", ")", ",", "BETWEEN", "LIKE", "IS"]
    pieces += ["NULL", "TRUE", "TIMESTAMP", "[", "]", "`", "''", "array_contains", "%", "\\", "\x00", "é", "-"]
    taken = 0
    for _ in range(5_000):
        text = " ".join(chance.choices(pieces, k=chance.randint(1, 8)))
        try:
            parse(text, KINDS, "rows")
            taken += 1
        except InvalidArgument:
            continue  # refused, as it may be: anything else fails the test
    assert taken


def test_times_are_bounds_in_microseconds() -> None:
    """As an index of milliseconds is asked for them."""
    now = datetime(2026, 11, 25, 8, tzinfo=UTC)
    text = f"t >= TIMESTAMP '{now}' AND t < TIMESTAMP '{now + timedelta(seconds=1)}'"
    found = bounds(parse(text, {"t": ColumnKind.TIME}, "rows"), "t")

    assert found.last - found.first == 999_999


def test_tables_have_times_under_both_names() -> None:
    """A program of Flight's reads milliseconds, SQL timestamps."""
    kinds: dict[str, Any] = kinds_of("flowfiles")

    assert kinds["entry_millis"] == ColumnKind.NUMBER
    assert kinds["entry_time"] == ColumnKind.TIME
    assert kinds["attributes"] == ColumnKind.MAP
    assert kinds_of("leases")["resource_claims"] == ColumnKind.NUMBERS
