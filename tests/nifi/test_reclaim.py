"""Giving a stopped NiFi's dead bytes back, and taking that back again, on real files."""

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.nifi.samples import NAMES as SAMPLES, home_of_sample, truth, unpacked
from tests.nifi.stopped import (
    BLOCK,
    DEAD,
    EMPTY,
    LIVE,
    MIXED,
    NAMED,
    OLD_NS,
    SHARED,
    SIZES,
    allocated,
    contents,
    of_nifi,
    path_of,
    stopped_nifi,
)
from tests.nifi.stopping import Killed, StoppedChanges
from tests.nifi.test_running import HOLDS, journal_of, process
from tests.support import ManualClock
from ullage.errors import DiskFull
from ullage.nifi.changes import Changes
from ullage.nifi.home import NiFiHome
from ullage.nifi.reclaiming import NiFiReclaimer, ReclaimOutcome, ReclaimReport
from ullage.nifi.reclaimplan import NiFiReclaimPlan, Replays, plan_reclaim
from ullage.nifi.seeing import see_nifi
from ullage.nifi.trouble import NiFiInUse, NothingToUndo, NotSurveyable

NOW_MILLIS = 1_800_000_000_000
KEEP, REFUSE = Replays.KEEP, Replays.REFUSE


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    return stopped_nifi(tmp_path / "nifi")


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


def reclaimer(home: NiFiHome, changes: Changes | None = None) -> NiFiReclaimer:
    return NiFiReclaimer(home, ManualClock(NOW_MILLIS), changes)


def plan(home: NiFiHome, replays: Replays = REFUSE) -> NiFiReclaimPlan:
    return plan_reclaim(see_nifi(home, ManualClock(NOW_MILLIS), replays)[0])


def reclaim(home: NiFiHome, copies: Path | str = "", replays: Replays = REFUSE) -> ReclaimReport:
    return reclaimer(home).reclaim(replays, str(copies))


def test_what_is_dead_comes_back_and_nothing_else_changes(home: NiFiHome) -> None:
    """Heads, middles and tails in whole blocks, and a whole file; each FlowFile's bytes stay, and each file's date."""
    before, had = contents(home), allocated(home)
    promised = plan(home)

    report = reclaim(home)

    assert contents(home) == before
    assert (report.outcome, report.passed_over, report.files) == (ReclaimOutcome.DONE, [], len(promised.steps))
    assert had - allocated(home) == report.freed >= promised.freed > 50 * BLOCK
    assert not path_of(home, DEAD).exists()
    sizes = {file: path_of(home, file).stat().st_size for file in SIZES if file != DEAD}
    assert sizes == {
        MIXED: 10 * BLOCK + 1,
        EMPTY: 2 * BLOCK + 50,
        LIVE: SIZES[LIVE],
        SHARED: 14 * BLOCK + 10,
        NAMED: 10,
    }
    assert {path_of(home, file).stat().st_mtime_ns for file in sizes} == {OLD_NS}
    assert plan(home).steps == []


def test_holes_are_punched_around_what_lives(home: NiFiHome) -> None:
    """Clones and parts of a content count once; a swapped FlowFile's content is alive."""
    steps = {step.file: step for step in plan(home).steps}

    assert steps[SHARED].holes == [(0, 4 * BLOCK), (8 * BLOCK, 12 * BLOCK), (13 * BLOCK, 14 * BLOCK)]
    assert steps[MIXED].holes == [(0, 3 * BLOCK), (6 * BLOCK, 8 * BLOCK)]
    assert steps[EMPTY].holes == [(0, 2 * BLOCK)]
    assert LIVE not in steps


def test_a_plan_changes_nothing(home: NiFiHome) -> None:
    """Neither a byte, nor a name, nor a date."""
    before = of_nifi(home)

    plan(home, KEEP)

    assert of_nifi(home) == before
    assert not list(Path(home.flowfiles).glob("ullage*"))


def test_what_events_name_stays_if_replays_are_kept(home: NiFiHome) -> None:
    """All of it, also in a file of which no FlowFile has anything; the rest goes, and the events stay."""
    named = {file: path_of(home, file).read_bytes() for file in (NAMED, DEAD)}
    events = Path(home.provenance[0] if home.provenance else "")

    report = reclaim(home, replays=KEEP)

    assert path_of(home, NAMED).read_bytes()[4 * BLOCK + 1 :] == named[NAMED][4 * BLOCK + 1 : 7 * BLOCK + 1]
    assert path_of(home, DEAD).read_bytes() == named[DEAD][:150]
    assert (events / "0.prov").exists()
    assert report.set_aside == []
    assert report.plan is not None
    assert report.plan.named == 3 * BLOCK + 50


