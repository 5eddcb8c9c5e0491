"""Replay: what an event was about, put back into the queue it came from, as it was then.

The exact claim is asked for, not its file: a claim that was truncated is refused, where NiFi queues a FlowFile whose
content is not there. From the question to the commit the claim is pinned, so that no truncation comes between.

    pin (under the ledger's lock: live, or dead and not given back) | read all of it | commit | unpin
    a truncation that intended before the pin: ClaimTruncated;  one after it: cuts to the end of what is pinned
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.reader import ContentReader
from ullage_agent.engine.errors import (
    ClaimGone,
    ClaimTruncated,
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    FlowFileNotFound,
    ReplayRefused,
)
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.manager import QueueManager
from ullage_agent.engine.flowfile.placement import pin_bytes
from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.model import (
    UUID_BYTES,
    ClaimBlocks,
    Content,
    ContentClaim,
    EventRun,
    Events,
    EventType,
    FlowFile,
    Operation,
    new_uuids,
    pack_attributes,
    unpack_attributes,
)
from ullage_agent.engine.provenance.events import ProvenanceEvent

REPLAYED = "flowfile.replay"
REPLAY_TIME = "flowfile.replay.timestamp"
NOT_REPLAYED = ("alternate.identifier", "discard.reason")
"""Attributes that say something of the original only."""


class Reason(StrEnum):
    """Why an event cannot be replayed."""

    SEVERAL_PARENTS = "several parents"
    NO_QUEUE = "no queue"
    QUEUE_GONE = "queue gone"
    CLAIM_GONE = "claim gone"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"


class Refusal(NamedTuple):
    """A reason, and the particulars for a person."""

    reason: Reason
    message: str


class ReplayHost(Protocol):
    """What replay needs of its repository."""

    ledger: Ledger
    reader: ContentReader
    queues: QueueManager
    clock: Clock
    records_provenance: bool

    def commit(
        self, operations: Sequence[Operation], *, creates: bool, validate: Callable[[], None] | None = None
    ) -> int: ...


class Replayer:
    """Thread-safe."""

    def __init__(self, host: ReplayHost) -> None:
        self._host = host

    def refusal(self, event: ProvenanceEvent, queue: str = "") -> Refusal | None:
        """Why this event cannot be replayed now, None if it can. Reads the whole content."""
        try:
            self._require_possible(event, queue)
            claim = _content_of(event).claim
            if claim is not None:
                self._pin(claim)
                try:
                    self._verify(claim)
                finally:
                    self._host.ledger.unpin([claim])
        except ReplayRefused as error:
            return Refusal(Reason(error.reason), str(error))
        return None

    def replay(
        self, event: ProvenanceEvent, queue: str = "", also: Callable[[FlowFile], Sequence[Operation]] = lambda _: ()
    ) -> FlowFile:
        """Enqueue the FlowFile as it was before the event, and record REPLAY; ReplayRefused says why not.

        It goes to the queue that the event took it from, or to `queue`. An event that made its FlowFile has nothing
        before it: what it made is replayed, and a queue has to be named. `also` stands in the same transaction.
        """
        target = self._require_possible(event, queue)
        content = _content_of(event)
        claim = content.claim
        blocks = None
        if claim is not None:
            self._pin(claim)
        try:
            if claim is not None:
                blocks = self._verify(claim)
            record = self._record(event, content, target)
            self._commit(event, record, claim, blocks, also(record))
        finally:
            if claim is not None:
                self._host.ledger.unpin([claim])
        self._host.queues.offer(target, [record])
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
            return self._host.queues.find(name)
        except FlowFileNotFound as error:
            raise _refused(Reason.QUEUE_GONE, event, str(error)) from error

    def _pin(self, claim: ContentClaim) -> None:
        try:
            pin_bytes(self._host.ledger, claim)
        except ClaimTruncated as error:
            raise ReplayRefused(Reason.TRUNCATED, str(error)) from error
        except ClaimGone as error:
            raise ReplayRefused(Reason.CLAIM_GONE, str(error)) from error

    def _verify(self, claim: ContentClaim) -> bytes | None:
        try:
            return self._host.reader.verified_blocks(claim)
        except (ContentMissing, ContentCorrupt, ContentReclaimed, OSError) as error:
            raise ReplayRefused(Reason.UNREADABLE, f"the content does not read back: {error}") from error

    def _record(self, event: ProvenanceEvent, content: Content, target: FlowFileQueue) -> FlowFile:
        now = self._host.clock.now_millis()
        attributes = unpack_attributes(event.attributes if event.content_before is None else event.attributes_before)
        attributes = {name: value for name, value in attributes.items() if name not in NOT_REPLAYED}
        return FlowFile(
            new_uuids(1)[0],
            target.number,
            content.claim,
            content.start,
            content.size,
            now,
            event.lineage_millis,
            self._host.queues.take_positions(1),
            pack_attributes(attributes | {REPLAYED: "true", REPLAY_TIME: str(now)}),
            event.uuid,
        )

    def _commit(
        self,
        event: ProvenanceEvent,
        record: FlowFile,
        claim: ContentClaim | None,
        blocks: bytes | None,
        also: Sequence[Operation],
    ) -> None:
        operations: list[Operation] = [*also]
        if claim is not None and blocks is not None:  # they went with the last claimant
            operations.append(ClaimBlocks(claim.resource, claim.offset, blocks))
        operations.append(record)
        if self._host.records_provenance:
            details = f"replay of event {event.id} ({event.type.name})"
            run = EventRun(EventType.REPLAY, 0, 1, details=details, parents=event.uuid, children=record.uuid)
            operations.append(Events("", "", (run,)))
        claims = [] if claim is None else [claim]
        self._host.commit(operations, creates=True, validate=lambda: self._host.ledger.require_usable(claims))


def _content_of(event: ProvenanceEvent) -> Content:
    content = event.content if event.content_before is None else event.content_before
    return content or Content(None, 0, 0)


def _refused(reason: Reason, event: ProvenanceEvent, why: str) -> ReplayRefused:
    return ReplayRefused(reason, f"event {event.id} ({event.type.name}) cannot be replayed: {why}")
