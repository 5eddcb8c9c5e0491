"""Handles: FlowFiles that stand in no queue, stored and fetched by id, as in Ambry.

    put -> live -> delete -> tombstone (undelete brings it back) -> purge after `deletedRetention` -> unknown
              `--> expired (ttl) -------------------------------^

A tombstone keeps its record and counts as a claimant, so its bytes stay. Purging is a transaction of its own; only
then may reclamation take them. An expired handle is not undeleted: its end was decided when it was stored.
"""

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import IO, NamedTuple, Protocol

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.reader import WINDOW_BLOCKS, ContentReader, ContentStream
from ullage_agent.engine.content.writer import ContentWriter
from ullage_agent.engine.errors import (
    ClaimGone,
    CommitOutcomeUnknown,
    HandleDeleted,
    HandleNotFound,
    RepositoryStopped,
    SessionMisuse,
)
from ullage_agent.engine.files import COPY_BYTES
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import (
    HANDLE_QUEUE,
    ContentClaim,
    Delete,
    EventType,
    FlowFile,
    Lifetime,
    Operation,
    Update,
    format_uuid,
    new_uuids,
    pack_attributes,
    parse_uuid,
)
from ullage_agent.engine.provenance.runs import of_existing, of_new

COMPONENT = "handles"
"""The component of provenance events of handles, which no processor causes."""

PURGE_SLICE = 1_000
"""Handles one purging transaction removes."""

Attributes = dict[str, str] | Sequence[dict[str, str]] | None
"""Of a batch: for all, or one mapping each."""

Also = Callable[[list[str]], Sequence[Operation]]
"""What stands in the transaction of a put beside it, from the ids."""


class HandleHead(NamedTuple):
    """What is known of a handle without reading its content."""

    id: str
    size: int
    attributes: dict[str, str]
    entry_millis: int
    expires_millis: int
    deleted_millis: int


