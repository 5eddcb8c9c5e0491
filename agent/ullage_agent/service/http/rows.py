"""Answers of many rows, encoded one row after the other.

An encoder works in one go, and no other thread runs meanwhile; as objects all rows take twenty times what they do as
bytes. So what may be long is made and encoded by row, and what may take seconds in steps, each of which is a turn.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

STEP_BYTES: Final = 1 << 20
"""JSON of one step: some 50 ms of work where attributes are short, and as many rows."""


class EncodedRows:
    """Rows as JSON, and the uuids that they are about."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.encoded: list[Any] = []

    @classmethod
    def of(cls, rows: Iterable[object]) -> "EncodedRows":
        """All of them."""
        found, left = cls(), iter(rows)
        while found.take(left):
            pass
        return found

    def take(self, rows: Iterator[object]) -> bool:
        """Make and encode the next ones, one at least; whether there may be more."""
        size = 0
        for row in rows:
            encoded = msgspec.json.encode(row)
            self.encoded.append(msgspec.Raw(encoded))
            if (id := getattr(row, "id", None)) is not None:
                self.ids.append(id)
            if (size := size + len(encoded)) >= STEP_BYTES:
                return True
        return False


def with_encoded_rows(found: object) -> object:
    """The same document, to be encoded as a whole: its lists of documents are encoded already, row by row."""
    if not isinstance(found, msgspec.Struct):
        return found
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    rows = {name: EncodedRows.of(value).encoded for name, value in fields.items() if _are_documents(value)}
    return msgspec.structs.replace(found, **rows) if rows else found


def _are_documents(value: object) -> bool:
    return isinstance(value, list) and len(value) > 1 and isinstance(value[0], msgspec.Struct)
