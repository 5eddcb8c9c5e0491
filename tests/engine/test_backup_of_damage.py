"""Backups of what can't be read: it is named or kept from the last one, and stops nothing else."""

import errno
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.engine.test_backup import TWO, restored_queue
from tests.failing_files import FailingFiles
from tests.fuzz.corpus import header_of, with_header
from tests.places import Place
from tests.support import Workshop, claim_of, drain, flip, put_all, put_each, spec_at
from ullage.contract import Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, SetAside
from ullage.engine.wal.format import FORMAT_VERSION
from ullage_agent.cli.app import app

KB = 1024
MB = 1 << 20


def lies_in(repository: Engine, record: FlowFileRecord) -> str:
    claim = repository.ledger.claim(claim_of(record).resource)
    assert claim is not None
    return claim.container


def damage(workshop: Workshop, record: FlowFileRecord, how: str) -> tuple[Path, bytes]:
    """Remove, cut or spoil the file of a content; which it was, and what it held."""
    workshop.expects_problems = True
    claim = claim_of(record)
    path = workshop.content_file(claim.resource)
    whole = path.read_bytes()
    middle = claim.offset + claim.length // 2
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(whole[:middle])
    else:
        flip(path, middle)
    return path, whole


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_damaged_content_is_named_and_the_rest_is_backed_up(
    workshop: Workshop, tmp_path: Path, how: str, swapped: bool
) -> None:
    """The report names the FlowFile, its queue and file; the restored repository has it, unavailable, and others."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 1} if swapped else {})
    contents = [bytes([n]) * 600 * KB for n in range(1, 6)]
    records = [put_all(repository, "q", [content], filename=f"{n}")[0] for n, content in enumerate(contents)]
    bad = records[3]
    damage(workshop, bad, how)
    others = [n for n, one in enumerate(records) if claim_of(one).resource != claim_of(bad).resource]

    report = repository.backup(str(tmp_path / "b"))

    assert bad.id in {lost.id for lost in report.lost}
    (told,) = (lost for lost in report.lost if lost.id == bad.id)
    assert (told.queue, told.filename, told.size) == ("q", "3", 600 * KB)
    assert told.path.startswith(str(workshop.path / "c1"))
    assert report.damaged_files == 1
    lost = {found.id for found in report.lost}
    assert not lost & {records[n].id for n in others}
    spec = spec_at(tmp_path / "r")
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec) as again:
        problems = again.check(deep=True).problems
        assert all(any(id in problem for problem in problems) for id in lost)
        assert drain(again, "q") == [contents[n] for n, one in enumerate(records) if one.id not in lost]
        assert again.queue("q").figures().unavailable == len(lost)


@pytest.mark.parametrize("what", ["content", "swap file"])
def test_what_the_disk_does_not_give_is_named_and_the_rest_is_backed_up(
    workshop: Workshop, tmp_path: Path, files: FailingFiles, what: str
) -> None:
    """The disk says that it cannot read it; another error says nothing about the file, and fails the backup."""
    is_swapped = what == "swap file"
    repository = workshop.make(
        claims={"max_flow_files": 1}, flow_file={"swap_threshold": 2, "swap_batch": 2} if is_swapped else {}
    )
    records = put_each(repository, "q", [bytes([n]) * KB for n in range(8)])
    content = workshop.content_file(claim_of(records[3]).resource)
    path = str(min((workshop.path / "swap").iterdir()) if is_swapped else content)
    files.fail("read", path, error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        repository.backup(str(tmp_path / "failed"))
    files.heal()
    files.fail("read", path, times=1_000_000)

    report = repository.backup(str(tmp_path / "b"))

    files.heal()
    (told,) = report.lost
    assert (told.queue, told.path, report.damaged_files) == ("q", path, 1)
    assert "Input/output error" in told.reason


@pytest.mark.parametrize("was_there_before", [False, True])
def test_a_backup_while_a_volume_is_away_names_what_lies_there(
    workshop: Workshop, tmp_path: Path, was_there_before: bool
) -> None:
    """What an earlier backup copied is kept; what was never copied is lacking, by name, until the volume is back."""
    repository = workshop.make(storage=TWO, claims={"max_flow_files": 1})
    contents = [bytes([n]) * 600 * KB for n in range(1, 7)]
    records = put_each(repository, "q", contents)
    there = [n for n, one in enumerate(records) if lies_in(repository, one) == "c1"]
    assert 0 < len(there) < len(records)
    away = [n for n in range(len(records)) if n not in there]
    if was_there_before:
        repository.content.retire_idle()
        assert repository.backup(str(tmp_path / "b")).lost == ()
    place = workshop.path / "volumes" / "c2"
    place.rename(tmp_path / "unplugged")
    repository.volumes.look()

    report = repository.backup(str(tmp_path / "b"))

    lacking = [] if was_there_before else away
    assert sorted(lost.id for lost in report.lost) == sorted(records[n].id for n in lacking)
    assert all("c2" in lost.path for lost in report.lost)
    spec = spec_at(tmp_path / "r", storage=TWO)
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec) as again:
        problems = again.check(deep=True).problems
        assert all(any(records[n].id in problem for problem in problems) for n in lacking)
        assert drain(again, "q") == [contents[n] for n in range(len(records)) if n not in lacking]
        assert again.queue("q").figures().unavailable == len(lacking)

    (tmp_path / "unplugged").rename(place)
    repository.volumes.look()
    assert repository.backup(str(tmp_path / "b")).lost == ()
    assert restored_queue(tmp_path / "b", tmp_path / "whole", "q", storage=TWO) == contents


@pytest.mark.parametrize("had_before", [False, True])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_a_swap_file_that_cannot_be_read_is_named_and_the_rest_is_backed_up(
    workshop: Workshop, tmp_path: Path, how: str, had_before: bool
) -> None:
    """What an earlier backup has is whole; else the restored queue counts its FlowFiles, and serves the others."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    records = put_each(repository, "q", [b"%d" % n for n in range(8)])
    first, *others = sorted((workshop.path / "swap").iterdir())
    assert others
    if had_before:
        assert repository.backup(str(tmp_path / "b")).lost == ()
    whole = first.read_bytes()
    if how == "gone":
        first.unlink()
    elif how == "cut":
        first.write_bytes(whole[: len(whole) // 2])
    else:
        flip(first, len(whole) // 2)
    repository.swap_proof.begin()
    if how == "flipped":  # what was copied whole is not read again, unless it is known to be damaged
        repository.swap_proof.run()

    report = repository.backup(str(tmp_path / "b"))

    spec = spec_at(tmp_path / "r", flow_file={"swap_threshold": 2, "swap_batch": 2})
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec) as again:
        if had_before:
            assert ([each.path for each in report.saved], report.lost) == ([str(first)], ())
            assert "2 FlowFiles are in a swap file that can't be read" in report.saved[0].reason
            assert report.damaged_files == 1
            assert len(drain(again, "q")) == len(records)
        else:
            (told,) = report.lost
            assert (told.queue, told.path, report.damaged_files) == ("q", str(first), 1)
            assert "2 FlowFiles are in a swap file that can't be read" in told.reason
            assert len(drain(again, "q")) == len(records) - 2
            assert again.queue("q").figures().unavailable == 2
            assert any(first.name in problem for problem in again.check().problems)
    workshop.expects_problems = True


def test_a_swap_file_of_a_newer_version_is_named_and_the_rest_is_backed_up(workshop: Workshop, tmp_path: Path) -> None:
    """Who copied it there may have that version; its bytes are in the backup too."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    put_each(repository, "q", [b"%d" % n for n in range(8)])
    first = min((workshop.path / "swap").iterdir())
    whole = first.read_bytes()
    header = msgspec.msgpack.decode(header_of(whole))
    first.write_bytes(with_header(whole, msgspec.msgpack.encode({**header, "format": FORMAT_VERSION + 1})))

    report = repository.backup(str(tmp_path / "b"))

    (told,) = report.lost
    assert (told.queue, told.path, report.damaged_files) == ("q", str(first), 1)
    assert "2 FlowFiles are in a swap file that can't be read" in told.reason
    assert f"format version {FORMAT_VERSION + 1}" in told.reason
    assert len(drain(repository, "q")) == 6
    repository.reclamation.clean()
    assert any(path.read_bytes() == first.read_bytes() for path in (tmp_path / "b").rglob(f"{first.name}*"))
    first.write_bytes(whole)


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_each_backup_names_a_swap_file_until_it_is_mended(workshop: Workshop, tmp_path: Path, how: str) -> None:
    """What was copied of it is never taken for the whole, neither by the next backup nor once the file is mended."""
    workshop.expects_problems = True
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    records = put_each(repository, "q", [b"%d" % n for n in range(6)])
    first = min((workshop.path / "swap").iterdir())
    whole = first.read_bytes()
    if how == "gone":
        first.unlink()
    elif how == "cut":
        first.write_bytes(whole[: len(whole) // 2])
    else:
        flip(first, len(whole) // 2)

    for _ in range(3):
        report = repository.backup(str(tmp_path / "b"))
        assert ([lost.path for lost in report.lost], report.damaged_files) == ([str(first)], 1)
    first.write_bytes(whole)
    assert repository.backup(str(tmp_path / "b")).lost == ()

    spec = spec_at(tmp_path / "r", flow_file={"swap_threshold": 2, "swap_batch": 2})
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec) as again:
        assert len(drain(again, "q")) == len(records)


def test_a_swap_file_that_only_a_record_set_aside_may_mean_is_in_the_backup(workshop: Workshop, tmp_path: Path) -> None:
    """Whoever mends that record wants the file, in the restored repository too."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    put_each(repository, "q", [b"%d" % n for n in range(4)])
    (file,) = (workshop.path / "swap").iterdir()
    meant = file.with_name("1-1-00000000-0000-4000-8000-000000000000.swap")
    meant.write_bytes(file.read_bytes())
    record = SetAside(bytes(16), "a place", "a reason", b"data", 1, swap_file=meant.name)
    repository.committer.commit([record], creates=False)

    report = repository.backup(str(tmp_path / "b"))

    assert [lost.filename for lost in report.lost] == [
        meant.name
    ]  # under this name it reads as another's; it is copied

    spec = spec_at(tmp_path / "r", flow_file={"swap_threshold": 2, "swap_batch": 2})
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec) as again:
        assert len(again.set_aside.listed(10)) == 1
        assert (tmp_path / "r" / "swap" / meant.name).read_bytes() == meant.read_bytes()
    meant.unlink()


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_the_last_backups_copy_of_damaged_content_is_kept(
    workshop: Workshop, tmp_path: Path, place: Place, how: str
) -> None:
    """The file grew since then, so that the backup wants it anew: what can't be read any more stays, backup after
    backup, until it is mended.
    """
    repository = workshop.make(claims={"max_appendable_size": Quantity(MB)})
    (first,) = put_all(repository, "q", [b"1" * 60 * KB])
    repository.backup(place.to)
    (second,) = put_all(repository, "q", [b"2" * 60 * KB])
    assert claim_of(first).resource == claim_of(second).resource
    workshop.kill()
    path, whole = damage(workshop, first, how)
    repository = workshop.open()

    for number in range(3):
        report = repository.backup(place.to)
        assert [saved.id for saved in report.saved] == [first.id]
        assert [lost.id for lost in report.lost] == ([] if how == "flipped" else [second.id])
        spec = spec_at(tmp_path / f"r{number}")
        Engine.restore_backup(place.to, spec)
        with Engine.open(spec) as again:
            assert len(again.check(deep=True).problems) == len(report.lost)
            assert drain(again, "q") == [b"1" * 60 * KB, *([b"2" * 60 * KB] if how == "flipped" else [])]
    path.write_bytes(whole)
    report = repository.backup(place.to)

    assert (report.lost, report.saved) == ((), ())
    assert restored_queue(place, tmp_path / "r", "q") == [b"1" * 60 * KB, b"2" * 60 * KB]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_content_that_the_last_backup_has_whole_is_named_as_kept(
    workshop: Workshop, tmp_path: Path, how: str, restarts: bool
) -> None:
    """Its file did not change by right, so it is not copied anew; once a read has met the damage it is told, also by
    the next process, and what is gone or cut without one.
    """
    repository = workshop.make(claims={"max_flow_files": 1})
    first, _ = put_each(repository, "q", [b"1" * 60 * KB, b"2" * 60 * KB])
    repository.backup(str(tmp_path / "b"))
    path, whole = damage(workshop, first, how)
    if how == "flipped" or not restarts:  # a file that is open can be read though its name is gone
        repository.check(deep=True)

    for _ in range(2):
        if restarts:
            workshop.shut()
            repository = workshop.open()
        report = repository.backup(str(tmp_path / "b"))
        assert ([saved.id for saved in report.saved], report.lost, report.damaged_files) == ([first.id], (), 1)
    path.write_bytes(whole)
    repository.unavailable.retry()

    assert repository.backup(str(tmp_path / "b")).saved == ()
    assert restored_queue(tmp_path / "b", tmp_path / "r", "q") == [b"1" * 60 * KB, b"2" * 60 * KB]


def test_the_command_says_whose_content_a_backup_lacks(workshop: Workshop, tmp_path: Path) -> None:
    """By uuid, queue and file, with an exit code of its own; the restore checks, and names the same."""
    (record,) = put_all(workshop.make(), "q", [b"x" * 60 * KB])
    workshop.close()
    path, _ = damage(workshop, record, "gone")
    run = CliRunner().invoke

    backup = run(app, ["backup", str(tmp_path / "b"), "--root", str(workshop.path)])
    again = run(app, ["restore", str(tmp_path / "b"), str(tmp_path / "r")])

    assert (backup.exit_code, again.exit_code) == (11, 1)
    assert all(word in " ".join(backup.stderr.split()) for word in ("not in the backup", record.id, "queue q"))
    assert path.name in backup.stderr
    assert record.id in again.stderr


@pytest.mark.parametrize("how", ["gone", "cut", "a directory"])
def test_an_event_file_that_cannot_be_read_is_named_and_the_rest_is_backed_up(
    workshop: Workshop, tmp_path: Path, how: str
) -> None:
    """The restored repository has all content, and a history that goes on past these events."""
    repository = workshop.make()
    put_all(repository, "q", [b"one"])
    repository.provenance.drain()
    put_all(repository, "q", [b"two"])
    repository.provenance.drain()
    first, _ = sorted((workshop.path / "provenance" / "events").iterdir())
    whole = first.read_bytes()
    first.unlink()
    if how == "cut":
        first.write_bytes(whole[:100])
    elif how == "a directory":
        first.mkdir()
    workshop.expects_problems = True
    for deep in (False, True):
        assert any(first.name in problem for problem in repository.check(deep=deep).problems)

    report = repository.backup(str(tmp_path / "b"))

    assert [(lost.path, report.damaged_files) for lost in report.lost] == [(str(first), 1)]
    Engine.restore_backup(str(tmp_path / "b"), spec_at(tmp_path / "r"))
    with Engine.open(spec_at(tmp_path / "r")) as again:
        assert drain(again, "q") == [b"one", b"two"]
        assert any(first.name in problem for problem in again.check().problems)
