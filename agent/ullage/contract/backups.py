"""Backups of a fleet: what an administrator asks for, what each agent is told to write, and what became of it.

    operator    ticket in the spec of each node ─────────────────────────── all have ended: status, the next time
    agent                        Running in its status ── Completed, Failed

Each node backs its own content up, below a prefix of its own: BUCKET/NAMESPACE/REPOSITORY/NODE. A ticket is of one run,
and a run has the name of the moment for which it was due, so nothing is begun twice. Verifications go the same way,
with tickets of their own, beside the backups.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from ullage.contract.conditions import CONDITIONS_MAX, Condition
from ullage.contract.settings import API_VERSION, DNS_SUBDOMAIN, Bytes, ClusterRecord, Count, Percentage, Time
from ullage.contract.tickets import RunPhase, TicketState

GENERATIONS_KEPT_MAX: Final = 10_000
BACKUP_RESULTS_MAX: Final = 16
"""Nodes of which a backup's status repeats the report."""

BACKUP_SECONDS_MAX: Final = 365 * 86400

Kept = Annotated[int, Meta(ge=0, le=GENERATIONS_KEPT_MAX)]
RepositoryName = Annotated[str, Meta(pattern=DNS_SUBDOMAIN, max_length=253)]
RunName = Annotated[str, Meta(max_length=128)]


class BackupKeepRule(ClusterRecord, frozen=True, kw_only=True):
    """Which generations stay: the newest always, and those that any of these means."""

    last: Kept = 0
    """The number of the newest generations that stay."""

    hourly: Kept = 0
    """The number of hours, in UTC, of each of which the newest generation stays; those without one do not count."""

    daily: Kept = 0
    """The number of days, in UTC, of each of which the newest generation stays; those without one do not count."""

    weekly: Kept = 0
    """The number of weeks, in UTC, of each of which the newest generation stays; those without one do not count."""

    monthly: Kept = 0
    """The number of months, in UTC, of each of which the newest generation stays; those without one do not count."""

    yearly: Kept = 0
    """The number of years, in UTC, of each of which the newest generation stays; those without one do not count."""


class BackupTicket(ClusterRecord, frozen=True, kw_only=True):
    """What an agent is to write, once."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    """The run's name, which is never used twice."""

    place: Annotated[str, Meta(min_length=1, max_length=2048)]
    """Where the node's backup lies: a URL in one of spec.service.backupBuckets."""

    generation: Count = 0
    """The generation of the ContentRepository that allows the place. The agent waits for its settings."""

    keep: BackupKeepRule | None = None
    """Which generations stay. Null goes by what was said before."""


class BackupTicketReport(ClusterRecord, frozen=True, kw_only=True):
    """How far an agent is with its part of a backup."""

    id: str
    """The name of the run that wrote the backup."""

    state: TicketState
    """How far the agent is."""

    started: Time | None = None
    """When the agent began with the backup."""

    ended: Time | None = None
    """When the agent was done with the backup."""

    generation: Count = 0
    """The number of the generation that was written."""

    files_done: Count = 0
    """The number of files that were copied."""

    files: Count = 0
    """The number of files that are to be copied."""

    bytes_done: Bytes = 0
    """The bytes that were copied."""

    bytes: Bytes = 0
    """The bytes that are to be copied."""

    damaged: Count = 0
    """The number of files of which the backup lacks something, because it could not be read."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why the backup failed, for what it waits, or what it lacks."""


class VerifyRule(ClusterRecord, frozen=True, kw_only=True):
    """When what lies in the bucket is verified, and how much of it is read."""

    schedule: Annotated[str, Meta(max_length=256)] = ""
    """When a verification is due, as cron has it, in spec.timeZone. Empty is after each run that backed up every
    node. Once damage was found, one is due after each such run in any case."""

    sample_percentage: Annotated[int, Meta(ge=1, le=100)] = 5
    """The share of the contents that is read and compared, in per cent, drawn anew each time; 100 reads everything.
    Snapshots, swapped FlowFiles and handles are always read, and one content at least. Each file is looked for, in its
    length, whatever is drawn."""


