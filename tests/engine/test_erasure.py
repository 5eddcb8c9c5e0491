"""Erasure: every kind of record is planted, and afterwards no file of the repository has a byte of the subject."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.engine.flowfile.steps import define
from tests.engine.test_cold_handles import cool, seal
from tests.engine.test_erasure_finder import CANARY, OTHER
from tests.support import Workshop, careless, committing, drain, event_store, put_all, put_each
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import Eraser, ErasureSteps, intent_file, unfindable
from ullage.engine.erasure.finder import cost_of, look_for
from ullage.engine.model import FlowFileRecord, new_uuids
from ullage.engine.shipping.lastlook import KNOWN
from ullage.wire.erasure import ErasureReport
from ullage.wire.salvage import HELD_QUEUE

VALUE = CANARY["customer"].encode()
CONTENT = b"content of canary-4711, which nobody else has"
PLAIN: dict[str, Any] = {"provenance": {"compress_on_rollover": False}}
SMALL: dict[str, Any] = {"flow_file": {"swap_threshold": 4, "swap_batch": 2}}

UNTOLD = ErasureSteps(lambda _words: None, lambda _count: None)


def opened_anew(workshop: Workshop) -> Engine:
    """The queues that are open know nothing of what was erased: they are not asked any more."""
    workshop.shut()
    return workshop.open()


def erase(repository: Engine, steps: ErasureSteps = UNTOLD, **where: str) -> ErasureReport:
    """As `ullage erase` does; whoever goes on opens the repository anew."""
    return erase_by(Eraser(repository, steps), repository, steps, where or CANARY)


def erase_by(
    eraser: Eraser, repository: Engine, steps: ErasureSteps = UNTOLD, where: Mapping[str, str] = CANARY
) -> ErasureReport:
    """The same by an eraser that was made otherwise."""
    intent = intent_file(repository).read()
    found = look_for(repository, where, cost_of(repository), steps.on_step)
    return eraser.finish(eraser.begin(found) if intent is None else eraser.resume(intent, found))


def files_with(root: Path, *texts: bytes) -> dict[str, list[bytes]]:
    """The files below a directory that have one of these among their bytes; of event files also unpacked."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".parquet" and data.startswith(b"PAR1"):
                data += repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
            there = [text for text in texts if text in data]
            if there:
                found[str(path.relative_to(root))] = there
    return found


def plant(repository: Engine, queue: str, content: bytes = CONTENT, **more: str) -> None:
    """The subject's, between somebody else's in the same file."""
    put_all(repository, queue, [b"theirs, before"], **OTHER)
    put_all(repository, queue, [content], **CANARY, **more)
    put_all(repository, queue, [b"theirs, behind"], **OTHER)


def plant_everything(repository: Engine) -> None:
    """The subject's, and somebody else's beside it: in queues, held, swapped, staged, as handles, in runs, deleted, in
    answers, and set aside in all but name.
    """
    define(repository)
    plant(repository, "in", filename="letter to canary-4711")
    plant(repository, HELD_QUEUE)
    for attributes in (CANARY, OTHER) * 4:
        put_each(repository, "q", [CONTENT if attributes == CANARY else b"theirs"], **attributes)
    assert len(repository.ledger.swaps) > 1
    write, attempt = new_uuids(2)
    repository.staging.begin(write, "test", queue="in")
    for number, attributes in enumerate((CANARY, OTHER)):
        content = CONTENT if attributes == CANARY else b"staged"
        repository.staging.stage(write, attempt, number, [content], attributes)
        uuids = repository.handles.put_many([content] * 40, attributes)
        repository.handles.delete(repository.handles.put(content, attributes))
        with repository.idempotency.once(bytes([number]) * 32, b"put") as once:
            repository.committer.commit(once.remember(b'["%s"]' % uuids[0].encode()), creates=True)
    # One that has lost the attribute: its packed bytes may have the value still.
    put_all(repository, "lost", [b"theirs"], **CANARY, n="1")
    with committing(repository) as session:
        (flow_file,) = session.get_many("lost", 1)
        session.transfer(session.put_attributes(flow_file, {"customer": "nobody"}), "lost")
    seal(repository)
    cool(repository)
    for attributes in (CANARY, OTHER):
        repository.handles.put_many([CONTENT if attributes == CANARY else b"theirs"] * 3, attributes)
    repository.provenance.drain()
    repository.provenance.index_step()
    plant(repository, "late")


