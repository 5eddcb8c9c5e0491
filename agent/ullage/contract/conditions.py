"""The conditions of all kinds: one table of what each can say, from which statuses, events and docs/conditions.md come.

A reason belongs to one status of its condition: who writes a condition says the reason and in words why, and whether it
holds follows from the table. What the table does not know nobody can say.
"""

import enum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from ullage.contract.settings import ClusterRecord, Count, Time

CONDITIONS_MAX: Final = 16


class ConditionStatus(enum.StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ClusterRecord, frozen=True, kw_only=True):
    """One fact about an object, as in the API conventions of Kubernetes."""

    type: Annotated[str, Meta(min_length=1, max_length=63)]
    """What the condition is about, such as Ready."""

    status: ConditionStatus
    """Whether the condition holds."""

    reason: Annotated[str, Meta(min_length=1, max_length=128)]
    """Why it holds or not, in one word that programs can read."""

    message: Annotated[str, Meta(max_length=4096)] = ""
    """Why it holds or not, in words that people can read."""

    observed_generation: Count = 0
    """The generation of the object that the condition was found for."""

    last_transition_time: Time
    """When the status last changed."""


class News(enum.StrEnum):
    """How a condition that turned is told: as an event of this type, or not at all."""

    NONE = ""
    NORMAL = "Normal"
    WARNING = "Warning"


class Cell(NamedTuple):
    """One thing that a condition can say: `when` it does, in words."""

    status: ConditionStatus
    reason: str
    when: str
    news: News = News.NONE


class ConditionRow(NamedTuple):
    """All that one condition can say."""

    type: str
    about: str
    cells: tuple[Cell, ...]


_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_SILENT_AGENTS: Final = "no agent that could tell was heard of for fifteen minutes, on the nodes that are named"
_BEHIND: Final = "agents that serve have yet to take over the settings of this generation"

