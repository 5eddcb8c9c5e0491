"""A small client of the Kubernetes API: list, watch, server-side apply, delete. kopf has none of selectors and apply.

Lists come in pages, so that thousands of objects never stand in one answer; watches ask for bookmarks, and are given up
when nothing at all is heard for a while, because a silent connection may be a dead one.
"""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import kopf

from ullage_operator import metrics
from ullage_operator.errors import ApiError, ApiUnreachable, OperatorError
from ullage_operator.objects import MANAGER, RESOURCES, Object
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

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def list(self, kind: str, namespace: str | None = None, labels: str = "") -> tuple[list[Object], str]:
        """All objects, and the version from which on a watch tells what changes."""
        found: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": labels}
        while True:
            page = await self.request("GET", RESOURCES[kind].path(namespace), query=query)
            found.extend(page["items"])
            more = page["metadata"].get("continue")
            if not more:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = more

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object; None if there is none."""
        return await self._found(RESOURCES[kind].path(namespace, name))

    async def serves(self, kind: str) -> bool:
        """Whether the cluster knows the kind's group and version at all."""
        return await self._found(f"/apis/{RESOURCES[kind].api_version}") is not None

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
        url = self._connection.url + RESOURCES[kind].path(namespace)
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_read=self._silence_seconds)
        headers = self._connection.headers()
        try:
            async with self._session.get(url, params=query, headers=headers, timeout=timeout) as answer:
                if answer.status >= 400:
                    raise ApiError(answer.status, await answer.text())
                buffer = b""
                async for chunk in answer.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiError(int(event["object"].get("code", 500)), str(event["object"].get("message")))
                        yield event["type"], event["object"]
        except aiohttp.SocketTimeoutError:
            return  # silence is no failure: if the connection was dead, the next watch says so
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnreachable(f"watch of {kind}: {type(error).__name__}: {error}") from error

    async def apply(self, document: Object, subresource: str = "") -> Object:
        """Server-side apply: what is said here is ours, whoever changed it."""
        metadata = document["metadata"]
        path = RESOURCES[document["kind"]].path(metadata.get("namespace"), metadata["name"], subresource)
        query, content = {"fieldManager": MANAGER, "force": "true"}, "application/apply-patch+yaml"
        return await self._write("PATCH", document["kind"], path, body=document, content=content, query=query)

    async def delete(self, kind: str, namespace: str | None, name: str, uid: str = "") -> None:
        """Gone, or going; no error if it was gone before. `uid`: not one that came since under the same name."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", kind, RESOURCES[kind].path(namespace, name), body=options)
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
        headers = {**self._connection.headers(), "Content-Type": content}
        data = None if body is None else json.dumps(body)
        try:
            url = self._connection.url + path
            async with self._session.request(method, url, params=query or {}, data=data, headers=headers) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.status >= 400:
            try:
                message = json.loads(text).get("message", text)
            except ValueError:
                message = text
            raise ApiError(answer.status, f"{method} {path}: {message}")
        decoded: Object = json.loads(text)
        return decoded
