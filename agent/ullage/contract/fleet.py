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
from typing import Annotated, Final, Literal

from msgspec import Meta

from ullage.contract.backups import BackupTicket, BackupTicketReport, VerificationReport, VerificationTicket
from ullage.contract.conditions import CONDITIONS_MAX, Condition
from ullage.contract.restores import RestoreTicket, RestoreTicketReport
from ullage.contract.settings import API_VERSION, DNS_SUBDOMAIN, Bytes, ClusterRecord, Count, Time
from ullage.contract.tickets import RUNNABLE, RunPhase, Ticket, TicketReport
from ullage.contract.window_settings import MaintenanceOperation

REPOSITORY_LABEL: Final = "ullage.dev/repository"
NODE_LABEL: Final = "ullage.dev/node"

DRAIN: Final = "ullage.dev/drain"
"""Annotation of a ContentRepositoryNode that somebody wants to be drained: `true`."""

HEARTBEAT_SECONDS: Final = 300
"""How often an agent writes its status though nothing changed. A node that was silent for three is lost."""

ENGINE_FORMAT: Final = 1
"""Of what agents of this release write; the engine's own number, which the operator cannot import."""

SECONDS_MAX: Final = 365 * 86400
"""Of what a run may be told to wait: longer is a slip of the pen."""

FINISHED_MAX: Final = 64
"""Runs of which a node's object keeps the report: more than are ever under way, and some tens of kilobytes."""

RESULTS_MAX: Final = 16
"""Nodes of which a run's status repeats the report. An object of the API server has at most 1.5 MiB, all watch it."""

PEM_MAX: Final = 8192
"""Characters of a certificate or a signing request: ours have about a thousand."""

CERTIFICATE_NAMES_MAX: Final = 16
"""Names in a certificate: those of an agent are eight."""

Name = Annotated[str, Meta(pattern=DNS_SUBDOMAIN, max_length=253)]


class Deferral(ClusterRecord, frozen=True, kw_only=True):
    """What a node waits for before it is reclaimed."""

    since: Time
    """When the node began to wait."""

    waits_for: Annotated[tuple[str, ...], Meta(max_length=3)]
    """The applications that the node waits for: the first three by name."""


class FinishedRun(ClusterRecord, frozen=True, kw_only=True):
    """What the node's agent reported of a ReclamationRun."""

    uid: str
    """The uid of the ReclamationRun: another may have the same name later."""

    report: TicketReport
    """What the agent reported."""


class NodeSpec(ClusterRecord, frozen=True, kw_only=True):
    """What the operator wants of the node's agent."""

    repository: Name
    """The name of the ContentRepository, in the same namespace. Immutable."""

    node_name: Name
    """The name of the node. Immutable."""

    cordoned: bool = False
    """True while the node is unschedulable: the agent seals what it writes, and reclaims nothing."""

    draining: bool = False
    """True while the node is to be emptied of what only it has: the agent takes nothing new, and ships the rest."""

    ticket: Ticket | None = None
    """The permission to reclaim that holds now. Null gives none."""

    deferral: Deferral | None = None
    """What the node waits for though its agent wants a ticket. Null if it waits for no pods."""

    certificate: Annotated[str, Meta(max_length=PEM_MAX)] | None = None
    """The certificate of the agent's own key, as PEM, signed for this node's names by the repository's authority. Null
    if the agent has not asked for one."""

    certificate_names: Annotated[tuple[Name, ...], Meta(max_length=CERTIFICATE_NAMES_MAX)] = ()
    """The names that the agent asks a certificate for, where another signs what it asks than the operator. Empty where
    the operator signs: it takes nothing but the key."""

    backup: BackupTicket | None = None
    """The backup that the agent is to write, or has written last. Null: none."""

    verification: VerificationTicket | None = None
    """What the agent is to verify of its backup, or has verified last. Null: nothing."""

    restoration: RestoreTicket | None = None
    """The backup that the agent is to bring back before it makes a repository. Null: none."""

    finished: Annotated[tuple[FinishedRun, ...], Meta(max_length=FINISHED_MAX)] = ()
    """The ReclamationRuns that have ended on this node, with what the agent reported of each."""