def remains(report: ErasureReport) -> list[str]:
    """What each sentence begins with. The six bytes are those of the FlowFile that has lost the attribute."""
    return [" ".join(each.split()[:2]) for each in report.remains]


def others(repository: Engine) -> dict[bytes, tuple[Any, ...]]:
    """All that is somebody else's, with content."""
    records: list[FlowFileRecord] = list(repository.ledger.everything())
    for name in repository.ledger.swaps:
        records += repository.swap_files.read(name).records
    found: dict[bytes, tuple[Any, ...]] = {}
    for record in records:
        if record.attribute_map().get("customer") != CANARY["customer"]:
            content = (
                b"".join(repository.reader.stream(record.claim, record.start, record.size)) if record.claim else b""
            )
            found[record.uuid] = (record.queue, record.attribute_map(), record.deleted_millis, content)
    return found


@pytest.fixture(name="planted")
def _planted(workshop: Workshop) -> Engine:
    repository = workshop.make(**PLAIN, **SMALL)
    plant_everything(repository)
    return workshop.reopen()


def test_nothing_of_the_subject_is_left_in_any_file(planted: Engine, workshop: Workshop) -> None:
    """Read raw: neither its content, nor an attribute, in content, log, snapshot, runs, swap files, events, answers."""
    places = files_with(workshop.path, VALUE)
    for part in ("flowfile/snapshot", "flowfile/runs/handles", "swap/", "provenance/events"):
        assert any(part in place for place in places), part
    roots = {place.split("/")[0] for place in files_with(workshop.path, CONTENT)}
    assert roots - {"flowfile", "swap", "provenance"}
    before = others(planted)

    report = erase(planted)

    assert remains(report) == ["6 bytes"]
    assert report.is_finished
    assert files_with(workshop.path, VALUE) == {}
    again = opened_anew(workshop)
    assert files_with(workshop.path, VALUE) == {}
    assert others(again) == before
    assert again.check(deep=True).problems == ()
    assert [each for each in again.spaces.answers.all() if each.answer] != []


def test_what_others_need_stays_and_is_told(workshop: Workshop) -> None:
    """A clone that is somebody else's keeps the bytes that both had; the attributes go all the same."""
    repository = workshop.make(**PLAIN)
    with committing(repository) as session:
        mine = session.put_attributes(session.write(session.create(), b"0123456789"), CANARY)
        theirs = session.put_attributes(session.clone(mine), OTHER)
        session.transfer(mine, "in")
        session.transfer(theirs, "in")
    repository = opened_anew(workshop)

    report = erase(repository)

    assert ["10 bytes of content (1 contents) stay" in each for each in report.remains] == [True]
    assert report.is_finished
    assert files_with(workshop.path, VALUE) == {}
    assert drain(opened_anew(workshop), "in") == [b"0123456789"]


@pytest.mark.parametrize("is_archived", [True, False])
def test_dead_content_that_only_events_tell_of_goes(workshop: Workshop, is_archived: bool) -> None:
    """In the archive, or in a file that others live in; the events say which."""
    repository = workshop.make(**PLAIN, archive={"enabled": is_archived})
    plant(repository, "in")
    with committing(repository) as session:
        for flow_file in session.get_many("in", 3):
            if is_archived or flow_file.attribute_map()["customer"] == CANARY["customer"]:
                session.remove(flow_file)
            else:
                session.transfer(flow_file, "in")
    repository = opened_anew(workshop)
    repository.reclamation.clean()
    places = files_with(workshop.path, CONTENT)
    assert [is_archived] == ["archive" in place for place in places]

    assert erase(repository).remains == ()

    assert files_with(workshop.path, CONTENT, VALUE) == {}
    assert drain(opened_anew(workshop), "in") == ([] if is_archived else [b"theirs, before", b"theirs, behind"])


