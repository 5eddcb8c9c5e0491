"""Copying survivors to an output: read what lives, verify it, write it in large pieces.

Survivors are read to where they are verified and written from, one buffer for all: fresh memory for each would cost
more than the reading. Of small claims it is the steps that count, not the bytes, so neighbours are read in one call and
a batch is placed and written in one. The kernel writes back while the next batch is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from ullage.engine.byteranges import FS_BLOCK_BYTES
from ullage.engine.content.claims import WritableClaim
from ullage.engine.content.writer import ALIGNMENT
from ullage.engine.files import File
from ullage.engine.model import ContentClaim, ResourceClaim
from ullage.engine.reclaim.liveness import Liveness, Survivor
from ullage.engine.reclaim.pacing import RunTicket, TokenBucket
from ullage.engine.reclaim.plan import ReclamationStep
from ullage.engine.reclaim.report import ReclamationReport
from ullage.errors import ContentCorrupt, ContentMissing

BATCH_BYTES = 1 << 20
"""Read, verified and written at a time; at most a fourth of an output. A processor's cache holds it."""

GAP_BYTES = FS_BLOCK_BYTES
"""Dead bytes read over rather than left out: the disk gives whole blocks anyway."""

AHEAD_BATCHES = 8
"""The kernel is asked to read so many batches ahead of what is read."""

WRITEBACK_BYTES = 8 << 20
"""The kernel is asked to write back this often, so that the sync at the end finds little left to do."""

Batch = Sequence[Survivor]
"""What is verified and written together; neighbours in it are read in one call."""


class Revoked(Exception):
    """The ticket was taken back in the middle of an output: the copy is given up."""


@dataclass(slots=True)
class RewriteSource:
    """One file of a rewrite: as it was when its survivors were listed, and where they went.

    `moves` are offset, length and target of runs, by the resource claim that they are of.
    """

    step: ReclamationStep
    claim: ResourceClaim
    liveness: Liveness
    moves: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def indexes(self) -> set[int]:
        """The resource claims that nobody else may change meanwhile."""
        return {self.claim.index, *self.liveness.births}

    def moved(self, claims: Sequence[ContentClaim], target: int) -> None:
        """Note that these claims went to `target`, one behind the other; runs that stay together are one move."""
        moves: list[tuple[int, int, int]] = []
        resource = -1
        for claim in claims:
            if claim.resource != resource:
                resource = claim.resource
                moves = self.moves.setdefault(resource, [])
            offset, length, begin = moves[-1] if moves else (-1, 0, 0)
            if offset + length == claim.offset and begin + length == target:
                moves[-1] = (offset, length + claim.length, begin)
            else:
                moves.append((claim.offset, claim.length, target))
            target += claim.length


class OutputWriter:
    """Writes one output from one `buffer`, as fast as the budget allows.

    Up to `batch_bytes` are written at a time; claims of `alone_bytes` go alone, and those of `large_claim` begin at a
    block. `report` counts what was read and copied.
    """

    def __init__(
        self,
        output: WritableClaim,
        large_claim: int,
        batch_bytes: int,
        ticket: RunTicket,
        bucket: TokenBucket,
        report: ReclamationReport,
    ) -> None:
        self.batch_bytes = max(1, min(BATCH_BYTES, batch_bytes))
        self.large_claim = large_claim
        self.alone_bytes = min(self.batch_bytes + 1, large_claim)
        self.buffer = memoryview(bytearray(self.batch_bytes + ALIGNMENT))
        self.report = report
        self._output = output
        self._ticket = ticket
        self._bucket = bucket
        self._hinted = 0

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return self._output.offset

    def write(self, count: int) -> None:
        """Append the first bytes of `buffer`, and wait until that is within the budget. Revoked if the run is to stop
        at once.
        """
        if self._ticket.is_revoked():
            raise Revoked
        output = self._output
        output.file.write(self.buffer[:count], output.offset)
        output.end_at(output.offset + count)
        if output.offset - self._hinted >= WRITEBACK_BYTES:
            output.file.start_writeback(self._hinted, output.offset - self._hinted)
            self._hinted = output.offset
        self._bucket.take(count, self._ticket.is_revoked)

    def go_back(self, offset: int) -> None:
        """Forget what was written from here on: its source did not read back."""
        self._output.end_at(offset)


