"""ContentRestores: which node is told to bring a backup back, and what is told of it."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, MINUTE, NOW, changed, decided, fleet, repository
from tests.operator.test_backups import BUCKETS, backup
from ullage.contract import (
    NodeStatus,
    RestoreSpec,
    RestoreStatus,
    RestoreTicket,
    RestoreTicketReport,
    RunPhase,
    TicketState,
    time_of,
)
from ullage_operator.backup.restore import orphaned
from ullage_operator.observation import Observation, RestoreObject
from ullage_operator.repository.decide import Decision

PLACE = "s3://flows/backups/old"


def restore(name: str = "r", created: int = NOW - HOUR, **spec: Any) -> RestoreObject:
    asked = RestoreSpec(**{"repository": "flows", "node": "node-1", "place": PLACE, **spec})
    return RestoreObject(
        name=name, uid=f"uid-{name}", generation=1, created=time_of(created), spec=asked, status=RestoreStatus()
    )


def seeing(*restores: RestoreObject, **fields: Any) -> Observation:
    """Two nodes: the first has a repository; of the second there is no object yet."""
    seen = fleet(2, BUCKETS)
    objects = {"node-0": seen.objects["node-0"]}
    return changed(seen, **{"objects": objects, "restores": restores, "backups": (backup(),), **fields})


def told(decision: Decision, name: str = "r") -> RestoreStatus:
    return decision.restores[name]


def said(status: RestoreStatus) -> str:
    return next(each.reason for each in status.conditions if each.type == "Ready")


def ticket(decision: Decision, node: str = "node-1") -> RestoreTicket | None:
    return decision.nodes[node].restoration


def after(seen: Observation, decision: Decision, status: NodeStatus | None = None) -> Observation:
    """What is seen once that was written, and the second node's agent has written its status."""
    model = seen.objects["node-0"]
    there = {
        node: msgspec.structs.replace(
            seen.objects.get(node, model),
            spec=spec,
            status=seen.objects[node].status if node in seen.objects else NodeStatus(),
        )
        for node, spec in decision.nodes.items()
    }
    if status is not None:
        there["node-1"] = msgspec.structs.replace(there["node-1"], status=status)
    restores = tuple(
        msgspec.structs.replace(each, status=decision.restores.get(each.name, each.status)) for each in seen.restores
    )
    return changed(seen, objects=there, restores=restores, now_millis=seen.now_millis + MINUTE)


def report(state: TicketState, **fields: Any) -> RestoreTicketReport:
    return RestoreTicketReport(id="uid-r", state=state, **fields)


def test_what_is_asked_for_is_told_to_the_node() -> None:
    """A moment, and parts."""
    asked: dict[str, Any] = {"at": "2026-01-31T12:00:00Z", "queues": ("q",), "ids": ("u" * 36,)}
    begun = decided(seeing(restore(**asked)))
    assert ticket(begun) == RestoreTicket(id="uid-r", place=PLACE, generation=1, **asked)
    with pytest.raises(ValueError, match="both say of when"):
        restore(at="2026-01-31T12:00:00Z", generation=1)


def test_a_node_is_told_with_the_first_version_of_its_object() -> None:
    """Its agent asks before it makes a repository, so it never makes an empty one; progress, and the end."""
    seen = seeing(restore())
    begun = decided(seen)
    assert ticket(begun) == RestoreTicket(id="uid-r", place=PLACE, generation=1)
    assert ticket(begun, "node-0") is None
    assert (told(begun).phase, said(told(begun)), told(begun).place) == (RunPhase.RUNNING, "Running", PLACE)

    half = NodeStatus(restoration=report(TicketState.RUNNING, bytes_done=30, bytes=120))
    going = after(seen, begun, half)
    assert told(decided(going)).progress == "25 %"
    done = report(TicketState.COMPLETED, generation=4, lost=2, erased=3, message="lacks two")
    ended = decided(after(going, decided(going), NodeStatus(repository_uuid="u", restoration=done)))
    assert (told(ended).phase, said(told(ended))) == (RunPhase.COMPLETED, "Completed")
    assert (told(ended).generation, told(ended).lost, told(ended).erased) == (4, 2, 3)
    assert ticket(ended) is None


def test_a_backup_is_found_by_its_object_and_the_node_that_wrote_it() -> None:
    """Where that wrote it; by default it is the node itself."""
    for wrote, node in (("", "node-1"), ("node-9", "node-9")):
        decision = decided(seeing(restore(place="", backup="b", from_node=wrote)))
        found = ticket(decision)
        assert found is not None
        assert found.place == f"s3://flows/backups/nightly/data/flows/{node}"


