"""spec.planning on real nodes: real agents are asked by a real Job, and by Spark under the real kubeflow operator."""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster import images
from tests.cluster.node import Cluster
from tests.cluster.release import CLOSED, Flows, installed_on
from tests.cluster.spark import install_operator
from ullage.contract import PlanningResult

pytestmark = pytest.mark.timeout(1800)  # seconds; Spark's image takes minutes to build and to load

SIZE = 1 << 18
"""Of one content: larger ones would end their file."""

DROPPED = "4.0 MiB"
"""Half of 32 contents."""


@pytest.fixture(scope="module")
def planning(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    """A release on both nodes, and a repository of which the first node holds dead bytes."""
    cluster.load(images.archive("spark"))
    with installed_on(cluster), cluster.namespace(f"plans-{secrets.token_hex(4)}") as place:
        made = Flows(cluster, place, tmp_path_factory.mktemp("plans"))
        made.begin()
        made.half_dropped(1, 32, SIZE)
        yield made
        made.close()


def planned(flows: Flows, workload: str) -> dict[str, Any]:
    """What the status says of the first run of such a kind, once it has ended."""

    def told() -> dict[str, Any]:
        found: dict[str, Any] = (flows.shown().get("status") or {}).get("planning") or {}
        return found

    def has_ended() -> bool:
        last = told()
        return str(last.get("workload", "")).startswith(workload) and last["result"] != PlanningResult.RUNNING

    # Once: what is due again before it has ended begins again at once, and an end is never shown.
    due = datetime.now(UTC) + timedelta(minutes=2)
    flows.apply(CLOSED, planning={"schedule": f"{due.minute} * * * *", "image": images.image_name("spark")})
    flows.cluster.wait_until(f"a {workload} has planned", has_ended, seconds_max=900)
    last = told()
    flows.apply(CLOSED, planning={"schedule": ""})
    flows.cluster.wait_until("no plan is made any more", lambda: not told(), seconds_max=300)
    return last


def test_a_job_tells_what_a_run_would_give_back(planning: Flows) -> None:
    """One pod asks both agents, over TLS and with the token of its account; the status says what the plan comes to."""
    last = planned(planning, "Job/")

    assert last["result"] == PlanningResult.SUCCEEDED, last
    assert f"on 1 nodes give {DROPPED} back for " in last["message"], last


def test_an_application_tells_the_same_under_the_kubeflow_operator(planning: Flows) -> None:
    """Driver and executors of a SparkApplication: the plan is the Job's, and no node waits for its executors."""
    install_operator(planning.cluster, planning.namespace)

    last = planned(planning, "SparkApplication/")

    assert last["result"] == PlanningResult.SUCCEEDED, last
    assert f"on 1 nodes give {DROPPED} back for " in last["message"], last
    assert not planning.is_("MaintenanceDeferred")
