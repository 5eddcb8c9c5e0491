"""`kubectl ullage backup` and `restore` as people run them, on a real API server and operator; agents are played."""

import json
import os
import re
import signal
from typing import Any

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, objects, repository, say, say_ready
from tests.cluster.test_backups import BUCKETS, NODES, report, tickets
from tests.cluster.test_kubectl import Person
from tests.cluster.test_restores import told
from tests.cluster.workloads import backup
from ullage_agent.cli.exits import ExitCode


def finished(operator: Operator, person: Person, *words: str, play: Any) -> tuple[int, str, str]:
    """What a command says and how it ends, while somebody plays the agents."""
    with person.begins("ullage", *words, "-n", person.place) as asking:
        try:
            play()
            said, complaints = asking.communicate(timeout=60)
        finally:
            asking.kill()
    return asking.returncode, said, complaints


def test_a_backup_is_asked_for_and_followed(fleet: Fleet, operator: Operator, place: str) -> None:
    """Where its schedule writes to; what each node did, and the code that scripts go by."""
    person = Person(fleet, place, fleet.kubeconfig)
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    assert "cannot begin: s3://others/b lies in none" in person.says(
        "backup", "flows", "--to", "s3://others/b", code=ExitCode.CLOSED
    )
    fleet.apply(backup(place, bucket="s3://flows/backups/nightly", schedule="0 2 * * *", suspend=True))

    def play(**more: Any) -> None:
        operator.until("each node has its part", lambda: _not_done(fleet, place) == set(NODES))
        for node, ticket in tickets(fleet, place).items():
            say_ready(fleet, place, node, backup=report(ticket, **{"damaged": 0, "message": "", **more}))

    code, said, complaints = finished(operator, person, "backup", "flows", play=play)
    assert (code, re.search(r"contentbackup/flows-\w+ asked for", complaints) is not None) == (0, True), complaints
    assert "completed: 3 of 3 nodes, 2.9 KiB copied" in said
    assert re.search(r"worker-1 +Completed +1 +4", said)
    assert {each["place"].rpartition("/flows/")[0] for each in tickets(fleet, place).values()} == {
        f"s3://flows/backups/nightly/{place}"
    }
    for more, expected in (
        ({"state": "Failed", "message": "BucketRefused: no"}, ExitCode.CLOSED),
        ({"damaged": 1, "message": "not in the backup: 2"}, ExitCode.INCOMPLETE),
    ):
        code, said, _ = finished(operator, person, "backup", "flows", "-o", "json", play=lambda more=more: play(**more))
        assert (code, json.loads(said)["results"][0]["report"]["message"]) == (expected, more["message"])
    fleet.apply(backup(place, "weekly", bucket="s3://flows/backups/w", schedule="0 2 * * 0", suspend=True))
    both = "say which with --to: s3://flows/backups/nightly, s3://flows/backups/w"
    assert both in person.says("backup", "flows", code=ExitCode.USAGE)


def test_who_waits_for_a_backup_no_longer_is_told_how_to_stop_it(fleet: Fleet, operator: Operator, place: str) -> None:
    """After Ctrl-C it goes on."""
    person = Person(fleet, place, fleet.kubeconfig)
    operator.runs(place, BUCKETS)
    with person.begins("ullage", "backup", "flows", "--to", "s3://flows/backups", "-n", place) as asking:
        operator.until("it has begun", lambda: set(tickets(fleet, place)) == set(NODES))
        os.killpg(asking.pid, signal.SIGINT)
        _, complaints = asking.communicate(timeout=60)
    assert asking.returncode == ExitCode.INTERRUPTED
    stop = re.search(r"`kubectl (delete contentbackup flows-\w+ -n \S+)` stops it", complaints)
    assert stop is not None, complaints
    assert set(tickets(fleet, place)) == set(NODES)
    assert "deleted" in person.runs(*stop[1].split()).stdout
    operator.until("it is called off", lambda: tickets(fleet, place) == {})


def test_a_restoration_is_asked_for_before_its_repository_and_followed(
    fleet: Fleet, operator: Operator, place: str
) -> None:
    """Of one place or one ContentBackup, not of both; to a node that has a repository it cannot begin."""
    person = Person(fleet, place, fleet.kubeconfig)
    both = ("--backup", "b", "--place", "s3://flows/backups/x")
    wrong: list[tuple[str, ...]] = [(), both, ("--from-node", "n", "--place", "s3://a/b")]
    for words in wrong:
        assert "say --backup" in person.says("restore", "flows", "--node", "worker-0", *words, code=ExitCode.USAGE)
    unwaited = ("--no-wait", "-o", "json")
    moment = ("--place", "s3://a/b", "--at", "2026-01-31T12:00", "--queue", "q", "--id", "u" * 36)
    some = json.loads(person.says("restore", "flows", "--node", "worker-2", *moment, *unwaited))["name"]
    spec = fleet.get("contentrestore", some, "-n", place)["spec"]
    assert (spec["at"], spec["queues"], spec["ids"]) == ("2026-01-31T12:00:00Z", ["q"], ["u" * 36])
    asked = person.says("restore", "flows", "--node", "worker-1", "--backup", "nightly", "--generation", "7", *unwaited)
    fleet.apply(backup(place, schedule="0 2 * * *", suspend=True))

    def play() -> None:
        fleet.apply(repository(place, BUCKETS))
        operator.until("its node is told", lambda: told(fleet, place, "worker-0") != {})
        done = {"id": told(fleet, place, "worker-0")["id"], "state": "Completed", "generation": 7}
        say(fleet, place, "contentrepositorynode", "flows--worker-0", {"restoration": done, "repositoryUuid": "u"})

    asks = ("restore", "flows", "--node", "worker-0", "--place", "s3://flows/backups/old")
    code, said, _ = finished(operator, person, *asks, play=play)
    assert (code, said) == (0, "completed: worker-0, generation 7 of s3://flows/backups/old\n")
    assert told(fleet, place, "worker-1")["place"] == f"s3://flows/backups/{place}/flows/worker-1"
    spec = fleet.get("contentrestore", json.loads(asked)["name"], "-n", place)["spec"]
    assert (spec["backup"], spec["generation"]) == ("nightly", 7)
    assert "cannot begin: There is a repository on node worker-0" in person.says(*asks, code=ExitCode.CLOSED)


def _not_done(fleet: Fleet, place: str) -> set[str]:
    """The nodes whose part has not been reported."""
    done = {node: (each["status"].get("backup") or {}).get("id") for node, each in objects(fleet, place).items()}
    return {node for node, ticket in tickets(fleet, place).items() if ticket["id"] != done[node]}
