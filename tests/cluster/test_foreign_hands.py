"""What people and agents write where the operator writes too, on a real API server: it is put right, or it is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, condition, done_by, now_text, objects, repository, say, say_ready
from tests.cluster.workloads import run
from ullage.contract import object_name

NODES = ("worker-0", "worker-1", "worker-2")
FOREVER = {"id": "theirs", "operations": ["Rewrite"], "generation": 1} | {
    name: f"{year}-01-01T00:00:00Z" for name, year in (("notBefore", 2020), ("notAfter", 2090))
}
"""A ticket that nobody gave."""


def patch(fleet: Fleet, place: str, what: str, changes: dict[str, Any]) -> None:
    """As `kubectl edit` does it, by whoever may."""
    fleet.kubectl("patch", *what.split(), "--type=merge", f"--patch={json.dumps(changes)}", "--namespace", place)


def ticket(fleet: Fleet, place: str, node: str) -> dict[str, Any]:
    found: dict[str, Any] = objects(fleet, place)[node]["spec"].get("ticket") or {}
    return found


@pytest.fixture
def ready(fleet: Fleet, operator: Operator, place: str) -> Callable[[], bool]:
    """A repository whose three agents serve; whether it still says so."""

    def is_ready() -> bool:
        return condition(fleet, place, "Ready") == "True"

    operator.runs(place)
    for node in NODES:
        say_ready(fleet, place, node)
    operator.until("it is ready", is_ready)
    return is_ready


def test_a_ticket_that_somebody_wrote_is_taken_back(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """Whole, or one field of ours: an agent would obey it after its window, and after its run is gone."""
    theirs, ours = (f"contentrepositorynode {object_name('flows', node)}" for node in NODES[:2])
    say_ready(fleet, place, NODES[0])
    patch(fleet, place, theirs, {"spec": {"ticket": FOREVER}, "metadata": {"labels": None}})
    operator.until("it is taken back", lambda: not ticket(fleet, place, NODES[0]))
    operator.until("it has its labels", lambda: "labels" in objects(fleet, place)[NODES[0]]["metadata"])

    fleet.apply(run(place, NODES[1]))
    operator.until("it has a ticket", lambda: bool(ticket(fleet, place, NODES[1])))
    patch(fleet, place, ours, {"spec": {"ticket": {"reason": "mine"}}})
    fleet.kubectl("delete", "reclamationrun", "now", "--namespace", place)
    operator.until("nothing of it is left", lambda: not ticket(fleet, place, NODES[1]))
    assert condition(fleet, place, "Stalled") == "False"


def test_an_object_gets_its_owner_back(fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]) -> None:
    """It is ours by its labels and our mark, and nobody else has it."""

    def owners() -> list[str]:
        found = fleet.get("configmap", "flows-ullage", "--namespace", place)["metadata"]
        return [each["name"] for each in found.get("ownerReferences") or ()]

    patch(fleet, place, "configmap flows-ullage", {"metadata": {"ownerReferences": None}})

    operator.until("it has its owner", lambda: owners() == ["flows"])
    assert condition(fleet, place, "Stalled") == "False"


def test_a_run_that_is_made_again_is_another(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """Under the same name, at once: what a node has reported of the first one says nothing of it."""
    given: list[str] = []
    over = ("reclamationrun", "now", "--namespace", place)
    for _ in range(2):
        fleet.apply(run(place, NODES[0]))
        operator.until("it has a ticket", lambda: ticket(fleet, place, NODES[0]).get("id", "") not in ("", *given))
        found = ticket(fleet, place, NODES[0])
        given.append(found["id"])
        say_ready(fleet, place, NODES[0], ticket=done_by(found, ended=now_text()))
        operator.until("it is over", lambda: fleet.get(*over).get("status", {}).get("phase") == "Completed")
        fleet.kubectl("delete", *over)


def test_words_of_an_agent_harm_its_own_node_alone(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """Characters of all planes are told as they came; so are times that no calendar has, or that are yet to come."""
    words = "the disk \U0001f4a9 of \x85\u2028\ufeff"
    said = [
        {"type": "Ready", "status": "False", "reason": "Stopped", "message": words, "lastTransitionTime": now_text()}
    ]
    say_ready(fleet, place, NODES[0], conditions=said)
    operator.until("it is told", lambda: words in _message(fleet, place))

    for heartbeat, told in (("2026-99-99T99:99:99Z", "cannot be read"), ("2990-01-01T00:00:00Z", "yet to come")):
        status = {"heartbeat": heartbeat, "repositoryUuid": "u"}
        say(fleet, place, "contentrepositorynode", object_name("flows", NODES[0]), status)
        operator.until("it is told", lambda told=told: told in _message(fleet, place))  # type: ignore[misc]
        assert condition(fleet, place, "Reachable") != "True"
        assert condition(fleet, place, "Stalled") == "False"


def test_a_pod_with_an_address_of_its_machine_alone_harms_its_own_node_alone(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """The API server takes no list of addresses with such a one in it: the others are written."""
    here = ("--namespace", place)
    pods = {each["spec"]["nodeName"]: each["metadata"]["name"] for each in fleet.get("pods", *here)["items"]}
    say(fleet, place, "pod", pods[NODES[0]], {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})

    def served() -> set[str]:
        slices = fleet.get("endpointslices", *here, "--selector=kubernetes.io/service-name=flows-nodes")["items"]
        return {each["nodeName"] for found in slices for each in found.get("endpoints") or ()}

    operator.until("it is told", lambda: "by the address 127.0.0.1" in _message(fleet, place))
    operator.until("the others are served", lambda: served() == set(NODES[1:]))
    assert condition(fleet, place, "Stalled") == "False"


def _message(fleet: Fleet, place: str) -> str:
    found = fleet.get("contentrepository", "flows", "--namespace", place)["status"]["conditions"]
    return " ".join(each.get("message", "") for each in found if each["type"] in ("Ready", "Reachable"))


def test_an_object_under_another_name_hides_none(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """One that somebody made for the same node, as a copy or a restored one."""
    found = objects(fleet, place)[NODES[0]]
    copy = {**found, "metadata": {"name": "zzz", "namespace": place, "labels": found["metadata"]["labels"]}}
    fleet.apply({key: value for key, value in copy.items() if key != "status"})

    fleet.apply(repository(place, {"archive": {"partial": True}}))
    operator.until("that is told", lambda: condition(fleet, place, "Applied") == "False")
    for node in NODES:
        say_ready(fleet, place, node)

    operator.until("it is ready", ready)
    operator.until("all have it", lambda: condition(fleet, place, "Applied") == "True")


HELD: Final = "operator.ullage.dev/content"


def _is_there(fleet: Fleet, place: str, name: str) -> bool:
    found = fleet.get("contentrepositorynodes", "--namespace", place)["items"]
    return name in {each["metadata"]["name"] for each in found}


def test_the_object_of_a_node_that_left_stays_until_its_content_is_given_up(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """Whoever deletes it is told at the object, and everybody at the repository, what to do; the way out works, and its
    finalizer comes back when somebody takes it off. That of a node that is there and holds nothing is made anew.
    """
    here, name, empty = ("--namespace", place), object_name("flows", "gone-0"), object_name("flows", "gone-1")
    fleet.add_nodes(2, "gone")
    try:
        operator.until("they have objects", lambda: {"gone-0", "gone-1"} <= set(objects(fleet, place)))
        first = objects(fleet, place)["gone-1"]["metadata"]["uid"]
        fleet.kubectl("delete", "contentrepositorynode", empty, *here, "--timeout=30s")
        operator.until("it is another", lambda: objects(fleet, place)["gone-1"]["metadata"]["uid"] != first)
        say_ready(fleet, place, "gone-0")
        patch(fleet, place, f"contentrepositorynode {name}", {"metadata": {"finalizers": None}})
        operator.until("it is held again", lambda: _finalizers(fleet, place, "gone-0") == [HELD])
    finally:
        fleet.kubectl("delete", "nodes", "gone-0", "gone-1")
    operator.until("it is told", lambda: condition(fleet, place, "Reachable") == "False")
    operator.until("what holds nothing is gone", lambda: not _is_there(fleet, place, empty))

    fleet.kubectl("delete", "contentrepositorynode", name, *here, "--wait=false")

    uid = objects(fleet, place)["gone-0"]["metadata"]["uid"]
    operator.until("it is told", lambda: "ObjectDeleted" in _reasons(fleet, place))
    told = ("events", *here, "--field-selector=reason=ContentKept")
    operator.until(
        "at the object too", lambda: [e["involvedObject"]["uid"] for e in fleet.get(*told)["items"]] == [uid]
    )
    assert objects(fleet, place)["gone-0"]["status"]["repositoryUuid"] == "u"
    fleet.kubectl("annotate", "contentrepositorynode", name, f"ullage.dev/release={uid}", *here)
    operator.until("it is gone", lambda: not _is_there(fleet, place, name))
    operator.until("all is well", lambda: "ObjectDeleted" not in _reasons(fleet, place))


def _finalizers(fleet: Fleet, place: str, node: str) -> list[str]:
    found: list[str] = objects(fleet, place)[node]["metadata"].get("finalizers", [])
    return found


def _reasons(fleet: Fleet, place: str) -> set[str]:
    found = fleet.get("contentrepository", "flows", "--namespace", place)["status"]["conditions"]
    return {each["reason"] for each in found}


def test_an_object_that_stands_for_no_node_of_a_repository_is_let_go(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """A copy under another name, or for another repository, finalizer included; and all of them by who uninstalls the
    operator, when somebody has taken the repository away by its finalizer while none ran: their namespace can end.
    """
    here, found = ("--namespace", place), objects(fleet, place)[NODES[0]]
    for name, whose in (("zzz", "flows"), (object_name("nobody", NODES[0]), "nobody")):
        copy = {"name": name, "namespace": place, "finalizers": found["metadata"]["finalizers"]}
        spec = {**found["spec"], "repository": whose}
        fleet.apply({"apiVersion": found["apiVersion"], "kind": found["kind"], "spec": spec, "metadata": copy})
        fleet.kubectl("delete", "contentrepositorynode", name, *here, "--timeout=30s")

    operator.end()
    fleet.kubectl("delete", "contentrepository", "flows", *here, "--wait=false")
    patch(fleet, place, "contentrepository flows", {"metadata": {"finalizers": None}})
    fleet.wait_until("it is gone", lambda: fleet.get("contentrepositories", *here)["items"] == [])
    fleet.kubectl("delete", "contentrepositorynodes", "--all", *here, "--wait=false")
    assert set(objects(fleet, place)) == set(NODES)

    command = [sys.executable, "-m", "ullage_operator.uninstall", "Refuse", "10", place]
    subprocess.run(command, env={**os.environ, "KUBECONFIG": str(fleet.kubeconfig)}, check=True, timeout=60)

    assert objects(fleet, place) == {}
    operator.start()


def test_what_lost_its_labels_goes_with_its_repository(
    fleet: Fleet, operator: Operator, place: str, ready: Callable[[], bool]
) -> None:
    """What is left of it would be in the way of the next one of this name, and its directory would never be emptied."""
    operator.end()
    name = object_name("flows", NODES[0])
    patch(fleet, place, f"contentrepositorynode {name}", {"metadata": {"labels": None}})
    fleet.kubectl("delete", "contentrepository", "flows", "--wait=false", "--namespace", place)
    operator.start()

    kinds = "contentrepositories,contentrepositorynodes"
    operator.until("nothing is left", lambda: fleet.get(kinds, "--namespace", place)["items"] == [])
