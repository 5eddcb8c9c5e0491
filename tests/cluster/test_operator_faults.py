"""What a cluster does to its operator: it grows, people edit by hand, watches go silent, the process is killed."""

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import LOOPBACK
from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import QUICK, Operator, condition, objects, repository, template
from ullage.contract import object_name

SEED = 20261121
NODES = 50
POOL = {"nodeSelector": {"pool": "grow"}}


@pytest.fixture
def pool(fleet: Fleet) -> Iterator[list[str]]:
    """Fifty nodes more, of which nobody has an agent yet."""
    names = fleet.add_nodes(NODES, "grow")
    yield names
    fleet.kubectl("delete", "nodes", *names, "--wait=false")


def test_from_one_node_to_fifty_and_back(fleet: Fleet, operator: Operator, place: str, pool: list[str]) -> None:
    """Objects, pods and addresses follow the nodes; who never stored anything leaves nothing behind."""
    here = ("--namespace", place)

    def hosts() -> set[str]:
        slices = fleet.get("endpointslices", *here)["items"]
        return {each["hostname"] for found in slices for each in found.get("endpoints") or () if "hostname" in each}

    def are(names: list[str]) -> bool:
        found = fleet.get("contentrepository", "flows", *here).get("status") or {}
        return found.get("nodes") == len(names) and set(objects(fleet, place)) == hosts() == set(names)

    fleet.kubectl("label", "node", pool[0], "pool=grow")
    fleet.apply(repository(place, POOL))
    operator.until("one node has an agent", lambda: are(pool[:1]))

    fleet.kubectl("label", "nodes", *pool[1:], "pool=grow")
    operator.until("fifty have", lambda: are(pool) and condition(fleet, place, "Reconciling") == "False")

    fleet.kubectl("label", "nodes", *pool[5:], "pool-")
    operator.until("five have", lambda: are(pool[:5]))
    # Before the nodes go: nobody plays pods of nodes that are gone, and their namespace would wait for a minute.
    fleet.kubectl("delete", "contentrepository", "flows", *here, "--timeout=60s")
    operator.until("no pod is left", lambda: fleet.get("pods", *here)["items"] == [])


def test_what_people_edit_is_mended_and_what_they_add_stays(fleet: Fleet, operator: Operator, place: str) -> None:
    """Fields of ours are ours again, deleted objects come back, the authority stays; so do labels of others."""
    here = ("--namespace", place)
    operator.runs(place)
    kinds = "service,configmap,role,networkpolicy,daemonset"
    edits: list[tuple[str, str, dict[str, Any]]] = [
        ("service", "flows-local", {"spec": {"selector": {"app": "theirs"}, "internalTrafficPolicy": "Cluster"}}),
        ("configmap", "flows-ullage", {"data": {"contentrepository.yaml": "theirs"}}),
        ("role", "flows-ullage-agent", {"rules": []}),
        ("networkpolicy", "flows-ullage", {"spec": {"ingress": []}}),
        ("daemonset", "flows-ullage", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}),
        ("contentrepositorynode", object_name("flows", "worker-0"), {"spec": {"cordoned": True}}),
    ]

    def ours() -> dict[str, Any]:
        found = fleet.get(kinds, *here, "--selector=app.kubernetes.io/managed-by=ullage-operator")["items"]
        nodes = [each["spec"] for each in objects(fleet, place).values()]
        parts = ("spec", "data", "rules")
        return {
            **{each["kind"] + each["metadata"]["name"]: [each.get(part) for part in parts] for each in found},
            "nodes": nodes,
        }

    before = ours()
    authority = fleet.get("configmap", "flows-ullage-ca", *here)["data"]
    for kind, name, patch in edits:
        fleet.kubectl("patch", kind, name, *here, "--type=merge", f"--patch={json.dumps(patch)}")
        fleet.kubectl("label", kind, name, *here, "theirs=kept")
    deleted = ["serviceaccount/flows-ullage-agent", "configmap/flows-ullage-ca", "rolebinding/flows-ullage-agent"]
    fleet.kubectl("delete", *deleted, *here)

    operator.until("everything is as it was", lambda: ours() == before)
    operator.until("the deleted are back", lambda: all(_exists(fleet, each, place) for each in deleted))
    assert fleet.get("configmap", "flows-ullage-ca", *here)["data"] == authority
    for kind, name, _ in edits:
        assert fleet.get(kind, name, *here)["metadata"]["labels"]["theirs"] == "kept"


