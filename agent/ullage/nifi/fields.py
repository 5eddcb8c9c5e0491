"""NiFi's self-describing records: the schema that a file states, and what reads the records that follow it.

The formats of org.apache.nifi.repository.schema: `RecordSchema` writes the schema, `SchemaRecordWriter` the records. A
schema is compiled into functions that read a record from bytes at a position into a dictionary by the names of its
fields. Fields that nobody wants are passed over unread. A function that runs out of bytes raises NeedsMore (or, where
it comes for nothing, IndexError or struct.error: see `OUT_OF_BYTES`).
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ullage.nifi.trouble import NeedsMore, Unparsable

OUT_OF_BYTES: Final = (NeedsMore, IndexError, struct.error)
"""What reading beyond the bytes at hand raises."""

DEPTH_MAX: Final = 12
"""Of fields in fields; NiFi's own schemas have five."""

FIELDS_MAX: Final = 2_000
"""In one schema; NiFi's own have some 150."""

INLINE: Final = 1
EXTERNAL: Final = 8

INT: Final = struct.Struct(">i")
FIXED: Final = {"LONG": "q", "INT": "i", "BOOLEAN": "?"}
STRINGS: Final = ("STRING", "LONG_STRING")

Read = Callable[[bytes, int, dict[str, Any]], int]
"""Puts what lies at a position of the bytes into a dictionary, and returns the position behind it."""

Texts = Callable[[bytes, int], tuple[str, int]]


class SchemaField(NamedTuple):
    """One field as a schema states it, with the fields below it."""

    name: str
    kind: str
    repetition: str
    fields: tuple["SchemaField", ...]


def text(data: bytes, at: int) -> tuple[str, int]:
    """What java.io.DataOutput.writeUTF wrote: two bytes of length, then modified UTF-8."""
    end = at + 2 + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise NeedsMore
    return _modified(data[at + 2 : end]), end


def long_text(data: bytes, at: int) -> tuple[str, int]:
    """Four bytes of length, then UTF-8. A byte that is none is a lone surrogate, so that nobody takes it for a letter:
    see `readable`.
    """
    end = _behind(data, at)
    return data[at + 4 : end].decode("utf-8", "surrogateescape"), end


