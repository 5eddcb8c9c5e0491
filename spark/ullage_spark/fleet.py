"""The nodes of a fleet: found by their addresses or through Kubernetes, and reached from wherever a task runs.

Clients are kept for the life of a Python worker. A token that was renewed makes a new one.
"""

import json
import os
import ssl
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from ullage_agent.client import Retries
from ullage_agent.client.flight import FlightClient
from ullage_agent.client.socket import SocketClient
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import Settings

T = TypeVar("T")

KUBERNETES: Final = "kubernetes:"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
API: Final = "https://kubernetes.default.svc"
HTTP_PORT: Final = 8480
"""The default of spec.service.httpPort."""

HERE: Final = "ULLAGE_NODE"
"""Set in executors' pods from `spec.nodeName`: see docs/spark.md, Locality."""

ASKED_MAX: Final = 16
"""Nodes that are asked at a time."""

CLIENTS_MAX: Final = 64
"""Connections that a worker keeps: as many nodes as one task ever talks to in turn, and then some."""

RETRIES: Final = Retries(attempts=6, first_seconds=0.2)
"""An agent that restarts is back within seconds; a task that fails sooner costs Spark a stage."""

_clients: "OrderedDict[tuple[str, ...], FlightClient | SocketClient]" = OrderedDict()
_lock = threading.Lock()


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is, and how to know its Unix socket. `repository` is its epoch: see docs/flight.md, The node."""

    name: str
    flight: str
    repository: str = ""
    socket: str = ""
    inode: int = 0
    changed_nanos: int = 0
    url: str = ""


def discover(settings: Settings) -> tuple[Node, ...]:
    """The fleet by name, each asked who it is. SparkSourceError names a node that does not answer for itself."""
    with ThreadPoolExecutor(ASKED_MAX) as pool:
        introduced = pool.map(lambda each: _introduced(settings, each), _addresses(settings))
        found = tuple(sorted(introduced, key=lambda node: node.name))
    names = [node.name for node in found]
    if len(set(names)) != len(names):
        raise SparkSourceError(f"nodes {', '.join(names)}: two of them have the same name")
    return found


def flight_of(settings: Settings, node: Node) -> FlightClient:
    """A client of the node over Arrow Flight."""
    token = settings.bearer()
    key = ("flight", node.flight, token or "", settings.ca_file)
    made = _kept(key, lambda: FlightClient(node.flight, token, ca_file=settings.ca_file or None))
    assert isinstance(made, FlightClient)
    return made


def socket_of(settings: Settings, node: Node) -> SocketClient | None:
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
    token = settings.bearer()
    made = _kept(("socket", path, str(node.inode), token or ""), lambda: SocketClient(path, token))
    assert isinstance(made, SocketClient)
    return made


def _kept(key: tuple[str, ...], make: Callable[[], T]) -> "FlightClient | SocketClient | T":
    key = (str(os.getpid()), *key)  # a connection does not survive a fork
    with _lock:
        if key not in _clients:
            _clients[key] = make()  # type: ignore[assignment]
            while len(_clients) > CLIENTS_MAX:
                _clients.popitem(last=False)
        _clients.move_to_end(key)
        return _clients[key]


def _addresses(settings: Settings) -> Iterable[Node]:
    if settings.nodes:
        try:
            return msgspec.json.decode(settings.nodes, type=list[Node])
        except msgspec.DecodeError as error:
            raise SparkSourceError(f"option nodes is a JSON list of name, flight and more: {error}") from error
    if settings.endpoint.startswith(KUBERNETES):
        return addresses_of(endpoint_slices(settings.endpoint.removeprefix(KUBERNETES)))
    return [Node(name="", flight=each.strip()) for each in settings.endpoint.split(",") if each.strip()]


def _introduced(settings: Settings, node: Node) -> Node:
    about = RETRIES.run(lambda: flight_of(settings, node).about())
    if node.name and node.name != about.node:
        raise SparkSourceError(f"{node.flight} is node {about.node}, not {node.name}")
    seen = about.socket
    return Node(
        name=about.node or node.flight,
        flight=node.flight,
        repository=about.repository,
        socket=node.socket or ("" if seen is None else seen.path),
        inode=0 if seen is None else seen.inode,
        changed_nanos=0 if seen is None else seen.changed_nanos,
        url=node.url,
    )


def endpoint_slices(name: str) -> list[dict[str, Any]]:
    """Those of a repository's nodes (`namespace/name`), asked of Kubernetes as the pod's own account.

    It needs the verb `list` on endpointslices of that namespace.
    """
    namespace, _, repository = name.rpartition("/")
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


def addresses_of(slices: Iterable[dict[str, Any]]) -> list[Node]:
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
            Node(
                name=endpoint["nodeName"],
                flight=f"grpc+tls://{endpoint['hostname']}.{service}:{port}",
                url=f"https://{endpoint['hostname']}.{service}:{http}",
            )
            for endpoint in each.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready")
        ]
    return found


def http_url_of(node: Node) -> str:
    """Where the node answers over HTTP: as it was said, or at the usual port of the same host."""
    if node.url:
        return node.url
    scheme, _, rest = node.flight.partition("://")
    host = rest.rpartition(":")[0]
    return f"{'https' if 'tls' in scheme else 'http'}://{host}:{HTTP_PORT}"
