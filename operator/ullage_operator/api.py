"""A small client of the Kubernetes API: list, watch, server-side apply, delete. kopf has none of selectors and apply.

Lists come in pages, so that thousands of objects never stand in one answer; watches ask for bookmarks, and are given up
when nothing at all is heard for a while, because a silent connection may be a dead one.
"""

import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import yaml

from ullage_operator.errors import ApiError, Unreachable

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
MANAGER: Final = "ullage-operator"
PAGE: Final = 500
REQUEST_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 300
SILENCE_SECONDS: Final = 90.0
"""For whoever has no settings: see those."""

Object = dict[str, Any]


class Resource(NamedTuple):
    """Where objects of a kind are found."""

    api_version: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Of one object, of a namespace, or of all."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if namespace and self.is_namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


ULLAGE: Final = "ullage.dev/v1alpha1"
RESOURCES: Final = {
    "ContentRepository": Resource(ULLAGE, "contentrepositories"),
    "ContentRepositoryNode": Resource(ULLAGE, "contentrepositorynodes"),
    "ReclamationRun": Resource(ULLAGE, "reclamationruns"),
    "Node": Resource("v1", "nodes", is_namespaced=False),
    "Pod": Resource("v1", "pods"),
    "Service": Resource("v1", "services"),
    "ConfigMap": Resource("v1", "configmaps"),
    "Secret": Resource("v1", "secrets"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims"),
    "Event": Resource("v1", "events"),
    "DaemonSet": Resource("apps/v1", "daemonsets"),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
    "Job": Resource("batch/v1", "jobs"),
    "EndpointSlice": Resource("discovery.k8s.io/v1", "endpointslices"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "Role": Resource("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", is_namespaced=False),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "SparkApplication": Resource("sparkoperator.k8s.io/v1beta2", "sparkapplications"),
    "Certificate": Resource("cert-manager.io/v1", "certificates"),
}


class Connection(NamedTuple):
    """Where the API server is, and as whom it is spoken to."""

    url: str
    context: ssl.SSLContext
    token_path: str = ""
    token: str = ""

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> "Connection":
        """That of the pod, or else of the kubeconfig."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if host and os.path.exists(f"{ACCOUNT}/token"):
            address = f"[{host}]" if ":" in host else host
            port = environment.get("KUBERNETES_SERVICE_PORT", "443")
            context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
            return cls(f"https://{address}:{port}", context, f"{ACCOUNT}/token")
        return cls.of_kubeconfig(environment.get("KUBECONFIG") or os.path.expanduser("~/.kube/config"))

    @classmethod
    def of_kubeconfig(cls, path: str) -> "Connection":
        """Its current context; client certificates, tokens and their files are understood."""
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file)
        named = {kind: {entry["name"]: entry for entry in config[kind]} for kind in ("contexts", "clusters", "users")}
        chosen = named["contexts"][config["current-context"]]["context"]
        cluster = named["clusters"][chosen["cluster"]]["cluster"]
        user = named["users"][chosen["user"]]["user"]
        authority = cluster.get("certificate-authority-data")
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=base64.b64decode(authority).decode() if authority else None,
        )
        _load_client(context, user)
        return cls(cluster["server"], context, user.get("tokenFile", ""), user.get("token", ""))

    def headers(self) -> dict[str, str]:
        """With the token as it is now: it rotates."""
        if not self.token_path:
            return {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with open(self.token_path, encoding="ascii") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}


def _load_client(context: ssl.SSLContext, user: Mapping[str, Any]) -> None:
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    elif "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as file:  # the ssl module reads files only
            file.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
            file.write(base64.b64decode(user["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)


class Api:
    """Made inside a running event loop; `close` when done. ApiError for a refusal, Unreachable without an answer."""

    def __init__(self, connection: Connection, at_once: int = 16, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._connection = connection
        self._silence_seconds = silence_seconds
        self._at_once = asyncio.Semaphore(at_once)
        self.writes = 0
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=connection.context, limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=10),
        )

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def list(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects, and the version from which on a watch tells what changes."""
        found: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            given = {key: value for key, value in query.items() if value}
            page = await self.request("GET", RESOURCES[kind].path(namespace), query=given)
            found.extend(page["items"])
            more = page["metadata"].get("continue")
            if not more:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = more

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object; None if there is none."""
        try:
            return await self.request("GET", RESOURCES[kind].path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def serves(self, kind: str) -> bool:
        """Whether the cluster knows the kind's group and version at all."""
        try:
            await self.request("GET", f"/apis/{RESOURCES[kind].api_version}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def watch(
        self, kind: str, version: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after that version, until the server ends it or is silent for long. ApiError with 410: list again."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        url = self._connection.url + RESOURCES[kind].path(namespace)
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_read=self._silence_seconds)
        given = {key: value for key, value in query.items() if value}
        try:
            async with self._session.get(
                url, params=given, headers=self._connection.headers(), timeout=timeout
            ) as answer:
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
            raise Unreachable(f"watch of {kind}: {type(error).__name__}: {error}") from error

    async def apply(self, document: Object) -> Object:
        """Server-side apply: what is said here is ours, whoever changed it."""
        resource = RESOURCES[document["kind"]]
        metadata = document["metadata"]
        query = {"fieldManager": MANAGER, "force": "true"}
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return await self._write("PATCH", path, document, "application/apply-patch+yaml", query)

    async def replace_status(self, kind: str, namespace: str, name: str, status: Object) -> Object:
        """Server-side apply of a status alone."""
        resource = RESOURCES[kind]
        document = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": status,
        }
        query = {"fieldManager": MANAGER, "force": "true"}
        path = resource.path(namespace, name, "status")
        return await self._write("PATCH", path, document, "application/apply-patch+yaml", query)

    async def delete(self, kind: str, namespace: str | None, name: str, uid: str = "") -> None:
        """Gone, or going; no error if it was gone before. `uid`: not one that came since under the same name."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", RESOURCES[kind].path(namespace, name), options, "application/json", {})
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def create(self, document: Object) -> Object:
        """A new object."""
        metadata = document["metadata"]
        path = RESOURCES[document["kind"]].path(metadata.get("namespace"))
        return await self._write("POST", path, document, "application/json", {})

    async def _write(self, method: str, path: str, body: Object, content: str, query: dict[str, str]) -> Object:
        async with self._at_once:
            self.writes += 1
            return await self.request(method, path, body=body, content=content, query=query)

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
            async with self._session.request(
                method, self._connection.url + path, params=query or {}, data=data, headers=headers
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.status >= 400:
            try:
                message = json.loads(text).get("message", text)
            except ValueError:
                message = text
            raise ApiError(answer.status, f"{method} {path}: {message}")
        decoded: Object = json.loads(text)
        return decoded
