"""Writing content for one session: small claims are gathered, large ones stream straight to their place.

    [1 KB][1 KB][1 KB] ... | padding | [large claim, from a 4 KiB boundary]   <- a large claim ends its file
    `---- one batch -----'

Nothing here is acknowledged: a claim counts from the transaction that names it on, and that is appended only after
`sync` has made the bytes, and the names of new files, durable.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Self

from crc32c import crc32c

from ullage.clock import Clock
from ullage.engine.content.checksum import Hasher
from ullage.engine.content.claims import WritableClaim
from ullage.engine.content.protocol import ContentStore
from ullage.engine.forking import lose
from ullage.engine.model import BLOCK_BYTES, NO_CONTENT, ClaimBlocks, Content, ContentClaim, Lifetime, Operation
from ullage.engine.oserrors import is_disk_full
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import BackPressure, ContentMissing, ContentWriteFailed, DiskFull, NodeDraining, SessionMisuse

GATHER_BYTES = 256 << 10
"""Small claims are written together from this size on, and the kernel is asked to start on them at once: what it has
done when the session commits, the sync need not wait for.
"""

ALIGNMENT = 4_096
"""Large claims start on a block of the filesystem, so that punching one later frees all of it."""

WRITEBACK_BYTES = 8 << 20
"""The kernel is asked to start writing this often, so that the sync at the end finds little left to do."""


BACK_PRESSURE_WAIT_SECONDS = 10.0
"""How long a writer waits for room before it gets an error; cleaning runs every minute or when asked."""

BACK_PRESSURE_POLL_SECONDS = 0.05

RELIEF_SECONDS = 1.0
"""A waiting writer asks for cleaning this often: each time costs a survey."""


class ContentWriter:
    """The content side of one session's transaction. Used by one thread at a time."""

    def __init__(self, store: ContentStore, take: Callable[[Lifetime, int, str], WritableClaim], tenant: str) -> None:
        """Use `WriterAdmission.new_writer`. `take` finds a resource claim with so much room, and waits for it."""
        self.store = store
        self._take = take
        self._tenant = tenant
        self._current: dict[Lifetime, WritableClaim] = {}
        self._used: list[WritableClaim] = []
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._gathering: WritableClaim | None = None
        self._failure: BaseException | None = None
        self.blocks: list[ClaimBlocks] = []
        self.streaming: ClaimStream | None = None

    @property
    def has_content(self) -> bool:
        return bool(self._used)

    @property
    def is_used(self) -> bool:
        """Whether there is anything to release."""
        return bool(self._used) or self.streaming is not None

    def put(self, data: bytes, lifetime: Lifetime = Lifetime.DEFAULT) -> Content:
        """Store one content whose size is known. Empty content needs no claim."""
        length = len(data)
        if length == 0:
            return NO_CONTENT
        if length > BLOCK_BYTES or length >= self.store.limits.large_claim:
            with self.stream(lifetime) as stream:
                stream.write(data)
            return stream.content
        writable = self.room_for(length, lifetime)
        claim = ContentClaim(writable.claim.index, self.gather(writable, [data]), length, crc32c(data))
        return Content(claim, 0, length)

    def put_many(self, contents: list[bytes], lifetime: Lifetime = Lifetime.DEFAULT) -> Sequence[ContentClaim | None]:
        """Store a batch, in order, in as few resource claims as `maxBatchFile` allows; no claim for empty content."""
        lengths = list(map(len, contents))
        if (
            not contents
            or not min(lengths)
            or max(lengths) > BLOCK_BYTES
            or max(lengths) >= self.store.limits.large_claim
        ):
            return [self.put(data, lifetime).claim for data in contents]
        if sum(lengths) > self.store.limits.max_batch_file:
            middle = len(contents) // 2
            if middle == 0:
                return [self.put(contents[0], lifetime).claim]
            return [*self.put_many(contents[:middle], lifetime), *self.put_many(contents[middle:], lifetime)]
        writable = self.room_for(sum(lengths), lifetime)
        offsets = accumulate(lengths, initial=self.gather(writable, contents))  # the disk works while we make checksums
        return list(map(ContentClaim, repeat(writable.claim.index), offsets, lengths, map(crc32c, contents)))

    def stream(self, lifetime: Lifetime = Lifetime.DEFAULT) -> "ClaimStream":
        """Store one content of any size in bounded memory: a context manager with `write`, then `.claim`."""
        if self.streaming is not None:
            raise SessionMisuse("a content stream of this session is still open: close it first")
        self.streaming = ClaimStream(self, lifetime)
        return self.streaming

    def flush(self) -> None:
        """Write what was gathered, so that it can be read back (not durable)."""
        if self._gathering is None:
            return
        writable = self._gathering
        try:
            _, buffers, count = self._take_gathered()
            self._write(writable, buffers, writable.offset - count)
            if count >= GATHER_BYTES:
                writable.file.start_writeback(writable.offset - count, count)
        except BaseException as error:
            self.spoil(writable, error)
            raise

    def read_back(self, claim: ContentClaim, start: int, size: int) -> Iterator[bytes]:
        """Content that this session wrote and did not commit yet, in pieces."""
        self.flush()
        writable = next(used for used in self._used if used.claim.index == claim.resource)
        end = claim.offset + start + size
        offset = claim.offset + start
        while offset < end:
            data = writable.file.read(min(GATHER_BYTES, end - offset), offset)
            if not data:
                raise ContentMissing(f"{writable.path} ends at offset {offset}, inside a claim that reaches to {end}")
            yield data
            offset += len(data)

    def sync(self) -> list[Operation]:
        """Make everything durable; the operations that must precede the FlowFiles in the transaction.

        ContentWriteFailed or DiskFull: nothing may be committed, and the files in question are sealed.
        """
        if self.streaming is not None:
            raise SessionMisuse("a content stream is still open: close it before the commit")
        self.flush()
        if self._failure is not None:
            raise ContentWriteFailed(
                f"content of this session was lost before its commit ({self._failure}): roll it back and retry"
            ) from self._failure
        operations: list[Operation] = []
        for writable in self._used:
            if writable.failed:  # by a stream that was given up: no claim names what it left
                writable.end_at(writable.file.size().length)
            # Synced before the transaction is appended: a frame that a restart finds names only what is on the disk.
            self.store.sync(writable)
            is_sealed = self.store.must_end(writable)
            if writable.is_new or is_sealed:
                operations.append(writable.registration(is_sealed=is_sealed))
        operations.extend(self.blocks)
        return operations

    def abandon(self) -> None:
        """The outcome is not known: leave the files as they are, for a restart to judge.

        Given back, they would be appended to, or cut back below what a frame that is on the disk may name.
        """
        self._take_gathered()
        for writable in self._let_go():
            writable.file.close()

    def release(self, *, committed: bool) -> None:
        """The outcome is known (or the session is over): give the resource claims back."""
        unwritten, _, count = self._take_gathered()
        if unwritten is not None:
            unwritten.end_at(unwritten.offset - count)
        for writable in self._let_go():
            if committed:
                writable.commit()
            self.store.give_back(writable, committed=committed)

    def spoil(self, writable: WritableClaim, error: BaseException) -> None:
        """Nobody knows what a file holds that an error or an interrupt kept from being written: nothing follows it, and
        nothing of this session is committed.
        """
        writable.failed = True
        self._failure = self._failure or error

    def forked(self) -> None:
        """Called in a forked child: neither it nor its stream writes there."""
        if self.streaming is not None:
            lose(self.streaming)
        lose(self)

    def _take_gathered(self) -> tuple[WritableClaim | None, list[bytes], int]:
        """What was gathered and not written yet: of which resource claim, its pieces, and how many bytes they are."""
        gathered = self._gathering, self._gathered, self._gathered_bytes
        self._gathering, self._gathered, self._gathered_bytes = None, [], 0
        return gathered

    def _let_go(self) -> list[WritableClaim]:
        """Begin anew; the resource claims that were in hand."""
        used, self._used, self._current = self._used, [], {}
        self._failure = None
        self.blocks = []
        if self.streaming is not None:
            self.streaming.abandon()
        return used

    def room_for(self, length: int, lifetime: Lifetime) -> WritableClaim:
        """The session's resource claim of this class, or the next one if the batch limit is reached."""
        writable = self._current.get(lifetime)
        if writable is not None and (
            writable.is_ended or (writable.offset and writable.offset + length > self.store.limits.max_batch_file)
        ):
            writable.is_ended = True
            writable = None
        if writable is None:
            writable = self._obtain(lifetime, length)
        if not writable.container.has_room_for(length):
            raise DiskFull(
                f"container {writable.container.name} has used {writable.container.bytes_used} of its capacity of "
                f"{writable.container.capacity} bytes: no room for {length} more"
            )
        return writable

    @uninterrupted  # or it would be nobody's: neither in the pool nor given back
    def _obtain(self, lifetime: Lifetime, length: int) -> WritableClaim:
        writable = self._current[lifetime] = self._take(lifetime, length, self._tenant)
        self._used.append(writable)
        return writable

    def gather(self, writable: WritableClaim, contents: list[bytes]) -> int:
        """Put contents at the end of a resource claim, in memory until there is enough to write; their offset."""
        if self._gathering is not writable:
            self.flush()
            self._gathering = writable
        offset = writable.offset
        count, claims = sum(map(len, contents)), writable.claims + len(contents)
        try:
            self._gathered += contents
            # In one statement, without a call: an interrupt between them would lead the flush to a wrong offset, over
            # committed content.
            self._gathered_bytes, writable.offset, writable.claims = (
                self._gathered_bytes + count,
                offset + count,
                claims,
            )
            writable.container.charge(writable)
        except BaseException as error:
            self.spoil(writable, error)
            raise
        if self._gathered_bytes >= GATHER_BYTES:
            self.flush()
        return offset

    def _write(self, writable: WritableClaim, buffers: list[bytes], offset: int) -> None:
        try:
            if len(buffers) == 1:
                writable.file.write(buffers[0], offset)
            else:
                writable.file.write_vector(buffers, offset)
        except OSError as error:
            if error.errno is None:  # the TimeoutError of somebody's alarm, say
                raise
            # Claims in these bytes were handed out already: nothing that names them may be committed.
            self._failure = _write_error(writable, offset, error)
            raise self._failure from error


