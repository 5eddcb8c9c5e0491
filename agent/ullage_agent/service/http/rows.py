"""Answers of many rows, made and encoded one row after the other, and sent as the pieces that this gives.

An encoder works in one go, and no other thread runs meanwhile; as objects all rows take twenty times what they do as
bytes. So there is room for an answer before it is made, and it is made in steps of less than a millisecond, in turns:

    row, row, row        each encoded by itself, joined to pieces of about PIECE_BYTES
    a row of megabytes   its attributes apart, and long texts of these bit by bit: a megabyte of control characters is
                         six of JSON, which took 25 ms

The pieces are never joined: 177 MiB in one go kept everybody else waiting for 200 ms, and were there twice.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from ullage.embedded.rows import LazyRows
from ullage_agent.service.limits import KIB, PIECE_BYTES

MARK: Final = b"\0"
"""Where something else belongs: JSON has no such byte, not even in a text."""

TEXT_CHARACTERS: Final = 32 * KIB
"""Of a text so many are encoded in one go, or of short ones together: a millisecond."""

Document = TypeVar("Document")


class Pieces:
    """What has been encoded of an answer, in order; whoever sends it takes it away."""

    def __init__(self) -> None:
        self.size = 0
        """Of all that was ever added."""

        self._ready: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def gather(self, parts: Iterator[bytes]) -> Iterator[None]:
        """Take one part after the other, to the last."""
        for part in parts:
            if self._begun_bytes + len(part) > PIECE_BYTES:
                self._end_piece()
            self._begun.append(part)
            self._begun_bytes += len(part)
            self.size += len(part)
            yield
        self._end_piece()

    def take(self) -> Iterator[tuple[bytes, bool]]:
        """The pieces, each with whether more follow; none of them is kept."""
        while self._ready:
            yield self._ready.popleft(), bool(self._ready)

    def _end_piece(self) -> None:
        if self._begun:
            self._ready.append(b"".join(self._begun))
        self._begun, self._begun_bytes = [], 0


class RowsAnswer(NamedTuple):
    """One that is not made yet: its rows, and the document that has them."""

    rows: LazyRows[Any]
    wrap: Callable[[list[Any]], object]

    @property
    def room_bytes(self) -> int:
        """What it takes from before it is made: as it is sent, and hardly more of the row that is being encoded."""
        return self.rows.answer_bytes

    def parts(self, ids: list[str]) -> Generator[bytes, None, None]:
        """All of it, in order; `ids` gets the uuids that the rows are about."""
        head, _, tail = msgspec.json.encode(self.wrap([msgspec.Raw(MARK)] if self.rows.count else [])).partition(MARK)
        yield head
        for number, (row, size) in enumerate(self.rows.sized()):
            if (id := getattr(row, "id", None)) is not None:
                ids.append(id)
            if number:
                yield b","
            yield from (msgspec.json.encode(row),) if size <= PIECE_BYTES else _parts_of(row)
        yield tail


def as_they_are(rows: Document) -> Document:
    """For an answer that is nothing but its rows."""
    return rows


def the_only_one(rows: Sequence[Any]) -> object:
    """For an answer that is one row."""
    (row,) = rows
    return row


def _parts_of(row: Any) -> Iterator[bytes]:
    """A large one: what it has beside its mappings is small."""
    found = {name: getattr(row, name) for name in row.__struct_fields__}
    mappings = {name: each for name, each in found.items() if isinstance(each, dict)}
    marked = msgspec.structs.replace(row, **dict.fromkeys(mappings, msgspec.Raw(MARK)))
    head, *rest = msgspec.json.encode(marked).split(MARK)
    yield head
    for mapping, following in zip(mappings.values(), rest, strict=True):
        yield from _parts_of_mapping(mapping)
        yield following


def _parts_of_mapping(mapping: dict[str, str]) -> Iterator[bytes]:
    """Short texts together, long ones by themselves."""
    yield b"{"
    comma, short, characters = b"", dict[str, str](), 0
    for name, text in mapping.items():
        is_long = len(text) > TEXT_CHARACTERS
        if short and (is_long or characters > TEXT_CHARACTERS):
            yield comma + msgspec.json.encode(short)[1:-1]
            comma, short, characters = b",", {}, 0
        if is_long:
            yield comma + msgspec.json.encode(name) + b':"'
            for at in range(0, len(text), TEXT_CHARACTERS):
                yield msgspec.json.encode(text[at : at + TEXT_CHARACTERS])[1:-1]
            yield b'"'
            comma = b","
        else:
            short[name] = text
            characters += len(name) + len(text)
    if short:
        yield comma + msgspec.json.encode(short)[1:-1]
    yield b"}"
