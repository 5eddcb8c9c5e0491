"""ProcessSession: a transaction over FlowFiles, their attributes, their content and their queues.

A session holds what it polled: nobody else sees those FlowFiles until `commit` has made the session's whole work one
durable transaction, or `rollback` has put everything back. One thread uses a session at a time.

Order inside the transaction: resource claims, block checksums, creations, updates, deletions. A claim that goes on
living through a clone therefore never counts to zero on the way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from weakref import ref

from ullage.engine.batches import Attributes, packed_attributes
from ullage.engine.byteranges import require_range
from ullage.engine.content.writer import ClaimStream
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.forgotten import Place, place
from ullage.engine.forking import lose
from ullage.engine.model import (
    ClaimBlocks,
    Content,
    ContentClaim,
    Delete,
    EventType,
    FlowFileRecord,
    Lifetime,
    Operation,
    Update,
    pack_attributes,
    unpack_attributes,
)
from ullage.engine.provenance.reporter import ProvenanceReporter
from ullage.engine.registration import Registration
from ullage.engine.undoing import Undoing
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.updates import require_attributes, updated
from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.engine.working import (
    CONTENT_BYTES,
    PENALTY_MILLIS,
    RECORD_BYTES,
    SessionParts,
    Settled,
    Working,
    bytes_of,
    created,
    fitting,
    fragment_marks,
    growth,
    ingested,
    publish,
    put_back,
    require_settled,
    require_size,
    settle,
    with_blocks_of,
    work_bytes,
)
from ullage.errors import CommitOutcomeUnknown, FlowFileNotFound, InvalidArgument, RepositoryStopped, SessionMisuse
from ullage.sessionroom import NOTE_BYTES, SessionRoom, text_bytes
from ullage.streams import AnyContent, Closable, ContentStream, pieces_of


class ProcessSession(Closable):
    """See the module's text. After `commit` or `rollback` the session is empty and can be used again."""

    _begun: Place | None = None

    def __init__(
        self,
        parts: SessionParts,
        component: str = "",
        component_type: str = "",
        depth: int = 1,
        tenant: str = "",
        room: SessionRoom | None = None,
    ) -> None:
        """`component`, a processor's id and type, is who events name; the rest is as in `Engine.session`."""
        self._parts = parts
        self._room = room or SessionRoom()
        self._component = component
        self._component_type = component_type
        self.provenance = ProvenanceReporter(ref(self))
        self._undoing = Undoing(self._room, self.provenance)
        self._tenant = tenant
        self._writer = parts.admission.new_writer(tenant)
        self._working: dict[bytes, Working] = {}
        self._ingested: list[tuple[FlowFileQueue, list[FlowFileRecord]]] = []
        self._ingested_count = 0
        self._reported_ingested: set[bytes] = set()
        self._pinned: list[ContentClaim] = []
        self._counters: dict[str, int] = {}
        self._begun = place(depth)
        parts.forgotten.begun(self)

    def close(self) -> None:
        """Roll back what was not committed."""
        self.rollback()

    def forked(self) -> None:
        """Called in a forked child: nothing can be done in it there."""
        self._writer.forked()
        lose(self)

    def __del__(self) -> None:
        if self._begun is None:  # an interrupt fell into its making
            return
        forgotten = self._parts.forgotten
        forgotten.holders.pop(id(self), None)
        if self._working or self._ingested or self._pinned or self._writer.has_content:
            forgotten.note("a session", self._begun, self.rollback)

    def get(self, queue: str) -> FlowFileRecord | None:
        """The first FlowFile of a queue, or None, also if there is no such queue: reading makes none."""
        found = self.get_many(queue, 1)
        return found[0] if found else None

    def get_many(self, queue: str, count: int) -> list[FlowFileRecord]:
        """Up to `count` FlowFiles in the queue's order; none of a queue that there is not."""
        return self._hold(queue, count, None)

    def get_by(
        self, queue: str, wanted: Callable[[FlowFileRecord], bool], count: int = OPERATIONS_MAX
    ) -> list[FlowFileRecord]:
        """Up to `count` FlowFiles that `wanted` accepts, of those in memory."""
        return self._hold(queue, count, wanted)

    def create(
        self, parents: Sequence[FlowFileRecord] = (), attributes: dict[str, str] | None = None
    ) -> FlowFileRecord:
        """A new, empty FlowFile with uuid, filename and path.

        With parents it records them, starts its lineage where the oldest one did, and inherits their attributes: all
        of a single parent's, of several only those on which they agree.
        """
        originals = [self._find(parent).current for parent in parents]
        record = created(originals, attributes or {}, self._parts.clock.now_millis())
        self._room.take(bytes_of(record))
        self._working[record.uuid] = Working(None, record, None, parents=record.parents)
        if originals:
            self._spawned(record, EventType.FORK if len(originals) == 1 else EventType.JOIN)
        return record

    def ingest(
        self,
        queue: str,
        contents: list[bytes],
        attributes: Attributes = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> list[FlowFileRecord]:
        """Create a FlowFile for each content and transfer it: the batch form of create, write and transfer.

        `attributes` are for all, or one mapping each. What is ingested can be changed in a later session.
        """
        count = len(contents)
        packed = list(packed_attributes(attributes, count))
        # Before anything is written: what is refused, again and again, would fill files with dead bytes.
        with self._room.taking(RECORD_BYTES + len(each) for each in packed):
            target = self._parts.queues.queue(queue, self._tenant)
            claims = self._writer.put_many(contents, lifetime)
        first = self._parts.queues.take_positions(count)
        records = ingested(target.number, first, contents, claims, packed, self._parts.clock.now_millis())
        self._ingested.append((target, records))
        self._ingested_count += count
        return records

    def import_handle(self, handle: bytes, attributes: dict[str, str] | None = None) -> FlowFileRecord:
        """A new FlowFile over a handle's content, which is not copied, and pinned until the outcome is durable."""
        record = self._parts.handles.record(handle)
        # Before the pin: what is refused pins nothing.
        flow_file = self.create(attributes=unpack_attributes(record.attributes) | (attributes or {}))
        if record.claim is not None:
            self._parts.ledger.pin([record.claim])
            self._pinned.append(record.claim)
        self._spawned(flow_file, EventType.CLONE, f"content of handle {record.id}").parents = record.uuid
        return self._set_content(self._find(flow_file), Content(record.claim, record.start, record.size))

    def write(
        self,
        flow_file: FlowFileRecord,
        data: AnyContent,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> FlowFileRecord:
        """Replace the content (copy on write: the old bytes stay until the commit, and for whoever shares them)."""
        working = self._find(flow_file)
        if isinstance(data, bytes):
            self._room.take(CONTENT_BYTES)
            return self._set_content(working, self._writer.put(data, lifetime))
        with self.writing(flow_file, lifetime) as stream:
            for piece in pieces_of(data):
                stream.write(piece)
        return working.current

    @contextmanager
    def writing(self, flow_file: FlowFileRecord, lifetime: Lifetime = Lifetime.DEFAULT) -> Iterator[ClaimStream]:
        """`with session.writing(f) as out: out.write(...)`: replace the content piece by piece in bounded memory."""
        working = self._find(flow_file)
        self._room.take(CONTENT_BYTES)
        with self._writer.stream(lifetime) as stream:
            yield stream
        self._set_content(working, stream.content)

    def append(self, flow_file: FlowFileRecord, data: AnyContent) -> FlowFileRecord:
        """Content with `data` behind it: a new claim, because claims are immutable."""
        self._room.take(CONTENT_BYTES)
        with self.read(flow_file) as old, self._writer.stream() as stream:
            for piece in chain(old, [data] if isinstance(data, bytes) else pieces_of(data)):
                stream.write(piece)
        return self._set_content(self._find(flow_file), stream.content)

    def read(self, flow_file: FlowFileRecord, start: int = 0, size: int | None = None) -> ContentStream:
        """The content, or a range of it, as a stream that verifies what it hands out."""
        current = self._find(flow_file).current
        size = current.size - start if size is None else size
        require_range(start, size, current.size)
        if current.claim is None or size == 0:
            return ContentStream(iter(()), 0, lambda: None)
        claim = current.claim
        self._writer.flush()
        if self._is_own(claim):
            return ContentStream(self._writer.read_back(claim, current.start + start, size), size, self._let_go)
        pieces = self._parts.reader.stream(claim, current.start + start, size, record=current)
        return ContentStream(pieces, size, self._let_go)

    def clone(self, flow_file: FlowFileRecord, start: int = 0, size: int | None = None) -> FlowFileRecord:
        """Another FlowFile over the same bytes, or a slice of them; nothing is copied."""
        current = self._find(flow_file).current
        size = current.size - start if size is None else size
        require_range(start, size, current.size)
        clone = self.create([flow_file])
        self._spawned(clone, EventType.CLONE if size == current.size else EventType.FORK)
        claim = current.claim if size else None
        return self._set_content(self._find(clone), Content(claim, current.start + start if claim else 0, size))

    def split(self, flow_file: FlowFileRecord, sizes: Sequence[int]) -> list[FlowFileRecord]:
        """Consecutive slices as FlowFiles of their own, marked as NiFi marks fragments; nothing is copied."""
        current = self._find(flow_file).current
        if any(size < 0 for size in sizes) or sum(sizes) > current.size:
            raise InvalidArgument(f"sizes of {sum(sizes)} bytes do not fit FlowFile {current.id} of {current.size}")
        fragments = []
        start = 0
        with self.as_a_whole():
            for number, size in enumerate(sizes):
                fragment = self.clone(flow_file, start, size)
                self._spawned(fragment, EventType.FORK)
                start += size
                fragments.append(self.put_attributes(fragment, fragment_marks(current, number, len(sizes))))
        return fragments

    def merge(
        self,
        flow_files: Sequence[FlowFileRecord],
        header: bytes = b"",
        demarcator: bytes = b"",
        footer: bytes = b"",
    ) -> FlowFileRecord:
        """One FlowFile whose content is theirs in order (JOIN); they stay in the session."""
        with self.as_a_whole(), self._writer.stream() as stream:
            merged = self.create(flow_files)
            self._spawned(merged, EventType.JOIN)
            stream.write(header)
            for number, flow_file in enumerate(flow_files):
                if number and demarcator:
                    stream.write(demarcator)
                with self.read(flow_file) as content:
                    for piece in content:
                        stream.write(piece)
            stream.write(footer)
        return self._set_content(self._find(merged), stream.content)

    def put_attributes(self, flow_file: FlowFileRecord, attributes: dict[str, str]) -> FlowFileRecord:
        """Set attributes; only these are logged. `uuid` is the record's own and cannot be set."""
        working = self._find(flow_file)
        if "uuid" in attributes:
            raise InvalidArgument("the attribute uuid belongs to the FlowFile and cannot be set")
        update = Update(working.current.uuid, set_attributes=pack_attributes(attributes))
        return self._change(working, update, {**working.changed, **attributes}, working.removed.difference(attributes))

    def put_attribute(self, flow_file: FlowFileRecord, name: str, value: str) -> FlowFileRecord:
        """Set one attribute."""
        return self.put_attributes(flow_file, {name: value})

    def remove_attributes(self, flow_file: FlowFileRecord, names: Iterable[str]) -> FlowFileRecord:
        """Remove attributes; the core ones fall back to their defaults."""
        working = self._find(flow_file)
        names = tuple(names)
        removed = working.removed.union(names)
        changed = {name: value for name, value in working.changed.items() if name not in removed}
        return self._change(working, Update(working.current.uuid, remove_attributes=names), changed, removed)

    def transfer(self, flow_file: FlowFileRecord, queue: str, relationship: str = "") -> None:
        """Where the FlowFile goes at the commit; along a named relationship it leaves a ROUTE event."""
        self.transfer_many((flow_file,), queue, relationship)

    def transfer_many(self, flow_files: Iterable[FlowFileRecord], queue: str, relationship: str = "") -> None:
        """The batch form of `transfer`."""
        target = self._parts.queues.queue(queue, self._tenant)
        found = {flow_file.uuid: self._find(flow_file) for flow_file in flow_files}.values()
        if relationship:  # a way that is left again keeps its room
            self._room.take(len(found) * text_bytes(relationship))
        for working in found:
            working.target = target
            working.relationship = relationship

    def remove(self, flow_file: FlowFileRecord) -> None:
        """The FlowFile ceases to exist at the commit."""
        self.remove_many((flow_file,))

    def remove_many(self, flow_files: Iterable[FlowFileRecord]) -> None:
        """The batch form of `remove`."""
        for flow_file in flow_files:
            self._find(flow_file).is_removed = True

    def penalize(self, flow_file: FlowFileRecord, millis: int = PENALTY_MILLIS) -> None:
        """Keep the FlowFile out of polls for a while after the commit. Not kept over a restart, as in NiFi."""
        self._find(flow_file).penalty_millis = millis

    def adjust_counter(self, name: str, delta: int) -> None:
        """Add to one of the repository's counters at the commit."""
        if name not in self._counters:
            self._room.take(NOTE_BYTES + text_bytes(name))
        self._counters[name] = self._counters.get(name, 0) + delta

    def unsettled(self) -> list[FlowFileRecord]:
        """Those that were neither transferred nor removed yet."""
        return [held.current for held in self._working.values() if held.target is None and not held.is_removed]

    def require_room(self, queue: str) -> None:
        """BackPressure if the queue has reached its count or bytes: what a source asks before it creates."""
        found = self._parts.queues.known(queue)
        if found is not None:
            found.require_room()

    @uninterrupted
    def commit(self, also: Sequence[Operation] = ()) -> None:
        """Make everything durable as one transaction, in which `also` stands too, then show it.

        sync content | append frame | sync log        | queues show it, resource claims go back
                                      ^ commit point
        before it: a crash or an error leaves the state from before the session
        """
        require_settled(self.unsettled())
        require_size(self._working.values(), self._ingested_count)
        try:
            has_content = self._writer.has_content
            content = self._writer.sync()
            settled = settle(self._working.values(), self._parts.queues.take_positions(len(self._working)))
            operations = [*also, *self._operations(content, settled)]
            creates = self._parts.admission.admitted(creates=has_content or bool(self._ingested or settled.created))
            if operations:
                claims = [claim for claim in self._pinned if claim in settled.claims()]
                validate = (lambda: self._parts.ledger.require_usable(claims)) if claims else None
                self._parts.committer.commit(operations, creates=creates, validate=validate)
        except (CommitOutcomeUnknown, RepositoryStopped):
            self._abandon()
            raise
        except Exception:
            self.rollback()
            raise
        except BaseException:
            self._abandon()  # interrupted: nobody can say where
            raise
        try:
            self._writer.release(committed=True)
        finally:
            publish(self._parts, self._working.values(), self._ingested, settled)
            self._parts.counters.add(self._counters)
            self._parts.ledger.unpin(self._forget())

    def rollback(self, *, penalize: bool = False) -> None:
        """Leave nothing behind: polled FlowFiles go back to their queues as they were."""
        if not self.is_empty:
            self._roll_back(penalize=penalize)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit, as after a rollback, and a commit whatever came of it."""
        return not (self._working or self._ingested or self._pinned or self._counters or self._writer.is_used)

    def as_a_whole(self) -> AbstractContextManager[None]:
        """What is created and changed meanwhile stands if this ends well, or all is as it was, to be said again."""
        return self._undoing.as_a_whole(self._working, self._counters)

    @uninterrupted
    def _roll_back(self, *, penalize: bool) -> None:
        working, self._working = self._working, {}
        put_back(working.values(), self._parts.clock.now_millis() + PENALTY_MILLIS if penalize else None)
        pinned = self._forget()
        try:
            self._writer.release(committed=False)
        finally:  # also if that fails: nothing may be given back twice
            self._parts.ledger.unpin(pinned)

    @uninterrupted
    def _hold(self, queue: str, count: int, wanted: Callable[[FlowFileRecord], bool] | None) -> list[FlowFileRecord]:
        self._parts.forgotten.give_back()
        source = self._parts.queues.known(queue)
        if source is None:
            return []
        held = fitting(self._parts.queues.poll(source, count, wanted), self._room, source)
        for record in held:
            self._working[record.uuid] = Working(record, record, source)
        return held

    def _find(self, flow_file: FlowFileRecord) -> Working:
        working = self._working.get(flow_file.uuid)
        if working is None:
            raise FlowFileNotFound(f"FlowFile {flow_file.id} is not held by this session: get or create it first")
        if working.is_removed:
            raise SessionMisuse(f"FlowFile {flow_file.id} was removed in this session")
        self._undoing.note(working)
        return working

    def _let_go(self) -> None:
        """A stream holds nothing but its session, which holds the FlowFile: that is not forgotten before the stream."""

    def reportable(self, flow_file: FlowFileRecord) -> FlowFileRecord:
        """The FlowFile as it is in this session, ingested ones included."""
        if flow_file.uuid in self._working:
            return self._find(flow_file).current
        if len(self._reported_ingested) != self._ingested_count:
            self._reported_ingested = {record.uuid for _, records in self._ingested for record in records}
        return flow_file if flow_file.uuid in self._reported_ingested else self._find(flow_file).current

    def keep_report(self, records: Sequence[FlowFileRecord], size: int) -> None:
        """A report of these FlowFiles is kept, as they are now, until the commit; called before it is."""
        self._room.take(size)
        for record in records:
            if (working := self._working.get(record.uuid)) is not None:
                working.is_reported = True

    def _spawned(self, flow_file: FlowFileRecord, type: EventType, details: str = "") -> Working:
        """Note how a FlowFile that was created here came to be."""
        working = self._working[flow_file.uuid]
        working.spawned = type
        working.spawned_details = details
        return working

    def _set_content(self, working: Working, content: Content) -> FlowFileRecord:
        changed = self._change(working, Update(working.current.uuid, content=content), working.changed, working.removed)
        working.content = content
        return changed

    def _change(
        self, working: Working, update: Update, changed: Mapping[str, str], removed: frozenset[str]
    ) -> FlowFileRecord:
        """What a FlowFile is now, and which attributes were changed and removed in all."""
        current = updated(working.current, update)
        if update.set_attributes is not None:
            require_attributes(current)
        if self._room.is_bounded:  # counting costs as much as changing
            self._room.work(work_bytes(current, changed, removed))
            self._room.take(growth(working, current, changed, removed))
        working.current, working.changed, working.removed, working.is_reported = current, changed, removed, False
        return current

    def _is_own(self, claim: ContentClaim) -> bool:
        """Whether the claim was written in this session and is known to nobody else yet."""
        entry = self._parts.ledger.entry(claim.resource)
        return entry is None or not entry.uses(claim)

    def _operations(self, content: list[Operation], settled: Settled) -> list[Operation]:
        """The transaction."""
        batches = [record for _, records in self._ingested for record in records]
        if self._pinned or any(type(operation) is ClaimBlocks for operation in content):
            claims = settled.claims() | {record.claim for record in batches}
            content = with_blocks_of(claims, content, self._pinned, self._parts.reader)
        events: list[Operation] = []
        if self._parts.records_provenance:
            registration = Registration(batches, self._working, settled, self.provenance.pending)
            events = registration.operations(self._component, self._component_type)
        return [
            *content,
            *batches,
            *settled.created.values(),
            *settled.updates,
            *([Delete(b"".join(settled.removed))] if settled.removed else []),
            *events,
        ]

    def _abandon(self) -> None:
        """The outcome is not known: the transaction may stand, so neither its files nor its FlowFiles are touched.

        What it held stays out of the queues until the repository is reopened and the log tells.
        """
        self._writer.abandon()
        self._forget()

    def _forget(self) -> list[ContentClaim]:
        """Be empty; what was pinned is the caller's to give back."""
        pinned, self._pinned = self._pinned, []
        self._working = {}
        self._ingested, self._ingested_count = [], 0
        self._counters = {}
        self._undoing.forget()
        self._room.clear()
        self.provenance.take()
        return pinned