class VerificationTicket(ClusterRecord, frozen=True, kw_only=True):
    """What an agent is to read of its backup, once."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    """The name of the verification, which is never used twice."""

    place: Annotated[str, Meta(min_length=1, max_length=2048)]
    """Where the node's backup lies: a URL in one of spec.service.backupBuckets."""

    generation: Count = 0
    """The generation of the ContentRepository that allows the place. The agent waits for its settings."""

    sample_percentage: Annotated[int, Meta(ge=1, le=100)] = 5
    """The share of the contents that is read and compared, in per cent."""

    seed: Count = 0
    """What draws these files: the same seed draws the same ones."""


class VerificationReport(ClusterRecord, frozen=True, kw_only=True):
    """How far an agent is with its part of a verification."""

    id: str
    """The name of the verification."""

    state: TicketState
    """How far the agent is."""

    started: Time | None = None
    """When the agent began with the verification."""

    ended: Time | None = None
    """When the agent was done with the verification."""

    generations: Count = 0
    """The number of generations that the backup has."""

    needed: Count = 0
    """The number of files that these need, each of which was looked for."""

    files_done: Count = 0
    """The number of files that were read and compared."""

    files: Count = 0
    """The number of files that are to be read."""

    bytes_done: Bytes = 0
    """The bytes that were read."""

    bytes: Bytes = 0
    """The bytes that are to be read."""

    damaged: Count = 0
    """The number of files that are missing or not as they were written."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why the verification waits or failed, or what is damaged."""


class BackupSpec(ClusterRecord, frozen=True, kw_only=True):
    """The backup that is wanted: of what, whereto and when."""

    repository: RepositoryName
    """The name of the ContentRepository, in the same namespace. Immutable."""

    bucket: Annotated[str, Meta(min_length=6, max_length=1024, pattern="^s3://")]
    """Where the backups go, `s3://BUCKET/PREFIX`: one of the repository's spec.service.backupBuckets, or a place below
    one, which says how it is reached. Each node has its own prefix below it: NAMESPACE/REPOSITORY/NODE. Immutable."""

    schedule: Annotated[str, Meta(max_length=256)] = ""
    """When a backup is due, as cron has it, such as `0 2 * * *`. Empty backs up once."""

    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """The time zone of both schedules, as the IANA names it, such as Europe/Berlin."""

    suspend: bool = False
    """True begins nothing. What is under way goes on."""

    keep: BackupKeepRule | None = None
    """Which generations stay. Null goes by what was said of the place before, and keeps the newest alone if nothing
    was."""

    verify: VerifyRule | None = None
    """When the backups are verified. Null verifies none."""

    active_deadline_seconds: Annotated[int, Meta(ge=1, le=BACKUP_SECONDS_MAX)] = 86400
    """The seconds after its begin at which a run, or a verification, is ended, and has failed: nodes that did not
    answer are named."""


class BackupNode(ClusterRecord, frozen=True, kw_only=True):
    """What became of a run on one node."""

    node: str
    """The name of the node."""

    report: BackupTicketReport
    """What the node's agent reported."""


class VerificationNode(ClusterRecord, frozen=True, kw_only=True):
    """What became of a verification on one node."""

    node: str
    """The name of the node."""

    report: VerificationReport
    """What the node's agent reported."""


