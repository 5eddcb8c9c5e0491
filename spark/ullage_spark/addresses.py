"""Where the nodes of a fleet are: as the options say, or as Kubernetes lists them."""

import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ullage.contract import API_VERSION
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions

KUBERNETES: Final = "kubernetes:"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
API: Final = "https://kubernetes.default.svc"
BUSY: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
BUSY_SECONDS_MAX: Final = 10.0
"""How long an API server that says so is asked again: as long as a node that does not answer."""

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Of objects of Kubernetes."""

SCHEMES: Final = frozenset({"grpc", "grpc+tcp", "grpc+tls"})
FLIGHT_PORT: Final = 8481
"""The default of spec.service.flightPort."""

HTTP_PORT: Final = 8480
"""The default of spec.service.httpPort."""


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is, and how to know its Unix socket. `repository` is its epoch: see docs/flight.md, The node."""

    name: str
    flight: str
    repository: str = ""
    socket: str = ""
    inode: int = 0
    changed_nanos: int = 0
    url: str = ""
    live_bytes: int | None = None
    """Of content, as Kubernetes last heard; None: not known."""

    trouble: str = ""
    """Why it is expected not to answer."""


def addresses(settings: SourceOptions) -> Iterable[FleetNode]:
    """The fleet that the options name, as it was said or as Kubernetes lists it."""
    if settings.nodes:
        try:
            given = msgspec.json.decode(settings.nodes, type=list[FleetNode])
        except msgspec.DecodeError as error:
            raise SparkSourceError(f"option nodes is a JSON list of name, flight and more: {error}") from error
        for each in given:
            if each.flight or not each.trouble:  # one without an agent has no address, and is missed by name
                _checked("nodes", each.flight)
        return given
    if settings.endpoint.startswith(KUBERNETES):
        return of_kubernetes(settings.endpoint.removeprefix(KUBERNETES))
    listed = [each.strip() for each in settings.endpoint.split(",") if each.strip()]
    return [FleetNode(name="", flight=_checked("endpoint", each)) for each in listed]


def _checked(option: str, url: str) -> str:
    """SparkSourceError for what is no address of Arrow Flight: Arrow would say which character it did not expect."""
    found = urlsplit(url if "://" in url else f"//{url}")
    try:
        is_whole = found.hostname is not None and found.port is not None
    except ValueError:
        is_whole = False
    rest = (found.username, found.password, found.path, found.query, found.fragment)
    if found.scheme not in SCHEMES or not is_whole or any(rest):
        where = found.netloc.rpartition("@")[2] if is_whole else f"{found.hostname or 'HOST'}:{FLIGHT_PORT}"
        shown = "what stands there" if "@" in url else url  # a password may stand before it
        raise SparkSourceError(
            f"option {option}: {shown} is no address of a node: grpc+tls://{where} is one, or grpc://{where} without "
            "TLS, or kubernetes:NAMESPACE/NAME"
        )
    return url


def of_kubernetes(name: str) -> list[FleetNode]:
    """Those of a repository (`namespace/name`), asked of Kubernetes as the pod's own account.

    It needs the verb `list` on endpointslices of that namespace, and on contentrepositorynodes: without that, a node
    that has no agent at all is not missed.
    """
    try:
        return _of_kubernetes(*place_of(name))
    except (OSError, ValueError) as error:
        if not os.path.exists(ACCOUNT):
            raise SparkSourceError(
                f"option endpoint: kubernetes:{name} is asked of Kubernetes inside a pod, with the pod's account, and "
                f"there is no {ACCOUNT} here; elsewhere name the nodes: grpc+tls://HOST:{FLIGHT_PORT},..."
            ) from error
        raise SparkSourceError(f"option endpoint: kubernetes:{name}: Kubernetes does not list it: {error}") from error


