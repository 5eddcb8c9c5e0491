"""Events that can't be told, and files of events that can't be read: they stop nothing else, and are named."""

from pathlib import Path

import pytest

from tests.engine.provenance.history import history
from tests.support import Workshop, event_store, put_all
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_ATTRIBUTES,
    EventRun,
    EventType,
    FlowFileRecord,
    IndexCeiling,
    TransactionEvents,
)
from ullage.errors import EventNotFound, ProvenanceDamaged
from ullage.wire.provenance import EventQuery

UUID = b"u" * 16


def tell_too_much(repository: Engine) -> int:
    """One transaction whose events tell of a FlowFile more than it has, as no entrance lets anybody write."""
    record = FlowFileRecord(UUID, HANDLE_QUEUE, None, 0, 0, 0, 0, 0, NO_ATTRIBUTES)
    events = TransactionEvents("", "", (EventRun(EventType.CREATE, 0, 2),))
    ceiling = IndexCeiling(repository.ledger.index_ceiling + 1)
    return repository.committer.commit([record, ceiling, events], creates=False)


def sequences(repository: Engine) -> list[int]:
    return [event.sequence for event in history(repository)]


@pytest.mark.parametrize("before", [0, 1, 5])
def test_events_that_cannot_be_told_are_set_aside_and_all_others_drained(
    workshop: Workshop, repository: Engine, before: int
) -> None:
    """Their numbers are told as lost, and their FlowFile stays; so it is after a crash and a drain more."""
    for _ in range(before):
        put_all(repository, "q", [b"x"])
    bad = tell_too_much(repository)
    for _ in range(3):
        put_all(repository, "q", [b"x"])

    assert repository.provenance.drain() == before + 3

    for _ in range(2):
        assert repository.provenance.waiting() == (0, 0)
        (aside,) = repository.set_aside.listed(10)
        assert aside.place == f"the events of transaction {bad}"
        assert "has an event of FlowFile 0, which it lacks" in aside.reason
        assert (aside.resources, aside.held_through, aside.uuids) == ((), 0, b"")
        page = repository.history.query(EventQuery())
        assert [event.sequence for event in page.events] == [*range(1, before + 1), *range(before + 3, before + 6)]
        assert [(lost.first_sequence, lost.events) for lost in page.lost] == [(before + 1, 2)]
        assert repository.ledger.find(UUID) is not None
        repository = workshop.crash()
    put_all(repository, "q", [b"x"])
    assert repository.provenance.drain() == 1


def test_a_crash_between_setting_aside_and_passing_over_sets_aside_once(
    workshop: Workshop, repository: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next rollover comes to the same record."""
    tell_too_much(repository)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(event_store(repository), "_replace", killed)
        with pytest.raises(KeyboardInterrupt):
            repository.provenance.drain()
    repository = workshop.crash()
    repository.provenance.drain()

    assert len(repository.set_aside.listed(10)) == 1
    repository.set_aside.drop([repository.set_aside.listed(10)[0].id])
    assert workshop.crash().set_aside.listed(10) == []


def test_writers_and_checkpoints_go_on_past_events_that_cannot_be_told(workshop: Workshop) -> None:
    """A writer that meets the bound drains itself; maintenance and checkpoints meet no failure either."""
    repository = workshop.make(provenance={"rollover_events": 5})
    tell_too_much(repository)
    for _ in range(20):
        put_all(repository, "q", [b"x"])
    assert len(repository.set_aside.listed(10)) == 1

    tell_more = workshop.crash()
    assert event_store(tell_more).failure is None
    MaintenanceRunner(tell_more).run_due()
    tell_more.checkpoint()
    assert event_store(tell_more).failure is None


def test_before_it_is_set_aside_a_search_passes_it_over_and_says_so(repository: Engine) -> None:
    """The newest events are in memory until the next rollover, and one that cannot be told hides none of them."""
    put_all(repository, "q", [b"x"])
    bad = tell_too_much(repository)
    put_all(repository, "q", [b"x"])

    page = repository.history.query(EventQuery(newest_first=True))

    assert [event.sequence for event in page.events] == [4, 1]
    (unreadable,) = page.unreadable
    assert unreadable[:2] == (2, 2)
    assert f"the events of transaction {bad} cannot be told" in unreadable.problem
    with pytest.raises(ProvenanceDamaged, match=f"transaction {bad}"):
        repository.history.event(2)
    repository.provenance.drain()
    with pytest.raises(EventNotFound):
        repository.history.event(2)


def three_files(repository: Engine, workshop: Workshop) -> list[Path]:
    for _ in range(3):
        put_all(repository, "q", [b"x"] * 3)
        repository.provenance.drain()
    return sorted((workshop.path / "provenance" / "events").iterdir())


@pytest.mark.parametrize("harm", ["gone", "cut", "blank"])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_file_that_cannot_be_read_is_passed_over_and_named(
    workshop: Workshop, repository: Engine, harm: str, indexed: bool
) -> None:
    """By searches in both orders, by lineage, and by `check`; mended, it is as if nothing had been."""
    _, path, _ = three_files(repository, workshop)
    if indexed:
        repository.provenance.index_step()
    traced = repository.history.event(5).flow_file
    event_store(repository).event_files.close()
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:50] if harm == "cut" else bytes(len(whole)))

    for newest_first in (False, True):
        page = repository.history.query(EventQuery(types=["CREATE"], newest_first=newest_first))
        assert sorted(event.sequence for event in page.events) == [1, 2, 3, 7, 8, 9]
        assert [each[:2] for each in page.unreadable] == [(4, 3)]
        assert str(path) in page.unreadable[0].problem
    assert repository.history.query(EventQuery(after=6)).unreadable == ()
    assert repository.history.query(EventQuery(limit=2)).unreadable == ()
    graph = repository.history.lineage(traced)
    assert (graph.events, [each[:2] for each in graph.unreadable]) == ((), [(4, 3)])
    for sequence in (4, 6):
        with pytest.raises(ProvenanceDamaged, match=path.name):
            repository.history.event(sequence)
    assert any(str(path) in problem for problem in repository.check(deep=True).problems)

    path.write_bytes(whole)

    assert sequences(repository) == list(range(1, 10))
    assert len(repository.history.lineage(traced).events) == 1


def test_pages_go_past_a_file_that_cannot_be_read(workshop: Workshop, repository: Engine) -> None:
    """Whoever reads on from page to page comes to the end, and is told on the way."""
    _, path, _ = three_files(repository, workshop)
    event_store(repository).event_files.close()
    whole = path.read_bytes()
    path.unlink()

    found: list[int] = []
    told: list[tuple[int, int]] = []
    query = EventQuery(limit=2)
    while True:
        page = repository.history.query(query)
        found += [event.sequence for event in page.events]
        told += [(each.first_sequence, each.events) for each in page.unreadable]
        if page.next is None:
            break
        query = EventQuery(limit=2, after=page.next)

    assert found == [1, 2, 3, 7, 8, 9]
    assert set(told) == {(4, 3)}
    path.write_bytes(whole)
