"""A restoration of a share that was stopped: whoever restores there again goes on, to the same point."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import ullage
from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.rot.specimen import shown
from tests.shipping.held import HeldShare
from tests.shipping.test_objects import SHARE
from tests.support import ManualClock, Workshop, content_sizes, drain, event_store, flip, put_each, spec_at
from ullage.contract import ContainerSettings, ReplicationMode, ReplicationSettings
from ullage.embedded.backupplaces import place_of_share
from ullage.embedded.replication import parts_of
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.opening import RESTORING
from ullage.engine.shipping import baseobject, history, logreader, restoredbase
from ullage.engine.shipping.restoredbase import begun_restoration
from ullage.engine.shipping.sharedocs import ShareManifest, decode_document, encode_document
from ullage.engine.shipping.shareplace import MANIFEST
from ullage.engine.shipping.sharerestoring import identity_in, restore_share, share_to_restore
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.shipping.shippingparts import ShippingLimits
from ullage.errors import BucketUnavailable, ContentCorrupt, ContentMissing, DirectoryNotEmpty
from ullage.testing.crashing import Call, CrashFiles
from ullage.wire.upkeep import BackupReport

LARGE: Final = 100 << 10
SHIPPED: dict[str, Any] = {"replication": ReplicationSettings(mode=ReplicationMode.ASYNC, url="s3://flows/replicas")}


class Measured(HeldShare):
    """Counts what is read of its objects, by directory, and stops when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.stops_at: tuple[str, int] = ("", 0)
        """The network is gone with this read of an object in that directory."""

    def read(self, key: str, start: int, end: int) -> bytes:
        directory = key.partition("/")[0]
        self.reads[directory] += 1
        if self.stops_at == (directory, self.reads[directory]):
            self.stops_at = ("", 0)
            raise BucketUnavailable(f"{key}: the network is gone")
        data = super().read(key, start, end)
        self.bytes[directory] += len(data)
        return data

    def forget(self) -> None:
        self.reads.clear()
        self.bytes.clear()


@pytest.fixture
def place() -> Measured:
    return Measured()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**SHIPPED)


@pytest.fixture
def shipper(repository: Engine, place: Measured) -> Shipper:
    """A base with a pack, and a log object behind it with two others and a small content."""
    put_each(repository, "q", [os.urandom(LARGE)])
    shipper = Shipper(parts_of(repository), place, "node", ShippingLimits(pack_bytes=LARGE))
    shipper.begin()
    shipper.step()
    put_each(repository, "q", [os.urandom(LARGE), os.urandom(LARGE), b"small"])
    shipper.step()
    return shipper


def restore(place: Measured, repository: Engine, to: Path, point: int | None = None, **sections: Any) -> BackupReport:
    """As `ullage restore` does; what was read before is forgotten."""
    place.forget()
    spec = spec_at(to, **sections)
    begun = begun_restoration(OsFiles(), str(to))
    asked = share_to_restore(place, repository.identity.repository, point, begun)
    return restore_share(OsFiles(), asked, identity_in(asked), spec, lambda _: None)


def stopped(place: Measured, repository: Engine, to: Path, directory: str, read: int) -> None:
    place.stops_at = (directory, read)
    with pytest.raises(BucketUnavailable, match="network is gone"):
        restore(place, repository, to)


def seen(root: Path) -> object:
    """What a repository holds, which is sound."""
    with Engine.open(spec_at(root)) as repository:
        assert repository.check(deep=True).problems == ()
        return shown(repository)


@pytest.mark.parametrize("there", [0, 1, 2])
def test_contents_that_are_there_are_not_fetched_again(
    repository: Engine, shipper: Shipper, place: Measured, tmp_path: Path, there: int
) -> None:
    """Each pack has an index, which tells what lies in it, and one content. The point stays the one that was begun,
    whatever is shipped meanwhile, another base too.
    """
    whole = restore(place, repository, tmp_path / "whole")
    fetched = place.bytes["content"]
    stopped(place, repository, tmp_path / "r", "content", 2 * there + 2)
    put_each(repository, "q", [os.urandom(LARGE)])
    shipper.step()
    shipper._make_base()
    made = restore(place, repository, tmp_path / "r")

    assert place.bytes["content"] == fetched - there * LARGE
    assert made.kept_bytes >= there * LARGE
    assert made.copied_bytes + made.kept_bytes == whole.copied_bytes
    assert made.copied_files + made.kept_files == whole.copied_files
    assert (made.last_id, made.generation) == (whole.last_id, whole.generation)
    assert seen(tmp_path / "r") == seen(tmp_path / "whole")
    assert restore(place, repository, tmp_path / "newest").last_id > made.last_id


