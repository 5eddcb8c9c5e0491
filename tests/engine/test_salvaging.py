"""A new repository of what a damaged one proves: what the ruins of `tests/rot` do not have."""

import errno
import json
import shutil
import tracemalloc
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

import ullage
from tests.engine.reclaim.test_rewrite import PLAIN, compact, fill, in_queue
from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, drain, event_store, flip, put_all, spec_at
from ullage.engine.engine import Engine
from ullage.engine.files import File, FileSize, OsFiles
from ullage.engine.model import FlowFileRecord
from ullage.engine.salvaging import salvage
from ullage.engine.wal.failingdisk import PAGE_BYTES, FailingDisk
from ullage.errors import DirectoryNotEmpty, InvalidArgument, NotARepository, RepositoryLocked
from ullage.wire.salvage import HELD_QUEUE
from ullage_agent.cli.app import app


def newest_log(root: Path) -> Path:
    return max((root / "flowfile").glob("partition-*/*.wal"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))


def test_contents_that_a_rewrite_moved_are_found(workshop: Workshop, tmp_path: Path) -> None:
    """Their addresses lead through the relocation to another file."""
    repository = workshop.make(**PLAIN)
    kept = fill(repository)
    assert compact(repository) > 0
    workshop.close()

    report = salvage(str(workshop.path), spec_at(tmp_path / "new"))

    assert report.is_whole
    with Engine.open(spec_at(tmp_path / "new")) as repository:
        assert in_queue(repository, "keep") == sorted(kept)


def test_slices_of_one_content_share_it_again(workshop: Workshop, tmp_path: Path) -> None:
    """A split copies nothing, and neither does the salvage of one."""
    repository = workshop.make()
    (record,) = put_all(repository, "q", [b"x" * 300_000])
    with repository.session() as session:
        (whole,) = session.get_many("q", 1)
        session.transfer_many([whole, *session.split(whole, [100_000, 200_000])], "q")
        session.commit()
    workshop.close()

    salvage(str(workshop.path), spec_at(tmp_path / "new"))

    with Engine.open(spec_at(tmp_path / "new")) as repository:
        records = list(repository.ledger.flow_files())
        assert len(records) == 3
        assert len({claim_of(each) for each in records}) == 1
        assert record.uuid in {each.uuid for each in records}


def test_content_that_nothing_proves_is_named_and_left_out(workshop: Workshop, tmp_path: Path) -> None:
    """By uuid, queue, file and reason, with exit code 11."""
    good, bad = put_all(workshop.make(), "q", [b"good" * 100, b"bad" * 100])
    path = workshop.content_file(claim_of(bad).resource)
    workshop.close()
    flip(path, claim_of(bad).offset)

    result = CliRunner().invoke(app, ["salvage", str(workshop.path), str(tmp_path / "new"), "--json"])

    assert result.exit_code == 11
    report = json.loads(result.stdout)
    assert report["queues"] == {"q": 1}
    (lost,) = report["lost"]
    assert (lost["id"], lost["queue"], lost["path"]) == (bad.id, "q", str(path))
    assert "CRC-32C" in lost["reason"]
    with ullage.open(tmp_path / "new") as repository:
        assert repository.queues.find("q").flow_files == 1
        assert repository.check(deep=True).problems == ()
    assert good.id in {each.id for each in _records(tmp_path / "new")}


def _records(root: Path) -> list[FlowFileRecord]:
    with Engine.open(spec_at(root)) as repository:
        return list(repository.ledger.flow_files())


def test_what_a_lost_header_may_have_disowned_is_held(workshop: Workshop, tmp_path: Path) -> None:
    """The header of a later log file says which frames of the one before count; without it nobody knows."""
    put_all(workshop.make(flow_file={"partitions": 1}), "q", [b"content"])
    workshop.kill()
    path = newest_log(workshop.path)
    later = path.with_name(f"{99:020d}.wal")
    later.write_bytes(b"\1" + bytes(199))

    report = salvage(str(workshop.path), spec_at(tmp_path / "new"))

    assert (report.queues, report.held) == ({}, 1)
    assert any(later.name in doubt for doubt in report.doubts)
    with ullage.open(tmp_path / "new") as repository:
        assert repository.queues.find(HELD_QUEUE).flow_files == 1


def test_what_a_kill_tore_off_holds_nothing_back(workshop: Workshop, tmp_path: Path) -> None:
    """A frame that no sync is known to have covered was not acknowledged: to a start it is no damage either."""
    repository = workshop.make(flow_file={"partitions": 1})
    put_all(repository, "q", [b"first"])
    put_all(repository, "q", [b"second"])
    workshop.kill()
    path = newest_log(workshop.path)
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    path.write_bytes(whole[: used - 5] + bytes(len(whole) - used + 5))

    report = salvage(str(workshop.path), spec_at(tmp_path / "new"))

    assert (report.queues, report.held, report.doubts, report.lost_transactions) == ({"q": 1}, 0, (), ())
    (torn,) = report.damaged
    assert "Nothing proves that these bytes were ever synced" in torn.reason
    assert not report.is_whole
    assert workshop.open().restored.torn
    assert len(list(workshop.repository.ledger.flow_files())) == 1


