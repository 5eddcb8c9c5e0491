"""The ContentRepositoryNode of this node at the API server: read it, follow it, write its status. No other object.

Blocking, for threads of its own; everything that goes wrong on the way is `NodeObjectError`, because whoever calls does
the same about all of it: go on, and try again.
"""

import json
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from ullage.contract import (
    API_VERSION,
    ContentRepositoryNode,
    NodeSpec,
    NodeStatus,
    document_of,
    object_name,
    record_of,
    status_of,
)
from ullage.wire.firstuse import prepare
from ullage_agent.service.kubernetes import ApiServer

prepare(ContentRepositoryNode)

MANAGER: Final = "ullage-agent"
ASKS_FOR_CERTIFICATE: Final = "ullage-agent-certificate"
"""Field manager of the request: the status is replaced as a whole by the other, which does not know of it."""

APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
REQUEST_SECONDS: Final = 10.0
WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 90.0
"""Most API servers send a bookmark each minute; a watch that is silent for longer is begun anew."""

ANSWER_BYTES_MAX: Final = 1 << 20


class NodeObjectError(Exception):
    """The API server did not answer, or not with what was asked for."""


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The object at one moment."""

    uid: str
    generation: int
    version: str
    spec: NodeSpec
    status: NodeStatus
    trouble: str = ""
    """Why its status cannot be read, as `status_of` has it."""


class NodeObjectClient:
    """The object of `repository` on `node`."""

    def __init__(self, api: ApiServer, namespace: str, repository: str, node: str) -> None:
        self._api = api
        self.namespace = namespace
        self.name = object_name(repository, node)

    def read(self) -> ObservedNode | None:
        """As it is now; None if the operator has not made it yet."""
        status, body = self._request("GET", self._path(self.name))
        if status == HTTPStatus.NOT_FOUND:
            return None
        return _seen(_checked(status, body))

    def watch(self, version: str) -> Iterator[ObservedNode | None]:
        """Each change after that version; None when it was deleted. Ends when the server ends it."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        try:
            with self._api.answering("GET", f"{self._path()}?{urlencode(query)}", seconds=SILENCE_SECONDS) as answer:
                if answer.status != HTTPStatus.OK:
                    raise NodeObjectError(f"watch: the API server answered {answer.status}")
                for line in lines(answer.stream(None)):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise NodeObjectError(f"watch: {event['object'].get('message')}")
                    if event["type"] != "BOOKMARK":
                        yield None if event["type"] == "DELETED" else _seen(event["object"])
        except TimeoutError:
            return  # silence is no failure: if the connection was dead, the next question says so
        except (OSError, ValueError, KeyError) as error:
            raise NodeObjectError(f"watch: {type(error).__name__}: {error}") from error

    def write(self, status: NodeStatus) -> ObservedNode:
        """Replace the status by server-side apply: what is not in it any more goes. Where others wrote what leaves no
        room for ours, or cannot be read, all of it goes: a certificate is asked for anew then.
        """
        document = {
            "apiVersion": API_VERSION,
            "kind": "ContentRepositoryNode",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "status": document_of(status),
        }
        path = f"{self._path(self.name)}/status?fieldManager={MANAGER}&force=true"
        answer = self._request("PATCH", path, document)
        if answer[0] == HTTPStatus.UNPROCESSABLE_ENTITY or _seen(_checked(*answer)).trouble:
            change = [{"op": "add", "path": "/status", "value": document["status"]}]
            self._request("PATCH", f"{self._path(self.name)}/status", change, kind=JSON_PATCH)
            answer = self._request("PATCH", path, document)
        return _seen(_checked(*answer))

    def ask_for_certificate(self, request: str) -> None:
        """Say in the status what a certificate is asked for; the rest of it stays."""
        document = {
            "apiVersion": API_VERSION,
            "kind": "ContentRepositoryNode",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "status": {"certificateRequest": request},
        }
        path = f"{self._path(self.name)}/status?fieldManager={ASKS_FOR_CERTIFICATE}&force=true"
        _checked(*self._request("PATCH", path, document))

    def _path(self, name: str = "") -> str:
        path = f"/apis/{API_VERSION}/namespaces/{quote(self.namespace)}/contentrepositorynodes"
        return f"{path}/{quote(name)}" if name else path

    def _request(self, method: str, path: str, document: object = None, *, kind: str = APPLY) -> tuple[int, bytes]:
        try:
            with self._api.answering(method, path, document, kind=kind, seconds=REQUEST_SECONDS) as answer:
                return answer.status, answer.read(ANSWER_BYTES_MAX)
        except OSError as error:
            raise NodeObjectError(f"{method}: {type(error).__name__}: {error}") from error


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Each line, as soon as its end has come. ValueError for one that is longer than any answer may be."""
    begun = b""
    for chunk in chunks:
        *ended, begun = (begun + chunk).split(b"\n")
        if len(begun) > ANSWER_BYTES_MAX:
            raise ValueError(f"a line is longer than {ANSWER_BYTES_MAX} bytes")
        yield from filter(None, ended)


def _checked(status: int, body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise NodeObjectError(f"the API server answered {status} without a document") from error
    if status >= HTTPStatus.BAD_REQUEST:
        raise NodeObjectError(f"the API server answered {status}: {document.get('message', '')}")
    return document


def _seen(document: dict[str, Any]) -> ObservedNode:
    try:
        spec = record_of(NodeSpec, document["spec"])
    except (KeyError, msgspec.ValidationError) as error:
        raise NodeObjectError(f"the API server sent what is no ContentRepositoryNode: {error}") from error
    # Others than this agent may write there too: what cannot be read is replaced by what it says next.
    status, trouble = status_of(NodeStatus, document.get("status"))
    metadata = document["metadata"]
    return ObservedNode(
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        version=metadata["resourceVersion"],
        spec=spec,
        status=status,
        trouble=trouble,
    )
