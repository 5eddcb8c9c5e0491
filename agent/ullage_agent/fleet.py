"""What operator and agents say to each other: ContentRepositoryNode, ReclamationRun, and the statuses.

The operator writes specs, an agent writes the status of its own node and nothing else. A ticket is the permission to
truncate, punch or rewrite on one node for a time; without a valid one an agent does none of it, the emergency floor
aside. It is fenced by the generation of the ContentRepository that it was given under: settings that changed since,
or have not arrived yet, make it void.

    operator    ticket t1 in spec ──────────────────────── takes it back ── next node
    agent                        Running in status ── Completed in status

Times are RFC 3339 in UTC, sizes are bytes. Reading is lenient, because the two sides are not updated at once.
"""

import enum
import hashlib
import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ullage_agent.sections import DNS_LABEL
from ullage_agent.window_sections import MaintenanceOperation

API_VERSION: Final = "ullage.dev/v1alpha1"
REPOSITORY_LABEL: Final = "ullage.dev/repository"
NODE_LABEL: Final = "ullage.dev/node"

TICKETED: Final = (MaintenanceOperation.TRUNCATE, MaintenanceOperation.PUNCH, MaintenanceOperation.REWRITE)
"""What needs a ticket in a cluster. Delete takes dead files as a whole: agents read its windows themselves."""

HEARTBEAT_SECONDS: Final = 300
"""How often an agent writes its status though nothing changed. A node that was silent for three is lost."""

ENGINE_FORMAT: Final = 1
"""Of what agents of this release write; the engine's own number, which the operator cannot import."""

CONDITIONS_MAX: Final = 16
NODE_NAME: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"

Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(pattern=NODE_NAME, max_length=253)]


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Passes over fields that it does not know."""


class ConditionStatus(enum.StrEnum):
    """Of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class TicketState(enum.StrEnum):
    """How far an agent is with its ticket."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    REFUSED = "Refused"
    FAILED = "Failed"


class RunPhase(enum.StrEnum):
    """How far a ReclamationRun is."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Condition(Record, frozen=True, kw_only=True):
    """One fact about an object, as in the API conventions of Kubernetes."""

    type: Annotated[str, Meta(min_length=1, max_length=63)]
    """What it is about."""

    status: ConditionStatus
    """Whether it holds."""

    reason: Annotated[str, Meta(min_length=1, max_length=128)]
    """Why, in one word that programs can read."""

    message: Annotated[str, Meta(max_length=4096)] = ""
    """Why, in words that people can read."""

    observed_generation: Count = 0
    """The generation of the object that it was found for."""

    last_transition_time: Time
    """Since when its status is what it is."""


class Ticket(Record, frozen=True, kw_only=True):
    """Permission to reclaim on one node."""

    id: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """Names it; never used twice on a node."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=4)]
    """What it permits."""

    generation: Count
    """Of the ContentRepository that it was given under; with other settings it is void."""

    not_before: Time
    """It is void before that."""

    not_after: Time
    """Nothing starts from then on."""

    stop_after: Time | None = None
    """A run under way stops then, after its present action; null: it may finish."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    """Why it was given."""

    run: Annotated[str, Meta(max_length=253)] = ""
    """The ReclamationRun that asked for it; empty: the windows did."""

    dry_run: bool = False
    """Plan, report, and change nothing."""

    policy: Annotated[str, Meta(max_length=256)] = ""
    """Instead of spec.compaction.policy; empty: that one."""

    bytes_per_second: Bytes | None = None
    """Instead of spec.compaction.bytesPerSecond; 0: no limit; null: that one."""


class Deferral(Record, frozen=True, kw_only=True):
    """A node waits for pods to go before it is reclaimed."""

    since: Time
    """Since when."""

    waits_for: Annotated[tuple[str, ...], Meta(max_length=3)]
    """Applications, the first three by name."""


class NodeSpec(Record, frozen=True, kw_only=True):
    """Written by the operator."""

    repository: Name
    """The ContentRepository, in the same namespace. Immutable."""

    node_name: Name
    """The node. Immutable."""

    cordoned: bool = False
    """The node is unschedulable: the agent seals what it writes, and reclaims nothing."""

    ticket: Ticket | None = None
    """The permission that holds now; null: none."""

    deferral: Deferral | None = None
    """Why there is none though the agent wants one; null: for no pod's sake."""


