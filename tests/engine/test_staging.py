"""Staged writes: what attempts store appears together and once, or not at all, whatever fails in between."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support import Workshop, content_sizes, drain
from tests.threads import together
from ullage.engine.engine import Engine
from ullage.engine.ledger.staged import StagedWrites
from ullage.engine.model import STAGED_QUEUE, EventType, StagedWrite, WriteState, new_uuids
from ullage.engine.staging import CLOSED_MILLIS, PREPARED_MILLIS, SLICE
from ullage.errors import WriteClosed, WriteIncomplete
from ullage.wire.provenance import EventQuery

WRITE, ONE, TWO, THREE = new_uuids(4)
HOUR = 3_600_000


def begun(repository: Engine, queue: str = "in", **settings: Any) -> Engine:
    repository.staging.begin(WRITE, "test", queue=queue, **settings)
    return repository


def seen(repository: Engine) -> int:
    """FlowFiles and handles that anybody sees."""
    return sum(record.queue != STAGED_QUEUE for record in repository.ledger.flow_files())


def test_what_counts_appears_and_the_rest_goes(workshop: Workshop) -> None:
    """Of three attempts two count; the third, like a repeated batch, leaves nothing."""
    repository = begun(workshop.make())
    staging = repository.staging
    staging.stage(WRITE, ONE, 0, [b"a", b"b"], {"from": "one"})
    staging.stage(WRITE, TWO, 0, [b"lost"])
    staging.stage(WRITE, THREE, 0, [b"c"])
    first = staging.stage(WRITE, ONE, 1, [b"d", b""])
    assert staging.stage(WRITE, ONE, 1, [b"d", b""]) == first

    assert seen(repository) == 0
    staging.prepare(WRITE, {ONE: 2, THREE: 1})
    assert seen(repository) == 0
    staging.commit(WRITE, {ONE: 2, THREE: 1})

    assert repository.staging.pending() == []
    assert [record.attribute_map().get("from") for record in repository.queue("in").records()] == ["one", "one"] + [
        None
    ] * 3
    assert drain(repository, "in") == [b"a", b"b", b"d", b"", b"c"]


def test_handles_appear_with_their_time_to_live(workshop: Workshop) -> None:
    """It counts from the commit, and ends as that of any handle."""
    repository = begun(workshop.make(), "", ttl_millis=60_000)
    (uuid,) = repository.staging.stage(WRITE, ONE, 0, [b"content"])
    workshop.clock.advance(30)
    repository.staging.prepare(WRITE, {ONE: 1})
    repository.staging.commit(WRITE, {ONE: 1})

    with repository.handles.get(uuid.hex()) as stream:
        assert stream.read() == b"content"
    workshop.clock.advance(61)
    assert repository.handles.purge() == 1


def test_provenance_tells_of_what_appears_and_of_nothing_else(workshop: Workshop) -> None:
    """One CREATE for each FlowFile that counts, none for what was only staged."""
    repository = begun(workshop.make())
    kept = repository.staging.stage(WRITE, ONE, 0, [b"a", b"b"])
    repository.staging.stage(WRITE, TWO, 0, [b"lost"])
    assert repository.history.query(EventQuery()).events == ()
    repository.staging.prepare(WRITE, {ONE: 1})
    repository.staging.commit(WRITE, {ONE: 1})

    events = repository.history.query(EventQuery()).events
    assert [(event.type, event.uuid) for event in events] == [(EventType.CREATE, uuid) for uuid in kept]


@pytest.mark.parametrize(
    "late",
    [
        lambda staging: staging.stage(WRITE, ONE, 1, [b"late"]),
        lambda staging: staging.stage(WRITE, THREE, 0, [b"late"]),
        lambda staging: staging.prepare(WRITE, {TWO: 1}),
    ],
)
@pytest.mark.parametrize("is_committed", [True, False])
def test_what_comes_late_is_refused(workshop: Workshop, late: Callable[[object], object], is_committed: bool) -> None:
    """An attempt that begins, or goes on, after the verdict leaves nothing behind."""
    repository = begun(workshop.make())
    repository.staging.stage(WRITE, ONE, 0, [b"a"])
    if is_committed:
        repository.staging.prepare(WRITE, {ONE: 1})
        repository.staging.commit(WRITE, {ONE: 1})
    else:
        repository.staging.abort(WRITE)

    with pytest.raises(WriteClosed):
        late(repository.staging)

    assert sum(1 for _ in repository.ledger.flow_files()) == is_committed


def test_an_abort_undoes_no_commit(workshop: Workshop) -> None:
    """It is compare-and-set: on a committed write, and on an unknown one, it does nothing."""
    repository = begun(workshop.make())
    staging = repository.staging
    staging.stage(WRITE, ONE, 0, [b"a"])
    staging.prepare(WRITE, {ONE: 1})
    staging.commit(WRITE, {ONE: 1}, b"where")

    assert staging.abort(WRITE) == WriteState.COMMITTED
    assert staging.abort(TWO) is None
    assert staging.commit(WRITE, ()).decision == b"where"
    assert staging.begin(WRITE, "again").state == WriteState.COMMITTED
    assert drain(repository, "in") == [b"a"]


def test_an_aborted_write_begins_anew(workshop: Workshop) -> None:
    """A batch of a stream keeps its name when it is tried again; what the first try staged is gone."""
    repository = begun(workshop.make())
    repository.staging.stage(WRITE, ONE, 0, [b"a"])
    assert repository.staging.abort(WRITE) == WriteState.ABORTED
    assert seen(repository) == sum(1 for _ in repository.ledger.flow_files()) == 0

    begun(repository).staging.stage(WRITE, TWO, 0, [b"b"])
    repository.staging.prepare(WRITE, {TWO: 1})
    repository.staging.commit(WRITE, {TWO: 1})
    assert drain(repository, "in") == [b"b"]


def test_only_what_is_whole_can_be_prepared(workshop: Workshop) -> None:
    """An attempt of which something is missing would commit less than its writer thinks."""
    staging = begun(workshop.make()).staging
    staging.stage(WRITE, ONE, 0, [b"a"])

    for wrong in ({ONE: 2}, {TWO: 1}, {ONE: 0}):
        with pytest.raises(WriteIncomplete):
            staging.prepare(WRITE, wrong)
    with pytest.raises(WriteIncomplete):
        staging.stage(WRITE, ONE, 2, [b"a gap"])
    with pytest.raises(WriteClosed):
        staging.commit(WRITE, {ONE: 1})
    assert staging.prepare(WRITE, {ONE: 1}) == staging.prepare(WRITE, {ONE: 1})


def test_somebody_who_begins_again_need_not_know_how_far_it_was(workshop: Workshop) -> None:
    """A prepared write takes other attempts, and is prepared anew; a commit names those that it means."""
    repository = begun(workshop.make())
    staging = repository.staging
    staging.stage(WRITE, ONE, 0, [b"of the first run"])
    staging.prepare(WRITE, {ONE: 1})
    assert staging.begin(WRITE, "again").state == WriteState.PREPARED
    staging.stage(WRITE, TWO, 0, [b"of the second"])
    staging.prepare(WRITE, {TWO: 1})

    with pytest.raises(WriteClosed):
        staging.commit(WRITE, {ONE: 1})
    staging.commit(WRITE, {TWO: 1})
    assert drain(repository, "in") == [b"of the second"]


def test_a_write_whose_driver_died_is_aborted(workshop: Workshop) -> None:
    """While something is staged its time begins anew; a prepared one waits a day for its verdict."""
    repository = begun(workshop.make(), lasts_millis=HOUR)
    staging, clock = repository.staging, workshop.clock
    staging.stage(WRITE, ONE, 0, [b"a"])
    clock.advance(3_000)
    staging.stage(WRITE, ONE, 1, [b"b"])
    clock.advance(3_000)
    assert staging.expire() == 0
    clock.advance(700)
    assert staging.expire() == 1
    assert sum(1 for _ in repository.ledger.flow_files()) == 0

    begun(repository)
    staging.stage(WRITE, TWO, 0, [b"c"])
    staging.prepare(WRITE, {TWO: 1})
    clock.advance(PREPARED_MILLIS / 1000 - 1)
    assert staging.expire() == 0
    clock.advance(1)
    assert staging.expire() == 1
    assert staging.find(WRITE) is not None
    clock.advance(CLOSED_MILLIS / 1000)
    staging.expire()
    assert staging.find(WRITE) is None


@pytest.mark.parametrize("is_kill", [True, False])
def test_a_write_outlives_the_process(workshop: Workshop, is_kill: bool) -> None:
    """What is staged, prepared and decided stands in the log, and in the snapshot that follows."""

    def again() -> Engine:
        return workshop.crash() if is_kill else workshop.reopen()

    begun(workshop.make()).staging.stage(WRITE, ONE, 0, [b"a"])
    repository = again()
    repository.staging.stage(WRITE, ONE, 1, [b"b"])
    repository.checkpoint()
    repository = again()
    repository.staging.stage(WRITE, ONE, 1, [b"b"])
    repository.staging.prepare(WRITE, {ONE: 2})
    repository = again()
    repository.staging.commit(WRITE, {ONE: 2})
    repository = again()
    repository.checkpoint()
    assert again().staging.begin(WRITE, "test").state == WriteState.COMMITTED
    assert drain(workshop.repository, "in") == [b"a", b"b"]


def test_many_appear_in_slices_and_a_kill_in_between_is_made_good(workshop: Workshop) -> None:
    """The verdict stands with the first slice: the next open finishes what it began."""
    repository = begun(workshop.make())
    contents = [str(number).encode() for number in range(2 * SLICE + 7)]
    repository.staging.stage(WRITE, ONE, 0, contents)
    repository.staging.prepare(WRITE, {ONE: 1})
    commits: list[int] = []
    commit = repository.committer.commit

    def interrupted(*arguments: object, **settings: object) -> int:
        if commits:
            raise KeyboardInterrupt
        commits.append(1)
        return commit(*arguments, **settings)  # type: ignore[arg-type]

    repository.committer.commit = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        repository.staging.commit(WRITE, {ONE: 1})
    assert seen(repository) == SLICE

    repository = workshop.crash()
    assert drain(repository, "in") == contents


def test_attempts_store_side_by_side(workshop: Workshop) -> None:
    """Twenty threads, each with an attempt of its own and one of which sends everything twice."""
    repository = begun(workshop.make())
    attempts = new_uuids(20)

    def store(attempt: bytes) -> None:
        for number in range(5):
            repository.staging.stage(WRITE, attempt, number, [attempt + bytes([number])])
            repository.staging.stage(WRITE, attempts[0], number, [attempts[0] + bytes([number])])

    store(attempts[0])
    together(*(partial(store, attempt) for attempt in attempts[1:]))
    repository.staging.prepare(WRITE, dict.fromkeys(attempts, 5))
    repository.staging.commit(WRITE, attempts)

    assert drain(repository, "in") == [attempt + bytes([number]) for attempt in attempts for number in range(5)]


def test_a_large_content_is_staged_piece_by_piece(workshop: Workshop) -> None:
    """It is written once, however often it is sent."""
    repository = begun(workshop.make())
    pieces = [bytes([number]) * 300_000 for number in range(9)]
    for _ in range(2):
        repository.staging.stage_stream(WRITE, ONE, 0, pieces, {"n": "1"})
    repository.staging.prepare(WRITE, {ONE: 1})
    repository.staging.commit(WRITE, {ONE: 1})

    assert drain(repository, "in") == [b"".join(pieces)]


def test_a_staged_content_whose_attributes_cannot_be_stored_leaves_nothing(workshop: Workshop) -> None:
    """No file stays taken by a writer that nobody has any more."""
    repository = begun(workshop.make())
    with pytest.raises(UnicodeEncodeError):
        repository.staging.stage_stream(WRITE, ONE, 0, [b"x" * 300_000], {"a": "\ud800"})

    assert content_sizes(workshop.path) == {}


def test_settled_writes_are_remembered_within_a_bound() -> None:
    """The oldest go first; a pending one never."""
    writes = StagedWrites(settled_max=3)
    ids = new_uuids(6)
    writes.set(StagedWrite(ids[0], WriteState.OPEN, "", 0, 0, 0, 0))
    for id in ids[1:]:
        writes.set(StagedWrite(id, WriteState.COMMITTED, "", 0, 0, 0, 9))

    assert [writes.find(id) is not None for id in ids] == [True, False, False, True, True, True]
    writes.forget(9)
    assert len(writes) == 1


def test_who_settles_most_loses_what_is_remembered_and_nobody_else() -> None:
    """Verdicts where there are too many, and before that the words of those that have many; a start finds the same."""
    writes = StagedWrites(settled_max=6, words_bytes_max=100)
    ids = new_uuids(9)

    def commit(id: bytes, owner: str, decision: bytes) -> None:
        writes.set(StagedWrite(id, WriteState.COMMITTED, owner, 0, 0, 0, 9, decision=decision))

    for id in ids[:2]:
        commit(id, "good", b"g" * 20)
    for id in ids[2:]:
        commit(id, "hostile", b"h" * 25)
    again = StagedWrites(settled_max=6, words_bytes_max=100)
    for record in writes.operations():
        assert isinstance(record, StagedWrite)
        again.set(record)

    for found in (writes, again):
        kept = [found.find(id) for id in ids]
        assert [each and len(each.record.decision) for each in kept] == [20, 20, None, None, None, 0, 0, 25, 25]
    for id in ids[5:]:
        commit(id, "hostile", b"")  # another state of each: what was counted of it is not any more
    commit(ids[2], "good", b"g" * 60)
    kept = [writes.find(id) for id in ids[:3]]
    assert [each and len(each.record.decision) for each in kept] == [20, 20, 60]