def test_a_repeat_with_its_key_gets_its_first_answer_and_leases_are_gone(tmp_path: Path) -> None:
    """From the snapshot and from the log; a lease was held by a process on the damaged repository."""
    source = tmp_path / "source"
    ullage.initialize(source)
    with ullage.open(source, maintain=False) as repository:
        first = repository.handles.put(b"one", key="1")
        repository.leases.acquire(3_600_000, purpose="reader")
        repository.checkpoint()
        second = [repository.queues.put("q", b"%d" % number, key=f"many {number}") for number in range(300)]
        shutil.copytree(source, tmp_path / "killed")

    salvage(str(tmp_path / "killed"), spec_at(tmp_path / "new"))

    with ullage.open(tmp_path / "new") as repository:
        assert repository.handles.put(b"one", key="1") == first
        assert [repository.queues.put("q", b"%d" % number, key=f"many {number}") for number in range(300)] == second
        assert repository.queues.find("q").flow_files == 300
        assert repository.handles.put(b"one") != first
        assert list(repository.leases.all()) == []


def test_memory_follows_what_is_alive_and_not_the_log(workshop: Workshop, tmp_path: Path) -> None:
    """A log may be larger than the memory: most of it tells of what is gone."""
    repository = workshop.make()
    for number in range(40):
        put_all(repository, "q", [b"x"] * 100, long=f"{number} " * 700)
        drain(repository, "q")
    event_store(repository).drain()
    workshop.kill()
    log = sum(len(path.read_bytes().rstrip(b"\0")) for path in workshop.path.glob("flowfile/partition-*/*.wal"))
    assert log > 8 << 20
    salvage(str(workshop.path), spec_at(tmp_path / "first"))  # what is imported and kept does not count

    tracemalloc.start()
    try:
        report = salvage(str(workshop.path), spec_at(tmp_path / "new"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (report.is_whole, report.events) == (True, 8_000)
    assert peak < log // 2


class _BadFile:
    """A file of which one page can't be read."""

    def __init__(self, file: File, page: int) -> None:
        self._file, self._page = file, page

    def read(self, count: int, offset: int) -> bytes:
        if offset < (self._page + 1) * PAGE_BYTES and offset + count > self._page * PAGE_BYTES:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.read(count, offset)

    def size(self) -> FileSize:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class _BadPage(OsFiles):
    """A disk with one bad page, in one file."""

    def __init__(self, path: Path, page: int) -> None:
        super().__init__()
        self._bad, self._page = str(path), page

    def open(self, path: str, *, writable: bool = False) -> File:
        file = super().open(path, writable=writable)
        return cast(File, _BadFile(file, self._page)) if path == self._bad else file


def test_a_page_that_the_disk_does_not_give_costs_only_itself(tmp_path: Path) -> None:
    """Around it everything is read, and where it is is remembered."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5 * PAGE_BYTES)
    disk = FailingDisk(_BadPage(path, 2))

    data = disk.open(str(path)).read(4 * PAGE_BYTES, 100)

    expected = b"x" * (2 * PAGE_BYTES - 100) + bytes(PAGE_BYTES) + b"x" * (PAGE_BYTES + 100)
    assert data == expected
    assert list(disk.unreadable[str(path)]) == [2 * PAGE_BYTES]


def test_a_failing_disk_ends_no_salvage(workshop: Workshop, tmp_path: Path) -> None:
    """Neither where it does not give a log, nor where it does not give content."""
    (record,) = put_all(workshop.make(), "q", [b"content" * 10])
    content = workshop.content_file(claim_of(record).resource)
    workshop.kill()
    for number, path in enumerate((newest_log(workshop.path), content, workshop.path / "flowfile" / "snapshot")):
        report = salvage(str(workshop.path), spec_at(tmp_path / str(number)), files=_BadPage(path, 0))
        assert not report.is_whole
        assert str(path) in {each.path for each in report.damaged}


@pytest.mark.parametrize("kind", ["open", "list_directory"])
@pytest.mark.parametrize("what", ["log", "snapshot", "content"])
def test_what_the_disk_neither_opens_nor_lists_is_named(
    workshop: Workshop, tmp_path: Path, files: FailingFiles, kind: str, what: str
) -> None:
    """A file for itself, a directory with all that lies in it; the rest is salvaged."""
    put_all(workshop.make(), "q", [b"first"])
    workshop.shut()
    (record,) = put_all(workshop.open(), "q", [b"second"])
    content = workshop.content_file(claim_of(record).resource)
    workshop.kill()
    path = {"log": newest_log(workshop.path), "snapshot": workshop.path / "flowfile" / "snapshot", "content": content}[
        what
    ]
    bad = path if kind == "open" else path.parent
    files.fail(kind, str(bad), times=1_000_000)

    report = salvage(str(workshop.path), spec_at(tmp_path / "new"), files=files)

    assert not report.is_whole
    assert str(bad) in {each.path for each in report.damaged} | {each.path for each in report.lost}


def test_nothing_is_made_where_it_could_do_harm(workshop: Workshop, tmp_path: Path) -> None:
    """Not in the source, not over something else, not of an open repository, and not of nothing."""
    root = str(workshop.path)
    put_all(workshop.make(), "q", [b"content"])
    with pytest.raises(RepositoryLocked):
        salvage(root, spec_at(tmp_path / "new"))
    workshop.close()
    with pytest.raises(InvalidArgument):
        salvage(root, spec_at(Path(root) / "new"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    with pytest.raises(DirectoryNotEmpty):
        salvage(root, spec_at(tmp_path / "full"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(NotARepository):
        salvage(str(tmp_path / "nothing"), spec_at(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
