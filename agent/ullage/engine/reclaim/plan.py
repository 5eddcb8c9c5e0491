"""Decide what to give back. Pure: a survey and the settings in, a frozen plan out; a dry run is the plan, printed.

A plan chooses, it never authorises: the executor derives every step again under the ledger's lock.

Truncation is NiFi's (NIFI-15570) with what it lacked: the cut goes to the end of the last base claim in use
rather than to the dead claim's offset, and eligibility is derived from the ledger, so that clones, swapped FlowFiles
and restarts cannot be forgotten.
"""

import heapq
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from ullage.contract import ArchiveSettings, ClaimSettings, ContentRepositorySpec, TruncationMode
from ullage.engine.byteranges import ByteRange
from ullage.engine.model import Action
from ullage.engine.reclaim.survey import ResourceFigures, SpaceSurvey


class ReclamationStep(msgspec.Struct, frozen=True, gc=False):
    """One action on one resource claim, valid only for its `generation`. `length` is what truncation leaves, `holes` is
    what punching takes. Rewrites of one `group` share an output; each copies `copies_bytes`.
    """

    action: Action
    resource: int
    container: str
    generation: int
    length: int
    frees_bytes: int
    copies_bytes: int = 0
    holes: tuple[ByteRange, ...] = ()
    group: int = 0


class ReclamationPlan(NamedTuple):
    """Steps in the order in which they are to be taken, and why nothing is done where nothing is; `notes` is what else
    whoever reads it should know.
    """

    steps: tuple[ReclamationStep, ...]
    deferred: tuple[ReclamationStep, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def frees_bytes(self) -> int:
        return sum(step.frees_bytes for step in self.steps)

    @property
    def copies_bytes(self) -> int:
        return sum(step.copies_bytes for step in self.steps)


def step_on(figures: ResourceFigures, action: Action, length: int, frees_bytes: int, **more: Any) -> ReclamationStep:
    """A step on a file as the survey saw it."""
    return ReclamationStep(action, figures.resource, figures.container, figures.generation, length, frees_bytes, **more)


def cut_of(figures: ResourceFigures) -> ReclamationStep:
    """The whole dead tail."""
    return step_on(figures, Action.TRUNCATE, figures.end_in_use, figures.frees_when_cut(figures.end_in_use))


def candidate_bytes_min(claims: ClaimSettings) -> int:
    """Dead tails up to this size are left alone (NiFi: min(1 MB, maxAppendableSize))."""
    return min(claims.large_claim, claims.max_appendable_size)


def plan_release(
    resources: Iterable[ResourceFigures], archive: ArchiveSettings, evacuated: Collection[str] = frozenset()
) -> ReclamationPlan:
    """Resource claims that nothing needs: into the archive, or away. Nothing is archived in containers that are
    `evacuated`.

    One whose bytes a rewrite has moved has no file to archive: its record stays as long as the archive may be asked for
    these bytes, and goes with the output that holds them.
    """
    steps = []
    for figures in resources:
        if not (figures.is_free and figures.is_sealed) or figures.has_intent or figures.archived_millis:
            continue
        is_archived = archive.enabled and figures.container not in evacuated
        if figures.output and is_archived:
            continue
        action = Action.ARCHIVE if is_archived else Action.DELETE
        freed = 0 if is_archived else figures.allocated_bytes
        steps.append(step_on(figures, action, 0, freed))
    return ReclamationPlan(tuple(steps))


def plan_archive_cleaning(survey: SpaceSurvey, archive: ArchiveSettings, limit: int) -> ReclamationPlan:
    """Archived content whose retention has passed, and beyond that the oldest while a container is too full; all of it
    where a container is emptied. Looks at the `limit` oldest of each container.
    """
    steps = []
    for container in survey.containers:
        excess = container.usage.used_bytes - container.usage.total_bytes * archive.max_usage_percentage // 100
        archived = (
            figures
            for figures in survey.resources
            if figures.archived_millis and not figures.has_intent and figures.container == container.name
        )
        for figures in heapq.nsmallest(limit, archived, key=attrgetter("archived_millis", "resource")):
            is_over = figures.archived_millis + archive.max_retention_period <= survey.millis or container.evacuates
            if (is_over or excess > 0) and figures.is_free:
                steps.append(step_on(figures, Action.DELETE, 0, figures.allocated_bytes))
                excess -= figures.allocated_bytes
    return ReclamationPlan(tuple(steps))


def plan_emptying(survey: SpaceSurvey) -> list[ReclamationStep]:
    """All that the archive keeps, whatever its retention."""
    return [
        step_on(figures, Action.DELETE, 0, figures.allocated_bytes)
        for figures in survey.resources
        if figures.archived_millis and figures.is_free and not figures.has_intent
    ]


def plan_truncation(
    survey: SpaceSurvey, spec: ContentRepositorySpec, *, eager: bool = False, candidates: set[int] | None = None
) -> ReclamationPlan:
    """Dead tails to cut off. `eager` acts at once, as mode `Eager` does; else the volume must be under pressure and
    the archive out of the way. What is not done now is `deferred`: it is found again by the next survey.
    """
    if not spec.truncation.enabled and not eager:
        return ReclamationPlan((), reason="truncation is disabled")
    is_eager = eager or spec.truncation.mode == TruncationMode.EAGER
    pressed = {
        container.name
        for container in survey.containers
        if not container.archived_claims and container.usage.percentage >= spec.truncation.usage_threshold_percentage
    }
    now: list[ReclamationStep] = []
    deferred: list[ReclamationStep] = []
    for figures in survey.resources:
        if candidates is not None and figures.resource not in candidates:
            continue
        if has_dead_tail(figures, candidate_bytes_min(spec.claims)):
            is_pressed = figures.container in pressed and retention_is_over(figures, spec, survey.millis)
            (now if is_eager or is_pressed else deferred).append(cut_of(figures))
    now.sort(key=lambda step: -step.frees_bytes)
    reason = "the archive holds content or usage is below the threshold" if deferred else ""
    return ReclamationPlan(tuple(now), tuple(deferred), reason)


def has_dead_tail(figures: ResourceFigures, bytes_min: int) -> bool:
    """Whether a tail that is worth it can be cut off now."""
    return figures.is_changeable and figures.dead_tail_bytes > bytes_min


def retention_is_over(figures: ResourceFigures, spec: ContentRepositorySpec, millis: int) -> bool:
    """With `archive.partial`, dead bytes of a partly live file are kept as long as the archive keeps whole ones."""
    if not (spec.archive.enabled and spec.archive.partial):
        return True
    return figures.last_death_millis + spec.archive.max_retention_period <= millis
