"""A small client of the Kubernetes API: list, watch, server-side apply, delete. kopf has none of selectors and apply.

Lists come in pages, so that thousands of objects never stand in one answer; watches ask for bookmarks, and are given up
when nothing at all is heard for a while, because a silent connection may be a dead one.
"""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import kopf

from ullage_operator import metrics
from ullage_operator.errors import ApiError, ApiUnreachable, OperatorError
from ullage_operator.objects import MANAGER, VERSION_OF, Object, path_of
from ullage_operator.settings import OperatorSettings

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
PAGE: Final = 500
REQUEST_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 300


class ApiConnection(NamedTuple):
    """Where the API server is, and as whom it is spoken to."""

    url: str
    context: ssl.SSLContext
    token_path: str = ""
    token: str = ""

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> "ApiConnection":
        """That of the pod, or else of the kubeconfig, which is read as kopf reads it for itself."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if host and os.path.exists(f"{ACCOUNT}/token"):
            address = f"[{host}]" if ":" in host else host
            port = environment.get("KUBERNETES_SERVICE_PORT", "443")
            context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
            return cls(f"https://{address}:{port}", context, f"{ACCOUNT}/token")
        found = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
        if found is None:
            raise OperatorError("this process runs in no cluster, and there is no kubeconfig")
        return cls(found.server, found.as_ssl_context(), token=found.token or "")

    def headers(self) -> dict[str, str]:
        """With the token as it is now: it rotates."""
        if not self.token_path:
            return {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with open(self.token_path, encoding="ascii") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}


class ApiClient:
    """Made inside a running event loop; `close` when done. ApiError for a refusal, ApiUnreachable without an answer."""

    def __init__(self, connection: ApiConnection, settings: OperatorSettings | None = None) -> None:
        settings = settings or OperatorSettings()
        self._connection = connection
        self._silence_seconds = settings.silence_seconds
        self._at_once = asyncio.Semaphore(settings.writes_at_once)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=connection.context, limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=10),
        )

    async def aclose(self) -> None:
        """End all connections."""
        await self._session.close()

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
        return await self._found(path_of(kind, namespace, name))

    async def serves(self, kind: str) -> bool:
        """Whether the cluster knows the kind's group and version at all."""
        return await self._found(f"/apis/{VERSION_OF[kind]}") is not None

    async def _found(self, path: str) -> Object | None:
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
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_read=self._silence_seconds)
        try:
            async with self._asked("GET", path_of(kind, namespace), params=query, timeout=timeout) as answer:
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
        query, content = {"fieldManager": MANAGER, "force": "true"}, "application/apply-patch+yaml"
        return await self._write("PATCH", document["kind"], path, body=document, content=content, query=query)

    async def delete(self, kind: str, namespace: str | None, name: str, uid: str = "") -> None:
        """Gone, or going; no error if it was gone before. `uid`: not one that came since under the same name."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", kind, path_of(kind, namespace, name), body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _write(self, method: str, kind: str, path: str, **sent: Any) -> Object:
        metrics.WRITES.labels(kind).inc()
        async with self._at_once:
            return await self.request(method, path, **sent)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """One request and its decoded answer."""
        data = None if body is None else json.dumps(body)
        async with self._asked(method, path, content, params=query, data=data) as answer:
            decoded: Object = json.loads(await answer.text())
        return decoded

    @contextlib.asynccontextmanager
    async def _asked(
        self, method: str, path: str, content: str = "application/json", **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is no refusal, while it is read."""
        headers = {**self._connection.headers(), "Content-Type": content}
        try:
            async with self._session.request(method, self._connection.url + path, headers=headers, **more) as answer:
                if answer.status >= 400:
                    text = await answer.text()
                    with contextlib.suppress(ValueError):  # a proxy's refusal is no Status: it is told as it came
                        text = json.loads(text).get("message", text)
                    raise ApiError(answer.status, f"{method} {path}: {text}")
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
