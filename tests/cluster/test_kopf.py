"""What kopf makes of our objects on a real API server: when it wakes the operator, and what it leaves on them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import QUICK, Operator, condition, objects, repository, say, say_ready
from tests.cluster.workloads import run


def _metadata(fleet: Fleet, kind: str, name: str, place: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.get(kind, name, "--namespace", place)["metadata"]
    return found


def test_nothing_of_kopf_stands_on_objects_but_the_repository_s_finalizer(
    fleet: Fleet, operator: Operator, place: str
) -> None:
    """Created, changed, annotated and run: people keep these objects in git, and delete a run without asking us."""
    operator.runs(place)
    say_ready(fleet, place, "worker-0")
    fleet.apply(run(place, "worker-0"))
    operator.until("worker-0 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    fleet.apply(repository(place, {"image": "agent:2"}))
    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", "--namespace", place)
    operator.until("the annotation is seen", lambda: condition(fleet, place, "Paused") == "True")

    flows, now = _metadata(fleet, "contentrepository", "flows", place), _metadata(fleet, "reclamationrun", "now", place)

    assert (set(flows["annotations"]), flows["finalizers"]) == (
        {"ullage.dev/paused"},
        ["operator.ullage.dev/finalizer"],
    )
    assert not now.get("annotations")
    assert "finalizers" not in now


@pytest.fixture
def restless(operator: Operator) -> Iterator[Operator]:
    """It looks at each repository every second."""
    operator.end()
    operator.start(ULLAGE_OPERATOR_RESYNC_SECONDS="1")
    yield operator
    operator.end()
    operator.start()


@pytest.fixture
def behind(fleet: Fleet, operator: Operator) -> Iterator[tuple[Operator, FaultProxy]]:
    """It gives a watch up that is silent for two seconds, and is reached through what can make one so."""
    operator.end()
    proxy = FaultProxy(fleet, lambda: None)
    proxy.start()
    settings = QUICK | {"ULLAGE_OPERATOR_SILENCE_SECONDS": "2"}
    one = Operator(fleet, settings, server=f"http://127.0.0.1:{proxy.port}")
    one.start()
    yield one, proxy
    one.end()
    proxy.stop()
    operator.start()


def test_a_watch_of_kopf_s_that_is_silent_is_begun_anew(
    fleet: Fleet, behind: tuple[Operator, FaultProxy], place: str
) -> None:
    """What only kopf does, a removal, comes to its end."""
    one, proxy = behind
    one.runs(place)

    proxy.silence()

    fleet.kubectl("delete", "contentrepository", "flows", "--namespace", place, "--timeout=60s")


def test_the_timer_mends_what_nobody_is_told(fleet: Fleet, restless: Operator, place: str) -> None:
    """That agents may ask who their clients are is of the whole cluster: such permissions are not followed."""
    restless.runs(place)
    delegation = ("clusterrolebinding", f"ullage:{place}:flows")
    before = fleet.get(*delegation)["metadata"]["uid"]

    fleet.kubectl("delete", *delegation)

    def is_mended() -> bool:
        found = fleet.get("clusterrolebindings")["items"]
        return [e["metadata"]["uid"] for e in found if e["metadata"]["name"] == delegation[1]] not in ([], [before])

    restless.until("it is there again", is_mended)


def test_a_status_that_somebody_writes_is_mended_at_once(fleet: Fleet, operator: Operator, place: str) -> None:
    """Kopf tells no handler of a status, and to the operator's own writes of it there is nothing to add."""
    operator.runs(place)
    said = fleet.get("contentrepository", "flows", "--namespace", place)["status"]

    say(fleet, place, "contentrepository", "flows", {"nodes": 77, "live": "77Gi"})

    def is_mended() -> bool:
        found = fleet.get("contentrepository", "flows", "--namespace", place)["status"]
        return (found["nodes"], found["live"]) == (said["nodes"], said["live"])

    operator.until("it is as it was", is_mended)


def test_an_orphaned_run_is_told_when_its_repository_goes(fleet: Fleet, operator: Operator, place: str) -> None:
    """Nothing about the run itself has changed then."""
    operator.runs(place)
    fleet.apply(run(place, "worker-0"))
    here = ("--namespace", place)
    operator.until("the run is known", lambda: bool(fleet.get("reclamationrun", "now", *here).get("status")))

    fleet.kubectl("delete", "contentrepository", "flows", *here, "--timeout=60s")

    def reasons() -> set[str]:
        found = fleet.get("reclamationrun", "now", *here)["status"]
        return {each["reason"] for each in found["conditions"]}

    operator.until("it has no repository", lambda: "NoRepository" in reasons())