def place_of(name: str) -> tuple[str, str]:
    """Namespace and name of a repository, from `namespace/name`, or from a name in the pod's own namespace."""
    namespace, _, repository = name.rpartition("/")
    for each in filter(None, (namespace, repository)):
        # It becomes a part of a URL that is asked with the pod's own account: `../../secrets` would be one, too.
        if not NAME.fullmatch(each):
            raise SparkSourceError(f"option endpoint: kubernetes:namespace/name, not {name!r}")
    if not namespace:
        with open(f"{ACCOUNT}/namespace", encoding="utf-8") as file:
            namespace = file.read().strip()
    return namespace, repository


def _of_kubernetes(namespace: str, repository: str) -> list[FleetNode]:
    query = f"labelSelector=kubernetes.io%2Fservice-name%3D{repository}-nodes"
    found = addresses_of(_listed(f"apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"))
    try:
        objects = _listed(f"apis/{API_VERSION}/namespaces/{namespace}/contentrepositorynodes")
    except urllib.error.HTTPError as refusal:
        if refusal.code not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise
        return found
    return with_objects(found, [each for each in objects if each["spec"]["repository"] == repository])


def create(path: str, thing: dict[str, Any]) -> None:
    """Make an object of Kubernetes, unless there is one of its name. OSError if it is not to be made."""
    try:
        _asked(path, json.dumps(thing).encode())
    except urllib.error.HTTPError as refusal:
        if refusal.code != HTTPStatus.CONFLICT:
            raise


def _listed(path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = _asked(path)["items"]
    return items


def _asked(path: str, body: bytes | None = None) -> Any:
    """What the API server answers to the pod's own account; with a body something is made there. One that asks to come
    again later, as it does while the definition of a kind changes, is asked again for a while.
    """
    with open(f"{ACCOUNT}/token", encoding="utf-8") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{API}/{path}", body, headers)  # noqa: S310 - https
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    last = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            pause = float(refusal.headers.get("Retry-After") or 1)
            if refusal.code not in BUSY or time.monotonic() + pause > last:
                raise
            time.sleep(pause)


def addresses_of(slices: Iterable[dict[str, Any]]) -> list[FleetNode]:
    """The nodes in endpoint slices, by the names that their certificate has, those too that are not ready."""
    found: dict[str, FleetNode] = {}
    for each in slices:
        metadata = each["metadata"]
        service = f"{metadata['labels']['kubernetes.io/service-name']}.{metadata['namespace']}.svc"
        port = next((port["port"] for port in each.get("ports") or () if port.get("name") == "flight"), None)
        if port is None:
            raise SparkSourceError(f"service {service} has no port flight: spec.service.flightPort is not set")
        http = next((port["port"] for port in each.get("ports") or () if port.get("name") == "http"), HTTP_PORT)
        for endpoint in each.get("endpoints") or ():
            name = endpoint["nodeName"]
            is_ready = endpoint.get("conditions", {}).get("ready")
            if name in found and not is_ready:
                continue  # the pod before it, which has not quite gone yet
            found[name] = FleetNode(
                name=name,
                flight=f"grpc+tls://{endpoint['hostname']}.{service}:{port}",
                url=f"https://{endpoint['hostname']}.{service}:{http}",
                trouble="" if is_ready else "Kubernetes says that its agent is not ready",
            )
    return list(found.values())


def with_objects(found: Iterable[FleetNode], objects: Iterable[dict[str, Any]]) -> list[FleetNode]:
    """The same with what each node last said of its content, and the nodes that have none of an agent's addresses."""
    nodes = {node.name: node for node in found}
    for each in objects:
        name = each["spec"]["nodeName"]
        node = nodes.get(name, FleetNode(name=name, flight="", trouble="Kubernetes lists no agent on it"))
        live_bytes = each.get("status", {}).get("space", {}).get("liveBytes")
        nodes[name] = msgspec.structs.replace(node, live_bytes=live_bytes)
    return list(nodes.values())


def http_url_of(node: FleetNode) -> str:
    """Where the node answers over HTTP: as it was said, or at the usual port of the same host."""
    if node.url:
        return node.url
    scheme, _, rest = node.flight.partition("://")
    host = rest.rpartition(":")[0]
    return f"{'https' if 'tls' in scheme else 'http'}://{host}:{HTTP_PORT}"
