"""Client of the HTTP interface (docs/api.md): everything but tables, and the one that every network lets through."""

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx
import msgspec

from ullage_agent.client.documents import (
    Found,
    Head,
    Heads,
    Plan,
    ProblemDetails,
    Resources,
    Run,
    RunWish,
    State,
    Stored,
    StoredBatch,
    Survey,
    Verdict,
)
from ullage_agent.client.errors import NotReachable, Refused

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60.0
PIECE_BYTES: Final = 1 << 20
KEY_HEADER: Final = "Idempotency-Key"


class HttpClient:
    """One node. Thread-safe. Errors: Refused, NotReachable. Nothing is retried here."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        verify: ssl.SSLContext | bool = True
        if ca_file is not None:
            verify = ssl.create_default_context(cafile=ca_file)
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_seconds, verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def put(
        self,
        content: bytes | Iterable[bytes],
        attributes: dict[str, str] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
    ) -> Stored:
        """Store one content of any size."""
        return self.store("/v1/handles", content, attributes, _ttl(ttl_millis), key)

    def store(
        self,
        path: str,
        content: bytes | Iterable[bytes],
        attributes: dict[str, str] | None,
        query: dict[str, str],
        key: str | None,
    ) -> Stored:
        """Send one content to wherever it is to be stored."""
        headers = {**_key(key), "Content-Type": "application/octet-stream"}
        if attributes:
            headers["Ullage-Attributes"] = _ascii_json(attributes)
        return _decoded(self._send("POST", path, headers, query, content), Stored)

    def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: object = None,
        query: Mapping[str, str | Sequence[str]] | None = None,
        key: str | None = None,
    ) -> T:
        """One request with a JSON body, or none, and the document that answers it. A query's list is repeated."""
        headers = _key(key)
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(body)
        return _decoded(self._send(method, path, headers, query, content), kind)

    def put_many(
        self,
        contents: Sequence[bytes],
        attributes: Sequence[dict[str, str]],
        ttl_millis: int = 0,
        key: str | None = None,
    ) -> StoredBatch:
        """Store small contents in one transaction."""
        items = [
            {"content": content, "attributes": mapping} for content, mapping in zip(contents, attributes, strict=True)
        ]
        body = {"items": items, **_ttl(ttl_millis)}
        return self.ask("POST", "/v1/handles/batch", StoredBatch, body=body, key=key)

    def get(self, id: str) -> bytes:
        """A whole content."""
        return self._send("GET", f"/v1/handles/{id}").content

    def get_many(self, ids: Sequence[str]) -> list[Found]:
        """Small contents, each found or with its problem."""
        headers = {"Accept": "application/x-msgpack", "Content-Type": "application/json"}
        answer = self._send("POST", "/v1/handles/batch/get", headers, {}, msgspec.json.encode({"ids": list(ids)}))
        return msgspec.msgpack.decode(answer.content, type=list[Found])

    def stream(self, id: str, start: int = 0, size: int | None = None) -> Iterator[bytes]:
        """A content, or a range of it, in pieces. NotReachable in the middle: what came before is good."""
        if size == 0:
            return
        headers = {} if start == 0 and size is None else {"Range": f"bytes={start}-{_last(start, size)}"}
        yield from self.content(f"/v1/handles/{id}", headers)

    def content(self, path: str, headers: dict[str, str] | None = None) -> Iterator[bytes]:
        """What lies at a path, in pieces."""
        try:
            with self._client.stream("GET", path, headers=headers) as answer:
                if answer.is_error:
                    answer.read()
                    raise _refused(answer)
                yield from answer.iter_raw(PIECE_BYTES)
        except httpx.HTTPError as error:
            raise NotReachable(f"{self.url}: {_text(error)}") from error

    def head(self, id: str) -> Head:
        """Size, attributes and dates."""
        return self.ask("GET", f"/v1/handles/{id}/head", Head)

    def handles(self, after: str = "", limit: int = 100) -> Heads:
        """A page of handles by id."""
        return self.ask("GET", "/v1/handles", Heads, query={"after": after, "limit": str(limit)})

    def delete(self, id: str, key: str | None = None) -> None:
        """Delete a handle."""
        self._send("DELETE", f"/v1/handles/{id}", _key(key))

    def undelete(self, id: str, key: str | None = None) -> None:
        """Bring it back."""
        self._send("POST", f"/v1/handles/{id}/undelete", _key(key))

    def state(self) -> State:
        """What the node calls itself in handles, and which repository it serves."""
        return self.ask("GET", "/v1/state", State)

    def survey(self) -> Survey:
        """How full each container is, and of what."""
        return self.ask("GET", "/v1/reclamation/survey", Survey)

    def resources(self, after: int = 0, limit: int = 1_000) -> Resources:
        """A page of resource claims by index."""
        query = {"after": str(after), "limit": str(limit)}
        return self.ask("GET", "/v1/reclamation/resources", Resources, query=query)

    def windows(self) -> list[Verdict]:
        """For each operation whether the windows allow it now."""
        return self.ask("GET", "/v1/reclamation/windows", list[Verdict])

    def plan(self, policy: str | None = None, *, respects_guards: bool = False) -> Plan:
        """What a run of reclamation would do."""
        query = {"respects_guards": "true" if respects_guards else "false"}
        if policy is not None:
            query["policy"] = policy
        return self.ask("GET", "/v1/reclamation/plan", Plan, query=query)

    def begin_run(self, wish: RunWish, key: str | None = None) -> Run:
        """Start a run."""
        return self.ask("POST", "/v1/reclamation/runs", Run, body=wish, key=key)

    def run(self, id: str) -> Run:
        """How far a run is."""
        return self.ask("GET", f"/v1/reclamation/runs/{id}", Run)

    def stop_run(self, id: str) -> Run:
        """Stop a run after its present action."""
        return self.ask("DELETE", f"/v1/reclamation/runs/{id}", Run)

    def _send(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        query: Mapping[str, str | Sequence[str]] | None = None,
        content: bytes | Iterable[bytes] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, path, headers=headers, params=query or None, content=content)
        except httpx.HTTPError as error:
            raise NotReachable(f"{self.url}: {_text(error)}") from error
        if answer.is_error:
            raise _refused(answer)
        return answer


def _decoded(answer: httpx.Response, kind: type[T]) -> T:
    return msgspec.json.decode(answer.content, type=kind)


def _refused(answer: httpx.Response) -> Refused:
    try:
        found = msgspec.json.decode(answer.content, type=ProblemDetails)
    except msgspec.DecodeError:  # not from a node: a proxy in between, perhaps
        return Refused(answer.status_code, "unexpected", answer.reason_phrase, None)
    return Refused(found.status, found.slug, found.detail, found.retry_after_seconds)


def _key(key: str | None) -> dict[str, str]:
    return {} if key is None else {KEY_HEADER: key}


def _ttl(ttl_millis: int) -> dict[str, str]:
    return {"ttl": f"{ttl_millis}ms"} if ttl_millis else {}


def _last(start: int, size: int | None) -> str:
    return "" if size is None else str(start + size - 1)


def _ascii_json(attributes: dict[str, str]) -> str:
    """Headers are ASCII: JSON has escapes for the rest."""
    text = msgspec.json.encode(attributes).decode()
    return "".join(character if character < "\x7f" else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
