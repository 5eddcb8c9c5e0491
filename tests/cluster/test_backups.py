"""ContentBackups on a real API server: what is asked for, what nodes are told, and what people see."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.looks import Looks
from tests.cluster.operator_process import Operator, now_text, objects, repository, say, say_ready
from tests.cluster.workloads import backup
from ullage.contract import TABLE

NODES = ("worker-0", "worker-1", "worker-2")
BUCKETS = {
    "service": {
        "backupBuckets": [
            {"url": "s3://flows/backups", "endpoint": "https://s3.example.com", "credentialsSecret": "s3"}
        ]
    }
}


def status(fleet: Fleet, place: str, name: str = "nightly") -> dict[str, Any]:
    return dict(fleet.get("contentbackup", name, "--namespace", place).get("status") or {})


def ready(fleet: Fleet, place: str, name: str = "nightly") -> str:
    return next((c["reason"] for c in status(fleet, place, name).get("conditions", ()) if c["type"] == "Ready"), "")


def tickets(fleet: Fleet, place: str) -> dict[str, Mapping[str, Any]]:
    return {node: found["spec"]["backup"] for node, found in objects(fleet, place).items() if "backup" in found["spec"]}


def report(ticket: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What an agent would write of it."""
    counts = {"generation": 1, "filesDone": 4, "files": 4, "bytesDone": 1000, "bytes": 1000}
    return {"id": ticket["id"], "state": "Completed", "started": now_text(), "ended": now_text(), **counts, **more}


def events(fleet: Fleet, place: str) -> set[str]:
    found = fleet.get("events", "--namespace", place)["items"]
    return {each["reason"] for each in found if each["involvedObject"]["kind"] == "ContentBackup"}


def test_a_backup_is_written_by_every_node_and_told(fleet: Fleet, operator: Operator, place: str) -> None:
    """With the bucket's Secret in their pods; phase, sums, results, columns and events; none is begun again."""
    here = ("--namespace", place)
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(backup(place, keep={"daily": 7}))
    operator.until("each node has its part", lambda: set(tickets(fleet, place)) == set(NODES))
    given = tickets(fleet, place)
    assert {node: each["place"] for node, each in given.items()} == {
        node: f"s3://flows/backups/{place}/flows/{node}" for node in NODES
    }
    assert all(each["keep"]["daily"] == 7 for each in given.values())
    assert status(fleet, place)["phase"] == "Running"

    for node in NODES[:2]:
        say_ready(fleet, place, node, backup=report(given[node]))
    operator.until("two are done", lambda: status(fleet, place)["nodesDone"] == 2)
    assert "worker-2" in status(fleet, place)["message"]
    failed = report(given["worker-2"], state="Failed", message="BucketRefused: s3://flows: AccessDenied")
    say_ready(fleet, place, "worker-2", backup=failed)
    operator.until("it has failed", lambda: status(fleet, place)["phase"] == "Failed")
    told = status(fleet, place)
    assert (told["nodesFailed"], told["files"], told["bytes"]) == (1, 12, 3000)
    assert "AccessDenied" in told["message"]
    assert [each["node"] for each in told["results"]] == ["worker-2", "worker-0", "worker-1"]
    operator.until("people are told", lambda: "ReadyFalse" in events(fleet, place))
    shown = fleet.kubectl("get", "contentbackups", *here)
    columns = ["NAME", "REPOSITORY", "PHASE", "CURRENT", "VERIFIED", "NODES DONE", "NODES", "LAST SUCCESS", "NEXT RUN"]
    assert shown.split()[:12] == " ".join(columns).split()
    wide = fleet.kubectl("get", "contentbackups", *here, "-o", "wide")
    assert {"REASON", "SCHEDULE", "BUCKET"} <= set(wide.split())
    assert "Failed" in shown
    template = fleet.get("daemonset", "flows-ullage", *here)["spec"]["template"]["spec"]
    [mount] = [m for m in template["containers"][0]["volumeMounts"] if m["mountPath"] == "/etc/ullage/buckets/s3"]
    [volume] = [v for v in template["volumes"] if v["name"] == mount["name"]]
    assert (volume["secret"]["secretName"], mount["readOnly"]) == ("flows-ullage-bucket-s3", True)
    config = fleet.get("configmap", "flows-ullage", *here)["data"]["contentrepository.yaml"]
    assert "/etc/ullage/buckets/s3/credentials" in config

    with pytest.raises(ClusterError, match="immutable"):
        fleet.apply(backup(place, bucket="s3://flows/backups/elsewhere"))
    with pytest.raises(ClusterError, match=r"spec\.bucket"):
        fleet.apply(backup(place, "wrong", bucket="/var/lib"))


