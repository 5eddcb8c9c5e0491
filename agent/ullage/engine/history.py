"""What people and programs ask of provenance: events, lineage, the content at an event, and replay.

Replay puts what an event was about back into the queue it came from, as it was then.
The exact claim is asked for, not its file: a claim that was truncated is refused, where NiFi queues a FlowFile whose
content is not there. From the question to the commit the claim is pinned, so that no truncation comes between.

    pin (under the ledger's lock: live, or dead and not given back) | read all of it | commit | unpin
    a truncation that intended before the pin: ClaimTruncated;  one after it: cuts to the end of what is pinned
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from ullage.engine.committer import ChangingParts
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.ledger.placement import pin_bytes
from ullage.engine.model import (
    NO_CONTENT,
    NOT_INHERITED,
    UUID_BYTES,
    ClaimBlocks,
    Content,
    ContentClaim,
    EventRun,
    EventType,
    FlowFileRecord,
    Operation,
    TransactionEvents,
    new_uuids,
    pack_attributes,
    parse_uuid,
    unpack_attributes,
)
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.engine.provenance.lineage import LineageGraph, trace
from ullage.engine.provenance.query import Page, event_at
from ullage.engine.repositories import ProvenanceRepository
from ullage.engine.uninterrupted import uninterrupted
from ullage.enums import LineageDirection
from ullage.errors import (
    ClaimGone,
    ClaimTruncated,
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    QueueNotFound,
    ReplayRefused,
)
from ullage.streams import ContentStream
from ullage.wire.provenance import EventQuery

REPLAYED = "flowfile.replay"
REPLAY_TIME = "flowfile.replay.timestamp"


class Reason(StrEnum):
    """Why an event cannot be replayed."""

    SEVERAL_PARENTS = "several parents"
    NO_QUEUE = "no queue"
    QUEUE_GONE = "queue gone"
    CLAIM_GONE = "claim gone"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"


class ReplayRefusal(NamedTuple):
    """A reason, and the particulars for a person."""

    reason: Reason
    message: str


class History:
    """The past of one repository. Thread-safe."""

    def __init__(self, parts: ChangingParts, store: ProvenanceRepository, queues: QueueManager) -> None:
        self._parts = parts
        self._store = store
        self._queues = queues

    def query(self, query: EventQuery) -> Page:
        """A page of events; see `provenance/query.py`."""
        return self._store.query(query)

    def event(self, sequence: int) -> ProvenanceEvent:
        """One event by its sequence number; EventNotFound if there is none, or none any more."""
        return event_at(self.query, sequence)

    def find(self, id: EventId) -> ProvenanceEvent:
        """One event by its id; EventNotFound."""
        return self._store.find(id)

    def lineage(
        self,
        flow_file: str,
        *,
        way: LineageDirection = LineageDirection.BOTH,
        depth: int = 100,
        events_max: int = 1_000,
    ) -> LineageGraph:
        """What a FlowFile was made from and what became of it; see `lineage.py`."""
        return trace(self.query, [parse_uuid(flow_file)], way=way, depth=depth, events_max=events_max)

    def content(
        self, event: ProvenanceEvent, *, before: bool = False, start: int = 0, size: int | None = None
    ) -> ContentStream:
        """The content at an event, or before it, or a range of it, pinned until the stream is closed.

        ClaimGone or ClaimTruncated if its bytes were given back; reading it raises as any reading does.
        """
        content = (event.content_before if before else event.content) or NO_CONTENT
        pin = partial(pin_bytes, self._parts.ledger)
        return self._parts.reader.opened(content, start, size, pin)

    def refusal(self, event: ProvenanceEvent, queue: str = "") -> ReplayRefusal | None:
        """Why this event cannot be replayed now, None if it can. Reads the whole content."""
        try:
            self._require_possible(event, queue)
            with self._verified(_content_of(event).claim):
                return None
        except ReplayRefused as error:
            return ReplayRefusal(Reason(error.reason), str(error))

    def replay(
        self,
        event: ProvenanceEvent,
        queue: str = "",
        also: Callable[[FlowFileRecord], Sequence[Operation]] = lambda _: (),
        by: str = "",
    ) -> FlowFileRecord:
        """Enqueue the FlowFile as it was before the event, and record REPLAY; ReplayRefused says why not.

        It goes to the queue that the event took it from, or to `queue`. An event that made its FlowFile has nothing
        before it: what it made is replayed, and a queue has to be named. `also` stands in the same transaction;
        `by` is the principal whom the event names.
        """
        target = self._require_possible(event, queue)
        content = _content_of(event)
        with self._verified(content.claim) as blocks:
            return self._enqueue(event, content, target, blocks, also, by)

    @uninterrupted
    def _enqueue(
        self,
        event: ProvenanceEvent,
        content: Content,
        target: FlowFileQueue,
        blocks: bytes | None,
        also: Callable[[FlowFileRecord], Sequence[Operation]],
        by: str,
    ) -> FlowFileRecord:
        record = self._record(event, content, target)
        self._commit(event, record, blocks, also(record), by)
        self._queues.offer(target, [record])
        return record

    def _require_possible(self, event: ProvenanceEvent, queue: str) -> FlowFileQueue:
        if len(event.parents) > UUID_BYTES:
            raise _refused(
                Reason.SEVERAL_PARENTS, event, "it joined several FlowFiles: replay the events that sent them there"
            )
        name = queue or event.queue
        if not name:
            raise _refused(Reason.NO_QUEUE, event, "its FlowFile came from no queue: name one")
        try:
            return self._queues.find(name)
        except QueueNotFound as error:
            raise _refused(Reason.QUEUE_GONE, event, str(error)) from error

    @contextmanager
    def _verified(self, claim: ContentClaim | None) -> Iterator[bytes | None]:
        """Pin a claim, and read all of it; its block CRCs."""
        if claim is None:
            yield None
            return
        try:
            pin_bytes(self._parts.ledger, claim)
        except ClaimTruncated as error:
            raise ReplayRefused(str(error), Reason.TRUNCATED) from error
        except ClaimGone as error:
            raise ReplayRefused(str(error), Reason.CLAIM_GONE) from error
        try:
            try:
                blocks = self._parts.reader.verified_blocks(claim)
            except (ContentMissing, ContentCorrupt, ContentReclaimed, OSError) as error:
                raise ReplayRefused(f"the content does not read back: {error}", Reason.UNREADABLE) from error
            yield blocks
        finally:
            self._parts.ledger.unpin([claim])

    def _record(self, event: ProvenanceEvent, content: Content, target: FlowFileQueue) -> FlowFileRecord:
        now = self._parts.clock.now_millis()
        attributes = unpack_attributes(event.attributes if event.content_before is None else event.attributes_before)
        attributes = {name: value for name, value in attributes.items() if name not in NOT_INHERITED}
        return FlowFileRecord(
            new_uuids(1)[0],
            target.number,
            content.claim,
            content.start,
            content.size,
            now,
            event.lineage_millis,
            self._queues.take_positions(1),
            pack_attributes(attributes | {REPLAYED: "true", REPLAY_TIME: str(now)}),
            event.uuid,
        )

    def _commit(
        self,
        event: ProvenanceEvent,
        record: FlowFileRecord,
        blocks: bytes | None,
        also: Sequence[Operation],
        by: str,
    ) -> None:
        claim = record.claim
        operations: list[Operation] = [*also]
        if claim is not None and blocks is not None:  # they went with the last claimant
            operations.append(ClaimBlocks(claim.resource, claim.offset, blocks))
        operations.append(record)
        if self._parts.records_provenance:
            details = f"replay of event {event.id} ({event.type.name})"
            run = EventRun(EventType.REPLAY, 0, 1, details=details, parents=event.uuid, children=record.uuid)
            operations.append(TransactionEvents("", by, (run,)))
        claims = [] if claim is None else [claim]
        creates = self._parts.admission.admitted(creates=True)
        self._parts.committer.commit(
            operations, creates=creates, validate=lambda: self._parts.ledger.require_usable(claims)
        )


def _content_of(event: ProvenanceEvent) -> Content:
    content = event.content if event.content_before is None else event.content_before
    return content or NO_CONTENT


def _refused(reason: Reason, event: ProvenanceEvent, why: str) -> ReplayRefused:
    return ReplayRefused(f"event {event.id} ({event.type.name}) cannot be replayed: {why}", reason)
