"""The space of a node, over HTTP."""

from collections.abc import Iterator

from ullage.client.http import Query
from ullage.client.link import NodeLink
from ullage.contract import MaintenanceSettings, Opening, WindowStatus, parse_maintenance
from ullage.interface.checks import checked_number, checked_run, checked_seconds, checked_text
from ullage.interface.reclamation import Reclamation
from ullage.wire import operations as wire
from ullage.wire.space import (
    CleaningReport,
    CleaningRequest,
    CompactionPolicies,
    GoalStatus,
    Plan,
    ResourceClaimMap,
    ResourceClaimUsage,
    RunProgress,
    RunRequest,
    SpaceExplanation,
    SpaceForecast,
    Survey,
)


class RemoteReclamation(Reclamation):
    """That of one node."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def survey(self) -> Survey:
        return self._link.ask(wire.SURVEY_SPACE)

    def explain(self) -> SpaceExplanation:
        return self._link.ask(wire.EXPLAIN_SPACE)

    def forecast(self) -> SpaceForecast:
        return self._link.ask(wire.FORECAST_SPACE)

    def goal(self) -> GoalStatus:
        return self._link.ask(wire.GET_GOAL)

    def resources(self) -> Iterator[ResourceClaimUsage]:
        after: int | None = 0
        while after is not None:
            page = self._link.ask(wire.LIST_RESOURCE_CLAIMS, query={"after": after})
            yield from page.resources
            after = page.next

    def resource(self, index: int) -> ResourceClaimMap:
        return self._link.ask(wire.MAP_RESOURCE_CLAIM, resource=checked_number(index, "a resource claim", 0))

    def policies(self) -> CompactionPolicies:
        return self._link.ask(wire.LIST_POLICIES)

    def windows(self) -> list[WindowStatus]:
        return self._link.ask(wire.LIST_WINDOWS)

    def openings(self) -> list[Opening]:
        return self._link.ask(wire.LIST_OPENINGS)

    def maintenance(self) -> MaintenanceSettings:
        settings = self._link.ask(wire.GET_MAINTENANCE)
        return parse_maintenance(settings)

    def _plan(self, request: RunRequest) -> Plan:
        asked: Query = {
            "policy": request.policy,
            "operation": request.operations,
            "respects_guards": request.respects_guards,
            "archive": request.archive,
        }
        return self._link.ask(wire.PLAN_RECLAMATION, query=asked)

    def begin(self, request: RunRequest) -> RunProgress:
        return self._link.ask(wire.BEGIN_RUN, checked_run(request))

    def run(self, id: str, *, wait_seconds: float = 0) -> RunProgress:
        if checked_seconds(wait_seconds, "wait_seconds"):
            self._link.retries.sleep(wait_seconds)
        return self._link.ask(wire.GET_RUN, run=checked_text(id, "a run"))

    def stop(self, id: str) -> RunProgress:
        return self._link.ask(wire.STOP_RUN, run=checked_text(id, "a run"))

    def clean(self, *, adopts_orphans: bool = False, override: bool = False) -> CleaningReport:
        return self._link.ask(wire.CLEAN, CleaningRequest(adopts_orphans=adopts_orphans, override=override))

    def runs(self) -> list[RunProgress]:
        return self._link.ask(wire.LIST_RUNS)
