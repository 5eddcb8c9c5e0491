"""Looking for a subject: a canary that is planted in a place is counted there, and changes nothing."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.flowfile.steps import SMALL, define
from tests.engine.reclaim.test_rewrite import PLAIN, compact
from tests.engine.test_cold_handles import cool, seal
from tests.engine.test_setting_aside import COUNTED
from tests.faults.detached import Detached
from tests.support import (
    TWO,
    Workshop,
    careless,
    claim_of,
    committing,
    content_sizes,
    drain,
    event_store,
    flip,
    put_all,
    put_each,
)
from ullage.contract import ReplicationMode
from ullage.engine.engine import Engine
from ullage.engine.erasure.finder import cost_of, find_subject
from ullage.engine.model import (
    NO_ATTRIBUTES,
    UUID_BYTES,
    Answer,
    FlowFileRecord,
    Operation,
    SetAside,
    SwapOut,
    Update,
    format_uuid,
    new_uuids,
)
from ullage.engine.runs.rows import RowBlock, RowRun, RunRow, key_of
from ullage.wire.erasure import ErasurePlace, ErasureSurvey
from ullage.wire.salvage import HELD_QUEUE

CANARY = {"customer": "canary-4711"}
OTHER = {"customer": "canary-4712"}
HOUR = 3_600

CONTENT = {place for place in ErasurePlace if place.endswith("Content")}
EVENTS = {ErasurePlace.EVENTS_BEFORE, ErasurePlace.EVENTS_AFTER}


def look(repository: Engine, where: Mapping[str, str] = CANARY) -> ErasureSurvey:
    return find_subject(repository, where, cost_of(repository), lambda _count: None)


def found(survey: ErasureSurvey, places: set[ErasurePlace]) -> dict[ErasurePlace, tuple[int, int]]:
    """Counts and bytes of those of these places that have something."""
    return {each.place: (each.count, each.bytes) for each in survey.findings if each.place in places and each.count}


def records(survey: ErasureSurvey) -> dict[ErasurePlace, tuple[int, int]]:
    return found(survey, set(ErasurePlace) - CONTENT - EVENTS)


def contents(survey: ErasureSurvey) -> dict[ErasurePlace, tuple[int, int]]:
    return found(survey, CONTENT)


def plant(repository: Engine, queue: str, content: bytes = b"12345", **more: str) -> FlowFileRecord:
    """The subject's, and somebody else's beside it."""
    put_all(repository, queue, [content], **OTHER)
    return put_all(repository, queue, [content], **CANARY, **more)[0]


def test_flow_files_and_handles_are_found_wherever_they_stand(workshop: Workshop) -> None:
    """In a queue, held, staged, as a handle, and as a tombstone; those of others are not counted."""
    repository = workshop.make()
    plant(repository, "in", b"1")
    plant(repository, HELD_QUEUE, b"22")
    write, attempt = new_uuids(2)
    repository.staging.begin(write, "test", queue="in")
    repository.staging.stage(write, attempt, 0, [b"333"], CANARY)
    for attributes in (CANARY, OTHER):
        repository.handles.put(b"4444", attributes)
        repository.handles.delete(repository.handles.put(b"55555", attributes))

    assert records(look(repository)) == {
        ErasurePlace.QUEUED: (1, 1),
        ErasurePlace.HELD: (1, 2),
        ErasurePlace.STAGED: (1, 3),
        ErasurePlace.HANDLES: (1, 4),
        ErasurePlace.TOMBSTONES: (1, 5),
    }


def test_swapped_flow_files_are_found(workshop: Workshop) -> None:
    """In each swap file, with their contents; and what is still in memory is told apart."""
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 2})
    define(repository)
    put_each(repository, "q", [b"a"] * 12, **CANARY)
    assert repository.ledger.swaps

    survey = look(repository)

    counts = {place: count for place, (count, _) in records(survey).items()}
    assert counts == {
        ErasurePlace.QUEUED: 12 - counts[ErasurePlace.SWAPPED],
        ErasurePlace.SWAPPED: counts[ErasurePlace.SWAPPED],
    }
    assert contents(survey) == {ErasurePlace.OWN_CONTENT: (12, 12)}
    assert survey.cost.swap_files == len(repository.ledger.swaps)
    assert survey.cost.records == 12


def test_handles_in_runs_are_found_with_their_content(workshop: Workshop) -> None:
    """What has left memory is looked at on the disk, also for what others need."""
    repository = workshop.make()
    repository.handles.put_many([b"123"] * 40, CANARY)
    repository.handles.put_many([b"45"] * 40, OTHER)
    seal(repository)
    cool(repository)
    assert repository.ledger.cold.count == 80

    survey = look(repository)

    assert records(survey) == {ErasurePlace.RUN_HANDLES: (40, 120)}
    assert contents(survey) == {ErasurePlace.OWN_CONTENT: (40, 120)}
    assert survey.cost.run_bytes > 0


@pytest.mark.parametrize("place", ["memory", "swap file"])
def test_bytes_that_others_need_are_told_apart(workshop: Workshop, place: str) -> None:
    """Of a content of ten bytes the subject has eight, and somebody else, wherever they stand, the last four."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    define(repository)
    with committing(repository) as session:
        whole = session.put_attributes(session.write(session.create(), b"0123456789"), CANARY)
        mine, theirs = session.clone(whole, 0, 8), session.clone(whole, 6, 4)
        session.transfer(mine, "mine")
        session.transfer(session.put_attributes(theirs, OTHER), "q")
        session.remove(whole)
    if place == "swap file":
        put_each(repository, "q", [b""] * 6)
        drain(repository, "q", 0)
        assert repository.ledger.swaps

    assert contents(look(repository)) == {ErasurePlace.OWN_CONTENT: (1, 6), ErasurePlace.SHARED_CONTENT: (1, 2)}


