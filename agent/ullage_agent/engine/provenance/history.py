"""What people and programs ask of provenance: events, lineage, the content at an event, and replay."""

import os
from collections.abc import Callable, Sequence

from ullage_agent.contract import Provenance as ProvenanceSettings
from ullage_agent.engine.content.reader import ContentStream
from ullage_agent.engine.errors import EventNotFound, SessionMisuse
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.placement import pin_bytes
from ullage_agent.engine.model import Content, FlowFile, Operation, parse_uuid
from ullage_agent.engine.provenance.events import EventId, ProvenanceEvent
from ullage_agent.engine.provenance.index import ProvenanceIndex
from ullage_agent.engine.provenance.lineage import Lineage, Way, trace
from ullage_agent.engine.provenance.query import Page, Query, search
from ullage_agent.engine.provenance.replay import Refusal, Replayer, ReplayHost
from ullage_agent.engine.provenance.store import PROVENANCE, ProvenanceStore


class History:
    """The past of one repository. Thread-safe."""

    def __init__(
        self, files: Files, root: str, store: ProvenanceStore, settings: ProvenanceSettings, host: ReplayHost
    ) -> None:
        self._files = files
        self._directory = os.path.join(root, PROVENANCE)
        self._store = store
        self._settings = settings
        self._host = host
        self._replayer = Replayer(host)
        self._index: ProvenanceIndex | None = None

    def query(self, query: Query) -> Page:
        """A page of events; see `query.py`."""
        return search(self._store, self._opened_index(), query)

    def event(self, sequence: int) -> ProvenanceEvent:
        """One event by its sequence number; EventNotFound if there is none, or none any more."""
        page = self.query(Query(after=sequence - 1, before=sequence + 1, limit=1))
        if not page.events:
            gone = "was removed by retention" if 0 < sequence <= page.removed_through else "does not exist"
            raise EventNotFound(f"provenance event {sequence} {gone}")
        return page.events[0]

    def find(self, id: EventId) -> ProvenanceEvent:
        """One event by its id; EventNotFound."""
        manifest, newest = self._store.moment()
        for numbered in newest:
            if numbered.told.transaction == id.transaction and id.ordinal < numbered.told.events:
                return self.event(numbered.first_sequence + id.ordinal)
        for file in manifest.files:
            if file.first_id <= id.transaction <= file.last_id:
                sequence = self._store.event_files.sequence_of(file, id)
                if sequence is not None:
                    return self.event(sequence)
        raise EventNotFound(f"provenance event {id} does not exist, or was removed by retention")

    def lineage(self, flow_file: str, *, way: Way = Way.BOTH, depth: int = 100, events_max: int = 1_000) -> Lineage:
        """What a FlowFile was made from and what became of it; see `lineage.py`."""
        return trace(self.query, [parse_uuid(flow_file)], way=way, depth=depth, events_max=events_max)

    def content(
        self, event: ProvenanceEvent, *, before: bool = False, start: int = 0, size: int | None = None
    ) -> ContentStream:
        """The content at an event, or before it, or a range of it, pinned until the stream is closed.

        ClaimGone or ClaimTruncated if its bytes were given back; reading it raises as any reading does.
        """
        content: Content = (event.content_before if before else event.content) or Content(None, 0, 0)
        claim = content.claim
        size = content.size - start if size is None else size
        if not 0 <= start <= start + size <= content.size:
            raise SessionMisuse(f"range {start}+{size} lies outside the content of {content.size} bytes")
        if claim is None or size == 0:
            return ContentStream(iter(()), 0, lambda: None)
        pin_bytes(self._host.ledger, claim)
        pieces = self._host.reader.stream(claim, content.start + start, size)
        return ContentStream(pieces, size, lambda: self._host.ledger.unpin([claim]))

    def refusal(self, event: ProvenanceEvent, queue: str = "") -> Refusal | None:
        """Why an event cannot be replayed; None if it can."""
        return self._replayer.refusal(event, queue)

    def replay(
        self, event: ProvenanceEvent, queue: str = "", also: Callable[[FlowFile], Sequence[Operation]] = lambda _: ()
    ) -> FlowFile:
        """Put what an event was about back into its queue; see `replay.py`."""
        return self._replayer.replay(event, queue, also)

    def index_step(self) -> int:
        """Index for a while what is not indexed; returns how many events."""
        index = self._opened_index()
        return 0 if index is None else index.step()

    def close(self) -> None:
        """Release the index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _opened_index(self) -> ProvenanceIndex | None:
        """Opened once there have been event files: without them there is nothing to index, or to forget."""
        if self._index is None and self._store.manifest.next_sequence > 1:
            self._index = ProvenanceIndex(self._files, self._directory, self._store, self._settings, self._host.clock)
        return self._index
