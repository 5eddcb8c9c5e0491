"""What happens to repositories over the years, on a real API server: losses, pauses, runs that are called off, ends."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import (
    ROOTS,
    Operator,
    condition,
    done_by,
    now_text,
    objects,
    repository,
    say,
    say_ready,
)
from tests.cluster.test_planning import begun
from tests.cluster.workloads import made, run
from ullage_operator.install import NAMESPACE

CRON = {"maintenance": {"windows": [{"name": "never", "schedule": "61 * * * *", "duration": "1h"}]}}
"""The API server takes it, and the operator does not."""


def test_what_a_lost_disk_held_is_given_up_once(fleet: Fleet, operator: Operator, place: str) -> None:
    """While its node is there, by the uid of the node's object and by nothing else; people are told both times."""
    operator.runs(place)
    say_ready(fleet, place, "worker-0", space={"liveBytes": 5 << 20})
    say_ready(fleet, place, "worker-1")
    before = objects(fleet, place)
    uid = before["worker-0"]["metadata"]["uid"]

    _release(fleet, place, before["worker-0"], "data-lost")
    operator.until("the uid is told", lambda: uid in _told(fleet, place, "ReleaseNotConfirmed"))
    assert objects(fleet, place)["worker-0"]["metadata"]["uid"] == uid
    _release(fleet, place, before["worker-0"], uid)

    operator.until("it is another one", lambda: _uid(fleet, place, "worker-0") not in ("", uid))
    after = objects(fleet, place)
    assert "repositoryUuid" not in after["worker-0"].get("status", {})
    assert "ullage.dev/release" not in after["worker-0"]["metadata"].get("annotations", {})
    assert after["worker-1"]["status"]["repositoryUuid"] == "u"
    operator.until("it is told what was lost", lambda: "worker-0 held (5Mi live)" in _told(fleet, place, "Released"))


def _release(fleet: Fleet, place: str, found: dict[str, Any], value: str) -> None:
    what = ("contentrepositorynode", found["metadata"]["name"], f"ullage.dev/release={value}")
    fleet.kubectl("annotate", "--overwrite", *what, "--namespace", place)


def _uid(fleet: Fleet, place: str, node: str) -> str:
    found = objects(fleet, place).get(node)
    return "" if found is None else str(found["metadata"]["uid"])


def _told(fleet: Fleet, place: str, reason: str) -> str:
    events = fleet.get("events", "--namespace", place)["items"]
    return "\n".join(each["message"] for each in events if each["reason"] == reason)


@pytest.mark.parametrize("is_paused", [True, False])
def test_what_is_left_alone_stays_ready_and_its_addresses_are_true(
    fleet: Fleet, operator: Operator, place: str, is_paused: bool
) -> None:
    """Paused, or with a cron that can't be read: nothing else changes, not even where the new settings would listen."""
    here = ("--namespace", place)
    operator.runs(place)
    for node in ("worker-0", "worker-1", "worker-2"):
        say_ready(fleet, place, node)
    operator.until("it is ready", lambda: condition(fleet, place, "Ready") == "True")
    if is_paused:
        fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", *here)
    fleet.apply(repository(place, {"service": {"httpPort": 9000}, **({} if is_paused else CRON)}))
    held = ("Paused", "True") if is_paused else ("Accepted", "False")
    operator.until("it is left alone", lambda: condition(fleet, place, held[0]) == held[1])

    pods = fleet.get("pods", *here)["items"]
    gone = next(each for each in pods if each["spec"].get("nodeName") == "worker-1")
    say(fleet, place, "pod", gone["metadata"]["name"], {"conditions": [{"type": "Ready", "status": "False"}]})

    ready = {"worker-0": True, "worker-1": False, "worker-2": True}
    operator.until("nobody is led to worker-1", lambda: _addresses(fleet, place) == ready)
    slices = fleet.get("endpointslices", *here, "--selector=kubernetes.io/service-name=flows-nodes")["items"]
    assert 9000 not in {port["port"] for each in slices for port in each["ports"]}
    ready["worker-1"] = True
    say(fleet, place, "pod", gone["metadata"]["name"], {"conditions": [{"type": "Ready", "status": "True"}]})
    operator.until("it serves again", lambda: condition(fleet, place, "Ready") == "True")
    operator.until("and is led to", lambda: _addresses(fleet, place) == ready)


