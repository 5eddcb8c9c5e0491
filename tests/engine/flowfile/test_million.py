import pytest

from tests.engine.flowfile.steps import resident
from tests.support import Workshop, committing, put_all

THRESHOLD = 20_000
BATCH = 10_000


@pytest.mark.slow
def test_a_million_flow_files_in_one_queue(workshop: Workshop) -> None:
    """A million stand in one queue with no more in memory than threshold and batch, before and after a crash."""
    repository = workshop.make(flow_file={"checkpoint_log_size": 1 << 30})
    queue = repository.queue("q")
    most = 0
    for number in range(100):
        put_all(repository, "q", [b""] * 9_999 + [str(number).encode()])
        most = max(most, resident(queue))

    assert most <= THRESHOLD + BATCH
    assert queue.figures()[:4] == (1_000_000, 190, 0, 980_000)
    assert len(repository.ledger.records) == resident(queue)

    repository = workshop.crash()
    queue = repository.queue("q")
    assert queue.figures()[:4] == (1_000_000, 190, 0, 980_000)
    last: list[bytes] = []
    for _ in range(4):
        with committing(repository) as session:
            records = session.get_many("q", 10_000)
            last.append(session.read(records[-1]).read())
            session.remove_many(records)
        assert resident(queue) <= THRESHOLD + BATCH
    assert last == [b"0", b"1", b"2", b"3"]

    assert repository.queues.drop(queue) == 960_000
    assert queue.figures() == (0, 0, 0, 0, 0, 0, 0)
