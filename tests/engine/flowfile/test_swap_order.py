import os
from contextlib import ExitStack

import pytest

from tests.engine.flowfile.steps import SMALL, numbers, peek, resident
from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, committing, drain, put_all, put_each
from tests.threads import in_thread
from ullage.engine.engine import Engine


def swapped_files(repository: Engine) -> list[str]:
    return os.listdir(repository.swap_files.directory)


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(flow_file=SMALL)


def test_swapping_begins_a_batch_above_the_threshold(repository: Engine) -> None:
    """Up to the threshold all are in memory; each whole batch above it becomes a file."""
    queue = repository.queue("q")

    put_each(repository, "q", numbers(8))
    assert (resident(queue), swapped_files(repository)) == (8, [])

    put_each(repository, "q", numbers(1, 8))
    assert (resident(queue), len(swapped_files(repository))) == (6, 1)
    assert queue.figures() == (9, 9, 0, 3, 1, 0, 0)


def test_one_large_commit_swaps_all_it_can(repository: Engine) -> None:
    """A commit of many batches leaves no more in memory than the threshold and less than a batch."""
    put_all(repository, "q", numbers(100))

    assert resident(repository.queue("q")) == 7
    assert repository.queue("q").figures().swap_files == 31


@pytest.mark.parametrize("restart", ["none", "clean", "crash", "checkpoint"])
@pytest.mark.parametrize("polled", [0, 5, 7, 10])
def test_first_in_first_out_through_swap_files(workshop: Workshop, restart: str, polled: int) -> None:
    """The order is exact whatever swapped out, came in, was rolled back, and however the process ended."""
    repository = workshop.make(flow_file=SMALL)
    put_each(repository, "q", numbers(25))
    with committing(repository) as session:
        session.remove_many(session.get_many("q", polled))
    peek(repository, "q", 4)

    repository = workshop.restart(restart)
    put_each(repository, "q", numbers(10, 25))

    assert drain(repository, "q") == numbers(35 - polled, polled)


def test_swapped_ones_are_looked_at_where_they_are(repository: Engine) -> None:
    """Pages go on into swap files in the queue's order; content is read by id alone, and nothing comes to memory."""
    put_each(repository, "q", numbers(25))
    queue = repository.queue("q")
    before = resident(queue)

    pages = [repository.flow_files.listed(queue, skip, 4) for skip in range(0, 28, 4)]

    found = [record for page in pages for record in page]
    with ExitStack() as stack:
        streams = [stack.enter_context(repository.flow_files.content(record.id, 0, None)) for record in found]
        assert [stream.read() for stream in streams] == numbers(25)
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 1]
    assert resident(queue) == before < 25


def test_rolled_back_ones_come_before_swapped_ones(repository: Engine) -> None:
    """What a session gives back goes in front of the swap files, also if memory is then above the threshold."""
    put_each(repository, "q", numbers(6))
    first, second = repository.session(), repository.session()
    first.get_many("q", 3)
    second.get_many("q", 3)
    put_each(repository, "q", numbers(12, 6))
    second.rollback()
    first.rollback()

    assert drain(repository, "q") == numbers(18)


def test_rolled_back_ones_come_first_after_a_crash(workshop: Workshop, repository: Engine) -> None:
    """FlowFiles that a session held when the process died stand where they stood."""
    put_each(repository, "q", numbers(20))
    holder = repository.session()
    holder.get_many("q", 8)

    assert drain(workshop.crash(), "q") == numbers(20)


def test_a_late_commit_goes_before_the_swapped(workshop: Workshop, repository: Engine) -> None:
    """A commit that was overtaken while its successors were swapped out is still served first."""
    late = repository.session()
    late.ingest("q", numbers(2))
    put_each(repository, "q", numbers(12, 2))
    late.commit()

    assert peek(repository, "q") == numbers(14)
    assert drain(workshop.crash(), "q") == numbers(14)


def test_a_smaller_threshold_swaps_at_the_next_chance(workshop: Workshop) -> None:
    """After a restart with a smaller threshold what is too much leaves memory, in order."""
    repository = workshop.make()
    put_each(repository, "q", numbers(20))
    repository = workshop.reopen(flow_file=SMALL)

    repository.queues.swap_out_all()

    assert resident(repository.queue("q")) < SMALL["swap_threshold"] + SMALL["swap_batch"]
    assert drain(repository, "q") == numbers(20)


def test_a_batch_larger_than_a_transaction_is_cut_down(workshop: Workshop) -> None:
    """A swap batch beyond what one transaction may name does not keep FlowFiles from swapping."""
    repository = workshop.make(flow_file={"swap_threshold": 20_000, "swap_batch": 20_000})
    for _ in range(4):
        put_all(repository, "q", [b""] * 10_000)

    assert repository.queues.swap_failure is None
    assert repository.queue("q").figures().swapped == 20_000


