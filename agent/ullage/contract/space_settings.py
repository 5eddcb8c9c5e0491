"""The contract's settings of what keeps space and gives it back: archive, truncation, compaction, holes and leases (see
contract.py).
"""

import enum
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.settings import Percentage, Settings
from ullage.contract.units import Duration, Quantity


class TruncationMode(enum.StrEnum):
    """When a dead tail is cut off."""

    PRESSURE = "Pressure"
    EAGER = "Eager"


class CompactionTrigger(enum.StrEnum):
    """What may begin a run of compaction."""

    PERIODIC = "Periodic"
    ADMIN = "Admin"
    PRESSURE = "Pressure"


class ArchiveSettings(Settings, frozen=True, kw_only=True):
    """Dead content that is kept for replay."""

    enabled: bool = True
    """True moves resource claims without claimants to the archive, false deletes them (NiFi:
    nifi.content.repository.archive.enabled)."""

    max_retention_period: Duration = Duration(12 * 3_600_000)
    """How long the archive keeps content, unless the volume fills up before. Half a day lets the night's flow be
    replayed in the morning (NiFi: nifi.content.repository.archive.max.retention.period)."""

    max_usage_percentage: Percentage = 50
    """When more than this percentage of the space is used, the archive goes, oldest content first (NiFi:
    nifi.content.repository.archive.max.usage.percentage)."""

    backpressure_percentage: Percentage = 90
    """When this percentage of the space is used, writers wait and then fail; also with an empty archive, unlike NiFi.
    It must be above maxUsagePercentage, so that the archive always goes first (NiFi:
    nifi.content.repository.archive.backpressure.percentage)."""

    cleanup_frequency: Duration = Duration(60_000)
    """The time between two runs of the archive's cleaner (NiFi: nifi.content.repository.archive.cleanup.frequency)."""

    partial: bool = False
    """True lets the retention cover the dead parts of resource claims that are still in use too: nothing of them is
    truncated before it ends. The default is false, because such tails are the largest part of the space to win."""


class TruncationSettings(Settings, frozen=True, kw_only=True):
    """Truncation cuts off the dead tails of resource claims that are still in use."""

    enabled: bool = True
    """Whether dead tails are cut off at all (NiFi: nifi.content.claim.truncation.enabled)."""

    mode: TruncationMode = TruncationMode.PRESSURE
    """With Pressure, tails are cut off only when the archive was cleared and usage is above the threshold. With Eager
    they are cut off at once, which skips the archive's retention but never that of deleted handles (NiFi: at once where
    its archive is off, else as Pressure)."""

    usage_threshold_percentage: Percentage = 50
    """When more than this percentage of the space is used, Pressure truncates. The default is the archive's own limit,
    since the archive goes first (NiFi: nifi.content.repository.archive.max.usage.percentage)."""

    frequency: Duration = Duration(60_000)
    """The time between two runs of truncation (NiFi: a constant, the same)."""


class PunchSettings(Settings, frozen=True, kw_only=True):
    """Punching makes holes over dead runs in the middle of files. It copies nothing."""

    enabled: bool = True
    """Whether holes are punched at all. Otherwise dead runs wait for a rewrite."""

    min_run: Quantity = Quantity(1024**2)
    """Dead runs of fewer bytes are left to a rewrite, because each hole splits the file's extents."""

    max_holes_per_file: Annotated[int, Meta(ge=0)] = 64
    """The number of holes that one file may have; the largest dead runs go first. Thousands of holes make deleting the
    file take seconds."""


class GoalSettings(Settings, frozen=True, kw_only=True):
    """What compaction has to hold. With a goal it takes files when the goal asks for it, and not every checkFrequency;
    the thresholds go on to hold. Without one it takes what the thresholds allow, every checkFrequency.
    """

    disk_to_live: Annotated[float, Meta(gt=1, le=100)] | None = None
    """The most that content may take on the disk, as a multiple of what lives, archive and deleted handles aside: 1.2
    lets a sixth of it be dead. Null sets no bound."""

    max_dead_age: Duration | None = None
    """How long a byte may be dead before it is given back, archive and deleted handles aside; at least 10m. Null sets
    no bound."""

    @property
    def is_set(self) -> bool:
        """Whether there is a goal."""
        return self.disk_to_live is not None or self.max_dead_age is not None


