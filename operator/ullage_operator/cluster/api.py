"""The API server, as the operator speaks to it: by the client of the package `kubernetes`.

Objects come and go as the plain documents that they are: the package's classes for them are never imported, which would
cost more memory than a thousand nodes. Lists come in pages, so that thousands of objects never stand in one answer;
watches ask for bookmarks, and are given up when nothing at all is heard for a while, because a silent connection may be
a dead one. The package's own watch has no such bound, and holds a line of an event for the whole of it.
"""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from kubernetes import aio

from ullage_operator import metrics
from ullage_operator.errors import ApiError, ApiUnreachable, OperatorError
from ullage_operator.objects import MANAGER, VERSION_OF, Object, path_of
from ullage_operator.settings import OperatorSettings

APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With a parameter the client sends a text as it is; by the bare type alone it would make JSON of it, once more."""

FENCES: Final = ("uid", "resourceVersion")
"""Of an object's metadata: in a patch they say which one it is for."""

LONE: Final = re.compile("[\ud800-\udfff]")
NOT_PRINTED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

Body = Object | Sequence[Object] | str
"""A text goes as it is; all else as JSON."""

PAGE: Final = 500
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=10)
WATCH_SECONDS: Final = 300


async def connection_of_this_process(environment: Mapping[str, str] = os.environ) -> aio.client.Configuration:
    """Where the API server is, and as whom it is spoken to: that of the pod, or else of the kubeconfig."""
    connection = aio.client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in environment:
            aio.config.load_incluster_config(connection)
        else:
            await aio.config.load_kube_config(client_configuration=connection)
    except aio.config.ConfigException as error:
        raise OperatorError(f"this process runs in no cluster, and there is no kubeconfig: {error}") from error
    return connection


class ApiClient:
    """Made inside a running event loop; `close` when done. ApiError for a refusal, ApiUnreachable without an answer."""

    def __init__(
        self,
        connection: aio.client.Configuration,
        settings: OperatorSettings | None = None,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_write` raises what a write is to fail with."""
        settings = settings or OperatorSettings()
        self.may_write = may_write
        self._silence_seconds = settings.silence_seconds
        # Of all: one reconciliation whose every write waits for a webhook must leave room for those of others.
        self._at_once = asyncio.Semaphore(settings.writes_at_once * settings.workers)
        connection.connection_pool_maxsize = 0  # no bound: each watch has one for as long as it lasts
        self._client = aio.client.ApiClient(connection)

    async def aclose(self) -> None:
        """End all connections."""
        await self._client.close()

    async def list(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects, and the version from which on a watch tells what changes."""
        found: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self.request("GET", path_of(kind, namespace), query=query)
            found.extend(page["items"])
            more = page["metadata"].get("continue")
            if not more:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = more

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object; None if there is none."""
        return await self.found(path_of(kind, namespace, name))

    async def serves(self, kind: str) -> bool:
        """Whether the cluster knows the kind's group and version at all."""
        return await self.found(f"/apis/{VERSION_OF[kind]}") is not None

    async def found(self, path: str) -> Object | None:
        """What a path has; None if there is no such thing."""
        try:
            return await self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def watch(
        self, kind: str, version: str, namespace: str | None = None, labels: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after that version, until the server ends it or is silent for long. ApiError with 410: list again."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "labelSelector": labels,
        }
        waits = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_read=self._silence_seconds)
        try:
            async with self._asked("GET", path_of(kind, namespace), query=query, waits=waits) as answer:
                buffer = b""
                async for chunk in answer.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiError(int(event["object"].get("code", 500)), str(event["object"].get("message")))
                        yield event["type"], event["object"]
        except ApiUnreachable as error:
            if not isinstance(error.__cause__, aiohttp.SocketTimeoutError):
                raise  # silence is no failure: if the connection was dead, the next watch says so

    async def apply(self, document: Object, subresource: str = "") -> Object:
        """Server-side apply: what is said here is ours, whoever changed it."""
        metadata = document["metadata"]
        path = path_of(document["kind"], metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._write("PATCH", document["kind"], path, body=yaml_of(document), content=APPLY, query=query)

    async def replace(self, document: Object) -> Object:
        """The spec and the labels of an object that is there, as a whole: of its spec nothing stays that others wrote.
        ApiError with 409 if its uid, or its resourceVersion where there is one, is another by now.
        """
        metadata = document["metadata"]
        changes = [
            {"op": "add", "path": "/metadata/labels", "value": metadata["labels"]},
            {"op": "replace", "path": "/spec", "value": document["spec"]},
        ]
        if "finalizers" in metadata:
            changes.append({"op": "add", "path": "/metadata/finalizers", "value": metadata["finalizers"]})
        return await self._change(document["kind"], metadata, changes)

    async def clear_status(self, kind: str, metadata: Object) -> None:
        """Take all of an object's status away, whoever wrote it."""
        await self._change(kind, metadata, [{"op": "add", "path": "/status", "value": {}}], "status")

    async def set_finalizers(self, kind: str, metadata: Object, finalizers: Sequence[str]) -> Object:
        """Instead of those that an object has. ApiError with 409 if it is another by now than this metadata says."""
        change = {"op": "add", "path": "/metadata/finalizers", "value": [*finalizers]}
        return await self._change(kind, metadata, [change])

    async def _change(self, kind: str, metadata: Object, changes: Sequence[Object], subresource: str = "") -> Object:
        fences = [
            {"op": "replace", "path": f"/metadata/{name}", "value": metadata[name]}
            for name in FENCES
            if name in metadata
        ]
        path = path_of(kind, metadata.get("namespace"), metadata["name"], subresource)
        content, query = "application/json-patch+json", {"fieldManager": MANAGER}
        return await self._write("PATCH", kind, path, body=[*fences, *changes], content=content, query=query)

    async def delete(self, kind: str, namespace: str | None, name: str, uid: str = "") -> None:
        """Gone, or going; no error if it was gone before. `uid`: not one that came since under the same name."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", kind, path_of(kind, namespace, name), body=options)
        except ApiError as error:
            if error.status != 404 and not (uid and error.status == 409):
                raise

    async def _write(self, method: str, kind: str, path: str, **sent: Any) -> Object:
        metrics.WRITES.labels(kind).inc()
        async with self._at_once:
            self.may_write()
            return await self.request(method, path, **sent)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """One request and its decoded answer."""
        async with self._asked(method, path, content, body=body, query=query) as answer:
            decoded: Object = json.loads(await answer.read())
        return decoded

    @contextlib.asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        content: str = "application/json",
        *,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
        waits: aiohttp.ClientTimeout = REQUEST_TIMEOUT,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is no refusal, while it is read."""
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],  # the token as it is now: it rotates
            )
            answer = (await self._client.call_api(*request, _request_timeout=waits)).response
            async with answer:
                if answer.status >= 400:
                    text = await answer.text()
                    with contextlib.suppress(ValueError):  # a proxy's refusal is no Status: it is told as it came
                        text = json.loads(text).get("message", text)
                    raise ApiError(answer.status, f"{method} {path}: {text}")
                yield answer
        except (aiohttp.ClientError, aio.config.ConfigException, OSError) as error:
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__}: {error}") from error


def yaml_of(document: Object) -> str:
    """As JSON that is YAML too. JSON writes a character beyond U+FFFF as two escapes, of which YAML takes neither, and
    YAML none as it is of those that are not printed: one emoji in an agent's words kept the status of a repository
    from being written (https://yaml.org/spec/1.2.2/#51-character-set).
    """
    text = json.dumps(document, ensure_ascii=False)
    return NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", LONE.sub("\ufffd", text))
