"""The past over the engine's history."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ullage.contract import QueueUse
from ullage.embedded.acting import Acting
from ullage.embedded.content import ReadableContent, known_crc
from ullage.embedded.deleted import Deleted
from ullage.embedded.once import Operations, nothing_else
from ullage.embedded.rows import LazyRows, event_rows
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.model import NO_CONTENT, FlowFileRecord
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.errors import EventNotFound, InvalidArgument
from ullage.interface.checks import checked_part, checked_query, checked_text, lineage_bounds
from ullage.interface.provenance import Provenance
from ullage.streams import ContentStream
from ullage.wire.provenance import Event, EventPage, EventQuery, Lineage, Replayability, ReplayResult

_ID = re.compile(r"(\d{1,18})\.(\d{1,9})", re.ASCII)
_SEQUENCE = re.compile(r"\d{1,18}", re.ASCII)


class EmbeddedProvenance(Provenance):
    """The history of one engine. It tells of all queues alike, so who may not read one of them may not see it."""

    def __init__(self, engine: Engine, acting: Acting) -> None:
        self._engine = engine
        self._history = engine.history
        self._acting = acting

    def search(self, query: EventQuery | None = None) -> EventPage:
        return _whole(self.search_rows(query))

    def search_rows(self, query: EventQuery | None = None) -> tuple[EventPage, LazyRows[Event]]:
        """What a search finds: the page without its events, and these, of which each document is made when it is asked
        for.
        """
        self._require_readable()
        found = self._history.query(checked_query(query))
        return documents.event_page(found), event_rows(found.events)

    def event(self, event: str | int) -> Event:
        return documents.event(self.found(event))

    def content(
        self, event: str | int, start: int = 0, size: int | None = None, *, previous: bool = False
    ) -> ContentStream:
        start, size = checked_part(start, size)
        return self._history.content(self._seen(event), before=previous, start=start, size=size)

    def lineage(self, flow_file: str, *, way: str = "both", depth: int = 100, limit: int = 1_000) -> Lineage:
        return _whole(self.lineage_rows(flow_file, way=way, depth=depth, limit=limit))

    def lineage_rows(
        self, flow_file: str, *, way: str = "both", depth: int = 100, limit: int = 1_000
    ) -> tuple[Lineage, LazyRows[Event]]:
        """The same for a lineage."""
        self._require_readable()
        direction, depth, limit = lineage_bounds(way, depth, limit)
        flow_file = checked_text(flow_file, "a FlowFile's id")
        try:
            found = self._history.lineage(flow_file, way=direction, depth=depth, events_max=limit)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        return documents.lineage_graph(found), event_rows(found.events)

    def replayability(self, event: str | int, queue: str = "") -> Replayability:
        refusal = self._history.refusal(self._seen(event), checked_text(queue, "a queue's name"))
        if refusal is None:
            return Replayability(is_possible=True)
        return Replayability(is_possible=False, reason=str(refusal.reason), message=refusal.message)

    def replay(
        self,
        event: str | int,
        queue: str = "",
        *,
        also: Callable[[ReplayResult], Operations] = nothing_else,
    ) -> ReplayResult:
        found, queue = self._seen(event), checked_text(queue, "a queue's name")
        self._acting.require(QueueUse.WRITE, queue or found.queue)

        def result(made: FlowFileRecord) -> ReplayResult:
            return ReplayResult(event=str(found.id), id=made.id, queue=queue or found.queue, size=made.size)

        return result(self._history.replay(found, queue, lambda made: also(result(made)), self._acting.by))

    def readable(self, event: str | int, *, previous: bool = False) -> ReadableContent:
        """The content at the event, or before it, before it is opened."""
        found = self._seen(event)
        content = (found.content_before if previous else found.content) or NO_CONTENT

        def opened(start: int, size: int, _blocks: int) -> ContentStream:
            return self._history.content(found, before=previous, start=start, size=size)

        crc = known_crc(content.claim, content.start, content.size)
        return ReadableContent(content.size, f"{found.id}{'-previous' if previous else ''}", crc, opened)

    def found(self, event: str | int) -> ProvenanceEvent:
        """The engine's event."""
        self._require_readable()
        text = str(event)
        if match := _ID.fullmatch(text):
            return self._history.find(EventId(int(match[1]), int(match[2])))
        if _SEQUENCE.fullmatch(text) is None:
            raise EventNotFound(f"{text!r} is neither a sequence number nor an id like 17.0")
        return self._history.event(int(text))

    def _seen(self, event: str | int) -> ProvenanceEvent:
        """The same, if its content may be seen: HandleDeleted."""
        found = self.found(event)
        Deleted(self._engine, self._acting).require_seen(found)
        return found

    def _require_readable(self) -> None:
        self._acting.require_everywhere(QueueUse.READ, "provenance")


P = TypeVar("P", EventPage, Lineage)


def _whole(found: tuple[P, LazyRows[Event]]) -> P:
    page, rows = found
    return msgspec.structs.replace(page, events=list(rows))
