"""Which runs of spec.planning there are, and what became of them: asked for when something is due."""

from collections.abc import Mapping
from typing import Any, Final

from ullage.contract import PlanningResult, millis_of
from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiError
from ullage_operator.objects import RepositoryObject, selector_of
from ullage_operator.observation import ObservedPlanning, PlanningRun
from ullage_operator.planning.build import LABEL, SCHEDULED, labels

TOLD_MAX: Final = 1024

ENDS: Final = {
    "COMPLETED": PlanningResult.SUCCEEDED,
    **dict.fromkeys(("FAILED", "SUBMISSION_FAILED"), PlanningResult.FAILED),
}
"""States of a SparkApplication in which it stays, and what they come to."""


async def listed(api: ApiClient, repository: RepositoryObject) -> ObservedPlanning:
    """Every run there is, and what its pod said last; what the API server refuses stops nothing but planning."""
    try:
        return await _listed(api, repository)
    except ApiError as error:
        return ObservedPlanning(problem=str(error))


async def _listed(api: ApiClient, repository: RepositoryObject) -> ObservedPlanning:
    selector = selector_of(labels(repository))
    has_applications = await api.serves("SparkApplication")
    pods, _ = await api.list("Pod", repository.namespace, f"{selector},{LABEL}")
    said = {each["metadata"]["labels"][LABEL]: text for each in pods if (text := _last_words(each))}
    runs = []
    for kind in ("Job", "SparkApplication") if has_applications else ("Job",):
        found, _ = await api.list(kind, repository.namespace, selector)
        runs += [_run(kind, each, said) for each in found if "deletionTimestamp" not in each["metadata"]]
    has_authority = await api.get("ConfigMap", repository.namespace, repository.authority) is not None
    return ObservedPlanning(runs=tuple(runs), has_authority=has_authority, has_spark_applications=has_applications)


def _run(kind: str, found: Mapping[str, Any], said: Mapping[str, str]) -> PlanningRun:
    metadata, status = found["metadata"], found.get("status") or {}
    result, ended, why, pod = _of_job(found) if kind == "Job" else _of_application(status)
    name = metadata["name"]
    return PlanningRun(
        kind=kind,
        name=name,
        uid=metadata["uid"],
        scheduled_millis=millis_of(metadata["annotations"][SCHEDULED]),
        began_millis=millis_of(metadata["creationTimestamp"]),
        result=result,
        ended_millis=ended,
        message=(said.get(name, "") or why) if result != PlanningResult.RUNNING else "",
        logs=f"kubectl logs -n {metadata['namespace']} {pod or f'job/{name}'}",
    )


def _of_job(found: Mapping[str, Any]) -> tuple[PlanningResult, int | None, str, str]:
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            is_done = condition["type"] == "Complete"
            result = PlanningResult.SUCCEEDED if is_done else PlanningResult.FAILED
            why = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            return result, millis_of(condition["lastTransitionTime"]), "" if is_done else why, ""
    return PlanningResult.RUNNING, None, "", ""


def _of_application(status: Mapping[str, Any]) -> tuple[PlanningResult, int | None, str, str]:
    state = status.get("applicationState") or {}
    pod = (status.get("driverInfo") or {}).get("podName") or "POD"
    result = ENDS.get(state.get("state", ""))
    if result is None:
        return PlanningResult.RUNNING, None, "", pod
    ended = status.get("terminationTime") or status.get("lastSubmissionAttemptTime")
    return result, millis_of(ended) if ended else None, str(state.get("errorMessage", "")), pod


def _last_words(pod: Mapping[str, Any]) -> str:
    """What the container that planned wrote as its last words."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("message"):
            return str(ended["message"]).strip()[-TOLD_MAX:]
    return ""
