"""Staged writes: contents that many attempts store, and that appear together, once, or not at all.

    begin -> stage, stage, ... -> prepare -> commit     what the chosen attempts stored appears, the rest goes
                 `-> abort, or its time is over         all of it goes

For a program whose parts fail by themselves: attempts are repeated, run twice, or die unheard. Each stores under an id
of its own; only the commit says which of them count, as the commit protocol of Hadoop's and Spark's outputs does. The
states are those of two-phase commit, so that a write can span nodes: what is prepared cannot fail any more, and the
first node that commits has decided for all.

Each step is one transaction. The verdict stands in the log before anything appears or goes; what a crash leaves of
that is done when the repository opens:

    verdict durable | the first FlowFiles appear in the same transaction, others in transactions of their own | settled
                    ^ nothing can undo it            ^ crash: `resume` goes on here

What is staged stands in no queue, has no handle, and counts as a claimant: its content is as safe as any.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from ullage.engine.batches import Attributes, new_records, packed_attributes
from ullage.engine.committer import ChangingParts
from ullage.engine.content.writer import ContentWriter
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.handles import GivenUpOnError, HandleStore
from ullage.engine.ledger.staged import WriteProgress
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    UUID_BYTES,
    ContentClaim,
    Delete,
    EventType,
    FlowFileRecord,
    Lifetime,
    Operation,
    Staged,
    StagedWrite,
    Update,
    WriteState,
    format_uuid,
    split_uuids,
)
from ullage.engine.provenance.eventruns import of_existing
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import BackPressure, InvalidArgument, QuotaReached, WriteClosed, WriteIncomplete
from ullage.wire.documents import COUNT_MAX

COMPONENT: Final = "staging"
"""The component of provenance events of what a write made appear."""

SLICE: Final = 2_000
"""FlowFiles that one transaction makes appear, or removes: milliseconds of everybody's time."""

SLICE_BYTES_MAX: Final = 2 << 20
"""Attributes of one slice, which its events repeat: a quarter of what a transaction may hold."""

UUIDS_MAX: Final = 2_000
"""FlowFiles that one `Staged` names, so that a block of a snapshot stays within its bound."""

OPEN_MAX: Final = 1_000
"""Writes that are neither committed nor aborted: more are a program that forgets to end them."""

PREPARED_MILLIS: Final = 24 * 3_600_000
"""How long a prepared write waits for its verdict: a day in which somebody can start its program again."""

CLOSED_MILLIS: Final = 7 * 24 * 3_600_000
"""How long the verdict is remembered: whoever repeats a write within a week learns that it was carried out."""


class StagedContents(NamedTuple):
    """What is staged in a write; `bytes` None: nobody has added them up."""

    flow_files: int
    bytes: int | None
    began_millis: int


