import threading
from collections import Counter

import pytest

from tests.engine.flowfile.steps import SMALL, define, numbers
from tests.engine.flowfile.threads import in_thread
from tests.support import Workshop, drain, put_all


@pytest.mark.parametrize("priority", ["FirstInFirstOut", "LargestFirst"])
def test_no_flow_file_is_got_twice_and_none_is_lost(workshop: Workshop, priority: str) -> None:
    """Producers and consumers at a time, through swap files, rollbacks and a small memory: each content once."""
    repository = workshop.make(flow_file={"swap_threshold": 40, "swap_batch": 20})
    define(repository, priority=priority)
    total = 1_200
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()
    is_done = threading.Event()

    def produce(first: int) -> None:
        for start in range(first, first + total // 3, 50):
            put_all(repository, "q", numbers(50, start))

    def consume(number: int) -> None:
        turn = number
        while not is_done.is_set():
            turn += 1
            with repository.session() as session:
                records = session.get_many("q", 15)
                contents = [session.read(record).read() for record in records]
                if turn % 4 == 0:
                    session.rollback()
                    continue
                session.remove_many(records)
                session.commit()
            with lock:
                seen.update(contents)
                if seen.total() >= total:
                    is_done.set()

    with in_thread(
        *(lambda first=first: produce(first) for first in (0, 400, 800)),
        *(lambda number=number: consume(number) for number in range(3)),
    ):
        pass

    assert seen == Counter(numbers(total))
    assert repository.queue("q").figures() == (0, 0, 0, 0, 0, 0)


def test_drops_expiration_and_checkpoints_beside_commits(workshop: Workshop) -> None:
    """Everything that moves FlowFiles at once, without a deadlock, and the counts are right after it."""
    repository = workshop.make(flow_file=SMALL)
    queue = define(repository, expiration_millis=1_000_000)

    def each(work: object) -> None:
        for _ in range(25):
            assert callable(work)
            work()

    def rotate() -> None:
        with repository.session() as session:
            session.transfer_many(session.get_many("q", 5), "q")
            session.commit()

    with in_thread(
        lambda: each(lambda: put_all(repository, "q", numbers(10))),
        lambda: each(rotate),
        lambda: each(repository.queues.expire),
        lambda: each(repository.checkpoint),
        lambda: each(repository.queues.swap_out_all),
        lambda: [define(repository, expiration_millis=1_000_000 + number) for number in range(25)],
        lambda: [repository.queues.drop(queue) for _ in range(3)],
    ):
        pass

    left = queue.figures()
    assert left.held == 0
    assert len(drain(repository, "q")) == left.flow_files


def test_one_queue_for_many_first_users(workshop: Workshop) -> None:
    """Threads that use a new name at the same time get one queue, under one number."""
    repository = workshop.make()
    found = []

    with in_thread(*(lambda: found.append(repository.queue("new")) for _ in range(8))):
        pass

    assert len({id(queue) for queue in found}) == 1
    assert [queue.number for queue in workshop.reopen().queues.all()] == [1]