class VerificationStatus(ClusterRecord, frozen=True, kw_only=True):
    """The report of the last verification."""

    phase: RunPhase = RunPhase.PENDING
    """How far the last verification is. Completed is one in which every node's backup was read, whatever was found."""

    run: RunName = ""
    """The name of the last verification."""

    scheduled: Time | None = None
    """The time for which the last verification was due."""

    started: Time | None = None
    """When the last verification began."""

    ended: Time | None = None
    """When the last verification ended."""

    next_run: Time | None = None
    """When the next verification is due. Null if it follows a backup, or if none is."""

    asked_since: Time | None = None
    """The time since which spec.verify asks for verifications. Null while it does not."""

    last_completed: Time | None = None
    """The time for which the last verification was due in which every node's backup was read."""

    damaged_since: Time | None = None
    """When damage was found that no verification since has found mended. Null: none is known."""

    damage: Annotated[str, Meta(max_length=1024)] = ""
    """The damage that damagedSince is about, in the words of the first node that found some."""

    sample_percentage: Percentage = 0
    """The share of the files that is read, in per cent."""

    seed: Count = 0
    """The number that draws the files that are read. It stays until damage is found mended, so that the same files are
    read again."""

    nodes: Count = 0
    """The number of nodes that the last verification is about: those that had a backup."""

    nodes_done: Count = 0
    """The number of nodes that are done; those that failed count as well."""

    nodes_failed: Count = 0
    """The number of nodes that failed, or did not answer."""

    nodes_damaged: Count = 0
    """The number of nodes in whose backups something is damaged."""

    files: Count = 0
    """The number of files that were read."""

    bytes: Bytes = 0
    """The bytes that were read."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """For what the verification waits, or why it failed."""

    results: Annotated[tuple[VerificationNode, ...], Meta(max_length=BACKUP_RESULTS_MAX)] = ()
    """What the worst of the nodes that are done reported: those that found damage come first. What each node reported
    stands in status.verification of its ContentRepositoryNode until the next verification."""

    def __post_init__(self) -> None:
        if self.phase == RunPhase.RUNNING and not (self.run and self.started and self.sample_percentage):
            raise ValueError("what is Running has a run, a time at which it started, and a samplePercentage")


class BackupStatus(ClusterRecord, frozen=True, kw_only=True):
    """The report of the last run, written by the operator."""

    observed_generation: Count = 0
    """The generation of the ContentBackup that the operator last read."""

    phase: RunPhase = RunPhase.PENDING
    """How far the last run is."""

    run: RunName = ""
    """The name of the last run."""

    scheduled: Time | None = None
    """The time for which the last run was due."""

    started: Time | None = None
    """When the last run began."""

    ended: Time | None = None
    """When the last run ended."""

    next_run: Time | None = None
    """When the next run is due. Null if none is."""

    last_success: Time | None = None
    """The time for which the last run was due of which every node was backed up."""

    nodes: Count = 0
    """The number of nodes that the last run is about."""

    nodes_done: Count = 0
    """The number of nodes that are done; those that failed count as well."""

    nodes_failed: Count = 0
    """The number of nodes that failed, or did not answer."""

    generation: Count = 0
    """The highest number of a generation that a node wrote. Each counts its own: results, and the status of the
    ContentRepositoryNode, have them."""

    files: Count = 0
    """The number of files that were copied."""

    bytes: Bytes = 0
    """The bytes that were copied."""

    message: str = ""
    """Why the backup waits, or why its last run failed."""

    results: Annotated[tuple[BackupNode, ...], Meta(max_length=BACKUP_RESULTS_MAX)] = ()
    """What the worst of the nodes that are done reported: those that failed come first. What each node reported stands
    in status.backup of its ContentRepositoryNode until the next run."""

    verification: VerificationStatus | None = None
    """The report of the last verification. Null if none was ever asked for."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """How the backup is: docs/conditions.md has all that they can say."""

    def __post_init__(self) -> None:
        if self.phase == RunPhase.RUNNING and not (self.run and self.started and self.scheduled):
            raise ValueError("what is Running has a run, a time for which it was due, and one at which it started")


class ContentBackup(ClusterRecord, frozen=True, kw_only=True):
    """A backup of a ContentRepository into a bucket, once or on a schedule."""

    spec: BackupSpec
    status: BackupStatus = BackupStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentBackup"] = "ContentBackup"