def test_a_record_that_was_set_aside_goes(workshop: Workshop) -> None:
    """And with it what it held."""
    repository = workshop.make(**PLAIN)
    (record,) = put_all(repository, "in", [b"1"], **OTHER)
    wild: dict[str, Any] = {"uuid": new_uuids(1)[0], "attributes": msgspec.msgpack.encode({"count": 5, **CANARY})}
    with careless():
        repository.committer.commit([msgspec.structs.replace(record, **wild)], creates=True)
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()
    assert files_with(workshop.path, VALUE)

    assert erase(repository).remains == ()

    assert files_with(workshop.path, VALUE) == {}
    assert not opened_anew(workshop).set_aside.count


def test_an_event_file_that_cannot_be_read_keeps_nothing_else_from_going(workshop: Workshop) -> None:
    """It may tell of the subject: that is said, and the erasure stays begun until somebody has mended it."""
    repository = workshop.make(**PLAIN)
    for number in range(3):
        plant(repository, "in", number=str(number))
        repository.provenance.drain()
    store = event_store(repository)
    path = Path(store.event_files.path(store.manifest.files[1]))
    whole = path.read_bytes()
    repository = workshop.reopen()
    path.write_bytes(b"\0" * len(whole))
    workshop.expects_problems = True

    report = erase(repository)

    assert [path.name in each for each in report.remains] == [True]
    assert not report.is_finished
    assert set(files_with(workshop.path, CONTENT, VALUE)) == {"erasure/intent"}
    path.write_bytes(whole)
    assert erase(opened_anew(workshop)).remains == ()
    assert files_with(workshop.path, CONTENT, VALUE) == {}


@pytest.mark.parametrize("place", ["memory", "swap file"])
def test_a_value_that_was_replaced_goes_from_the_bytes_of_who_stays(workshop: Workshop, place: str) -> None:
    """An update is put behind what is there: what a FlowFile was before stands in it until it is packed anew."""
    repository = workshop.make(**PLAIN, **SMALL)
    define(repository)
    for _ in range(6 if place == "swap file" else 1):
        put_all(repository, "in", [b"theirs"], **CANARY)
        with committing(repository) as session:
            (flow_file,) = session.get_many("in", 1)
            session.transfer(session.put_attributes(flow_file, OTHER), "q")
    assert bool(repository.ledger.swaps) == (place == "swap file")
    repository.checkpoint()
    repository = opened_anew(workshop)
    assert any("snapshot" in each or "swap" in each for each in files_with(workshop.path, VALUE))

    assert erase(repository).is_finished

    assert files_with(workshop.path, VALUE) == {}
    assert {each[1]["customer"] for each in others(opened_anew(workshop)).values()} == {OTHER["customer"]}


def test_a_value_that_was_replaced_goes_though_another_attribute_has_its_bytes(workshop: Workshop) -> None:
    """By chance, as a number has a shorter one in it; what that is stays, and what was replaced does not."""
    repository = workshop.make(**PLAIN)
    put_all(repository, "in", [b"theirs"], customer="4711", phone="0471123")
    with committing(repository) as session:
        (flow_file,) = session.get_many("in", 1)
        session.transfer(session.put_attributes(flow_file, {"customer": "bob"}), "in")
    repository = opened_anew(workshop)

    assert erase(repository, customer="4711").is_finished

    assert files_with(workshop.path, b"\xa8customer\xa44711") == {}
    assert drain(opened_anew(workshop), "in") == [b"theirs"]


def test_a_filename_that_was_replaced_goes(workshop: Workshop) -> None:
    """Core attributes are packed as any others once they were set: also in a record that can't be used."""
    repository = workshop.make(**PLAIN)
    mine, theirs = put_all(repository, "in", [b"mine", b"theirs"], filename="canary-letter")
    with committing(repository) as session:
        for flow_file in session.get_many("in", 2):
            renamed = {"filename": "renamed"} if flow_file.id == theirs.id else {"n": "1"}
            session.transfer(session.put_attributes(flow_file, renamed), "in")
    wild: dict[str, Any] = {"attributes": msgspec.msgpack.encode({"count": 5, "filename": "canary-letter"})}
    with careless():
        repository.committer.commit([msgspec.structs.replace(mine, uuid=new_uuids(1)[0], **wild)], creates=True)
    workshop.kill()
    workshop.expects_problems = True
    repository = workshop.open()

    assert erase(repository, filename="canary-letter").is_finished

    assert files_with(workshop.path, b"canary-letter") == {}
    assert drain(opened_anew(workshop), "in") == [b"theirs"]


