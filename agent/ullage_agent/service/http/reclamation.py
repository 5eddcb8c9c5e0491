"""Space: what the disk holds, what could come back, and runs that give it back. `/v1/reclamation`."""

from typing import Any

from ullage.contract import MaintenanceOperation, dump
from ullage.wire import operations
from ullage.wire.space import CleaningReport, Plan, ResourceClaimMap, ResourceClaimPage, RunProgress
from ullage_agent.service.http.resources import Asked, Page, Position, answers, serves


@serves(operations.LIST_RESOURCE_CLAIMS)
def resources(asked: Asked, after: Position = 0, limit: Page = 1_000) -> ResourceClaimPage:
    return asked.repository.reclamation.page(after, limit)


@serves(operations.MAP_RESOURCE_CLAIM)
def resource_map(asked: Asked, resource: int) -> ResourceClaimMap:
    return asked.repository.reclamation.resource(resource)


@serves(operations.PLAN_RECLAMATION)
def plan(
    asked: Asked,
    policy: str | None = None,
    operation: list[MaintenanceOperation] | None = None,
    respects_guards: bool = False,
    archive: bool = False,
) -> Plan:
    wanted = operation or list(MaintenanceOperation)
    return asked.repository.reclamation.plan(
        policy, operations=wanted, respects_guards=respects_guards, archive=archive
    )


@serves(operations.GET_MAINTENANCE)
def maintenance(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = dump(asked.served.host.document)["spec"]["maintenance"]
    return found


@serves(operations.CLEAN)
def clean(asked: Asked) -> CleaningReport:
    if asked.data.override:
        asked.served.note_override(asked.owner, "clean", [MaintenanceOperation.DELETE])
    return asked.repository.reclamation.clean(adopts_orphans=asked.data.adopts_orphans, override=asked.data.override)


@serves(operations.BEGIN_RUN)
def begin(asked: Asked) -> RunProgress:
    return asked.repository.runs.begin(asked.owner, asked.data, asked.key).progress


survey = answers(operations.SURVEY_SPACE, lambda asked: asked.repository.reclamation.survey())
explain = answers(operations.EXPLAIN_SPACE, lambda asked: asked.repository.reclamation.explain())
forecast = answers(operations.FORECAST_SPACE, lambda asked: asked.repository.reclamation.forecast())
goal = answers(operations.GET_GOAL, lambda asked: asked.repository.reclamation.goal())
policies = answers(operations.LIST_POLICIES, lambda asked: asked.repository.reclamation.policies())
windows = answers(operations.LIST_WINDOWS, lambda asked: asked.repository.reclamation.windows())
openings = answers(operations.LIST_OPENINGS, lambda asked: asked.repository.reclamation.openings())
runs = answers(operations.LIST_RUNS, lambda asked: asked.repository.reclamation.runs())
run = answers(operations.GET_RUN, lambda asked: asked.repository.reclamation.run(asked["run"]))
stop = answers(operations.STOP_RUN, lambda asked: asked.repository.reclamation.stop(asked["run"]))