def test_content_that_a_rewrite_moved_is_found_where_it_lies(workshop: Workshop) -> None:
    """It is the subject's own still, and told as relocated."""
    repository = workshop.make(**PLAIN, provenance={"enabled": False})
    for _ in range(6):
        with committing(repository) as session:
            session.ingest("drop", [b"x" * 5_000] * 20)
            session.ingest("keep", [b"y" * 100], CANARY)
    repository.queues.drop(repository.queue("drop"))
    assert compact(repository) > 0

    assert contents(look(repository)) == {
        ErasurePlace.OWN_CONTENT: (6, 600),
        ErasurePlace.RELOCATED_CONTENT: (6, 600),
    }


def test_previous_content_is_found_by_events_dead_and_archived(workshop: Workshop) -> None:
    """What nobody needs any more, and only events tell of: in a file that lives, in the archive, and no more once it is
    gone.
    """
    repository = workshop.make(claims={"max_flow_files": 2})
    put_all(repository, "gone", [b"123"], **CANARY)
    put_all(repository, "stays", [b"somebody's"], **OTHER)
    drain(repository, "gone")
    dead = contents(look(repository))
    drain(repository, "stays")
    seal(repository)
    repository.reclamation.clean()
    archived = contents(look(repository))
    workshop.clock.advance(13 * HOUR)
    repository.reclamation.clean()

    assert dead == {ErasurePlace.DEAD_CONTENT: (1, 3)}
    assert archived == {ErasurePlace.ARCHIVED_CONTENT: (1, 3)}
    assert contents(look(repository)) == {}


@pytest.mark.parametrize("is_drained", [True, False])
def test_attributes_before_and_after_are_found_in_events(workshop: Workshop, is_drained: bool) -> None:
    """An attribute that was taken away is in the event that tells so, in an event file as in the log; its FlowFile is
    nobody's any more, and its content is what others need.
    """
    repository = workshop.make()
    plant(repository, "in")
    with committing(repository) as session:
        for flow_file in session.get_many("in", 2):
            session.transfer(session.remove_attributes(flow_file, ("customer",)), "out")
    if is_drained:
        assert repository.provenance.drain() > 0

    survey = look(repository)

    size = len("customer") + len(CANARY["customer"])
    assert found(survey, EVENTS) == {ErasurePlace.EVENTS_BEFORE: (1, size), ErasurePlace.EVENTS_AFTER: (1, size)}
    assert records(survey) == {}
    assert contents(survey) == {ErasurePlace.SHARED_CONTENT: (1, 5)}
    assert (survey.cost.events > 0) == is_drained


