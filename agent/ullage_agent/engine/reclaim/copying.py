"""Copying survivors to an output: read what lives, verify it, write it in large pieces, leave no trace in the cache.

Survivors of many small claims are written together: a window is as much as is read, verified or written at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from ullage_agent.engine.content.store import WritableClaim
from ullage_agent.engine.content.writer import ALIGNMENT
from ullage_agent.engine.errors import ContentCorrupt, ContentMissing
from ullage_agent.engine.files import File
from ullage_agent.engine.model import ResourceClaim
from ullage_agent.engine.reclaim.anatomy import Anatomy, Survivor
from ullage_agent.engine.reclaim.pacing import Ticket, TokenBucket
from ullage_agent.engine.reclaim.plan import Step
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.runs import FS_BLOCK_BYTES, Move, Run

WINDOW_BYTES = 1 << 20
"""Read, verified and written at a time; at most a fourth of an output."""

GAP_BYTES = FS_BLOCK_BYTES
"""Dead bytes read over rather than left out: the disk gives whole blocks anyway."""

HINT_GAP_BYTES = 32 << 10
"""Dead bytes over which the kernel may read ahead: a hint costs as much as reading so many."""

AHEAD_BYTES = 8 << 20
"""The kernel is asked to read this far ahead, and to write back this often."""


class Revoked(Exception):
    """The ticket was taken back in the middle of an output: the copy is given up."""


@dataclass(slots=True)
class Source:
    """One file of a rewrite: as it was when its survivors were listed, and where they went."""

    step: Step
    claim: ResourceClaim
    anatomy: Anatomy
    moves: dict[int, list[Move]] = field(default_factory=dict)

    @property
    def indexes(self) -> set[int]:
        """The resource claims that nobody else may change meanwhile."""
        return {self.claim.index, *self.anatomy.births}

    def moved(self, survivor: Survivor, target: int) -> None:
        """Note where a survivor went; runs that stay together are one move."""
        claim = survivor.claim
        moves = self.moves.setdefault(claim.resource, [])
        last = moves[-1] if moves else None
        if last is not None and last.end == claim.offset and last.target + last.length == target:
            moves[-1] = Move(last.offset, last.length + claim.length, last.target)
        else:
            moves.append(Move(claim.offset, claim.length, target))


class OutputWriter:
    """Writes one output, as fast as the budget allows."""

    def __init__(
        self,
        output: WritableClaim,
        large_claim: int,
        window_bytes: int,
        ticket: Ticket,
        bucket: TokenBucket,
        report: Report,
    ) -> None:
        self.window_bytes = max(1, min(WINDOW_BYTES, window_bytes))
        self.report = report
        self._output = output
        self._large_claim = large_claim
        self._ticket = ticket
        self._bucket = bucket
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._hinted = 0

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return self._output.offset + self._pending_bytes

    def place_for(self, length: int) -> int:
        """The offset of a claim of so many bytes: a large one begins at a block, so that punching it frees all."""
        if length >= self._large_claim and self.offset % ALIGNMENT:
            self._put(bytes(-self.offset % ALIGNMENT))
        return self.offset

    def write(self, piece: bytes | memoryview) -> None:
        """Append. Revoked if the run is to stop at once."""
        self._put(piece)
        self.report.copied_bytes += len(piece)
        if self._pending_bytes >= self.window_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered, and wait until it is within the budget."""
        if self._ticket.is_revoked():
            raise Revoked
        output, pending, count = self._output, self._pending, self._pending_bytes
        if not count:
            return
        self._pending, self._pending_bytes = [], 0
        output.file.write_vector(pending, output.offset)
        output.end_at(output.offset + count)
        if output.offset - self._hinted >= AHEAD_BYTES:
            output.file.start_writeback(self._hinted, output.offset - self._hinted)
            self._hinted = output.offset
        self._bucket.take(count, self._ticket.is_revoked)

    def go_back(self, offset: int) -> None:
        """Forget what was written from here on: its source did not read back."""
        self.flush()
        self._output.end_at(offset)

    def _put(self, piece: bytes | memoryview) -> None:
        self._pending.append(piece)
        self._pending_bytes += len(piece)


def copy_source(source: Source, file: File, path: str, writer: OutputWriter) -> None:
    """All survivors of one file. ContentCorrupt or ContentMissing at the first that does not read back."""
    survivors = source.anatomy.survivors
    hints = _spans(survivors, HINT_GAP_BYTES, AHEAD_BYTES)
    hinted = 0
    for window in _windows(survivors, writer.window_bytes):
        first, last = window[0], window[-1]
        while hinted < last.offset + last.claim.length:
            span = next(hints, None)
            if span is None:
                break
            file.expect_reads(span.offset, span.length)
            hinted = span.end
        if first.claim.length > writer.window_bytes:
            _copy_large(source, first, file, path, writer)
        else:
            _copy_window(source, window, file, path, writer)
    file.drop_cache(0, 0)


def _copy_window(source: Source, window: Sequence[Survivor], file: File, path: str, writer: OutputWriter) -> None:
    begin, last = window[0].offset, window[-1]
    data = memoryview(_read(source, last.offset + last.claim.length - begin, begin, file, path, writer))
    for survivor in window:
        claim = survivor.claim
        piece = data[survivor.offset - begin : survivor.offset - begin + claim.length]
        if crc32c(piece) != claim.crc:
            raise _corrupt(source, survivor, path)
        source.moved(survivor, writer.place_for(claim.length))
        writer.write(piece)


def _copy_large(source: Source, survivor: Survivor, file: File, path: str, writer: OutputWriter) -> None:
    claim = survivor.claim
    source.moved(survivor, writer.place_for(claim.length))
    crc = done = 0
    while done < claim.length:
        data = _read(source, min(writer.window_bytes, claim.length - done), survivor.offset + done, file, path, writer)
        crc = crc32c(data, crc)
        done += len(data)
        writer.write(data)
    if crc != claim.crc:
        raise _corrupt(source, survivor, path)


def _read(source: Source, count: int, offset: int, file: File, path: str, writer: OutputWriter) -> bytes:
    data = file.read(count, offset)
    if len(data) != count:
        raise ContentMissing(
            f"resource claim {source.claim.index} ({path}) ends at {offset + len(data)}, inside content"
        )
    writer.report.read_bytes += count
    return data


def _corrupt(source: Source, survivor: Survivor, path: str) -> ContentCorrupt:
    return ContentCorrupt(
        f"resource claim {source.claim.index} ({path}): {survivor.claim.length} bytes at offset {survivor.offset} do "
        "not match their checksum"
    )


def _windows(survivors: Sequence[Survivor], window_bytes: int) -> Iterator[list[Survivor]]:
    """Survivors read together: neighbours, up to a window; a larger one alone."""
    window: list[Survivor] = []
    begin = end = 0
    for survivor in survivors:
        next_end = survivor.offset + survivor.claim.length
        if window and (survivor.offset - end > GAP_BYTES or next_end - begin > window_bytes):
            yield window
            window = []
        if not window:
            begin = survivor.offset
        window.append(survivor)
        end = next_end
    if window:
        yield window


def _spans(survivors: Sequence[Survivor], gap_bytes: int, bytes_max: int) -> Iterator[Run]:
    """Runs of the file that hold survivors with small gaps between them."""
    begin = end = -1
    for survivor in survivors:
        if begin >= 0 and (survivor.offset - end > gap_bytes or end - begin >= bytes_max):
            yield Run(begin, end - begin)
            begin = -1
        if begin < 0:
            begin = survivor.offset
        end = survivor.offset + survivor.claim.length
    if begin >= 0:
        yield Run(begin, end - begin)
