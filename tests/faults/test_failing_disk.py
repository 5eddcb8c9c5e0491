"""EIO for real: a disk that refuses writes under a running repository, and then works again."""

from contextlib import suppress

import pytest

from tests.faults.failing_disk import FailingDisk
from tests.support import abandon, drain, put_all, spec_at
from ullage.engine.engine import Engine
from ullage.errors import CommitOutcomeUnknown, ContentWriteFailed, RepositoryStopped

CONTENTS = [bytes([number]) * 30_000 for number in range(20)]


@pytest.fixture
def repository(disk: FailingDisk) -> Engine:
    """Open, with acknowledged contents; the tests give it up."""
    Engine.initialize(spec_at(disk.path / "repository"))
    made = Engine.open(spec_at(disk.path / "repository"))
    put_all(made, "q", CONTENTS)
    return made


def reopened(disk: FailingDisk, repository: Engine) -> Engine:
    """The process ends, the disk is replaced by one that works, and the filesystem is mounted again."""
    abandon(repository)
    disk.cut_power()
    again = Engine.open(spec_at(disk.path / "repository"))
    assert again.check(deep=True).problems == ()
    return again


def test_content_that_the_disk_refuses_is_a_definite_failure(disk: FailingDisk, repository: Engine) -> None:
    """Nothing is acknowledged from then on, and nothing that was is missing after the disk was mended."""
    disk.fail_writes()

    for _ in range(3):
        # XFS shuts down, and then not even its figures can be had: that is the system's own error.
        with pytest.raises((ContentWriteFailed, RepositoryStopped, OSError)):
            put_all(repository, "q", [b"never" * 10_000])

    with reopened(disk, repository) as again:
        assert drain(again, "q") == CONTENTS


def test_a_commit_that_the_disk_refuses_is_unknown_and_stops_the_repository(
    disk: FailingDisk, repository: Engine
) -> None:
    """Its FlowFile is there or gone after the disk was mended, the others are there."""
    disk.fail_writes()
    with repository.session() as session:
        session.remove(session.get_many("q", 1)[0])
        with pytest.raises(CommitOutcomeUnknown):
            session.commit()

    with pytest.raises(RepositoryStopped):
        drain(repository, "q", 1)
    with pytest.raises(RepositoryStopped):
        repository.checkpoint()

    with reopened(disk, repository) as again:
        assert drain(again, "q") in (CONTENTS, CONTENTS[1:])


def test_a_checkpoint_that_the_disk_refuses_loses_nothing(disk: FailingDisk, repository: Engine) -> None:
    """Whatever of the new snapshot reached the disk, the old one and its logs are still there."""
    disk.fail_writes()

    with pytest.raises((RepositoryStopped, OSError)):
        repository.checkpoint()

    with reopened(disk, repository) as again:
        assert drain(again, "q") == CONTENTS


def test_a_close_that_the_disk_refuses_is_no_clean_end(disk: FailingDisk, repository: Engine) -> None:
    """The next start recovers, with everything acknowledged."""
    disk.fail_writes()
    with suppress(Exception):  # what it raises depends on which file is synced first
        repository.close()

    with reopened(disk, repository) as again:
        assert not again.restored.clean
        assert drain(again, "q") == CONTENTS
