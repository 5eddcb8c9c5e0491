"""The contract's sections that a cluster obeys: where agents run, how they are rolled, what reclamation waits for.

An agent that runs alone passes over them: there is no fleet to obey them for.
"""

import enum
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ullage.contract.settings import LABEL_KEY, LabelKey, LabelValue, Settings
from ullage.contract.units import Duration

SHARE: Final = r"^(100|[1-9]?[0-9])%$"

DEFER_MILLIS_MAX: Final = 30 * 24 * 3_600_000
"""A month: who wants to wait longer wants maintenance.paused."""

PLANNING_MILLIS_MAX: Final = 168 * 3_600_000
"""A week: a run of Spark that takes longer plans for a fleet that is another one by then."""

Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=32)]
Share = Annotated[str, Meta(pattern=SHARE, max_length=4)]


class TolerationOperator(enum.StrEnum):
    """How a toleration's value is compared."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(enum.StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class BlockerMode(enum.StrEnum):
    """What becomes of reclamation on a node with pods that may read from it."""

    DEFER = "Defer"
    IGNORE = "Ignore"


class DeletionPolicy(enum.StrEnum):
    """What becomes of the data when the ContentRepository is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class UpdateType(enum.StrEnum):
    """How pods take over what they can only take over by a restart."""

    ROLLING_UPDATE = "RollingUpdate"
    ON_DELETE = "OnDelete"


class Toleration(Settings, frozen=True, kw_only=True):
    """A taint that agents tolerate, as in a pod."""

    key: Annotated[str, Meta(pattern=f"^$|{LABEL_KEY}", max_length=317)] = ""
    """The taint's key. An empty one with operator Exists tolerates every taint."""

    operator: TolerationOperator = TolerationOperator.EQUAL
    """How the value is compared. Exists passes over it."""

    value: LabelValue = ""
    """The taint's value. It must be empty with operator Exists."""

    effect: TaintEffect | None = None
    """The taint's effect. Null tolerates each."""

    toleration_seconds: Annotated[int, Meta(ge=0)] | None = None
    """How many seconds a taint with effect NoExecute is tolerated. Null is for ever, since data does not move."""


NODES_MAX: Final = 2**31 - 1
"""What a DaemonSet can count to: of more the API server says that it failed, as if another try might do better."""

RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
"""What every node has. Others have a name with the domain of whoever makes them known."""

AMOUNT: Final = r"^([0-9]+(\.[0-9]+)?)(m|[KMGTPE]i|[kMGTPE])?$"
Amounts = Annotated[dict[str, Annotated[str, Meta(pattern=AMOUNT, max_length=32)]], Meta(max_length=16)]
_UNITS: Final = {"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000)} | {
    f"{letter}{binary}": Decimal(1024 if binary else 1000) ** (power + 1)
    for power, letter in enumerate("KMGTPE")
    for binary in ("i", "")
}


class ResourceRequirements(Settings, frozen=True, kw_only=True):
    """What an agent asks of its node, as in a container."""

    requests: Amounts = msgspec.field(default_factory=dict)
    """The resources that are set aside for an agent, such as `cpu: 250m`: cpu, memory, ephemeral-storage, or one of a
    device's vendor, such as `example.com/nic`."""

    limits: Amounts = msgspec.field(default_factory=dict)
    """The resources that an agent may not exceed, none below its request. A limit on memory ends the agent when it is
    reached."""


class SparkPodSettings(Settings, frozen=True, kw_only=True):
    """What reclamation does on nodes with drivers and executors of Spark."""

    mode: BlockerMode = BlockerMode.DEFER
    """With Defer, truncating, punching and rewriting wait until Spark's pods, and those of podSelectors, are gone. With
    Ignore they do not wait. Leases protect readers in any case."""

    max_defer: Duration = Duration(6 * 3_600_000)
    """How long a node waits for these pods before it is reclaimed all the same, so that a job without end does not fill
    the disk. Time counts in which windows allow the operation. It is at most 720h."""


class PodSelector(Settings, frozen=True, kw_only=True):
    """Pods that reclamation waits for as for those of Spark."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Meta(min_length=1, max_length=32)]
    """The labels of the pods. A pod must have all of them."""


class BlockerSettings(Settings, frozen=True, kw_only=True):
    """Pods whose node is left alone while they run."""

    spark_pods: SparkPodSettings = SparkPodSettings()
    """The pods of Spark, which are found by their labels."""

    pod_selectors: Annotated[tuple[PodSelector, ...], Meta(max_length=16)] = ()
    """Other pods, in any namespace. Reclamation waits for them as long as for those of Spark."""


class LabelSelector(Settings, frozen=True, kw_only=True):
    """Objects by their labels."""

    match_labels: Labels = msgspec.field(default_factory=dict)
    """The labels of the objects. An object must have all of them, and without any each one is meant."""


class NetworkPeer(Settings, frozen=True, kw_only=True):
    """Pods that may open connections to agents."""

    namespace_selector: LabelSelector | None = None
    """The namespaces of the pods. Null takes the repository's own."""

    pod_selector: LabelSelector | None = None
    """The pods in these namespaces. Null takes all of them."""