def test_events_go_out_of_nifis_sight_if_replays_are_refused(home: NiFiHome) -> None:
    """All of them and their index, for NiFi would take the zeros of a hole for content; before the first hole."""
    (events,) = map(Path, home.provenance or ())
    changes = StoppedChanges()

    report = reclaimer(home, changes).reclaim(REFUSE, "")

    (aside,) = map(Path, report.set_aside)
    assert [path.name for path in events.iterdir()] == [aside.name]
    assert sorted(path.name for path in aside.iterdir()) == ["0.prov", "lucene-9-index-1"]
    first = min(changes.calls.index(name) for name in ("punch", "truncate", "unlink"))
    assert "rename" not in changes.calls[first:-2]
    assert changes.calls[-2:] == ["rename", "sync_folder"]


def test_undo_gives_every_byte_and_date_back(home: NiFiHome, copies: Path) -> None:
    """Files, their lengths and their dates, and the events."""
    before, had = of_nifi(home), allocated(home)
    report = reclaim(home, copies)
    assert of_nifi(home) != before

    undone = reclaimer(home).undo()

    assert of_nifi(home) == before
    assert (undone.outcome, undone.files, undone.passed_over) == (ReclaimOutcome.UNDONE, report.files, [])
    assert allocated(home) >= had
    assert not list(Path(home.flowfiles).glob("ullage*"))
    (events,) = home.provenance or ()
    assert sorted(os.listdir(events)) == ["0.prov", "lucene-9-index-1"]
    with pytest.raises(NothingToUndo, match="nothing was reclaimed"):
        reclaimer(home).undo()


def test_after_an_undo_everything_can_be_reclaimed_again(home: NiFiHome, copies: Path) -> None:
    """And undone again; the last one, and then the one before it."""
    before = of_nifi(home)
    reclaim(home, copies, KEEP)
    between = of_nifi(home)
    reclaim(home, copies)

    reclaimer(home).undo()

    assert of_nifi(home) == between != before
    with pytest.raises(NothingToUndo):
        reclaimer(home).undo()


def test_what_is_for_good_can_not_be_undone(home: NiFiHome) -> None:
    """Nobody has the bytes, and nothing changes."""
    reclaim(home)
    after = of_nifi(home)

    with pytest.raises(NothingToUndo, match="for good"):
        reclaimer(home).undo()
    assert of_nifi(home) == after


def test_after_nifi_was_started_nothing_is_undone(home: NiFiHome, copies: Path) -> None:
    """It may have written where the files are, or removed them."""
    reclaim(home, copies)
    (Path(home.flowfiles) / "journals" / "44.journal").write_bytes(b"\x7f\x7f")
    after = of_nifi(home)

    with pytest.raises(NothingToUndo, match="NiFi was started"):
        reclaimer(home).undo()
    assert of_nifi(home) == after


def test_a_damaged_copy_is_not_put_back(home: NiFiHome, copies: Path) -> None:
    """That file is named, the others come back, and the events stay aside, since they may name it."""
    before = of_nifi(home)
    reclaim(home, copies)
    (kept,) = copies.glob("*/contents")
    data = bytearray(kept.read_bytes())
    data[5] ^= 1
    kept.write_bytes(data)

    report = reclaimer(home).undo()

    (left,) = report.passed_over
    assert (left.file, left.why) == (MIXED, "its copy is damaged")
    assert report.set_aside
    found = of_nifi(home)
    wrong = {path for path in before if found.get(path) != before[path]}
    assert {path for path in wrong if "provenance" not in path} == {str(path_of(home, MIXED))}
    (kept.parent / "sums").unlink()
    assert contents(home)


def test_copies_that_are_away_are_asked_for(home: NiFiHome, copies: Path) -> None:
    """A disk that is not mounted: nothing is changed meanwhile, and undo does it later."""
    before = of_nifi(home)
    reclaim(home, copies)
    after = of_nifi(home)
    copies.rename(copies.with_name("away"))

    with pytest.raises(NothingToUndo, match="can't be read"):
        reclaimer(home).undo()
    assert of_nifi(home) == after
    copies.with_name("away").rename(copies)
    reclaimer(home).undo()
    assert of_nifi(home) == before


