"""The operator as its own process and service account, against a real API server with played nodes."""

import contextlib
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import (
    ROOT,
    ROOTS,
    Operator,
    condition,
    done_by,
    now_text,
    objects,
    repository,
    say_ready,
    template,
    token_of_pod,
)
from tests.cluster.workloads import executor, run, unplaced
from ullage.contract import object_name


def test_a_repository_gets_everything_it_needs(fleet: Fleet, operator: Operator, place: str) -> None:
    """An object for each node, a pod on each, addresses by node name, and a certificate for them."""
    fleet.apply(repository(place))

    operator.until("three agents run", lambda: condition(fleet, place, "Reconciling") == "False")

    assert sorted(objects(fleet, place)) == ["worker-0", "worker-1", "worker-2"]
    operator.until("addresses are known", lambda: _hosts(fleet, place) == {"worker-0", "worker-1", "worker-2"})
    assert "ca.crt" in fleet.get("configmap", "flows-ullage-ca", "--namespace", place)["data"]


def _hosts(fleet: Fleet, place: str) -> set[str]:
    slices = fleet.get("endpointslices", "--namespace", place)["items"]
    return {e["hostname"] for s in slices for e in s.get("endpoints") or () if "hostname" in e}


def test_the_cluster_keeps_the_addresses_of_the_local_service(fleet: Fleet, operator: Operator, place: str) -> None:
    """Its slice has our labels, because the Service has them, and is not ours: it is the same after every change."""
    here = ("--namespace", place)

    def slices() -> dict[str, int]:
        found = fleet.get("endpointslices", *here, "--selector=kubernetes.io/service-name=flows-local")["items"]
        return {each["metadata"]["uid"]: len(each.get("endpoints") or ()) for each in found}

    def is_told(text: str) -> bool:
        return text in str(fleet.get("configmap", "flows-ullage", *here)["data"])

    fleet.apply(repository(place))
    operator.until("the Service leads to three agents", lambda: list(slices().values()) == [3])
    (before,) = slices()

    for duration in ("7m", "8m", "9m"):  # what follows a write to the ConfigMap has been done when the next one comes
        fleet.apply(repository(place, {"leases": {"maxDuration": duration}}))
        operator.until("the change is told", partial(is_told, duration))

    assert list(slices()) == [before]


def test_a_change_by_hand_is_undone_and_then_nothing_is_written(fleet: Fleet, operator: Operator, place: str) -> None:
    """Another image in the DaemonSet does not stay; afterwards a quiet fleet costs no write."""
    operator.runs(place, {"image": "agent:1"})

    fleet.kubectl("set", "image", "daemonset/flows-ullage", "agent=theirs", "--namespace", place)
    operator.until("the image is ours again", lambda: template(fleet, place)["containers"][0]["image"] == "agent:1")
    operator.until("the agents run again", lambda: condition(fleet, place, "Reconciling") == "False")
    settled = [operator.writes()]

    def is_quiet() -> bool:
        settled.append(operator.writes())
        return len(settled) > 30 and settled[-1] == settled[-30]

    operator.until("nothing was written in thirty looks", is_quiet)


def test_a_ticket_goes_to_who_wants_one_and_waits_for_spark(fleet: Fleet, operator: Operator, place: str) -> None:
    """An agent that wants one gets it, an executor on its node takes it back, its end brings it again."""
    fleet.apply(repository(place))
    operator.until("the objects exist", lambda: len(objects(fleet, place)) == 3)
    say_ready(fleet, place, "worker-1", wanted=["Rewrite"])
    operator.until("worker-1 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-1"]["spec"])

    fleet.apply(unplaced(executor(place, "worker-1"), "exec-0"))
    fleet.apply(executor(place, "worker-1"))
    operator.until("the ticket is taken back", lambda: "ticket" not in objects(fleet, place)["worker-1"]["spec"])
    assert objects(fleet, place)["worker-1"]["spec"]["deferral"]["waitsFor"] == [f"{place}/etl"]
    operator.until("that is told", lambda: condition(fleet, place, "MaintenanceDeferred") == "True")

    fleet.kubectl("delete", "pod", "exec-1", "--namespace", place, "--wait=false", "--grace-period=0", "--force")
    operator.until("it has one again", lambda: "ticket" in objects(fleet, place)["worker-1"]["spec"])

    opted_in = {"name": "reader", "namespace": place, "labels": {"ullage.dev/blocks-reclamation": "True"}}
    fleet.apply({**executor(place, "worker-1"), "metadata": opted_in})
    operator.until("who opted in is waited for", lambda: "ticket" not in objects(fleet, place)["worker-1"]["spec"])


