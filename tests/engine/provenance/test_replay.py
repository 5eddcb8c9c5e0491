"""Replay: what can be put back, every reason not to, and the race with truncation."""

import pytest

from tests.engine.provenance.history import history, of_type
from tests.support import Workshop, committing, drain, put_all
from ullage.contract import TruncationMode
from ullage.engine.engine import Engine
from ullage.engine.history import Reason
from ullage.engine.model import EventType, FlowFileRecord
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.errors import ClaimGone, ClaimTruncated, ReplayRefused

LARGE = 300 << 10


def dropped(repository: Engine, *contents: bytes) -> list[ProvenanceEvent]:
    """Contents that went through a queue and away, in one file; their DROP events."""
    with committing(repository) as session:
        for content in contents:
            made = session.write(session.create(attributes={"n": str(len(content)), "discard.reason": "x"}), content)
            session.transfer(made, "in")
    repository.queues.drop(repository.queue("in"))
    return of_type(repository, EventType.DROP)[-len(contents) :]


@pytest.mark.parametrize("size", [0, 10, LARGE])
@pytest.mark.parametrize("archived", [False, True])
def test_dropped_data_comes_back_into_its_queue(workshop: Workshop, size: int, *, archived: bool) -> None:
    """With content and attributes as they were, a REPLAY that names the original, and the lineage's date."""
    repository = workshop.make()
    (event,) = dropped(repository, b"x" * size)
    if archived:
        repository.reclamation.clean()
    workshop.clock.advance(60)

    assert repository.history.refusal(event) is None
    record = repository.history.replay(event)

    assert record.attribute_map()["n"] == str(size)
    assert record.attribute_map()["flowfile.replay"] == "true"
    assert "discard.reason" not in record.attribute_map()
    assert record.lineage_millis == event.lineage_millis
    (replay,) = of_type(repository, EventType.REPLAY)
    assert (replay.uuid, replay.parent_ids, replay.child_ids) == (record.uuid, [event.flow_file], [record.id])
    repository = workshop.crash()
    assert drain(repository, "in") == [b"x" * size]


def test_a_modified_flow_file_is_replayed_as_it_was_before(repository: Engine) -> None:
    """The component that changed it gets it again, unchanged; the event's own result can be read beside it."""
    put_all(repository, "in", [b"before"], a="1")
    with committing(repository) as session:
        (flow_file,) = session.get_many("in", 1)
        session.transfer(session.write(session.put_attribute(flow_file, "a", "2"), b"and after"), "out")
    event = history(repository)[-1]

    record = repository.history.replay(event)

    assert record.attribute_map()["a"] == "1"
    assert drain(repository, "in") == [b"before"]
    with repository.history.content(event, before=True) as content:
        assert content.read() == b"before"
    with repository.history.content(event) as content:
        assert content.read() == b"and after"


def test_a_created_flow_file_is_replayed_where_one_says(repository: Engine) -> None:
    """What came from no queue needs one named."""
    put_all(repository, "in", [b"x"])
    (event,) = history(repository)

    assert refusal_of(repository, event) == Reason.NO_QUEUE
    repository.history.replay(event, "in")
    assert drain(repository, "in") == [b"x", b"x"]


def test_a_join_is_refused(repository: Engine) -> None:
    """One FlowFile cannot stand for several parents."""
    put_all(repository, "in", [b"a", b"b"])
    with committing(repository) as session:
        parts = session.get_many("in", 2)
        session.transfer(session.merge(parts), "out")
        session.remove_many(parts)
    (event,) = of_type(repository, EventType.JOIN)

    assert refusal_of(repository, event, "in") == Reason.SEVERAL_PARENTS


def test_an_unknown_queue_is_refused(repository: Engine) -> None:
    """A queue that is not there is not made by a replay."""
    (event,) = dropped(repository, b"x")

    assert refusal_of(repository, event, "elsewhere") == Reason.QUEUE_GONE


def test_a_deleted_claim_is_refused(workshop: Workshop) -> None:
    """Content that was given back whole is gone, and the event says where it was."""
    repository = workshop.make(archive={"enabled": False})
    (event,) = dropped(repository, b"x" * 100_000)
    repository.reclamation.clean()

    assert refusal_of(repository, event) == Reason.CLAIM_GONE
    with pytest.raises(ClaimGone):
        repository.history.content(event)


def truncatable(repository: Engine) -> tuple[ProvenanceEvent, FlowFileRecord]:
    """A dead large tail behind a live small claim: the DROP event of the one, and the other."""
    with committing(repository) as session:
        kept = session.write(session.create(), b"small")
        session.transfer(kept, "kept")
        session.transfer(session.write(session.create(), b"l" * LARGE), "in")
    repository.queues.drop(repository.queue("in"))
    return history(repository)[-1], kept


def test_a_truncated_claim_is_refused(workshop: Workshop) -> None:
    """The file is there and the claim is not: asking for the file alone, as NiFi does, would replay nothing."""
    repository = workshop.make(truncation={"mode": TruncationMode.EAGER})
    event, _ = truncatable(repository)
    repository.reclamation.truncate()

    assert refusal_of(repository, event) == Reason.TRUNCATED
    with pytest.raises(ClaimTruncated):
        repository.history.content(event)
    assert drain(repository, "kept") == [b"small"]


def test_a_replay_under_way_keeps_its_claim_from_truncation(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation that runs between question and commit cuts nothing of it; a plan made before it neither."""
    repository = workshop.make(truncation={"mode": TruncationMode.EAGER})
    event, _ = truncatable(repository)
    plan = repository.reclamation.plan_truncation(eager=True)
    assert plan.steps
    verified_blocks = repository.reader.verified_blocks

    def racing(*arguments: object) -> bytes | None:
        repository.reclamation.execute(plan)
        repository.reclamation.truncate()
        return verified_blocks(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(repository.reader, "verified_blocks", racing)
    repository.history.replay(event)

    assert drain(workshop.crash(), "in") == [b"l" * LARGE]


def test_unreadable_content_is_refused(workshop: Workshop, repository: Engine) -> None:
    """Changed bytes and a missing file are found before anything is queued."""
    (one,) = dropped(repository, b"y" * 60_000)
    (path,) = [path for path in workshop.path.glob("c1/**/*-*") if path.is_file()]
    path.write_bytes(b"z" + path.read_bytes()[1:])

    assert refusal_of(repository, one) == Reason.UNREADABLE
    path.unlink()
    assert refusal_of(repository, one) == Reason.UNREADABLE
    workshop.expects_problems = True


def test_a_replayed_claim_lives_again(workshop: Workshop) -> None:
    """From the replay on it counts: neither truncation nor cleaning touches it, over a restart too."""
    repository = workshop.make(truncation={"mode": TruncationMode.EAGER}, archive={"enabled": False})
    event, _ = truncatable(repository)
    repository.history.replay(event)
    repository = workshop.crash()
    repository.reclamation.truncate()
    repository.reclamation.clean()

    assert drain(repository, "in") == [b"l" * LARGE]


def refusal_of(repository: Engine, event: ProvenanceEvent, queue: str = "") -> Reason:
    """Why an event is refused; asking and trying agree, and nothing is queued or recorded."""
    events = len(history(repository))
    refusal = repository.history.refusal(event, queue)
    assert refusal is not None
    with pytest.raises(ReplayRefused) as caught:
        repository.history.replay(event, queue)
    assert caught.value.reason == refusal.reason
    assert len(history(repository)) == events
    return refusal.reason
