"""Space: what the disk holds, what could come back, and runs that give it back. `/v1/reclamation`."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Router, delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Meta

from ullage_agent.contract import MaintenanceOperation
from ullage_agent.engine.model import Action
from ullage_agent.engine.reclaim.plan import Plan, Step
from ullage_agent.engine.reclaim.policies import policy_names
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.reclaim.survey import ContainerFigures, ResourceFigures
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.runs import Run as Stretched, unpack_runs
from ullage_agent.service.access import Verb
from ullage_agent.service.errors import NotFound
from ullage_agent.service.http.docs import problems
from ullage_agent.service.http.served import key_of, needs, principal_of, require, served_by
from ullage_agent.service.metering import leased_bytes
from ullage_agent.service.problems import problem_of
from ullage_agent.service.runs import Run, Wish
from ullage_agent.windows import Calendar, Opening, Verdict

After = Annotated[int, QueryParameter(ge=0, le=1 << 62)]
Page = Annotated[int, QueryParameter(ge=1, le=10_000)]
STEPS_SHOWN = 10_000
"""Steps of a plan in one answer; the totals are of all."""


class ContainerShown(msgspec.Struct, frozen=True, kw_only=True):
    """One container. `dead_bytes` is `disk_bytes` - `live_bytes`; archive and tombstones stand apart. `leased_bytes`
    are those of files that leases keep from being rewritten, whatever else they are.
    """

    name: str
    resource_claims: int
    disk_bytes: int
    live_bytes: int
    dead_bytes: int
    dead_tail_bytes: int
    unused_bytes: int
    archived_claims: int
    archived_bytes: int
    tombstone_bytes: int
    leased_bytes: int
    total_bytes: int
    used_bytes: int
    used_percentage: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All containers at one moment."""

    millis: int
    containers: list[ContainerShown]


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource claim's file."""

    resource: int
    container: str
    length: int
    allocated_bytes: int
    live_bytes: int
    dead_bytes: int
    dead_tail_bytes: int
    claimants: int
    generation: int
    is_sealed: bool
    is_free: bool
    is_archived: bool
    is_leased: bool
    has_intent: bool
    output: int
    created_millis: int


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """A page of resource claims by index; `next` is to be asked `after`."""

    resources: list[Resource]
    next: int | None


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A run of bytes of a file: live, dead, or a hole."""

    start: int
    length: int
    kind: str


class ResourceMap(msgspec.Struct, frozen=True, kw_only=True):
    """One file from its beginning to its end."""

    resource: Resource
    stretches: list[Stretch]


class StepShown(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a plan."""

    action: str
    resource: int
    container: str
    frees_bytes: int
    copies_bytes: int
    holes: int


