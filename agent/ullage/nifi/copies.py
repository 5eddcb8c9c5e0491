"""What files lose in a reclaim, kept elsewhere until it is sure that nobody wants it back.

Two files in a folder of their own: `contents` has the bytes, span after span in the order of the steps, then the files
of the FlowFile repository whose place a rewrite takes; and `sums`, written once these are durable, the CRC-32 of each.
"""

import os
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from ullage.nifi.changes import Changes
from ullage.nifi.intent import NAME, ReclaimIntent
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import PIECE_BYTES, read_span
from ullage.nifi.reclaimplan import FileStep
from ullage.nifi.spans import Span, total

CONTENTS: Final = "contents"
SUMS: Final = "sums"


def folder_of(intent: ReclaimIntent) -> str:
    """Where the copies of this run lie."""
    return os.path.join(intent.copies, f"{NAME}-{intent.id}")


def keep(intent: ReclaimIntent, flowfiles: str, changes: Changes) -> None:
    """Copy all that the steps take away; durable when this returns. OSError: not all could be kept."""
    folder = folder_of(intent)
    changes.keep_inside([intent.copies])
    changes.make_folder(folder)
    changes.sync_folder(intent.copies)
    sums: list[int] = []
    changes.write_new(os.path.join(folder, CONTENTS), _contents(intent, flowfiles, sums))
    changes.write_new(os.path.join(folder, SUMS), [msgspec.json.encode(sums)])
    changes.sync_folder(folder)


def drop(intent: ReclaimIntent, changes: Changes) -> None:
    """Remove what was copied: nothing was changed yet."""
    folder = folder_of(intent)
    changes.keep_inside([intent.copies])  # an intent that was planted may name any
    for name in (CONTENTS, SUMS):
        if os.path.lexists(os.path.join(folder, name)):
            changes.unlink(os.path.join(folder, name))
    changes.remove_folder(folder)


class KeptCopies:
    """The copies of a run, read back."""

    def __init__(self, intent: ReclaimIntent) -> None:
        """OSError, msgspec.DecodeError: they are not there, or damaged."""
        folder = folder_of(intent)
        with open(open_regular(os.path.join(folder, SUMS), intent.copies), "rb") as file:
            sums = msgspec.json.decode(file.read(), type=list[int])
        contents = open_regular(os.path.join(folder, CONTENTS), intent.copies)
        self._file = open(contents, "rb")  # noqa: SIM115 - closed by `close`
        self._places: dict[str, tuple[int, list[int]]] = {}
        at = number = 0
        for step in intent.steps:
            count = len(step.gone)
            self._places[step.file] = (at, sums[number : number + count])
            at, number = at + total(step.gone), number + count
        self._replaced: dict[str, tuple[int, int, int]] = {}
        for (name, size, _), expected in zip(intent.replaced, sums[number:], strict=False):
            self._replaced[name] = (at, size, expected)
            at += size

    def close(self) -> None:
        self._file.close()

    def is_whole(self, step: FileStep) -> bool:
        """Whether what this file lost is there as it was."""
        at, sums = self._places[step.file]
        for (begin, end), expected in zip(step.gone, sums, strict=False):
            found = 0
            for piece in self._pieces(at, end - begin):
                found = zlib.crc32(piece, found)
            if found != expected:
                return False
            at += end - begin
        return len(sums) == len(step.gone)

    def has_whole(self, name: str) -> bool:
        """The same of a file of the FlowFile repository."""
        at, size, expected = self._replaced.get(name, (0, 0, 1))
        found = 0
        for piece in self._pieces(at, size):
            found = zlib.crc32(piece, found)
        return found == expected

    def replaced(self, name: str) -> Iterator[bytes]:
        """All of it."""
        at, size, _ = self._replaced[name]
        return self._pieces(at, size)

    def pieces(self, step: FileStep) -> Iterator[tuple[int, bytes]]:
        """What it lost, with where that was."""
        at, _ = self._places[step.file]
        for begin, end in step.gone:
            place = begin
            for piece in self._pieces(at, end - begin):
                yield place, piece
                place += len(piece)
            at += end - begin

    def _pieces(self, at: int, count: int) -> Iterator[bytes]:
        while count:
            piece = os.pread(self._file.fileno(), min(PIECE_BYTES, count), at)
            if not piece:
                return
            yield piece
            at, count = at + len(piece), count - len(piece)


def _contents(intent: ReclaimIntent, flowfiles: str, sums: list[int]) -> Iterator[bytes]:
    for step in intent.steps:
        yield from _spans(intent.path_of(step), intent.root_of(step.file), step.gone, sums)
    for name, size, _ in intent.replaced:
        yield from _spans(os.path.join(flowfiles, name), flowfiles, [(0, size)], sums)


def _spans(path: str, root: str, spans: list[Span], sums: list[int]) -> Iterator[bytes]:
    with open(open_regular(path, root), "rb") as file:
        for begin, end in spans:
            found = 0
            for piece in read_span(file.fileno(), begin, end, path):
                found = zlib.crc32(piece, found)
                yield piece
            sums.append(found)
