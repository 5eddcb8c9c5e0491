"""The contract's settings of what gives space back: compaction, holes and leases (see contract.py)."""

import enum
from typing import Annotated

from msgspec import Meta

from ullage_agent.sections import Percentage, Section
from ullage_agent.units import Duration, Quantity


class CompactionTrigger(enum.StrEnum):
    """What may begin a run of compaction."""

    PERIODIC = "Periodic"
    ADMIN = "Admin"
    PRESSURE = "Pressure"


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