def readable(value: str) -> str:
    """The text with a replacement character for each byte that is no letter: for people, and not to be kept."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_schema(data: bytes, at: int) -> tuple[tuple[SchemaField, ...], int]:
    """The schema at this position and the position behind it. Unparsable if it is none that NiFi writes."""
    budget = [FIELDS_MAX]
    return _fields(data, at, 0, budget)


def reader(fields: tuple[SchemaField, ...], wanted: frozenset[str]) -> Read:
    """What reads records of these fields. Numbers are kept anyway, texts and maps of texts if they are wanted."""
    steps: list[Read] = []
    run: list[SchemaField] = []
    for field in fields:
        if field.repetition == "EXACTLY_ONE" and field.kind in FIXED:
            run.append(field)
            continue
        if run:
            steps.append(_run(run))
            run = []
        steps.append(_repeated(field, wanted))
    if run:
        steps.append(_run(run))
    if not steps:
        raise Unparsable("a field without fields")
    if len(steps) == 1:
        return steps[0]

    def read(data: bytes, at: int, into: dict[str, Any]) -> int:
        for step in steps:
            at = step(data, at, into)
        return at

    return read


def _modified(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # NUL in two bytes, and what lies beyond the basic plane as two surrogates of three bytes each.
        try:
            halves = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
        except UnicodeError as error:
            raise Unparsable("a text that is no modified UTF-8") from error


def _behind(data: bytes, at: int) -> int:
    (length,) = INT.unpack_from(data, at)
    if length < 0:
        raise Unparsable("a negative length")
    end: int = at + 4 + length
    if end > len(data):
        raise NeedsMore
    return end


def _count(data: bytes, at: int) -> int:
    count: int = INT.unpack_from(data, at)[0]
    if count < 0:
        raise Unparsable("a negative number of entries")
    return count


def _fields(data: bytes, at: int, depth: int, budget: list[int]) -> tuple[tuple[SchemaField, ...], int]:
    count = _count(data, at)
    at += INT.size
    budget[0] -= count
    if depth > DEPTH_MAX or budget[0] < 0:
        raise Unparsable("a schema larger than any of NiFi's")
    found = []
    for _ in range(count):
        field, at = _field(data, at, depth, budget)
        found.append(field)
    return tuple(found), at


def _field(data: bytes, at: int, depth: int, budget: list[int]) -> tuple[SchemaField, int]:
    elements = _count(data, at)
    at += INT.size
    if elements > 16:
        raise Unparsable("a schema with unknown elements")
    stated: dict[str, Any] = {}
    for _ in range(elements):
        name, at = text(data, at)
        kind, at = text(data, at)
        if kind == "String":
            stated[name], at = text(data, at)
        elif kind == "SubFieldList":
            stated[name], at = _fields(data, at, depth + 1, budget)
        elif kind in ("Integer", "Long"):
            at += 4 if kind == "Integer" else 8
        else:
            raise Unparsable(f"a schema with elements of the type {kind[:40]!r}")
    name, kind, repetition = (_stated(stated, element) for element in ("Field Name", "Field Type", "Repetition"))
    below = stated.get("SubFields", ())
    if not isinstance(below, tuple):
        raise Unparsable("a schema in which the fields below a field are a text")
    return SchemaField(name, kind, repetition, below), at


def _stated(elements: dict[str, Any], name: str) -> str:
    value = elements.get(name)
    if not isinstance(value, str):
        raise Unparsable(f"a schema with a field without {name!r}")
    return value


def _run(fields: list[SchemaField]) -> Read:
    """Numbers that follow each other, all at once."""
    packed = struct.Struct(">" + "".join(FIXED[field.kind] for field in fields))
    names = tuple(field.name for field in fields)
    unpack_from, size = packed.unpack_from, packed.size

    def read(data: bytes, at: int, into: dict[str, Any]) -> int:
        into.update(zip(names, unpack_from(data, at), strict=True))
        return at + size

    return read


def _repeated(field: SchemaField, wanted: frozenset[str]) -> Read:
    once = _value(field, wanted)
    if field.repetition == "EXACTLY_ONE":
        return once
    if field.repetition == "ZERO_OR_ONE":

        def maybe(data: bytes, at: int, into: dict[str, Any]) -> int:
            present = data[at]
            if present > 1:
                raise Unparsable(f"{field.name!r} is neither there nor absent")
            return once(data, at + 1, into) if present else at + 1

        return maybe
    if field.repetition != "ZERO_OR_MORE":
        raise Unparsable(f"a schema with the repetition {field.repetition[:40]!r}")

    def each(data: bytes, at: int, _: dict[str, Any]) -> int:
        count = _count(data, at)
        at += INT.size
        passed: dict[str, Any] = {}
        for _number in range(count):
            at = once(data, at, passed)
        return at

    return each


def _value(field: SchemaField, wanted: frozenset[str]) -> Read:
    if field.kind in FIXED:
        return _run([field])
    if field.kind in STRINGS:
        return _string(field, wanted)
    if field.kind == "BYTE_ARRAY":
        return _skip_long
    if field.kind == "MAP":
        return _map(field, wanted)
    if field.kind == "COMPLEX":
        return reader(field.fields, wanted)
    if field.kind == "UNION":
        return _union(field, wanted)
    raise Unparsable(f"a schema with fields of the type {field.kind[:40]!r}")


def _string(field: SchemaField, wanted: frozenset[str]) -> Read:
    name, of = field.name, _texts(field)

    def read(data: bytes, at: int, into: dict[str, Any]) -> int:
        into[name], at = of(data, at)
        return at

    if name in wanted:
        return read
    return _skip_short if field.kind == "STRING" else _skip_long


def _skip_short(data: bytes, at: int, _: dict[str, Any]) -> int:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise NeedsMore
    return end


def _skip_long(data: bytes, at: int, _: dict[str, Any]) -> int:
    return _behind(data, at)


def _texts(field: SchemaField) -> Texts:
    return text if field.kind == "STRING" else long_text


def _map(field: SchemaField, wanted: frozenset[str]) -> Read:
    if len(field.fields) != 2:
        raise Unparsable("a schema with a map that is not of keys and values")
    if field.name in wanted and all(each.kind in STRINGS and _is_once(each) for each in field.fields):
        key_of, value_of = map(_texts, field.fields)

        def read(data: bytes, at: int, into: dict[str, Any]) -> int:
            count = _count(data, at)
            at += INT.size
            entries: dict[str, str] = {}
            for _ in range(count):
                key, at = key_of(data, at)
                entries[key], at = value_of(data, at)
            into[field.name] = entries
            return at

        return read
    one = tuple(_repeated(each, frozenset()) for each in field.fields)

    def skip(data: bytes, at: int, _: dict[str, Any]) -> int:
        count = _count(data, at)
        at += INT.size
        passed: dict[str, Any] = {}
        for _number in range(count):
            for step in one:
                at = step(data, at, passed)
        return at

    return skip


def _is_once(field: SchemaField) -> bool:
    return field.repetition == "EXACTLY_ONE"


def _union(field: SchemaField, wanted: frozenset[str]) -> Read:
    branches = {each.name.encode(): _repeated(each, wanted) for each in field.fields}

    def read(data: bytes, at: int, into: dict[str, Any]) -> int:
        end = at + 2 + (data[at] << 8 | data[at + 1])
        if end > len(data):
            raise NeedsMore
        branch = branches.get(data[at + 2 : end])
        if branch is None:
            raise Unparsable("a record of a kind that its schema does not have")
        return branch(data, end, into)

    return read
