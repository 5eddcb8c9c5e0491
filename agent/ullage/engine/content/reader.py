"""Reading content: ranges and streams of any size in bounded memory, every byte verified before it is handed out."""

from collections.abc import Callable, Iterator, Sequence

from crc32c import crc32c

from ullage.engine.byteranges import require_range
from ullage.engine.content.availability import Availability, Damage
from ullage.engine.content.checksum import Hasher, block_crc
from ullage.engine.content.protocol import ContentStore
from ullage.engine.files import File
from ullage.engine.forgotten import Forgotten, place
from ullage.engine.ledger.blockruns import BlockRuns
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import ClaimLocation, locate
from ullage.engine.model import BLOCK_BYTES, Content, ContentClaim, FlowFileRecord
from ullage.engine.oserrors import is_about_file
from ullage.errors import ContentCorrupt, ContentMissing, ContentReclaimed, ForkedRepository, VolumeAway
from ullage.streams import ContentStream

WINDOW_BLOCKS = 4
"""Blocks read at a time: 1 MiB of memory a stream."""


class ContentReader:
    """Reads claims by the address they were born with, wherever rewrites have moved their bytes."""

    def __init__(
        self, store: ContentStore, ledger: Ledger, blocks: BlockRuns, availability: Availability, forgotten: Forgotten
    ) -> None:
        """What proves damaged is noted in `availability`, which streams were never closed in `forgotten`."""
        self._store = store
        self._ledger = ledger
        self._blocks = blocks
        self.availability = availability
        self._forgotten = forgotten

    def read(self, claim: ContentClaim, start: int, size: int, crcs: bytes | None = None) -> bytes:
        """Bytes [start, start + size) of a base claim. `crcs` are its block CRCs, where they are known already.

        ContentMissing if the file is absent or short, or the claim has no such bytes; ContentCorrupt if a checksum
        does not match; ContentReclaimed if the bytes were given back: never zeros, never fewer bytes than asked for.
        """
        if not 0 <= start <= start + size <= claim.length:
            raise ContentMissing(
                f"range {start}+{size} lies outside the claim of {claim.length} bytes at offset {claim.offset} of "
                f"resource claim {claim.resource}"
            )
        if size == 0:
            return b""
        return self._resolved(claim, lambda place: self._read_at(place, claim, start, size, crcs))

    def read_many(self, claims: Sequence[ContentClaim]) -> list[bytes | memoryview]:
        """Whole claims, in order, each verified; small ones side by side are read together, and are views of what was
        read. Raises as `read` does.
        """
        contents: list[bytes | memoryview] = []
        for run in _runs(claims):
            found = self._read_run(run) if len(run) > 1 else None
            # One by one where it did not work: that follows what moves meanwhile, and names what is wrong.
            contents += found if found is not None else [self.read(claim, 0, claim.length) for claim in run]
        return contents

    def proved(self, claims: Sequence[ContentClaim]) -> Iterator[tuple[int, ContentClaim | None]]:
        """Reads whole claims for the sake of their checksums, small ones side by side together; yields after each read
        how many bytes it was, and which claim does not read back. One that was given back meanwhile is passed over.
        """
        for run in _runs(claims):
            if len(run) > 1 and self._read_run(run) is not None:
                yield run[-1].end - run[0].offset, None
                continue
            for claim in run:
                try:
                    for piece in self.stream(claim, 0, claim.length):
                        yield len(piece), None
                except (ContentMissing, ContentCorrupt):
                    yield 0, claim
                except ContentReclaimed:
                    continue  # dead since it was listed, and taken away by right

    def stream(
        self,
        claim: ContentClaim,
        start: int,
        size: int,
        crcs: bytes | None = None,
        blocks: int = WINDOW_BLOCKS,
        record: FlowFileRecord | None = None,
    ) -> Iterator[bytes]:
        """The same range in pieces of up to `blocks` blocks of 256 KiB. The checksums are taken now: later a claim may
        only be pinned. An error names the `record` whose content it is.
        """
        return self._pieces(claim, start, size, crcs or self.known_blocks(claim), blocks, record)

    def opened(
        self,
        content: Content | FlowFileRecord,
        start: int,
        size: int | None,
        pin: Callable[[ContentClaim], None],
        blocks: int = WINDOW_BLOCKS,
    ) -> ContentStream:
        """A range of a content, to its end where no size is said, as a stream. Its claim stays pinned by `pin` until
        the stream is closed. RangeNotSatisfiable for one beyond its end.
        """
        size = content.size - start if size is None else size
        require_range(start, size, content.size)
        claim = content.claim
        if claim is None or size == 0:
            return ContentStream(iter(()), 0, lambda: None)
        pin(claim)
        record = content if isinstance(content, FlowFileRecord) else None
        pieces = self.stream(claim, content.start + start, size, None, blocks, record)
        ledger, forgotten, begun = self._ledger, self._forgotten, place(2)

        def release() -> None:
            try:
                ledger.unpin([claim])
            except ForkedRepository:  # the pin is the parent's
                return

        return ContentStream(
            pieces, size, release, lambda stream: forgotten.note("a content stream", begun, stream.close)
        )

    def _pieces(
        self,
        claim: ContentClaim,
        start: int,
        size: int,
        crcs: bytes | None,
        blocks: int,
        record: FlowFileRecord | None,
    ) -> Iterator[bytes]:
        try:
            if crcs is None and claim.length > BLOCK_BYTES:
                # Once for the whole stream: each window would work them out again, by a pass over the whole claim.
                crcs = self._resolved(claim, lambda place: self._all_blocks(place, claim))
            end = start + size
            while start < end:
                window_end = (start // BLOCK_BYTES + blocks) * BLOCK_BYTES
                count = min(window_end, end) - start
                yield self.read(claim, start, count, crcs)
                start += count
        except (ContentMissing, ContentCorrupt) as error:
            if record is None:
                raise
            raise type(error)(f"{self.described(record)}: {error}") from error

    def described(self, record: FlowFileRecord) -> str:
        """Which FlowFile or handle it is, for a message: its uuid, filename and queue."""
        filename = record.attribute_map()["filename"]
        name = "" if filename == record.id else f" ({filename!r})"
        queue = self._ledger.queue_name(record.queue)
        return f"FlowFile {record.id}{name} of queue {queue}" if queue else f"handle {record.id}{name}"

    def _read_run(self, run: Sequence[ContentClaim]) -> list[memoryview] | None:
        """Neighbours with one call; None if a rewrite has parted them, or any of them is not as it should be."""
        # Both ends suffice: a rewrite keeps the order, so that what lies between two that are as far apart as they were
        # born is where it was. The checksums say whether it was true.
        count = run[-1].end - run[0].offset
        try:
            first, last = locate(self._ledger, run[0]), locate(self._ledger, run[-1])
            if first.file.index != last.file.index or last.offset + run[-1].length - first.offset != count:
                return None
            with self._store.reading(first.file) as file:
                data = file.read(count, first.offset)
        except (ContentMissing, ContentReclaimed, OSError):
            # Which of them it is, and whether by right, is told one by one. A start asks for what a swap file may hold,
            # and there an end of a run can be dead and given back: raised here it stopped every later start.
            #
            #     queue swapped | head removed | compaction punches | killed | start reads the run, neighbours of live
            return None
        begin = run[0].offset
        view = memoryview(data)
        contents = [view[(at := claim.offset - begin) : at + claim.length] for claim in run]
        if len(data) != count or list(map(crc32c, contents)) != [claim.crc for claim in run]:
            return None
        return contents

    def known_blocks(self, claim: ContentClaim) -> bytes | None:
        """The block CRCs of a large claim, as far as somebody has written them down. It may read the disk."""
        return self._blocks.find(claim) if claim.length > BLOCK_BYTES else None

    def verified_blocks(self, claim: ContentClaim) -> bytes | None:
        """Read all of a claim and return its block CRCs, None for one of a single block. Raises as `read` does."""
        if claim.length <= BLOCK_BYTES:
            self.read(claim, 0, claim.length)
            return None
        crcs = self._resolved(claim, lambda place: self._all_blocks(place, claim))
        self.verify(claim, crcs)
        return crcs

    def verify(self, claim: ContentClaim, crcs: bytes | None = None) -> None:
        """Read all of a claim for the sake of its checksums."""
        for _ in self.stream(claim, 0, claim.length, crcs):
            continue

    def _resolved(self, claim: ContentClaim, read: Callable[[ClaimLocation], bytes]) -> bytes:
        """Read where the claim lies now; again where a rewrite moved it, and unlinked its file, meanwhile.

        Who reads without a pin or a lease may be overtaken. What was cut is missing then, and what was punched is
        zeros that match no checksum: neither is damage, and looking the address up once more says what it is.

            located | dies, intent, punch | read: zeros | ContentReclaimed
        """
        while True:
            place = locate(self._ledger, claim)
            try:
                return self._read_there(place, read)
            except (ContentMissing, ContentCorrupt):
                now = locate(self._ledger, claim)
                if (now.file.index, now.offset) == (place.file.index, place.offset):
                    return self._again(claim, place, read)

    def _again(self, claim: ContentClaim, place: ClaimLocation, read: Callable[[ClaimLocation], bytes]) -> bytes:
        """What did not read back, read once more from the disk itself; what fails again is damaged, and noted so.

        A page in memory can rot as a disk can: what the disk holds is what the next start will find.
        """

        def read_disk(place: ClaimLocation) -> bytes:
            with self._store.reading(place.file) as file:
                file.drop_cache(place.offset, claim.length)
            return read(place)

        try:
            return self._read_there(place, read_disk)
        except (ContentMissing, ContentCorrupt) as error:
            self._require_there(place, error)
            damage = Damage(place.file.index, self._path(place), str(error))
            if self._store.length_of(place.file) is None:
                self.availability.note_file(damage)
            else:
                self.availability.note(claim, damage)
            raise

    def _read_there(self, place: ClaimLocation, read: Callable[[ClaimLocation], bytes]) -> bytes:
        """What the system refuses to read of a file is as good as damaged: a bad sector ends no queue's other reads."""
        try:
            return read(place)
        except OSError as error:
            self._require_there(place, error)
            if not is_about_file(error):
                raise
            raise ContentCorrupt(
                f"resource claim {place.file.index} ({self._path(place)}) can't be read: {error.strerror}"
            ) from error

    def _require_there(self, place: ClaimLocation, error: Exception) -> None:
        """VolumeAway if what a read has met says nothing about the content, but that its volume is not there."""
        if not self._store.is_there(place.file):
            reason = self._store.container_of(place.file).condition.reason
            raise VolumeAway(
                f"resource claim {place.file.index} can't be read until its volume is back: {reason}"
            ) from error

    def _read_at(self, place: ClaimLocation, claim: ContentClaim, start: int, size: int, crcs: bytes | None) -> bytes:
        with self._store.reading(place.file) as file:
            # A small claim has one checksum, over all of it: a part of it cannot be verified alone.
            if claim.length <= BLOCK_BYTES:
                data = self._read_exactly(file, place, 0, claim.length)
                self._verify(data, claim.crc, place, 0)
                return data if size == claim.length else data[start : start + size]
            if crcs is None:
                crcs = self._blocks_of(file, place, claim)
            try:
                return self._read_blocks(file, place, claim, start, size, crcs)
            except ContentCorrupt as error:
                # The claim's own CRC decides, which stands in its records: a row of block checksums may be of another
                # history of the volume.
                try:
                    worked_out = self._worked_out(file, place, claim)
                except ContentCorrupt:
                    raise error from None  # it names the block
                return self._read_blocks(file, place, claim, start, size, worked_out)

    def _all_blocks(self, place: ClaimLocation, claim: ContentClaim) -> bytes:
        with self._store.reading(place.file) as file:
            return self._blocks_of(file, place, claim)

    def _blocks_of(self, file: File, place: ClaimLocation, claim: ContentClaim) -> bytes:
        """The block CRCs. They go with the last claimant: for what is only pinned or archived since then, and where
        they can't be read, they are worked out again, by one pass over the whole claim that its own CRC proves right.
        """
        crcs = self.known_blocks(claim)
        return self._worked_out(file, place, claim) if crcs is None else crcs

    def _worked_out(self, file: File, place: ClaimLocation, claim: ContentClaim) -> bytes:
        hasher = Hasher()
        while hasher.length < claim.length:
            count = min(WINDOW_BLOCKS * BLOCK_BYTES, claim.length - hasher.length)
            hasher.update(self._read_exactly(file, place, hasher.length, count))
        found = hasher.block_crcs()
        if hasher.crc != claim.crc or found is None:
            raise self._corrupt(place, 0, claim.length)
        self._blocks.learn(claim, found)
        return found

    def _read_blocks(
        self, file: File, place: ClaimLocation, claim: ContentClaim, start: int, size: int, crcs: bytes
    ) -> bytes:
        first = start // BLOCK_BYTES
        last = (start + size - 1) // BLOCK_BYTES
        begin = first * BLOCK_BYTES
        end = min((last + 1) * BLOCK_BYTES, claim.length)
        data = self._read_exactly(file, place, begin, end - begin)
        view = memoryview(data)
        for number in range(first, last + 1):
            at = number * BLOCK_BYTES - begin
            self._verify(view[at : at + BLOCK_BYTES], block_crc(crcs, number), place, begin + at)
        return data if size == len(data) else data[start - begin : start - begin + size]

    def _read_exactly(self, file: File, place: ClaimLocation, start: int, count: int) -> bytes:
        data = file.read(count, place.offset + start)
        # Never fewer bytes than asked for: an end that comes early looks like any end.
        if len(data) != count:
            raise ContentMissing(
                f"resource claim {place.file.index} ({self._path(place)}) ends inside the claim at offset "
                f"{place.offset}: {len(data)} of {count} bytes are there"
            )
        return data

    def _verify(self, data: bytes | memoryview, crc: int, place: ClaimLocation, start: int) -> None:
        if crc32c(data) != crc:
            raise self._corrupt(place, start, len(data))

    def _corrupt(self, place: ClaimLocation, start: int, count: int) -> ContentCorrupt:
        return ContentCorrupt(
            f"resource claim {place.file.index} ({self._path(place)}): {count} bytes at offset {place.offset + start} "
            "do not match their checksum"
        )

    def _path(self, place: ClaimLocation) -> str:
        return self._store.path_of(place.file)


def _runs(claims: Sequence[ContentClaim]) -> Iterator[Sequence[ContentClaim]]:
    """All claims, divided into those that one read may bring."""
    at = 0
    while at < len(claims):
        end = _end_of_run(claims, at)
        yield claims[at:end]
        at = end


def _end_of_run(claims: Sequence[ContentClaim], at: int) -> int:
    """The index after the last small claim that lies right behind its predecessor."""
    resource, begin, behind = claims[at].resource, claims[at].offset, claims[at].end
    last = begin + WINDOW_BLOCKS * BLOCK_BYTES if claims[at].length <= BLOCK_BYTES else 0
    end = at + 1
    while end < len(claims):
        claim = claims[end]
        length = claim.length
        if claim.offset != behind or claim.resource != resource or length > BLOCK_BYTES or behind + length > last:
            break
        behind += length
        end += 1
    return end