def test_a_schedule_is_kept_and_what_stands_in_the_way_is_said(fleet: Fleet, operator: Operator, place: str) -> None:
    """The next time; suspended; a bucket that the repository has not; a repository that is not there; deleted."""
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(backup(place, schedule="0 3 * * *", timeZone="Europe/Berlin"))
    operator.until("its next time is told", lambda: "nextRun" in status(fleet, place))
    following = datetime.fromisoformat(status(fleet, place)["nextRun"])
    assert timedelta() < following - datetime.now(UTC) <= timedelta(days=1)
    fleet.apply(backup(place, schedule="0 3 * * *", timeZone="Europe/Berlin", suspend=True))
    operator.until("it is suspended", lambda: ready(fleet, place) == "Suspended")
    assert "nextRun" not in status(fleet, place)

    fleet.apply(
        backup(place, "other", bucket="s3://others/b"),
        backup(place, "alone", repository="none"),
        backup(place, "wrong", schedule="61 * * * *"),
    )
    operator.until("the bucket is not allowed", lambda: ready(fleet, place, "other") == "BucketNotAllowed")
    operator.until("there is no repository", lambda: ready(fleet, place, "alone") == "NoRepository")
    operator.until("there is no such time", lambda: ready(fleet, place, "wrong") == "InvalidSchedule")
    assert tickets(fleet, place) == {}

    fleet.apply(backup(place, "now"))
    operator.until("it has begun", lambda: set(tickets(fleet, place)) == set(NODES))
    fleet.kubectl("delete", "contentbackup", "now", "--namespace", place)
    operator.until("it is called off", lambda: tickets(fleet, place) == {})


def test_another_operator_begins_nothing_twice(fleet: Fleet, operator: Operator, place: str) -> None:
    """One that is killed between the begin and the end of a run leaves it to the next, which sees it end."""
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(backup(place))
    operator.until("it has begun", lambda: set(tickets(fleet, place)) == set(NODES))
    before = tickets(fleet, place)
    operator.end(9)
    operator.start()
    for node in NODES:
        say(fleet, place, "contentrepositorynode", f"flows--{node}", {"backup": report(before[node])})
    operator.until("it has ended", lambda: status(fleet, place).get("phase") == "Completed")
    assert tickets(fleet, place) == before
    assert "lastSuccess" in status(fleet, place)


@pytest.mark.timeout(600)
def test_every_cell_of_the_table_is_reached(fleet: Fleet, operator: Operator, place: str) -> None:
    """Of docs/conditions.md, what a ContentBackup can say: each is said by the operator of something that happened."""
    looks = Looks(fleet, operator, place)
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(backup(place, "first"))
    looks.until(
        "first", "Ready Running", "Reconciling Running", "Stalled Working", "BackupCurrent Never", words="worker-0"
    )
    fleet.apply(backup(place, "second"))
    looks.until("second", "Ready Waiting", "Reconciling Waiting", words="Another backup")
    _end(fleet, place)
    looks.until("first", "Ready Completed", "Reconciling Ended", "BackupCurrent Current")
    looks.until("second", "Ready Running")
    _end(fleet, place, state="Failed", message="BucketUnavailable: nobody answers")
    looks.until("second", "Ready Failed", "Stalled Failed", "BackupCurrent Never", words="nobody answers")
    fleet.apply(backup(place, "late", activeDeadlineSeconds=1))
    looks.until("late", "Ready DeadlineExceeded", "Stalled DeadlineExceeded", words="worker-0")

    fleet.apply(
        backup(place, "other", bucket="s3://others/b"),
        backup(place, "alone", repository="none"),
        backup(place, "wrong", schedule="0 2 * * *", timeZone="Nowhere"),
        backup(place, "old", schedule="0 2 * * *", suspend=True),
        repository(place, {**BUCKETS, "nodeSelector": {"nobody": "has"}}, "empty"),
        backup(place, "nowhere", repository="empty"),
    )
    looks.until("other", "Ready BucketNotAllowed", "Stalled BucketNotAllowed", "Reconciling HandsOff")
    looks.until("alone", "Ready NoRepository", "Stalled NoRepository")
    looks.until("wrong", "Ready InvalidSchedule", "Stalled InvalidSchedule", words="Nowhere")
    looks.until("old", "Ready Suspended", "Stalled Suspended", "BackupCurrent Never")
    looks.until("nowhere", "Ready NoNodes", "Stalled NoNodes")
    say(fleet, place, "contentbackup", "old", {"lastSuccess": "2026-01-01T02:00:00Z"})
    looks.until("old", "BackupCurrent Old")
    operator.until("people are told", lambda: "BackupCurrentFalse" in events(fleet, place))
    assert operator.gauge("backup_current", backup="old") == 0.0
    assert operator.gauge("backup_current", backup="first") == 1.0
    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", "--namespace", place)
    looks.until("old", "Ready HandsOff", "Stalled HandsOff")

    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused-", "--namespace", place)
    _verify(fleet, operator, looks, place)

    table = {("ContentBackup", row.type, cell.reason) for row in TABLE["ContentBackup"] for cell in row.cells}
    assert table - looks.cells == set()