class Stopped(Exception):
    """Somebody pulled the plug between two steps."""


@pytest.mark.parametrize("phases", range(1, 7))
def test_one_that_was_interrupted_is_finished(planted: Engine, workshop: Workshop, phases: int) -> None:
    """By the next one, which knows from the intent what was whose, though its records are gone by now."""
    before, told = others(planted), list[str]()

    def on_phase(words: str) -> None:
        told.append(words)
        if len(told) > phases:
            raise Stopped

    with pytest.raises(Stopped):
        erase(planted, ErasureSteps(on_phase, UNTOLD.on_step))
    repository = opened_anew(workshop)
    assert intent_file(repository).read() is not None

    assert remains(erase(repository)) == ["6 bytes"]

    assert files_with(workshop.path, VALUE) == {}
    again = opened_anew(workshop)
    assert intent_file(again).read() is None
    assert others(again) == before


@pytest.mark.parametrize("phases", [0, 2, 5])
def test_what_came_after_an_interruption_goes_with_the_rest(workshop: Workshop, phases: int) -> None:
    """The repository may be used meanwhile: else the records of what came then would go, and nothing could tell any
    more whose their contents are.
    """
    repository = workshop.make(**PLAIN)
    plant(repository, "in")
    told = list[str]()

    def on_phase(words: str) -> None:
        told.append(words)
        if len(told) > phases:
            raise Stopped

    with pytest.raises(Stopped):
        erase(repository, ErasureSteps(on_phase, UNTOLD.on_step))
    repository = opened_anew(workshop)
    plant(repository, "in", b"came later")
    repository = opened_anew(workshop)

    report = erase(repository)

    assert (report.remains, report.is_finished, report.uuids) == ((), True, 2)
    assert files_with(workshop.path, CONTENT, VALUE, b"came later") == {}
    assert len(drain(opened_anew(workshop), "in")) == 4


@pytest.mark.parametrize("phases", [1, 4])
def test_what_only_an_intent_knows_is_told(planted: Engine, workshop: Workshop, phases: int) -> None:
    """Where records and events have gone already nobody finds their contents without it."""
    told = list[str]()

    def on_phase(words: str) -> None:
        told.append(words)
        if len(told) > phases:
            raise Stopped

    with pytest.raises(Stopped):
        erase(planted, ErasureSteps(on_phase, UNTOLD.on_step))
    repository = opened_anew(workshop)
    intent = intent_file(repository).read()
    assert intent is not None

    left = unfindable(repository, intent, look_for(repository, CANARY, cost_of(repository), UNTOLD.on_step))

    assert any("bytes in content file" in each for each in left) == (phases == 4)
    assert bool(left) == (phases == 4)
    assert erase(repository).is_finished
    opened_anew(workshop)


def test_a_repository_that_was_shipped_says_so_without_its_document(workshop: Workshop) -> None:
    """Who erases with no more than the root is told of the bucket all the same."""
    repository = workshop.make()
    assert not any("bucket" in each for each in erase(repository).not_promised)
    repository = opened_anew(workshop)
    (workshop.path / KNOWN).write_bytes(b"{}")

    assert any("bucket" in each for each in erase(repository).not_promised)


def test_the_lineage_keeps_its_skeleton(planted: Engine, workshop: Workshop) -> None:
    """That there were such FlowFiles, and that they went, can still be told."""
    store = event_store(planted)
    store.drain()
    before = sum(file.events for file in store.manifest.files)

    erase(planted)

    store = event_store(opened_anew(workshop))
    assert sum(file.events for file in store.manifest.files) > before
    assert store.manifest.removed_through == 0


def test_a_damaged_intent_is_told_with_the_way_out(planted: Engine, workshop: Workshop) -> None:
    """It names whose bytes were to go: nothing is guessed."""
    place = intent_file(planted)
    Eraser(planted, UNTOLD).begin(look_for(planted, CANARY, cost_of(planted), UNTOLD.on_step))
    Path(place.path).write_bytes(b"\0" * 40)

    with pytest.raises(Exception, match="give-up"):
        place.read()

    assert place.remove()
    assert place.read() is None
