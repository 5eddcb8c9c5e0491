"""What is known of one repository at one moment, as plain records: all that decide.py may look at."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ullage_agent.contract import ContentRepository, ContractError, parse
from ullage_agent.fleet import (
    ContentRepositoryNode,
    NodeSpec,
    NodeStatus,
    PlanningResult,
    ReclamationRun,
    RepositoryStatus,
    RunSpec,
    RunStatus,
    read,
)
from ullage_operator.times import millis_of

PAUSED: Final = "ullage.dev/paused"
"""Annotation of a ContentRepository: "true" keeps the operator's hands off it."""

RELEASE: Final = "ullage.dev/release"
"""Annotation of a ContentRepositoryNode whose node is gone for good."""

DATA_LOST: Final = "data-lost"
"""Its only value: who writes it admits that the node's content is lost."""

TEMPLATE: Final = "ullage.dev/template"
"""Annotation of an agent's pod: a digest of the template that it was made from."""

Document = Mapping[str, Any]


class Taint(msgspec.Struct, frozen=True):
    """Of a node."""

    key: str
    value: str
    effect: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    is_ready: bool = True

    @classmethod
    def of(cls, node: Document) -> "Machine":
        """From what the API server says."""
        spec = node.get("spec") or {}
        conditions = (node.get("status") or {}).get("conditions") or ()
        return cls(
            name=node["metadata"]["name"],
            labels=dict(node["metadata"].get("labels") or {}),
            taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ()),
            is_cordoned=bool(spec.get("unschedulable")),
            is_ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        )


class NodeObject(msgspec.Struct, frozen=True, kw_only=True):
    """A ContentRepositoryNode as it is."""

    name: str
    uid: str
    generation: int
    spec: NodeSpec
    status: NodeStatus
    is_released: bool = False

    @classmethod
    def of(cls, found: Document) -> "NodeObject":
        """From what the API server says; msgspec.ValidationError if an agent wrote nonsense."""
        metadata = found["metadata"]
        record = read(ContentRepositoryNode, {"spec": found["spec"], "status": found.get("status") or {}})
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=record.spec,
            status=record.status,
            is_released=(metadata.get("annotations") or {}).get(RELEASE) == DATA_LOST,
        )


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's pod."""

    node: str
    address: str
    is_ready: bool
    name: str = ""
    uid: str = ""
    template: str = ""
    """Digest of what it was made from."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A ReclamationRun as it is."""

    name: str
    generation: int
    created: str
    spec: RunSpec
    status: RunStatus

    @classmethod
    def of(cls, found: Document) -> "Run":
        """From what the API server says."""
        metadata = found["metadata"]
        record = read(ReclamationRun, {"spec": found["spec"], "status": found.get("status") or {}})
        return cls(
            name=metadata["name"],
            generation=metadata.get("generation", 0),
            created=metadata["creationTimestamp"],
            spec=record.spec,
            status=record.status,
        )


class PlanningRun(msgspec.Struct, frozen=True, kw_only=True):
    """A Job or SparkApplication of spec.planning as it is. `message`: what its pod said last, or why it failed."""

    kind: str
    name: str
    uid: str
    scheduled_millis: int
    began_millis: int
    result: PlanningResult
    ended_millis: int | None = None
    message: str = ""
    logs: str = ""


class PlanningSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of spec.planning, where it was asked for."""

    runs: tuple[PlanningRun, ...] = ()
    has_spark_applications: bool = False
    """Whether the cluster serves kubeflow's."""

    problem: str = ""
    """Why it is not known which runs there are; empty if it is."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A ContentRepository as it is. `document` is None where `problem` says what is wrong with it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_millis: int
    document: ContentRepository | None
    problem: str = ""
    is_paused: bool = False
    is_going: bool = False
    status: RepositoryStatus = RepositoryStatus()

    @classmethod
    def of(cls, found: Document) -> "Wish":
        """From what the API server says."""
        metadata = found["metadata"]
        document, problem = None, ""
        try:
            document = parse({key: found.get(key) or {} for key in ("apiVersion", "kind", "metadata", "spec")})
        except ContractError as error:
            problem = str(error)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created_millis=millis_of(metadata["creationTimestamp"]),
            document=document,
            problem=problem,
            is_paused=(metadata.get("annotations") or {}).get(PAUSED) == "true",
            is_going="deletionTimestamp" in metadata,
            status=read(RepositoryStatus, found.get("status") or {}),
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def root(self) -> str:
        """The directory of this repository on its nodes; empty where each node has a volume of its own."""
        if self.document is None or self.document.spec.storage.local_persistent_volume is not None:
            return ""
        return root_of(self.document)


def root_of(document: ContentRepository) -> str:
    """Below hostPath, a directory for each repository; no name can lead out of it or into another's."""
    path = document.spec.storage.host_path.path.rstrip("/")
    return f"{path}/{document.metadata.namespace}/{document.metadata.name}"


class Blockers(msgspec.Struct, frozen=True, kw_only=True):
    """Applications by node. `problem`: they could not be asked for, so every node counts as busy."""

    by_node: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    problem: str = ""

    def on(self, node: str) -> tuple[str, ...]:
        """What the node waits for, the first three."""
        if self.problem:
            return ("unknown: the query for pods failed",)
        return self.by_node.get(node, ())[:3]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one repository."""

    now_millis: int
    wish: Wish
    others: tuple[Wish, ...] = ()
    machines: tuple[Machine, ...] = ()
    objects: dict[str, NodeObject] = msgspec.field(default_factory=dict)
    agents: dict[str, Agent] = msgspec.field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    blockers: Blockers = Blockers()
    has_cert_manager: bool = False
    """Asked for only where spec.tls.mode wants it."""

    planning: PlanningSeen | None = None
    """None: not asked for, because nothing of it is due."""

    busy_volumes: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """Of each node: volumes on which another repository holds a ticket."""

    def is_away(self, node: str) -> bool:
        """Whether Services lead to no agent of this node: it has no pod, or one that is not ready."""
        agent = self.agents.get(node)
        return agent is None or not agent.is_ready


def machines_of(nodes: Iterable[Document]) -> tuple[Machine, ...]:
    """By name, so that what follows from them is always the same."""
    return tuple(sorted((Machine.of(node) for node in nodes), key=lambda machine: machine.name))


def agents_of(pods: Iterable[Document]) -> dict[str, Agent]:
    """By node; where a pod follows another, the ready one."""
    found: dict[str, Agent] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        status = pod.get("status") or {}
        if not node or "deletionTimestamp" in pod["metadata"]:
            continue
        is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        if node not in found or is_ready:
            found[node] = Agent(
                node=node,
                address=status.get("podIP", ""),
                is_ready=is_ready,
                name=pod["metadata"]["name"],
                uid=pod["metadata"].get("uid", ""),
                template=(pod["metadata"].get("annotations") or {}).get(TEMPLATE, ""),
            )
    return found
