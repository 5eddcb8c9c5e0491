"""Backup and restore: consistent while writing goes on, incremental, refused where it would do harm."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.engine.provenance.history import history, told
from tests.failing_files import FailingFiles
from tests.places import Place
from tests.support import Workshop, committing, content_sizes, drain, flip, put_all, put_each, spec_at
from tests.threads import begin
from ullage.contract import ContainerSettings, Quantity
from ullage.engine import backup
from ullage.engine.backupgenerations import FollowedManifest
from ullage.engine.backupplace import BackupPlace
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.engine.model import Action
from ullage.engine.opening import RepositoryIdentity
from ullage.errors import DirectoryNotEmpty, InvalidArgument, NotABackup, RepositoryDamaged
from ullage.wire.upkeep import Keep
from ullage_agent.cli.app import app

KB = 1024
MB = 1 << 20
TWO = {"containers": (ContainerSettings(name="c1", sub_path="c1"), ContainerSettings(name="c2", sub_path="volumes/c2"))}


@contextmanager
def restored(source: Path | Place, root: Path, **sections: Any) -> Iterator[Engine]:
    """Restored, checked deeply, and open."""
    spec = spec_at(root, **sections)
    Engine.restore_backup(source.to if isinstance(source, Place) else str(source), spec)
    with Engine.open(spec) as repository:
        assert repository.check(deep=True).problems == ()
        assert repository.check().orphans == ()
        yield repository


def restored_queue(source: Path | Place, root: Path, queue: str, **sections: Any) -> list[bytes]:
    """What stands in a queue after a restore."""
    with restored(source, root, **sections) as repository:
        return drain(repository, queue)


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_restored_backup_holds_what_was_committed_and_nothing_later(
    repository: Engine, tmp_path: Path, place: Place
) -> None:
    """Content of any size, handles, an open resource claim and the queue's order come back; later commits do not."""
    contents = [b"a" * KB, b"b" * (3 << 20), b"", b"c" * 70 * KB]
    put_all(repository, "q", contents)
    handle = repository.handles.put(b"kept by id")

    repository.backup(place.to)
    put_all(repository, "q", [b"later"])

    with restored(place, tmp_path / "r") as again:
        with again.handles.get(handle) as reader:
            assert reader.read() == b"kept by id"
        assert drain(again, "q") == contents
        put_all(again, "q", [b"it works on"])
        assert again.check(deep=True).problems == ()