def _addresses(fleet: Fleet, place: str) -> dict[str, bool]:
    """By node, whether clients are led to its agent."""
    ours = "--selector=kubernetes.io/service-name=flows-nodes"
    slices = fleet.get("endpointslices", "--namespace", place, ours)["items"]
    return {e["nodeName"]: e["conditions"]["ready"] for each in slices for e in each.get("endpoints") or ()}


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_run_that_is_deleted_is_called_off(fleet: Fleet, operator: Operator, place: str, is_paused: bool) -> None:
    """Its ticket is taken back at once, and not an hour later when it ends by itself."""
    fleet.apply(repository(place))
    operator.until("the objects exist", lambda: len(objects(fleet, place)) == 3)
    say_ready(fleet, place, "worker-0")
    fleet.apply(run(place, "worker-0"))
    operator.until("worker-0 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    if is_paused:
        fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", "--namespace", place)
        operator.until("it is paused", lambda: condition(fleet, place, "Paused") == "True")

    fleet.kubectl("delete", "reclamationrun", "now", "--namespace", place)

    operator.until("its ticket is gone", lambda: "ticket" not in objects(fleet, place)["worker-0"]["spec"])


def test_a_run_is_suspended_goes_on_and_is_deleted_after_its_end(fleet: Fleet, operator: Operator, place: str) -> None:
    """Its ticket is taken back and given again; nothing but that can be changed; one second after its end it goes."""
    fleet.apply(repository(place))
    operator.until("the objects exist", lambda: len(objects(fleet, place)) == 3)
    say_ready(fleet, place, "worker-0")
    fleet.apply(run(place, "worker-0", ttlSecondsAfterFinished=1))
    operator.until("worker-0 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    first = objects(fleet, place)["worker-0"]["spec"]["ticket"]["id"]

    fleet.apply(run(place, "worker-0", ttlSecondsAfterFinished=1, suspend=True))
    operator.until("its ticket is gone", lambda: "ticket" not in objects(fleet, place)["worker-0"]["spec"])
    with pytest.raises(ClusterError, match="immutable, but for suspend"):
        fleet.apply(run(place, "worker-0", ttlSecondsAfterFinished=2, suspend=True))
    fleet.apply(run(place, "worker-0", ttlSecondsAfterFinished=1, suspend=False))
    operator.until("it has another", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    second = objects(fleet, place)["worker-0"]["spec"]["ticket"]
    assert second["id"] != first

    done = done_by(second, ended=now_text())
    say_ready(fleet, place, "worker-0", ticket=done)
    operator.until("it is gone", lambda: fleet.get("reclamationruns", "--namespace", place)["items"] == [])


def test_a_repository_that_is_deleted_ends_at_once_what_it_had_begun(
    fleet: Fleet, operator: Operator, place: str
) -> None:
    """Its planning and the tickets of its runs go at once, and not when the last directory is emptied, which a
    quota holds up here; then the run is told that there is no repository.
    """
    here = ("--namespace", place)
    begun(fleet, operator, place, {"deletionPolicy": "Delete"})
    operator.until("the objects exist", lambda: len(objects(fleet, place)) == 3)
    assert len(fleet.get("jobs", *here)["items"]) == 1
    say_ready(fleet, place, "worker-0")
    fleet.apply(run(place, "worker-0"))
    operator.until("worker-0 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    fleet.apply(made("v1", "ResourceQuota", "none", place, spec={"hard": {"count/jobs.batch": "0"}}))
    fleet.wait_until("the quota counts", lambda: "hard" in fleet.get("resourcequota", "none", *here)["status"])

    fleet.kubectl("delete", "contentrepository", "flows", *here, "--wait=false")

    operator.until("its ticket is gone", lambda: "ticket" not in objects(fleet, place)["worker-0"]["spec"])
    operator.until("its planning is gone", lambda: fleet.get("jobs", *here)["items"] == [])
    operator.until("the quota is told", lambda: condition(fleet, place, "Stalled") == "True")
    fleet.kubectl("delete", "resourcequota", "none", *here)
    operator.until("it is gone", lambda: fleet.get("contentrepositories", *here)["items"] == [])
    told = ('{.status.conditions[?(@.type=="Ready")].reason}', "reclamationrun/now", place)
    operator.until("its run is told", lambda: fleet.field(*told) == "NoRepository")


NODES = ("worker-0", "worker-1", "worker-2")
STANDARD = "pod-security.kubernetes.io/enforce"
SYSTEM = ("--namespace", NAMESPACE)


@pytest.fixture
def ending(fleet: Fleet, operator: Operator) -> Iterator[str]:
    """A namespace that the test deletes, and a label of its name on the nodes; the operator runs again at the end."""
    name = f"ending-{secrets.token_hex(3)}"
    fleet.create_namespace(name)
    fleet.kubectl("label", "nodes", *NODES, f"{name}=1")
    yield name
    operator.end()
    operator.start()
    fleet.kubectl("label", "nodes", *NODES, f"{name}-")
    fleet.kubectl("label", "namespace", NAMESPACE, f"{STANDARD}=restricted", "--overwrite")


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_namespace_that_is_deleted_takes_the_data_with_it_or_it_is_told_what_stays(
    fleet: Fleet, operator: Operator, ending: str, is_emptied: bool
) -> None:
    """Jobs run in the operator's namespace, on a node too that was not selected any more; where its standard forbids
    them, and with policy Retain, an event there says what stays where. That the nodes' objects went first, because
    somebody forced them while no operator ran, changes nothing.
    """
    fleet.kubectl(
        "label", "namespace", NAMESPACE, f"{STANDARD}={'privileged' if is_emptied else 'restricted'}", "--overwrite"
    )
    spec = {"nodeSelector": {ending: "1"}, "storage": {"hostPath": {"path": ROOTS[0]}}}
    operator.runs(ending, spec | {"deletionPolicy": "Delete"})
    fleet.apply(repository(ending, spec, "kept"))
    operator.until("all have objects", lambda: len(objects(fleet, ending, "kept")) == 3)
    for name in ("flows", "kept"):
        for node in NODES:
            say_ready(fleet, ending, node, name)
    fleet.kubectl("label", "node", "worker-2", f"{ending}-")
    away = {"flows": ["worker-2"], "kept": ["worker-2"]}
    operator.until("worker-2 is told", lambda: {name: _away(fleet, ending, name) for name in away} == away)
    uid = fleet.get("contentrepository", "flows", "--namespace", ending)["metadata"]["uid"]

    operator.end()
    fleet.kubectl("delete", "namespace", ending, "--wait=false")
    fleet.wait_until("its end waits for the nodes' objects", lambda: _are_deleted(fleet, ending))
    if not is_emptied:
        for each in fleet.get("contentrepositorynodes", "--namespace", ending)["items"]:
            what = ("contentrepositorynode", each["metadata"]["name"], "--namespace", ending)
            fleet.kubectl("patch", *what, "--type=merge", '--patch={"metadata": {"finalizers": null}}')
        assert objects(fleet, ending) == {}
    operator.start()

    operator.until("the namespace is gone", lambda: ending not in fleet.kubectl("get", "namespaces"))
    jobs = fleet.get("jobs", *SYSTEM, f"--selector=ullage.dev/emptied={uid}")["items"]
    told = _told(fleet, NAMESPACE, "DataStays")
    assert f"{ending}/kept is gone, and what it held stays in {ROOTS[0]}/{ending}/kept, as deletionPolicy" in told
    assert all(f"On {', '.join(NODES)}." in line for line in told.splitlines() if ending in line)
    if is_emptied:
        assert {each["spec"]["template"]["spec"]["nodeName"] for each in jobs} == set(NODES)
        assert {each["status"].get("succeeded") for each in jobs} == {1}
        assert f"{ending}/flows" not in told
    else:
        assert jobs == []
        assert f"{ending}/flows is gone, and what it held stays in {ROOTS[0]}/{ending}/flows, though" in told
        assert "violates PodSecurity" in told


def _are_deleted(fleet: Fleet, place: str) -> bool:
    found = fleet.get("contentrepositorynodes", "--namespace", place)["items"]
    return len(found) == 6 and all("deletionTimestamp" in each["metadata"] for each in found)


def _away(fleet: Fleet, place: str, name: str) -> list[str]:
    """The nodes out of reach that its status names."""
    status = fleet.get("contentrepository", name, "--namespace", place).get("status") or {}
    return [each["node"] for each in status.get("outOfReach", ())]