TABLE: Final[dict[str, tuple[ConditionRow, ...]]] = {
    "ContentRepository": (
        ConditionRow(
            "Accepted",
            "The operator can and may do what the spec asks for. Until then it starts and changes nothing.",
            (
                Cell(_YES, "Valid", "every field can be obeyed", News.NORMAL),
                Cell(_NO, "Invalid", "fields do not go together: paths that contain each other, say", News.WARNING),
                Cell(_NO, "PathNotAllowed", "the operator does not allow spec.storage.hostPath.path", News.WARNING),
                Cell(_NO, "ImageNotAllowed", "the operator does not allow an image that the spec names", News.WARNING),
                Cell(_NO, "PathConflict", "the directory overlaps that of an older repository", News.WARNING),
                Cell(_NO, "NoCertManager", "spec.tls.mode is CertManager, and the cluster has none", News.WARNING),
                Cell(_NO, "InvalidWindow", "a window's schedule or the time zone cannot be read", News.WARNING),
                Cell(_NO, "InvalidSchedule", "spec.planning.schedule cannot be read", News.WARNING),
                Cell(_NO, "UnknownPlugin", "an agent lacks a policy or a repository that the spec names", News.WARNING),
                Cell(_UNKNOWN, "PluginUnheard", "no agent has said yet whether it has the plug-in", News.WARNING),
            ),
        ),
        ConditionRow(
            "Ready",
            "Every node that should have an agent is served, and so is all content. What `kubectl wait` waits for.",
            (
                Cell(_YES, "AllServe", "the agent of every node serves", News.NORMAL),
                Cell(_NO, "NotServing", "no agent serves on the nodes that are named, and why", News.WARNING),
                Cell(_NO, "OutOfReach", "every selected node serves, but content lies on others", News.WARNING),
                Cell(_NO, "NoNodes", "no node matches nodeSelector, affinity and tolerations", News.WARNING),
                Cell(_NO, "NotStarted", "it is paused or not accepted, and no agent was ever started", News.WARNING),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "Reconciling",
            "The operator is at work, and no person is needed (kstatus).",
            (
                Cell(_YES, "Rolling", "agents are started or restarted on the nodes that are named"),
                Cell(_YES, "WaitsForWindow", "a change of the format on disk waits for a window"),
                Cell(_YES, "AgentsBehind", _BEHIND),
                Cell(_YES, "PluginUnheard", "no agent has said yet whether it has a plug-in that the spec names"),
                Cell(_YES, "Retrying", "the API server failed or was out of reach; it is tried again", News.WARNING),
                Cell(_YES, "Removing", "the repository was deleted, and something is waited for", News.NORMAL),
                Cell(_NO, "Settled", "nothing is left to do"),
                Cell(_NO, "HandsOff", "it is paused, or stalled: nothing is being done"),
            ),
        ),
        ConditionRow(
            "Stalled",
            "Nothing will come of it until a person does something (kstatus).",
            (
                Cell(_YES, "NotAccepted", "Accepted is False", News.WARNING),
                Cell(_YES, "NoNodes", "no node matches nodeSelector, affinity and tolerations", News.WARNING),
                Cell(_YES, "Refused", "the API server refused an object, in its words", News.WARNING),
                Cell(_YES, "PodsRefused", "a quota, a limit or a policy refused pods of agents", News.WARNING),
                Cell(_YES, "RemovalRefused", "the API server refused a step of the removal", News.WARNING),
                Cell(_YES, "OperatorFailed", "the operator itself failed: its log has more", News.WARNING),
                Cell(_NO, "Working", "nobody is waited for"),
            ),
        ),
        ConditionRow(
            "Applied",
            "Every agent runs with the settings of this generation.",
            (
                Cell(_YES, "AllAgents", "every agent has said so"),
                Cell(_NO, "AgentsBehind", _BEHIND),
                Cell(_NO, "NotAccepted", "Accepted is not True: agents keep what they had, or do without a policy"),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
                Cell(_UNKNOWN, "NoNodes", "there is no agent that could have settings"),
            ),
        ),
        ConditionRow(
            "Reachable",
            "Every node that holds content is served. status.outOfReach names the others, with what they hold.",
            (
                Cell(_YES, "AllServed", "every node that holds content is served", News.NORMAL),
                Cell(_NO, "NodeGone", "a node with content has left the cluster", News.WARNING),
                Cell(_NO, "Unselected", "a node with content is not selected any more", News.WARNING),
                Cell(_NO, "NodeNotReady", "a node with content is not ready", News.WARNING),
                Cell(_NO, "NoAgent", "a node with content has no ready pod", News.WARNING),
                Cell(_NO, "NotServing", "the agent of a node with content says that it does not serve", News.WARNING),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS, News.WARNING),
            ),
        ),
        ConditionRow(
            "Degraded",
            "Something is wrong that does not go away by itself, though the rest serves.",
            (
                Cell(_YES, "ObjectDeleted", "somebody deleted objects of nodes with content: they stay", News.WARNING),
                Cell(_YES, "NodeLost", "nodes with content have left the cluster", News.WARNING),
                Cell(
                    _YES, "NoCertificate", "cert-manager refused agents their certificates, in its words", News.WARNING
                ),
                Cell(_YES, "AgentTrouble", "agents are in trouble, in their words", News.WARNING),
                Cell(_YES, "ForeignFields", "others have added fields to objects of the operator's", News.WARNING),
                Cell(_NO, "Well", "nothing is known to be wrong", News.NORMAL),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "DataUnavailable",
            "Stored content can't be read, on nodes that serve the rest.",
            (
                Cell(_YES, "OnNodes", "agents say that it is so", News.WARNING),
                Cell(_NO, "AllThere", "no agent says so", News.NORMAL),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "DiskPressure",
            "Disks are fuller than spec.archive.backpressurePercentage.",
            (
                Cell(_YES, "AboveBackpressure", "writers wait, or fail, on the nodes that are named", News.WARNING),
                Cell(_NO, "RoomLeft", "no agent says so", News.NORMAL),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "GoalMissed",
            "A bound of spec.compaction.goal is not held, or will not be.",
            (
                Cell(_YES, "OnNodes", "agents say which bound, why, and what would help", News.WARNING),
                Cell(_NO, "NoneMissed", "no agent says so, or there is no goal", News.NORMAL),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "Replicated",
            "The bucket of spec.replication has what was committed, but for the last moments.",
            (
                Cell(_YES, "AllNodes", "every agent ships, and none lets commits wait for too long", News.NORMAL),
                Cell(_NO, "OnNodes", "agents say that the bucket lacks what was committed, and why", News.WARNING),
                Cell(_UNKNOWN, "Starting", "agents have yet to begin, or put a base", News.NORMAL),
                Cell(_UNKNOWN, "NotAsked", "spec.replication.mode is None"),
                Cell(_UNKNOWN, "Silent", _SILENT_AGENTS),
            ),
        ),
        ConditionRow(
            "Provisioned",
            "Every node has the local volumes that spec.storage asks for, of the size that it asks for.",
            (
                Cell(_YES, "AsAsked", "each claim has a volume of at least the size", News.NORMAL),
                Cell(_YES, "NoClaims", "the repository lies in directories of the nodes"),
                Cell(_NO, "VolumeLost", "the volume of a claim is gone, and with it the data", News.WARNING),
                Cell(_NO, "Unbound", "claims have no volume yet", News.WARNING),
                Cell(_NO, "Growing", "claims ask for more, and the storage is at work", News.NORMAL),
                Cell(_NO, "NotExpandable", "more is asked for, and the class does not allow it", News.WARNING),
                Cell(_NO, "GrowthFailed", "the storage could not enlarge a volume, in its words", News.WARNING),
            ),
        ),
        ConditionRow(
            "MaintenanceDeferred",
            "Reclamation waits for pods that may read.",
            (
                Cell(_YES, "PodsRun", "nodes wait for the applications that are named", News.NORMAL),
                Cell(_NO, "NothingInTheWay", "no node waits for any", News.NORMAL),
            ),
        ),
        ConditionRow(
            "Paused",
            "The operator keeps its hands off.",
            (
                Cell(_YES, "Annotation", 'the object is annotated `ullage.dev/paused: "true"`', News.NORMAL),
                Cell(_NO, "NotPaused", 'it is not, or with "false"', News.NORMAL),
                Cell(_UNKNOWN, "NotUnderstood", "the annotation has another value, which pauses nothing", News.WARNING),
            ),
        ),
    ),
    "ContentRepositoryNode": (
        ConditionRow(
            "Ready",
            "The agent serves the content of its node.",
            (
                Cell(_YES, "Serves", "the repository is open"),
                Cell(_NO, "Stopped", "it is not, or not any more, or another node has it or may have it (Replicated)"),
            ),
        ),
        ConditionRow(
            "DiskPressure",
            "A container is fuller than spec.archive.backpressurePercentage.",
            (
                Cell(_YES, "AboveBackpressure", "the fullest container is"),
                Cell(_NO, "RoomLeft", "none is"),
            ),
        ),
        ConditionRow(
            "DataUnavailable",
            "Stored content can't be read.",
            (
                Cell(_YES, "VolumeAway", "the volume of a container is away, or another's"),
                Cell(_YES, "ContentUnavailable", "contents or swap files are damaged or missing"),
                Cell(_YES, "RecordsSetAside", "records are kept that can't be used"),
                Cell(_NO, "AllThere", "none of these is known"),
            ),
        ),
        ConditionRow(
            "GoalMissed",
            "A bound of spec.compaction.goal is not held, or will not be. status.space.goalMissed says from when on.",
            (
                Cell(_YES, "Missed", "it is not held now"),
                Cell(_YES, "WillBeMissed", "it is foreseen that it will not be"),
                Cell(_NO, "Held", "all that is foreseen is well"),
                Cell(_NO, "Backlog", "what was dead before the goal was set is being given back"),
                Cell(_NO, "NoGoal", "there is none"),
            ),
        ),
        ConditionRow(
            "Replicated",
            "The bucket of spec.replication has what was committed, but for the last moments.",
            (
                Cell(_YES, "Shipping", "no commit waits for longer than spec.replication.maxLag"),
                Cell(_NO, "Behind", "commits wait for longer than that"),
                Cell(_NO, "Failing", "the bucket refuses or does not answer, in its words; or the node's disk is full"),
                Cell(_NO, "Lapsed", "the lease of spec.replication.adoptAfter does not hold: this node serves nothing"),
                Cell(
                    _NO, "Fenced", "somebody else writes the share: this node ships nothing any more, and is read-only"
                ),
                Cell(_UNKNOWN, "Starting", "the share is not begun yet, or gets a new base"),
                Cell(_UNKNOWN, "NotAsked", "spec.replication.mode is None"),
            ),
        ),
        ConditionRow(
            "Drained",
            "The node takes nothing new, and all that it holds lies in the bucket of spec.replication too: it may go.",
            (
                Cell(_YES, "Shipped", "the bucket has everything"),
                Cell(_NO, "Shipping", "the bucket has yet to get what only this node has"),
                Cell(_NO, "SoleCopy", "nothing is shipped, or not any more: what it holds lies on its disks alone"),
                Cell(_UNKNOWN, "NotAsked", "nobody drains the node"),
            ),
        ),
        ConditionRow(
            "ClockImplausible",
            "The machine's clock is not believed.",
            (
                Cell(_YES, "Ahead", "it is far ahead of what is believed"),
                Cell(_YES, "Behind", "it is far behind what is believed"),
                Cell(_NO, "Plausible", "it is believed"),
            ),
        ),
        ConditionRow(
            "Reclaiming",
            "A ticket is being used.",
            (
                Cell(_YES, "Ticket", "a run is under way under a ticket"),
                Cell(_NO, "Idle", "none is"),
            ),
        ),
        ConditionRow(
            "Degraded",
            "The agent itself is in trouble.",
            (
                Cell(_YES, "SettingsRefused", "it cannot take over the latest settings, and a restart would not help"),
                Cell(_YES, "MaintenanceFailed", "the last run of a schedule failed, in its words"),
                Cell(_NO, "Well", "none failed"),
            ),
        ),
    ),
    "ReclamationRun": (
        ConditionRow(
            "Ready",
            "The run has done what was asked for. What `kubectl wait` waits for.",
            (
                Cell(_YES, "Completed", "every node has done its part", News.NORMAL),
                Cell(_NO, "Waiting", "no node has a ticket yet: the message says for what it waits"),
                Cell(_NO, "Running", "nodes are at work, or have yet to be"),
                Cell(_NO, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "Suspended", "the run's spec.suspend is true"),
                Cell(_NO, "Failed", "nodes refused, failed, or have no agent", News.WARNING),
                Cell(_NO, "DeadlineExceeded", "it was ended after spec.activeDeadlineSeconds", News.WARNING),
                Cell(_NO, "NoNodes", "the repository has no node", News.WARNING),
                Cell(_NO, "NoRepository", "there is no ContentRepository of this name", News.WARNING),
            ),
        ),
        ConditionRow(
            "Reconciling",
            "The run is under way, and no person is needed (kstatus).",
            (
                Cell(_YES, "Waiting", "no node has a ticket yet"),
                Cell(_YES, "Running", "nodes are at work, or have yet to be"),
                Cell(_NO, "Ended", "it has ended"),
                Cell(_NO, "HandsOff", "nothing is done until a person does something"),
            ),
        ),
        ConditionRow(
            "Stalled",
            "The run will not complete by itself (kstatus).",
            (
                Cell(_YES, "Failed", "nodes refused, failed, or have no agent"),
                Cell(_YES, "DeadlineExceeded", "it was ended after spec.activeDeadlineSeconds"),
                Cell(_YES, "Suspended", "the run's spec.suspend is true"),
                Cell(_YES, "NoNodes", "the repository has no node"),
                Cell(_YES, "NoRepository", "there is no ContentRepository of this name"),
                Cell(_YES, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "Working", "nobody is waited for"),
            ),
        ),
    ),
    "ContentBackup": (
        ConditionRow(
            "Ready",
            "The last run has backed up every node. What `kubectl wait` waits for.",
            (
                Cell(_YES, "Completed", "every node has been backed up", News.NORMAL),
                Cell(_NO, "Waiting", "no run has begun yet: the message says for what it waits"),
                Cell(_NO, "Running", "nodes are at work, or have yet to be", News.NORMAL),
                Cell(_NO, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "Suspended", "spec.suspend is true, and no run has ended"),
                Cell(_NO, "Failed", "nodes failed, in their words", News.WARNING),
                Cell(_NO, "DeadlineExceeded", "it was ended after spec.activeDeadlineSeconds", News.WARNING),
                Cell(_NO, "NoNodes", "the repository has no node", News.WARNING),
                Cell(_NO, "InvalidSchedule", "spec.schedule or spec.timeZone cannot be read", News.WARNING),
                Cell(_NO, "BucketNotAllowed", "spec.bucket lies in none of spec.service.backupBuckets", News.WARNING),
                Cell(_NO, "NoRepository", "there is no ContentRepository of this name", News.WARNING),
            ),
        ),
        ConditionRow(
            "BackupCurrent",
            "There is a backup, it is not older than it should be, and no damage to it is known.",
            (
                Cell(_YES, "Current", "the last run that was due, or the one before it, has backed up every node"),
                Cell(_NO, "Damaged", "a verification found damage, and none since has found it mended", News.WARNING),
                Cell(_NO, "Old", "two times of the schedule have passed without a backup of every node", News.WARNING),
                Cell(_NO, "Never", "no run has backed up every node yet"),
            ),
        ),
        ConditionRow(
            "BackupVerified",
            "What lies in the bucket was verified, as often as spec.verify asks for it, and is whole.",
            (
                Cell(_YES, "Whole", "the last verification found every node's backup as it was written", News.NORMAL),
                Cell(_NO, "Damaged", "a verification found damage, and none since has found it mended", News.WARNING),
                Cell(_NO, "Failed", "nodes could not read their backups, or did not answer", News.WARNING),
                Cell(_NO, "Old", "two times of spec.verify.schedule have passed without a verification", News.WARNING),
                Cell(_NO, "InvalidSchedule", "spec.verify.schedule cannot be read", News.WARNING),
                Cell(_UNKNOWN, "Never", "no verification has ended yet"),
                Cell(_UNKNOWN, "NotAsked", "spec.verify is not set"),
            ),
        ),
        ConditionRow(
            "Reconciling",
            "A run is under way, and no person is needed (kstatus).",
            (
                Cell(_YES, "Waiting", "a run is due, and waits"),
                Cell(_YES, "Running", "nodes are at work, or have yet to be"),
                Cell(_NO, "Ended", "the last run has ended"),
                Cell(_NO, "HandsOff", "nothing is done until a person does something"),
            ),
        ),
        ConditionRow(
            "Stalled",
            "Nothing will come of it until a person does something (kstatus).",
            (
                Cell(_YES, "Failed", "nodes failed, in their words"),
                Cell(_YES, "DeadlineExceeded", "it was ended after spec.activeDeadlineSeconds"),
                Cell(_YES, "Suspended", "spec.suspend is true"),
                Cell(_YES, "NoNodes", "the repository has no node"),
                Cell(_YES, "InvalidSchedule", "spec.schedule or spec.timeZone cannot be read"),
                Cell(_YES, "BucketNotAllowed", "spec.bucket lies in none of spec.service.backupBuckets"),
                Cell(_YES, "NoRepository", "there is no ContentRepository of this name"),
                Cell(_YES, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "Working", "nobody is waited for"),
            ),
        ),
    ),
    "ContentRestore": (
        ConditionRow(
            "Ready",
            "The node's repository was brought back. What `kubectl wait` waits for.",
            (
                Cell(_YES, "Completed", "the node has the repository, and serves it", News.NORMAL),
                Cell(
                    _NO, "Waiting", "the node is none of the repository's yet, or another ContentRestore goes on there"
                ),
                Cell(_NO, "Running", "the node's agent is at it, or is waited for", News.NORMAL),
                Cell(_NO, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "NoRepository", "there is no ContentRepository of this name yet"),
                Cell(_NO, "Failed", "it failed, in the agent's words; the node makes no repository", News.WARNING),
                Cell(_NO, "NodeNotEmpty", "there is a repository on the node, and nothing is replaced", News.WARNING),
                Cell(_NO, "NoBackup", "there is no ContentBackup of this name of the repository", News.WARNING),
                Cell(_NO, "BucketNotAllowed", "the place lies in none of spec.service.backupBuckets", News.WARNING),
            ),
        ),
        ConditionRow(
            "Reconciling",
            "It is under way, and no person is needed (kstatus).",
            (
                Cell(_YES, "Waiting", "the node is waited for"),
                Cell(_YES, "Running", "the node's agent is at it, or is waited for"),
                Cell(_YES, "NoRepository", "the repository is waited for"),
                Cell(_NO, "Ended", "it has ended"),
                Cell(_NO, "HandsOff", "nothing is done until a person does something"),
            ),
        ),
        ConditionRow(
            "Stalled",
            "Nothing will come of it until a person does something (kstatus).",
            (
                Cell(_YES, "Failed", "it failed, in the agent's words"),
                Cell(_YES, "NodeNotEmpty", "there is a repository on the node, until somebody gives it up"),
                Cell(_YES, "NoBackup", "there is no ContentBackup of this name of the repository"),
                Cell(_YES, "BucketNotAllowed", "the place lies in none of spec.service.backupBuckets"),
                Cell(_YES, "HandsOff", "the repository is paused, or not accepted"),
                Cell(_NO, "Working", "nobody is waited for"),
            ),
        ),
    ),
}
"""By kind: every condition, and everything that it can say."""

_CELLS: Final = {
    (kind, row.type, cell.reason): cell for kind, rows in TABLE.items() for row in rows for cell in row.cells
}


def cell_of(kind: str, type: str, reason: str) -> Cell:
    """What the table says of a reason; KeyError if it knows none such."""
    return _CELLS[kind, type, reason]
