"""What the environment of the operator decides. Everything about a repository stands in its ContentRepository."""

import os
import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec

from ullage.contract import ENGINE_FORMAT

LISTS: Final = ("images", "roots", "namespaces", "spark_namespaces")
"""Settings that name several, with commas between them."""
CLUSTER_DOMAIN: Final = "cluster.local"
"""What most clusters' DNS calls them."""
VERSION: Final = version("ullage")
"""Of the images that belong to this operator: a tag that moves would change what runs without anybody's doing."""


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the pods of every repository get from whoever installs the operator, as a pod has it. None of it is a
    repository's to say: an environment or a volume can be another program, as an image can. The fields from `env` on
    are the agents' alone.
    """

    image_pull_secrets: tuple[dict[str, str], ...] = ()
    """For registries, by name: they must be in the namespace of each repository."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the kubelet asks the registry."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """On pods. The operator's own go before them."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """On pods. The operator's own go before them."""

    se_linux_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Of what reads and writes the directories of nodes: agents, and Jobs that clean."""

    env: tuple[dict[str, Any], ...] = ()
    """More environment. The operator's own goes before it."""

    volumes: tuple[dict[str, Any], ...] = ()
    """More volumes."""

    volume_mounts: tuple[dict[str, Any], ...] = ()
    """Where they are mounted."""

    priority_class_name: str = ""
    """Of agents whose ContentRepository names none; empty: the cluster's default."""


DEFAULT_PODS: Final = PodSettings()
"""Nothing is given."""


def _variable(field: str) -> str:
    return f"ULLAGE_OPERATOR_{field.upper()}"


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True, rename=_variable):
    """Each can be set by an environment variable of the same name in capitals, after ULLAGE_OPERATOR_."""

    agent_image: str = f"ullage-agent:{VERSION}"
    """Of agents whose ContentRepository names none."""

    agent_format: int = ENGINE_FORMAT
    """Version of what these agents write to disk. Nodes whose agents write an older one change inside windows only."""

    spark_image: str = f"ullage-spark:{VERSION}"
    """Of planning whose ContentRepository names none."""

    images: tuple[str, ...] = ()
    """What a ContentRepository may name beside those two, each exactly as it is named there, separated by commas. Who
    may choose any image may run any program on every node.
    """

    roots: tuple[str, ...] = ("/var/lib/ullage",)
    """Directories of nodes, separated by commas: spec.storage.hostPath.path must be one of them. Only root may write
    there, so that each repository's own directory below is a real one and leads nowhere else.
    """

    namespaces: tuple[str, ...] = ()
    """Namespaces that are looked after, separated by commas; none: all of the cluster. Where they are named, the
    operator needs no right outside of them but to read nodes and classes of storage; so it lets no agent ask the
    cluster who a client is: whoever installs it must do that (the chart does).
    """

    spark_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods reclamation waits for, separated by commas; none: those that are looked after, or all of
    the cluster.
    """

    namespace: str = "ullage-system"
    """The operator's own, which holds the keys of the repositories' certificate authorities."""

    lease: str = "ullage-operator"
    """Name of the Lease in that namespace by which several processes of one operator choose the one that works."""

    identity: str = msgspec.field(default_factory=socket.gethostname)
    """This process among them, by a name that no other has at the same time; by default that of its host, which is its
    pod's, cut to 63 characters.
    """

    cluster_domain: str = CLUSTER_DOMAIN
    """What the cluster's DNS calls it: certificates of agents are for these names too."""

    pods: PodSettings = DEFAULT_PODS
    """What the pods of every repository get, as JSON."""

    workers: int = 4
    """Repositories reconciled at the same time. More only help where the API server is slow."""

    writes_at_once: int = 16
    """Requests of one reconciliation under way at the same time: enough to fill the latency of the API server."""

    resync_seconds: int = 300
    """How often each repository is looked at though nothing was heard of it: what a lost event costs at most."""

    silence_seconds: float = 90.0
    """A watch of which nothing is heard for so long is begun anew: most API servers send a bookmark each minute."""

    settle_seconds: float = 1.0
    """How long events are collected before a repository is reconciled: a thousand agents report at about one time."""

    figures_seconds: int = 60
    """How often sums of bytes are added up and written at most. They change with every agent's heartbeat."""

    ticket_seconds: int = 3600
    """How long a ticket may be begun. Long enough for a busy agent, short enough for a dead one."""

    retry_seconds: int = 300
    """How long a node whose ticket was refused or failed goes without."""

    event_seconds: int = 3600
    """How soon the same Kubernetes Event is told again."""

    metrics_port: int = 8483
    """Prometheus; 0: none."""

    health_port: int = 8484
    """`/healthz` for the kubelet; 0: none."""


def settings_from(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Read the environment; msgspec.ValidationError names a variable that is not what it should be."""
    given: dict[str, object] = dict(environment)
    for field in LISTS:
        if (variable := _variable(field)) in environment:
            given[variable] = [part.strip() for part in environment[variable].split(",") if part.strip()]
    if text := environment.get(_variable("pods")):
        given[_variable("pods")] = msgspec.json.decode(text)
    return msgspec.convert(given, OperatorSettings, strict=False)
