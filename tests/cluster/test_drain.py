"""Nodes that are drained, on a real API server with the operator and `kubectl ullage drain`; agents are played."""

import json
from collections.abc import Callable
from typing import Any

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, now_text, objects, repository, say_ready
from tests.cluster.test_kubectl import Person
from tests.cluster.test_kubectl_backup import finished
from ullage.contract import DRAIN, object_name
from ullage_agent.cli.exits import ExitCode
from ullage_operator.agents.guards import GUARD_LABEL

NODE = "worker-0"


def draining(fleet: Fleet, place: str, node: str = NODE) -> bool:
    return bool(objects(fleet, place)[node]["spec"].get("draining"))


def test_a_cordoned_node_is_drained_where_it_can_be_shipped(fleet: Fleet, operator: Operator, place: str) -> None:
    """As soon as the repository ships; uncordoned it takes content again."""
    operator.runs(place)
    fleet.kubectl("cordon", NODE)
    try:
        operator.until("the cordon is seen", lambda: objects(fleet, place)[NODE]["spec"].get("cordoned", False))
        assert not draining(fleet, place)
        fleet.apply(repository(place, {"replication": {"mode": "Async", "url": "s3://flows/r"}}))
        operator.until("it is drained", lambda: draining(fleet, place))
        assert not draining(fleet, place, "worker-1")
    finally:
        fleet.kubectl("uncordon", NODE)
    operator.until("it is drained no more", lambda: not draining(fleet, place))


def test_a_guard_keeps_a_node_until_it_is_drained(fleet: Fleet, operator: Operator, place: str) -> None:
    """`kubectl drain` is refused its eviction; once the agent has shipped everything the pod is gone, and the other
    node's is not.
    """
    operator.runs(place, {"replication": {"guard": True}})
    for node in (NODE, "worker-1"):
        say_ready(fleet, place, node, repositoryUuid=node)

    def guards() -> dict[str, str]:
        found = fleet.get("pods", "--namespace", place, "--selector", GUARD_LABEL)["items"]
        return {each["spec"]["nodeName"]: each["metadata"]["name"] for each in found if "nodeName" in each["spec"]}

    operator.until("both are guarded", lambda: set(guards()) == {NODE, "worker-1"})
    pod = guards()[NODE]
    tried = {"deleteOptions": {"dryRun": ["All"]}, "metadata": {"name": pod, "namespace": place}}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", **tried}
    where = f"/api/v1/namespaces/{place}/pods/{pod}/eviction"
    operator.until("the budget counts it", lambda: _is_refused(fleet, where, body))

    name = object_name("flows", NODE)
    fleet.kubectl("annotate", "contentrepositorynode", name, f"{DRAIN}=true", "--namespace", place)
    operator.until("it is drained", lambda: draining(fleet, place))
    generation = objects(fleet, place)[NODE]["metadata"]["generation"]
    say_ready(fleet, place, NODE, **_says("True", "Shipped", observedGeneration=generation))
    operator.until("it may go", lambda: set(guards()) == {"worker-1"})


def _is_refused(fleet: Fleet, where: str, body: dict[str, Any]) -> bool:
    """The budget's controller has to have seen the pod; until then nothing is evicted either, for another reason."""
    try:
        fleet.kubectl("create", "--raw", where, "--filename", "-", stdin=json.dumps(body))
    except ClusterError as error:
        return "would violate" in str(error)
    return False


def test_whoever_drains_a_node_learns_when_it_may_go(fleet: Fleet, operator: Operator, place: str) -> None:
    """What the agent said before it was told to drain does not count; a sole copy ends the waiting with a code."""
    person = Person(fleet, place, fleet.kubeconfig)
    operator.runs(place)
    say_ready(fleet, place, NODE, **_says("True", "Shipped", observedGeneration=1))
    assert "no repository of namespace" in person.says("drain", "nowhere", code=ExitCode.NOT_FOUND)

    def play(status: str, reason: str, **more: Any) -> Callable[[], None]:
        def done() -> None:
            operator.until("it is drained", lambda: draining(fleet, place))
            generation = objects(fleet, place)[NODE]["metadata"]["generation"]
            say_ready(fleet, place, NODE, **_says(status, reason, observedGeneration=generation, **more))

        return done

    code, said, complaints = finished(operator, person, "drain", NODE, play=play("True", "Shipped"))
    assert (code, f"{NODE} takes nothing new" in complaints) == (0, True), complaints
    assert said.splitlines()[-1] == "drained: nothing is lost with the node"
    play("False", "SoleCopy", soleCopyBytes=7)()
    alone = person.runs("ullage", "drain", NODE, "-n", place, "-o", "json")
    [told] = json.loads(alone.stdout)["repositories"]
    assert (alone.returncode, told["reason"], told["soleCopyBytes"]) == (ExitCode.CLOSED, "SoleCopy", 7)
    play("False", "Shipping")()
    assert "flows (Shipping)" in person.says("drain", NODE, "--timeout", "0", code=ExitCode.UNREACHABLE)

    person.says("drain", NODE, "--undo")
    operator.until("it is drained no more", lambda: not draining(fleet, place))


def _says(status: str, reason: str, **more: Any) -> dict[str, Any]:
    now = now_text()
    said = [("Ready", "True", "Serves"), ("Drained", status, reason)]
    conditions = [{"type": t, "status": s, "reason": r, "lastTransitionTime": now} for t, s, r in said]
    return {"conditions": conditions, **more}
