"""The ContentRepositoryNode of this node at the API server: read it, follow it, write its status. No other object.

Blocking, for threads of its own; everything that goes wrong on the way is `Unreachable`, because whoever calls does the
same about all of it: go on, and try again.
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from ullage_agent.fleet import API_VERSION, ContentRepositoryNode, NodeSpec, NodeStatus, object_name, plain

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
MANAGER: Final = "ullage-agent"
REQUEST_SECONDS: Final = 10.0
WATCH_SECONDS: Final = 240
SILENCE_SECONDS: Final = 90.0
"""Most API servers send a bookmark each minute; a watch that is silent for longer is begun anew."""

ANSWER_BYTES_MAX: Final = 1 << 20


class Unreachable(Exception):
    """The API server did not answer, or not with what was asked for."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The object at one moment."""

    generation: int
    version: str
    spec: NodeSpec
    status: NodeStatus


class NodeObject:
    """The object of `repository` on `node`. `token_path` and `authority_path` are read anew each time: they rotate."""

    def __init__(
        self, url: str, token_path: str, authority_path: str, namespace: str, repository: str, node: str
    ) -> None:
        split = urlsplit(url)
        if split.scheme != "https" or not split.hostname:
            raise ValueError(f"the API server's address {url!r} is no https URL")
        self._host, self._port = split.hostname, split.port or 443
        self._token_path, self._authority_path = token_path, authority_path
        self._namespace = namespace
        self.name = object_name(repository, node)

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str], namespace: str, repository: str, node: str) -> "NodeObject":
        """In the cluster that this process runs in; ValueError outside of one."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise ValueError("this process runs in no cluster: `ullage serve` is for a machine alone")
        address = f"[{host}]" if ":" in host else host
        url = f"https://{address}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
        return cls(url, f"{ACCOUNT}/token", f"{ACCOUNT}/ca.crt", namespace, repository, node)

    def read(self) -> Seen | None:
        """As it is now; None if the operator has not made it yet."""
        status, body = self._request("GET", self._path(self.name))
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        return _seen(_checked(status, body))

    def watch(self, version: str) -> Iterator[Seen | None]:
        """Each change after that version; None when it was deleted. Ends when the server ends it."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        connection = self._connection(SILENCE_SECONDS)
        try:
            connection.request("GET", f"{self._path()}?{urlencode(query)}", headers=self._headers())
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise Unreachable(f"watch: the API server answered {answer.status}")
            while line := answer.readline(ANSWER_BYTES_MAX):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Unreachable(f"watch: {event['object'].get('message')}")
                if event["type"] != "BOOKMARK":
                    yield None if event["type"] == "DELETED" else _seen(event["object"])
        except TimeoutError:
            return  # silence is no failure: if the connection was dead, the next question says so
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise Unreachable(f"watch: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def write(self, status: NodeStatus) -> Seen:
        """Replace the status by server-side apply: what is not in it any more goes."""
        document = {
            "apiVersion": API_VERSION,
            "kind": "ContentRepositoryNode",
            "metadata": {"name": self.name, "namespace": self._namespace},
            "status": _without_none(plain(status)),
        }
        path = f"{self._path(self.name)}/status?fieldManager={MANAGER}&force=true"
        return _seen(_checked(*self._request("PATCH", path, document)))

    def _path(self, name: str = "") -> str:
        path = f"/apis/{API_VERSION}/namespaces/{quote(self._namespace)}/contentrepositorynodes"
        return f"{path}/{quote(name)}" if name else path

    def _connection(self, seconds: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self._authority_path)
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=context)

    def _headers(self) -> dict[str, str]:
        with open(self._token_path, encoding="ascii") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}

    def _request(self, method: str, path: str, document: dict[str, Any] | None = None) -> tuple[int, bytes]:
        try:
            connection = self._connection(REQUEST_SECONDS)
            try:
                headers = {**self._headers(), "Content-Type": "application/apply-patch+yaml"}
                connection.request(method, path, None if document is None else json.dumps(document), headers)
                answer = connection.getresponse()
                return answer.status, answer.read(ANSWER_BYTES_MAX)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method}: {type(error).__name__}: {error}") from error


def _checked(status: int, body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise Unreachable(f"the API server answered {status} without a document") from error
    if status >= http.HTTPStatus.BAD_REQUEST:
        raise Unreachable(f"the API server answered {status}: {document.get('message', '')}")
    return document


def _seen(document: dict[str, Any]) -> Seen:
    try:
        parts = {"spec": document["spec"], "status": document.get("status") or {}}
        record = msgspec.convert(parts, ContentRepositoryNode)
    except (KeyError, msgspec.ValidationError) as error:
        raise Unreachable(f"the API server sent what is no ContentRepositoryNode: {error}") from error
    metadata = document["metadata"]
    return Seen(
        generation=metadata.get("generation", 0),
        version=metadata["resourceVersion"],
        spec=record.spec,
        status=record.status,
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(below) for key, below in value.items() if below is not None}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value]
    return value
