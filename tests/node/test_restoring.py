"""What a node begins with: an empty repository, or a backup that a ContentRestore brings back, from a real bucket."""

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ullage
from tests.node.test_node import Written, serving
from tests.places import Gateway, Place
from tests.service.running import document_at
from tests.support import ManualClock
from ullage.contract import (
    BackupBucket,
    ContentRepository,
    NodeSpec,
    NodeStatus,
    RestoreTicket,
    RestoreTicketReport,
    TicketState,
    time_of,
)
from ullage.embedded.erasure import erase_subject
from ullage.embedded.partialrestoring import RECORDS, records_beside
from ullage.embedded.repository import open_embedded
from ullage.engine.opening import SALVAGING
from ullage.errors import NotARepository
from ullage_agent.node.objects import NodeObjectError, ObservedNode
from ullage_agent.node.restoring import NodeRestore


class Asked(Written):
    """Its object as it is each time that it is read: the last one again and again."""

    def __init__(self, *answers: ObservedNode | Exception | None) -> None:
        super().__init__()
        self.answers = list(answers)

    def read(self) -> ObservedNode | None:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def told(self) -> RestoreTicketReport:
        """What was written of the restoration last."""
        found = self.statuses[-1].restoration
        assert found is not None
        return found


class EnoughError(Exception):
    """It would wait for ever."""


def asking(ticket: RestoreTicket | None = None, **status: object) -> ObservedNode:
    spec = NodeSpec(repository="flows", node_name="here", restoration=ticket)
    found = msgspec.structs.replace(NodeStatus(), **status)
    return ObservedNode(uid="u-1", generation=1, version="1", spec=spec, status=found)