def _verify(fleet: Fleet, operator: Operator, looks: Looks, place: str) -> None:
    """Each thing that a verification can come to, of one that follows the backup."""
    uid = ""

    def asked() -> dict[str, Mapping[str, Any]]:
        found = {node: each["spec"].get("verification") for node, each in objects(fleet, place).items()}
        return {node: ticket for node, ticket in found.items() if ticket and uid in ticket["id"]}

    def end(number: int, **more: Any) -> None:
        fleet.apply(backup(place, f"v{number}", verify={"samplePercentage": 100}))
        nonlocal uid
        uid = fleet.get("contentbackup", f"v{number}", "--namespace", place)["metadata"]["uid"]
        operator.until("it is written", lambda: any(uid in each["id"] for each in tickets(fleet, place).values()))
        _end(fleet, place)
        operator.until("it is read", lambda: set(asked()) == set(NODES))
        counts = {"generations": 1, "needed": 4, "filesDone": 4, "files": 4, "bytesDone": 9, "bytes": 9}
        said = {"state": "Completed", "ended": now_text(), "damaged": 0, "message": "", **counts}
        for node, ticket in asked().items():
            told = {**said, "id": ticket["id"], **(more if node == NODES[1] else {})}
            say_ready(fleet, place, node, verification=told)

    looks.until("first", "BackupVerified NotAsked")
    end(1)
    looks.until("v1", "BackupVerified Whole", "BackupCurrent Current")
    assert {ticket["samplePercentage"] for ticket in asked().values()} == {100}
    end(2, damaged=1, message="content/c1/1: it is missing")
    looks.until("v2", "BackupVerified Damaged", "BackupCurrent Damaged", words="worker-1: content/c1/1: it is missing")
    assert status(fleet, place, "v2")["verification"]["results"][0]["node"] == "worker-1"
    operator.until("people are told", lambda: "BackupVerifiedFalse" in events(fleet, place))
    assert [operator.gauge("backup_damaged", backup=name) for name in ("v1", "v2")] == [0.0, 1.0]
    end(3, state="Failed", message="BucketUnavailable: nobody answers")
    looks.until("v3", "BackupVerified Failed", "BackupCurrent Current", words="nobody answers")
    assert [operator.gauge("backup_verified", backup=name) for name in ("v2", "v3")] == [1.0, 0.0]
    fleet.apply(backup(place, "never", suspend=True, verify={"schedule": "0 2 * * *"}))
    looks.until("never", "BackupVerified Never")
    fleet.apply(backup(place, "bad", suspend=True, verify={"schedule": "61 * * * *"}))
    looks.until("bad", "BackupVerified InvalidSchedule")
    fleet.apply(backup(place, "late-one", suspend=True, verify={"schedule": "* * * * *"}))
    # The operator's first word of it first: one that was on its way would take back what is said here.
    looks.until("late-one", "BackupVerified Never")
    say(fleet, place, "contentbackup", "late-one", {"verification": {"lastCompleted": "2026-01-01T02:00:00Z"}})
    looks.until("late-one", "BackupVerified Old")


def _end(fleet: Fleet, place: str, **more: Any) -> None:
    """What agents write of their parts."""
    for node, ticket in tickets(fleet, place).items():
        say_ready(fleet, place, node, backup=report(ticket, **more))
