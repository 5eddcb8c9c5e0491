"""What happened on a node, over HTTP: search, one event with its content, lineage, replay."""

from typing import Any

import msgspec

from ullage.client.http import Query
from ullage.client.link import NodeLink
from ullage.interface.checks import checked_part, checked_query, checked_text, lineage_bounds
from ullage.interface.provenance import Provenance
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.provenance import Event, EventPage, EventQuery, Lineage, Replayability, ReplayRequest, ReplayResult


class RemoteProvenance(Provenance):
    """That of one node."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def search(self, query: EventQuery | None = None) -> EventPage:
        said: dict[str, Any] = msgspec.structs.asdict(checked_query(query))
        said["type"] = said.pop("types")
        said["attribute"] = [f"{name}={value}" for name, value in said.pop("attributes").items()]
        return self._link.ask(operations.SEARCH_EVENTS, query=said)

    def event(self, event: str | int) -> Event:
        return self._link.ask(operations.GET_EVENT, event=event)

    def content(
        self, event: str | int, start: int = 0, size: int | None = None, *, previous: bool = False
    ) -> ContentStream:
        start, size = checked_part(start, size)
        return self._link.stream(operations.GET_EVENT_CONTENT, start, size, {"previous": previous}, event=event)

    def lineage(self, flow_file: str, *, way: str = "both", depth: int = 100, limit: int = 1_000) -> Lineage:
        direction, depth, limit = lineage_bounds(way, depth, limit)
        query: Query = {"way": str(direction), "depth": depth, "limit": limit}
        return self._link.ask(
            operations.TRACE_LINEAGE, query=query, flow_file=checked_text(flow_file, "a FlowFile's id")
        )

    def replayability(self, event: str | int, queue: str = "") -> Replayability:
        return self._link.ask(
            operations.CHECK_REPLAY, query={"queue": checked_text(queue, "a queue's name")}, event=event
        )

    def replay(self, event: str | int, queue: str = "") -> ReplayResult:
        return self._link.ask(
            operations.REPLAY_EVENT, ReplayRequest(queue=checked_text(queue, "a queue's name")), event=event
        )