def test_nothing_is_replaced() -> None:
    """Where a repository is, by the node's status, by its agent's word, or because the agent was faster. Once it was
    given up the next object of the node is told.
    """
    seen = seeing(restore(node="node-0"))
    taken = decided(seen)
    assert (told(taken).phase, said(told(taken)), ticket(taken, "node-0")) == (RunPhase.PENDING, "NodeNotEmpty", None)
    rests = after(seen, taken)
    assert "r" not in decided(rests).restores
    given_up = msgspec.structs.replace(rests.objects["node-0"], release=rests.objects["node-0"].uid)
    begun = decided(changed(rests, objects=rests.objects | {"node-0": given_up}))
    found = ticket(begun, "node-0")
    assert found is not None
    assert (found.id, said(told(begun))) == ("uid-r", "Running")
    seen = seeing(restore())
    begun = decided(seen)
    refused = NodeStatus(repository_uuid="u", restoration=report(TicketState.REFUSED))
    for status in (refused, NodeStatus(repository_uuid="u")):
        last = decided(after(seen, begun, status))
        assert (told(last).phase, said(told(last)), ticket(last)) == (RunPhase.PENDING, "NodeNotEmpty", None)


def test_a_node_whose_restoration_failed_stays_told_until_a_person_acts() -> None:
    """Or its agent would make an empty repository; another ContentRestore takes over, and none lets it go."""
    seen = seeing(restore())
    begun = decided(seen)
    failed = NodeStatus(restoration=report(TicketState.FAILED, message="NotABackup: nothing there"))
    after_failure = after(seen, begun, failed)
    ended = decided(after_failure)
    assert (told(ended).phase, said(told(ended)), told(ended).message) == (
        RunPhase.FAILED,
        "Failed",
        "NotABackup: nothing there",
    )
    rests = after(after_failure, ended, failed)
    assert ticket(decided(rests)) == ticket(begun)
    other = restore("s", place=f"{PLACE}/better")
    second = decided(changed(rests, restores=(*rests.restores, other)))
    found = ticket(second)
    assert found is not None
    assert (found.id, found.place) == ("uid-s", f"{PLACE}/better")
    assert ticket(decided(changed(rests, restores=()))) is None


def test_of_two_for_a_node_the_first_is_carried_out() -> None:
    """The other waits, says for whom, and then finds a repository."""
    seen = seeing(restore("a", created=NOW - 2 * HOUR), restore("b"))
    begun = decided(seen)
    assert (said(told(begun, "a")), said(told(begun, "b"))) == ("Running", "Waiting")
    assert "ContentRestore a" in told(begun, "b").message
    done = RestoreTicketReport(id="uid-a", state=TicketState.COMPLETED)
    last = decided(after(seen, begun, NodeStatus(repository_uuid="u", restoration=done)))
    assert (said(told(last, "a")), said(told(last, "b"))) == ("Completed", "NodeNotEmpty")


@pytest.mark.parametrize(
    ("wrong", "reason", "is_stalled"),
    [
        ({"place": "s3://others/b"}, "BucketNotAllowed", True),
        ({"place": "s3://flows/backups-of-others"}, "BucketNotAllowed", True),
        ({"place": "", "backup": "none"}, "NoBackup", True),
        ({"node": "nowhere"}, "Waiting", False),
    ],
)
def test_what_cannot_begin_says_why(wrong: dict[str, Any], reason: str, is_stalled: bool) -> None:
    """And no node is told anything."""
    decision = decided(seeing(restore(**wrong)))
    status = told(decision)

    assert (status.phase, said(status)) == (RunPhase.PENDING, reason)
    assert {each.type for each in status.conditions if each.status == "True"} == (
        {"Stalled"} if is_stalled else {"Reconciling"}
    )
    assert not any(spec.restoration for spec in decision.nodes.values())


def test_a_paused_repository_begins_nothing_and_one_that_is_not_there_is_waited_for() -> None:
    """What has ended stays as it ended."""
    seen = seeing(restore())
    paused = decided(changed(seen, repository=repository(BUCKETS, is_paused=True)))
    assert (said(told(paused)), paused.nodes) == ("HandsOff", {})
    assert (said(orphaned(restore(), NOW)), orphaned(restore(), NOW).phase) == ("NoRepository", RunPhase.PENDING)
    ended = msgspec.structs.replace(restore(), status=RestoreStatus(phase=RunPhase.COMPLETED))
    assert orphaned(ended, NOW) == ended.status
