import os
import shutil
from pathlib import Path

import pytest

from tests.engine.flowfile.steps import SMALL, numbers
from tests.failing_files import FailingFiles
from tests.support import Workshop, drain, put_all, put_each, spec_at
from ullage.engine.engine import Engine
from ullage.engine.salvaging import salvage
from ullage.errors import RepositoryDamaged


def names(repository: Engine) -> list[str]:
    return sorted(os.listdir(repository.swap_files.directory))


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(flow_file=SMALL)


def test_unknown_swap_files_are_removed_at_start(workshop: Workshop, repository: Engine) -> None:
    """A file that no transaction names, whole or torn, is ignored and removed; named ones stay."""
    put_each(repository, "q", numbers(9))
    (known,) = names(repository)
    directory = Path(repository.swap_files.directory)
    workshop.close()
    shutil.copy(directory / known, directory / f"1-1-{'0' * 36}.swap")
    (directory / "1700000000000-2-torn.swap").write_bytes(b"ULLAGESF")

    repository = workshop.open()

    assert names(repository) == [known]
    assert drain(repository, "q") == numbers(9)


def test_a_crash_before_the_log_names_the_file(workshop: Workshop, repository: Engine, files: FailingFiles) -> None:
    """A swap file that was written but not logged is removed, its FlowFiles are still resident."""
    put_each(repository, "q", numbers(8))
    files.fail("sync_directory", "*/swap", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        put_all(repository, "q", numbers(1, 8))
    assert len(names(repository)) == 1

    repository = workshop.crash()

    assert names(repository) == []
    assert drain(repository, "q") == numbers(9)


def test_a_retired_file_waits_for_a_snapshot(repository: Engine) -> None:
    """A file whose FlowFiles came back is kept until a published snapshot covers that, then removed."""
    put_each(repository, "q", numbers(9))
    drain(repository, "q", 7)
    (name,) = names(repository)
    assert (repository.queue("q").figures().swapped, list(repository.ledger.retired_swaps)) == (0, [name])

    repository.checkpoint()

    assert names(repository) == []
    assert repository.ledger.retired_swaps == {}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["all in the log", "swapped in the snapshot"])
def test_a_crash_after_a_swap_in_restores(workshop: Workshop, repository: Engine, checkpointed: bool) -> None:
    """Between swap-in and snapshot a restart reads the retired file; nothing is lost, doubled or out of order."""
    put_each(repository, "q", numbers(12))
    if checkpointed:
        repository.checkpoint()
    drain(repository, "q", 7)

    repository = workshop.crash()

    assert len(names(repository)) == 1  # the snapshot after an unclean start covers the swap-in
    assert drain(repository, "q") == numbers(5, 7)


def test_a_clean_restart_keeps_retired_files(workshop: Workshop, repository: Engine) -> None:
    """A clean start publishes no snapshot, so the retired file stays until the next one."""
    put_each(repository, "q", numbers(9))
    drain(repository, "q", 7)
    before = names(repository)

    repository = workshop.reopen()
    assert names(repository) == before

    repository.checkpoint()
    assert names(repository) == []
    assert drain(repository, "q") == numbers(2, 7)


def test_a_retired_file_that_is_gone_stops_the_start(workshop: Workshop, repository: Engine, tmp_path: Path) -> None:
    """Until a snapshot covers its swap-in it is a part of the log, whose later records move and delete its FlowFiles.
    A start that went on could apply none of these, and its snapshot would make that final: what was deleted would come
    back with the file, or what was not be gone for good. So it says which file, and changes nothing; put back, it is
    all there, and a salvage has what does not depend on it.
    """
    put_each(repository, "q", numbers(9))
    put_each(repository, "other", numbers(3))
    repository.checkpoint()
    drain(repository, "q", 7)
    path = Path(repository.swap_files.path(names(repository)[0]))
    workshop.close()
    kept = path.read_bytes()
    path.unlink()

    for _ in range(2):
        with pytest.raises(RepositoryDamaged, match=f"{path.name} is missing") as caught:
            workshop.open()
        assert "ullage salvage" in str(caught.value)

    report = salvage(str(workshop.path), spec_at(tmp_path / "salvaged"))
    assert path.name in str(report)
    with Engine.open(spec_at(tmp_path / "salvaged")) as salvaged:
        assert drain(salvaged, "other") == numbers(3)
    path.write_bytes(kept)
    assert drain(workshop.open(), "q") == numbers(2, 7)


def test_a_start_reads_no_file_that_stays_swapped(workshop: Workshop, repository: Engine) -> None:
    """The summary is enough to open: swap files are read when they are needed."""
    put_each(repository, "q", numbers(30))
    workshop.close()
    files = FailingFiles()

    repository = workshop.open(files)

    assert files.count("open", "*.swap") == 0
    assert repository.queue("q").figures().swapped == 24


def test_a_file_of_another_place_is_refused(repository: Engine) -> None:
    """A swap file under the name of another one is damage, not data."""
    put_each(repository, "q", numbers(12))
    first, second = (repository.swap_files.path(each.name) for each in repository.queue("q").swap_summaries())
    kept = Path(first).read_bytes()
    shutil.copy(second, first)
    assert drain(repository, "q", 9) == [*numbers(6), *numbers(3, 9)]

    with repository.session() as session, pytest.raises(RepositoryDamaged, match="of another place"):
        session.get("q")

    Path(first).write_bytes(kept)
    assert drain(repository, "q") == numbers(3, 6)
