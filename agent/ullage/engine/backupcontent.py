"""Copies of content files for a backup, verified on the way, and what becomes of those that can't be read.

    claims in use read back | the file is copied
    one does not            | what the last backup has of the file, what can be read now over it, each claim proved

Bytes that a claim names never change, so a copy that the last backup made is as good as the file, wherever its checksum
says so. It is in the new backup too: what is damaged now may be whole nowhere else.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import NamedTuple

from crc32c import crc32c

from ullage.engine.backupplace import BackupPlace, Put
from ullage.engine.content.availability import Damage
from ullage.engine.content.reader import ContentReader
from ullage.engine.files import COPY_BYTES, Files
from ullage.engine.model import ContentClaim
from ullage.engine.oserrors import is_about_file
from ullage.engine.reclaim.liveness import LivenessScanner, Survivor
from ullage.errors import ContentCorrupt, ContentMissing


class Gathered(NamedTuple):
    """A copy that was put together: what was put, if there was anything to put, and the claims that it lacks or owes to
    the last backup, by resource claim and offset, with what is wrong with them.
    """

    put: Put | None
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
        place: BackupPlace,
        index: int,
        source: str,
        before: str | None,
        target: str,
        length: int,
        damaged: Mapping[ContentClaim, str],
    ) -> Gathered:
        """Put a file of `length` bytes at `target`: of the copy `before`, and of the source what it lacks or has
        better. Nothing is put where neither gives anything.
        """
        survivors = self._survivors(index)
        whole = [each for each in survivors if each.claim not in damaged]
        doubtful = [_Proof(each) for each in survivors if each.claim in damaged]
        base = self._base(place, source, before, length)
        first = next(base, None)
        put = None
        if first is not None or whole:
            layers = [_Layer(0, chain(() if first is None else (first,), base)), *map(self._layer, whole)]
            put = place.put(target, _windows(layers, length, doubtful), length)
        lost: dict[tuple[int, int], Damage] = {}
        saved: dict[tuple[int, int], Damage] = {}
        for proof in doubtful:
            claim = proof.claim
            into = saved if put is not None and proof.holds else lost
            into[claim.resource, claim.offset] = Damage(index, source, damaged[claim])
        return Gathered(put, lost, saved)

    def _layer(self, survivor: Survivor) -> "_Layer":
        return _Layer(survivor.offset, self._reader.stream(survivor.claim, 0, survivor.claim.length))

    def _base(self, place: BackupPlace, source: str, before: str | None, length: int) -> Iterator[bytes]:
        """What can be read of the copy before from its beginning on, and of the source what lies beyond that."""
        reached = 0
        if before is not None:
            for data in _readable(lambda offset, count: place.read(before, offset, count), 0, length):
                yield data
                reached += len(data)
        try:
            with closing(self._files.open(source)) as file:
                yield from _readable(lambda offset, count: file.read(count, offset), reached, length)
        except OSError as error:
            if not is_about_file(error):
                raise

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


class _Proof:
    """Whether the bytes of a claim are what it was written with, told while they pass."""

    def __init__(self, survivor: Survivor) -> None:
        self.offset, self.claim = survivor
        self._crc = 0

    @property
    def holds(self) -> bool:
        """Once the last of them has passed."""
        return self._crc == self.claim.crc

    def look(self, window: bytearray, start: int) -> None:
        """At the next bytes of the file, which begin at `start`."""
        begin, end = max(self.offset - start, 0), self.offset + self.claim.length - start
        if end > begin:
            self._crc = crc32c(memoryview(window)[begin:end], self._crc)


class _Layer:
    """Bytes that belong at an offset of the file, as they come."""

    def __init__(self, offset: int, pieces: Iterator[bytes]) -> None:
        self.offset = offset
        self._pieces = pieces
        self._rest = b""

    def fill(self, window: bytearray, start: int) -> bool:
        """Lay what of it belongs there over a window of the file; whether something is left for the next one."""
        end = start + len(window)
        while self.offset < end:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                return False
            at, part = self.offset - start, piece[: end - self.offset]
            window[at : at + len(part)] = part
            self.offset += len(part)
            self._rest = piece[len(part) :]
        return True


def _windows(layers: Sequence[_Layer], length: int, proofs: Sequence[_Proof]) -> Iterator[bytes]:
    """The layers one over the other, in the order of their offsets, with zeros where none has anything."""
    coming, here = deque(layers), list[_Layer]()
    for start in range(0, length, COPY_BYTES):
        window = bytearray(min(COPY_BYTES, length - start))
        while coming and coming[0].offset < start + len(window):
            here.append(coming.popleft())
        here = [layer for layer in here if layer.fill(window, start)]
        for proof in proofs:
            proof.look(window, start)
        yield bytes(window)


def _readable(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[bytes]:
    """What can be read of a range from its beginning on."""
    try:
        while start < end:
            data = read(start, min(COPY_BYTES, end - start))
            if not data:
                return
            yield data
            start += len(data)
    except OSError as error:
        if not is_about_file(error):
            raise