class Space(Record, frozen=True, kw_only=True):
    """Bytes on the node's volumes, as the agent last saw them."""

    capacity_bytes: Bytes = 0
    """Of all containers, quotas considered."""

    free_bytes: Bytes = 0
    """Of all containers."""

    live_bytes: Bytes = 0
    """Content that something points at."""

    dead_bytes: Bytes = 0
    """Content that nothing points at, still on disk."""

    archived_bytes: Bytes = 0
    """Dead content that is kept for replay."""

    free_percentage: Annotated[float, Meta(ge=0, le=100)] = 100.0
    """Of the fullest container."""


class TicketReport(Record, frozen=True, kw_only=True):
    """What became of a ticket."""

    id: str
    """The ticket's."""

    run: str = ""
    """The ReclamationRun that asked for it."""

    state: TicketState
    """How far it is."""

    started: Time | None = None
    """When the run began."""

    ended: Time | None = None
    """When it ended."""

    actions: Count = 0
    """Carried out; of a dry run: planned."""

    freed_bytes: Bytes = 0
    """Given back under it, also by the node's own schedules; of a dry run: planned."""

    copied_bytes: Bytes = 0
    """Copied for it; of a dry run: planned."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why it was refused, failed or stopped early."""


class NodeStatus(Record, frozen=True, kw_only=True):
    """Written by the agent alone."""

    observed_generation: Count = 0
    """Of the ContentRepositoryNode."""

    settings_generation: Count = 0
    """Of the ContentRepository whose settings are in force."""

    version: str = ""
    """Of the agent."""

    heartbeat: Time | None = None
    """When the agent last wrote."""

    format: Count = 0
    """Version of what the agent writes to disk; no agent with a lower one opens it afterwards. 0: not told."""

    repository_uuid: str = ""
    """Of what lies on the disk."""

    volumes: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Device numbers that content lies on: two repositories of a node may share one."""

    space: Space = Space()
    """What is used."""

    reclaimed_bytes: Bytes = 0
    """Given back since the agent started."""

    leases: Count = 0
    """Readers' promises that hold now."""

    wanted: Annotated[tuple[MaintenanceOperation, ...], Meta(max_length=4)] = ()
    """What the agent would do if it had a ticket."""

    ticket: TicketReport | None = None
    """What became of the last one."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """Ready, DiskPressure, Reclaiming."""


HEARTBEAT_FIELDS: Final = ("heartbeat", "space", "leases", "reclaimed_bytes")
"""Of a NodeStatus: what is told with a heartbeat, and is no news by itself."""


class NextWindow(Record, frozen=True, kw_only=True):
    """When an operation may run again."""

    opens: Time | None = None
    """The next opening of any ticketed operation; null: none in sight, or open now."""

    closes: Time | None = None
    """Null: closed now, or no end in sight."""


class PlanningResult(enum.StrEnum):
    """How far the last run of spec.planning is."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PlanningStatus(Record, frozen=True, kw_only=True):
    """The runs of spec.planning."""

    next_run: Time | None = None
    """When the next is due; null: none is."""

    last_run: Time | None = None
    """For which time of the schedule the last was begun."""

    ended: Time | None = None
    """When that one ended."""

    result: PlanningResult | None = None
    """What became of it; null: there was none yet."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """What it found, or why it failed."""

    workload: str = ""
    """The object that runs it: `Job/NAME` or `SparkApplication/NAME`."""

    logs: str = ""
    """The command that shows what it said, as long as it is kept."""


class RepositoryStatus(Record, frozen=True, kw_only=True):
    """Written by the operator: sums over the nodes, and what is wrong."""

    observed_generation: Count = 0
    """Of the ContentRepository."""

    nodes: Count = 0
    """That should have an agent."""

    nodes_ready: Count = 0
    """Whose agent serves."""

    nodes_reclaiming: Count = 0
    """With a ticket."""

    nodes_deferred: Count = 0
    """That wait for pods to go."""

    nodes_lost: Count = 0
    """Gone, with data that this repository still counts on."""

    live: str = "0"
    """Bytes that something points at."""

    dead: str = "0"
    """Bytes that nothing points at."""

    free: str = "0"
    """Bytes that are free."""

    reclaimed: str = "0"
    """Bytes given back since the agents started."""

    window: NextWindow = NextWindow()
    """When reclamation may run."""

    next_window: str = ""
    """The same in a word: Open, a time, or Paused."""

    planning: PlanningStatus | None = None
    """What spec.planning does; null: nothing."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """Accepted, Ready, Progressing, Degraded, DiskPressure, MaintenanceDeferred, Paused."""


class RunSpec(Record, frozen=True, kw_only=True):
    """What an administrator asks for, once. Immutable."""

    repository: Name
    """The ContentRepository, in the same namespace."""

    nodes: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    """On which; none: on all."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=3)] = TICKETED
    """Truncate, Punch, Rewrite."""

    policy: Annotated[str, Meta(max_length=256)] = ""
    """Instead of spec.compaction.policy, such as CompactAll; empty: that one."""

    bytes_per_second: Bytes | None = None
    """What a rewrite may copy a second on each disk; 0: no limit; null: spec.compaction.bytesPerSecond."""

    dry_run: bool = False
    """Plan and report; change nothing."""

    override_windows: bool = False
    """Do not wait for a window, nor for Spark. Pausing holds all the same."""


