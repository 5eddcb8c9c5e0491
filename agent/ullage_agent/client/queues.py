"""Queues of a node, over HTTP: put, look, take, drop. What is taken leaves its queue with the commit of a session."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from ullage_agent.client.documents import Dropped, Held, Queue, Record, Stored, StoredBatch
from ullage_agent.client.http import HttpClient
from ullage_agent.client.retries import NEVER, Retries


class Queues:
    """One node's. Thread-safe. Errors: Refused (`back-pressure`: the queue is full), NotReachable."""

    def __init__(self, http: HttpClient, retries: Retries) -> None:
        self._http = http
        self._retries = retries

    def all(self) -> list[Queue]:
        """All queues by name."""
        return self._retries.run(lambda: self._http.ask("GET", "/v1/queues", list[Queue]))

    def find(self, name: str) -> Queue:
        """One queue."""
        return self._retries.run(lambda: self._http.ask("GET", _path(name), Queue))

    def define(self, name: str, key: str | None = None, **settings: str | int) -> Queue:
        """Make a queue, or give it new settings: those of `documents.Queue` down to `expiration_millis`."""
        key = key or _new_key()
        return self._retries.run(lambda: self._http.ask("PUT", _path(name), Queue, body=settings, key=key))

    def flow_files(self, name: str, limit: int = 100) -> list[Record]:
        """The first FlowFiles that are in memory, at most 1,000, in the queue's order; they stay where they are."""
        query = {"limit": str(limit)}
        return self._retries.run(lambda: self._http.ask("GET", _path(name, "flowfiles"), list[Record], query=query))

    def put(
        self,
        name: str,
        content: bytes | Iterable[bytes],
        attributes: dict[str, str] | None = None,
        *,
        force: bool = False,
        key: str | None = None,
    ) -> Stored:
        """Store one content as a FlowFile. An iterable is read once, so it is not retried."""
        key = key or _new_key()
        retries = self._retries if isinstance(content, bytes) else NEVER
        return retries.run(
            lambda: self._http.store(_path(name, "flowfiles"), content, attributes, _forced(force=force), key)
        )

    def put_many(
        self,
        name: str,
        contents: Sequence[bytes],
        attributes: Sequence[dict[str, str]],
        *,
        force: bool = False,
        key: str | None = None,
    ) -> list[str]:
        """Store small contents as FlowFiles in one transaction; their ids."""
        items = [
            {"content": content, "attributes": mapping} for content, mapping in zip(contents, attributes, strict=True)
        ]
        query, key = _forced(force=force), key or _new_key()
        return self._retries.run(
            lambda: self._http.ask(
                "POST", _path(name, "batch"), StoredBatch, body={"items": items}, query=query, key=key
            )
        ).ids

    def poll(self, name: str, count: int = 1, visibility_seconds: float = 60.0) -> Held:
        """Take FlowFiles; nobody else sees them until `commit`, `rollback`, or until the time is over."""
        body, key = {"count": count, "visibility_seconds": visibility_seconds}, _new_key()
        return self._retries.run(lambda: self._http.ask("POST", _path(name, "poll"), Held, body=body, key=key))

    def content(self, session: str, id: str) -> Iterator[bytes]:
        """The content of a FlowFile that a session holds, in pieces."""
        return self._http.content(f"/v1/sessions/{session}/flowfiles/{id}")

    def extend(self, session: str, visibility_seconds: float = 60.0) -> None:
        """A heartbeat: the time begins anew."""
        self._act(session, "extend", {"visibility_seconds": visibility_seconds})

    def commit(self, session: str, rest_to: str | None = None) -> None:
        """What the session holds is removed, or goes to another queue."""
        self._act(session, "commit", {"rest_to": rest_to})

    def rollback(self, session: str) -> None:
        """Put everything back as it was."""
        self._act(session, "rollback", {})

    def drop(self, name: str) -> int:
        """Drop all FlowFiles that nobody holds; how many."""
        key = _new_key()
        answer = self._retries.run(lambda: self._http.ask("DELETE", _path(name, "flowfiles"), Dropped, key=key))
        return answer.dropped

    def _act(self, session: str, action: str, body: dict[str, Any]) -> None:
        key = _new_key()
        self._retries.run(
            lambda: self._http.ask("POST", f"/v1/sessions/{session}/{action}", object, body=body, key=key)
        )


def _path(name: str, part: str = "") -> str:
    return "/".join(filter(None, ("/v1/queues", quote(name, safe=""), part)))


def _forced(*, force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _new_key() -> str:
    return str(uuid.uuid4())