@pytest.mark.parametrize("is_in_run", [True, False])
@pytest.mark.parametrize("form", ["text", "uuids"])
def test_answers_that_name_the_subject_are_found(workshop: Workshop, form: str, is_in_run: bool) -> None:
    """In memory and in a run; also of what is gone, and only its events know."""
    repository = workshop.make()
    answer = b""
    for number, attributes in enumerate((CANARY, OTHER)):
        (record,) = put_all(repository, "in", [b"1"], **attributes)
        answer = b'["%s"]' % record.id.encode() if form == "text" else new_uuids(1)[0] + record.uuid
        with repository.idempotency.once(bytes([number]) * 32, b"put") as once:
            repository.committer.commit(once.remember(answer), creates=True)
    drain(repository, "in")
    if is_in_run:
        repository.checkpoint()

    assert records(look(repository)) == {ErasurePlace.ANSWERS: (1, len(answer))}


def with_one_set_aside(workshop: Workshop, attributes: Mapping[str, str]) -> tuple[Engine, SetAside]:
    """A repository with a FlowFile of somebody else, and one that can't be used with attributes of this."""
    repository = workshop.make()
    (record,) = put_all(repository, "in", [b"1"], **OTHER)
    wild: dict[str, Any] = {
        "uuid": new_uuids(1)[0],
        "attributes": msgspec.msgpack.encode({"count": 5, **attributes}),
    }
    with careless():
        repository.committer.commit([msgspec.structs.replace(record, **wild)], creates=True)
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()
    (aside,) = repository.set_aside.listed(10)
    return repository, aside


def test_a_record_that_was_set_aside_is_found(workshop: Workshop) -> None:
    """By the attribute among its bytes, and not by a value that stands there by chance."""
    repository, aside = with_one_set_aside(workshop, CANARY | {"filename": "letter"})

    assert records(look(repository)) == {ErasurePlace.SET_ASIDE: (1, len(aside.data))}
    assert records(look(repository, CANARY | {"filename": "letter"})) == {ErasurePlace.SET_ASIDE: (1, len(aside.data))}
    for other in ({"customer": ""}, {"customer": "o"}, {"kind": CANARY["customer"]}, {"filename": "lett"}):
        assert records(look(repository, other)) == {}, other
    assert any("Records that can't be used: 1" in each for each in look(repository).not_promised)


def test_a_record_that_was_set_aside_is_found_by_its_uuid(workshop: Workshop) -> None:
    """Which also is its filename, as long as none was set."""
    repository, aside = with_one_set_aside(workshop, {})
    uuid = msgspec.msgpack.decode(aside.data)[1]

    for name in ("uuid", "filename"):
        assert records(look(repository, {name: format_uuid(uuid)})) == {ErasurePlace.SET_ASIDE: (1, len(aside.data))}


def test_flow_files_that_went_with_a_record_are_found(workshop: Workshop) -> None:
    """The record tells nothing of the value; the FlowFile that it would have changed does, and keeps its content."""
    repository = workshop.make()
    record = plant(repository, "in")
    with careless():
        repository.committer.commit([Update(record.uuid, set_attributes=COUNTED)], creates=False)
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()
    (aside,) = repository.set_aside.listed(10)
    assert [each.uuid for each in aside.flow_files] == [record.uuid]

    survey = look(repository)

    assert records(survey) == {ErasurePlace.SET_ASIDE: (1, len(aside.data))}
    assert contents(survey) == {ErasurePlace.OWN_CONTENT: (1, 5)}