class RunNode(Record, frozen=True, kw_only=True):
    """What became of a run on one node."""

    node: str
    """Its name."""

    report: TicketReport
    """What the agent said."""


class RunStatus(Record, frozen=True, kw_only=True):
    """Written by the operator: the report."""

    observed_generation: Count = 0
    """Of the ReclamationRun."""

    phase: RunPhase = RunPhase.PENDING
    """How far it is."""

    started: Time | None = None
    """When the first ticket was given."""

    ended: Time | None = None
    """When the last node was done."""

    nodes: Count = 0
    """It is about."""

    nodes_done: Count = 0
    """Done, refused and failed ones included."""

    nodes_failed: Count = 0
    """Refused or failed."""

    freed: str = "0"
    """Bytes given back; of a dry run: planned."""

    copied: str = "0"
    """Bytes copied; of a dry run: planned."""

    message: str = ""
    """Why it waits, or failed."""

    results: Annotated[tuple[RunNode, ...], Meta(max_length=1000)] = ()
    """For each node that is done; the first thousand."""


class ContentRepositoryNode(Record, frozen=True, kw_only=True):
    """One repository on one node."""

    spec: NodeSpec
    status: NodeStatus = NodeStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentRepositoryNode"] = "ContentRepositoryNode"


class ReclamationRun(Record, frozen=True, kw_only=True):
    """Reclamation that an administrator asks for."""

    spec: RunSpec
    status: RunStatus = RunStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ReclamationRun"] = "ReclamationRun"


Kind = TypeVar("Kind", bound=Record)


def read(kind: type[Kind], document: Any) -> Kind:
    """A record from what the API server sent; msgspec.ValidationError if it is none."""
    return msgspec.convert(document, kind)


def plain(record: Record) -> dict[str, Any]:
    """A record as the API server takes it."""
    document: dict[str, Any] = msgspec.to_builtins(record)
    return document


def object_name(repository: str, node: str) -> str:
    """The name of a ContentRepositoryNode: both names, with a digest where they are long or could be confused.

    `a` on `b.c` and `a.b` on `c` differ, because a repository's name ends at the first `--`.
    """
    name = f"{repository}--{node}"
    if len(name) <= 253 and "--" not in repository and re.fullmatch(NODE_NAME, name):
        return name
    return f"{repository[:100].rstrip('-.')}--{hashlib.sha256(f'{repository}/{node}'.encode()).hexdigest()[:32]}"
