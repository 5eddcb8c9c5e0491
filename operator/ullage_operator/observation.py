"""What is known of one repository at one moment, as plain records: all that decide.py may look at."""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from ullage.contract import (
    DRAIN,
    BackupSpec,
    BackupStatus,
    ClusterRecord,
    NodeSpec,
    NodeStatus,
    PlanningResult,
    RestoreSpec,
    RestoreStatus,
    RunSpec,
    RunStatus,
    record_of,
)
from ullage_operator.authority import CertificateAuthority
from ullage_operator.objects import TROUBLE_MAX, RepositoryObject, told_of

RELEASE: Final = "ullage.dev/release"
"""Annotation of a ContentRepositoryNode whose content is lost for good. Its value is the uid of that very object:
whoever writes it means this one, and it can't stay behind for the next.
"""

TEMPLATE: Final = "ullage.dev/template"
"""Annotation of an agent's pod: a digest of the template that it was made from."""

LEAN_METADATA: Final = ("name", "namespace", "uid", "labels", "resourceVersion", "deletionTimestamp")

STARTING: Final = ("ContainerCreating", "PodInitializing")
"""What every pod waits for at first."""

Document = Mapping[str, Any]


class Taint(msgspec.Struct, frozen=True):
    """Of a node."""

    key: str
    value: str
    effect: str


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    is_ready: bool = True

    @classmethod
    def of(cls, node: Document) -> "ClusterNode":
        """From what the API server says."""
        spec = node.get("spec") or {}
        return cls(
            name=node["metadata"]["name"],
            labels=dict(node["metadata"].get("labels") or {}),
            taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ()),
            is_cordoned=bool(spec.get("unschedulable")),
            is_ready=_is_ready(node),
        )


class NodeObject(msgspec.Struct, frozen=True, kw_only=True):
    """A ContentRepositoryNode as it is."""

    name: str
    uid: str
    spec: NodeSpec
    status: NodeStatus
    release: str = ""
    """What its annotation says; see RELEASE."""

    generation: int = 0
    drain: str = ""
    """What its annotation says; see DRAIN."""

    version: str = ""
    """That it was seen in, its resourceVersion."""

    created: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    is_going: bool = False
    """Whether somebody has deleted it: it is there as long as it has a finalizer, and gets no new one."""

    trouble: str = ""
    """Why its status cannot be read: then that is an empty one. Empty if it can."""

    def metadata(self, namespace: str) -> dict[str, Any]:
        """What a patch of this very object needs."""
        place = {"namespace": namespace, "name": self.name, "finalizers": [*self.finalizers]}
        return {**place, "uid": self.uid, "resourceVersion": self.version}

    @property
    def is_released(self) -> bool:
        """Whether what it holds was given up."""
        return self.release == self.uid

    @classmethod
    def of(cls, found: Document) -> "NodeObject":
        """From what the API server says; msgspec.ValidationError if the spec is nonsense. A status that is, as
        an agent can write it, is no reason to know nothing of its node.
        """
        metadata, (status, trouble) = found["metadata"], told_of(NodeStatus, found)
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            spec=record_of(NodeSpec, found["spec"]),
            status=status,
            trouble=trouble,
            labels=metadata.get("labels") or {},
            finalizers=tuple(metadata.get("finalizers") or ()),
            is_going="deletionTimestamp" in metadata,
            release=(metadata.get("annotations") or {}).get(RELEASE, ""),
            generation=metadata.get("generation", 0),
            drain=(metadata.get("annotations") or {}).get(DRAIN, ""),
            version=metadata["resourceVersion"],
            created=metadata.get("creationTimestamp", ""),
        )


