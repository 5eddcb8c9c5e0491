"""Event files written anew without what they tell of a subject, and the lineage that stays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.explore import SEED
from tests.crash.failing import made
from tests.crash.specs import SPEC
from tests.crash.test_backup_crashes import Recorder
from tests.engine.test_erasure_finder import CANARY, OTHER
from tests.support import ManualClock, Workshop, committing, event_store, put_all
from ullage.engine.engine import Engine
from ullage.engine.erasure.events import REDACTED
from ullage.engine.erasure.redaction import Redaction
from ullage.engine.erasure.subject import Subject
from ullage.engine.model import parse_uuid
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.enums import EventType
from ullage.testing.crashing import CrashFiles, CrashPoint, Image
from ullage.wire.provenance import EventQuery

Plant = Callable[[Engine], list[str]]


def redact(repository: Engine, uuids: frozenset[bytes] = frozenset(), **where: str) -> int:
    """The subject's events, in event files; how many of those were written anew."""
    store = event_store(repository)
    return store.rewrite(Redaction(Subject(where or CANARY), uuids, store.event_files, compress=True).anew)


def events(repository: Engine, **asked: Any) -> list[ProvenanceEvent]:
    """All that answer to a query, oldest first."""
    return list(repository.provenance.query(EventQuery(newest_first=False, **asked)).events)


def plant(repository: Engine) -> list[str]:
    """Two FlowFiles: one of the subject, cloned, renamed, and given up; one of somebody else. Their uuids."""
    (mine,) = put_all(repository, "in", [b"12345"], **CANARY, filename="canary-4711.txt")
    (theirs,) = put_all(repository, "in", [b"12345"], **OTHER)
    with committing(repository) as session:
        (flow_file,) = session.get_many("in", 1)
        session.provenance.send(flow_file, "https://example.org/canary-4711", details="for canary-4711")
        session.transfer(session.clone(flow_file), "copies")
        session.transfer(session.remove_attributes(flow_file, ("customer",)), "out")
    repository.provenance.drain()
    return [mine.id, theirs.id]


def test_nothing_of_the_subject_is_told_any_more(workshop: Workshop) -> None:
    """Attributes before and after, details and URIs go; who descends from whom, and what happened, stays."""
    repository = workshop.make()
    mine, theirs = plant(repository)
    before = events(repository)

    assert redact(repository) == 1

    after = events(repository)
    skeleton = ("id", "type", "uuid", "parents", "children", "content", "content_before", "size", "queue", "millis")
    for name in skeleton:
        assert [getattr(each, name) for each in after] == [getattr(each, name) for each in before]
    assert "canary-4711" in repr(before)
    assert "canary-4711" not in repr(after)
    assert {each.details for each in after if each.uuid == parse_uuid(mine)} == {REDACTED}
    others = [each for each in before if each.uuid == parse_uuid(theirs)]
    assert others
    assert [each for each in after if each.uuid == parse_uuid(theirs)] == others


def test_the_index_is_made_anew(workshop: Workshop) -> None:
    """What it knew by the subject's values it finds no more; what it knew otherwise it finds as ever."""
    repository = workshop.make(provenance={"indexed_attributes": ("customer",)})
    mine, _ = plant(repository)
    repository.provenance.index_step()
    by_uuid = events(repository, flow_file=mine)
    shards = set((workshop.path / "provenance" / "index").iterdir())
    assert events(repository, attributes=CANARY)

    redact(repository)

    assert not shards & set((workshop.path / "provenance" / "index").iterdir())
    repository.provenance.index_step()
    assert events(repository, attributes=CANARY) == []
    assert [each.id for each in events(repository, flow_file=mine)] == [each.id for each in by_uuid]
    assert events(repository, attributes=OTHER)


