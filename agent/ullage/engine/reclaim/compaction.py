"""Plan how dead bytes come back at the lowest cost: cut tails, punch holes, and rewrite what is left. Pure.

For each file the cheapest that will do: what truncation and holes free costs no copying, and where that leaves a file
full enough it is all. A file that has to be rewritten anyway is not punched first.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from ullage.contract import ContentRepositorySpec
from ullage.engine.byteranges import ByteRange, allocated_bytes, unpack_ranges, whole_blocks
from ullage.engine.model import Action
from ullage.engine.reclaim.plan import (
    ReclamationPlan,
    ReclamationStep,
    candidate_bytes_min,
    cut_of,
    has_dead_tail,
    plan_emptying,
    plan_release,
    retention_is_over,
    step_on,
)
from ullage.engine.reclaim.policies import GAIN_SHARE_MIN, Candidate, Policy
from ullage.engine.reclaim.survey import ResourceFigures, SpaceSurvey

MINUTE_MILLIS = 60_000


class CompactionRequest(NamedTuple):
    """What a plan is made for. `frees_wanted`: stop choosing rewrites once they free so much a container; 0: all.

    `keeps_guards`: minUsedPercentage and minReclaim hold, as for runs that nobody asked for. `unpunchable` names the
    containers whose filesystem has no holes, `leased` files that somebody reads; those that are
    `unchangeable` may not be changed in place. `empties_archive`: nothing is kept for replays. `only`: no other files;
    these are rewritten for as little as a block, because somebody has weighed what that costs.
    """

    policy: Policy
    keeps_guards: bool = True
    actions: frozenset[Action] = frozenset({Action.DELETE, Action.TRUNCATE, Action.PUNCH, Action.REWRITE})
    frees_wanted: int = 0
    unpunchable: Collection[str] = ()
    leased: Collection[int] = ()
    unchangeable: Collection[int] = ()
    empties_archive: bool = False
    only: Collection[int] | None = None


def plan_compaction(survey: SpaceSurvey, spec: ContentRepositorySpec, wish: CompactionRequest) -> ReclamationPlan:
    """Steps for everything that can come back, what moves no bytes first. `survey` knows the dead runs of files that
    are worth punching (`worth_a_look`).
    """
    closed, notes = _guards(survey, spec, wish)
    steps: list[ReclamationStep] = []
    if Action.DELETE in wish.actions:
        archive = msgspec.structs.replace(spec.archive, enabled=False) if wish.empties_archive else spec.archive
        steps += plan_release(survey.resources, archive, survey.evacuated).steps
        steps += plan_emptying(survey) if wish.empties_archive else ()
    evacuated = survey.evacuated
    free = [
        figures
        for figures in survey.resources
        if figures.resource not in wish.leased and (wish.only is None or figures.resource in wish.only)
    ]
    staying = [f for f in free if f.container not in evacuated and _is_eligible(f, survey, spec)]
    cuts, punches = _in_place(staying, spec, wish, closed)
    rewrites: list[ReclamationStep] = []
    more: list[str] = []
    if Action.REWRITE in wish.actions:
        freed = Counter({index: cut.frees_bytes for index, cut in cuts.items()})
        freed.update({index: punch.frees_bytes for index, punch in punches.items()})
        # What copies nothing frees need not be copied for.
        candidates = [
            Candidate(figures, figures.allocated_bytes - freed[figures.resource])
            for figures in staying
            if figures.container not in closed
        ]
        chosen = wish.policy.choose(candidates, spec.compaction, survey.millis)
        rewrites, more = _rewrites(_groups(chosen, spec, survey.millis), spec, wish)
        leaving = [Candidate(f, f.allocated_bytes) for f in free if f.container in evacuated and f.is_changeable]
        rewrites += _evacuations(_groups(leaving, spec, survey.millis), first=len(candidates) + 1)
    rewritten = {step.resource for step in rewrites}
    steps += [cut for index, cut in cuts.items() if index not in rewritten]
    # A file that is cut has another generation then: its holes come with the next plan.
    steps += [punch for index, punch in punches.items() if index not in rewritten and index not in cuts]
    return ReclamationPlan((*steps, *rewrites), reason="; ".join(more), notes=(*notes, *_notes(survey, wish)))


def _in_place(
    staying: Iterable[ResourceFigures], spec: ContentRepositorySpec, wish: CompactionRequest, closed: Collection[str]
) -> tuple[dict[int, ReclamationStep], dict[int, ReclamationStep]]:
    """Tails to cut and holes to punch, by resource claim: they copy nothing."""
    cuts: dict[int, ReclamationStep] = {}
    punches: dict[int, ReclamationStep] = {}
    for figures in staying:
        if figures.resource in wish.unchangeable:
            continue
        if Action.TRUNCATE in wish.actions and has_dead_tail(figures, candidate_bytes_min(spec.claims)):
            cuts[figures.resource] = cut_of(figures)
        if Action.PUNCH in wish.actions and figures.container not in (*wish.unpunchable, *closed):
            punch = _punch(figures, spec)
            if punch is not None:
                punches[figures.resource] = punch
    return cuts, punches


def worth_a_look(survey: SpaceSurvey, spec: ContentRepositorySpec) -> list[int]:
    """Files with enough dead bytes that some may lie in a run worth punching."""
    if not spec.compaction.punch.enabled:
        return []
    least = spec.compaction.punch.min_run
    evacuated = survey.evacuated
    return [
        figures.resource
        for figures in survey.resources
        if figures.dead_bytes >= least and figures.container not in evacuated and _is_eligible(figures, survey, spec)
    ]


def _is_eligible(figures: ResourceFigures, survey: SpaceSurvey, spec: ContentRepositorySpec) -> bool:
    return figures.is_changeable and figures.dead_bytes > 0 and retention_is_over(figures, spec, survey.millis)


def _notes(survey: SpaceSurvey, wish: CompactionRequest) -> list[str]:
    """What waits and why, and how far the containers are that are to be emptied."""
    notes = []
    leased = sum(1 for figures in survey.resources if figures.resource in wish.leased and figures.dead_bytes)
    if leased:
        notes.append(f"{leased} resource claims with dead bytes wait for leases")
    notes += [
        f"the filesystem of container {name} cannot punch holes: what that would free is rewritten"
        for name in sorted(wish.unpunchable)
    ]
    for container in survey.containers:
        if container.evacuates and container.records:
            notes.append(
                f"container {container.name} is evacuated: {container.records} resource claims with "
                f"{container.disk_bytes + container.tombstone_bytes + container.archived_bytes} bytes are left"
            )
        elif container.evacuates:
            notes.append(f"container {container.name} is empty and may be removed from spec.storage.containers")
    return notes


def _guards(survey: SpaceSurvey, spec: ContentRepositorySpec, wish: CompactionRequest) -> tuple[set[str], list[str]]:
    """Containers that are not full enough to bother, and a note of each."""
    if not wish.keeps_guards:
        return set(), []
    least = spec.compaction.min_used_percentage
    low = {c.name: c.usage.percentage for c in survey.containers if c.usage.percentage < least}
    notes = [
        f"container {name} is {used:.0f}% used, below spec.compaction.minUsedPercentage ({least}%)"
        for name, used in low.items()
    ]
    return set(low), notes


def _punch(figures: ResourceFigures, spec: ContentRepositorySpec) -> ReclamationStep | None:
    """The largest dead runs, as many as the file may have holes."""
    settings = spec.compaction.punch
    room = settings.max_holes_per_file - len(unpack_ranges(figures.holes))
    runs = [hole for hole in map(whole_blocks, figures.dead_runs) if hole.length >= settings.min_run]
    holes: Sequence[ByteRange] = sorted(sorted(runs, key=lambda hole: -hole.length)[: max(0, room)])
    if not settings.enabled or not holes:
        return None
    frees = sum(hole.length for hole in holes)
    return step_on(figures, Action.PUNCH, figures.length, frees, holes=tuple(holes))


def _groups(chosen: Sequence[Candidate], spec: ContentRepositorySpec, millis: int) -> list[list[Candidate]]:
    """Outputs to be: survivors of one container, lifetime class and age together, so that they die together; of one
    tenant, whose alone the output stays.

    The policy's order counts within a class and among outputs: a run that stops early has copied what it judged best.
    """
    classes: dict[tuple[str, str, int, int], list[Candidate]] = {}
    for candidate in chosen:
        figures = candidate.figures
        age = max(0, millis - figures.created_millis) // MINUTE_MILLIS
        kind = figures.container, figures.tenant, figures.lifetime, age.bit_length() // 2
        classes.setdefault(kind, []).append(candidate)
    groups: list[list[Candidate]] = []
    for members in classes.values():
        group: list[Candidate] = []
        filled = 0
        for candidate in members:
            if group and filled + candidate.live_bytes > spec.compaction.output_size:
                groups.append(group)
                group, filled = [], 0
            group.append(candidate)
            filled += candidate.live_bytes
        groups.append(group)
    ranks = {candidate.figures.resource: rank for rank, candidate in enumerate(chosen)}
    return sorted(groups, key=lambda group: fmean(ranks[candidate.figures.resource] for candidate in group))


def _rewrites(
    groups: Iterable[Sequence[Candidate]], spec: ContentRepositorySpec, wish: CompactionRequest
) -> tuple[list[ReclamationStep], list[str]]:
    """The steps of groups that pay, in their order, as many as are wanted."""
    share = GAIN_SHARE_MIN if wish.only is None else 0
    paying = [(gain, group) for group in groups if (gain := _gain(group)) > share * _live(group)]
    total: Counter[str] = Counter()
    for gain, group in paying:
        total[group[0].figures.container] += gain
    reasons: list[str] = []
    least = spec.compaction.min_reclaim * spec.compaction.output_size
    has_guards = wish.keeps_guards and wish.policy.has_guards
    for name, gain in total.items():
        if has_guards and gain < least:
            reasons.append(f"a rewrite in container {name} would free {gain} bytes, fewer than minReclaim ({least})")
    steps: list[ReclamationStep] = []
    freed: Counter[str] = Counter()
    for number, (gain, group) in enumerate(paying, start=1):
        name = group[0].figures.container
        if (has_guards and total[name] < least) or (wish.frees_wanted and freed[name] >= wish.frees_wanted):
            continue
        freed[name] += gain
        steps += _steps_of(group, number, gain)
    return steps, reasons


def _evacuations(groups: Iterable[Sequence[Candidate]], first: int) -> list[ReclamationStep]:
    """Everything that lives leaves, whether it pays or not."""
    return [step for number, group in enumerate(groups, first) for step in _steps_of(group, number, _gain(group))]


def _gain(group: Sequence[Candidate]) -> int:
    return sum(candidate.figures.allocated_bytes for candidate in group) - allocated_bytes(_live(group))


def _live(group: Sequence[Candidate]) -> int:
    return sum(candidate.live_bytes for candidate in group)


def _steps_of(group: Sequence[Candidate], number: int, gain: int) -> Iterable[ReclamationStep]:
    """One step a source; together they free what the group gains."""
    output = sum(candidate.figures.allocated_bytes for candidate in group) - gain
    for candidate in group:
        figures = candidate.figures
        share = min(output, allocated_bytes(figures.live_bytes))
        output -= share
        frees, copies = figures.allocated_bytes - share, figures.live_bytes
        yield step_on(figures, Action.REWRITE, figures.length, frees, copies_bytes=copies, group=number)