def test_records_in_a_swap_file_that_cannot_be_used_are_found(workshop: Workshop) -> None:
    """They stand in no list as long as the file is not swapped in."""
    repository = workshop.make(flow_file=SMALL)
    define(repository)
    put_each(repository, "q", [b"1"] * 6)
    (record,) = put_all(repository, "other", [b"1"], **CANARY)
    number = repository.queue("q").number
    wild = msgspec.structs.replace(record, uuid=new_uuids(1)[0], queue=number, lineage_millis=-1)
    good = msgspec.structs.replace(wild, uuid=new_uuids(1)[0], lineage_millis=1, attributes=NO_ATTRIBUTES)
    with careless():
        repository.committer.commit([good, wild], creates=True)
        repository.queues._write_swap(repository.queue("q"), [good, wild])
    drain(repository, "other")
    repository.checkpoint()
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()

    assert set(records(look(repository))) == {ErasurePlace.SET_ASIDE}


def test_a_swap_file_that_only_an_unusable_record_names_is_looked_at(workshop: Workshop) -> None:
    """Its FlowFiles may be nowhere else."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    commit = repository.committer.commit

    def carelessly(operations: list[Operation], **options: Any) -> int:
        wild = [msgspec.structs.replace(o, size_bytes=-5) if isinstance(o, SwapOut) else o for o in operations]
        return commit(wild, **options)

    with careless():
        repository.committer.commit = carelessly  # type: ignore[assignment, method-assign]
        put_each(repository, "q", [b"1"] * 6, **CANARY)
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()
    assert not repository.ledger.swaps

    assert records(look(repository))[ErasurePlace.SWAPPED][0] > 0


def test_every_attribute_that_is_said_counts(workshop: Workshop) -> None:
    """Also those that a FlowFile has of itself; a value under another name is somebody else's."""
    repository = workshop.make()
    record = plant(repository, "in", kind="order")
    put_all(repository, "in", [b"1"], kind=CANARY["customer"])

    assert look(repository, CANARY | {"kind": "order"}).findings == look(repository).findings
    assert look(repository, {"uuid": record.id}).findings == look(repository).findings
    assert not look(repository, CANARY | {"kind": "offer"}).is_found


