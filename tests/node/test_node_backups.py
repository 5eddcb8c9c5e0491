"""An agent's part in a ContentBackup: into a real bucket, once, and told."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import ullage
from tests.certificates import Authority
from tests.node.test_node import Node, Written, serving
from tests.places import LOOPBACK, Gateway, Place, gateway_running
from tests.service.running import until
from ullage.contract import (
    BackupBucket,
    BackupKeepRule,
    BackupTicket,
    BackupTicketReport,
    NodeSpec,
    NodeStatus,
    TicketState,
    VerificationReport,
    VerificationTicket,
)
from ullage_agent.node.node import NodeAgent
from ullage_agent.node.objects import ObservedNode


def asking(ticket: BackupTicket | None, told: BackupTicketReport | None = None) -> ObservedNode:
    spec = NodeSpec(repository="flows", node_name="here", backup=ticket)
    return ObservedNode(uid="u", generation=1, version="1", spec=spec, status=NodeStatus(backup=told))


def reported(node: Node) -> BackupTicketReport:
    """What was written of it last."""
    found = node.api.statuses[-1].backup
    assert found is not None
    return found


@pytest.fixture
def allowed(gateway: Gateway, bucket: Place) -> BackupBucket:
    assert bucket.bucket is not None
    return BackupBucket(url=bucket.bucket.url, endpoint=gateway.url)


def test_a_node_writes_what_it_is_asked_for_once(tmp_path: Path, allowed: BackupBucket) -> None:
    """With its rule for generations; another run is another generation, and a restart repeats none."""
    place = f"{allowed.url}/data/flows/here"
    keep = BackupKeepRule(last=2)
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        node.host.repository.queues.put("q", b"x" * 60_000)
        for number, times in ((1, 3), (2, 1)):
            ticket = BackupTicket(id=f"run-{number}", place=place, keep=keep)
            node.agent.take_over(asking(ticket))
            for _ in range(times):
                node.agent.back_up()
            node.agent.tell()
            found = reported(node)
            assert (found.id, found.state, found.generation) == (f"run-{number}", TicketState.COMPLETED, number)
            assert (found.files_done, found.bytes_done) == (found.files, found.bytes)
            assert found.ended is not None
        assert [each.owner for each in node.host.repository.backup_runs()] == ["ContentBackup"] * 2
        last = reported(node)
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        node.agent.take_over(asking(BackupTicket(id="run-2", place=place), told=last))
        node.agent.back_up()
        assert node.host.repository.backup_runs() == []

    bucket = ullage.Bucket(url=place, endpoint=allowed.endpoint)
    assert [each.sequence for each in ullage.generations(bucket)] == [1, 2]
    assert ullage.restore(bucket, tmp_path / "restored").check.problems == ()


def test_a_place_that_the_settings_do_not_allow_fails_in_words(tmp_path: Path, allowed: BackupBucket) -> None:
    """Whoever may write an object of the cluster does not choose where content goes."""
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        node.agent.take_over(asking(BackupTicket(id="run", place="s3://elsewhere/b")))
        node.agent.back_up()
        node.agent.tell()
        found = reported(node)

    assert (found.state, "backupBuckets allows" in found.message) == (TicketState.FAILED, True)


def test_a_node_waits_for_what_its_settings_do_not_have_yet(tmp_path: Path, allowed: BackupBucket) -> None:
    """The settings that allow the place, and the file with credentials that a Secret brings: it says so."""
    file = tmp_path / "credentials"
    known = msgspec.structs.replace(allowed, credentials_file=str(file))
    with serving(tmp_path / "r", generation=3, service={"backup_buckets": (known,)}) as node:
        for generation, words in ((4, "waits for the settings"), (3, f"waits for {file}: in a cluster it is the key")):
            node.agent.take_over(asking(BackupTicket(id="run", place=f"{allowed.url}/a", generation=generation)))
            node.agent.back_up()
            node.agent.tell()
            assert (reported(node).state, reported(node).message.startswith(words)) == (TicketState.RUNNING, True)
        keys = [f"{name.lower()} = {value}" for name, value in os.environ.items() if name.startswith("AWS_")]
        file.write_text("\n".join(["[default]", *keys]))
        node.agent.back_up()
        node.agent.tell()
        assert (reported(node).state, reported(node).message) == (TicketState.COMPLETED, "")


@pytest.mark.parametrize("is_end", [True, False])
def test_a_backup_that_is_called_off_stops(tmp_path: Path, allowed: BackupBucket, bucket: Place, is_end: bool) -> None:
    """Its ticket is taken back, and it has failed; or the agent ends, and the next one begins anew."""
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        node.host.repository.queues.put("q", b"x" * 60_000)
        lock = node.host.repository.engine._backup._lock
        with lock:
            node.agent.take_over(asking(BackupTicket(id="run", place=f"{allowed.url}/a")))
            working = threading.Thread(target=node.agent.back_up)
            working.start()
            until(lambda: len(node.host.repository.backups_here.all()) == 1, "it has begun")
            [run] = node.host.repository.backups_here.all()
            call_off: Callable[[], None] = node.agent.stop if is_end else lambda: node.agent.take_over(asking(None))
            call_off()
            assert run.stop.wait(30)
        working.join()
        if not is_end:
            node.agent.tell()
            assert reported(node).state == TicketState.FAILED
        assert run.outcome == "stopped"

    assert not (bucket.folder / "a" / "backup.json").exists()


def verifying(ticket: VerificationTicket, told: VerificationReport | None = None) -> ObservedNode:
    spec = NodeSpec(repository="flows", node_name="here", verification=ticket)
    return ObservedNode(uid="u", generation=1, version="1", spec=spec, status=NodeStatus(verification=told))


def found(node: Node, ticket: VerificationTicket) -> VerificationReport:
    """What is told of a verification once it has ended."""
    node.agent.take_over(verifying(ticket))
    node.agent.verify()
    node.agent.tell()
    report = node.api.statuses[-1].verification
    assert report is not None
    assert report.id == ticket.id
    return report


def test_a_node_verifies_what_it_wrote(tmp_path: Path, allowed: BackupBucket, bucket: Place) -> None:
    """Whole; then one file has other bytes, which every draw of that seed meets; then there is no backup at all, which
    is damage too. A restart verifies nothing twice.
    """
    place = f"{allowed.url}/data/flows/here"
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        node.host.repository.queues.put("q", b"x" * 60_000)
        node.agent.take_over(asking(BackupTicket(id="run", place=place)))
        node.agent.back_up()
        whole = found(node, VerificationTicket(id="v-1", place=place, sample_percentage=100, seed=7))
        assert (whole.state, whole.damaged, whole.message) == (TicketState.COMPLETED, 0, "")
        assert (whole.generations, whole.files_done, whole.bytes_done) == (1, whole.needed, whole.bytes)
        assert whole.bytes > 60_000

        [victim] = [each for each in (bucket.folder / "data/flows/here/content").rglob("*") if each.is_file()]
        victim.write_bytes(b"y" * victim.stat().st_size)
        damaged = found(node, VerificationTicket(id="v-2", place=place, sample_percentage=100, seed=7))
        assert (damaged.state, damaged.damaged) == (TicketState.COMPLETED, 1)
        assert victim.name in damaged.message
        assert "not what was written" in damaged.message

        gone = found(node, VerificationTicket(id="v-3", place=f"{allowed.url}/nowhere", sample_percentage=100))
        assert (gone.state, gone.damaged) == (TicketState.COMPLETED, 1)
        assert [each.action for each in node.host.repository.backup_runs()] == ["write", "verify", "verify", "verify"]
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        again = VerificationTicket(id="v-3", place=place)
        node.agent.take_over(verifying(again, told=gone))
        node.agent.verify()
        assert node.host.repository.backup_runs() == []


def test_a_verification_that_cannot_be_done_has_failed_and_found_nothing(tmp_path: Path, allowed: BackupBucket) -> None:
    """A place that the settings do not allow, and a bucket that is not there: neither is damage."""
    missing = BackupBucket(url="s3://no-such-bucket", endpoint=allowed.endpoint)
    with serving(tmp_path / "r", service={"backup_buckets": (missing,)}) as node:
        for number, place in enumerate(("s3://elsewhere/b", "s3://no-such-bucket/a")):
            report = found(node, VerificationTicket(id=f"v-{number}", place=place))
            assert (report.state, report.damaged, report.message != "") == (TicketState.FAILED, 0, True)


class Late(Written):
    """Its object is read late, and nothing changes afterwards."""

    def __init__(self, found: ObservedNode) -> None:
        super().__init__()
        self.found, self.may_read, self.wrote, self.ended = (
            found,
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )

    def read(self) -> ObservedNode:
        self.may_read.wait(30)
        return self.found

    def watch(self, version: str) -> Iterator[ObservedNode | None]:
        self.ended.wait(30)
        return iter(())

    def write(self, status: NodeStatus) -> ObservedNode:
        found = super().write(status)
        self.wrote.set()
        return found


def test_nothing_is_told_before_the_object_was_read(tmp_path: Path, allowed: BackupBucket) -> None:
    """Else a process that begins would wipe out what the last one said of its backup, and write it once more."""
    told = BackupTicketReport(id="run", state=TicketState.COMPLETED, generation=4)
    late = Late(asking(BackupTicket(id="run", place=f"{allowed.url}/a"), told))
    with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
        agent = NodeAgent(node.host, late, node.tickets, lambda: 1)
        agent.start()
        assert not late.wrote.wait(1)
        late.may_read.set()
        assert late.wrote.wait(30)
        agent.back_up()
        late.ended.set()
        agent.stop()
        assert node.host.repository.backup_runs() == []

    assert {status.backup for status in late.statuses} == {told}


def test_authorities_that_come_with_the_credentials_are_believed(
    tmp_path: Path, bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Secret's `ca.crt`: backups go to a server whose certificate nobody else signed, once it is there."""
    authority = Authority(tmp_path / "authority")
    signed = authority.server("gateway", [LOOPBACK], [])
    secret = tmp_path / "secret"
    secret.mkdir()
    options = ("--cert", str(signed.certificate), "--key", str(signed.key))
    with gateway_running(tmp_path / "tls", options, "https") as gateway:
        gateway.make("flows")
        for name in gateway.credentials:
            monkeypatch.delenv(name)
        keys = [f"{name.lower()} = {value}" for name, value in gateway.credentials.items()]
        (secret / "credentials").write_text("\n".join(["[default]", *keys]))
        allowed = BackupBucket(url="s3://flows/b", endpoint=gateway.url, credentials_file=str(secret / "credentials"))
        with serving(tmp_path / "r", service={"backup_buckets": (allowed,)}) as node:
            shutil.copy(authority.certificate, secret / "ca.crt")
            node.agent.take_over(asking(BackupTicket(id="run", place=allowed.url)))
            node.agent.back_up()
            node.agent.tell()
            assert (reported(node).state, reported(node).message) == (TicketState.COMPLETED, "")