def test_it_may_be_done_again(workshop: Workshop) -> None:
    """What is redacted already is left alone, also where the subject is a FlowFile by its uuid."""
    repository = workshop.make()
    mine, _ = plant(repository)
    files = set((workshop.path / "provenance" / "events").iterdir())
    assert redact(repository, uuid=mine) == 1
    once = set((workshop.path / "provenance" / "events").iterdir())
    assert not once & files

    assert redact(repository, uuid=mine) == 0

    assert set((workshop.path / "provenance" / "events").iterdir()) == once
    assert workshop.reopen().check(deep=True).problems == ()


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_flow_file_had_before_it_was_the_subjects(workshop: Workshop, is_known: bool) -> None:
    """Of two values that make the subject it had one at first: that goes as well, if the FlowFile was found to be."""
    repository = workshop.make()
    (record,) = put_all(repository, "in", [b"1"], **CANARY)
    with committing(repository) as session:
        (flow_file,) = session.get_many("in", 1)
        session.transfer(session.put_attributes(flow_file, {"kind": "order"}), "out")
    repository.provenance.drain()

    redact(repository, frozenset([record.uuid] if is_known else []), **CANARY, kind="order")

    told = [each for each in events(repository) if "canary-4711" in repr(each)]
    assert [each.type for each in told] == ([] if is_known else [EventType.CREATE])


def test_other_row_groups_and_files_stay(workshop: Workshop) -> None:
    """A file without the subject keeps its bytes; of one that is written anew each row group keeps its rows."""
    repository = workshop.make()
    for number in range(3):
        put_all(repository, "in", [b"1"] * 2_500, **(CANARY if number == 1 else OTHER))
        repository.provenance.drain()
    store = event_store(repository)
    starts = [list(store.event_files.starts(file)) for file in store.manifest.files]
    assert len(starts[1]) > 2
    files = store.manifest.files

    assert redact(repository) == 1

    assert [store.manifest.files[0], store.manifest.files[2]] == [files[0], files[2]]
    assert [list(store.event_files.starts(file)) for file in store.manifest.files] == starts
    assert len(events(repository, limit=10_000)) == 7_500


def ends(points: list[CrashPoint]) -> list[Image]:
    """What the disk holds if of what was not synced nothing reached it, half, or all; each once."""
    parts = [point.pending[: len(point.pending) * part // 2] for point in points for part in range(3)]
    images = [point.image(part) for point, part in zip((each for each in points for _ in range(3)), parts, strict=True)]
    return list({image.digest(): image for image in images}.values())


def test_a_crash_leaves_all_of_it_or_nothing() -> None:
    """Whatever reached the disk: each event is there once, as it was or redacted, and doing it again ends it."""
    repository, files, _ = made(SPEC)
    recorder = Recorder(files)
    with repository:
        for attributes in (CANARY, OTHER):
            put_all(repository, "in", [b"1"], **attributes)
            repository.provenance.drain()
        repository.provenance.index_step()
        before = [each.id for each in events(repository)]
        recorder.start()
        assert redact(repository) == 1
        recorder.stop()
    found = []

    images = ends(recorder.points)
    for image in images:
        with Engine.open(SPEC, CrashFiles(image), ManualClock()) as repository:
            assert [each.id for each in events(repository)] == before
            found.append(redact(repository))
            assert "canary-4711" not in repr(events(repository))
            repository.provenance.index_step()
            assert [each.id for each in events(repository, types=["CREATE"])] == before
            assert repository.provenance.problems(deep=True) == []

    print(f"seed {SEED}: {len(images)} images, of {found.count(1)} something was left to redact")
    assert set(found) == {0, 1}


def test_old_bytes_are_gone_from_the_directory(workshop: Workshop) -> None:
    """Not only unlisted: each file that had them is unlinked."""
    repository = workshop.make(provenance={"compress_on_rollover": False})
    plant(repository)

    def has_canary(path: Path) -> bool:
        return b"canary-4711" in path.read_bytes()

    directory = workshop.path / "provenance" / "events"
    assert any(map(has_canary, directory.iterdir()))
    store = event_store(repository)
    store.rewrite(Redaction(Subject(CANARY), frozenset(), store.event_files, compress=False).anew)
    assert not any(map(has_canary, directory.iterdir()))