_Peers = Annotated[tuple[NetworkPeer, ...], Meta(max_length=16)]


class NetworkSettings(Settings, frozen=True, kw_only=True):
    """Who may open connections to agents, as their NetworkPolicy has it. The network of the cluster must obey such
    policies.
    """

    clients: _Peers = ()
    """Who may reach every port. Empty admits the pods of the repository's own namespace."""

    scrapers: _Peers = ()
    """Who may also reach the port of metrics, such as the pods of Prometheus."""


class UpdateStrategy(Settings, frozen=True, kw_only=True):
    """How agents are restarted."""

    type: UpdateType = UpdateType.ROLLING_UPDATE
    """RollingUpdate restarts so many nodes' agents at a time. OnDelete leaves a pod as it is until somebody deletes
    it."""

    max_unavailable: Annotated[int, Meta(ge=1, le=NODES_MAX)] | Share = 1
    """How many nodes' agents, or which percentage of them, may be away at once during a rolling update."""


class PlanningSettings(Settings, frozen=True, kw_only=True):
    """Plans for the whole fleet, made by Spark on a schedule: what each disk could give back, and for how many bytes
    copied. Planning only reads.
    """

    schedule: Annotated[str, Meta(max_length=256)] = ""
    """When a plan is made, as five fields of cron in spec.maintenance.timeZone. Empty never makes one."""

    image: Annotated[str, Meta(max_length=512)] = ""
    """Spark's image, of those that the operator allows. Empty takes the image that the operator came with."""

    suspend: bool = False
    """True begins no run of planning. A run that is under way goes on."""

    active_deadline: Duration = Duration(3_600_000)
    """A run that has lasted so long is ended and counts as failed. It is at most 168h."""

    history_limit: Annotated[int, Meta(ge=0, le=100)] = 3
    """The number of ended runs that are kept, with their logs."""


def fleet_problems(spec: Any) -> Iterator[str]:
    """The rules that join fields, or that a bare type cannot say."""
    for index, toleration in enumerate(spec.tolerations):
        yield from _toleration_problems(f"spec.tolerations[{index}]", toleration)
    yield from _resource_problems(spec.resources)
    defer = spec.maintenance.blockers.spark_pods.max_defer
    if defer > DEFER_MILLIS_MAX:
        yield f"spec.maintenance.blockers.sparkPods.maxDefer: {defer} is above 720h"
    if not 0 < spec.planning.active_deadline <= PLANNING_MILLIS_MAX:
        yield f"spec.planning.activeDeadline: {spec.planning.active_deadline} is not between 1ms and 168h"
    yield from _planning_problems(spec)
    for field, share in (
        ("maintenance.maxConcurrentNodes", spec.maintenance.max_concurrent_nodes),
        ("updateStrategy.maxUnavailable", spec.update_strategy.max_unavailable),
    ):
        if share == "0%":
            yield f"spec.{field}: must be above 0%"


def _resource_problems(resources: ResourceRequirements) -> Iterator[str]:
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name in amounts:
            is_vendor = "/" in name and re.fullmatch(LABEL_KEY, name) and "kubernetes.io/" not in name
            if name not in RESOURCES and not is_vendor:
                known = ", ".join(RESOURCES)
                yield f"spec.resources.{field}.{name}: no such resource: choose {known}, or a vendor's with its domain"
    for name, asked in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and _amount(limit) < _amount(asked):
            yield f"spec.resources.limits.{name}: {limit} must not be below the request ({asked})"
        if "/" in name and (limit is None or _amount(limit) != _amount(asked)):
            yield f"spec.resources.limits.{name}: must be the request ({asked}): a device is not shared"


def _amount(text: str) -> Decimal:
    """Of a text that the field's type has let pass."""
    number = text.rstrip("mkKMGTPEi")
    return Decimal(number) * _UNITS[text.removeprefix(number)]


def _planning_problems(spec: Any) -> Iterator[str]:
    """Spark comes from another pod, as an account of the cluster, and asks over Flight."""
    if not spec.planning.schedule:
        return
    if spec.tls.mode == "None" or spec.auth.mode != "Kubernetes":
        yield "spec.planning.schedule: needs spec.auth.mode Kubernetes, and a spec.tls.mode that is not None"
    if not spec.service.flight_port:
        yield "spec.planning.schedule: needs spec.service.flightPort"


def _toleration_problems(field: str, toleration: Toleration) -> Iterator[str]:
    if toleration.operator == TolerationOperator.EXISTS and toleration.value:
        yield f"{field}.value: must be empty where operator is Exists"
    if toleration.operator == TolerationOperator.EQUAL and not toleration.key:
        yield f"{field}.key: must not be empty where operator is Equal"
    if toleration.toleration_seconds is not None and toleration.effect != TaintEffect.NO_EXECUTE:
        yield f"{field}.tolerationSeconds: needs effect NoExecute"


def nodes_at_once(share: int | str, nodes: int) -> int:
    """How many of so many nodes: a number is itself, a percentage is rounded down, but at least one."""
    if isinstance(share, int):
        return share
    return max(1, nodes * int(share.removesuffix("%")) // 100)