def test_a_nifi_that_runs_is_refused(home: NiFiHome) -> None:
    """Whatever is asked for."""
    before = of_nifi(home)
    with process(HOLDS, journal_of(home)):
        with pytest.raises(NiFiInUse):
            reclaim(home)
        with pytest.raises(NiFiInUse):
            reclaimer(home).undo()
    assert of_nifi(home) == before


def test_a_full_disk_is_told_and_nothing_changes(home: NiFiHome, copies: Path) -> None:
    """There is no room for the intent, or for the copies."""
    before = of_nifi(home)
    full = OSError(errno.ENOSPC, "No space left on device")
    for number, why in ((0, "no room to write down"), (5, "no room for the copies"), (6, "no room for the copies")):
        calls = StoppedChanges(number, error=full)
        with pytest.raises(DiskFull, match=why):
            reclaimer(home, calls).reclaim(REFUSE, str(copies))
        assert calls.calls[number] == "write_new"
        assert of_nifi(home) == before
        assert not list(Path(home.flowfiles).glob("ullage*"))
        assert not list(copies.rglob("*"))


def test_an_undo_without_room_goes_on_when_there_is_some(home: NiFiHome, copies: Path) -> None:
    """Holes need room again: what is back stays, events stay aside, and the next call goes on."""
    before, live = of_nifi(home), contents(home)
    reclaim(home, copies)
    failing = StoppedChanges(9, error=OSError(errno.ENOSPC, "No space left on device"))

    with pytest.raises(DiskFull, match="undo again"):
        reclaimer(home, failing).undo()

    assert failing.calls[9] == "write"
    assert contents(home) == live
    (events,) = home.provenance or ()
    assert not (Path(events) / "0.prov").exists()
    reclaimer(home).undo()
    assert of_nifi(home) == before


def test_a_file_that_changed_since_it_was_seen_is_left_alone(home: NiFiHome) -> None:
    """Somebody else is at work there; the others come back."""

    class Meddling(Changes):
        def write_new(self, path: str, *arguments: Any, **more: Any) -> None:
            super().write_new(path, *arguments, **more)
            path_of(home, MIXED).write_bytes(random.Random(5).randbytes(SIZES[MIXED]))

    report = reclaimer(home, Meddling()).reclaim(REFUSE, "")

    assert [(left.file, left.why) for left in report.passed_over] == [(MIXED, "it changed since it was looked at")]
    assert path_of(home, MIXED).read_bytes() == random.Random(5).randbytes(SIZES[MIXED])
    assert not path_of(home, DEAD).exists()


def test_a_nifi_that_is_started_meanwhile_stops_it(home: NiFiHome) -> None:
    """Before the first change; the next call plans anew."""

    class Starting(Changes):
        def write_new(self, path: str, *arguments: Any, **more: Any) -> None:
            super().write_new(path, *arguments, **more)
            (Path(home.flowfiles) / "journals" / "44.journal").write_bytes(b"\x7f\x7f")

    before = {path: what for path, what in of_nifi(home).items() if "journal" not in path and "prov" not in path}

    with pytest.raises(NiFiInUse, match="started meanwhile"):
        reclaimer(home, Starting()).reclaim(REFUSE, "")

    assert {path: what for path, what in of_nifi(home).items() if path in before} == before


def test_an_intent_that_can_not_be_read_stops_everything(home: NiFiHome) -> None:
    """What was begun is not known."""
    for data in (b"{", json.dumps({"version": 99}).encode()):
        (Path(home.flowfiles) / "ullage-reclaim.changing").write_bytes(data)
        with pytest.raises(NotSurveyable, match=r"ullage-reclaim\.changing can't be read"):
            reclaim(home)
        with pytest.raises(NotSurveyable, match=r"ullage-reclaim\.changing can't be read"):
            reclaimer(home).undo()


