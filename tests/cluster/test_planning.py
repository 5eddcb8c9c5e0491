"""spec.planning against a real API server: a Job, or a SparkApplication where those are served; its end is played."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, now_text, repository, say
from tests.cluster.workloads import definition
from ullage.contract import PlanningResult, millis_of
from ullage_operator.objects import RepositoryObject, covers
from ullage_operator.planning.build import run_object

APPLICATIONS = definition("sparkoperator.k8s.io", "v1beta2", "SparkApplication")
PLANNING = {"schedule": "0 * * * *", "image": "spark:1"}


def stored(fleet: Fleet, place: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.get("contentrepository", "flows", "--namespace", place)
    return found


def told(fleet: Fleet, place: str) -> dict[str, Any]:
    """What the status says of planning."""
    found: dict[str, Any] = (stored(fleet, place).get("status") or {}).get("planning") or {}
    return found


def begun(fleet: Fleet, operator: Operator, place: str, spec: dict[str, Any] | None = None, **planning: Any) -> None:
    """A repository whose hour has come: the promise of the next run is moved into the past."""
    fleet.apply(repository(place, {"planning": PLANNING | planning, **(spec or {})}))
    operator.until("a run is promised", lambda: "nextRun" in told(fleet, place))
    past = {"planning": {"nextRun": "2026-01-01T00:00:00Z"}}

    def has_begun() -> bool:
        if "lastRun" not in told(fleet, place):  # again: the operator may have written what it knew before
            say(fleet, place, "contentrepository", "flows", past)
        return "lastRun" in told(fleet, place)

    operator.until("it has begun", has_begun)


def as_built(fleet: Fleet, place: str, *, is_application: bool) -> dict[str, Any]:
    """What the operator should have made."""
    repository = RepositoryObject.of(stored(fleet, place))
    due = millis_of(told(fleet, place)["lastRun"])
    return run_object(repository, "", due, is_application=is_application, has_authority=True)


def test_a_job_makes_the_plan(fleet: Fleet, operator: Operator, place: str) -> None:
    """Begun when due, as an account that may read this repository; told how it ends, and gone with its schedule."""
    here = ("--namespace", place)
    begun(fleet, operator, place)
    operator.until("it has ended", lambda: told(fleet, place).get("result") == PlanningResult.SUCCEEDED)
    [job] = fleet.get("jobs", *here)["items"]
    assert covers(job, as_built(fleet, place, is_application=False))
    assert told(fleet, place)["workload"] == f"Job/{job['metadata']['name']}"
    assert told(fleet, place)["logs"] == f"kubectl logs -n {place} job/{job['metadata']['name']}"
    assert told(fleet, place)["nextRun"] > now_text()

    def may(*what: str) -> bool:
        account = f"--as=system:serviceaccount:{place}:flows-ullage-planner"
        try:
            return fleet.kubectl("auth", "can-i", *what, *here, account).strip() == "yes"
        except ClusterError:
            return False

    assert may("get", "contentrepositories.ullage.dev/flows", "--subresource=space")
    assert not may("get", "contentrepositories.ullage.dev/flows", "--subresource=content")
    assert may("list", "endpointslices.discovery.k8s.io")
    assert may("create", "pods")
    assert not may("get", "contentrepositories.ullage.dev/others", "--subresource=space")
    assert not may("get", "secrets")

    fleet.apply(repository(place, {"planning": PLANNING | {"schedule": ""}}))

    operator.until("nothing is left of it", lambda: fleet.get("jobs", *here)["items"] == [] and not told(fleet, place))
    operator.until("its rights are gone", lambda: not may("create", "pods"))


@pytest.fixture
def applications(fleet: Fleet) -> Iterator[None]:
    """SparkApplications are served; nobody runs them."""
    fleet.apply(APPLICATIONS)
    fleet.wait_until("the kind is served", fleet.serves_all_custom_resources)
    yield
    fleet.kubectl("delete", "crd", APPLICATIONS["metadata"]["name"])


def found_applications(fleet: Fleet, place: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.get("sparkapplications.sparkoperator.k8s.io", "--namespace", place)["items"]
    return found


def test_a_spark_application_makes_the_plan_where_that_is_served(
    fleet: Fleet, operator: Operator, place: str, applications: None
) -> None:
    """With driver and executors; how it ends is told, with the driver's log."""
    begun(fleet, operator, place)
    operator.until("it is known", lambda: "workload" in told(fleet, place))
    [made] = found_applications(fleet, place)
    assert covers(made, as_built(fleet, place, is_application=True))
    assert fleet.get("jobs", "--namespace", place)["items"] == []

    status = {
        "applicationState": {"state": "FAILED", "errorMessage": "no such image"},
        "driverInfo": {"podName": "plan-driver"},
        "terminationTime": now_text(),
    }
    say(fleet, place, "sparkapplications.sparkoperator.k8s.io", made["metadata"]["name"], status)

    operator.until("its end is told", lambda: told(fleet, place).get("result") == PlanningResult.FAILED)
    assert told(fleet, place)["message"] == "no such image"
    assert told(fleet, place)["logs"] == f"kubectl logs -n {place} plan-driver"


def test_an_application_that_takes_too_long_is_ended(
    fleet: Fleet, operator: Operator, place: str, applications: None
) -> None:
    """Its own operator knows no deadline: ours deletes it, and says why."""
    begun(fleet, operator, place, activeDeadline="1s")

    operator.until("it has failed", lambda: told(fleet, place).get("result") == PlanningResult.FAILED)

    assert told(fleet, place)["message"] == "The run was ended after spec.planning.activeDeadline."
    assert found_applications(fleet, place) == []
