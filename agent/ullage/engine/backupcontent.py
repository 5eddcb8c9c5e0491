"""Copies of content files for a backup, verified on the way, and what becomes of those that can't be read.

    claims in use read back | the file is copied
    one does not            | what the last backup has of the file, what can be read now over it, each claim proved

Bytes that a claim names never change, so a copy that the last backup made is as good as the file, wherever its checksum
says so. It is in the new backup too: what is damaged now may be whole nowhere else.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from crc32c import crc32c

from ullage.engine.content.availability import Damage
from ullage.engine.content.reader import ContentReader
from ullage.engine.files import COPY_BYTES, Files
from ullage.engine.model import ContentClaim
from ullage.engine.oserrors import is_about_file
from ullage.engine.reclaim.liveness import LivenessScanner, Survivor
from ullage.errors import ContentCorrupt, ContentMissing

HOLE_BYTES = 64 << 10
"""Zeros of so many bytes are left out of a copy: sixteen blocks, so that writes stay large."""

ZEROS = bytes(HOLE_BYTES)


class Gathered(NamedTuple):
    """A copy that was put together: whether there is anything in it, and the claims that it lacks or owes to the last
    backup, by resource claim and offset, with what is wrong with them.
    """

    is_written: bool
    lost: dict[tuple[int, int], Damage]
    saved: dict[tuple[int, int], Damage]


class ContentGatherer:
    """Finds what does not read back in a content file, and puts a copy together from what does."""

    def __init__(self, files: Files, reader: ContentReader, scanner: LivenessScanner) -> None:
        self._files = files
        self._reader = reader
        self._scanner = scanner

    def damaged(self, index: int) -> dict[ContentClaim, str]:
        """The claims in use in a file that can't be read, each with the reason; reads all of them."""
        claims = [claim for _, claim in self._survivors(index)]
        found = [claim for _, claim in self._reader.proved(claims) if claim is not None]
        reasons = ((claim, self._reason(claim)) for claim in found)
        return {claim: reason for claim, reason in reasons if reason is not None}

    def gather(
        self,
        files: Files,
        index: int,
        source: str,
        before: str | None,
        target: str,
        length: int,
        damaged: dict[ContentClaim, str],
    ) -> Gathered:
        """Write a synced file of `length` bytes to `target`: of the copy `before`, and of the source what it lacks or
        has better. Nothing is written where neither gives anything.
        """
        survivors = self._survivors(index)
        if files.exists(target):  # of a backup that was cut short
            files.unlink(target)
        is_written = False
        with closing(files.create(target)) as writing:
            reached = 0
            for path in (before, source):
                for offset, data in _pieces(files, path, reached, length):
                    writing.write(data, offset)
                    reached, is_written = offset + len(data), True
            for offset, claim in survivors:
                if claim not in damaged:
                    at = offset
                    for piece in self._reader.stream(claim, 0, claim.length):
                        writing.write(piece, at)
                        at, is_written = at + len(piece), True
            writing.truncate(length)
            writing.sync()
        if not is_written:
            files.unlink(target)
        lost: dict[tuple[int, int], Damage] = {}
        saved: dict[tuple[int, int], Damage] = {}
        for offset, claim in survivors:
            if claim in damaged:
                into = saved if is_written and _is_proved(files, target, offset, claim) else lost
                into[claim.resource, claim.offset] = Damage(index, source, damaged[claim])
        return Gathered(is_written, lost, saved)

    def _survivors(self, index: int) -> tuple[Survivor, ...]:
        liveness = self._scanner.examine_if_known(index)
        return () if liveness is None else liveness.survivors

    def _reason(self, claim: ContentClaim) -> str | None:
        """Why a claim can't be read; None if it can after all."""
        try:
            self._reader.verify(claim)
        except (ContentMissing, ContentCorrupt) as error:
            return str(error)
        return None


def _is_proved(files: Files, path: str, offset: int, claim: ContentClaim) -> bool:
    crc = reached = 0
    for at, data in _pieces(files, path, offset, offset + claim.length):
        crc, reached = crc32c(data, crc), at + len(data) - offset
    return reached == claim.length and crc == claim.crc


def _pieces(files: Files, path: str | None, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What can be read of a range from its beginning on, with its place."""
    if path is None:
        return
    try:
        with closing(files.open(path)) as file:
            while start < end:
                data = file.read(min(COPY_BYTES, end - start), start)
                if not data:
                    return
                yield start, data
                start += len(data)
    except OSError as error:
        if not is_about_file(error):
            raise


def copy_file(files: Files, source: str, target: str, length: int) -> int:
    """Copy the first `length` bytes to a new, synced file; returns their CRC-32C. A leftover target is replaced.

    What is zeros stays a hole, so that the copy of a punched file takes no more blocks than the file.
    """
    if files.exists(target):
        files.unlink(target)
    try:
        reading = files.open(source)
    except FileNotFoundError as error:
        raise ContentMissing(f"{source} is missing: `ullage check` tells what else is") from error
    with closing(reading), closing(files.create(target)) as writing:
        offset = crc = 0
        while offset < length:
            try:
                data = reading.read(min(COPY_BYTES, length - offset), offset)
            except OSError as error:
                if not is_about_file(error):
                    raise
                raise ContentMissing(f"{source} can't be read at {offset}: {error.strerror}") from error
            if not data:
                raise ContentMissing(f"{source} ends at {offset}, {length} bytes of it are in use")
            step = HOLE_BYTES if ZEROS in data else len(data)
            for begin in range(0, len(data), step):
                piece = data[begin : begin + step]
                if piece != ZEROS:
                    writing.write(piece, offset + begin)
            crc = crc32c(data, crc)
            offset += len(data)
        writing.truncate(length)  # where it ends with zeros, nothing was written there
        writing.sync()
    return crc


def crc_of(files: Files, path: str, length: int) -> int:
    """The CRC-32C of the first `length` bytes of a file."""
    with closing(files.open(path)) as file:
        crc = 0
        for offset in range(0, length, COPY_BYTES):
            crc = crc32c(file.read(min(COPY_BYTES, length - offset), offset), crc)
        return crc