def test_a_run_reports_what_the_agents_did(fleet: Fleet, operator: Operator, place: str) -> None:
    """A dry run on one node: a ticket in its name; the agent's report becomes the run's, and the ticket goes."""
    fleet.apply(repository(place))
    operator.until("the objects exist", lambda: len(objects(fleet, place)) == 3)
    say_ready(fleet, place, "worker-0")
    fleet.apply(run(place, "worker-0", dryRun=True))
    operator.until("worker-0 has a ticket", lambda: "ticket" in objects(fleet, place)["worker-0"]["spec"])
    ticket = objects(fleet, place)["worker-0"]["spec"]["ticket"]
    assert (ticket["run"], ticket["dryRun"]) == ("now", True)

    done = done_by(ticket, freedBytes=4096, actions=2)
    say_ready(fleet, place, "worker-0", ticket={**done, "ended": now_text()})

    told = ("{.status.phase} {.status.freed}", "reclamationrun/now", place)
    operator.until("the run is over", lambda: fleet.field(*told) == "Completed 4Ki")
    operator.until("the ticket is gone", lambda: "ticket" not in objects(fleet, place)["worker-0"]["spec"])


def test_killed_at_any_moment_it_comes_to_the_same_end(fleet: Fleet, operator: Operator, place: str) -> None:
    """SIGKILL at moments all over the first reconciliation: what is there at the end is whole each time."""
    for number in range(4):
        name = f"r{number}"
        fleet.apply(repository(place, name=name))
        # The sleep is the point: each time the process has come a little further.
        with contextlib.suppress(ClusterError):
            fleet.wait_until("a moment has passed", lambda: False, 0.3 * number)
        operator.end(signal.SIGKILL)
        operator.start()

    def are_settled() -> bool:
        return all(condition(fleet, place, "Reconciling", f"r{number}") == "False" for number in range(4))

    operator.until("all four are settled", are_settled)
    assert len(fleet.get("contentrepositorynodes", "--namespace", place)["items"]) == 4 * 3


def test_the_younger_of_two_with_one_directory_starts_nothing(fleet: Fleet, operator: Operator, place: str) -> None:
    """Accepted is False, with no workload; when the older is gone the younger starts."""
    with fleet.namespace("nested", awaits_end=False) as nested:
        # It lies in nested/PLACE/PLACE/a, and the younger would lie in nested/PLACE.
        fleet.apply(repository(place, {"storage": {"hostPath": {"path": ROOTS[1]}}}, "a"))
        operator.until("the older runs", lambda: condition(fleet, place, "Accepted", "a") == "True")
        fleet.wait_until("a second has passed", _after_a_second())
        fleet.apply(repository(nested, {"storage": {"hostPath": {"path": f"{ROOTS[0]}//"}}}, place))
        operator.until("the younger is refused", lambda: condition(fleet, nested, "Accepted", place) == "False")
        told = ("get", "events", "--namespace", nested)
        operator.until("people are told", lambda: "AcceptedFalse" in fleet.kubectl(*told))
        assert fleet.get("daemonsets", "--namespace", nested)["items"] == []

        fleet.kubectl("delete", "contentrepository", "a", "--namespace", place, "--timeout=60s")

        operator.until("the younger starts", lambda: condition(fleet, nested, "Accepted", place) == "True")
        fleet.kubectl("delete", "contentrepository", place, "--namespace", nested, "--timeout=60s")


def _after_a_second() -> Callable[[], bool]:
    """Creation times have whole seconds."""
    looks: list[str] = []

    def passed() -> bool:
        looks.append(now_text())
        return looks[-1] > looks[0] and len(set(looks)) > 2

    return passed