def test_unchanged_files_are_not_copied_again(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """The second backup copies what is new, keeps the rest untouched, and drops what is gone."""
    repository = workshop.make(archive={"enabled": False}, provenance={"enabled": False})
    put_all(repository, "old", [b"o" * (2 << 20)])
    put_all(repository, "gone", [b"g" * (2 << 20)])
    first = repository.backup(place.to)
    repository.queues.drop(repository.queue("gone"))
    repository.reclamation.clean()
    put_all(repository, "new", [b"n" * 100 * KB])

    second = repository.backup(place.to)

    (run,) = (place.folder / "runs").iterdir()
    checksums = run.stat().st_size
    assert first.copied_bytes == (4 << 20) + checksums
    assert (second.copied_files, second.copied_bytes) == (1, 100 * KB)
    assert (second.kept_files, second.kept_bytes) == (2, (2 << 20) + checksums)
    kept = [name for name in files_below(place.folder) if name.startswith("content")]
    assert len(kept) == 2
    assert restored_queue(place, tmp_path / "r", "new") == [b"n" * 100 * KB]


def test_a_truncated_resource_claim_is_copied_anew(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """Another generation and length is another file of the backup."""
    repository = workshop.make(provenance={"enabled": False})
    with committing(repository) as session:
        session.transfer(session.write(session.create(), b"s" * KB), "small")
        session.transfer(session.write(session.create(), b"l" * 3000 * KB), "large")
    repository.backup(place.to)
    repository.queues.drop(repository.queue("large"))
    repository.reclamation.execute(repository.reclamation.plan_truncation(eager=True))

    report = repository.backup(place.to)

    assert report.copied_bytes < 10 * KB
    assert restored_queue(place, tmp_path / "r", "small") == [b"s" * KB]


def test_writing_and_reclaiming_go_on_while_a_backup_is_written(
    workshop: Workshop, tmp_path: Path, place: Place
) -> None:
    """Commits, drops, a checkpoint and a cleaning between two copied files: the backup is of one moment still."""
    repository = workshop.make(archive={"enabled": False})
    contents = [bytes([n]) * 60 * KB for n in range(8)]
    put_each(repository, "q", contents)
    cleaned: list[Future[object]] = []

    def interfere(_: Tally) -> None:
        if not cleaned:
            assert drain(repository, "q") == contents
            repository.checkpoint()
            cleaned.append(begin(repository.reclamation.clean))  # waits until the backup has what it needs
        put_all(repository, "later", [b"x" * KB])

    repository.backup(place.to, interfere)
    cleaned[0].result(60)

    assert restored_queue(place, tmp_path / "r", "q") == contents
    assert len(content_sizes(workshop.path)) < 8


def test_containers_can_lie_elsewhere_after_a_restore(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """Names stay, paths may change; a container that the spec lacks is named."""
    repository = workshop.make(storage=TWO)
    contents = [bytes([n]) * 60 * KB for n in range(6)]
    put_each(repository, "q", contents)
    repository.backup(place.to)

    with pytest.raises(InvalidArgument, match="has containers c2"):
        Engine.restore_backup(place.to, spec_at(tmp_path / "none"))
    elsewhere = {
        "containers": (ContainerSettings(name="c2", sub_path="x/y"), ContainerSettings(name="c1", sub_path="z"))
    }

    assert restored_queue(place, tmp_path / "r", "q", storage=elsewhere) == contents
    assert not (tmp_path / "none").exists()


def test_a_directory_that_is_not_empty_is_left_alone(workshop: Workshop, tmp_path: Path) -> None:
    """Neither a backup nor a restore writes beside what somebody else put there, nor into the repository."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    repository.backup(str(tmp_path / "b"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("the only copy")

    with pytest.raises(DirectoryNotEmpty, match=r"thesis\.txt"):
        repository.backup(str(other))
    with pytest.raises(InvalidArgument, match="lies in the repository"):
        repository.backup(str(workshop.path / "c1" / "b"))
    with pytest.raises(DirectoryNotEmpty, match=r"thesis\.txt"):
        Engine.restore_backup(str(tmp_path / "b"), spec_at(other))
    with pytest.raises(DirectoryNotEmpty, match="is not empty"):
        Engine.restore_backup(str(tmp_path / "b"), workshop.spec)
    with pytest.raises(NotABackup, match="holds no backup"):
        Engine.restore_backup(str(other), spec_at(tmp_path / "r"))

    assert files_below(other) == {"thesis.txt": b"the only copy"}


ENDING = ".0123456789abcdef"
"""As files of a backup have one; others may have it too."""


@pytest.mark.parametrize(
    "path",
    [
        *("content/posts/a.md", "notes/todo.txt", "content/README", "flowfile", "runs/deep/x"),
        *(f"notes/a{ENDING}", f"content/p/a{ENDING}", f"content/main{ENDING}", f"content/c1/photo{ENDING}"),
    ],
)
def test_what_runs_have_not_put_is_no_backup_and_is_not_removed(workshop: Workshop, tmp_path: Path, path: str) -> None:
    """Folders of common names were taken for those of a backup, and what lay in them was removed."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    site, place = tmp_path / "site", tmp_path / "b"
    (site / path).parent.mkdir(parents=True)
    (site / path).write_bytes(b"the only copy")

    with pytest.raises(DirectoryNotEmpty, match=path.partition("/x")[0]):
        repository.backup(str(site))
    assert files_below(site) == {path: b"the only copy"}

    repository.backup(str(place))
    if path != "flowfile":
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(b"the only copy")
    (place / "lost+found").mkdir()
    repository.backup(str(place))
    assert path == "flowfile" or (place / path).read_bytes() == b"the only copy"
    Engine.restore_backup(str(place), spec_at(tmp_path / "r"))


def test_generations_whose_manifest_is_gone_stay(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """A run began anew there, and removed all of them."""
    repository = workshop.make()
    for _ in range(3):
        put_all(repository, "q", [b"x"])
        repository.backup(place.to, keep=Keep(last=10))
    manifest, elsewhere = place.folder / "backup.json", tmp_path / "taken"
    manifest.rename(elsewhere)
    held = files_below(place.folder)

    with pytest.raises(DirectoryNotEmpty, match=r"without backup\.json"):
        repository.backup(place.to)

    assert files_below(place.folder) == held
    elsewhere.rename(manifest)
    assert repository.backup(place.to).generations == 4


@pytest.mark.parametrize("is_another", [True, False])
def test_a_backup_whose_manifest_is_gone_stays(
    workshop: Workshop, tmp_path: Path, place: Place, is_another: bool
) -> None:
    """Also one of a single generation: nobody but a first run that was cut short begins where files lie."""
    put_all(workshop.make(), "q", [b"x"])
    workshop.repository.backup(place.to)
    manifest, elsewhere = place.folder / "backup.json", tmp_path / "taken"
    manifest.rename(elsewhere)
    held = files_below(place.folder)
    spec = spec_at(tmp_path / "second")
    Engine.initialize(spec)

    with Engine.open(spec) as second, pytest.raises(DirectoryNotEmpty, match=r"without backup\.json"):
        (second if is_another else workshop.repository).backup(place.to)

    assert files_below(place.folder) == held
    elsewhere.rename(manifest)
    assert restored_queue(place, tmp_path / "r", "q") == [b"x"]


def test_a_backup_of_another_repository_is_not_overwritten(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """Each repository needs a directory of its own."""
    put_all(workshop.make(), "q", [b"x"])
    workshop.repository.backup(place.to)
    spec = spec_at(tmp_path / "second")
    Engine.initialize(spec)

    with Engine.open(spec) as second, pytest.raises(DirectoryNotEmpty, match="backup of repository"):
        second.backup(place.to)

    assert restored_queue(place, tmp_path / "r", "q") == [b"x"]


@pytest.mark.parametrize("pattern", ["content/*/*", "flowfile/*", "backup.json"])
def test_a_flipped_bit_of_a_backup_is_found_by_the_restore(
    workshop: Workshop, tmp_path: Path, place: Place, pattern: str
) -> None:
    """Every file has its checksum; what does not match never becomes a repository."""
    repository = workshop.make()
    put_all(repository, "q", [b"x" * 60 * KB])
    repository.backup(place.to)
    file = next(place.folder.glob(pattern))
    flip(file, file.stat().st_size // 2)

    with pytest.raises(RepositoryDamaged, match="checksum"):
        Engine.restore_backup(place.to, spec_at(tmp_path / "r"))

    assert not (tmp_path / "r" / "ullage.json").exists()


def test_any_call_of_a_backup_may_fail(tmp_path: Path, files: FailingFiles) -> None:
    """Whichever call of the second backup fails, the directory restores to the first or the second, and the next
    backup succeeds.
    """
    spec = spec_at(tmp_path / "r")
    Engine.initialize(spec)
    destination = tmp_path / "b"
    with Engine.open(spec, files) as repository:
        put_all(repository, "q", [b"1" * 60 * KB])
        repository.backup(str(destination))
        for number, (kind, path) in enumerate(
            [
                ("create", "*/b/flowfile/*"),
                ("write", "*/b/flowfile/*"),
                ("sync", "*/b/flowfile/*"),
                ("create", "*/b/content/*"),
                ("write", "*/b/content/*"),
                ("sync", "*/b/content/*"),
                ("sync_directory", "*/b/content/*"),
                ("write", "*/b/backup.json*"),
                ("sync", "*/b/backup.json*"),
                ("rename", "*/b/backup.json*"),
                ("sync_directory", "*/b"),
                ("unlink", "*/b/flowfile/*"),
            ]
        ):
            print(kind, path)
            put_all(repository, "q", [b"2" * 60 * KB])
            files.fail(kind, path)
            with pytest.raises(OSError, match="Input/output"):
                repository.backup(str(destination))
            found = len(restored_queue(destination, tmp_path / f"after-{number}", "q"))
            assert found in {number + 1, number + 2}
            repository.backup(str(destination))


def test_the_commands_back_up_and_restore(workshop: Workshop, tmp_path: Path) -> None:
    """`ullage backup` and `ullage restore` do it from the command line, and the restore checks every byte."""
    put_all(workshop.make(), "q", [b"x" * 60 * KB])
    workshop.close()
    run = CliRunner().invoke

    first = run(app, ["backup", str(tmp_path / "b"), "--root", str(workshop.path), "--json"])
    again = run(app, ["restore", str(tmp_path / "b"), str(tmp_path / "r"), "--container", "c1=elsewhere", "--json"])
    twice = run(app, ["restore", str(tmp_path / "b"), str(tmp_path / "r")])
    wrong = run(app, ["restore", str(tmp_path / "b"), str(tmp_path / "s"), "--container", "c9=x"])

    assert (first.exit_code, again.exit_code, twice.exit_code, wrong.exit_code) == (0, 0, 2, 2)
    assert json.loads(first.stdout)["copied_bytes"] >= 60 * KB
    assert json.loads(again.stdout)["problems"] == []
    assert "is not empty" in twice.stderr
    assert (tmp_path / "r" / "elsewhere").is_dir()


def test_history_is_in_the_backup(repository: Engine, tmp_path: Path, place: Place) -> None:
    """Events in files and those that only the log held come back with their numbers, and go on from there."""
    for _ in range(2):
        put_all(repository, "q", [b"x"] * 3)
        repository.provenance.drain()
    put_all(repository, "q", [b"y"])
    repository.backup(place.to)
    put_all(repository, "q", [b"later"])
    report = repository.backup(place.to)
    expected = [told(event) for event in history(repository)]
    put_all(repository, "q", [b"later still"])

    assert report.kept_files > 2
    with restored(place, tmp_path / "r") as again:
        assert [told(event) for event in history(again)] == expected
        put_all(again, "q", [b"z"])
        assert [event.sequence for event in history(again)] == list(range(1, len(expected) + 2))
        assert again.check(deep=True).problems == ()


def test_events_that_no_file_takes_are_in_the_backup(workshop: Workshop, tmp_path: Path, files: FailingFiles) -> None:
    """Where a rollover fails the snapshot carries them, and so does the backup's."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"] * 3)
    files.fail("create", "*.parquet", times=1_000_000)
    expected = [told(event) for event in history(repository)]

    repository.backup(str(tmp_path / "b"))

    with restored(tmp_path / "b", tmp_path / "r") as again:
        assert [told(event) for event in history(again)] == expected


def test_punched_and_rewritten_files_are_in_the_backup(workshop: Workshop, tmp_path: Path) -> None:
    """Holes come back as holes, addresses still find what was moved, and each change is copied once."""
    compaction = {"min_used_percentage": 0, "min_reclaim": 0, "bytes_per_second": Quantity(0)}
    claims = {"max_appendable_size": Quantity(64 * MB), "large_claim": Quantity(64 * MB)}
    repository = workshop.make(archive={"enabled": False}, claims=claims, compaction=compaction)
    kept = [bytes([n]) * 60_000 for n in range(1, 5)]
    for content in kept:
        with committing(repository) as session:
            session.ingest("drop", [b"d" * (2 * MB)])
            session.ingest("q", [content])
    repository.content.retire_idle()
    with committing(repository) as session:
        session.ingest("rewritten", [b"r" * 9_000])
        session.ingest("drop", [b"d" * 90_000])
        session.ingest("rewritten", [b"s" * 9_000])
    repository.content.retire_idle()
    repository.backup(str(tmp_path / "b"))
    repository.queues.drop(repository.queue("drop"))
    repository.reclamation.clean()
    compactor = repository.compactor
    done = compactor.execute(compactor.plan())
    survey = repository.reclamation.survey().containers[0]

    report = repository.backup(str(tmp_path / "b"))

    assert set(done.done) == {Action.PUNCH, Action.REWRITE}
    with restored(tmp_path / "b", tmp_path / "r") as again:
        assert again.reclamation.survey().containers[0].disk_bytes == survey.disk_bytes
        assert drain(again, "q") == kept
        assert drain(again, "rewritten") == [b"r" * 9_000, b"s" * 9_000]
    for root in (tmp_path / "b", tmp_path / "r" / "c1"):
        taken = sum(file.stat().st_blocks * 512 for file in root.rglob("*-*") if file.is_file())
        assert taken < survey.disk_bytes + MB
    assert report.copied_files > 0


def test_what_somebody_removed_from_a_backup_is_copied_again(repository: Engine, tmp_path: Path, place: Place) -> None:
    """Gone or cut, it is in the next one: nobody has to notice it before."""
    contents = [bytes([n]) * 60 * KB for n in range(3)]
    put_each(repository, "q", contents)
    first = repository.backup(place.to)
    gone, cut = sorted((place.folder / "content" / "c1").iterdir())[:2]
    gone.unlink()
    cut.write_bytes(b"")

    again = repository.backup(place.to)

    assert (again.copied_files, again.kept_files) == (2, first.copied_files - 2)
    assert restored_queue(place, tmp_path / "r", "q") == contents


def test_a_first_run_of_another_that_ends_between_two_looks_is_gone_on_with(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no list yet; when the files are looked at there is one, and no mark of a run that was begun."""
    repository = workshop.make()
    put_each(repository, "in", [b"content"])
    repository.backup(str(tmp_path / "backup"))
    real, looked = backup._followed, list[object]()

    def late(place: BackupPlace, identity: RepositoryIdentity) -> FollowedManifest | None:
        looked.append(place)
        return None if len(looked) == 1 else real(place, identity)

    monkeypatch.setattr(backup, "_followed", late)

    assert repository.backup(str(tmp_path / "backup")).generation == 2

    assert len(looked) == 2