class ClaimStream:
    """One content being written. Closing it fixes `claim`; leaving it by an exception abandons the bytes."""

    def __init__(self, writer: ContentWriter, lifetime: Lifetime) -> None:
        self._writer = writer
        self._lifetime = lifetime
        self._hasher = Hasher()
        self._head: list[bytes] = []
        self._writable: WritableClaim | None = None
        self._start = 0
        self._hinted = 0
        self._is_over = False
        self._content: Content | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    @property
    def content(self) -> Content:
        """What was written; SessionMisuse before `close`."""
        if self._content is None:
            raise SessionMisuse("the content stream is not closed")
        return self._content

    @property
    def length(self) -> int:
        return self._hasher.length

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append to the content; nothing of `data` is kept by reference. SessionMisuse once the stream is over."""
        if self._is_over:
            raise SessionMisuse("the content stream is over: it was closed or abandoned, or its session ended")
        self._hasher.update(memoryview(data))
        try:
            if self._writable is not None:
                self._append(self._writable, data)
            else:
                self._head.append(bytes(data))
                if self._hasher.length >= self._writer.store.limits.large_claim:
                    self._begin_large()
        except BaseException:
            # Whoever catches this and writes on must not get a claim with a hole in it.
            self.abandon()
            raise
        return len(data)

    def close(self) -> Content:
        """End the content."""
        writer = self._writer
        if self._is_over:
            return self.content
        writer.streaming = None
        self._is_over = True
        if self._hasher.length == 0:
            self._content = NO_CONTENT
            return self._content
        writable = self._writable
        if writable is None:
            # Small after all: it joins the batch like any other claim.
            writable = writer.room_for(self._hasher.length, self._lifetime)
            self._start = writer.gather(writable, [b"".join(self._head)])
        length = self._hasher.length
        claim = ContentClaim(writable.claim.index, self._start, length, self._hasher.crc)
        self._content = Content(claim, 0, length)
        crcs = self._hasher.block_crcs()
        if crcs is not None:
            writer.blocks.append(ClaimBlocks(writable.claim.index, self._start, crcs))
        return self._content

    def abandon(self) -> None:
        """Give up: bytes already written are dead, and end their file. Nothing more is written through it."""
        self._writer.streaming = None
        self._is_over = True

    def _begin_large(self) -> None:
        """The content has proved large: it gets an aligned place at the end of a file and streams from here on."""
        writer = self._writer
        writable = writer.room_for(0, self._lifetime)
        writer.flush()
        # Ended from here on: other content of this session must not land amid this one.
        writable.is_ended = True
        writable.claims += 1
        writable.offset += -writable.offset % ALIGNMENT
        writable.container.charge(writable)
        self._start = self._hinted = writable.offset
        self._writable = writable
        head, self._head = self._head, []
        for data in head:
            self._append(writable, data)

    def _append(self, writable: WritableClaim, data: bytes | bytearray | memoryview) -> None:
        count = len(data)
        if not writable.container.has_room_for(count):
            raise DiskFull(f"container {writable.container.name} has reached its capacity at {writable.path}")
        try:
            writable.file.write(data, writable.offset)
            writable.offset += count
        except BaseException as error:
            writable.failed = True
            if isinstance(error, OSError) and error.errno is not None:
                raise _write_error(writable, writable.offset, error) from error
            raise
        writable.container.charge(writable)
        if writable.offset - self._hinted >= WRITEBACK_BYTES:
            writable.file.start_writeback(self._hinted, writable.offset - self._hinted)
            self._hinted = writable.offset


class WriterAdmission:
    """Lets writers in: those that find no room wait for it, within bounds, while reclamation makes some.

    Thread-safe.
    """

    def __init__(self, store: ContentStore, clock: Clock, relieve: Callable[[], object]) -> None:
        """`relieve` gives back what it can, now, for a writer that waits."""
        self._store = store
        self._clock = clock
        self._relieve = relieve
        self.drains = False
        """Whether nothing new is taken any more."""

    def new_writer(self, tenant: str = "") -> ContentWriter:
        """For one session, or one handle. Whose it is counts where tenants are isolated; nobody's share files."""
        return ContentWriter(self._store, self.take, tenant)

    def new_source(self, tenant: str = "") -> ContentWriter:
        """The same for what does nothing but store. NodeDraining: also of what would have no content."""
        self.admitted(creates=True)
        return self.new_writer(tenant)

    def admitted(self, *, creates: bool) -> bool:
        """Whether it creates. NodeDraining if it does, and nothing new is taken: what only takes away goes on."""
        if creates and self.drains:
            raise NodeDraining(
                "this node is being drained, and takes nothing new: write to another one. What it holds can be read, "
                "taken out and deleted"
            )
        return creates

    def take(self, lifetime: Lifetime, length: int = 0, tenant: str = "") -> WritableClaim:
        """A resource claim to append to, in a container whose quota has `length` bytes left.

        BackPressure if no container has room within a bounded wait, DiskFull if no quota allows `length`; NodeDraining.
        """
        self.admitted(creates=True)  # here too: a stream that began before may go on for days
        while (writable := self._store.take(lifetime, length, tenant)) is None:
            self._await_room()
        return writable

    def _await_room(self) -> None:
        deadline = self._clock.monotonic() + BACK_PRESSURE_WAIT_SECONDS
        relief = float("-inf")
        while not self._store.has_room():
            self._store.require_writing()
            now = self._clock.monotonic()
            if now >= relief:
                relief = now + RELIEF_SECONDS
                self._relieve()
            elif now >= deadline:
                raise BackPressure(
                    f"no container is below {self._store.pressure}: remove FlowFiles, shorten the archive's retention "
                    "or add space"
                )
            else:
                self._clock.sleep(BACK_PRESSURE_POLL_SECONDS)


def _write_error(writable: WritableClaim, offset: int, error: OSError) -> Exception:
    if is_disk_full(error):
        return DiskFull(f"no room at offset {offset} of {writable.path}: nothing was committed; free space and retry")
    return ContentWriteFailed(f"writing {writable.path} at offset {offset} failed: {error}")
