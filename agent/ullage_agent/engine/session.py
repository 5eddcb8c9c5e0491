"""ProcessSession: a transaction over FlowFiles, their attributes, their content and their queues.

A session holds what it polled: nobody else sees those FlowFiles until `commit` has made the session's whole work one
durable transaction, or `rollback` has put everything back. One thread uses a session at a time.

Order inside the transaction: resource claims, block checksums, creations, updates, deletions. A claim that goes on
living through a clone therefore never counts to zero on the way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import IO, Self

from ullage_agent.engine.content.reader import ContentStream
from ullage_agent.engine.content.writer import ClaimStream
from ullage_agent.engine.errors import (
    BackPressure,
    CommitOutcomeUnknown,
    FlowFileNotFound,
    RepositoryStopped,
    SessionMisuse,
)
from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.model import (
    HANDLE_QUEUE,
    ClaimBlocks,
    Content,
    ContentClaim,
    Delete,
    EventType,
    FlowFile,
    Lifetime,
    Operation,
    Update,
    new_uuids,
    pack_attributes,
    unpack_attributes,
    updated,
)
from ullage_agent.engine.provenance.registration import Registration
from ullage_agent.engine.provenance.reporter import ProvenanceReporter
from ullage_agent.engine.wal.format import OPERATIONS_MAX
from ullage_agent.engine.working import (
    SessionHost,
    Settled,
    Working,
    common_attributes,
    pieces_of,
    require_size,
    settle,
    with_blocks_of,
)

PENALTY_MILLIS = 30_000
"""How long a penalized FlowFile stays out of polls, as in NiFi."""


class ProcessSession:
    """See the module's text. After `commit` or `rollback` the session is empty and can be used again."""

    def __init__(self, host: SessionHost, component: str = "", component_type: str = "") -> None:
        """`component` is who works here, as provenance events name it: a processor's id and type."""
        self._host = host
        self._component = component
        self._component_type = component_type
        self.provenance = ProvenanceReporter(self._reportable)
        self._writer = host.new_writer()
        self._working: dict[bytes, Working] = {}
        self._ingested: list[tuple[FlowFileQueue, list[FlowFile]]] = []
        self._reported_ingested: set[bytes] = set()
        self._pinned: list[ContentClaim] = []
        self._counters: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Roll back what was not committed."""
        self.rollback()

    def get(self, queue: str) -> FlowFile | None:
        """The first FlowFile of a queue, or None."""
        found = self.get_many(queue, 1)
        return found[0] if found else None

    def get_many(self, queue: str, count: int) -> list[FlowFile]:
        """Up to `count` FlowFiles in the queue's order."""
        return self._hold(queue, count, None)

    def get_by(self, queue: str, wanted: Callable[[FlowFile], bool], count: int = OPERATIONS_MAX) -> list[FlowFile]:
        """Up to `count` FlowFiles that `wanted` accepts, of those in memory."""
        return self._hold(queue, count, wanted)

    def create(self, parents: Sequence[FlowFile] = (), attributes: dict[str, str] | None = None) -> FlowFile:
        """A new, empty FlowFile with uuid, filename and path.

        With parents it records them, starts its lineage where the oldest one did, and inherits their attributes: all
        of a single parent's, of several only those on which they agree.
        """
        originals = [self._find(parent).current for parent in parents]
        now = self._host.clock.now_millis()
        inherited = common_attributes(originals)
        record = FlowFile(
            new_uuids(1)[0],
            HANDLE_QUEUE,
            None,
            0,
            0,
            now,
            min((parent.lineage_millis for parent in originals), default=now),
            0,
            pack_attributes(inherited | (attributes or {})),
            b"".join(parent.uuid for parent in originals),
        )
        flow_file = self._add_new(record)
        if originals:
            self._spawned(flow_file, EventType.FORK if len(originals) == 1 else EventType.JOIN)
        return flow_file

    def ingest(
        self,
        queue: str,
        contents: list[bytes],
        attributes: dict[str, str] | Sequence[dict[str, str]] | None = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> list[FlowFile]:
        """Create a FlowFile for each content and transfer it: the batch form of create, write and transfer.

        `attributes` are for all, or one mapping each. What is ingested can be changed in a later session.
        """
        count = len(contents)
        packed: Iterable[bytes]
        if attributes is None or isinstance(attributes, dict):
            packed = repeat(pack_attributes(attributes or {}))
        elif len(attributes) == count:
            packed = map(pack_attributes, attributes)
        else:
            raise SessionMisuse(f"{count} contents came with attributes for {len(attributes)}")
        target = self._host.queues.queue(queue)
        claims = self._writer.put_many(contents, lifetime)
        now = self._host.clock.now_millis()
        first = self._host.queues.take_positions(count)
        records = list(
            map(
                FlowFile,
                new_uuids(count),
                repeat(target.number),
                claims,
                repeat(0),
                map(len, contents),
                repeat(now),
                repeat(now),
                range(first, first + count),
                packed,
            )
        )
        self._ingested.append((target, records))
        return records

    def import_handle(self, handle: bytes, attributes: dict[str, str] | None = None) -> FlowFile:
        """A new FlowFile over a handle's content, which is not copied, and pinned until the outcome is durable."""
        record = self._host.handle_record(handle)
        if record.claim is not None:
            self._host.ledger.pin([record.claim])
            self._pinned.append(record.claim)
        flow_file = self.create(attributes=unpack_attributes(record.attributes) | (attributes or {}))
        self._spawned(flow_file, EventType.CLONE, f"content of handle {record.id}").parents = record.uuid
        return self._set_content(self._find(flow_file), Content(record.claim, record.start, record.size))

    def write(
        self,
        flow_file: FlowFile,
        data: bytes | IO[bytes] | Iterable[bytes],
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> FlowFile:
        """Replace the content (copy on write: the old bytes stay until the commit, and for whoever shares them)."""
        working = self._find(flow_file)
        if isinstance(data, bytes):
            return self._set_content(working, self._writer.put(data, lifetime))
        with self._writer.stream(lifetime) as stream:
            for piece in pieces_of(data):
                stream.write(piece)
        return self._set_content(working, stream.content)

    @contextmanager
    def writing(self, flow_file: FlowFile, lifetime: Lifetime = Lifetime.DEFAULT) -> Iterator[ClaimStream]:
        """`with session.writing(f) as out: out.write(...)`: replace the content piece by piece in bounded memory."""
        working = self._find(flow_file)
        with self._writer.stream(lifetime) as stream:
            yield stream
        self._set_content(working, stream.content)

    def append(self, flow_file: FlowFile, data: bytes) -> FlowFile:
        """Content with `data` behind it: a new claim, because claims are immutable."""
        with self.read(flow_file) as old, self._writer.stream() as stream:
            for piece in old:
                stream.write(piece)
            stream.write(data)
        return self._set_content(self._find(flow_file), stream.content)

    def import_from(self, flow_file: FlowFile, source: IO[bytes], lifetime: Lifetime = Lifetime.DEFAULT) -> FlowFile:
        """Replace the content by everything that `source` holds."""
        return self.write(flow_file, source, lifetime)

    def read(self, flow_file: FlowFile, start: int = 0, size: int | None = None) -> ContentStream:
        """The content, or a range of it, as a stream that verifies what it hands out."""
        current = self._find(flow_file).current
        size = current.size - start if size is None else size
        if not 0 <= start <= start + size <= current.size:
            raise SessionMisuse(f"range {start}+{size} lies outside FlowFile {current.id} of {current.size} bytes")
        if current.claim is None or size == 0:
            return ContentStream(iter(()), 0, lambda: None)
        claim = current.claim
        self._writer.flush()
        if self._is_own(claim):
            return ContentStream(self._writer.read_back(claim, current.start + start, size), size, lambda: None)
        pieces = self._host.reader.stream(claim, current.start + start, size)
        return ContentStream(pieces, size, lambda: None)

    def clone(self, flow_file: FlowFile, start: int = 0, size: int | None = None) -> FlowFile:
        """Another FlowFile over the same bytes, or a slice of them; nothing is copied."""
        current = self._find(flow_file).current
        size = current.size - start if size is None else size
        if not 0 <= start <= start + size <= current.size:
            raise SessionMisuse(f"slice {start}+{size} lies outside FlowFile {current.id} of {current.size} bytes")
        clone = self.create([flow_file])
        self._spawned(clone, EventType.CLONE if size == current.size else EventType.FORK)
        claim = current.claim if size else None
        return self._set_content(self._find(clone), Content(claim, current.start + start if claim else 0, size))

    def split(self, flow_file: FlowFile, sizes: Sequence[int]) -> list[FlowFile]:
        """Consecutive slices as FlowFiles of their own, marked as NiFi marks fragments; nothing is copied."""
        current = self._find(flow_file).current
        if any(size < 0 for size in sizes) or sum(sizes) > current.size:
            raise SessionMisuse(f"sizes of {sum(sizes)} bytes do not fit FlowFile {current.id} of {current.size} bytes")
        fragments = []
        start = 0
        for number, size in enumerate(sizes):
            fragment = self.clone(flow_file, start, size)
            self._spawned(fragment, EventType.FORK)
            start += size
            marks = {
                "fragment.identifier": current.id,
                "fragment.index": str(number),
                "fragment.count": str(len(sizes)),
                "segment.original.filename": current.attribute_map()["filename"],
            }
            fragments.append(self.put_attributes(fragment, marks))
        return fragments

    def merge(
        self,
        flow_files: Sequence[FlowFile],
        header: bytes = b"",
        demarcator: bytes = b"",
        footer: bytes = b"",
    ) -> FlowFile:
        """One FlowFile whose content is theirs in order (JOIN); they stay in the session."""
        merged = self.create(flow_files)
        self._spawned(merged, EventType.JOIN)
        with self._writer.stream() as stream:
            stream.write(header)
            for number, flow_file in enumerate(flow_files):
                if number and demarcator:
                    stream.write(demarcator)
                with self.read(flow_file) as content:
                    for piece in content:
                        stream.write(piece)
            stream.write(footer)
        return self._set_content(self._find(merged), stream.content)

    def put_attributes(self, flow_file: FlowFile, attributes: dict[str, str]) -> FlowFile:
        """Set attributes; only these are logged. `uuid` is the record's own and cannot be set."""
        working = self._find(flow_file)
        if "uuid" in attributes:
            raise SessionMisuse("the attribute uuid belongs to the FlowFile and cannot be set")
        working.set.update(attributes)
        working.removed.difference_update(attributes)
        return self._refresh(working, Update(working.current.uuid, set_attributes=pack_attributes(attributes)))

    def put_attribute(self, flow_file: FlowFile, name: str, value: str) -> FlowFile:
        """Set one attribute."""
        return self.put_attributes(flow_file, {name: value})

    def remove_attributes(self, flow_file: FlowFile, names: Iterable[str]) -> FlowFile:
        """Remove attributes; the core ones fall back to their defaults."""
        working = self._find(flow_file)
        names = tuple(names)
        working.removed.update(names)
        for name in names:
            working.set.pop(name, None)
        return self._refresh(working, Update(working.current.uuid, remove_attributes=names))

    def transfer(self, flow_file: FlowFile, queue: str, relationship: str = "") -> None:
        """Where the FlowFile goes at the commit; along a named relationship it leaves a ROUTE event."""
        self.transfer_many((flow_file,), queue, relationship)

    def transfer_many(self, flow_files: Iterable[FlowFile], queue: str, relationship: str = "") -> None:
        """The batch form of `transfer`."""
        target = self._host.queues.queue(queue)
        for flow_file in flow_files:
            working = self._find(flow_file)
            working.target = target
            working.relationship = relationship

    def remove(self, flow_file: FlowFile) -> None:
        """The FlowFile ceases to exist at the commit."""
        self._find(flow_file).is_removed = True

    def remove_many(self, flow_files: Iterable[FlowFile]) -> None:
        """The batch form of `remove`."""
        for flow_file in flow_files:
            self._find(flow_file).is_removed = True

    def penalize(self, flow_file: FlowFile, millis: int = PENALTY_MILLIS) -> None:
        """Keep the FlowFile out of polls for a while after the commit. Not kept over a restart, as in NiFi."""
        self._find(flow_file).penalty_millis = millis

    def adjust_counter(self, name: str, delta: int) -> None:
        """Add to one of the repository's counters at the commit."""
        self._counters[name] = self._counters.get(name, 0) + delta

    def require_room(self, queue: str) -> None:
        """BackPressure if the queue has reached its count or bytes: what a source asks before it creates."""
        found = self._host.queues.queue(queue)
        if found.is_full:
            figures = found.figures()
            raise BackPressure(
                f"queue {queue} is full: {figures.flow_files} FlowFiles, {figures.size_bytes} bytes (limits "
                f"{found.definition.count_max} and {found.definition.bytes_max})"
            )

    def commit(self, also: Sequence[Operation] = ()) -> None:
        """Make everything durable as one transaction, in which `also` stands too, then show it.

        sync content | append frame | sync log        | queues show it, resource claims go back
                                      ^ commit point
        before it: a crash or an error leaves the state from before the session
        """
        unsettled = [w for w in self._working.values() if w.target is None and not w.is_removed]
        if unsettled:
            raise SessionMisuse(
                f"FlowFile {unsettled[0].current.id} and {len(unsettled) - 1} others were not transferred or removed"
            )
        require_size(self._working.values(), sum(len(records) for _, records in self._ingested))
        try:
            has_content = self._writer.has_content
            content = self._writer.sync()
            settled = settle(self._working.values(), self._host.queues.take_positions(len(self._working)))
            operations = [*also, *self._operations(content, settled)]
            creates = has_content or bool(self._ingested) or bool(settled.created)
            if operations:
                claims = [claim for claim in self._pinned if claim in settled.claims()]
                validate = (lambda: self._host.ledger.require_usable(claims)) if claims else None
                self._host.commit(operations, creates=creates, validate=validate)
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
            self._publish(settled)
            self._end(committed=True)

    def rollback(self, *, penalize: bool = False) -> None:
        """Leave nothing behind: polled FlowFiles go back to their queues as they were."""
        until = self._host.clock.now_millis() + PENALTY_MILLIS
        returned: dict[FlowFileQueue, list[FlowFile]] = {}
        working, self._working = self._working, {}
        for held in working.values():
            if held.original is not None and held.source is not None:
                if penalize:
                    held.source.acknowledge([held.original])
                    held.source.penalize(held.original, until)
                else:
                    returned.setdefault(held.source, []).append(held.original)
        for queue, records in returned.items():
            queue.requeue(records)
        self._end(committed=False)

    def _hold(self, queue: str, count: int, wanted: Callable[[FlowFile], bool] | None) -> list[FlowFile]:
        source = self._host.queues.queue(queue)
        records = self._host.queues.poll(source, count, wanted)
        for record in records:
            self._working[record.uuid] = Working(record, record, source)
        return records

    def _find(self, flow_file: FlowFile) -> Working:
        working = self._working.get(flow_file.uuid)
        if working is None:
            raise FlowFileNotFound(f"FlowFile {flow_file.id} is not held by this session: get or create it first")
        if working.is_removed:
            raise SessionMisuse(f"FlowFile {flow_file.id} was removed in this session")
        return working

    def _reportable(self, flow_file: FlowFile) -> FlowFile:
        """The FlowFile as it is in this session, ingested ones included."""
        if flow_file.uuid in self._working:
            return self._find(flow_file).current
        if len(self._reported_ingested) != sum(len(records) for _, records in self._ingested):
            self._reported_ingested = {record.uuid for _, records in self._ingested for record in records}
        return flow_file if flow_file.uuid in self._reported_ingested else self._find(flow_file).current

    def _spawned(self, flow_file: FlowFile, type: EventType, details: str = "") -> Working:
        """Note how a FlowFile that was created here came to be."""
        working = self._working[flow_file.uuid]
        working.spawned = type
        working.spawned_details = details
        return working

    def _add_new(self, record: FlowFile) -> FlowFile:
        self._working[record.uuid] = Working(None, record, None)
        return record

    def _set_content(self, working: Working, content: Content) -> FlowFile:
        working.content = content
        return self._refresh(working, Update(working.current.uuid, content=content))

    def _refresh(self, working: Working, update: Update) -> FlowFile:
        working.current = updated(working.current, update)
        return working.current

    def _is_own(self, claim: ContentClaim) -> bool:
        """Whether the claim was written in this session and is known to nobody else yet."""
        entry = self._host.ledger.entry(claim.resource)
        return entry is None or not entry.uses(claim)

    def _operations(self, content: list[Operation], settled: Settled) -> list[Operation]:
        """The transaction."""
        ingested = [record for _, records in self._ingested for record in records]
        if self._pinned or any(type(operation) is ClaimBlocks for operation in content):
            claims = settled.claims() | {record.claim for record in ingested}
            content = with_blocks_of(claims, content, self._pinned, self._host.ledger)
        events: list[Operation] = []
        if self._host.records_provenance:
            registration = Registration(ingested, self._working, settled, self.provenance.pending)
            events = registration.operations(self._component, self._component_type)
        return [
            *content,
            *ingested,
            *settled.created.values(),
            *settled.updates,
            *([Delete(b"".join(settled.removed))] if settled.removed else []),
            *events,
        ]

    def _publish(self, settled: Settled) -> None:
        """Show in the queues what is now durable."""
        arrivals: dict[FlowFileQueue, list[FlowFile]] = {}
        departures: dict[FlowFileQueue, list[FlowFile]] = {}
        now = self._host.clock.now_millis()
        for working in self._working.values():
            if working.source is not None and working.original is not None:
                departures.setdefault(working.source, []).append(working.original)
            if working.is_removed:
                continue
            assert working.target is not None
            record = settled.created.get(working.current.uuid) or self._host.ledger.find(working.current.uuid)
            assert record is not None, f"FlowFile {working.current.id} vanished while this session held it"
            if working.penalty_millis:
                working.target.penalize(record, now + working.penalty_millis)
            else:
                arrivals.setdefault(working.target, []).append(record)
        for queue, records in departures.items():
            queue.acknowledge(records)
        for queue, records in [*self._ingested, *arrivals.items()]:
            self._host.queues.offer(queue, records)
        self._host.add_counters(self._counters)

    def _abandon(self) -> None:
        """The outcome is not known: the transaction may stand, so neither its files nor its FlowFiles are touched.

        What it held stays out of the queues until the repository is reopened and the log tells.
        """
        self._writer.abandon()
        self._pinned = []
        self._working = {}
        self._ingested = []
        self._counters = {}
        self.provenance.take()

    def _end(self, *, committed: bool) -> None:
        """Be empty again, also if giving back what the session used fails: nothing may be given back twice."""
        pinned, self._pinned = self._pinned, []
        self._working = {}
        self._ingested = []
        self._counters = {}
        self.provenance.take()
        try:
            self._writer.release(committed=committed)
        finally:
            self._host.ledger.unpin(pinned)
