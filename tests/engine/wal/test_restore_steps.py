"""The eleven steps of a restore, as docs/storage.md numbers them; of 6 and 8, torn ends, test_torn_tails.py tells."""

from functools import partial

import pytest

from tests.engine.wal.logbook import Logbook, SecondSerDe
from tests.failing_files import FailingFiles
from tests.threads import in_thread, together
from ullage.errors import NotRestored


def test_step_1_nothing_can_be_updated_while_a_restore_runs(logbook: Logbook, files: FailingFiles) -> None:
    """An update or a checkpoint that comes in the middle of a restore is refused, and the restore goes on."""
    logbook.killed(1)
    log = logbook.new(files)
    gate = files.hold("open", "*.wal")
    with in_thread(log.restore):
        gate.wait_until_reached()
        with pytest.raises(NotRestored):
            logbook.append(2)
        with pytest.raises(NotRestored):
            log.checkpoint()
        gate.open()
    assert logbook.state.numbers == {1}


def test_step_2_the_snapshot_is_loaded_first_and_ids_go_on_after_it(logbook: Logbook) -> None:
    """All records of the snapshot are loaded, no transaction is replayed, and the next id follows the snapshot's."""
    logbook.open()
    logbook.commit_each(1, 5)
    logbook.log.checkpoint()
    logbook.crash()

    report = logbook.open()

    assert (report.snapshot_last_id, report.snapshot_records, report.transactions) == (5, 5, 0)
    assert logbook.state.loaded == 5
    assert logbook.commit(6) == 6


def test_step_3_transactions_that_the_snapshot_holds_are_passed_over(logbook: Logbook, files: FailingFiles) -> None:
    """Logs whose deletion was cut short are not applied a second time."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 6)
    files.fail("unlink", "*.wal", times=100)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.log.checkpoint()
    logbook.commit(7)
    logbook.crash()

    report = logbook.open(partitions=2)

    assert logbook.state.applied == [7]
    assert (report.snapshot_last_id, report.last_id) == (6, 7)
    assert logbook.state.numbers == set(range(1, 8))


def test_step_4_the_smallest_id_of_all_partitions_comes_next(logbook: Logbook) -> None:
    """Transactions that went to three partitions by turns come back in the order of their ids."""
    logbook.killed(10, partitions=3)

    logbook.open(partitions=3)

    assert logbook.state.applied == list(range(1, 11))


def test_step_5_a_transaction_is_decoded_by_the_version_that_wrote_it(logbook: Logbook) -> None:
    """One restore reads a log file of the first SerDe version and one of the second."""
    logbook.closed(1)
    assert logbook.open(serde=SecondSerDe()).clean
    logbook.commit(2)
    logbook.crash()

    logbook.open(serde=SecondSerDe())

    assert logbook.state.applied == [1, 2]


def test_step_7_replay_goes_on_until_all_partitions_are_restored(logbook: Logbook, files: FailingFiles) -> None:
    """A partition that ends early does not end the others."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 3)
    gate = files.hold("write", "*partition-1/*")
    slow = logbook.start(4)
    gate.wait_until_reached()
    logbook.append(5)
    logbook.append(6)
    gate.open()
    slow.result(60)
    logbook.commit(7)
    logbook.crash()

    logbook.open(partitions=2)

    assert logbook.state.applied == list(range(1, 8))
    assert logbook.state.numbers == set(range(1, 8))


def test_step_9_each_partition_continues_in_a_file_of_its_own(logbook: Logbook) -> None:
    """A clean restore leaves the old files as they are and opens a new one in each partition."""
    logbook.closed(4, partitions=2)
    before = {path: path.read_bytes() for number in (0, 1) for path in logbook.logs(number)}

    assert logbook.open(partitions=2).clean
    logbook.commit_each(5, 6)

    assert {path: path.read_bytes() for path in before} == before
    assert [len(logbook.logs(number)) for number in (0, 1)] == [2, 2]


def test_step_10_restored_is_said_only_at_the_very_end(logbook: Logbook) -> None:
    """The log is not running while the owner proves what came back, and a second restore is refused."""
    running = []
    logbook.open(before_serving=lambda _: running.append(logbook.log.is_running))

    assert running == [False]
    assert logbook.log.is_running
    with pytest.raises(NotRestored, match="already restored"):
        logbook.log.restore()


def test_step_11_the_locks_are_given_back(logbook: Logbook) -> None:
    """After a restore other threads commit and take checkpoints at once."""
    logbook.open(partitions=2)

    together(*(partial(logbook.commit, number) for number in range(4)), logbook.log.checkpoint)

    assert logbook.state.numbers == {0, 1, 2, 3}