class Staging:
    """All staged writes of a repository. Thread-safe."""

    def __init__(self, parts: ChangingParts, queues: QueueManager, handles: HandleStore) -> None:
        self._parts = parts
        self._queues = queues
        self._handles = handles
        self._lock = threading.Condition()
        self._staging: dict[bytes, set[bytes]] = {}
        self._closing: set[bytes] = set()

    @uninterrupted
    def begin(
        self,
        id: bytes,
        owner: str,
        *,
        queue: str = "",
        ttl_millis: int = 0,
        lasts_millis: int = 3_600_000,
        each_max: int | None = None,
        by: str = "",
    ) -> StagedWrite:
        """Begin a write, or find it as it is; one that was aborted begins anew.

        Its FlowFiles will stand in `queue`, or be handles that expire after `ttl_millis` (0: never). It is aborted
        once nothing was staged for `lasts_millis`; `by` is the principal whom events name. BackPressure while too many
        are open, QuotaReached if this owner has `each_max`; InvalidArgument for times that there cannot be.
        """
        if not (0 <= ttl_millis <= COUNT_MAX and 0 < lasts_millis <= COUNT_MAX):
            raise InvalidArgument(
                f"a staged write of TTL {ttl_millis} ms that lasts {lasts_millis} ms: 0, or 1, to {COUNT_MAX}"
            )
        with self._alone(id):
            found = self._find(id)
            now = self._parts.clock.now_millis()
            if found is not None and found.record.state != WriteState.ABORTED:
                return found.record
            if len(self.pending()) >= OPEN_MAX:
                raise BackPressure(f"{OPEN_MAX} staged writes are open: commit or abort some")
            own = sum(write.record.owner == owner for write in self.pending())
            if each_max is not None and own >= each_max:
                raise QuotaReached(
                    f"{owner} has {own} staged writes open, of {each_max} that one principal may have (writes_each): "
                    "commit or abort some"
                )
            number = self._queues.queue(queue, by).number if queue else HANDLE_QUEUE
            if found is not None:
                self._settle(found)
            record = StagedWrite(id, WriteState.OPEN, owner, number, ttl_millis, now, now + lasts_millis, by=by)
            self._parts.committer.commit([record], creates=True)
            return record

    def stage(
        self,
        id: bytes,
        attempt: bytes,
        number: int,
        contents: list[bytes],
        attributes: Attributes = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
        tenant: str = "",
    ) -> list[bytes]:
        """Store one batch of an attempt durably: its uuids. One that is sent again is stored once.

        `number` counts the batches of the attempt from 0, `tenant` is whose files they go to. WriteClosed if the write
        takes no more.
        """
        with self._staged(id, attempt) as write:
            if self._is_known(write, attempt, number):
                return list(split_uuids(write.staged(attempt, number)))
            if not contents:
                return []
            packed = packed_attributes(attributes, len(contents))
            writer = self._parts.admission.new_source(tenant)
            with GivenUpOnError(writer):
                claims = writer.put_many(contents, lifetime)
            return self._store(write, attempt, number, writer, claims, packed)

    def stage_stream(
        self,
        id: bytes,
        attempt: bytes,
        number: int,
        pieces: Iterable[bytes],
        attributes: dict[str, str],
        lifetime: Lifetime = Lifetime.DEFAULT,
        tenant: str = "",
    ) -> list[bytes]:
        """The same for one content of any size; no piece is asked for if it is stored already."""
        with self._staged(id, attempt) as write:
            if self._is_known(write, attempt, number):
                return list(split_uuids(write.staged(attempt, number)))
            packed = packed_attributes(attributes, 1)
            writer = self._parts.admission.new_source(tenant)
            stream = writer.stream(lifetime)
            try:
                for piece in pieces:
                    stream.write(piece)
            except BaseException:
                writer.release(committed=False)
                raise
            with GivenUpOnError(writer):
                claim = stream.close().claim
            return self._store(write, attempt, number, writer, [claim], packed)

    @uninterrupted
    def prepare(self, id: bytes, attempts: Mapping[bytes, int]) -> StagedWrite:
        """From now on it waits a day for its verdict, and cannot fail to commit.

        `attempts` are those that count, and how many transactions each has staged. WriteIncomplete if that is not
        what is here; WriteClosed if there is a verdict. Others may be staged still, and count if it is prepared anew:
        somebody who begins again after a writer that died cannot know how far it was.
        """
        named = b"".join(attempts)
        with self._alone(id):
            write = self.require(id)
            if write.is_closed:
                raise _closed(write.record)
            self._require_whole(write, attempts)
            if write.record.state == WriteState.PREPARED and write.record.attempts == named:
                return write.record
            now = self._parts.clock.now_millis()
            prepared = msgspec.structs.replace(
                write.record, state=WriteState.PREPARED, attempts=named, expires_millis=now + PREPARED_MILLIS
            )
            self._parts.committer.commit([prepared], creates=False)
            return prepared

    @uninterrupted
    def commit(self, id: bytes, attempts: Iterable[bytes], decision: bytes = b"") -> StagedWrite:
        """What it is prepared for appears; durable when this returns. Committed already: nothing happens.

        WriteClosed if it is not prepared for just these attempts.
        """
        named = b"".join(attempts)
        with self._alone(id):
            write = self.require(id)
            if write.record.state == WriteState.COMMITTED:
                self._settle(write)
                return write.record
            if write.record.state != WriteState.PREPARED or write.record.attempts != named:
                raise _closed(write.record)
            self._end(write, WriteState.COMMITTED, decision)
            return write.record

    @uninterrupted
    def abort(self, id: bytes) -> WriteState | None:
        """Nothing of it appears, unless it is committed: its state then. None: there is no such write."""
        with self._alone(id):
            write = self._find(id)
            if write is None:
                return None
            if not write.is_closed:
                self._end(write, WriteState.ABORTED)
            return WriteState(write.record.state)

    def find(self, id: bytes) -> StagedWrite | None:
        """A write as it is now; None for one that is unknown or forgotten."""
        write = self._find(id)
        return None if write is None else write.record

    def pending(self) -> list[WriteProgress]:
        """Those that are open, prepared, or not settled yet."""
        with self._parts.ledger.lock:
            return list(self._parts.ledger.writes.pending.values())

    def staged(self, write: WriteProgress, counted_max: int) -> StagedContents:
        """What is staged in a write. Of more FlowFiles than `counted_max` the bytes are not added up."""
        ledger = self._parts.ledger
        with ledger.lock:
            blocks = [each.uuids for staged in write.attempts.values() for each in staged]
        count, total, began = sum(map(len, blocks)) // UUID_BYTES, 0, write.record.renewed_millis
        for block in blocks if count <= counted_max else blocks[:1]:
            with ledger.lock:  # for some at a time: commits need it
                found = [record for uuid in split_uuids(block) if (record := ledger.find(uuid)) is not None]
            total += sum(record.size for record in found)
            began = min([began, *(record.entry_millis for record in found)])
        return StagedContents(count, total if count <= counted_max else None, began)

    def require(self, id: bytes) -> WriteProgress:
        """The write, or WriteClosed."""
        write = self._find(id)
        if write is None:
            raise WriteClosed(f"there is no staged write {format_uuid(id)}: it never began here, or is forgotten")
        return write

    def expire(self) -> int:
        """Abort what is over its time, settle what a failure left, forget what is long closed; returns how many were
        aborted.
        """
        self.resume()
        now = self._parts.clock.now_millis()
        aborted = 0
        for write in self.pending():
            if write.record.expires_millis > now:
                continue
            with self._alone(write.record.id):
                # Again, because something may have been staged meanwhile, or its verdict come.
                if not write.is_closed and write.record.expires_millis <= now:
                    self._end(write, WriteState.ABORTED)
                    aborted += 1
        self._parts.ledger.forget_over(now)
        return aborted

    def resume(self) -> None:
        """Finish what a crash interrupted: the verdicts stand, and their consequences may be missing."""
        for write in self.pending():
            if write.is_closed:
                with self._alone(write.record.id):
                    self._settle(write)

    @uninterrupted
    def _store(
        self,
        write: WriteProgress,
        attempt: bytes,
        number: int,
        writer: ContentWriter,
        claims: Sequence[ContentClaim | None],
        packed: Iterable[bytes],
    ) -> list[bytes]:
        """One transaction: content, records that nobody sees, and whose they are."""
        with GivenUpOnError(writer):
            operations = writer.sync()
            now = self._parts.clock.now_millis()
            records = new_records(STAGED_QUEUE, claims, packed, now)
            uuids = [record.uuid for record in records]
            id = write.record.id
            staged = [
                Staged(id, attempt, number, b"".join(uuids[at : at + UUIDS_MAX]))
                for at in range(0, len(uuids), UUIDS_MAX)
            ]
            creates = self._parts.admission.admitted(creates=True)  # here too: see `HandleStore.commit_new`
            self._parts.committer.commit(
                [*self._renewal(write.record, now), *operations, *records, *staged], creates=creates
            )
        writer.release(committed=True)
        return uuids

    def _renewal(self, record: StagedWrite, now_millis: int) -> list[Operation]:
        """Whoever stages is alive: once half of its time is over it begins anew."""
        lasts = record.expires_millis - record.renewed_millis
        if record.expires_millis - now_millis > lasts // 2:
            return []
        return [msgspec.structs.replace(record, renewed_millis=now_millis, expires_millis=now_millis + lasts)]

    def _require_whole(self, write: WriteProgress, attempts: Mapping[bytes, int]) -> None:
        for attempt, count in attempts.items():
            if len(attempt) != UUID_BYTES or write.transactions(attempt) != count:
                raise WriteIncomplete(
                    f"attempt {attempt.hex()} of write {format_uuid(write.record.id)} is to count with {count} "
                    f"transactions, {write.transactions(attempt)} are here"
                )

    def _is_known(self, write: WriteProgress, attempt: bytes, number: int) -> bool:
        staged = write.transactions(attempt)
        if number > staged:
            raise WriteIncomplete(f"transaction {number} of attempt {attempt.hex()} comes after {staged} of them")
        return number < staged

    def _end(self, write: WriteProgress, state: WriteState, decision: bytes = b"") -> None:
        """The verdict, and with it the first of what follows."""
        now = self._parts.clock.now_millis()
        verdict = msgspec.structs.replace(
            write.record, state=state, decision=decision, expires_millis=now + CLOSED_MILLIS
        )
        self._settle(write, verdict)

    @uninterrupted
    def _settle(self, write: WriteProgress, verdict: StagedWrite | None = None) -> None:
        """What counts appears and the rest goes, a slice at a time; then nothing is staged any more."""
        pending: list[Operation] = [] if verdict is None else [verdict]
        record = verdict or write.record
        if record.state == WriteState.COMMITTED:
            chosen = self._hidden(write.chosen())
            while records := _slice(chosen):
                self._show(record, records, pending)
                pending = []
        if pending:  # nothing appeared that could have carried the verdict
            self._parts.committer.commit(pending, creates=False)
        others = self._hidden(write.others())
        while records := _slice(others):
            self._parts.committer.commit([Delete(b"".join(each.uuid for each in records))], creates=False)
        self._parts.ledger.settle_write(record.id)

    @uninterrupted
    def _show(self, write: StagedWrite, records: list[FlowFileRecord], pending: Sequence[Operation]) -> None:
        """One transaction, then its FlowFiles stand in their queue, or are handles."""
        now = self._parts.clock.now_millis()
        expires = now + write.ttl_millis if write.ttl_millis and write.queue == HANDLE_QUEUE else 0
        first = self._queues.take_positions(len(records))
        updates = [
            Update(record.uuid, write.queue, first + place if write.queue else 0, expires_millis=expires)
            for place, record in enumerate(records)
        ]
        told = of_existing(EventType.CREATE, records, "", COMPONENT, write.by) if self._parts.records_provenance else []
        with self._handles.undecided.change(lambda: (record.uuid for record in records)):
            self._parts.committer.commit([*pending, *updates, *told], creates=True)
        found = map(self._parts.ledger.find, (record.uuid for record in records))
        shown = [record for record in found if record is not None]
        if write.queue == HANDLE_QUEUE:
            self._handles.restore(shown)
        else:
            name = self._parts.ledger.queues[write.queue].name
            self._queues.offer(self._queues.queue(name), shown)

    def _hidden(self, uuids: Iterator[bytes]) -> Iterator[FlowFileRecord]:
        """Those that are staged still."""
        for uuid in uuids:
            record = self._parts.ledger.find(uuid)
            if record is not None and record.queue == STAGED_QUEUE:
                yield record

    def _find(self, id: bytes) -> WriteProgress | None:
        with self._parts.ledger.lock:
            return self._parts.ledger.writes.find(id)

    @contextmanager
    def _staged(self, id: bytes, attempt: bytes) -> Iterator[WriteProgress]:
        """Attempts store side by side, each one thing at a time; nobody closes the write meanwhile."""
        with self._lock:
            self._lock.wait_for(lambda: id not in self._closing and attempt not in self._staging.get(id, ()))
            self._staging.setdefault(id, set()).add(attempt)
        try:
            write = self.require(id)
            if write.is_closed:
                raise _closed(write.record)
            yield write
        finally:
            with self._lock:
                self._staging[id].discard(attempt)
                if not self._staging[id]:
                    del self._staging[id]
                self._lock.notify_all()

    @contextmanager
    def _alone(self, id: bytes) -> Iterator[None]:
        """One change of a write's state at a time, and nobody stages meanwhile."""
        with self._lock:
            self._lock.wait_for(lambda: id not in self._closing)
            self._closing.add(id)
            self._lock.wait_for(lambda: not self._staging.get(id))
        try:
            yield
        finally:
            with self._lock:
                self._closing.discard(id)
                self._lock.notify_all()


def _slice(records: Iterator[FlowFileRecord]) -> list[FlowFileRecord]:
    """As many as one transaction takes."""
    found: list[FlowFileRecord] = []
    size = 0
    for record in islice(records, SLICE):
        found.append(record)
        size += len(record.attributes)
        if size >= SLICE_BYTES_MAX:
            break
    return found


def _closed(record: StagedWrite) -> WriteClosed:
    state = WriteState(record.state).name.lower()
    return WriteClosed(f"staged write {format_uuid(record.id)} is {state}: that is too late, or too early")
