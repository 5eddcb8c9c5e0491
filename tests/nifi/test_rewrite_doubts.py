"""Where survivors can't be brought together, that is said, and what was done before stays done."""

import os
from pathlib import Path

import pytest

from tests.nifi.stopped import CLOSED, MIXED, QUEUE, SWAP, allocated, of_nifi, path_of, stopped_nifi
from tests.nifi.stopping import Killed, StoppedChanges
from tests.nifi.test_rewrite import held, rewrite, undo
from tests.nifi.test_running import journal_of
from tests.nifi.written import CREATED, RECORD, Written, created, journal_header, schema, swap_file_of, transaction_of
from tests.support import ManualClock
from ullage.nifi.building import MIXED_FORMATS
from ullage.nifi.changes import Changes
from ullage.nifi.home import NiFiHome
from ullage.nifi.reclaiming import NiFiReclaimer, ReclaimOutcome
from ullage.nifi.reclaimplan import Replays
from ullage.nifi.rooms import MARGIN
from ullage.nifi.trouble import NothingToUndo


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    return stopped_nifi(tmp_path / "nifi")


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


class Narrow(Changes):
    """A disk with so many free bytes."""

    def __init__(self, free: int) -> None:
        self.room = free

    def free(self, folder: str) -> tuple[int, int]:
        return os.stat(folder).st_dev, self.room


def names_of(home: NiFiHome) -> set[str]:
    return {name for name in of_nifi(home) if "content" in name}


def test_without_room_for_a_second_repository_holes_are_all(home: NiFiHome) -> None:
    """What it needs is said, and FlowFiles stay where they are."""
    report = rewrite(home, changes=Narrow(MARGIN))

    assert f"{home.flowfiles} needs " in report.short
    assert report.freed > 0
    assert report.moved == 0
    assert path_of(home, MIXED).exists()


def test_files_move_as_room_comes_back(home: NiFiHome, copies: Path) -> None:
    """A part at a time, the first in order first; undo takes all parts back."""
    live, before = held(home), of_nifi(home)
    size = sum(path.stat().st_size for path in Path(home.flowfiles).rglob("*") if path.is_file())
    # The intent of the holes is there by then as well.
    report = rewrite(home, copies, Narrow(MARGIN + 3 * size + (16 << 10)))

    assert report.moved > 0
    assert len(list(copies.iterdir())) > 2
    assert held(home) == live
    undo(home)
    assert of_nifi(home) == before


def test_no_room_for_any_file_is_said(home: NiFiHome) -> None:
    """With the number of files."""
    repository = [path for path in Path(home.flowfiles).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in repository)

    report = rewrite(home, changes=Narrow(MARGIN + size + 8_000))

    assert report.short
    assert report.moved == 0


def test_records_of_two_versions_of_nifi_are_not_mixed(home: NiFiHome) -> None:
    """A checkpoint has one schema: NiFi itself makes one of them when it starts."""
    checkpoint = Path(home.flowfiles) / "checkpoint"
    union = RECORD._replace(fields=(*RECORD.fields, RECORD.fields[0]._replace(name="Newer", fields=CREATED)))
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data.replace(schema((RECORD,)), schema((union,))))
    live, had = held(home), allocated(home)

    report = rewrite(home)

    assert report.short == MIXED_FORMATS
    assert held(home) == live
    assert allocated(home) < had
    assert not [name for name in os.listdir(home.flowfiles) if "ullage" in name and not name.endswith("done")]


def test_where_flowfiles_may_be_missing_nothing_moves(home: NiFiHome) -> None:
    """As nothing is given back either."""
    (Path(home.flowfiles) / "swap" / SWAP).unlink()
    before = of_nifi(home)

    report = rewrite(home)

    assert report.outcome is ReclaimOutcome.NOTHING
    assert of_nifi(home) == before


def test_a_container_that_is_away_stops_it(home: NiFiHome) -> None:
    """FlowFiles lie in it."""
    before = of_nifi(home)
    one = NiFiHome(home.flowfiles, {"default": home.containers["default"]}, provenance=home.provenance)

    report = rewrite(one)

    assert report.outcome is ReclaimOutcome.NOTHING
    assert of_nifi(home) == before


