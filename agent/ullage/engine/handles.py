"""Handles: FlowFiles that stand in no queue, stored and fetched by id, as in Ambry.

    put -> live -> delete -> tombstone (undelete brings it back) -> purge after `deletedRetention` -> unknown
              `--> expired (ttl) -------------------------------^

A tombstone keeps its record and counts as a claimant, so its bytes stay. Purging is a transaction of its own; only
then may reclamation take them. An expired handle is not undeleted: its end was decided when it was stored.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import TracebackType

from ullage.engine.batches import Attributes, new_records, packed_attributes
from ullage.engine.committer import ChangingParts
from ullage.engine.content.reader import WINDOW_BLOCKS
from ullage.engine.content.writer import ContentWriter
from ullage.engine.forgotten import Forgotten, Place, place
from ullage.engine.forking import lose
from ullage.engine.model import (
    HANDLE_QUEUE,
    ContentClaim,
    Delete,
    EventType,
    FlowFileRecord,
    Lifetime,
    Operation,
    Update,
    format_uuid,
)
from ullage.engine.provenance.eventruns import of_existing, of_new
from ullage.engine.purges import PurgeSchedule
from ullage.engine.undecided import Undecided
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import (
    ClaimGone,
    CommitOutcomeUnknown,
    HandleDeleted,
    HandleNotDeleted,
    HandleNotFound,
    InvalidArgument,
    RepositoryDamaged,
    RepositoryStopped,
    UllageError,
)
from ullage.streams import ContentStream
from ullage.uuids import format_uuids, parse_handle
from ullage.wire.documents import COUNT_MAX

COMPONENT = "handles"
"""The component of provenance events of handles, which no processor causes."""

PURGE_SLICE = 1_000
"""Handles one purging transaction removes."""

Also = Callable[[list[bytes]], Sequence[Operation]]
"""What stands in the transaction of a put beside it, from the uuids."""

AlsoOfOne = Callable[[str], Sequence[Operation]]
"""The same for one handle, from its id."""


class HandlePut:
    """One content on its way to become a handle: `write` as often as it takes, then `commit` or `abandon`.

    Up to spec.claims.largeClaim of it is held in memory, and takes no file from anybody. One thread at a time.
    """

    _begun: Place | None = None

    def __init__(
        self, store: "HandleStore", writer: ContentWriter, lifetime: Lifetime, forgotten: Forgotten, by: str
    ) -> None:
        """Use `HandleStore.begin`."""
        self._forgotten = forgotten
        self._store = store
        self._by = by
        self._writer = writer
        self._stream = writer.stream(lifetime)
        self._begun = place(2)
        forgotten.begun(self)

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._stream.length

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. After an error only `abandon` is left."""
        self._stream.write(data)

    @uninterrupted
    def commit(
        self, attributes: dict[str, str] | None = None, ttl_millis: int = 0, also: AlsoOfOne = lambda _: ()
    ) -> str:
        """Make it durable; the id. If this raises, there is no handle, or the outcome is not known."""
        with GivenUpOnError(self._writer):
            packed, claim = packed_attributes(attributes, 1), self._stream.close().claim

        def of_one(uuids: list[bytes]) -> Sequence[Operation]:
            return also(format_uuid(uuids[0]))

        return format_uuid(self._store.commit_new(self._writer, [claim], packed, ttl_millis, of_one, self._by)[0])

    @uninterrupted
    def abandon(self) -> None:
        """Give it up: what was written is dead."""
        self._writer.release(committed=False)

    def forked(self) -> None:
        """Called in a forked child: it stores nothing there."""
        self._writer.forked()
        lose(self)

    def __del__(self) -> None:
        if self._begun is None:  # an interrupt fell into its making
            return
        self._forgotten.holders.pop(id(self), None)
        if self._writer.has_content:
            self._forgotten.note("the put of a handle", self._begun, self.abandon)


