"""Files that no record names: counted, never removed at start, adopted on request or after a grace."""

from pathlib import Path

from tests.failing_files import FailingFiles
from tests.faults.detached import Detached
from tests.support import TWO, RoomyFiles, Workshop, containers, content_sizes, put_all
from tests.threads import begin
from ullage.engine.engine import Engine
from ullage.engine.files import FileSize
from ullage.engine.maintenance import MaintenanceRunner

MB = 1 << 20


def leave_orphan(workshop: Workshop) -> tuple[Engine, Path]:
    """Crash with a session's file written and not committed."""
    repository = workshop.make(storage=containers(c1=1 << 30))
    put_all(repository, "q", [b"k" * (2 * MB)])
    session = repository.session()
    session.ingest("q", [b"o" * (2 * MB)])
    repository = workshop.crash()
    (orphan,) = repository.check().orphans
    return repository, Path(orphan)


def test_a_start_keeps_orphans(workshop: Workshop) -> None:
    """Neither start, cleaning nor truncation removes a file that no record names."""
    repository, orphan = leave_orphan(workshop)

    repository.reclamation.clean()
    repository.reclamation.truncate()
    repository = workshop.reopen()

    assert orphan.stat().st_size == 2 * MB
    (found,) = repository.reclamation.orphans.look()
    assert (found.path, found.length, found.is_adoptable) == (str(orphan), 2 * MB, True)


def test_a_volume_that_goes_away_during_the_look_is_passed_over(workshop: Workshop, files: FailingFiles) -> None:
    """It is looked through when it is back; the others are now."""
    repository = workshop.make(storage=TWO)
    stray = [workshop.path / container / "7" / "1700000000000-7777777" for container in ("c1", "c2")]
    for path in stray:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"stray")
    volume = Detached(workshop.path)
    gate = files.hold("list_directory", f"{volume.path}*")

    looking = begin(repository.reclamation.orphans.look)
    gate.wait_until_reached()
    volume.take_away(leaves_mount_point=False)
    gate.open()

    assert [orphan.path for orphan in looking.result(60)] == [str(stray[0])]
    volume.bring_back()
    repository.volumes.look()
    for path in stray:
        path.unlink()


def test_a_file_that_goes_during_the_look_is_no_orphan(workshop: Workshop) -> None:
    """It was listed, and had been unlinked or archived before its size was asked."""
    stray = workshop.path / "c1" / "7" / "1700000000000-7777777"

    class Going(RoomyFiles):
        def size(self, path: str) -> FileSize:
            if path == str(stray):
                stray.unlink()
            return super().size(path)

    repository = workshop.make(Going())
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"stray")

    assert repository.check().orphans == ()
    stray.write_bytes(b"stray")
    assert repository.account.explain(repository.spec)
    assert not stray.exists()


def test_a_running_repository_counts_orphans_and_gives_them_back(workshop: Workshop) -> None:
    """A minute after the start the survey counts them; an hour after it they go the way of all dead content."""
    _, orphan = leave_orphan(workshop)
    repository = workshop.crash()
    maintenance = MaintenanceRunner(repository)

    def counted() -> tuple[int, int]:
        (container,) = repository.reclamation.survey().containers
        return container.orphans, container.orphan_bytes

    assert counted() == (0, 0)
    workshop.clock.advance(61)
    maintenance.run_due()
    assert counted() == (1, 2 * MB)
    workshop.clock.advance(3_000)
    maintenance.run_due()
    assert orphan.exists()
    workshop.clock.advance(600)
    maintenance.run_due()
    assert counted() == (0, 0)
    for hours in (1, 13, 1):
        workshop.clock.advance(hours * 3_600)
        maintenance.run_due()

    assert maintenance.failures == []
    assert len(content_sizes(workshop.path)) == 1
    assert repository.check(deep=True).problems == ()


def test_directories_are_read_once(workshop: Workshop) -> None:
    """Looking reads every directory: where nothing was left behind since, it is not done again."""
    repository, _ = leave_orphan(workshop)
    (workshop.path / "c1" / "5").mkdir(exist_ok=True)
    (workshop.path / "c1" / "5" / "notes.txt").write_bytes(b"nobody's")
    orphans = repository.reclamation.orphans
    workshop.clock.advance(7_200)

    assert repository.reclamation.tend_orphans() == 1
    assert orphans.figures["c1"].files == 1
    assert not orphans.is_look_due
    assert not orphans.is_adoption_due