def test_what_replays_need_stays_where_it_is(home: NiFiHome) -> None:
    """Files that events name, under their names."""
    reclaimer = NiFiReclaimer(home, ManualClock(1_800_000_000_000), is_assured=True)
    live = held(home)

    reclaimer.reclaim(Replays.KEEP, "", is_rewriting=True)

    assert held(home) == live
    assert path_of(home, "default/4/1700000000000-4").exists()
    assert path_of(home, "default/6/1700000000000-6").exists()
    assert not path_of(home, MIXED).exists()


def test_what_a_stray_swap_file_names_stays_where_it_is(home: NiFiHome) -> None:
    """NiFi passes over it, and it would name what is not there any more."""
    stray = Path(home.flowfiles) / "swap" / SWAP.replace("aaaa", "bbbb")
    stray.write_bytes(swap_file_of(QUEUE, [Written(90, QUEUE, MIXED, 13_000, 50)]))
    kept = path_of(home, MIXED).read_bytes()

    rewrite(home)

    assert path_of(home, MIXED).read_bytes()[12_388:20_580] == kept[12_388:20_580]


def test_after_nifi_was_started_nothing_is_finished_or_undone(home: NiFiHome, copies: Path) -> None:
    """It has its own view by then: FlowFiles have their contents, and the next call plans anew."""
    live = held(home)
    rewrite(home, copies)
    (Path(home.flowfiles) / "journals" / "45.journal").write_bytes(journal_header() + CLOSED)
    with pytest.raises(NothingToUndo, match="NiFi was started"):
        undo(home)
    assert held(home) == live


def test_a_damaged_copy_of_a_swap_file_is_not_put_back(home: NiFiHome, copies: Path) -> None:
    """Nothing changes then: FlowFiles stay where they were brought."""
    live = held(home)
    rewrite(home, copies)
    after = of_nifi(home)
    newest = max(copies.iterdir(), key=lambda path: path.stat().st_mtime_ns) / "contents"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)

    with pytest.raises(NothingToUndo, match="the copy of swap/"):
        undo(home)
    assert of_nifi(home) == after
    assert held(home) == live


def test_a_repository_without_a_checkpoint_gets_one(home: NiFiHome, copies: Path) -> None:
    """NiFi has written none before its first one; undo takes it away."""
    checkpoint = Path(home.flowfiles) / "checkpoint"
    checkpoint.unlink()
    journal = journal_of(home)
    journal.rename(journal.with_name("0.journal"))
    live, before = held(home), of_nifi(home)

    report = rewrite(home, copies)

    assert report.moved > 0
    assert checkpoint.exists()
    assert held(home) == live
    undo(home)
    assert of_nifi(home) == before


def test_a_journal_of_one_transaction_is_passed_over(home: NiFiHome) -> None:
    """Its first transaction is the last one that a checkpoint has, so this one says that it has one more."""
    moved = Written(7, QUEUE, MIXED, 13_000, 100)
    journal_of(home).with_name("44.journal").write_bytes(
        journal_header() + transaction_of(44, created(moved, "UPDATE")) + CLOSED
    )
    live = held(home)

    rewrite(home)

    assert held(home) == live
    assert not path_of(home, MIXED).exists()


def test_a_kill_while_survivors_are_copied_leaves_nothing(home: NiFiHome) -> None:
    """No new file, and no folder of the build, once the next call has begun."""
    names = names_of(home)
    counted = StoppedChanges()
    rewrite(home, changes=counted)
    number = len(counted.calls) - 1 - counted.calls[::-1].index("write_new")
    other = stopped_nifi(Path(home.flowfiles).parent.with_name("other"))
    with pytest.raises(Killed):
        rewrite(other, changes=StoppedChanges(number))
    assert len(names_of(other)) > len(names) - 1

    rewrite(other)

    assert sorted(map(os.path.basename, names_of(other))) == sorted(map(os.path.basename, names_of(home)))
    assert not [name for name in os.listdir(other.flowfiles) if "ullage" in name and "done" not in name]