def test_contents_near_each_other_come_with_one_request(repository: Engine, place: Measured, tmp_path: Path) -> None:
    """Whatever between them nobody wants; each is proved by itself, and a pack that is cut short is missing content."""
    files = ("q", "gone", "q", "other")
    for queue, size in zip(files, (10, 20, 30, 40), strict=True):
        put_each(repository, queue, [os.urandom(1_000 + size + n) for n in range(10)])
    shipper = Shipper(parts_of(repository), place, "node")
    shipper.begin()
    shipper.step()
    drain(repository, "gone")
    shipper.step()
    restore(place, repository, tmp_path / "r")
    (pack,) = place.lengths("content")
    whole = place.objects[pack]

    assert place.reads["content"] == 2
    assert seen(tmp_path / "r") == shown(repository)
    middle = len(whole) // 2
    place.objects[pack] = whole[:middle] + bytes((whole[middle] ^ 1,)) + whole[middle + 1 :]
    with pytest.raises(ContentCorrupt, match=pack):
        restore(place, repository, tmp_path / "corrupt")
    place.objects[pack] = whole[:-1]
    with pytest.raises(ContentMissing, match="before its end"):
        restore(place, repository, tmp_path / "short")


@pytest.mark.parametrize("is_large", [False, True])
def test_log_objects_are_fetched_side_by_side_unless_they_are_large(
    repository: Engine, place: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """They count in their order all the same, and no more of them is in memory than a bound has."""
    shipper = Shipper(parts_of(repository), place, "node")
    shipper.begin()
    shipper.step()
    for number in range(20):
        put_each(repository, "q", [b"%d" % number])
        shipper.step()
    if is_large:
        monkeypatch.setattr(logreader, "AHEAD_BYTES", 1)
    together, met = threading.Barrier(2 if is_large else 4), list[str]()

    def fault(kind: str, key: str) -> None:
        if kind == "get" and key.startswith("log/"):
            with suppress(threading.BrokenBarrierError):  # nobody else came
                together.wait(0.2 if is_large else 10)
                met.append(key)

    place.fault = fault
    restore(place, repository, tmp_path / "r")

    assert len(met) == (0 if is_large else 20)
    place.fault = lambda _kind, _key: None
    assert seen(tmp_path / "r") == shown(repository)


def test_a_base_is_read_from_where_it_was(
    repository: Engine, shipper: Shipper, place: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was noted of it is read on the disk instead, and only if that is as it was written."""
    for module, name, value in (
        (baseobject, "CHUNK_BYTES_MAX", 500),
        (baseobject, "HEADER_BYTES_MAX", 600),
        (history, "PIECE_BYTES", 400),
        (restoredbase, "NOTED_BYTES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    event_store(repository).drain()
    shipper._make_base()
    restore(place, repository, tmp_path / "whole")
    reads, fetched = place.reads["base"], place.bytes["base"]
    for root, is_damaged in ((tmp_path / "r", False), (tmp_path / "damaged", True)):
        stopped(place, repository, root, "base", reads - 2)
        begun = begun_restoration(OsFiles(), str(root))
        assert begun is not None
        assert begun.note is not None
        written = begun.note.members[-1]
        assert 0 < written.length < (tmp_path / "whole" / written.name).stat().st_size
        if is_damaged:
            flip(root / written.name, 0)
        made = restore(place, repository, root)
        assert (place.bytes["base"] == fetched) is is_damaged
        assert made.kept_bytes == (0 if is_damaged else sum(each.length for each in begun.note.members))
        assert seen(root) == seen(tmp_path / "whole")


def test_what_was_damaged_meanwhile_is_fetched_anew(
    repository: Engine, shipper: Shipper, place: Measured, tmp_path: Path
) -> None:
    """Each content is proved before it is taken over."""
    root = tmp_path / "r"
    stopped(place, repository, root, "content", 6)
    kept = sorted(root / name for name in content_sizes(root))
    flip(kept[0], 0)
    made = restore(place, repository, root)

    assert made.kept_bytes >= LARGE
    assert place.bytes["content"] >= 2 * LARGE
    assert seen(root) is not None


def test_a_file_whose_sync_failed_is_not_taken_over(repository: Engine, shipper: Shipper, place: Measured) -> None:
    """Reading it would tell what the disk may not have."""
    files, refused = CrashFiles(), list[str]()
    spec = spec_at("/again")

    def refuse(call: Call) -> None:
        if call.kind == "sync" and "/c1/" in call.path and not call.path.endswith(".partial") and not refused:
            refused.append(call.path)
            raise OSError(errno.EIO, "the disk refuses", call.path)

    files.before = refuse
    asked = share_to_restore(place, repository.identity.repository, None)
    with pytest.raises(OSError, match="the disk refuses"):
        restore_share(files, asked, identity_in(asked), spec, lambda _: None)
    assert not files.exists(refused[0])
    restore_share(files, asked, identity_in(asked), spec, lambda _: None)
    with Engine.open(spec, files, ManualClock()) as again:
        assert again.check(deep=True).problems == ()


def test_another_point_or_place_is_refused_where_one_was_begun(
    repository: Engine, shipper: Shipper, place: Measured, tmp_path: Path
) -> None:
    """Nothing is made of two; what was begun is gone on with all the same."""
    root = tmp_path / "r"
    stopped(place, repository, root, "content", 6)
    through = share_to_restore(place, repository.identity.repository, None).through
    with pytest.raises(DirectoryNotEmpty, match="leave --generation out"):
        restore(place, repository, root, through - 1)
    elsewhere = {"containers": (ContainerSettings(name="c1", sub_path="elsewhere"),)}
    with pytest.raises(DirectoryNotEmpty, match="containers in other places"):
        restore(place, repository, root, storage=elsewhere)
    begun = begun_restoration(OsFiles(), str(root))
    assert begun is not None
    with pytest.raises(DirectoryNotEmpty, match=f"restoration of share {SHARE} was cut short"):
        share_to_restore(place, begun.share, None, msgspec.structs.replace(begun, share=SHARE))
    manifest = place.objects[MANIFEST]
    shipper._make_base()
    emptied = decode_document(place.objects[MANIFEST], ShareManifest, repository.identity.repository, "")
    place.objects[MANIFEST] = encode_document(msgspec.structs.replace(emptied, bases=emptied.bases[-1:]))
    with pytest.raises(DirectoryNotEmpty, match="does not keep any more"):
        restore(place, repository, root)
    place.objects[MANIFEST] = manifest

    assert restore(place, repository, root, through).kept_bytes > 0


def test_a_backup_and_a_share_are_not_made_one(
    repository: Engine, shipper: Shipper, place: Measured, tmp_path: Path
) -> None:
    """Whichever was begun first."""
    root = tmp_path / "r"
    root.mkdir()
    (root / RESTORING).write_bytes(b'["another","snapshots/1",7,{"c1":"c1"}]')
    with pytest.raises(DirectoryNotEmpty, match="part of a backup"):
        restore(place, repository, root)
    repository.backup(str(tmp_path / "backup"))
    stopped(place, repository, tmp_path / "s", "content", 4)
    with pytest.raises(DirectoryNotEmpty, match="another backup"):
        Engine.restore_backup(str(tmp_path / "backup"), spec_at(tmp_path / "s"))


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_was_ended_is_gone_on_with(
    workshop: Workshop, bucket: Place, gateway: Gateway, tmp_path: Path, ends: signal.Signals
) -> None:
    """By the command line, of a bucket of a real server, which keeps it waiting until then."""
    assert bucket.bucket is not None
    repository = workshop.make(**SHIPPED)
    share = msgspec.structs.replace(bucket.bucket, url=f"{bucket.bucket.url}/{repository.identity.repository}")
    shipper = Shipper(parts_of(repository), place_of_share(share), "node", ShippingLimits(pack_bytes=LARGE))
    put_each(repository, "q", [os.urandom(LARGE) for _ in range(3)])
    shipper.begin()
    shipper.step()
    waits, ended = threading.Event(), threading.Event()
    command = [str(Path(sys.executable).parent / "ullage"), "restore", share.url, str(tmp_path / "r")]
    with flaky_running(gateway) as (flaky, url):
        contents: list[str] = []

        def keeps_waiting(method: str, path: str, _number: int) -> str:
            if method == "GET" and "/content/" in path:
                contents.append(path)
            if len(contents) < 5:
                return ""
            waits.set()
            ended.wait(30)
            return "lost"

        flaky.fault = keeps_waiting
        with subprocess.Popen([*command, "--endpoint", url], stderr=subprocess.DEVNULL) as process:
            assert waits.wait(30)
            process.send_signal(ends)
            process.wait(30)
            ended.set()
    said = subprocess.run([*command, "--endpoint", gateway.url, "--json"], capture_output=True, check=True, timeout=60)

    made = json.loads(said.stdout)
    assert made["kept_bytes"] >= 2 * LARGE
    assert made["problems"] == []
    with ullage.open(tmp_path / "r") as again:
        assert again.queues.find("q").flow_files == 3
