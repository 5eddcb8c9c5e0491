"""Where the objects of a share lie: what is asked of it, and what they are called.

A *share* is one node's part of a repository. Its objects are put once, under names that no other writer puts, or on a
condition that holds for one of two who race; whoever of them lost finds out by reading what lies there.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, Protocol

from ullage.errors import BucketUnavailable

EPOCH: Final = "epoch"
"""Who writes."""

MANIFEST: Final = "manifest"
"""Where a restoration begins."""

LOG: Final = "log"
CONTENT: Final = "content"
BASES: Final = "base"
PINS: Final = "pins"
PROBES: Final = "probe"

NUMBER_DIGITS: Final = 20
"""So that names stand in the order of their numbers."""

NONCE: Final = r"[0-9a-f]{16}"

_LOG = re.compile(rf"{LOG}/([0-9]{{{NUMBER_DIGITS}}})")
_PACK = re.compile(rf"{CONTENT}/([1-9][0-9]*)-({NONCE})-([1-9][0-9]*)")
_BASE = re.compile(rf"{BASES}/([0-9]{{{NUMBER_DIGITS}}})-([1-9][0-9]*)-({NONCE})-([1-9][0-9]*)")


class ShareWriter(NamedTuple):
    """Who wrote an object: of two that took one epoch at the same time, the nonce tells which."""

    epoch: int
    nonce: str


class SharedObject(NamedTuple):
    """A small object: its bytes, and what tells them from any others under its name."""

    data: bytes
    tag: str


class Taken(Exception):
    """The object is not as the condition of a put has it."""


class SharePlace(Protocol):
    """The prefix of one share. BucketRefused; BucketUnavailable, after which a put may or may not have been carried
    out, or may be yet.
    """

    name: str
    """What messages call it."""

    def get(self, key: str) -> SharedObject | None:
        """A small object, whole; None if there is none."""
        ...

    def put_new(self, key: str, data: bytes) -> None:
        """Put an object where there is none. Taken: there is one, which may be this one, of an earlier try."""
        ...

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        """Put an object in the place of the one with this tag. Taken: that is not there; what is may be this one."""
        ...

    def put_pieces(self, key: str, pieces: Iterable[bytes], length: int) -> None:
        """Put a large object under a name that nobody else puts, in parts, never whole in memory. `length` is about how
        long it will be.
        """
        ...

    def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes of an object; fewer only at its end, none if there is no such object."""
        ...

    def names(self) -> list[str]:
        """What lies directly below the prefix, directories included."""
        ...

    def lengths(self, directory: str) -> dict[str, int]:
        """The objects in a directory, by name."""
        ...

    def ages(self, directory: str) -> dict[str, float]:
        """How many seconds ago each object in a directory was put, by the server's clock, at about this moment."""
        ...

    def delete(self, keys: Collection[str]) -> None:
        """Those that are there."""


def epoch_gone(place: SharePlace) -> BucketUnavailable:
    """Nobody has taken the share from its writer: it was emptied. The writer goes on serving what it has."""
    return BucketUnavailable(
        f"{place.name}/{EPOCH} is gone: somebody has emptied the share, or a lifecycle rule of the bucket has. Nothing "
        "is shipped until this repository is opened again, which begins the share anew"
    )


def log_name(number: int) -> str:
    """What a log object is called."""
    return f"{LOG}/{number:0{NUMBER_DIGITS}d}"


def log_number(name: str) -> int | None:
    """Which log object it is; None of another name."""
    found = _LOG.fullmatch(name)
    return None if found is None else int(found[1])


def pack_name(writer: ShareWriter, number: int) -> str:
    """What a pack of content is called."""
    return f"{CONTENT}/{writer.epoch}-{writer.nonce}-{number}"


def pack_of(name: str) -> tuple[ShareWriter, int] | None:
    """Whose pack it is and which; None of another name."""
    found = _PACK.fullmatch(name)
    return None if found is None else (ShareWriter(int(found[1]), found[2]), int(found[3]))


class BaseName(NamedTuple):
    """What the name of a base says: as of which transaction it is, whose, and which of its writer's."""

    transaction: int
    writer: ShareWriter
    number: int


def base_name(transaction: int, writer: ShareWriter, number: int) -> str:
    """What a base is called: by its writer too, for a fenced one may be about to put another as of the same number; and
    by a number, for one whose put may come late is put anew under another.
    """
    return f"{BASES}/{transaction:0{NUMBER_DIGITS}d}-{writer.epoch}-{writer.nonce}-{number}"


def base_of(name: str) -> BaseName | None:
    """What a name says; None of another name."""
    found = _BASE.fullmatch(name)
    return None if found is None else BaseName(int(found[1]), ShareWriter(int(found[2]), found[3]), int(found[4]))