def test_a_swap_file_that_cannot_be_read_is_named(workshop: Workshop) -> None:
    """What else there is is counted, and that there may be more is told."""
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 2})
    define(repository)
    put_each(repository, "q", [b"a"] * 12, **CANARY)
    before = records(look(repository))[ErasurePlace.SWAPPED]
    name = min(repository.ledger.swaps)
    flip(Path(repository.swap_files.path(name)), -1 + Path(repository.swap_files.path(name)).stat().st_size // 2)
    workshop.expects_problems = True

    survey = look(repository)

    assert [name in each for each in survey.unread] == [True]
    assert 0 < records(survey)[ErasurePlace.SWAPPED][0] < before[0]


def test_an_event_file_that_cannot_be_read_is_named(workshop: Workshop) -> None:
    """The events of those before it and behind it are counted all the same, and so are those that only the log has."""
    repository = workshop.make()
    for number in range(3):
        plant(repository, "in", number=str(number))
        repository.provenance.drain()
    plant(repository, "in", number="3")
    assert found(look(repository), EVENTS)[ErasurePlace.EVENTS_AFTER][0] == 4
    store = event_store(repository)
    path = Path(store.event_files.path(store.manifest.files[1]))
    store.event_files.forget(store.manifest.files[1])
    path.write_bytes(b"\0" * path.stat().st_size)
    workshop.expects_problems = True

    survey = look(repository)

    assert [path.name in each for each in survey.unread] == [True]
    assert found(survey, EVENTS)[ErasurePlace.EVENTS_AFTER][0] == 3


@pytest.mark.parametrize("space", ["handles", "answers"])
def test_a_run_that_cannot_be_read_is_named(workshop: Workshop, space: str) -> None:
    """Of handles as of answers there may be more than was counted."""
    repository = workshop.make()
    repository.handles.put_many([b"123"] * 40, CANARY)
    with repository.idempotency.once(b"k" * 32, b"put") as once:
        repository.committer.commit(once.remember(b"nothing"), creates=True)
    seal(repository)
    cool(repository)
    workshop.expects_problems = True
    (run,) = (workshop.path / "flowfile" / "runs" / space).iterdir()
    flip(run, 40)

    assert len(look(repository).unread) == 1


def remember(repository: Engine, record: FlowFileRecord, count: int) -> None:
    """So many answers that name a FlowFile, of which a block of a run holds some."""
    answers = [Answer(number.to_bytes(32, "little"), b"put", record.uuid * 64, 1) for number in range(1, count + 1)]
    repository.committer.commit(answers, creates=True)
    repository.checkpoint()


def test_what_lies_behind_a_damaged_block_of_answers_is_looked_at(workshop: Workshop) -> None:
    """The block is named, all others of its run are counted, and no block is read twice for that."""
    repository = workshop.make()
    remember(repository, plant(repository, "in"), 40)
    files = repository.spaces.answers.files
    (run,) = repository.ledger.runs_of(files.space)
    blocks = len(files.run(run))
    assert blocks > 2
    workshop.expects_problems = True
    flip(Path(files.path(run.number)), 40)

    survey = look(repository)

    assert [f"{files.path(run.number)}: block 0" in each for each in survey.unread] == [True]
    (count, size) = records(survey)[ErasurePlace.ANSWERS]
    assert 0 < 40 - count < 40
    assert size == count * 64 * UUID_BYTES


def test_what_lies_behind_an_answer_that_does_not_decode_is_looked_at(workshop: Workshop) -> None:
    """It is named, and the runs behind its own are counted."""
    repository = workshop.make()
    record = plant(repository, "in")
    with closing(repository.spaces.answers.files.begin()) as new:
        new.add(RunRow(key_of(bytes(32)), b"\xc1"))
        repository.ledger.answers.settle(new.finish(repository.clock.now_millis()), ())
    remember(repository, record, 1)
    workshop.expects_problems = True

    survey = look(repository)

    assert ["does not decode" in each for each in survey.unread] == [True]
    assert records(survey)[ErasurePlace.ANSWERS] == (1, 64 * UUID_BYTES)


def test_a_look_reads_each_run_of_answers_once(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers are many, reading them is most of what a look costs."""
    repository = workshop.make()
    remember(repository, plant(repository, "in"), 40)
    files = repository.spaces.answers.files
    (run,) = repository.ledger.runs_of(files.space)
    opened, read, block = files.run(run), list[int](), RowRun.block

    def counted(run: RowRun, number: int) -> RowBlock:
        if run is opened:
            read.append(number)
        return block(run, number)

    monkeypatch.setattr(RowRun, "block", counted)
    look(repository)

    assert read == list(range(len(opened)))


def test_a_container_that_is_away_is_named(workshop: Workshop) -> None:
    """Its records are counted as ever."""
    repository = workshop.make(storage=TWO)
    plant(repository, "in")
    before = look(repository)
    workshop.expects_problems = True
    Detached(workshop.path).take_away()
    repository.volumes.look()

    survey = look(repository)

    assert (survey.findings, len(before.unread), len(survey.unread)) == (before.findings, 0, 1)
    assert "c2" in survey.unread[0]


def test_what_cannot_be_promised_is_said_of_this_repository(workshop: Workshop) -> None:
    """An open lease, where there is one, beside what is true of every repository."""
    repository = workshop.make()
    before = look(repository).not_promised
    (record,) = put_all(repository, "in", [b"1"])
    repository.leases.acquire("reader", 60_000, [claim_of(record).resource])

    (more,) = set(look(repository).not_promised) - set(before)

    assert "Leases" in more
    assert len(before) == 5


def test_a_bucket_is_named_as_not_looked_at(workshop: Workshop) -> None:
    """It keeps what it has, and only the settings tell of it."""
    repository = workshop.make()
    before = look(repository).not_promised
    settings = msgspec.structs.replace(repository.spec.replication, mode=ReplicationMode.ASYNC, url="s3://b/p")
    repository.spec = msgspec.structs.replace(repository.spec, replication=settings)

    (more,) = set(look(repository).not_promised) - set(before)

    assert "bucket" in more


def test_a_look_changes_nothing(workshop: Workshop) -> None:
    """Neither a record, nor a transaction, nor a byte of content."""
    repository = workshop.make()
    plant(repository, "in")
    before = repository.log.durable, content_sizes(workshop.path), list(repository.ledger.flow_files())

    assert look(repository).is_found

    assert (repository.log.durable, content_sizes(workshop.path), list(repository.ledger.flow_files())) == before