class AgentPod(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's pod."""

    node: str
    address: str
    is_ready: bool
    name: str = ""
    uid: str = ""
    template: str = ""
    """Digest of what it was made from."""

    trouble: str = ""
    """Why it is not ready, as far as its kubelet and its scheduler know; empty if they do not."""


class AskedObject(msgspec.Struct, frozen=True, kw_only=True):
    """What an administrator asked for, in an object of its own."""

    KIND: ClassVar[str]
    SPEC: ClassVar[type[ClusterRecord]]
    STATUS: ClassVar[type[ClusterRecord]]

    name: str
    uid: str = ""
    generation: int
    created: str
    trouble: str = ""
    """Why its status cannot be read: then that is an empty one, and is written anew as a whole."""

    @classmethod
    def of(cls, found: Document) -> Self:
        """From what the API server says; msgspec.ValidationError if the spec is nonsense."""
        metadata, (status, trouble) = found["metadata"], told_of(cls.STATUS, found)
        parts: dict[str, Any] = {"spec": record_of(cls.SPEC, found["spec"]), "status": status}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created=metadata["creationTimestamp"],
            trouble=trouble,
            **parts,
        )


class RunObject(AskedObject, frozen=True, kw_only=True):
    """A ReclamationRun as it is."""

    KIND, SPEC, STATUS = "ReclamationRun", RunSpec, RunStatus

    spec: RunSpec
    status: RunStatus


class BackupObject(AskedObject, frozen=True, kw_only=True):
    """A ContentBackup as it is."""

    KIND, SPEC, STATUS = "ContentBackup", BackupSpec, BackupStatus

    spec: BackupSpec
    status: BackupStatus

    def place_of(self, repository: tuple[str, str], node: str) -> str:
        """Where a node's backup lies."""
        return "/".join((self.spec.bucket.rstrip("/"), *repository, node))


class RestoreObject(AskedObject, frozen=True, kw_only=True):
    """A ContentRestore as it is."""

    KIND, SPEC, STATUS = "ContentRestore", RestoreSpec, RestoreStatus

    spec: RestoreSpec
    status: RestoreStatus


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


