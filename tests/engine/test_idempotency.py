"""Idempotency keys: a repeat gets the first answer, and changes nothing."""

import pytest

from tests.support import Workshop, drain, put_all
from ullage.engine.engine import Engine
from ullage.engine.idempotency import IdempotentRequest
from ullage.engine.ledger.remembered import KEPT_MILLIS, RememberedAnswers
from ullage.engine.model import Answer
from ullage.errors import KeyInUse, SessionMisuse

KEY = b"k" * 32


def put_once(repository: Engine) -> tuple[str, bool]:
    """The handle, and whether this call made it."""
    with repository.idempotency.once(KEY, b"put") as once:
        if once.first is not None:
            return once.first.decode(), False
        put = repository.handles.begin()
        put.write(b"content")
        return put.commit(also=lambda made: once.remember(made.encode())), True


@pytest.mark.parametrize("is_kill", [True, False])
def test_an_answer_outlives_the_process(workshop: Workshop, is_kill: bool) -> None:
    """It stands in the log with its change, and in the snapshot that follows."""
    id, _ = put_once(workshop.make())

    repository = workshop.crash() if is_kill else workshop.reopen()
    assert put_once(repository) == (id, False)
    repository.checkpoint()

    assert put_once(workshop.crash()) == (id, False)


def test_what_failed_is_not_remembered(repository: Engine) -> None:
    """A request that was refused may be tried again with its key."""
    with repository.idempotency.once(KEY, b"put") as once, repository.session() as session:
        session.create()
        with pytest.raises(SessionMisuse):
            session.commit(once.remember(b"never"))

    assert put_once(repository)[1]


def test_a_key_under_way_is_not_taken_twice(repository: Engine) -> None:
    """While the first request has no outcome its repeat has no answer."""
    with repository.idempotency.once(KEY, b"put"), pytest.raises(KeyInUse):
        put_once(repository)

    assert put_once(repository)[1]


def test_without_a_key_every_request_is_new(repository: Engine) -> None:
    """Nothing is remembered, and nothing keeps others out."""
    with repository.idempotency.once(None, b"put") as one, repository.idempotency.once(None, b"put") as other:
        assert isinstance(one, IdempotentRequest)
        assert one.first is None
        assert list(other.remember(b"x")) == []

    assert len(repository.ledger.answers) == 0


def test_an_answer_is_forgotten_when_its_time_is_over(workshop: Workshop, repository: Engine) -> None:
    """An hour later the key is new again, and takes no memory."""
    first, _ = put_once(repository)

    workshop.clock.advance(KEPT_MILLIS / 1000)
    second, is_new = put_once(repository)
    workshop.clock.advance(KEPT_MILLIS / 1000)
    repository.idempotency.forget()

    assert is_new
    assert first != second
    assert len(repository.ledger.answers) == 0
    assert repository.ledger.answers.bytes == 0


def test_the_oldest_answers_make_room_for_new_ones() -> None:
    """Memory is bounded; the newest answer always stays."""
    remembered = RememberedAnswers(bytes_max=1_000)

    for number in range(10):
        remembered.add(Answer(bytes([number]), b"", b"x" * 100, 0), number + 1)
    kept = [answer.key[0] for answer in remembered.all()]
    remembered.add(Answer(b"huge", b"", b"x" * 5_000, 0), 99)

    assert kept == [8, 9]
    assert [answer.key for answer in remembered.all()] == [b"huge"]


def test_a_session_and_its_answer_are_one_transaction(repository: Engine) -> None:
    """What the queue shows was answered, and a full batch leaves room for the answer."""
    with repository.idempotency.once(KEY, b"batch") as once, repository.session() as session:
        session.ingest("q", [b"x"] * 10_000)
        session.commit(once.remember(b"10000"))

    assert repository.idempotency.first(KEY, b"batch") == b"10000"
    assert len(drain(repository, "q")) == 10_000


def test_changes_of_handles_and_replays_are_remembered(repository: Engine) -> None:
    """Each of them takes operations that stand in its transaction."""
    (id,) = repository.handles.put_many([b"a"])
    put_all(repository, "q", [b"b"])
    drain(repository, "q")
    event = repository.history.event(3)
    assert event.type.name == "DROP"

    for number, change in enumerate((repository.handles.delete, repository.handles.undelete)):
        with repository.idempotency.once(bytes([number]), b"x") as once:
            change(id, once.remember(b"changed"))
    with repository.idempotency.once(b"replay", b"x") as once:
        made = repository.history.replay(event, "q", lambda record: once.remember(record.uuid))

    assert repository.idempotency.first(bytes([1]), b"x") == b"changed"
    assert repository.idempotency.first(b"replay", b"x") == made.uuid