def test_a_file_that_could_not_be_removed_is_an_orphan_of_this_process(workshop: Workshop) -> None:
    """A rolled back session whose file the disk does not let go: found, counted and adopted without a restart."""
    files = FailingFiles()
    repository = workshop.make(files, storage=containers(c1=1 << 30))
    session = repository.session()
    session.ingest("q", [b"r" * (2 * MB)])
    files.fail("unlink", "*/c1/*", times=1_000)
    session.rollback()
    files.heal()
    workshop.clock.advance(61)

    repository.reclamation.tend_orphans()
    assert repository.reclamation.survey().containers[0].orphans == 1
    workshop.clock.advance(3_600)
    assert repository.reclamation.tend_orphans() == 1
    assert repository.check(deep=True).problems == ()


def test_an_adopted_orphan_goes_through_the_archive(workshop: Workshop) -> None:
    """It becomes a free resource claim: archived by the next cleaning, deleted when its retention has passed."""
    repository, orphan = leave_orphan(workshop)

    assert repository.reclamation.adopt_orphans() == 1
    assert repository.check(deep=True).problems == ()
    repository.reclamation.clean()
    archived = orphan.parent / "archive" / orphan.name

    assert not orphan.exists()
    assert archived.stat().st_size == 2 * MB
    workshop.clock.advance(13 * 3600)
    repository.reclamation.clean()
    assert not archived.exists()
    assert len(content_sizes(workshop.path)) == 1
    assert repository.reclamation.adopt_orphans() == 0


def test_adoption_survives_a_crash(workshop: Workshop) -> None:
    """It is a transaction: after a crash the file is known, and not adopted twice."""
    repository, _ = leave_orphan(workshop)
    repository.reclamation.adopt_orphans()

    repository = workshop.crash()

    assert repository.check().orphans == ()
    assert repository.reclamation.adopt_orphans() == 0


def test_an_archived_orphan_stays_archived(workshop: Workshop) -> None:
    """A file found in `archive/` is adopted where it lies."""
    repository, orphan = leave_orphan(workshop)
    (orphan.parent / "archive").mkdir()
    archived = orphan.rename(orphan.parent / "archive" / orphan.name)

    assert repository.reclamation.adopt_orphans() == 1

    assert repository.check().problems == ()
    workshop.clock.advance(13 * 3600)
    repository.reclamation.clean()
    assert not archived.exists()


def test_files_being_written_are_never_adopted(workshop: Workshop) -> None:
    """Neither a session's file nor one that waits in the pool is an orphan."""
    repository, orphan = leave_orphan(workshop)
    session = repository.session()
    session.ingest("q", [b"w" * (2 * MB)])
    with repository.session() as other:
        other.ingest("q", [b"rolled back, in the pool"])

    assert repository.check().orphans == (str(orphan),)
    assert repository.reclamation.adopt_orphans() == 1
    repository.reclamation.clean()
    session.commit()

    assert repository.check(deep=True).problems == ()


def test_what_this_repository_cannot_have_made_is_listed_and_left_alone(workshop: Workshop) -> None:
    """A bogus name, a wrong section and an index never reserved: content of a lost ledger looks like the last."""
    repository, _ = leave_orphan(workshop)
    section = workshop.path / "c1" / "5"
    section.mkdir(exist_ok=True)
    bogus = [section / "notes.txt", section / "1700000000000-6", section / "1700000000000-1000005", section / "07-5"]
    for path in bogus:
        path.write_bytes(b"?")

    repository.reclamation.adopt_orphans()
    repository.reclamation.clean()

    assert all(path.exists() for path in bogus)
    assert repository.check().orphans == tuple(sorted(map(str, bogus)))


def test_an_orphan_that_somebody_made_long_fills_no_disk(workshop: Workshop) -> None:
    """What is taken up is written once more, so that it is durable; the zeros of a hole need not be."""
    repository, orphan = leave_orphan(workshop)
    allocated = orphan.stat().st_blocks
    with orphan.open("r+b") as file:
        file.truncate(256 * MB)

    assert repository.reclamation.adopt_orphans() == 1

    assert orphan.stat().st_blocks <= allocated + 16
    assert repository.check(deep=True).problems == ()