class HandleStore:
    """All handles of a repository. Thread-safe. What is read is durable: `undecided` are those that are changing, and
    who looks at one of these waits until its transaction is.
    """

    def __init__(self, parts: ChangingParts, purges: PurgeSchedule) -> None:
        self._parts = parts
        self._purges = purges
        self._lock = threading.Condition()
        self._busy: set[bytes] = set()
        self.undecided = Undecided()

    def restore(self, records: Iterable[FlowFileRecord]) -> None:
        """Know when each of these handles, which came to be elsewhere, is to be purged."""
        for record in records:
            self._purges.add(record)

    def put(
        self,
        content: bytes,
        attributes: dict[str, str] | None = None,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> str:
        """Store one content durably; returns its id. `ttl_millis` 0: it never expires."""
        return self.put_many([content], attributes, ttl_millis, lifetime)[0]

    def put_many(
        self,
        contents: list[bytes],
        attributes: Attributes = None,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        by: str = "",
    ) -> list[str]:
        """Store a batch as `store` does; its ids."""
        return format_uuids(self.store(contents, attributes, ttl_millis, lifetime, by=by))

    @uninterrupted
    def store(
        self,
        contents: list[bytes],
        attributes: Attributes = None,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        also: Also = lambda _: (),
        by: str = "",
    ) -> list[bytes]:
        """Store a batch: one content append, one transaction, one sync; the uuids. `attributes` are for all, or one
        mapping each; `also` stands in the same transaction. `by` is the principal whom events name, and to whose files
        the content goes.
        """
        if not contents:
            return []
        packed = packed_attributes(attributes, len(contents))
        writer = self._parts.admission.new_source(by)
        with GivenUpOnError(writer):
            claims = writer.put_many(contents, lifetime)
        return self.commit_new(writer, claims, packed, ttl_millis, also, by)

    def begin(self, lifetime: Lifetime = Lifetime.DEFAULT, by: str = "") -> "HandlePut":
        """A content that comes piece by piece, from one thread or several that take turns; see `HandlePut`."""
        return HandlePut(self, self._parts.admission.new_source(by), lifetime, self._parts.forgotten, by)

    def get(
        self,
        id: str,
        start: int = 0,
        size: int | None = None,
        *,
        blocks: int = WINDOW_BLOCKS,
        includes_deleted: bool = False,
    ) -> ContentStream:
        """The content or a range of it, read `blocks` blocks of 256 KiB at a time; the claim is pinned until the stream
        is closed. `includes_deleted`: also that of one that was deleted or has expired, until it is purged.
        """
        uuid = parse_handle(id)
        record = self._shown(uuid) if includes_deleted else self.record(uuid)
        reader, ledger = self._parts.reader, self._parts.ledger
        try:
            return reader.opened(record, start, size, lambda claim: ledger.pin([claim]), blocks=blocks)
        except ClaimGone as error:
            raise HandleNotFound(f"handle {id} was purged just now") from error

    def head(self, id: str) -> FlowFileRecord:
        """Size, attributes and dates; also of a deleted handle while its tombstone stands."""
        return self._shown(parse_handle(id))

    def delete(self, id: str, also: Sequence[Operation] = (), by: str = "") -> None:
        """Leave a tombstone. HandleDeleted if there is one already. `also` stands in the same transaction."""
        uuid = parse_handle(id)
        deleted = Update(uuid, deleted_millis=self._parts.clock.now_millis())
        self._change(deleted, also, self._readable, EventType.DROP, "the handle was deleted", by)

    def undelete(self, id: str, also: Sequence[Operation] = (), by: str = "") -> None:
        """Bring a deleted handle back; HandleNotFound once it was purged, decided right before the commit."""
        undeleted = Update(parse_handle(id), deleted_millis=0)
        self._change(undeleted, also, self._require_deleted, EventType.ADDINFO, "the handle was undeleted", by)

    def set_ttl(self, id: str, ttl_millis: int, also: Sequence[Operation] = ()) -> None:
        """Let a readable handle expire so long from now, whatever was said before; 0: never."""
        expires = _expiry(self._parts.clock.now_millis(), ttl_millis)
        self._change(Update(parse_handle(id), expires_millis=expires), also, self._readable)

    def page(self, after: bytes, limit: int) -> list[FlowFileRecord]:
        """At most so many handles by uuid, from behind this one on, deleted ones included; each shard as it was at a
        moment.
        """
        ledger = self._parts.ledger
        moves, page = -1, list[FlowFileRecord]()
        while moves != ledger.cold.moves:  # else some that left memory meanwhile may be missing
            moves = ledger.cold.moves
            page = list(islice(ledger.handles_behind(after), limit))
        self._settle([record.uuid for record in page])
        return page

    def require_all(self) -> None:
        """RepositoryDamaged if `page` had to leave handles out, which nobody can read."""
        runs = [run.listed.number for run in self._parts.ledger.cold.runs if not run.is_readable]
        if runs:
            raise RepositoryDamaged(
                f"there are more handles, which cannot be read, in {'run' if len(runs) == 1 else 'runs'} "
                f"{', '.join(map(str, runs))}: `ullage ls --set-aside` tells what is damaged. Put the files back, "
                "restore a backup, or give up what is damaged (`ullage set-aside`)"
            )

    def unreadable_in(self, resource: int) -> list[FlowFileRecord]:
        """Handles that were deleted or have expired, and keep their bytes still, which were written to this resource
        claim. Who needs them to agree with its counts holds the ledger's lock.
        """
        ending = self._purges.ending_in(resource)
        return [record for record in ending if record.deleted_millis or self._is_expired(record)]

    def purge(self) -> int:
        """Forget handles whose time is over; returns how many. Their bytes may be reclaimed from then on. None where
        somebody else has the repository.
        """
        purged = 0
        if not self._parts.committer.right.may_change:
            return purged
        while (count := self._purge_slice()) is not None:
            purged += count
        return purged

    def forget(self, uuids: Sequence[bytes], details: str, by: str = "") -> int:
        """Give up handles at once, deleted ones too, each with a DROP event that names who; how many there were."""
        forgotten = 0
        for first in range(0, len(uuids), PURGE_SLICE):
            forgotten += self._forget_slice(uuids[first : first + PURGE_SLICE], details, by)
        return forgotten

    def record(self, uuid: bytes) -> FlowFileRecord:
        """A readable handle's record; HandleNotFound or HandleDeleted."""
        return self._require_readable(self._shown(uuid))

    def records(self, uuids: Sequence[bytes]) -> list[FlowFileRecord | UllageError]:
        """Of each what `record` returns, or the error that it would raise: in less time than one after the other."""
        found = _each(self._readable, uuids)
        # As in `_shown`: what was found before this question may be taken back by a crash, so it is asked for again.
        if self.undecided.changes and self.undecided.touches(uuids):
            found = _each(self.record, uuids)
        return found

    def _readable(self, uuid: bytes) -> FlowFileRecord:
        """The same, durable or not, for a change that will stand behind it in the log."""
        return self._require_readable(self._find(uuid))

    def _require_readable(self, record: FlowFileRecord) -> FlowFileRecord:
        if record.deleted_millis:
            raise HandleDeleted(f"handle {record.id} was deleted; until its retention ends it can be undeleted")
        if self._is_expired(record):
            raise HandleDeleted(f"handle {record.id} has expired")
        return record

    def commit_new(
        self,
        writer: ContentWriter,
        claims: Sequence[ContentClaim | None],
        packed: Iterable[bytes],
        ttl_millis: int,
        also: Also,
        by: str = "",
    ) -> list[bytes]:
        """One transaction: content, and a handle for each of these claims; their uuids."""
        with GivenUpOnError(writer):
            operations = writer.sync()
            now = self._parts.clock.now_millis()
            expires = _expiry(now, ttl_millis)
            records = new_records(HANDLE_QUEUE, claims, packed, now, expires)
            told = of_new(EventType.CREATE, len(records), COMPONENT, by) if self._parts.records_provenance else []
            uuids = [record.uuid for record in records]
            # Here too: the last of a long upload may come behind the drain, when the node has been called drained.
            creates = self._parts.admission.admitted(creates=True)
            with self.undecided.change(lambda: uuids):
                self._parts.committer.commit([*also(uuids), *operations, *records, *told], creates=creates)
        writer.release(committed=True)  # only now may another session append to these files
        if expires:
            for record in records:
                self._purges.add(record)
        return uuids

    @uninterrupted
    def _purge_slice(self) -> int | None:
        """None: no more are due."""
        uuids = self._purges.take_due(PURGE_SLICE)
        if not uuids:
            return None
        with self._changing(uuids):
            # Again, because another purge, or an undelete, may have come first.
            uuids = [uuid for uuid in uuids if self._purges.is_due(uuid)]
            try:
                if uuids:
                    expired = [uuid for uuid in uuids if not self._find(uuid).deleted_millis]
                    told = self._events(EventType.EXPIRE, expired, "the handle's time was over")
                    self._remove(uuids, told)
            except BaseException:
                self.restore(record for uuid in uuids if (record := self._parts.ledger.find(uuid)) is not None)
                raise
        return len(uuids)

    @uninterrupted
    def _forget_slice(self, uuids: Sequence[bytes], details: str, by: str) -> int:
        with self._changing(uuids):
            there = [uuid for uuid in uuids if self._parts.ledger.find(uuid) is not None]
            if there:
                self._remove(there, self._events(EventType.DROP, there, details, by))
        return len(there)

    def _remove(self, uuids: Sequence[bytes], told: Sequence[Operation]) -> None:
        records = [record for uuid in uuids if (record := self._parts.ledger.find(uuid)) is not None]
        self._parts.committer.commit([Delete(b"".join(uuids)), *told], creates=False)
        self._purges.drop(records)

    @uninterrupted
    def _change(
        self,
        update: Update,
        also: Sequence[Operation],
        validate: Callable[[bytes], object],
        event: EventType | None = None,
        details: str = "",
        by: str = "",
    ) -> None:
        """One transaction; `validate` raises, right before the commit, what speaks against it."""
        uuid = update.uuid

        def require_valid() -> None:
            validate(uuid)

        with self._changing([uuid]):
            told = [] if event is None else self._events(event, [uuid], details, by)
            self._parts.committer.commit([*also, update, *told], creates=False, validate=require_valid)
            self._purges.add(self._find(uuid))

    def _events(self, type: EventType, uuids: Iterable[bytes], details: str, by: str = "") -> list[Operation]:
        """What provenance has to tell of handles as they are; purging a deleted one was told when it was deleted."""
        if not self._parts.records_provenance:
            return []
        records = [record for uuid in uuids if (record := self._parts.ledger.find(uuid)) is not None]
        return of_existing(type, records, details, COMPONENT, by)

    def _shown(self, uuid: bytes) -> FlowFileRecord:
        """As it will be after a crash, too; HandleNotFound."""
        try:
            return self._find(uuid)
        finally:  # that there is none, because it was purged, must be durable as well
            if self.undecided.changes:
                self._settle([uuid])

    def _settle(self, uuids: Collection[bytes]) -> None:
        """Return when what was seen of these is durable; RepositoryStopped if nobody can say so any more."""
        if self.undecided.touches(uuids):
            try:
                self._parts.committer.settle()
            except CommitOutcomeUnknown as error:
                raise RepositoryStopped(
                    f"what became of the last change of handle {format_uuid(next(iter(uuids)))} is not known ({error})"
                ) from error

    def _find(self, uuid: bytes) -> FlowFileRecord:
        record = self._parts.ledger.find_any(uuid)
        if record is None or record.queue != HANDLE_QUEUE:
            raise HandleNotFound(f"there is no handle {format_uuid(uuid)}: it was purged, or never stored here")
        return record

    def _require_deleted(self, uuid: bytes) -> None:
        record = self._find(uuid)
        if not record.deleted_millis:
            raise HandleNotDeleted(f"handle {record.id} is not deleted")
        if self._is_expired(record) or self._purges.due_millis(record) <= self._parts.clock.now_millis():
            raise HandleNotFound(f"handle {record.id} is gone: its retention is over")

    def _is_expired(self, record: FlowFileRecord) -> bool:
        return 0 < record.expires_millis <= self._parts.clock.now_millis()

    @contextmanager
    def _changing(self, uuids: Collection[bytes]) -> Iterator[None]:
        """One change of a handle at a time: two that each looked right would contradict each other in the log."""
        with self._lock:
            self._lock.wait_for(lambda: self._busy.isdisjoint(uuids))
            self._busy.update(uuids)
        try:
            with self._parts.ledger.staying(uuids), self.undecided.change(lambda: uuids):
                yield
        finally:
            with self._lock:
                self._busy.difference_update(uuids)
                self._lock.notify_all()


def _each(look: Callable[[bytes], FlowFileRecord], uuids: Sequence[bytes]) -> list[FlowFileRecord | UllageError]:
    found: list[FlowFileRecord | UllageError] = []
    for uuid in uuids:
        try:
            found.append(look(uuid))
        except UllageError as error:
            found.append(error)
    return found


class GivenUpOnError:
    """A context after which an error has left nothing of a writer, or all where the outcome is unknown: that a restart
    judges. As a generator it would take four times as long.
    """

    __slots__ = ("_writer",)

    def __init__(self, writer: ContentWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            return
        # Interrupted: nobody can say where.
        if issubclass(kind, CommitOutcomeUnknown | RepositoryStopped) or not issubclass(kind, Exception):
            self._writer.abandon()
        else:
            self._writer.release(committed=False)


def _expiry(now_millis: int, ttl_millis: int) -> int:
    """When a handle expires. Beyond 64 bits it could be logged, and not be read again."""
    if not 0 <= ttl_millis <= COUNT_MAX:
        raise InvalidArgument(f"a TTL of {ttl_millis} ms: 0, for ever, to {COUNT_MAX} are possible")
    return now_millis + ttl_millis if ttl_millis else 0