def test_what_stands_behind_a_batch_waits_for_it(repository: Engine, files: FailingFiles) -> None:
    """While a batch is being written to its swap file nothing behind it is handed out before it."""
    put_each(repository, "q", numbers(8))
    gate = files.hold("sync", "*.swap")
    with in_thread(lambda: put_all(repository, "q", numbers(1, 8))):
        gate.wait_until_reached()
        assert peek(repository, "q", 6) == numbers(6)
        with in_thread(lambda: put_all(repository, "q", numbers(2, 9))), repository.session() as session:
            first = [session.read(record).read() for record in session.get_many("q", 6)]
            session.rollback()
            gate.open()
    assert first == numbers(6)
    assert drain(repository, "q") == numbers(11)


def test_a_poll_waits_for_the_batch_that_is_leaving(repository: Engine, files: FailingFiles) -> None:
    """A poll that has emptied memory while a batch is on its way out gets that batch, not nothing."""
    put_each(repository, "q", numbers(8))
    gate = files.hold("sync", "*.swap")
    polled: list[bytes] = []
    with in_thread(lambda: put_all(repository, "q", numbers(1, 8))):
        gate.wait_until_reached()
        drain(repository, "q", 6)
        with in_thread(lambda: polled.extend(drain(repository, "q", 3))):
            gate.open()
    assert polled == numbers(3, 6)


def test_claims_that_swapped_and_resident_flow_files_share(workshop: Workshop, repository: Engine) -> None:
    """A claim lives while either side points at it; totals follow swap-out, death, swap-in and restart."""
    with committing(repository) as session:
        original = session.write(session.create(), b"shared content")
        clones = [session.clone(original) for _ in range(11)]
        session.transfer(original, "keep")
        session.transfer_many(clones, "q")
    (entry,) = [entry for entry in repository.ledger.entries() if entry.has_residents]
    assert repository.queue("q").figures().swapped == 3
    assert (entry.claimants, entry.end_in_use()) == (12, 14)

    drain(repository, "keep")
    assert drain(repository, "q", 6) == [b"shared content"] * 6
    assert (entry.claimants, entry.end_in_use()) == (5, 14)

    repository = workshop.crash()
    with committing(repository) as session:  # the last resident ones go, the swapped ones keep it alive
        session.remove_many(session.get_many("q", 2))
    (entry,) = [entry for entry in repository.ledger.entries() if entry.claimants]
    assert (entry.claimants, entry.end_in_use(), entry.is_free) == (3, 14, False)
    assert drain(repository, "q") == [b"shared content"] * 3
    assert entry.is_free


def test_block_checksums_stay_while_their_claims_are_swapped(workshop: Workshop) -> None:
    """Ranges of a large claim stay verified after a swap-out, a restart and a swap-in."""
    repository = workshop.make(flow_file={"swap_threshold": 1, "swap_batch": 1})
    large = bytes(range(256)) * 4_096
    put_each(repository, "q", [b"first", large, b"last"])
    assert repository.queue("q").figures().swapped == 2
    repository.checkpoint()

    repository = workshop.crash()
    drain(repository, "q", 1)

    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        assert session.read(record, 300_000, 10).read() == large[300_000:300_010]
        assert repository.reader.known_blocks(claim_of(record)) is not None


def test_handles_are_never_swapped(repository: Engine) -> None:
    """However many handles there are, each is found at once."""
    ids = repository.handles.put_many(numbers(50))

    assert swapped_files(repository) == []
    assert [repository.handles.get(id).read() for id in ids] == numbers(50)


def test_a_queue_of_swapped_flow_files_is_dropped_file_by_file(workshop: Workshop, files: FailingFiles) -> None:
    """Dropping reads no swap file where no history is kept: one small transaction each, then what is in memory."""
    repository = workshop.make(flow_file=SMALL, provenance={"enabled": False})
    put_each(repository, "q", numbers(30))
    opened = files.count("open", "*.swap")
    seen: list[int] = []

    repository.queues.drop(repository.queue("q"), seen.append)

    assert seen == [3, 6, 9, 12, 15, 18, 21, 24, 30]
    assert files.count("open", "*.swap") == opened
    assert drain(workshop.crash(), "q") == []


def test_each_summary_holds_the_earliest_entry(workshop: Workshop, repository: Engine) -> None:
    """What expiration needs to know of a swap file stands in its summary."""
    start = workshop.clock.millis
    for number in range(12):
        workshop.clock.millis = start + number * 1_000
        put_all(repository, "q", [b"x"])

    summaries = workshop.reopen().queue("q").swap_summaries()

    assert [summary.entry_millis_min - start for summary in summaries] == [6_000, 9_000]


def test_the_real_sizes(workshop: Workshop) -> None:
    """With the defaults 20,000 stay in memory, and files of 10,000 leave and come back."""
    repository = workshop.make()
    for first in range(0, 50_000, 10_000):
        put_all(repository, "q", numbers(10_000, first))
    queue = repository.queue("q")

    assert (resident(queue), queue.figures().swap_files) == (20_000, 3)
    assert drain(repository, "q", 10_000) == numbers(10_000)
    assert drain(repository, "q", 10_000) == numbers(10_000, 10_000)
    repository = workshop.crash()
    assert drain(repository, "q", 10_000) == numbers(10_000, 20_000)
    assert resident(repository.queue("q")) == 0
