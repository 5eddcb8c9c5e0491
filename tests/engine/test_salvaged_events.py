"""The history of a damaged repository in the new one: each event once, with its number, and what is lost is named."""

from pathlib import Path

import pytest

from tests.engine.provenance.test_unreadable import tell_too_much
from tests.support import Workshop, cut, drain, event_store, flip, put_all, spec_at
from ullage.engine.engine import Engine
from ullage.engine.history import Reason
from ullage.engine.model import HANDLE_QUEUE, NO_ATTRIBUTES, EventRun, EventType, FlowFileRecord, TransactionEvents
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.engine.salvaging import salvage
from ullage.errors import ClaimGone
from ullage.wire.provenance import EventQuery
from ullage.wire.salvage import SalvageReport


def events(repository: Engine) -> list[ProvenanceEvent]:
    return list(repository.history.query(EventQuery(limit=1_000)).events)


def files(workshop: Workshop) -> list[Path]:
    return sorted(workshop.path.glob("provenance/events/*.parquet"))


@pytest.fixture
def told(workshop: Workshop) -> list[ProvenanceEvent]:
    """What a killed process leaves: three event files, a log that still has what is in them, and newer events."""
    repository = workshop.make()
    for number in range(3):
        put_all(repository, "q", [b"%d" % each for each in range(number + 2)], n=str(number))
        drain(repository, "q", 1)
        event_store(repository).drain()
    put_all(repository, "q", [b"newest"])
    found = events(repository)
    workshop.kill()
    assert len(files(workshop)) == 3
    return found


def salvaged(workshop: Workshop) -> SalvageReport:
    return salvage(str(workshop.path), spec_at(workshop.path.parent / "new"), clock=workshop.clock)


def opened(workshop: Workshop) -> Engine:
    return Engine.open(spec_at(workshop.path.parent / "new"), clock=workshop.clock)


def forget_log(workshop: Workshop) -> None:
    """From now on only event files tell what they hold."""
    workshop.open()
    workshop.close()


def test_all_of_it_is_there_under_the_same_numbers(workshop: Workshop, told: list[ProvenanceEvent]) -> None:
    """By query, by id and by lineage; and what happens from now on comes behind it."""
    report = salvaged(workshop)

    assert report.is_whole
    assert (report.events, report.lost_events) == (len(told), 0)
    with opened(workshop) as repository:
        assert events(repository) == told
        for event in told:
            assert repository.history.find(EventId(event.transaction, event.ordinal)) == event
        dropped = next(event for event in told if event.type.name == "DROP")
        graph = repository.history.lineage(dropped.flow_file)
        assert [event.type.name for event in graph.events] == ["CREATE", "DROP"]
        drain(repository, "q")
        newest = events(repository)[len(told) :]
        assert newest[0].sequence == told[-1].sequence + 1
        assert newest[0].transaction > told[-1].transaction
        assert repository.check(deep=True).problems == ()


def test_content_at_an_event_of_before_is_gone(workshop: Workshop, told: list[ProvenanceEvent]) -> None:
    """Its address is one of the damaged repository; the new one gives none of those to other content."""
    salvaged(workshop)

    with opened(workshop) as repository:
        with pytest.raises(ClaimGone):
            repository.history.content(told[0])
        refusal = repository.history.refusal(told[0], "q")
        assert refusal is not None
        assert refusal.reason == Reason.CLAIM_GONE
        old = {event.content.claim.resource for event in told if event.content and event.content.claim}
        assert {entry.claim.index for entry in repository.ledger.entries()}.isdisjoint(old)


def test_an_event_file_that_the_log_still_tells_of_is_no_loss(workshop: Workshop, told: list[ProvenanceEvent]) -> None:
    """Its events come from the log, in their place."""
    flip(files(workshop)[1], 1_000)

    report = salvaged(workshop)

    assert [each.path for each in report.damaged] == [str(files(workshop)[1])]
    assert (report.events, report.lost_events) == (len(told), 0)
    with opened(workshop) as repository:
        assert events(repository) == told


