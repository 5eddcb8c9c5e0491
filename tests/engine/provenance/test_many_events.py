"""Events in numbers: several row groups, several files, several threads."""

import threading

import pytest

from tests.engine.provenance.history import history
from tests.support import Workshop, event_store, put_all
from ullage.wire.provenance import EventQuery


@pytest.mark.parametrize("indexed", [False, True])
def test_any_event_of_a_large_file_is_found(workshop: Workshop, *, indexed: bool) -> None:
    """Beyond the first row group, by number, by condition, and in pages both ways."""
    repository = workshop.make()
    for number in range(5):
        put_all(repository, "q", [b""] * 5_000, batch=str(number))
    repository.provenance.drain()
    if indexed:
        repository.provenance.index_step()
    (file,) = event_store(repository).manifest.files
    assert file.events == 25_000

    for sequence in (1, 9_999, 10_000, 10_001, 20_000, 20_001, 25_000):
        event = repository.history.event(sequence)
        assert event.sequence == sequence
        found = repository.history.query(EventQuery(flow_file=event.flow_file)).events
        assert [each.sequence for each in found] == [sequence]
    third = EventQuery(attributes={"batch": "2"}, limit=10_000)
    assert [event.sequence for event in repository.history.query(third).events] == list(range(10_001, 15_001))
    page = repository.history.query(EventQuery(types=["CREATE"], newest_first=True, before=20_003, limit=5))
    assert [event.sequence for event in page.events] == [20_002, 20_001, 20_000, 19_999, 19_998]
    assert page.next == 19_998


def test_rollovers_searches_and_commits_go_side_by_side(workshop: Workshop) -> None:
    """Four threads commit while events move, are indexed and are paged through: each is seen once, in order."""
    repository = workshop.make(flow_file={"partitions": 2}, provenance={"rollover_events": 40})
    made: list[bytes] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def commit(number: int) -> None:
        try:
            for _ in range(30):
                made.extend(record.uuid for record in put_all(repository, f"q{number}", [b"x"] * 3))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            failures.append(error)

    def move() -> None:
        try:
            while not is_over.is_set():
                repository.provenance.drain()
                repository.provenance.index_step()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            failures.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    mover = threading.Thread(target=move)
    for thread in (*threads, mover):
        thread.start()
    seen: list[tuple[int, bytes]] = []
    while len(seen) < 360 and not failures:
        page = repository.history.query(EventQuery(after=seen[-1][0] if seen else 0, limit=7))
        seen += [(event.sequence, event.uuid) for event in page.events]
    for thread in threads:
        thread.join()
    is_over.set()
    mover.join()

    assert failures == []
    assert [sequence for sequence, _ in seen] == list(range(1, 361))
    assert sorted(uuid for _, uuid in seen) == sorted(made)
    assert [(event.sequence, event.uuid) for event in history(workshop.crash())] == seen
