"""The number of partitions may change from one start to the next."""

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles


@pytest.mark.parametrize("killed", [False, True])
def test_everything_is_kept_when_the_number_changes(logbook: Logbook, *, killed: bool) -> None:
    """1, 3, 2, 1 and 3 partitions, with several checkpoints in each life: nothing is lost, no start is refused."""
    number = 0
    for partitions in (1, 3, 2, 1, 3, 2):
        logbook.open(partitions=partitions)
        assert logbook.state.numbers == set(range(1, number + 1))
        for _ in range(3):
            for _ in range(5):
                number += 1
                logbook.commit(number)
            logbook.log.checkpoint()
        number += 1
        logbook.commit(number)
        if killed:
            logbook.crash()
        else:
            logbook.log.close()

    logbook.open()
    assert logbook.state.numbers == set(range(1, number + 1))


def test_old_files_of_a_partition_that_went_out_of_use_do_no_harm(logbook: Logbook, files: FailingFiles) -> None:
    """They may outlive the snapshot that covers them, by a crash; the partition may come back beside them."""
    logbook.open(partitions=2)
    for number in range(1, 5):
        logbook.commit(number)
        logbook.commit(number + 10)
        logbook.log.checkpoint()
    logbook.commit_each(20, 23)
    logbook.crash()
    files.fail("unlink", "*partition-1/*", times=100)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.open(files)
    assert len(logbook.logs(1)) > 0

    logbook.open()
    expected = {1, 2, 3, 4, 11, 12, 13, 14, 20, 21, 22, 23}
    assert logbook.state.numbers == expected
    logbook.commit_each(30, 33)
    logbook.crash()
    logbook.open(partitions=2)
    assert logbook.state.numbers == expected | {30, 31, 32, 33}
    logbook.commit_each(40, 43)
    logbook.crash()
    logbook.open(partitions=2)
    assert logbook.state.numbers == expected | {30, 31, 32, 33, 40, 41, 42, 43}