class Returning(ClusterRecord, frozen=True, kw_only=True):
    """When the node's dead bytes come back, what is kept for replays and for an undelete included."""

    by_itself_bytes: Bytes = 0
    """The bytes that the next runs give back."""

    window_bytes: Bytes = 0
    """The bytes that wait for a window, or for a ticket."""

    retention_bytes: Bytes = 0
    """The bytes that are kept until a retention ends."""

    held_bytes: Bytes = 0
    """The bytes that readers, writers, sessions or leases hold."""

    unasked_bytes: Bytes = 0
    """The bytes that only come back when somebody asks for it or changes a setting. `ullage status` names each limit
    and threshold."""


class Space(ClusterRecord, frozen=True, kw_only=True):
    """Bytes on the node's volumes, as the agent last saw them."""

    capacity_bytes: Bytes = 0
    """The size of all containers, quotas considered."""

    free_bytes: Bytes = 0
    """The free bytes of all containers."""

    live_bytes: Bytes = 0
    """The bytes of content that something points at."""

    dead_bytes: Bytes = 0
    """The bytes of content that nothing points at and that are still on disk."""

    archived_bytes: Bytes = 0
    """The bytes of dead content that is kept for replay."""

    orphan_bytes: Bytes = 0
    """The bytes of content files that a killed process left and that nothing names yet."""

    free_percentage: Annotated[float, Meta(ge=0, le=100)] = 100.0
    """The free percentage of the fullest container."""

    returning: Returning = Returning()
    """When the dead bytes come back, as of some minutes ago."""

    disk_to_live: Annotated[float, Meta(ge=0)] | None = None
    """With spec.compaction.goal, the bytes that content takes for each that lives. Null if nothing lives."""

    oldest_dead: Time | None = None
    """With spec.compaction.goal, since when the oldest byte that compaction may give back has been dead for certain.
    Null if none is."""

    goal_missed: Time | None = None
    """From when on spec.compaction.goal will not be held, or is not. Null if all that is foreseen is well."""


