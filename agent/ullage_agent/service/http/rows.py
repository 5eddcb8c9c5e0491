"""Answers of many rows, made and encoded one row after the other.

An encoder works in one go, and no other thread runs meanwhile; as objects all rows take twenty times what they do as
bytes. So there is room for an answer before it is made, it is made by row, and what may take seconds in steps, each of
which is a turn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from ullage.embedded.rows import LazyRows

ANSWER_TIMES: Final = 2
"""What JSON takes while it becomes an answer, as a multiple of itself: its rows, and all of them together."""

Document = TypeVar("Document")


class RowsAnswer(NamedTuple):
    """One that is not made yet: its rows, and the document that has them."""

    rows: LazyRows[Any]
    wrap: Callable[[list[Any]], object]

    @property
    def room_bytes(self) -> int:
        """What making it takes."""
        return ANSWER_TIMES * self.rows.answer_bytes


def as_they_are(rows: Document) -> Document:
    """For an answer that is nothing but its rows."""
    return rows


def the_only_one(rows: Sequence[Any]) -> object:
    """For an answer that is one row."""
    (row,) = rows
    return row


class EncodedRows:
    """Rows as JSON, and the uuids that they are about."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.encoded: list[Any] = []

    def steps(self, rows: Iterable[object]) -> Iterator[None]:
        """Make and encode one after the other."""
        for row in rows:
            self.encoded.append(msgspec.Raw(msgspec.json.encode(row)))
            if (id := getattr(row, "id", None)) is not None:
                self.ids.append(id)
            yield