DEAD_AGE_MIN: Final = 600_000
"""Of a goal: what died is looked for each minute, and a rewrite takes its time."""

POLICIES: Final = ("StatsBased", "CompactAll")
"""What every agent has."""


class CompactionSettings(Settings, frozen=True, kw_only=True):
    """Compaction gives back the dead space that neither deletion nor truncation reaches, by punching and rewriting."""

    enabled: bool = True
    """Whether anything is punched and rewritten at all, on its own or by hand (Ambry: triggers that are not empty)."""

    policy: Annotated[str, Meta(min_length=1, max_length=253)] = "StatsBased"
    """Which files are rewritten, and in what order: StatsBased (most bytes freed for each byte copied, old files
    first), CompactAll, or an entry point of the group `ullage.policies` (Ambry: store.compaction.policy.factory)."""

    triggers: tuple[CompactionTrigger, ...] = (
        CompactionTrigger.PERIODIC,
        CompactionTrigger.ADMIN,
        CompactionTrigger.PRESSURE,
    )
    """What may begin a run: Periodic at start and every checkFrequency, Admin when somebody asks, and Pressure when
    writers wait for room. Without Admin a run that is asked for may only delete and truncate
    (Ambry: store.compaction.triggers)."""

    check_frequency: Duration = Duration(3_600_000)
    """The time between two periodic runs. Ambry's default of a week lets a disk fill up in between (Ambry:
    store.compaction.check.frequency.in.hours)."""

    bytes_per_second: Quantity = Quantity(10 * 1024**2)
    """The bytes that a rewrite may copy a second, on each disk. 0 sets no limit. The default is a tenth of what a slow
    disk writes (Ambry: store.compaction.operations.bytes.per.sec, older: store.cleanup.operations.bytes.per.sec)."""

    deleted_retention: Duration = Duration(168 * 3_600_000)
    """How long a deleted handle can be undeleted. Its content stays on disk until then (Ambry:
    store.deleted.message.retention.hours)."""

    min_used_percentage: Percentage = 50
    """When less than this percentage of a container is used, nothing of it is punched or rewritten on its own: there is
    no need yet, and what dies meanwhile need not be copied (Ambry:
    store.min.used.capacity.to.trigger.compaction.in.percentage)."""

    min_reclaim: Annotated[int, Meta(ge=0)] = 1
    """The rewrites of a container are only begun if they free this many times outputSize. CompactAll passes over it
    (Ambry: store.min.log.segment.count.to.reclaim.to.trigger.compaction)."""

    max_live_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.7
    """StatsBased leaves files alone of which more than this fraction lives: what copying them gives back is not worth
    it. The default bounds disk / live near 1 / 0.7 (Ambry:
    store.max.log.segment.valid.data.percentage.to.qualify.compaction)."""

    output_size: Quantity = Quantity(64 * 1024**2)
    """The bytes of one output of a rewrite. A crash in the middle wastes this much, and a rewrite needs this much room
    (Ambry: store.segment.size.in.bytes)."""

    punch: PunchSettings = PunchSettings()
    """Punching holes, which copies nothing."""

    goal: GoalSettings = GoalSettings()
    """What compaction has to hold. What it cannot hold within the thresholds above it says beforehand."""


def goal_problems(compaction: CompactionSettings) -> Iterator[str]:
    """What a bare type cannot say."""
    age = compaction.goal.max_dead_age
    if age is not None and age < DEAD_AGE_MIN:
        yield f"spec.compaction.goal.maxDeadAge: {age} is below 10m"


class LeaseSettings(Settings, frozen=True, kw_only=True):
    """Leases keep what readers read from being reclaimed."""

    max_duration: Duration = Duration(3_600_000)
    """How long a lease may last from its beginning, heartbeats included. Dead space waits for the longest lease."""

    max_count: Annotated[int, Meta(ge=1)] = 10_000
    """The number of leases that may stand at a time. Every plan looks at each of them."""