class PlanShown(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do. `steps` are the first ones, the totals are of all `step_count`."""

    steps: list[StepShown]
    step_count: int
    frees_bytes: int
    copies_bytes: int
    reason: str
    notes: list[str]


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan or a run may choose, and what spec.compaction.policy says."""

    names: list[str]
    configured: str


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run. `override` ignores the windows, needs the verb reclaim as every run does, and is written down.
    `resources`: only these resource claims, as long as they have the generation that stands beside them.
    """

    policy: Annotated[str, Meta(max_length=255)] | None = None
    operations: Annotated[list[MaintenanceOperation], Meta(min_length=1, max_length=4)] = msgspec.field(
        default_factory=lambda: list(MaintenanceOperation)
    )
    bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    respects_guards: bool = False
    override: bool = False
    resources: Annotated[list[tuple[int, int]], Meta(max_length=100_000)] | None = None


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that were not taken, by reason."""

    reason: str
    steps: int


class ReportShown(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    done: dict[str, int]
    freed_bytes: int
    copied_bytes: int
    read_bytes: int
    seconds: float
    skipped: int
    emergency: int
    is_stopped: bool
    left: list[Left]
    problems: list[str]


class RunShown(msgspec.Struct, frozen=True, kw_only=True):
    """A run: under way, or over with its report or its problem."""

    id: str
    owner: str
    reason: str
    overrides_windows: bool
    operations: list[str]
    began_millis: int
    ended_millis: int | None
    plan: PlanShown | None
    steps_done: int
    freed_bytes: int
    report: ReportShown | None
    problem: str | None


@get("/survey", opt=needs(Verb.GET), responses=problems())
async def survey(request: Request[Any, Any, Any]) -> Totals:
    """What the disk holds now: live, dead, archived, and kept for an undelete."""
    served = served_by(request)
    return await served.call(lambda: totals_of(served.repository))


@get("/resources", opt=needs(Verb.GET), responses=problems())
async def resources(request: Request[Any, Any, Any], after: After = 0, limit: Page = 1_000) -> Resources:
    """Resource claims by index, for a map of the disk."""
    served = served_by(request)

    def find() -> Resources:
        reclamation = served.repository.reclamation
        survey = reclamation.survey()
        leased = reclamation.compactor.leased(survey)
        found = sorted((each for each in survey.resources if each.resource > after), key=lambda each: each.resource)
        page = [resource_of(figures, leased) for figures in found[:limit]]
        return Resources(resources=page, next=page[-1].resource if len(found) > limit else None)

    return await served.call(find)


@get("/resources/{resource:int}", opt=needs(Verb.GET), responses=problems(404))
async def resource_map(request: Request[Any, Any, Any], resource: FromPath[int]) -> ResourceMap:
    """One file: which of its bytes live, which are dead, and which are holes."""
    served = served_by(request)

    def find() -> ResourceMap:
        reclamation = served.repository.reclamation
        survey = reclamation.survey()
        figures = next((f for f in survey.resources if f.resource == resource), None)
        if figures is None:
            raise NotFound(f"there is no resource claim {resource}")
        dead = reclamation.dead_runs(figures)
        leased = reclamation.compactor.leased(survey)
        return ResourceMap(resource=resource_of(figures, leased), stretches=_stretches(figures, dead))

    return await served.call(find)


@get("/plan", opt=needs(Verb.GET), responses=problems())
async def plan(
    request: Request[Any, Any, Any], policy: FromQuery[str | None] = None, respects_guards: FromQuery[bool] = False
) -> PlanShown:
    """What a run would do now, for how many bytes copied. Changes nothing."""
    served = served_by(request)
    compactor = served.repository.reclamation.compactor
    return plan_of(await served.call(compactor.plan, policy=policy, keeps_guards=respects_guards))


@get("/policies", opt=needs(Verb.GET), responses=problems())
async def policies(request: Request[Any, Any, Any]) -> Policies:
    """The policies of compaction that there are here, those of other packages included."""
    served = served_by(request)
    names = await served.call(policy_names)
    return Policies(names=names, configured=str(served.host.spec.compaction.policy))


@get("/windows", opt=needs(Verb.GET), responses=problems())
async def windows(request: Request[Any, Any, Any]) -> list[Verdict]:
    """For each operation whether it is allowed now, until when or from when on, and why."""
    return await served_by(request).call(served_by(request).runs.verdicts)


@get("/openings", opt=needs(Verb.GET), responses=problems())
async def openings(request: Request[Any, Any, Any]) -> list[Opening]:
    """For each window of spec.maintenance when it was last open, whether it is now, and when it opens next."""
    served = served_by(request)
    calendar = Calendar(served.host.spec.maintenance)
    return await served.call(calendar.openings, served.host.clock.now_millis())


@post("/runs", opt=needs(Verb.RECLAIM), status_code=202, responses=problems(409))
async def begin(request: Request[Any, Any, Any], data: JSONBody[Begin]) -> RunShown:
    """Give space back, under a ticket of the windows. Answers at once; the run goes on."""
    served = served_by(request)
    await require(request, Verb.RECLAIM)
    wish = Wish(
        policy=data.policy,
        operations=tuple(dict.fromkeys(data.operations)),
        bytes_per_second=data.bytes_per_second,
        keeps_guards=data.respects_guards,
        overrides_windows=data.override,
        resources=None if data.resources is None else frozenset(data.resources),
    )
    return run_of(await served.call(served.runs.begin, principal_of(request).name, wish, key_of(request)))


@get("/runs", opt=needs(Verb.GET), responses=problems())
async def runs(request: Request[Any, Any, Any]) -> list[RunShown]:
    """The last runs, oldest first."""
    return [run_of(run) for run in served_by(request).runs.all()]


@get("/runs/{run:str}", opt=needs(Verb.GET), responses=problems(404))
async def show_run(request: Request[Any, Any, Any], run: FromPath[str]) -> RunShown:
    """One run."""
    return run_of(served_by(request).runs.find(run))


@delete("/runs/{run:str}", opt=needs(Verb.RECLAIM), status_code=202, responses=problems(404))
async def stop_run(request: Request[Any, Any, Any], run: FromPath[str]) -> RunShown:
    """Stop a run after its present action."""
    found = served_by(request).runs.find(run)
    found.stop.set()
    return run_of(found)


def totals_of(repository: Repository) -> Totals:
    """The totals of a survey made now, as a document."""
    survey = repository.reclamation.survey()
    leased = leased_bytes(repository, survey)
    containers = [_container(figures, leased.get(figures.name, 0)) for figures in survey.containers]
    return Totals(millis=survey.millis, containers=containers)


def _container(figures: ContainerFigures, leased_bytes: int) -> ContainerShown:
    return ContainerShown(
        name=figures.name,
        resource_claims=figures.resource_claims,
        disk_bytes=figures.disk_bytes,
        live_bytes=figures.live_bytes,
        dead_bytes=figures.dead_bytes,
        dead_tail_bytes=figures.dead_tail_bytes,
        unused_bytes=figures.free_bytes,
        archived_claims=figures.archived_claims,
        archived_bytes=figures.archived_bytes,
        tombstone_bytes=figures.tombstone_bytes,
        leased_bytes=leased_bytes,
        total_bytes=figures.usage.total_bytes,
        used_bytes=figures.usage.used_bytes,
        used_percentage=round(figures.usage.percentage, 2),
    )


def resource_of(figures: ResourceFigures, leased: frozenset[int]) -> Resource:
    """One resource claim as a document; `leased` are the files that leases keep from being rewritten."""
    return Resource(
        resource=figures.resource,
        container=figures.container,
        length=figures.length,
        allocated_bytes=figures.allocated_bytes,
        live_bytes=figures.live_bytes,
        dead_bytes=figures.dead_bytes,
        dead_tail_bytes=figures.dead_tail_bytes,
        claimants=figures.claimants,
        generation=figures.generation,
        is_sealed=figures.is_sealed,
        is_free=figures.is_free,
        is_archived=figures.archived_millis > 0,
        is_leased=figures.resource in leased,
        has_intent=figures.has_intent,
        output=figures.output,
        created_millis=figures.created_millis,
    )


def plan_of(made: Plan) -> PlanShown:
    """A plan as a document."""
    return PlanShown(
        steps=[_step(step) for step in made.steps[:STEPS_SHOWN]],
        step_count=len(made.steps),
        frees_bytes=made.frees_bytes,
        copies_bytes=made.copies_bytes,
        reason=made.reason,
        notes=list(made.notes),
    )


def _step(step: Step) -> StepShown:
    return StepShown(
        action=step.action.name.lower(),
        resource=step.resource,
        container=step.container,
        frees_bytes=step.frees_bytes,
        copies_bytes=step.copies_bytes,
        holes=len(step.holes),
    )


def run_of(run: Run) -> RunShown:
    """A run as a document."""
    return RunShown(
        id=run.id,
        owner=run.owner,
        reason=run.reason,
        overrides_windows=run.wish.overrides_windows,
        operations=[str(operation) for operation in run.wish.operations],
        began_millis=run.began_millis,
        ended_millis=run.ended_millis,
        plan=None if run.plan is None else msgspec.structs.replace(plan_of(run.plan), steps=[]),
        steps_done=run.steps_done,
        freed_bytes=run.freed_bytes,
        report=None if run.report is None else _report(run.report),
        problem=None if run.error is None else problem_of(run.error).detail,
    )


def _report(report: Report) -> ReportShown:
    reasons: dict[str, int] = {}
    for left in report.left:
        reasons[left.reason] = reasons.get(left.reason, 0) + 1
    return ReportShown(
        done={action.name.lower(): report.done.get(action, 0) for action in Action if action != Action.NONE},
        freed_bytes=report.freed_bytes,
        copied_bytes=report.copied_bytes,
        read_bytes=report.read_bytes,
        seconds=round(report.seconds, 3),
        skipped=report.skipped,
        emergency=report.emergency,
        is_stopped=report.is_stopped,
        left=[Left(reason=reason, steps=count) for reason, count in reasons.items()],
        problems=report.problems[:100],
    )


def _stretches(figures: ResourceFigures, dead: list[Stretched]) -> list[Stretch]:
    """The whole file, without a gap: what is neither dead nor a hole lives."""
    marked = [(run.offset, run.length, "hole") for run in unpack_runs(figures.holes)]
    marked += [(start, length, "dead") for start, length in dead]
    stretches: list[Stretch] = []
    at = 0
    for start, length, kind in sorted(marked):
        if start > at:
            stretches.append(Stretch(start=at, length=start - at, kind="live"))
        stretches.append(Stretch(start=start, length=length, kind=kind))
        at = max(at, start + length)
    if at < figures.length:
        stretches.append(Stretch(start=at, length=figures.length - at, kind="live"))
    return stretches


router = Router(
    "/v1/reclamation",
    route_handlers=[
        survey,
        resources,
        resource_map,
        plan,
        policies,
        windows,
        openings,
        begin,
        runs,
        show_run,
        stop_run,
    ],
    tags=["reclamation"],
)
