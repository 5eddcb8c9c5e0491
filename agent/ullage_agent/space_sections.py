"""The contract's settings of what keeps space and gives it back: archive, truncation, compaction, holes and leases (see
contract.py).
"""

import enum
from typing import Annotated

from msgspec import Meta

from ullage_agent.sections import Percentage, Section
from ullage_agent.units import Duration, Quantity


class TruncationMode(enum.StrEnum):
    """When a dead tail is cut off."""

    PRESSURE = "Pressure"
    EAGER = "Eager"


class CompactionTrigger(enum.StrEnum):
    """What may begin a run of compaction."""

    PERIODIC = "Periodic"
    ADMIN = "Admin"
    PRESSURE = "Pressure"


class Archive(Section, frozen=True, kw_only=True):
    """Dead content, kept for replay."""

    enabled: bool = True
    """Move resource claims without claimants to the archive; false: delete them (NiFi:
    nifi.content.repository.archive.enabled)."""

    max_retention_period: Duration = Duration(12 * 3_600_000)
    """How long the archive keeps content, unless the volume fills up before. Half a day lets the night's flow
    be replayed in the morning (NiFi: nifi.content.repository.archive.max.retention.period)."""

    max_usage_percentage: Percentage = 50
    """Per cent of the volume, or of the container's capacity: above it the archive goes, oldest first (NiFi:
    nifi.content.repository.archive.max.usage.percentage)."""

    backpressure_percentage: Percentage = 90
    """Per cent used from which writers wait, then fail; also with an empty archive, unlike NiFi. Above
    maxUsagePercentage, so that the archive always goes first (NiFi:
    nifi.content.repository.archive.backpressure.percentage)."""

    cleanup_frequency: Duration = Duration(60_000)
    """Time between two runs of the archive's cleaner (NiFi:
    nifi.content.repository.archive.cleanup.frequency)."""

    partial: bool = False
    """Let the retention cover the dead parts of resource claims that are still in use too: nothing of them is
    truncated before it ends. Off, because such tails are the largest part of the space to win (NiFi:
    none)."""


class Truncation(Section, frozen=True, kw_only=True):
    """Cutting off dead tails of resource claims that are still in use."""

    enabled: bool = True
    """Truncate at all (NiFi: nifi.content.claim.truncation.enabled)."""

    mode: TruncationMode = TruncationMode.PRESSURE
    """Pressure: only when the archive was cleared and usage is above the threshold, as NiFi does. Eager: at
    once; skips the archive's retention, never that of deleted handles."""

    usage_threshold_percentage: Percentage = 50
    """Per cent used above which Pressure truncates. The archive's own limit, since the archive goes first
    (NiFi: nifi.content.repository.archive.max.usage.percentage)."""

    frequency: Duration = Duration(60_000)
    """Time between two runs of the truncation (NiFi: a constant, the same)."""


class Punch(Section, frozen=True, kw_only=True):
    """Punching holes over dead runs in the middle of files: it copies nothing."""

    enabled: bool = True
    """Punch at all; else such runs wait for a rewrite (NiFi, Ambry: none)."""

    min_run: Quantity = Quantity(1024**2)
    """Bytes: shorter dead runs are left to a rewrite, because each hole splits the file's extents (NiFi,
    Ambry: none)."""

    max_holes_per_file: Annotated[int, Meta(ge=0)] = 64
    """Holes one file may have. Thousands make its unlink take seconds; sixty-four cost nothing that shows
    (NiFi, Ambry: none)."""


class Compaction(Section, frozen=True, kw_only=True):
    """Giving back the dead space that neither deletion nor truncation reaches, and what deletion promises."""

    enabled: bool = True
    """Punch and rewrite on their own; commands of people always may (Ambry: triggers that are not empty)."""

    policy: Annotated[str, Meta(min_length=1)] = "StatsBased"
    """Which files are rewritten, and in what order: StatsBased, CompactAll, or an entry point of the group
    ullage.policies (Ambry: store.compaction.policy.factory)."""

    triggers: tuple[CompactionTrigger, ...] = (
        CompactionTrigger.PERIODIC,
        CompactionTrigger.ADMIN,
        CompactionTrigger.PRESSURE,
    )
    """Periodic: at start and every checkFrequency. Admin: when asked. Pressure: when writers wait for room
    (Ambry: store.compaction.triggers)."""

    check_frequency: Duration = Duration(3_600_000)
    """Time between two periodic runs. Ambry's default of a week lets a disk fill up in between (Ambry:
    store.compaction.check.frequency.in.hours)."""

    bytes_per_second: Quantity = Quantity(10 * 1024**2)
    """What a rewrite may copy a second on each disk; 0: no limit. A tenth of what a slow disk writes (Ambry:
    store.compaction.operations.bytes.per.sec)."""

    deleted_retention: Duration = Duration(168 * 3_600_000)
    """How long a deleted handle can be undeleted; its content stays on disk until then. A week, as in Ambry
    (Ambry: store.deleted.message.retention.hours)."""

    min_used_percentage: Percentage = 50
    """Per cent used below which nothing is rewritten on its own: there is no need yet, and what dies
    meanwhile need not be copied (Ambry:
    store.min.used.capacity.to.trigger.compaction.in.percentage)."""

    min_reclaim: Annotated[int, Meta(ge=0)] = 1
    """Outputs' worth of bytes that a run must give back, or it is not begun (Ambry:
    store.min.log.segment.count.to.reclaim.to.trigger.compaction)."""

    max_live_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.7
    """Files of which more than this lives are left alone: what copying them gives back is not worth it. It
    bounds disk / live near 1 / 0.7 (Ambry:
    store.max.log.segment.valid.data.percentage.to.qualify.compaction)."""

    output_size: Quantity = Quantity(64 * 1024**2)
    """Bytes of one output: what a crash in the middle wastes, and the room a rewrite needs (Ambry:
    store.segment.size.in.bytes)."""

    punch: Punch = Punch()
    """Punching holes, which copies nothing (NiFi, Ambry: none)."""


class Leases(Section, frozen=True, kw_only=True):
    """Readers' promises that what they read is not reclaimed."""

    max_duration: Duration = Duration(3_600_000)
    """How long a lease may last, heartbeats included: dead space waits for the longest (NiFi, Ambry: none)."""

    max_count: Annotated[int, Meta(ge=1)] = 10_000
    """Leases at a time; each is looked at by every plan (NiFi, Ambry: none)."""
