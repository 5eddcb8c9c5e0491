"""NiFi's records with other places for their contents: all other bytes stay as NiFi wrote them.

Of a record only the field `Content Claim` is written anew, and of a swap file also the counts of what it refers to.
"""

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ullage.nifi.fields import SchemaField, reader, text
from ullage.nifi.flowfiles import TEXTS, RecordFormat
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import PieceReader
from ullage.nifi.swapfile import read_form
from ullage.nifi.trouble import NotSurveyable

CLAIM: Final = "Content Claim"
COUNTS: Final = "Resource Claims"
LENGTH: Final = "Content Claim Length"
SIZE: Final = "FlowFile Size"
PARTS: Final = ("Container", "Section", "Identifier")
START, OFFSET = "Resource Claim Offset", "Content Claim Offset"
TOLERANT: Final = "Loss Tolerant"
KNOWN: Final = frozenset({*PARTS, START, OFFSET, LENGTH, TOLERANT, "Resource Claim"})
"""What a content's place is made of; a schema with more can't be written, for nobody knows what belongs there."""

NUMBERS: Final = {"LONG": struct.Struct(">q"), "INT": struct.Struct(">i"), "BOOLEAN": struct.Struct(">?")}
COUNT: Final = struct.Struct(">i")

UNWRITABLE: Final = "this NiFi states the places of contents in a way that can't be written here"


class ClaimPlace(NamedTuple):
    """Where a FlowFile's content lies: in which file, where what NiFi wrote there in one go begins, how long that is,
    and where the content begins in it.
    """

    file: str
    claim_start: int
    claim_size: int
    offset: int


Moved = Callable[[str, int, int, int], ClaimPlace | None]
"""Of a file, the beginning of a claim in it, and begin and size of a content: its new place; None: it stays."""


class Claims:
    """Reads and writes the places in the FlowFiles of one schema."""

    def __init__(self, fields: tuple[SchemaField, ...]) -> None:
        """NotSurveyable: this schema states places in an unknown way."""
        number = next((number for number, field in enumerate(fields) if field.name == CLAIM), -1)
        if number < 0 or fields[number].repetition != "ZERO_OR_ONE" or not _is_known(fields[number]):
            raise NotSurveyable(UNWRITABLE)
        self._field = fields[number]
        self._before = reader(fields[:number], frozenset())
        self._claim = reader((self._field,), TEXTS)

    def moved(self, record: bytes, at: int, moved: Moved) -> tuple[bytes, tuple[str, bool]]:
        """The record with the new place; `at` is where its fields begin. And the file it lies in now, with a flag that
        NiFi keeps with it; empty: in none.
        """
        values: dict[str, Any] = {}
        begin = self._before(record, at, values)
        end = self._claim(record, begin, values)
        if PARTS[2] not in values:
            return record, ("", False)
        file = "/".join(values[part] for part in PARTS)
        tolerant = bool(values[TOLERANT])
        place = moved(file, values[START], values[START] + values[OFFSET], values[SIZE])
        if place is None:
            return record, (file, tolerant)
        values |= zip(PARTS, place.file.split("/"), strict=True)
        values |= {START: place.claim_start, OFFSET: place.offset, LENGTH: place.claim_size}
        return record[:begin] + b"\1" + _written(self._field, values) + record[end:], (place.file, tolerant)


class Records:
    """The same of what a checkpoint has: records of several kinds, each of which says which it is."""

    def __init__(self, form: RecordFormat) -> None:
        """NotSurveyable: this schema states places in an unknown way."""
        if len(form.fields) != 1 or form.fields[0].kind != "UNION":
            raise NotSurveyable(UNWRITABLE)
        with_claims = [field for field in form.fields[0].fields if any(each.name == CLAIM for each in field.fields)]
        self._kinds = {field.name: Claims(field.fields) for field in with_claims}

    def moved(self, record: bytes, moved: Moved) -> bytes:
        kind, at = text(record, 1)
        return self._kinds[kind].moved(record, at, moved)[0]


