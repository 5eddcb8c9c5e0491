"""Ruin any file of a repository: a salvage invents nothing, leaves nothing behind that is proved, and says the rest.

Judged by what every transaction left, which was recorded while the repository was written, and by a reader that is made
from docs/storage.md alone: what it finds in source and target is what the engine says of them.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rot.specimen import ROOT, SMALL_BLOCK, Shown, Specimen, abandon, reopen, shown, specimen
from tests.rot.verdict import kind_of
from tests.storage_reader import StorageReader
from tests.support import ManualClock, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.model import STAGED_QUEUE, format_uuid, pack_attributes, parse_uuid, unpack_attributes
from ullage.engine.salvaging import salvage
from ullage.errors import NotARepository
from ullage.testing.crashing import CrashFiles, Image
from ullage.wire.salvage import HELD_QUEUE, SalvageReport

ROUNDS = int(os.environ.get("ULLAGE_SALVAGE_ROUNDS", "1"))
SEED = int(os.environ.get("ULLAGE_ROT_SEED", "20261123"))
NEW = "/new"
Read = tuple[str, int, dict[str, str], bytes]
"""Queue (none of a handle), place in it, attributes and content."""

Told = tuple[int, str, str]
"""Sequence, type and FlowFile of an event."""

NAMES = ["closed-1", "closed-2", "killed-1", "killed-2"]


@pytest.fixture(scope="module", params=NAMES)
def whole(request: pytest.FixtureRequest) -> Specimen:
    kind, partitions = str(request.param).split("-")
    return specimen(closed=kind == "closed", partitions=int(partitions))


class Salvaged(NamedTuple):
    """The report, what kept its place, what is held, as it was before, and the history."""

    report: SalvageReport
    kept: dict[bytes, Shown]
    held: dict[bytes, Shown]
    events: list[Told]


def salvaged(image: Image) -> Salvaged:
    """Salvage it. The source must not have changed."""
    files = CrashFiles(image)
    spec = spec_at(NEW)
    report = salvage(ROOT, spec, files, ManualClock(1_700_000_100_000))
    after = files.image()
    assert {path: data for path, data in after.files.items() if path.startswith(ROOT + "/")} == dict(image.files)
    kept, held, events = _contents(after, spec)
    assert len({sequence for sequence, *_ in events}) == len(events) == report.events
    return Salvaged(report, kept, held, events)


def read_apart(image: Image, root: str) -> tuple[dict[bytes, Read], list[Told]]:
    """All FlowFiles, handles and events below a root, by code that shares nothing with the engine."""
    with tempfile.TemporaryDirectory(prefix="ullage-salvaged-") as directory:
        for path, data in image.files.items():
            if path.startswith(root + "/"):
                target = Path(directory) / path.removeprefix(root + "/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        reader = StorageReader(Path(directory))
        found = list(reader.flow_files())
        events = reader.events()
    read = {parse_uuid(each.uuid): (each.queue or "", each.queued, each.attributes, each.content) for each in found}
    assert len(read) == len(found), "a FlowFile is there twice"
    return read, events


def as_read(repository: Engine, found: Mapping[bytes, Shown]) -> dict[bytes, Read]:
    """The same of what the engine says."""
    names = {queue.number: queue.name for queue in repository.ledger.queues.values()}
    read = {}
    for uuid, (queue, place, packed, content) in found.items():
        if queue != STAGED_QUEUE:
            id = format_uuid(uuid)
            attributes = {"uuid": id, "filename": id, "path": "./"} | unpack_attributes(packed)
            read[uuid] = (names.get(queue, ""), place, attributes, content)
    return read


def _contents(image: Image, spec: ContentRepositorySpec) -> tuple[dict[bytes, Shown], dict[bytes, Shown], list[Told]]:
    repository = reopen(image, spec)
    try:
        assert repository.check(deep=True).problems == ()
        found, refused = shown(repository)
        assert refused == []
        read, events = read_apart(image, NEW)
        assert read == as_read(repository, found)
        numbers = {queue.name: queue.number for queue in repository.ledger.queues.values()}
    finally:
        abandon(repository)
    held = {uuid: each for uuid, each in found.items() if each[0] == numbers.get(HELD_QUEUE)}
    kept = {uuid: each for uuid, each in found.items() if uuid not in held}
    before = {}
    for uuid, (_, place, packed, content) in held.items():
        attributes = unpack_attributes(packed)
        queue = numbers.get(attributes.pop("salvaged.queue"), 0)
        assert parse_uuid(attributes.pop("salvaged.uuid")) == uuid
        assert attributes.pop("salvaged.reason")
        before[uuid] = (queue, place, pack_attributes(attributes), content)
    return kept, before, events


def readable(shown: Shown) -> tuple[int, int, dict[str, str], bytes]:
    return (*shown[:2], unpack_attributes(shown[2]), shown[3])


def ruined(whole: Specimen, path: str, way: str, chooser: random.Random) -> Image:
    """One file flipped, cut, zeroed in part, removed, exchanged for another, or with a part of it over another part."""
    data = whole.image.files[path]
    used = max(1, len(data.rstrip(b"\0")))
    at = chooser.randrange(used)
    if way == "flip" and data:
        return whole.with_file(path, data[:at] + bytes((data[at] ^ (1 << chooser.randrange(8)),)) + data[at + 1 :])
    if way == "cut":
        return whole.with_file(path, data[:at])
    if way == "zero":
        length = min(4096, len(data) - at)
        return whole.with_file(path, data[:at] + bytes(length) + data[at + length :])
    if way == "repeat":
        block = data[chooser.randrange(used) :][: min(4096, used)]
        return whole.with_file(path, data[:at] + block + data[at + len(block) :])
    if way == "exchange":
        others = [name for name in sorted(whole.image.files) if kind_of(name) == kind_of(path) and name != path]
        other = chooser.choice(others or [path])
        return whole.image._replace(files={**whole.image.files, path: whole.image.files[other], other: data})
    return whole.image._replace(files={name: each for name, each in whole.image.files.items() if name != path})


def test_of_a_sound_repository_all_is_as_it_was(whole: Specimen) -> None:
    """With its identity files and without: nothing needs them."""
    truth = {uuid: readable(each) for uuid, each in whole.truth.after[whole.last_id].items()}
    repository = reopen(whole.image, whole.spec)
    read, told = read_apart(whole.image, ROOT)
    assert read == as_read(repository, whole.truth.after[whole.last_id])
    abandon(repository)
    bare = {path: data for path, data in whole.image.files.items() if not path.endswith("ullage.json")}
    for image in (whole.image, whole.image._replace(files=bare)):
        report, kept, held, events = salvaged(image)
        assert report.is_whole, report
        assert held == {}
        assert {uuid: readable(each) for uuid, each in kept.items()} == truth
        assert events == told


@pytest.mark.parametrize("way", ["flip", "cut", "zero", "remove", "repeat", "exchange"])
def test_a_ruin_gives_all_that_is_proved_and_nothing_else(whole: Specimen, way: str) -> None:
    """What is there was there once, what kept its place is as the last proved transaction left it, and what is neither
    there nor named was in bytes that are lost.
    """
    truth = whole.truth.after
    everything = {(uuid, str(readable(each))) for after in truth.values() for uuid, each in after.items()}
    last = {uuid: readable(each) for uuid, each in truth[whole.last_id].items()}
    told = read_apart(whole.image, ROOT)[1]
    born = {uuid: min(id for id, after in truth.items() if uuid in after) for uuid in last}
    for path in sorted(path for path in whole.image.files if path.startswith(ROOT + "/")):
        for number in range(ROUNDS if "/flowfile/" in path else 1):
            chooser = random.Random(f"{SEED} {whole.name} {path} {way} {number}")
            what = f"{whole.name}, seed {SEED}: {way} {number} of {path}"
            try:
                image = ruined(whole, path, way, chooser)
                report, kept, held, events = salvaged(image)
            except Exception as error:
                error.add_note(what)
                raise
            found = kept | held
            states = {uuid: readable(each) for uuid, each in found.items()}
            assert {(uuid, str(each)) for uuid, each in states.items()} <= everything, what
            assert not Counter(each[1:] for each in events) - Counter(each[1:] for each in told), what
            if kind_of(path) not in ("log", "snapshot"):
                assert set(events) <= set(told), what
                assert len(events) == len(told) - report.lost_events, what
                assert kind_of(path) == "event file" or not report.lost_events, what
            lost = {parse_uuid(each.id) for each in report.lost}
            assert not lost & states.keys(), what
            if runs := {each for each in whole.resting if image.files.get(each) != whole.image.files[each]}:
                require_rest_of_runs(whole, runs, way, Salvaged(report, kept, held, events))
                continue
            if kind_of(path) not in ("log", "snapshot", "swap file"):
                assert {uuid: states[uuid] for uuid in states} == {u: each for u, each in last.items() if u not in lost}
                assert not held, what
                continue
            if report.is_whole or (kind_of(path) == "log" and not (report.doubts or report.lost_transactions)):
                # Only an end that nobody was told of may be missing, as far as any byte tells.
                shown_kept = {uuid: readable(each) for uuid, each in kept.items()}
                afters = [{u: readable(e) for u, e in after.items()} for after in truth.values()]
                assert any(shown_kept == after or (held and shown_kept.items() <= after.items()) for after in afters)
            else:
                assert {u: readable(each) for u, each in kept.items()}.items() <= last.items(), what
            if way == "flip" and kind_of(path) == "log":
                gone = {id for first, final in report.lost_transactions for id in range(first, final + 1)}
                assert {uuid for uuid in last if born[uuid] not in gone} <= states.keys(), what


def require_rest_of_runs(whole: Specimen, runs: set[str], way: str, found: Salvaged) -> None:
    """Ruined runs of handles cost some that were in them, a flipped bit those of a block, and the report names one."""
    last = {uuid: readable(each) for uuid, each in whole.truth.after[whole.last_id].items()}
    kept = {uuid: readable(each) for uuid, each in found.kept.items()}
    missing = last.keys() - kept.keys() - found.held.keys()
    assert kept.items() <= last.items(), (runs, way)
    were_there = frozenset[bytes]().union(*(whole.resting[path] for path in runs))
    assert missing | (found.held.keys() & last.keys()) <= were_there, (runs, way)
    names = {name for path in runs for name in (path, f"run {int(path.rsplit('/', 1)[1].removesuffix('.run'))}")}
    is_named = any(each.path in names for each in found.report.damaged)
    assert is_named or (kept == last and not found.held), (runs, way)
    if way == "flip":
        assert not found.held, runs
        assert len(missing) <= SMALL_BLOCK // 20, runs


@pytest.mark.parametrize("at", [0, 9, 13, 40], ids=["magic", "length", "checksum", "body"])
@pytest.mark.parametrize("file", ["snapshot", "swap file"])
def test_a_damaged_header_costs_nothing(whole: Specimen, file: str, at: int) -> None:
    """It stands at the file's end once more; the report names it."""
    path = next(path for path in sorted(whole.image.files) if kind_of(path) == file)
    data = whole.image.files[path]
    found = salvaged(whole.with_file(path, data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :]))
    assert found.kept.keys() == whole.truth.after[whole.last_id].keys()
    assert not found.held
    assert [each.path for each in found.report.damaged] == [path]


def test_a_salvage_that_is_killed_leaves_nothing_that_opens(whole: Specimen) -> None:
    """Until all is there, `open` refuses it; begun again in an empty directory it is whole."""
    files = CrashFiles(whole.image)

    class Killed(BaseException):
        pass

    def killed(_done: int, _total: int) -> None:
        raise Killed

    spec = spec_at(NEW)
    with pytest.raises(Killed):
        salvage(ROOT, spec, files, ManualClock(1_700_000_100_000), on_progress=killed)
    with pytest.raises(NotARepository, match="cut short"):
        reopen(files.image(), spec)
    assert salvaged(whole.image).report.is_whole
