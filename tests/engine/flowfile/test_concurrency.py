import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.engine.flowfile.steps import SMALL, define, numbers
from tests.support import Workshop, committing, drain, put_all
from tests.threads import together
from ullage.engine.engine import Engine


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

    together(*(partial(produce, first) for first in (0, 400, 800)), *(partial(consume, number) for number in range(3)))

    assert seen == Counter(numbers(total))
    assert repository.queue("q").figures() == (0, 0, 0, 0, 0, 0, 0)


def test_drops_expiration_and_checkpoints_beside_commits(workshop: Workshop) -> None:
    """Everything that moves FlowFiles at once, without a deadlock, and the counts are right after it."""
    repository = workshop.make(flow_file=SMALL)
    queue = define(repository, expiration_millis=1_000_000)

    def often(*works: Callable[[], object]) -> list[Callable[[], object]]:
        return [lambda work=work: [work() for _ in range(25)] for work in works]  # type: ignore[misc]

    def rotate() -> None:
        with committing(repository) as session:
            session.transfer_many(session.get_many("q", 5), "q")

    together(
        *often(partial(put_all, repository, "q", numbers(10)), rotate, repository.checkpoint),
        *often(repository.queues.expire, repository.queues.swap_out_all),
        lambda: [define(repository, expiration_millis=1_000_000 + number) for number in range(25)],
        lambda: [repository.queues.drop(queue) for _ in range(3)],
    )

    left = queue.figures()
    assert left.held == 0
    assert len(drain(repository, "q")) == left.flow_files


def test_one_queue_for_many_first_users(workshop: Workshop, repository: Engine) -> None:
    """Threads that use a new name at the same time get one queue, under one number."""
    found = []

    together(*[lambda: found.append(repository.queue("new"))] * 8)

    assert len({id(queue) for queue in found}) == 1
    assert [queue.number for queue in workshop.reopen().queues.all()] == [1]
