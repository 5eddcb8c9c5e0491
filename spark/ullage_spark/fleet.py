"""The nodes of a fleet: found by their addresses or through Kubernetes, and reached from wherever a task runs.

Clients are kept for the life of a Python worker. A token that was renewed makes a new one.
"""

import json
import os
import re
import ssl
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from ullage.client.flight import FlightClient
from ullage.client.proof import Identity, identity_of
from ullage.client.retries import Retries
from ullage.client.socket import SocketClient
from ullage.wire.tickets import ABOUT, FlightAction, Nothing, SocketIdentity
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions

Q = TypeVar("Q")
A = TypeVar("A")

KUBERNETES: Final = "kubernetes:"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
API: Final = "https://kubernetes.default.svc"
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Of objects of Kubernetes."""

HTTP_PORT: Final = 8480
"""The default of spec.service.httpPort."""

HERE: Final = "ULLAGE_NODE"
"""Set in executors' pods from `spec.nodeName`: see docs/spark.md, Locality."""

ASKED_MAX: Final = 16
"""Nodes that are asked at a time."""

CLIENTS_MAX: Final = 64
"""Connections of a kind that a worker keeps: as many nodes as one task ever talks to in turn, and then some."""

RETRIES: Final = Retries(attempts=6, first_seconds=0.2)
"""An agent that restarts is back within seconds; a task that fails sooner costs Spark a stage."""


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is, and how to know its Unix socket. `repository` is its epoch: see docs/flight.md, The node."""

    name: str
    flight: str
    repository: str = ""
    socket: str = ""
    inode: int = 0
    changed_nanos: int = 0
    url: str = ""


def discover(settings: SourceOptions) -> tuple[FleetNode, ...]:
    """The fleet by name, each asked who it is. SparkSourceError names a node that does not answer for itself."""
    with ThreadPoolExecutor(ASKED_MAX) as pool:
        introduced = pool.map(lambda each: _introduced(settings, each), _addresses(settings))
        found = tuple(sorted(introduced, key=lambda node: node.name))
    names = [node.name for node in found]
    if len(set(names)) != len(names):
        raise SparkSourceError(f"nodes {', '.join(names)}: two of them have the same name")
    return found


def flight_of(settings: SourceOptions, node: FleetNode) -> FlightClient:
    """A client of the node over Arrow Flight."""
    return _flight(os.getpid(), node.flight, settings.bearer(node.flight), settings.authority())


@lru_cache(CLIENTS_MAX)
def _flight(_process: int, url: str, token: str | None, ca_file: str | None) -> FlightClient:
    """By `_process`, too: a connection does not survive a fork."""
    return FlightClient(url, token, ca_file=ca_file)


def ask(settings: SourceOptions, node: FleetNode, action: FlightAction[Q, A], request: Q) -> A:
    """What a node answers over Arrow Flight; asked again while it restarts."""
    return RETRIES.run(lambda: flight_of(settings, node).act(action, request))


def socket_of(settings: SourceOptions, node: FleetNode) -> SocketClient | None:
    """A client over the node's Unix socket, if this is its machine; None elsewhere.

    Every node has a socket of the same path: inode and birth say whose it is, through whatever mount it is seen.
    """
    path = settings.socket or node.socket
    if not path or not node.inode:
        return None
    try:
        seen = os.stat(path)
    except OSError:
        return None
    if (seen.st_ino, seen.st_ctime_ns) != (node.inode, node.changed_nanos):
        return None
    # The node's answer to ABOUT said which file it is: only that the same node answers there is proved by the socket.
    identity = identity_of(node.flight, settings.authority())
    return _socket(os.getpid(), path, node.inode, settings.bearer(node.flight), identity)


@lru_cache(CLIENTS_MAX)
def _socket(_process: int, path: str, _inode: int, token: str | None, identity: Identity | None) -> SocketClient:
    return SocketClient(path, token, identity=identity)


def _addresses(settings: SourceOptions) -> Iterable[FleetNode]:
    if settings.nodes:
        try:
            return msgspec.json.decode(settings.nodes, type=list[FleetNode])
        except msgspec.DecodeError as error:
            raise SparkSourceError(f"option nodes is a JSON list of name, flight and more: {error}") from error
    if settings.endpoint.startswith(KUBERNETES):
        return addresses_of(endpoint_slices(settings.endpoint.removeprefix(KUBERNETES)))
    return [FleetNode(name="", flight=each.strip()) for each in settings.endpoint.split(",") if each.strip()]


def _introduced(settings: SourceOptions, node: FleetNode) -> FleetNode:
    about = ask(settings, node, ABOUT, Nothing())
    if node.name and node.name != about.node:
        raise SparkSourceError(f"{node.flight} is node {about.node}, not {node.name}")
    seen = about.socket or SocketIdentity(path="", inode=0, changed_nanos=0)
    return msgspec.structs.replace(
        node,
        name=about.node or node.flight,
        repository=about.repository,
        socket=node.socket or seen.path,
        inode=seen.inode,
        changed_nanos=seen.changed_nanos,
    )


def endpoint_slices(name: str) -> list[dict[str, Any]]:
    """Those of a repository's nodes (`namespace/name`), asked of Kubernetes as the pod's own account.

    It needs the verb `list` on endpointslices of that namespace.
    """
    namespace, _, repository = name.rpartition("/")
    for each in filter(None, (namespace, repository)):
        # It becomes a part of a URL that is asked with the pod's own account: `../../secrets` would be one, too.
        if not NAME.fullmatch(each):
            raise SparkSourceError(f"option endpoint: kubernetes:namespace/name, not {name!r}")
    with open(f"{ACCOUNT}/token", encoding="utf-8") as file:
        token = file.read().strip()
    if not namespace:
        with open(f"{ACCOUNT}/namespace", encoding="utf-8") as file:
            namespace = file.read().strip()
    query = f"labelSelector=kubernetes.io%2Fservice-name%3D{repository}-nodes"
    url = f"{API}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - https
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310
        items: list[dict[str, Any]] = json.load(answer)["items"]
    return items


def addresses_of(slices: Iterable[dict[str, Any]]) -> list[FleetNode]:
    """The ready nodes in endpoint slices, by the names that their certificate has."""
    found = []
    for each in slices:
        metadata = each["metadata"]
        service = f"{metadata['labels']['kubernetes.io/service-name']}.{metadata['namespace']}.svc"
        port = next((port["port"] for port in each.get("ports") or () if port.get("name") == "flight"), None)
        if port is None:
            raise SparkSourceError(f"service {service} has no port flight: spec.service.flightPort is not set")
        http = next((port["port"] for port in each.get("ports") or () if port.get("name") == "http"), HTTP_PORT)
        found += [
            FleetNode(
                name=endpoint["nodeName"],
                flight=f"grpc+tls://{endpoint['hostname']}.{service}:{port}",
                url=f"https://{endpoint['hostname']}.{service}:{http}",
            )
            for endpoint in each.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready")
        ]
    return found


def http_url_of(node: FleetNode) -> str:
    """Where the node answers over HTTP: as it was said, or at the usual port of the same host."""
    if node.url:
        return node.url
    scheme, _, rest = node.flight.partition("://")
    host = rest.rpartition(":")[0]
    return f"{'https' if 'tls' in scheme else 'http'}://{host}:{HTTP_PORT}"