def swap_file_pieces(path: str, moved: Moved, folder: str) -> Iterator[bytes]:
    """A swap file below the folder, with new places, under which NiFi counts what the swapped FlowFiles refer to.

    TornFile, Unparsable, OSError: it can't be read. NotSurveyable: it can't be written.
    """
    descriptor = open_regular(path, folder)
    try:
        pieces = PieceReader(descriptor, os.fstat(descriptor).st_size)
        head, counted, tail, fields, count = pieces.take(_swap_header)
        claims, skip = Claims(fields), reader(fields, frozenset())
        records: list[bytes] = []
        files: Counter[tuple[str, bool]] = Counter()

        def record(data: bytes, at: int) -> tuple[bytes, int]:
            end = skip(data, at, {})
            return data[at:end], end

        for _ in range(count):
            found, file = claims.moved(pieces.take(record), 0, moved)
            records.append(found)
            files[file] += 1
        del files[("", False)]
        yield head + _counts(counted, files) + tail
        yield from records
    finally:
        os.close(descriptor)


def utf(value: str) -> bytes:
    """As java.io.DataOutput.writeUTF writes it."""
    data = value.encode() if value.isascii() else _modified(value)
    data = data.replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(data)) + data


def _modified(value: str) -> bytes:
    units = value.encode("utf-16-be", "surrogatepass")
    pairs = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return b"".join(chr(unit).encode("utf-8", "surrogatepass") for unit in pairs)


def _is_known(field: SchemaField) -> bool:
    return all(
        each.name in KNOWN
        and each.repetition == "EXACTLY_ONE"
        and (each.kind in NUMBERS or each.kind == "STRING" or (each.kind == "COMPLEX" and _is_known(each)))
        for each in field.fields
    )


def _written(field: SchemaField, values: Mapping[str, Any]) -> bytes:
    """The value of a field; of one that has fields, all of theirs."""
    if field.kind == "COMPLEX":
        return b"".join(_written(each, values) for each in field.fields)
    if field.kind == "STRING":
        return utf(values[field.name])
    return NUMBERS[field.kind].pack(values[field.name])


def _swap_header(data: bytes, at: int) -> tuple[tuple[bytes, SchemaField, bytes, tuple[SchemaField, ...], int], int]:
    """What stands before the counts, their field, what stands behind them, the FlowFiles' fields and their number."""
    begin = at
    fields, at = read_form(data, at)
    summary = fields[0].fields
    number = next((number for number, field in enumerate(summary) if field.name == COUNTS), -1)
    if fields[0].repetition != "EXACTLY_ONE" or number < 1 or not _is_counts(summary[number]):
        raise NotSurveyable(UNWRITABLE)
    counts_at = reader(summary[:number], frozenset())(data, at, {})
    behind = reader((summary[number],), frozenset())(data, counts_at, {})
    end = reader(summary[number + 1 :], frozenset())(data, behind, {}) if summary[number + 1 :] else behind
    count = COUNT.unpack_from(data, end)[0]
    end += COUNT.size
    return (data[begin:counts_at], summary[number], data[behind:end], fields[1].fields, count), end


def _is_counts(field: SchemaField) -> bool:
    return (
        field.kind == "MAP"
        and field.repetition == "EXACTLY_ONE"
        and [each.kind for each in field.fields] == ["COMPLEX", "INT"]
        and all(each.repetition == "EXACTLY_ONE" for each in field.fields)
        and _is_known(field.fields[0])
    )


def _counts(field: SchemaField, files: Counter[tuple[str, bool]]) -> bytes:
    claim, number = field.fields
    entries = [
        _written(claim, {**dict(zip(PARTS, file.split("/"), strict=True)), TOLERANT: tolerant})
        + NUMBERS[number.kind].pack(count)
        for (file, tolerant), count in files.items()
    ]
    return COUNT.pack(len(entries)) + b"".join(entries)