def copy_source(source: RewriteSource, file: File, path: str, writer: OutputWriter) -> None:
    """All survivors of one file. ContentCorrupt or ContentMissing at the first that does not read back."""
    batches = list(_batches(source.liveness.survivors, writer))
    hinted = 0
    for number, batch in enumerate(batches):
        if number >= hinted - AHEAD_BATCHES // 2:
            _expect_reads(batches[hinted : number + AHEAD_BATCHES], file)
            hinted = number + AHEAD_BATCHES
        if batch[0].claim.length >= writer.alone_bytes:
            _copy_large(source, batch[0], file, path, writer)
        else:
            _copy_batch(source, batch, file, path, writer)


def _expect_reads(batches: Sequence[Batch], file: File) -> None:
    """Have the kernel read ahead. Asking costs more than reading what it has, so the ends are tried first."""
    if not batches or (file.is_cached(batches[0][0].offset) and file.is_cached(batches[-1][-1].offset)):
        return
    for batch in batches:
        begin = end = batch[0].offset
        for offset, claim in batch:
            if offset - end > GAP_BYTES:
                file.expect_reads(begin, end - begin)
                begin = offset
            end = offset + claim.length
        file.expect_reads(begin, end - begin)


def _copy_batch(source: RewriteSource, batch: Batch, file: File, path: str, writer: OutputWriter) -> None:
    buffer = writer.buffer
    pieces: list[memoryview] = []
    reads: list[memoryview] = []
    filled = 0
    begin = end = batch[0].offset
    for offset, claim in batch:
        gap = offset - end
        if gap > GAP_BYTES:
            _read(source, reads, end - begin, begin, file, path, writer)
            reads.clear()
            begin = offset
        elif gap > 0:
            reads.append(memoryview(bytearray(gap)))
        length = claim.length
        piece = buffer[filled : filled + length]
        reads.append(piece)
        pieces.append(piece)
        end = offset + length
        filled += length
    _read(source, reads, end - begin, begin, file, path, writer)
    claims = [claim for _, claim in batch]
    for piece, claim in zip(pieces, claims, strict=True):
        if crc32c(piece) != claim.crc:
            raise _corrupt(source, claim, path)
    source.moved(claims, writer.offset)
    writer.report.copied_bytes += filled
    writer.write(filled)


def _copy_large(source: RewriteSource, survivor: Survivor, file: File, path: str, writer: OutputWriter) -> None:
    """A claim that is too large for a batch, or begins at a block, so that punching it frees all of it."""
    claim = survivor.claim
    lead = -writer.offset % ALIGNMENT if claim.length >= writer.large_claim else 0
    writer.buffer[:lead] = bytes(lead)
    source.moved([claim], writer.offset + lead)
    crc = done = 0
    while done < claim.length:
        count = min(writer.batch_bytes, claim.length - done)
        piece = writer.buffer[lead : lead + count]
        _read(source, [piece], count, survivor.offset + done, file, path, writer)
        crc = crc32c(piece, crc)
        done += count
        writer.report.copied_bytes += count
        writer.write(lead + count)
        lead = 0
    if crc != claim.crc:
        raise _corrupt(source, claim, path)


def _read(
    source: RewriteSource,
    pieces: Sequence[memoryview],
    count: int,
    offset: int,
    file: File,
    path: str,
    writer: OutputWriter,
) -> None:
    got = file.read_into(pieces, offset)
    if got != count:
        raise ContentMissing(f"resource claim {source.claim.index} ({path}) ends at {offset + got}, inside content")
    writer.report.read_bytes += count


def _corrupt(source: RewriteSource, claim: ContentClaim, path: str) -> ContentCorrupt:
    return ContentCorrupt(
        f"resource claim {source.claim.index} ({path}): the content claim of {claim.length} bytes at offset "
        f"{claim.offset} of resource claim {claim.resource} does not match its checksum"
    )


def _batches(survivors: Batch, writer: OutputWriter) -> Iterator[Batch]:
    """As many as a batch holds, with the gaps that are read over; a large claim is one alone."""
    first = end = filled = 0
    for number, (offset, claim) in enumerate(survivors):
        length = claim.length
        gap = offset - end if number > first else 0
        count = length + gap if gap <= GAP_BYTES else length
        if length >= writer.alone_bytes or filled + count > writer.batch_bytes:
            if number > first:
                yield survivors[first:number]
            first, filled = number, 0
            count = length
        if length >= writer.alone_bytes:
            yield survivors[number : number + 1]
            first = number + 1
        else:
            filled += count
        end = offset + length
    if first < len(survivors):
        yield survivors[first:]