class NodeStatus(ClusterRecord, frozen=True, kw_only=True):
    """The state of the node, written by its agent alone."""

    observed_generation: Count = 0
    """The generation of the ContentRepositoryNode that the agent last read."""

    settings_generation: Count = 0
    """The generation of the ContentRepository whose settings are in force."""

    version: str = ""
    """The version of the agent."""

    heartbeat: Time | None = None
    """When the agent last wrote this status."""

    format: Count = 0
    """The version of what the agent writes to disk. No agent with a lower one can open the repository afterwards. 0 if
    the agent has not said it."""

    repository_uuid: str = ""
    """The uuid of the repository that lies on the disk."""

    volumes: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """The device numbers of the volumes that content lies on. Two repositories of a node may share one."""

    space: Space = Space()
    """How the node's volumes are used."""

    sole_copy_bytes: Bytes = 0
    """The bytes of content that would be lost with the node: what waits to be shipped to the bucket of
    spec.replication, or all that lives, where nothing is shipped or it is not known what the bucket lacks. Backups do
    not count."""

    reclaimed_bytes: Bytes = 0
    """The bytes given back since the agent started."""

    leases: Count = 0
    """The number of leases that hold now."""

    unavailable_contents: Count = 0
    """The number of damaged contents and missing content files that are known. `ullage ls --unavailable` names them."""

    records_set_aside: Count = 0
    """The number of records that the agent keeps and cannot use. `ullage ls --set-aside` names them."""

    containers_away: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """The containers whose volume is not there, or is another's."""

    certificate_request: Annotated[str, Meta(max_length=PEM_MAX)] | None = None
    """What the agent asks a certificate for: a signing request (PKCS #10) as PEM. Its key never leaves the pod."""

    policies: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    """The policies of compaction that the agent has, those of other packages included."""

    wanted: Annotated[tuple[MaintenanceOperation, ...], Meta(max_length=4)] = ()
    """The operations that the agent would carry out if it had a ticket."""

    ticket: TicketReport | None = None
    """What became of the last ticket."""

    backup: BackupTicketReport | None = None
    """What became of the last backup."""

    verification: VerificationReport | None = None
    """What became of the last verification of the backup."""

    restoration: RestoreTicketReport | None = None
    """What became of the restoration that the repository was made by, or is waited for."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """How the node is: docs/conditions.md has all that they can say."""


HEARTBEAT_FIELDS: Final = ("heartbeat", "space", "sole_copy_bytes", "leases", "reclaimed_bytes")
"""Of a NodeStatus: what is told with a heartbeat, and is no news by itself."""


class NextWindow(ClusterRecord, frozen=True, kw_only=True):
    """When an operation may run again."""

    opens: Time | None = None
    """When an operation that needs a ticket may run next. Null if that is not in sight, or if one may run now."""

    closes: Time | None = None
    """When the present opening ends. Null if nothing is open now, or if no end is in sight."""


class PlanningResult(enum.StrEnum):
    """How far the last run of spec.planning is."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PlanningStatus(ClusterRecord, frozen=True, kw_only=True):
    """How the runs of spec.planning went."""

    next_run: Time | None = None
    """When the next run is due. Null if none is."""

    last_run: Time | None = None
    """The time of the schedule for which the last run was begun."""

    ended: Time | None = None
    """When the last run ended."""

    result: PlanningResult | None = None
    """What became of the last run. Null if there was none yet."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """What the last run found, or why it failed."""

    workload: str = ""
    """The object that runs the planning: `Job/NAME` or `SparkApplication/NAME`."""

    logs: str = ""
    """The command that shows the logs of the last run, as long as they are kept."""


OUT_OF_REACH_MAX: Final = 20
"""Nodes that a status names; how many there are is told beside them."""


class OutOfReach(ClusterRecord, frozen=True, kw_only=True):
    """A node that holds content and is not served."""

    node: Name
    """The name of the node."""

    reason: str
    """Why it is not served, as the condition Reachable has it."""

    live: str = "0"
    """The bytes of content on the node that something points at, as its agent last said."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """The reason why it is not served, in the words of the agent, its pod or its node."""


class RepositoryStatus(ClusterRecord, frozen=True, kw_only=True):
    """The state of the repository, written by the operator: sums over its nodes, and what is wrong."""

    observed_generation: Count = 0
    """The generation of the ContentRepository that the operator last read."""

    nodes: Count = 0
    """The number of nodes that should have an agent, or that hold content."""

    nodes_ready: Count = 0
    """The number of nodes whose agent serves."""

    nodes_reclaiming: Count = 0
    """The number of nodes that hold a ticket."""

    nodes_deferred: Count = 0
    """The number of nodes that wait for pods to go."""

    nodes_lost: Count = 0
    """The number of nodes that are gone with data that this repository still counts on."""

    nodes_out_of_reach: Count = 0
    """The number of nodes that hold content and are not served."""

    out_of_reach: Annotated[tuple[OutOfReach, ...], Meta(max_length=OUT_OF_REACH_MAX)] = ()
    """The nodes that hold content and are not served, the worst first, at most twenty. They stay here until they are
    served again or released."""

    live: str = "0"
    """The bytes of content that something points at."""

    dead: str = "0"
    """The bytes of content that nothing points at and that are still on disk."""

    free: str = "0"
    """The bytes that are free."""

    reclaimed: str = "0"
    """The bytes given back since the agents started."""

    sole_copy_bytes: Bytes = 0
    """The bytes of content that would be lost with its node, summed over the nodes: what waits to be shipped to the
    bucket of spec.replication, or all that lives. Backups do not count."""

    disk_to_live: Annotated[float, Meta(ge=0)] | None = None
    """With spec.compaction.goal, the bytes that content takes for each that lives, on the node where it is most."""

    oldest_dead: Time | None = None
    """With spec.compaction.goal, since when the oldest byte that compaction may give back has been dead for certain, on
    the node where it is longest. Null if none is."""

    goal_missed: Time | None = None
    """From when on the first node will not hold spec.compaction.goal, or does not. Null if all that is foreseen is
    well."""

    window: NextWindow = NextWindow()
    """When reclamation may run."""

    next_window: str = ""
    """When reclamation may run, in one word: Open, a time, or Paused."""

    planning: PlanningStatus | None = None
    """How the runs of spec.planning went. Null if it plans nothing."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """How the repository is: docs/conditions.md has all that they can say."""


class RunSpec(ClusterRecord, frozen=True, kw_only=True):
    """What an administrator asks for, once. The spec is immutable, but for suspend."""

    repository: Name
    """The name of the ContentRepository, in the same namespace."""

    nodes: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    """The names of the nodes to reclaim. Empty takes all."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=4)] = RUNNABLE
    """The operations to carry out: Delete, Truncate, Punch and Rewrite, or some of them. Delete takes whole dead files,
    which also go by themselves, later or when a window is open."""

    policy: Annotated[str, Meta(max_length=256)] = ""
    """The policy to use instead of spec.compaction.policy, such as CompactAll. Empty keeps that one."""

    bytes_per_second: Bytes | None = None
    """The bytes that a rewrite may copy a second on each disk. 0 sets no limit, and null takes
    spec.compaction.bytesPerSecond."""

    dry_run: bool = False
    """True plans and reports, and changes nothing."""

    override_windows: bool = False
    """True waits neither for a window nor for Spark. It does not lift spec.maintenance.paused."""

    suspend: bool = False
    """True takes the run's tickets back and gives none, until it is false again."""

    active_deadline_seconds: Annotated[int, Meta(ge=1, le=SECONDS_MAX)] | None = None
    """The seconds after its first ticket at which the run is ended, and has failed, also while its repository is
    paused. Null sets no end."""

    ttl_seconds_after_finished: Annotated[int, Meta(ge=0, le=SECONDS_MAX)] | None = None
    """The seconds after its end at which the run is deleted. Null keeps it."""


