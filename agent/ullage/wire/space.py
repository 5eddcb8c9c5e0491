"""Space: what the disk holds, what could come back, and runs of reclamation that give it back."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ullage.contract import MaintenanceOperation
from ullage.enums import GivenBack, GoalDecider, GoalHindrance, SpaceUse


class ContainerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One container: what its resource claims hold, and how full its volume is."""

    name: str

    resource_claims: int
    """How many files of content it has; those in the archive stand apart."""

    disk_bytes: int
    """What these take on the disk."""

    live_bytes: int
    """What FlowFiles and handles still point at."""

    dead_bytes: int
    """`disk_bytes` less `live_bytes`."""

    dead_tail_bytes: int
    """Dead bytes at the ends of files, which can be cut off without copying."""

    unused_bytes: int
    """Dead bytes of files in which nothing lives."""

    archived_claims: int
    """How many resource claims are in the archive."""

    archived_bytes: int

    tombstone_bytes: int
    """What deleted handles keep until their retention ends."""

    orphans: int
    """Content files of transactions that never came, as of the last look; they are taken up an hour after a start."""

    orphan_bytes: int
    """What these take on the disk; it is not part of `disk_bytes`."""

    leased_bytes: int
    """Files that leases keep from being rewritten, whatever else they are."""

    total_bytes: int
    """The volume, or the container's capacity."""

    used_bytes: int

    used_percentage: float

    volume: str
    """`available`, `read-only`, `away` or `foreign`; of the last two the content is unavailable until it is back."""

    volume_reason: str
    """Why it is not available; empty where it is."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """All containers at one moment."""

    millis: int

    containers: list[ContainerUsage]


class SpaceShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the disk that are there for one reason."""

    container: str
    """Empty for what is no content: log, snapshot, swap files, provenance."""

    use: SpaceUse

    files: int
    """How many files, or directories, they are in."""

    bytes: int
    """What the filesystem allocates for them."""

    reason: str
    """Why dead bytes are still there; empty where the use says it."""

    until_millis: int | None
    """When the last of them may go; None: no date says so."""


class SpaceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Every allocated byte of a repository."""

    millis: int

    allocated_bytes: int
    """What the filesystem allocates for everything below the repository's directory and its containers."""

    shares: list[SpaceShare]
    """What they are there for; together they are all of these bytes."""


class SpaceComing(msgspec.Struct, frozen=True, kw_only=True):
    """Dead bytes that come back together: how, when, and what keeps them until then."""

    container: str

    use: SpaceUse
    """Why they are still there."""

    when: GivenBack

    operation: MaintenanceOperation | None
    """What gives them back; None: that shows when they are not held any more."""

    files: int
    """How many files they are in."""

    bytes: int

    earliest_millis: int | None
    """They are not back before; None: nobody can tell."""

    latest_millis: int | None
    """Then they are back, if nothing else changes; None: nobody can tell."""

    reason: str
    """The limit, the threshold or the window that keeps them; empty where `when` says it."""

    helps: str
    """What would bring them back sooner; empty: nothing."""


class SpaceForecast(msgspec.Struct, frozen=True, kw_only=True):
    """When each dead byte of content comes back."""

    millis: int

    dead_bytes: int
    """All that is dead, what is kept for replays and for an undelete included."""

    coming: list[SpaceComing]
    """The same bytes, soonest first."""

    orphans_known: bool = True
    """Whether directories have been read for what a killed process left: until then those bytes are in none of this."""


class GoalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the goal of compaction is held, as of the last look, and what is to be expected."""

    disk_to_live: float | None
    """The bound of `spec.compaction.goal`; None: there is none."""

    max_dead_age_millis: int | None
    """The same."""

    looked_millis: int | None
    """When that was; None: there is no goal, or nobody has looked yet."""

    disk_to_live_now: float | None
    """None: nothing lives, or nobody has looked."""

    dead_bytes: int
    """What compaction may give back, whole blocks."""

    hindered_bytes: int
    """Those of them that a threshold, a lease, a writer or a window keeps from it."""

    oldest_dead_millis: int | None
    """Since when the oldest of them has been dead for certain; None: nothing is."""

    dead_per_second: float
    """Bytes that come to be given back each second, on average."""

    copied_per_second: float
    """Bytes that rewrites copied a second when the disk was what bounded them; 0: it never was."""

    decided_by: GoalDecider
    """What decided last which files are taken."""

    chosen_files: int
    """How many files the goal has taken now."""

    bytes_per_second: int
    """How fast they may be copied; 0: nothing is to be done."""

    will_miss: Literal["diskToLive", "maxDeadAge"] | None
    """Which bound will not be held, or is not; None: all that is foreseen is well."""

    will_miss_millis: int | None
    """From when on."""

    hindrance: GoalHindrance | None
    """What is in the way."""

    reason: str
    """The same in words."""

    helps: str
    """What would help."""


class ResourceClaimUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One resource claim: a file of content, and what lives in it."""

    resource: int
    """Its index."""

    container: str

    length: int
    """Bytes from the file's beginning to its end, holes included."""

    allocated_bytes: int
    """What it takes on the disk."""

    live_bytes: int
    """What FlowFiles and handles still point at."""

    dead_bytes: int

    dead_tail_bytes: int
    """Dead bytes at its end, which can be cut off without copying."""

    claimants: int
    """FlowFiles and handles that point into it."""

    generation: int
    """Grows with each change of the file, so that a plan can tell whether it is still about the same one."""

    is_sealed: bool
    """Whether nothing is appended to it any more."""

    is_free: bool
    """Whether nothing lives in it."""

    is_archived: bool

    is_leased: bool
    """Whether a lease keeps it from being rewritten."""

    has_intent: bool
    """Whether a change of it is promised and not yet known to be done."""

    output: int
    """The resource claim that its survivors were rewritten into; 0: none."""

    created_millis: int


class ResourceClaimPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a node's resource claims, by index."""

    resources: list[ResourceClaimUsage]

    next: int | None
    """What to ask `after` for the next page; None: this is the last one."""


class FileRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file that are of one kind."""

    start: int

    length: int

    kind: Literal["live", "dead", "hole"]


class ResourceClaimMap(msgspec.Struct, frozen=True, kw_only=True):
    """One resource claim from its beginning to its end, without a gap."""

    resource: ResourceClaimUsage

    ranges: list[FileRange]


class PlannedAction(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a plan, on one resource claim."""

    action: str
    """Archive, delete, truncate, punch or rewrite, in small letters."""

    resource: int
    """The resource claim's index."""

    container: str

    frees_bytes: int

    copies_bytes: int
    """What a rewrite has to copy."""

    holes: int
    """How many holes are punched."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do; the totals are of all steps."""

    steps: list[PlannedAction]
    """The first of them, in order."""

    step_count: int

    frees_bytes: int

    copies_bytes: int

    reason: str
    """Why there is nothing to do, or not more."""

    notes: list[str]


class CompactionPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies by which a plan or a run may choose."""

    names: list[str]

    configured: str
    """The one of `spec.compaction.policy`."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of reclamation that is asked for.

    >>> request = RunRequest(operations=["Delete", "Truncate"], seconds=60)
    >>> [str(operation) for operation in repository.reclamation.begin(request).operations]
    ['Delete', 'Truncate']
    """

    policy: Annotated[str, Meta(max_length=255)] | None = None
    """None: that of `spec.compaction.policy`."""

    operations: Annotated[list[MaintenanceOperation], Meta(min_length=1, max_length=4)] = msgspec.field(
        default_factory=lambda: list(MaintenanceOperation)
    )
    """What it may do."""

    bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    """How fast it copies; None: as the settings say; 0: without a limit."""

    respects_guards: bool = False
    """Whether `minUsedPercentage` and `minReclaim` hold for it, as for a run that nobody asked for. A run of Truncate
    alone keeps to the mode and the threshold of `spec.truncation` instead.
    """

    override: bool = False
    """Whether it passes over the windows. That is written down."""

    seconds: Annotated[float, Meta(ge=0)] | None = None
    """It begins nothing once so long has passed; None: it goes on to its end."""

    archive: bool = False
    """Whether what is kept for replays goes too, before its retention is over."""

    resources: Annotated[list[tuple[int, int]], Meta(max_length=100_000)] | None = None
    """Only these resource claims, each with the generation for which it was planned; None: all."""


class SkippedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a plan that were not taken."""

    reason: str

    steps: int
    """How many."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    done: dict[str, int]
    """How many resource claims, by action."""

    freed_bytes: int

    held_bytes: int
    """What comes back as soon as readers close files that were rewritten or deleted while they had them open."""

    copied_bytes: int

    read_bytes: int

    seconds: float

    skipped: int
    """Steps that were overtaken by events."""

    refused: int
    """Steps that the windows did not permit."""

    emergency: int
    """Steps that ran without permission, because a container was nearly full."""

    is_stopped: bool
    """Whether it was stopped before its end."""

    left: list[SkippedSteps]

    kept: list[SpaceShare]
    """Dead bytes that are still there when a run that somebody asked for has ended, and why; empty for other runs."""

    problems: list[str]
    """What failed, the first hundred."""


class CleaningRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to clean."""

    adopts_orphans: bool = False
    """Whether content files that nothing refers to are taken up, to go as other dead content does."""

    override: bool = False
    """Whether it passes over the windows."""


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """What cleaning took away."""

    expired_flow_files: int
    """How many had stood in their queue for longer than it allows."""

    purged_handles: int
    """How many had been deleted, or had expired, and were not kept any longer."""

    adopted_orphans: int
    """Content files that nothing referred to and that were taken up, to go as other dead content does."""

    report: RunReport


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A run of reclamation: how far it is, or how it ended."""

    id: str
    """Its uuid."""

    owner: str
    """The principal that asked for it."""

    reason: str
    """Why it was permitted."""

    overrides_windows: bool

    operations: list[MaintenanceOperation]
    """What it may do."""

    began_millis: int

    ended_millis: int | None
    """None as long as it goes on."""

    plan: Plan | None
    """Without its steps; None before it is made."""

    steps_done: int

    freed_bytes: int

    report: RunReport | None
    """None before its end, and if it failed."""

    problem: str | None
    """Why it failed; None if it did not."""

    slug: str | None
    """The slug of the problem."""
