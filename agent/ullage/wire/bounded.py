"""JSON of clients becomes what it says, typed, and no more of it than its kind may have.

The decoder works in one go, and no other thread runs meanwhile; that a list is too long it says when it has made all of
it: four million texts of a letter took half a second. So bytes and values are counted before anything is decoded, and
of what may have very many values some are decoded at a time.
"""

import sys
from typing import Final, NamedTuple, TypeVar

import msgspec

from ullage.errors import InvalidArgument, RequestTooLarge, TransactionTooLarge
from ullage.wire.documents import ATTRIBUTES_MAX

T = TypeVar("T")

AT_A_TIME: Final = 5_000
"""Pairs of a long mapping that are decoded in one go: 2 ms."""


class JsonBounds(NamedTuple):
    """What one kind of document may have."""

    bytes_max: int

    values_max: int = sys.maxsize
    """At most so many commas, those in texts included: one stands between any two values."""

    def require(self, size: int, what: str) -> None:
        """RequestTooLarge for more bytes."""
        if size > self.bytes_max:
            raise RequestTooLarge(f"{what}: {size} bytes, at most {self.bytes_max} are allowed")

    def decode(self, raw: bytes, kind: type[T], what: str) -> T:
        """RequestTooLarge, or InvalidArgument, which says what is wrong."""
        self.require(len(raw), what)
        if len(raw) > self.values_max and (count := raw.count(b",")) > self.values_max:
            raise RequestTooLarge(f"{what}: {count} values, at most {self.values_max} are allowed")
        return decoded(raw, kind, what)


def decoded(raw: bytes, kind: type[T], what: str) -> T:
    """What is short, or has been counted. InvalidArgument says what is wrong with it."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what}: {error}") from error


def decode_counts(raw: bytes, kind: type[dict[str, T]], what: str) -> dict[str, T]:
    """A mapping of names without commas to numbers, AT_A_TIME after each other. InvalidArgument."""
    pairs = raw.strip()[1:-1].split(b",")
    if len(pairs) <= AT_A_TIME:
        return decoded(raw, kind, what)
    found: dict[str, T] = {}
    for at in range(0, len(pairs), AT_A_TIME):
        found |= decoded(b"{" + b",".join(pairs[at : at + AT_A_TIME]) + b"}", kind, what)
    return found


def decode_attributes(raw: bytes, what: str) -> dict[str, str]:
    """Those of one content. TransactionTooLarge for twice as many as there may be: of fewer whoever stores them says
    so, as on any other way in. InvalidArgument for what is none.
    """
    # A pair has four quotation marks that stand for themselves; those in texts have a stroke before them.
    if len(raw) > ATTRIBUTES_MAX and raw.count(b'"') - raw.count(b'\\"') > 2 * 4 * ATTRIBUTES_MAX:
        raise TransactionTooLarge(f"{what}: more than {2 * ATTRIBUTES_MAX} attributes, at most {ATTRIBUTES_MAX}")
    return decoded(raw, dict[str, str], what)