class RunNode(ClusterRecord, frozen=True, kw_only=True):
    """What became of a run on one node."""

    node: str
    """The name of the node."""

    report: TicketReport
    """What the node's agent reported."""


class RunStatus(ClusterRecord, frozen=True, kw_only=True):
    """The report of the run, written by the operator."""

    observed_generation: Count = 0
    """The generation of the ReclamationRun that the operator last read."""

    phase: RunPhase = RunPhase.PENDING
    """How far the run is."""

    started: Time | None = None
    """When the first ticket was given."""

    ended: Time | None = None
    """When the last node was done."""

    nodes: Count = 0
    """The number of nodes that the run is about."""

    nodes_done: Count = 0
    """The number of nodes that are done; those that refused or failed count as well."""

    nodes_failed: Count = 0
    """The number of nodes that refused or failed."""

    freed: str = "0"
    """The bytes that were given back, or that a dry run planned to."""

    copied: str = "0"
    """The bytes that were copied, or that a dry run planned to."""

    message: str = ""
    """Why the run waits, or why it failed."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """How the run is: docs/conditions.md has all that they can say."""

    results: Annotated[tuple[RunNode, ...], Meta(max_length=RESULTS_MAX)] = ()
    """What the worst of the nodes that are done reported: those that refused or failed come first. What each node
    reported stands in spec.finished of its ContentRepositoryNode."""


class ContentRepositoryNode(ClusterRecord, frozen=True, kw_only=True):
    """One repository on one node."""

    spec: NodeSpec
    status: NodeStatus = NodeStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentRepositoryNode"] = "ContentRepositoryNode"


class ReclamationRun(ClusterRecord, frozen=True, kw_only=True):
    """Reclamation that an administrator asks for."""

    spec: RunSpec
    status: RunStatus = RunStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ReclamationRun"] = "ReclamationRun"