class ObservedPlanning(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of spec.planning, where it was asked for."""

    runs: tuple[PlanningRun, ...] = ()
    has_authority: bool = False
    """Whether clients are told whom to trust."""

    has_spark_applications: bool = False
    """Whether the cluster serves kubeflow's."""

    problem: str = ""
    """Why it is not known which runs there are; empty if it is."""


class Blockers(msgspec.Struct, frozen=True, kw_only=True):
    """Applications by node. `problem`: they could not be asked for, so every node counts as busy."""

    by_node: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    problem: str = ""

    def on(self, node: str) -> tuple[str, ...]:
        """What the node waits for, the first three."""
        if self.problem:
            return ("unknown: the query for pods failed",)
        return self.by_node.get(node, ())[:3]


class SigningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A CertificateRequest of cert-manager. `problem`: why nothing comes of it; `waits`: for what it waits."""

    name: str
    uid: str
    created_millis: int
    certificate: str = ""
    authority: str = ""
    problem: str = ""
    waits: str = ""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one repository."""

    now_millis: int
    repository: RepositoryObject
    others: tuple[RepositoryObject, ...] = ()
    cluster_nodes: tuple[ClusterNode, ...] = ()
    objects: dict[str, NodeObject] = msgspec.field(default_factory=dict)
    strays: tuple[Document, ...] = ()
    """Copies of nodes' objects under other names, our finalizer included: they stand for no node."""

    agents: dict[str, AgentPod] = msgspec.field(default_factory=dict)
    runs: tuple[RunObject, ...] = ()
    backups: tuple[BackupObject, ...] = ()
    restores: tuple[RestoreObject, ...] = ()
    blockers: Blockers = Blockers()
    owned: Mapping[str, Mapping[tuple[str, str], Any]] = msgspec.field(default_factory=dict)
    """Our objects by kind, then by namespace and name, as the cluster has them."""

    authority: CertificateAuthority = CertificateAuthority()
    """Who signs for the agents, as it shall be from now on; an empty one where somebody else signs."""

    certificates: dict[str, str] = msgspec.field(default_factory=dict)
    """Of agents that have asked for one, by node, as they shall be from now on."""

    certificate_names: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """What agents shall ask for, by node, where cert-manager signs."""

    signing_requests: tuple[SigningRequest, ...] = ()
    signing_asked: dict[str, str] = msgspec.field(default_factory=dict)
    """The requests that are to be passed on to cert-manager, by name, as PEM."""

    refused_certificates: dict[str, str] = msgspec.field(default_factory=dict)
    """Why cert-manager gave none, by node."""

    published: str | None = ""
    """The authorities that clients are told of; None if somebody else tells them."""

    has_cert_manager: bool = False
    """Asked for only where spec.tls.mode wants it."""

    expandable: dict[str, bool] = msgspec.field(default_factory=dict)
    """Whether volumes of a storage class can grow: of those classes of which it matters."""

    refused_pods: str | None = None
    """Why pods of agents were refused, by a quota for one; empty if it is not known, and None where all were made."""

    planning: ObservedPlanning | None = None
    """None: not asked for, because nothing of it is due."""

    busy_volumes: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """Of each node: volumes on which another repository holds a ticket."""

    def is_away(self, node: str) -> bool:
        """Whether Services lead to no agent of this node: it has no pod, or one that is not ready."""
        agent = self.agents.get(node)
        return agent is None or not agent.is_ready


def lean(found: Document) -> dict[str, Any]:
    """Of a node or a pod, what is looked at: thousands are followed, and a node's status carries every image there.
    Of conditions no times, which change with every heartbeat.
    """
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    ready = [{"type": "Ready", "status": "True"}] if _is_ready(found) else []
    named = {TEMPLATE: text} if (text := (metadata.get("annotations") or {}).get(TEMPLATE)) else {}
    trouble = {"trouble": words} if (words := _trouble(status)) else {}
    return {
        "metadata": {key: metadata[key] for key in LEAN_METADATA if key in metadata} | {"annotations": named},
        "spec": {key: spec[key] for key in ("nodeName", "taints", "unschedulable") if key in spec},
        "status": {key: status[key] for key in ("phase", "podIP") if key in status} | {"conditions": ready} | trouble,
    }


def _trouble(status: Document) -> str:
    """Why a pod has not come up, in the words of whoever failed it: its own last ones, or its kubelet's, or its
    scheduler's. How long the kubelet waits before the next try is left out, which changes with each.
    """
    for found in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (found.get("state") or {}).get("waiting") or {}
        ended = (found.get("state") or {}).get("terminated") or (found.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") in STARTING or not (waiting or ended.get("exitCode")) or found.get("ready"):
            continue
        is_looping = waiting.get("reason") == "CrashLoopBackOff"
        words = ended.get("message") if is_looping or not waiting else waiting.get("message")
        reason = waiting.get("reason") or ended.get("reason") or "Ended"
        return f"{reason}: {str(words).strip()[-TROUBLE_MAX:]}" if words else str(reason)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("message"):
            return f"{condition.get('reason', 'NotScheduled')}: {condition['message'][:TROUBLE_MAX]}"
    return ""


def _is_ready(found: Document) -> bool:
    """Whether a node or a pod says so."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _is_reachable(address: str) -> bool:
    """Whether an EndpointSlice may hold it. One pod with another address would keep all from being written."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    is_mapped = isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None
    return not (is_mapped or found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)


def agents_of(pods: Iterable[Document]) -> dict[str, AgentPod]:
    """By node; where a pod follows another, the ready one."""
    found: dict[str, AgentPod] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or "deletionTimestamp" in pod["metadata"]:
            continue
        status, is_ready = pod.get("status") or {}, _is_ready(pod)
        address, trouble = status.get("podIP", ""), status.get("trouble", "")
        if address and not _is_reachable(address):
            address, is_ready, trouble = "", False, f"no other machine reaches its pod by the address {address}"
        if node not in found or is_ready:
            found[node] = AgentPod(
                node=node,
                address=address,
                is_ready=is_ready,
                name=pod["metadata"]["name"],
                uid=pod["metadata"].get("uid", ""),
                template=(pod["metadata"].get("annotations") or {}).get(TEMPLATE, ""),
                trouble=trouble,
            )
    return found