def waiting(times: int) -> Callable[[float], None]:
    """So often; then somebody has had enough."""
    left = [times]

    def sleep(_: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise EnoughError

    return sleep


@pytest.fixture
def written(tmp_path: Path, gateway: Gateway, bucket: Place) -> BackupBucket:
    """A bucket with a backup of a FlowFile and a handle called by its content."""
    assert bucket.bucket is not None
    with ullage.open(tmp_path / "before", create=True) as repository:
        repository.queues.put("q", b"x" * 70_000)
        repository.handles.put(b"y" * 500)
        repository.backup(bucket.bucket)
    return BackupBucket(url=bucket.bucket.url, endpoint=gateway.url)


def settings(root: Path, *buckets: BackupBucket) -> Callable[[], tuple[ContentRepository, int]]:
    document = document_at(root, service={"backup_buckets": buckets})
    return lambda: (document, 3)


def test_an_empty_repository_is_made_only_where_the_cluster_knows_of_none(tmp_path: Path) -> None:
    """One that is there is opened without asking; nobody who answers, or no object yet, is waited for."""
    root = tmp_path / "r"
    api = Asked(NodeObjectError("away"), None, asking())
    assert NodeRestore(api, settings(root), sleep=waiting(2)).may_make(str(root))
    with pytest.raises(NotARepository, match="release=u-1"):
        NodeRestore(Asked(asking(repository_uuid="before")), settings(root)).may_make(str(root))
    with ullage.open(root, create=True):
        pass
    assert not NodeRestore(Asked(NodeObjectError("away")), settings(root)).may_make(str(root))


def test_a_backup_is_brought_back_and_told(tmp_path: Path, written: BackupBucket) -> None:
    """Bytes, progress and end; who serves then tells it on, and its next backup in the same place is whole."""
    root = tmp_path / "r"
    ticket = RestoreTicket(id="one", place=written.url, generation=3)
    api = Asked(asking(ticket))
    restoring = NodeRestore(api, settings(root, written), ManualClock())
    assert not restoring.may_make(str(root))
    assert (api.told.state, api.told.generation, api.told.message) == (TicketState.COMPLETED, 1, "")
    states = [status.restoration.state for status in api.statuses if status.restoration]
    assert states[0] == TicketState.RUNNING

    with serving(root) as node:
        node.agent.take_over(asking(ticket, restoration=api.told))
        node.agent.tell()
        assert node.api.statuses[-1].restoration == api.told
        assert node.host.repository.queues.find("q").size_bytes == 70_000
        node.host.repository.queues.put("q", b"z" * 90_000)
        bucket = ullage.Bucket(url=written.url, endpoint=written.endpoint)
        assert node.host.repository.backup(bucket).generation == 2
        assert node.host.repository.verify_backup(bucket).damaged == ()


@pytest.mark.parametrize("queues", [(), ("q",)])
def test_it_is_told_how_many_a_register_kept_from_coming_back(
    tmp_path: Path, gateway: Gateway, bucket: Place, queues: tuple[str, ...]
) -> None:
    """Of all and of some; who looks for them afterwards learns that nothing is missing by mistake."""
    assert bucket.bucket is not None
    document, root = document_at(tmp_path / "before"), tmp_path / "r"
    with ullage.open(tmp_path / "before", create=True) as repository:
        for customer in ("4711", "4711", "4712"):
            repository.queues.put("q", b"order", {"customer": customer})
        repository.backup(bucket.bucket, keep=ullage.Keep(last=3))
    steps: dict[str, Any] = {"on_cost": lambda _: None, "on_phase": lambda _: None, "on_step": lambda _: None}
    erase_subject(document, {"customer": "4711"}, on_found=lambda _: True, **steps)
    with ullage.open(tmp_path / "before") as repository:
        repository.backup(bucket.bucket, keep=ullage.Keep(last=3))
    written = BackupBucket(url=bucket.bucket.url, endpoint=gateway.url)

    api = Asked(asking(RestoreTicket(id="one", place=written.url, backup_generation=1, queues=queues)))
    assert not NodeRestore(api, settings(root, written), ManualClock(), waiting(1)).may_make(str(root))

    assert (api.told.state, api.told.erased) == (TicketState.COMPLETED, 2)
    with ullage.open(root) as restored:
        assert restored.queues.find("q").flow_files == 1


def test_what_it_needs_is_waited_for(tmp_path: Path, written: BackupBucket) -> None:
    """Settings that allow the place, credentials that are mounted later: it says so, and makes nothing meanwhile."""
    root = tmp_path / "r"
    newer = RestoreTicket(id="one", place=written.url, generation=4)
    with pytest.raises(EnoughError):
        NodeRestore(api := Asked(asking(newer)), settings(root, written), sleep=waiting(3)).may_make(str(root))
    assert (api.told.state, api.told.message) == (TicketState.RUNNING, "waits for the settings that allow the place")
    secret = BackupBucket(url=written.url, endpoint=written.endpoint, credentials_file=str(tmp_path / "none"))
    ticket = RestoreTicket(id="one", place=written.url)
    with pytest.raises(EnoughError):
        NodeRestore(api := Asked(asking(ticket)), settings(root, secret), sleep=waiting(3)).may_make(str(root))
    assert api.told.state == TicketState.RUNNING
    assert api.told.message.startswith(f"waits for {tmp_path / 'none'}: in a cluster it is the key `credentials`")
    assert not root.exists()


def test_one_that_failed_makes_no_empty_repository(tmp_path: Path, written: BackupBucket) -> None:
    """Not after a restart either; another one that is asked for is carried out."""
    root = tmp_path / "r"
    wrong = RestoreTicket(id="one", place=f"{written.url}/none")
    with pytest.raises(EnoughError):
        NodeRestore(api := Asked(asking(wrong)), settings(root, written), sleep=waiting(2)).may_make(str(root))
    failed = api.told
    assert (failed.state, "NotABackup" in failed.message) == (TicketState.FAILED, True)
    right = RestoreTicket(id="two", place=written.url)
    again = Asked(asking(wrong, restoration=failed), asking(right, restoration=failed))
    assert not NodeRestore(again, settings(root, written), sleep=waiting(1)).may_make(str(root))
    assert (again.told.id, again.told.state) == ("two", TicketState.COMPLETED)


def test_nothing_is_replaced(tmp_path: Path, written: BackupBucket) -> None:
    """What lies in the directory stays, and the restoration has failed; a repository that serves refuses it."""
    root = tmp_path / "r"
    root.mkdir()
    (root / "mine").write_bytes(b"mine")
    ticket = RestoreTicket(id="one", place=written.url)
    with pytest.raises(EnoughError):
        NodeRestore(api := Asked(asking(ticket)), settings(root, written), sleep=waiting(2)).may_make(str(root))
    assert (api.told.state, "DirectoryNotEmpty" in api.told.message) == (TicketState.FAILED, True)
    assert [each.name for each in root.iterdir()] == ["mine"]

    with serving(tmp_path / "other") as node:
        node.agent.take_over(asking(ticket))
        node.agent.tell()
        report = node.api.statuses[-1].restoration
        assert report is not None
        assert (report.id, report.state) == ("one", TicketState.REFUSED)


def test_a_process_that_ended_between_its_end_and_telling_it_has_brought_it_back(tmp_path: Path) -> None:
    """The last thing that was told is Running; there is a repository, and only the restoration can have made it."""
    ticket = RestoreTicket(id="one", place="s3://b/p")
    with serving(tmp_path / "r") as node:
        node.agent.take_over(asking(ticket, restoration=RestoreTicketReport(id="one", state=TicketState.RUNNING)))
        node.agent.tell()
        report = node.api.statuses[-1].restoration
        assert report is not None
        assert report.state == TicketState.COMPLETED


def test_an_older_generation_is_brought_back_and_no_other_in_its_place(
    tmp_path: Path, gateway: Gateway, bucket: Place
) -> None:
    """With what it had; one that the backup does not have fails in words, and makes no repository."""
    assert bucket.bucket is not None
    with ullage.open(tmp_path / "before", create=True) as repository:
        for number in range(3):
            repository.queues.put("q", b"%d" % number)
            repository.backup(bucket.bucket, keep=ullage.Keep(last=3))
    place = BackupBucket(url=bucket.bucket.url, endpoint=gateway.url)
    for generation, files in ((2, 2), (None, 3)):
        root = tmp_path / f"r-{generation}"
        api = Asked(asking(RestoreTicket(id="one", place=place.url, backup_generation=generation)))
        assert not NodeRestore(api, settings(root, place), ManualClock()).may_make(str(root))
        assert api.told.generation == (generation or 3)
        with ullage.open(root) as repository:
            assert len(repository.queues.flow_files("q")) == files

    root = tmp_path / "r"
    api = Asked(asking(RestoreTicket(id="one", place=place.url, backup_generation=9)))
    with pytest.raises(EnoughError):
        NodeRestore(api, settings(root, place), ManualClock(), waiting(1)).may_make(str(root))
    assert (api.told.state, "has no generation 9" in api.told.message) == (TicketState.FAILED, True)
    assert not root.exists()


def test_a_moment_and_some_of_it_are_brought_back(tmp_path: Path, gateway: Gateway, bucket: Place) -> None:
    """The newest generation that is not later, and of that what is asked for alone, in containers as they are here; a
    moment before all of them, or a queue that there was not, fails in words.
    """
    assert bucket.bucket is not None
    clock = ManualClock()
    times, handles = list[str](), list[str]()
    with open_embedded(None, document_at(tmp_path / "before"), create=True, maintain=False, clock=clock) as before:
        for number in range(3):
            before.queues.put("q", b"%d" % number)
            handles.append(before.handles.put(b"handle %d" % number))
            before.queues.put("other", b"is left there")
            clock.advance(60)
            before.backup(bucket.bucket, keep=ullage.Keep(last=3))
            times.append(time_of(clock.now_millis() + 1_000))
    place = BackupBucket(url=bucket.bucket.url, endpoint=gateway.url)

    def brought(name: str, **asked: Any) -> RestoreTicketReport:
        api = Asked(asking(RestoreTicket(id="one", place=place.url, **asked)))
        with suppress(EnoughError):  # it failed, and waits for another one
            NodeRestore(api, settings(tmp_path / name, place), ManualClock(), waiting(1)).may_make(str(tmp_path / name))
        return api.told

    assert brought("whole", at=times[1]).generation == 2
    with ullage.open(tmp_path / "whole") as repository:
        assert [each.size for each in repository.queues.flow_files("q")] == [1, 1]
    assert brought("some", at=times[2], queues=("q",), ids=(handles[2],)).message == ""
    with ullage.open(tmp_path / "some") as repository:
        assert [each.name for each in repository.queues.all()] == ["q"]
        assert repository.handles.get(handles[2]) == b"handle 2"
    early = brought("early", at="2001-01-01T00:00:00Z")
    assert (early.state, "goes back to" in early.message) == (TicketState.FAILED, True)
    lacking = brought("lacking", at=times[0], ids=(handles[2],))
    assert (lacking.state, "NotFound" in lacking.message) == (TicketState.FAILED, True)


def test_some_of_a_backup_that_was_cut_short_is_told_of(tmp_path: Path, written: BackupBucket) -> None:
    """What is there is no repository, and nothing is made over it."""
    root = tmp_path / "r"
    root.mkdir()
    for name in ("ullage.json", SALVAGING):
        (root / name).write_bytes(b"")
    api = Asked(asking(RestoreTicket(id="one", place=written.url, queues=("q",))))
    with pytest.raises(EnoughError):
        NodeRestore(api, settings(root, written), sleep=waiting(1)).may_make(str(root))
    assert (api.told.state, "cut short" in api.told.message) == (TicketState.FAILED, True)


def test_records_lie_in_the_root_where_nothing_may_be_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod. What one that was killed left there goes, and nothing else does."""
    real = tempfile.mkdtemp

    def refused(suffix: str | None = None, prefix: str | None = None, dir: str | None = None) -> str:
        if dir == str(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), dir)
        return real(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    root = tmp_path / "r"
    for name in (f"{RECORDS}old", "mine"):
        (root / name).mkdir(parents=True)
    with records_beside(str(root)) as scratch:
        assert Path(scratch).parent == root
        assert {each.name for each in root.iterdir()} == {"mine", Path(scratch).name}
    assert [each.name for each in root.iterdir()] == ["mine"]
