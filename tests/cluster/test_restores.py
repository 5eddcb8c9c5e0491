"""ContentRestores on a real API server: what is asked for, what nodes are told, and what people see."""

from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.looks import Looks
from tests.cluster.operator_process import Operator, now_text, objects, repository, say, say_ready
from tests.cluster.test_backups import BUCKETS, NODES
from tests.cluster.workloads import backup, restore
from ullage.contract import TABLE

PLACE = "s3://flows/backups/old"


def told(fleet: Fleet, place: str, node: str) -> dict[str, Any]:
    return dict(objects(fleet, place).get(node, {}).get("spec", {}).get("restoration") or {})


@pytest.mark.timeout(600)
def test_a_node_is_told_before_it_begins_and_every_cell_is_met(fleet: Fleet, operator: Operator, place: str) -> None:
    """Restorations wait for their repository, and are in its nodes' objects when these are made; what cannot be is
    refused; docs/conditions.md has all that is said.
    """
    here = ("--namespace", place)
    looks = Looks(fleet, operator, place)
    for wrong in (
        {"backup": "b", "place": PLACE},
        {"place": ""},
        {"place": "/var/lib"},
        {"fromNode": "worker-1"},
        {"backup": "b", "fromNode": "../../other"},
        {"at": "2026-01-31T12:00:00Z", "generation": 1},
        {"at": "yesterday"},
        {"ids": ["not-a-uuid"]},
    ):
        with pytest.raises(ClusterError, match="ContentRestore"):
            fleet.apply(restore(place, "wrong", "worker-0", **wrong))
    fleet.apply(restore(place, "first", "worker-0"), restore(place, "second", "worker-1"))
    looks.until("first", "Ready NoRepository", "Reconciling NoRepository", "Stalled Working")

    fleet.apply(repository(place, BUCKETS))
    looks.agents("flows")
    given = {node: told(fleet, place, node) for node in NODES}
    assert [given[node].get("place") for node in NODES] == [PLACE, PLACE, None]
    looks.until("first", "Ready Running", "Reconciling Running", words="worker-0")
    with pytest.raises(ClusterError, match="immutable"):
        fleet.apply(restore(place, "first", "worker-0", place=f"{PLACE}/other"))

    report = {"id": given["worker-0"]["id"], "state": "Running", "bytesDone": 10, "bytes": 40}
    say(fleet, place, "contentrepositorynode", "flows--worker-0", {"restoration": report})
    operator.until("its progress is told", lambda: "25 %" in fleet.kubectl("get", "contentrestores", *here))
    say_ready(fleet, place, "worker-0", restoration={**report, "state": "Completed", "ended": now_text()})
    looks.until("first", "Ready Completed", "Reconciling Ended")
    operator.until("it is told no more", lambda: told(fleet, place, "worker-0") == {})
    failed = {"id": given["worker-1"]["id"], "state": "Failed", "message": "NotABackup: nothing there"}
    say(fleet, place, "contentrepositorynode", "flows--worker-1", {"restoration": failed})
    looks.until("second", "Ready Failed", "Stalled Failed", words="NotABackup")
    assert told(fleet, place, "worker-1") == given["worker-1"]

    say_ready(fleet, place, "worker-2")
    fleet.apply(
        backup(place),
        restore(place, "late", "worker-2"),
        restore(place, "nowhere", "no-such-node"),
        restore(place, "other", "worker-1", place="s3://others/b"),
        restore(place, "none", "worker-1", backup="no-such-backup"),
    )
    looks.until("late", "Ready NodeNotEmpty", "Stalled NodeNotEmpty", words="release")
    assert "NodeNotEmpty" in fleet.kubectl("get", "contentrestore", "late", *here)
    looks.until("nowhere", "Ready Waiting", "Reconciling Waiting", words="no-such-node")
    looks.until("other", "Ready BucketNotAllowed", "Stalled BucketNotAllowed")
    looks.until("none", "Ready NoBackup", "Stalled NoBackup", "Reconciling HandsOff")
    with pytest.raises(ClusterError, match=r"spec\.generation"):
        fleet.apply(restore(place, "wrong", "worker-1", backup="nightly", generation=0))
    asked = {"queues": ["q"], "ids": ["6b4c2f6e-0000-4000-8000-000000000000"]}
    fleet.apply(restore(place, "again", "worker-1", backup="nightly", generation=7, **asked))
    mine = f"s3://flows/backups/{place}/flows/worker-1"
    operator.until("another place", lambda: told(fleet, place, "worker-1")["place"] == mine)
    again = told(fleet, place, "worker-1")
    assert (again["backupGeneration"], again["queues"], again["ids"]) == (7, asked["queues"], asked["ids"])
    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", *here)
    looks.until("again", "Ready HandsOff", "Stalled HandsOff")

    table = {("ContentRestore", row.type, cell.reason) for row in TABLE["ContentRestore"] for cell in row.cells}
    assert table - looks.cells == set()