def test_without_holes_in_a_filesystem_the_rest_comes_back(home: NiFiHome) -> None:
    """Tails and whole files need none."""

    class Holeless(Changes):
        def can_punch(self, folder: str) -> bool:
            return False

        def punch(self, descriptor: int, begin: int, end: int) -> None:
            raise AssertionError

    report = reclaimer(home, Holeless()).reclaim(REFUSE, "")

    assert report.passed_over == []
    assert path_of(home, SHARED).stat().st_size == 14 * BLOCK + 10


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("replays", list(Replays))
def test_what_nifi_wrote_keeps_its_flowfiles(name: str, replays: Replays, tmp_path: Path) -> None:
    """Each of them reads as before, swapped ones included; a second plan is empty, and undo takes it all back."""
    place = unpacked(name, tmp_path)
    home = home_of_sample(place)
    home = NiFiHome(home.flowfiles, home.containers, provenance=())
    (tmp_path / "copies").mkdir()
    before, had, all_of_it = live_of_sample(place), allocated(home), of_nifi(home)

    report = NiFiReclaimer(home, ManualClock(NOW_MILLIS), is_assured=name.endswith("killed")).reclaim(
        replays, str(tmp_path / "copies")
    )

    assert live_of_sample(place) == before
    assert had - allocated(home) == report.freed > 0
    assert plan(home, replays).steps == []
    NiFiReclaimer(home, ManualClock(NOW_MILLIS), is_assured=True).undo()
    assert of_nifi(home) == all_of_it


def live_of_sample(place: Path) -> list[tuple[str, bytes]]:
    found = []
    for each in truth(place):
        data = b""
        if each.file:
            container, below = each.file.split("/", 1)
            with (Path(home_of_sample(place).containers[container]) / below).open("rb") as file:
                file.seek(each.start)
                data = file.read(each.size)
        assert len(data) == each.size
        found.append((each.uuid, data))
    return found


def test_who_may_not_change_the_files_changes_nothing(home: NiFiHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where events are: they would be out of sight for nothing."""
    before = of_nifi(home)
    (events,) = home.provenance or ()
    may = os.access
    for refused in (path_of(home, MIXED), path_of(home, DEAD).parent, Path(events)):

        def access(path: str, mode: int, refused: Path = refused) -> bool:
            return Path(path) != refused and may(path, mode)

        monkeypatch.setattr(os, "access", access)
        with pytest.raises(PermissionError, match="run this as NiFi's user"):
            reclaim(home)
        assert of_nifi(home) == before
        assert not list(Path(home.flowfiles).glob("ullage*"))


def test_what_is_alive_by_now_is_not_finished(home: NiFiHome) -> None:
    """Each step of what was begun is held against what lives, whoever wrote the intent."""
    live = contents(home)
    with pytest.raises(Killed):
        reclaimer(home, StoppedChanges(12)).reclaim(REFUSE, "")
    path = Path(home.flowfiles) / "ullage-reclaim.changing"
    intent = json.loads(path.read_bytes())
    for step in intent["steps"]:
        if step["file"] == SHARED:
            step["holes"][0] = [0, 5 * BLOCK]
            step["gone"][0] = [0, 5 * BLOCK]
    path.write_text(json.dumps(intent))

    report = reclaim(home)

    assert report.outcome is ReclaimOutcome.FINISHED
    assert [(left.file, left.why) for left in report.passed_over] == [(SHARED, "something in it is alive by now")]
    assert contents(home) == live
    assert not path_of(home, DEAD).exists()


def test_a_new_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An intent or a copy that a loss of power empties is none."""
    synced: list[bytes] = []
    sync = os.fsync

    def seen(descriptor: int) -> None:
        sync(descriptor)
        synced.append((tmp_path / "new").read_bytes())

    monkeypatch.setattr(os, "fsync", seen)
    Changes().write_new(str(tmp_path / "new"), [b"some", b"thing"])

    assert synced == [b"something"]


def test_another_file_of_the_same_name_length_and_date_is_left_alone(home: NiFiHome, tmp_path: Path) -> None:
    """It was put there meanwhile, as a restore would do it."""
    other = tmp_path / "other"
    other.write_bytes(bytes(SIZES[MIXED]))
    os.utime(other, ns=(OLD_NS, OLD_NS))

    class Meddling(Changes):
        def write_new(self, path: str, *arguments: Any, **more: Any) -> None:
            super().write_new(path, *arguments, **more)
            other.rename(path_of(home, MIXED))

    report = reclaimer(home, Meddling()).reclaim(REFUSE, "")

    assert [left.file for left in report.passed_over] == [MIXED]
    assert path_of(home, MIXED).stat().st_size == SIZES[MIXED]
