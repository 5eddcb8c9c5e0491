"""`ullage survey`, `plan` and `reclaim` with --url: space as a running service has it."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from ullage_agent.cli.exits import ExitCode, ServiceFailed
from ullage_agent.cli.figures import totalled
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar

if TYPE_CHECKING:
    from ullage_agent.client import Client
    from ullage_agent.client.documents import Container, Run


def served_survey(client: "Client") -> dict[str, Any]:
    """The document of `ullage survey`; it names the node instead of a directory."""
    state, taken = client.state(), client.survey()
    figures = [_figures(container) for container in taken.containers]
    return {"repository": state.repository, "node": state.node} | totalled(taken.millis, figures)


def served_plan(client: "Client", policy: str | None, respects_guards: bool) -> dict[str, Any]:
    """The document of `ullage plan`; of a very long plan it has the first steps only."""
    plan: dict[str, Any] = msgspec.to_builtins(client.plan(policy, respects_guards=respects_guards))
    return plan


def served_run(
    client: "Client",
    policy: str | None,
    override: bool,
    bytes_per_second: int | None,
    respects_guards: bool,
    seconds: float | None,
) -> dict[str, Any]:
    """Run reclamation there and wait: the document of `ullage reclaim`. Ctrl-C and the end of `seconds` stop the run
    after the action it is in.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with bar("Reclaiming", None, is_bytes=False) as progress, interrupts.deferred():

        def goes_on(run: "Run") -> bool:
            progress.reach(run.steps_done, None if run.plan is None else run.plan.step_count)
            return not interrupts.is_pending and (end is None or time.monotonic() < end)

        run = client.reclaim(
            policy,
            override=override,
            bytes_per_second=bytes_per_second,
            respects_guards=respects_guards,
            on_progress=goes_on,
        )
        if run.report is None:
            raise ServiceFailed(ExitCode.REPOSITORY, f"run {run.id} failed: {run.problem}")
        document: dict[str, Any] = msgspec.to_builtins(run.report)
        plan = run.plan
        return document | {"reason": "" if plan is None else plan.reason, "notes": [] if plan is None else plan.notes}


def _figures(container: "Container") -> dict[str, Any]:
    return {
        "name": container.name,
        "resource_claims": container.resource_claims,
        "disk_bytes": container.disk_bytes,
        "live_bytes": container.live_bytes,
        "dead_bytes": container.dead_bytes,
        "dead_tail_bytes": container.dead_tail_bytes,
        "free_bytes": container.unused_bytes,
        "archived_claims": container.archived_claims,
        "archived_bytes": container.archived_bytes,
        "tombstone_bytes": container.tombstone_bytes,
        "used_bytes": container.used_bytes,
        "total_bytes": container.total_bytes,
        "usage_percentage": container.used_percentage,
    }
