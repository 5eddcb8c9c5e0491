"""What happened on a node, over HTTP: search, one event with its content, lineage, replay."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from ullage_agent.client.documents import Event, Events, Lineage, Replayability, Replayed
from ullage_agent.client.http import HttpClient
from ullage_agent.client.retries import Retries


class Provenance:
    """One node's. Thread-safe. An event is named by its sequence number, or its id like 17.0.

    Errors: Refused (`no-such-event`; `replay-refused`, with the reason), NotReachable.
    """

    def __init__(self, http: HttpClient, retries: Retries) -> None:
        self._http = http
        self._retries = retries

    def search(self, conditions: Mapping[str, str | Sequence[str]]) -> Events:
        """A page of events. The conditions are the parameters of `GET /v1/provenance/events`, a list for repeated."""
        return self._retries.run(lambda: self._http.ask("GET", "/v1/provenance/events", Events, query=conditions))

    def event(self, event: str) -> Event:
        """Everything that an event says."""
        return self._retries.run(lambda: self._http.ask("GET", _path(event), Event))

    def content(self, event: str, *, previous: bool = False) -> Iterator[bytes]:
        """The content at the event, or before it, in pieces, as long as its bytes are there."""
        return self._http.content(_path(event, "content") + ("?previous=true" if previous else ""))

    def replayability(self, event: str) -> Replayability:
        """Whether the event can be replayed now. The node reads its whole content to know."""
        return self._retries.run(lambda: self._http.ask("GET", _path(event, "replay"), Replayability))

    def replay(self, event: str, queue: str = "") -> Replayed:
        """Put what the event was about back into the queue it came from, or into another one."""
        body, key = {"queue": queue}, str(uuid.uuid4())
        return self._retries.run(lambda: self._http.ask("POST", _path(event, "replay"), Replayed, body=body, key=key))

    def lineage(self, flow_file: str, way: str, depth: int, limit: int) -> Lineage:
        """What a FlowFile was made from (`way`: parents), what became of it (children), or both."""
        path = f"/v1/provenance/lineage/{quote(flow_file, safe='')}"
        query = {"way": way, "depth": str(depth), "limit": str(limit)}
        return self._retries.run(lambda: self._http.ask("GET", path, Lineage, query=query))


def _path(event: str, part: str = "") -> str:
    return "/".join(filter(None, ("/v1/provenance/events", quote(event, safe=""), part)))