class HandlePut:
    """One content on its way to become a handle: `write` as often as it takes, then `commit` or `abandon`.

    Up to spec.claims.largeClaim of it is held in memory, and takes no file from anybody. One thread at a time.
    """

    def __init__(self, writer: ContentWriter, lifetime: Lifetime, commit_new: Callable[..., list[str]]) -> None:
        """Use `HandleStore.begin`."""
        self.writer = writer
        self._stream = writer.stream(lifetime)
        self._commit_new = commit_new

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._stream.length

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. After an error only `abandon` is left."""
        self._stream.write(data)

    def commit(self, attributes: dict[str, str] | None = None, ttl_millis: int = 0, also: Also = lambda _: ()) -> str:
        """Make it durable; the id. If this raises, there is no handle, or the outcome is not known."""
        with given_up(self.writer):
            claim = self._stream.close().claim
        return self._commit_new(self.writer, [claim], attributes, ttl_millis, also)[0]

    def abandon(self) -> None:
        """Give it up: what was written is dead."""
        self.writer.release(committed=False)


class HandleHost(Protocol):
    """What handles need of their repository."""

    ledger: Ledger
    reader: ContentReader
    clock: Clock
    records_provenance: bool

    def new_writer(self) -> ContentWriter: ...

    def commit(
        self, operations: Sequence[Operation], *, creates: bool, validate: Callable[[], None] | None = None
    ) -> int: ...


class HandleStore:
    """All handles of a repository. Thread-safe."""

    def __init__(self, host: HandleHost, deleted_retention_millis: int) -> None:
        self._host = host
        self._retention = deleted_retention_millis
        self._lock = threading.Condition()
        self._busy: set[bytes] = set()
        self._due: list[tuple[int, bytes]] = []

    def restore(self, records: Iterable[FlowFile]) -> None:
        """Know when each of these handles, which came to be elsewhere, is to be purged."""
        for record in records:
            self._schedule(record)

    def put(
        self,
        content: bytes | IO[bytes],
        attributes: dict[str, str] | None = None,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> str:
        """Store one content durably; returns its id. `ttl_millis` 0: it never expires."""
        if isinstance(content, bytes):
            return self.put_many([content], attributes, ttl_millis, lifetime)[0]
        put = self.begin(lifetime)
        with given_up(put.writer):
            while piece := content.read(COPY_BYTES):
                put.write(piece)
        return put.commit(attributes, ttl_millis)

    def put_many(
        self,
        contents: list[bytes],
        attributes: Attributes = None,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        also: Also = lambda _: (),
    ) -> list[str]:
        """Store a batch: one content append, one transaction, one sync. `attributes` are for all, or one mapping each;
        `also` gets the ids, and stands in the same transaction.
        """
        if not contents:
            return []
        if not isinstance(attributes, dict) and attributes is not None and len(attributes) != len(contents):
            raise SessionMisuse(f"{len(contents)} contents came with attributes for {len(attributes)}")
        writer = self._host.new_writer()
        with given_up(writer):
            claims = writer.put_many(contents, lifetime)
        return self._commit_new(writer, claims, attributes, ttl_millis, also)

    def begin(self, lifetime: Lifetime = Lifetime.DEFAULT) -> "HandlePut":
        """A content that comes piece by piece, from one thread or several that take turns; see `HandlePut`."""
        return HandlePut(self._host.new_writer(), lifetime, self._commit_new)

    def get(self, id: str, start: int = 0, size: int | None = None, *, blocks: int = WINDOW_BLOCKS) -> ContentStream:
        """The content or a range of it, read `blocks` blocks of 256 KiB at a time; the claim is pinned until the stream
        is closed.
        """
        record = self.record(parse_handle(id))
        size = record.size - start if size is None else size
        if not 0 <= start <= start + size <= record.size:
            raise SessionMisuse(f"range {start}+{size} lies outside handle {id} of {record.size} bytes")
        claim = record.claim
        if claim is None or size == 0:
            return ContentStream(iter(()), 0, lambda: None)
        try:
            self._host.ledger.pin([claim])
        except ClaimGone as error:
            raise HandleNotFound(f"handle {id} was purged just now") from error
        pieces = self._host.reader.stream(claim, record.start + start, size, blocks=blocks)
        return ContentStream(pieces, size, lambda: self._host.ledger.unpin([claim]))

    def head(self, id: str) -> HandleHead:
        """Size, attributes and dates; also of a deleted handle while its tombstone stands."""
        record = self._find(parse_handle(id))
        return HandleHead(
            record.id,
            record.size,
            record.attribute_map(),
            record.entry_millis,
            record.expires_millis,
            record.deleted_millis,
        )

    def delete(self, id: str, also: Sequence[Operation] = ()) -> None:
        """Leave a tombstone. HandleDeleted if there is one already. `also` stands in the same transaction."""
        uuid = parse_handle(id)
        with self._changing([uuid]):
            millis = self._host.clock.now_millis()
            told = self._events(EventType.DROP, [uuid], "the handle was deleted")
            self._host.commit(
                [*also, Update(uuid, deleted_millis=millis), *told],
                creates=False,
                validate=lambda: self._require_readable(uuid),
            )
            self._schedule(self._find(uuid))

    def undelete(self, id: str, also: Sequence[Operation] = ()) -> None:
        """Bring a deleted handle back; HandleNotFound once it was purged, decided right before the commit."""
        uuid = parse_handle(id)
        with self._changing([uuid]):
            told = self._events(EventType.ADDINFO, [uuid], "the handle was undeleted")
            self._host.commit(
                [*also, Update(uuid, deleted_millis=0), *told],
                creates=False,
                validate=lambda: self._require_deleted(uuid),
            )
            self._schedule(self._find(uuid))

    def purge(self) -> int:
        """Forget handles whose time is over; returns how many. Their bytes may be reclaimed from then on."""
        purged = 0
        while uuids := self._take_due():
            with self._changing(uuids):
                # Again, because another purge, or an undelete, may have come first.
                uuids = [uuid for uuid in uuids if self._is_due(uuid)]
                try:
                    if uuids:
                        expired = [uuid for uuid in uuids if not self._find(uuid).deleted_millis]
                        told = self._events(EventType.EXPIRE, expired, "the handle's time was over")
                        self._host.commit([Delete(b"".join(uuids)), *told], creates=False)
                except BaseException:
                    self.restore(record for uuid in uuids if (record := self._host.ledger.find(uuid)) is not None)
                    raise
            purged += len(uuids)
        return purged

    def tombstones(self) -> list[FlowFile]:
        """Deleted handles whose retention lasts: they keep their bytes, and nobody reads them."""
        with self._lock:
            scheduled = {uuid for _, uuid in self._due}
        records = map(self._host.ledger.find, scheduled)
        return [record for record in records if record is not None and record.deleted_millis]

    def record(self, uuid: bytes) -> FlowFile:
        """A readable handle's record; HandleNotFound or HandleDeleted."""
        record = self._find(uuid)
        if record.deleted_millis:
            raise HandleDeleted(f"handle {record.id} was deleted; until its retention ends it can be undeleted")
        if self._is_expired(record):
            raise HandleDeleted(f"handle {record.id} has expired")
        return record

    def _commit_new(
        self,
        writer: ContentWriter,
        claims: Sequence[ContentClaim | None],
        attributes: Attributes,
        ttl_millis: int,
        also: Also,
    ) -> list[str]:
        with given_up(writer):
            operations = writer.sync()
            now = self._host.clock.now_millis()
            expires = now + ttl_millis if ttl_millis else 0
            records = [
                FlowFile(uuid, HANDLE_QUEUE, claim, 0, claim.length if claim else 0, now, now, 0, each, b"", expires)
                for uuid, claim, each in zip(new_uuids(len(claims)), claims, packed(attributes), strict=False)
            ]
            told = of_new(EventType.CREATE, len(records), COMPONENT) if self._host.records_provenance else []
            ids = [record.id for record in records]
            self._host.commit([*also(ids), *operations, *records, *told], creates=True)
        writer.release(committed=True)
        if expires:
            for record in records:
                self._schedule(record)
        return ids

    def _events(self, type: EventType, uuids: Iterable[bytes], details: str) -> list[Operation]:
        """What provenance has to tell of handles as they are; purging a deleted one was told when it was deleted."""
        if not self._host.records_provenance:
            return []
        records = [record for uuid in uuids if (record := self._host.ledger.find(uuid)) is not None]
        return of_existing(type, records, details, COMPONENT)

    def _find(self, uuid: bytes) -> FlowFile:
        record = self._host.ledger.find(uuid)
        if record is None or record.queue != HANDLE_QUEUE:
            raise HandleNotFound(f"there is no handle {format_uuid(uuid)}: it was purged, or never stored here")
        return record

    def _require_readable(self, uuid: bytes) -> None:
        self.record(uuid)

    def _require_deleted(self, uuid: bytes) -> None:
        record = self._find(uuid)
        if not record.deleted_millis:
            raise SessionMisuse(f"handle {record.id} is not deleted")
        if self._is_expired(record) or self._due_millis(record) <= self._host.clock.now_millis():
            raise HandleNotFound(f"handle {record.id} is gone: its retention is over")

    def _is_expired(self, record: FlowFile) -> bool:
        return 0 < record.expires_millis <= self._host.clock.now_millis()

    def _due_millis(self, record: FlowFile) -> int:
        """When the handle is to be purged; 0: never."""
        ends = [record.expires_millis] if record.expires_millis else []
        if record.deleted_millis:
            ends.append(record.deleted_millis + self._retention)
        return min(ends, default=0)

    def _schedule(self, record: FlowFile) -> None:
        due = self._due_millis(record)
        if due:
            with self._lock:
                heapq.heappush(self._due, (due, record.uuid))

    def _take_due(self) -> list[bytes]:
        """Handles that are due now; entries that an undelete has overtaken are dropped."""
        now = self._host.clock.now_millis()
        uuids: dict[bytes, None] = {}
        with self._lock:
            while self._due and self._due[0][0] <= now and len(uuids) < PURGE_SLICE:
                _, uuid = heapq.heappop(self._due)
                if self._is_due(uuid):
                    uuids[uuid] = None
        return list(uuids)

    def _is_due(self, uuid: bytes) -> bool:
        record = self._host.ledger.find(uuid)
        return record is not None and 0 < self._due_millis(record) <= self._host.clock.now_millis()

    @contextmanager
    def _changing(self, uuids: Collection[bytes]) -> Iterator[None]:
        """One change of a handle at a time: two that each looked right would contradict each other in the log."""
        with self._lock:
            self._lock.wait_for(lambda: self._busy.isdisjoint(uuids))
            self._busy.update(uuids)
        try:
            yield
        finally:
            with self._lock:
                self._busy.difference_update(uuids)
                self._lock.notify_all()


def parse_handle(id: str) -> bytes:
    """A handle's bytes; HandleNotFound for text that can be none."""
    try:
        return parse_uuid(id)
    except ValueError as error:
        raise HandleNotFound(f"{id!r} is not a handle: {error}") from error


@contextmanager
def given_up(writer: ContentWriter) -> Iterator[None]:
    """What an error leaves of a writer: nothing, or all where the outcome is unknown, for a restart to judge."""
    try:
        yield
    except (CommitOutcomeUnknown, RepositoryStopped):
        writer.abandon()
        raise
    except Exception:
        writer.release(committed=False)
        raise
    except BaseException:
        writer.abandon()  # interrupted: nobody can say where
        raise


def packed(attributes: Attributes) -> Iterator[bytes]:
    """Those of each content of a batch, as stored."""
    if attributes is None or isinstance(attributes, dict):
        return repeat(pack_attributes(attributes or {}))
    return map(pack_attributes, attributes)