def _exists(fleet: Fleet, name: str, place: str) -> bool:
    return name.split("/")[1] in fleet.kubectl("get", name, "--namespace", place, "--ignore-not-found")


def test_a_watch_that_goes_silent_is_begun_anew(fleet: Fleet, operator: Operator, place: str) -> None:
    """Connections that are neither closed nor answered: what changed meanwhile is found over new ones."""
    relay = fleet.forward(LOOPBACK, fleet.port)
    name = f"forward-{relay}"
    behind = Operator(fleet, QUICK | {"ULLAGE_OPERATOR_SILENCE_SECONDS": "3"}, f"https://127.0.0.1:{relay}")
    operator.end()
    behind.start()
    try:
        behind.runs(place, {"image": "agent:1"})
        os.kill(next(each.pid for each in fleet.instance.state.processes if each.name == name), signal.SIGUSR1)
        log = fleet.instance.log(name)
        fleet.wait_until("it is silent", lambda: "silent" in log.read_text())
        assert int(log.read_text().split()[-1]) > 10  # a watch for each kind

        fleet.apply(repository(place, {"image": "agent:2"}))

        behind.until("the change is seen", lambda: template(fleet, place)["containers"][0]["image"] == "agent:2")
    finally:
        behind.end(signal.SIGKILL)
        fleet.instance.end(name)
        operator.start()


def test_killed_at_random_it_comes_to_the_same_end(fleet: Fleet, operator: Operator, place: str) -> None:
    """SIGKILL amid changes of every sort: at the end everything is as the last wish says, and a deletion ends too."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    here = ("--namespace", place)
    specs: list[dict[str, Any]] = [
        {"image": "agent:1"},
        {"image": "agent:2", "nodeSelector": {"kubernetes.io/hostname": "worker-1"}},
        {"image": "agent:2", "planning": {"schedule": "* * * * *", "image": "spark:1"}},
        {"image": "agent:3", "flowFile": {"partitions": 2}},
    ]
    for spec in specs:
        fleet.apply(repository(place, spec))
        _killed(fleet, operator, chance)

    def is_as_wished() -> bool:
        pods = fleet.get("pods", *here, "--selector=app.kubernetes.io/name=ullage-agent")["items"]
        # A pod that no scheduler has seen yet has no node: then it is not as wished.
        images = {each["spec"].get("nodeName"): each["spec"]["containers"][0]["image"] for each in pods}
        accounts = {each["metadata"]["name"] for each in fleet.get("serviceaccounts", *here)["items"]}
        return (
            images == {f"worker-{number}": "agent:3" for number in range(3)}
            and len(objects(fleet, place)) == 3
            and accounts == {"default", "flows-ullage-agent"}
            and condition(fleet, place, "Reconciling") == "False"
        )

    operator.until("all is as it was last wished for", is_as_wished)
    fleet.kubectl("delete", "contentrepository", "flows", *here, "--wait=false")
    _killed(fleet, operator, chance)
    operator.until("it is gone", lambda: fleet.get("contentrepositories", *here)["items"] == [])
    operator.until("with all that was its", lambda: fleet.get("daemonsets,jobs", *here)["items"] == [])
    assert objects(fleet, place) == {}


def _killed(fleet: Fleet, operator: Operator, chance: random.Random) -> None:
    """At some moment of the next second, amid whatever it is doing."""
    with contextlib.suppress(ClusterError):  # that it waits in vain is the point
        fleet.wait_until("a moment has passed", lambda: False, chance.uniform(0.0, 1.0))
    operator.end(signal.SIGKILL)
    operator.start()