def test_events_of_the_log_that_cannot_be_told_cost_only_themselves(workshop: Workshop) -> None:
    """They are counted, and named by their transaction; what stands before and behind them has its number."""
    repository = workshop.make()
    put_all(repository, "q", [b"before"])
    bad = tell_too_much(repository)
    put_all(repository, "q", [b"behind"])
    workshop.kill()

    report = salvaged(workshop)

    assert [each.path for each in report.damaged] == [f"the events of transaction {bad}"]
    assert "has an event of FlowFile 0, which it lacks" in report.damaged[0].reason
    assert (report.events, report.lost_events) == (2, 2)
    with opened(workshop) as repository:
        assert [(event.sequence, event.type.name) for event in events(repository)] == [(1, "CREATE"), (4, "CREATE")]
        assert drain(repository, "q") == [b"before", b"behind"]


def test_events_of_a_record_that_cannot_be_used_cost_only_themselves(workshop: Workshop) -> None:
    """A start sets both aside, and gives them no number."""
    repository = workshop.make()
    put_all(repository, "q", [b"before"])
    record = FlowFileRecord(b"u" * 16, HANDLE_QUEUE, None, 0, 0, 0, 0, 0, NO_ATTRIBUTES, parents=b"no uuid")
    events_of_it = TransactionEvents("", "", (EventRun(EventType.CREATE, 0, 1),))
    bad = repository.committer.commit([record, events_of_it], creates=False)
    put_all(repository, "q", [b"behind"])
    workshop.kill()

    report = salvaged(workshop)

    assert f"the events of transaction {bad}" in [each.path for each in report.damaged]
    with opened(workshop) as repository:
        assert [(event.sequence, event.type.name) for event in events(repository)] == [(1, "CREATE"), (2, "CREATE")]
        assert drain(repository, "q") == [b"before", b"behind"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_event_file_that_is_lost_costs_only_its_events(
    workshop: Workshop, told: list[ProvenanceEvent], number: int
) -> None:
    """They are counted, and named by the queries that would have found them."""
    forget_log(workshop)
    gone = files(workshop)[number]
    first = int(gone.stem)
    count = number + 3
    cut(gone, 100)

    report = salvaged(workshop)

    assert str(gone) in {each.path for each in report.damaged}
    assert (report.events, report.lost_events) == (len(told) - count, count)
    with opened(workshop) as repository:
        assert events(repository) == [event for event in told if not first <= event.sequence < first + count]
        lost = repository.history.query(EventQuery(limit=1_000)).lost
        assert [(each.first_sequence, each.events) for each in lost] == [(first, count)]


@pytest.mark.parametrize("is_there", [False, True])
def test_without_a_manifest_event_files_prove_themselves(
    workshop: Workshop, told: list[ProvenanceEvent], *, is_there: bool
) -> None:
    """Every page has a checksum, and every row its place."""
    manifest = workshop.path / "provenance" / "manifest"
    flip(manifest, 30)
    if not is_there:
        manifest.unlink()

    report = salvaged(workshop)

    assert [each.path for each in report.damaged] == [str(manifest)]
    assert (report.events, report.lost_events) == (len(told), 0)
    with opened(workshop) as repository:
        assert events(repository) == told


def test_without_a_manifest_nothing_of_a_damaged_event_file_counts_and_nothing_twice(
    workshop: Workshop, told: list[ProvenanceEvent]
) -> None:
    """Whatever bit of it is another one: what is there is what was there."""
    forget_log(workshop)
    (workshop.path / "provenance" / "manifest").unlink()
    _, second, third = files(workshop)
    third.with_name(f"{77:020d}.parquet").write_bytes(third.read_bytes())
    whole = second.read_bytes()
    expected = [event for event in told if not int(second.stem) <= event.sequence < int(third.stem)]
    for offset in range(0, len(whole), len(whole) // 12):
        flip(second, offset, offset % 8)
        report = salvage(str(workshop.path), spec_at(workshop.path.parent / str(offset)), clock=workshop.clock)
        second.write_bytes(whole)
        with Engine.open(spec_at(workshop.path.parent / str(offset)), clock=workshop.clock) as repository:
            found = events(repository)
        assert found == told or (found == expected and report.lost_events == 4), offset
        assert any(each.reason.endswith("has events of the same numbers") for each in report.damaged)


def test_a_target_without_provenance_has_none(workshop: Workshop, told: list[ProvenanceEvent]) -> None:
    """Its settings say so."""
    spec = spec_at(workshop.path.parent / "new", provenance={"enabled": False})

    report = salvage(str(workshop.path), spec, clock=workshop.clock)

    assert (report.events, report.queues) == (0, {"q": 7})
    with Engine.open(spec, clock=workshop.clock) as repository:
        assert events(repository) == []