def test_an_agent_writes_the_status_of_its_own_node_only(fleet: Fleet, operator: Operator, place: str) -> None:
    """With a token of its pod: its own object yes, another node's no, its spec no, secrets no."""
    operator.runs(place)
    here = ("--namespace", place)
    server = (f"--server={fleet.url}", f"--certificate-authority={fleet.ca}", "--kubeconfig=/dev/null")
    as_agent = (f"--token={token_of_pod(fleet, place, 'worker-0')}", *server)

    def patch(node: str, *more: str) -> None:
        body = '{"status": {"version": "1"}}' if more else '{"spec": {"cordoned": true}}'
        found = ("contentrepositorynode", object_name("flows", node), *here)
        fleet.kubectl("patch", *found, "--type=merge", f"--patch={body}", *more, *as_agent)

    patch("worker-0", "--subresource=status")
    with pytest.raises(ClusterError, match="must leave the object of worker-1 alone"):
        patch("worker-1", "--subresource=status")
    with pytest.raises(ClusterError, match="forbidden"):
        patch("worker-0")
    with pytest.raises(ClusterError, match="forbidden"):
        fleet.kubectl("get", "secrets", *here, *as_agent)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"archive": {"backpressurePercentage": 10}}, "spec.archive.*backpressurePercentage must be above"),
        ({"maintenance": {"windows": [{"name": "a", "schedule": "x", "duration": "5s"}]}}, "windows.0..*between 1m"),
        ({"maintenance": {"maxConcurrentNodes": "200%"}}, "spec.maintenance.maxConcurrentNodes"),
        ({"claims": {"maxAppendableSize": "1Gi"}}, "maxAppendableSize must be at most maxBatchFile"),
        ({"durability": {"interval": "0s"}}, "spec.durability.interval.*above 0s"),
        ({"service": {"httpPort": 8481}}, "spec.service.*must differ"),
        ({"tolerations": [{"operator": "Exists", "value": "x"}]}, "spec.tolerations.0..*must be empty"),
        ({"storage": {"sections": 0}}, "spec.storage.sections"),
        ({"truncation": {"mode": "Sometimes"}}, "spec.truncation.mode"),
        (
            {"storage": {"hostPath": {"path": "/a"}, "localPersistentVolume": {"storageClassName": "a", "size": 1}}},
            "exclude each other",
        ),
    ],
)
def test_a_bad_spec_is_refused_with_the_field_s_name(
    fleet: Fleet, operator: Operator, spec: dict[str, Any], message: str
) -> None:
    """The API server itself says what is wrong, before anything is stored."""
    with pytest.raises(ClusterError, match=message):
        fleet.apply(repository("default", spec))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"sections": 8}, {"sections": 9}, "sections is immutable"),
        ({"hostPath": {"path": "/a"}}, {"hostPath": {"path": "/b"}}, "hostPath.path is immutable"),
        (
            {"containers": [{"name": "a", "subPath": "a"}, {"name": "b", "subPath": "b"}]},
            {"containers": [{"name": "a", "subPath": "a"}]},
            "removed only once they had evacuate: true",
        ),
    ],
)
def test_where_data_lies_cannot_be_changed(
    fleet: Fleet, operator: Operator, place: str, before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    """Paths, sections and containers of a repository that exists stay."""
    fleet.apply(repository(place, {"storage": before}))

    with pytest.raises(ClusterError, match=message):
        fleet.apply(repository(place, {"storage": after}))


def test_a_deleted_repository_leaves_nothing(fleet: Fleet, operator: Operator, place: str) -> None:
    """With its finalizer gone so are its objects, also those that no owner could take with it."""
    operator.runs(place)

    fleet.kubectl("delete", "contentrepository", "flows", "--namespace", place, "--timeout=60s")

    assert objects(fleet, place) == {}
    assert f"ullage:{place}:flows" not in fleet.kubectl("get", "clusterrolebindings")
    operator.until("the workload is gone", lambda: fleet.get("daemonsets", "--namespace", place)["items"] == [])


def test_the_examples_are_taken(fleet: Fleet, operator: Operator, place: str) -> None:
    """`kubectl apply` takes every example, and the API server finds each of its fields."""
    files = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
    assert len(files) >= 4
    # Pods need their account, also where nothing is kept.
    fleet.kubectl("apply", "-n", place, f"--filename={ROOT / 'examples' / 'kubernetes' / 'client.yaml'}")
    for file in files:
        fleet.kubectl("apply", "-n", place, f"--filename={file}", "--dry-run=server", "--validate=strict")
