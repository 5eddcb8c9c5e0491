"""Where it is in doubt what is alive, nothing is touched: of all files, or of the one in doubt."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nifi.stopped import (
    BLOCK,
    DEAD,
    MIXED,
    QUEUE,
    SHARED,
    SWAP,
    of_nifi,
    path_of,
    stopped_nifi,
)
from tests.nifi.stopping import Killed, StoppedChanges
from tests.nifi.test_reclaim import reclaim
from tests.nifi.test_running import journal_of
from tests.nifi.written import Written, swap_file_of
from tests.support import ManualClock
from ullage.nifi.home import NiFiHome
from ullage.nifi.reclaiming import NiFiReclaimer, ReclaimOutcome
from ullage.nifi.reclaimplan import Replays
from ullage.nifi.seeing import UNKNOWN_HISTORY
from ullage.nifi.trouble import NotSurveyable


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    return stopped_nifi(tmp_path / "nifi")


def nothing_is_touched(home: NiFiHome, why: str) -> None:
    before = of_nifi(home)
    for replays in Replays:
        report = reclaim(home, replays=replays)
        assert report.outcome is ReclaimOutcome.NOTHING
        assert report.plan is not None
        assert any(why in doubt for doubt in report.plan.doubts), report.plan.doubts
    assert of_nifi(home) == before


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda home: (Path(home.flowfiles) / "swap" / SWAP).unlink(), "it is missing"),
        (lambda home: spoil(Path(home.flowfiles) / "swap" / SWAP, 2), f"swap/{SWAP}"),
        (lambda home: spoil(Path(home.flowfiles) / "checkpoint", -3), "checkpoint"),
        (lambda home: spoil(journal_of(home), journal_of(home).read_bytes().index(b"CREATE")), ".journal"),
        (lambda home: journal_of(home).rename(journal_of(home).with_name("90.journal")), "are in no file"),
    ],
    ids=["no swap file", "swap file", "checkpoint", "transaction", "no journal"],
)
def test_nothing_is_touched_where_flowfiles_could_not_be_read(
    home: NiFiHome, act: Callable[[NiFiHome], object], why: str
) -> None:
    """What is called dead may be theirs."""
    act(home)

    nothing_is_touched(home, why)


def test_what_a_swap_file_has_that_no_journal_tells_of_stays(home: NiFiHome) -> None:
    """NiFi passes over it and leaves it lying, for a person to look at: its contents are kept as well."""
    stray = Path(home.flowfiles) / "swap" / f"1-{QUEUE}-bbbb.swap"
    stray.write_bytes(swap_file_of(QUEUE, [Written(90, QUEUE, DEAD, BLOCK, 10)]))

    reclaim(home)

    assert path_of(home, DEAD).stat().st_size == BLOCK + 10
    stray.write_bytes(stray.read_bytes()[:-4])
    nothing_is_touched(home, "a swap file that no journal tells of")


def test_a_file_that_is_too_short_for_a_flowfile_is_left_alone(home: NiFiHome) -> None:
    """Something happened to it; and no file is deleted, since FlowFiles miss contents."""
    os.truncate(path_of(home, SHARED), 14 * BLOCK)
    before = path_of(home, SHARED).stat()

    report = reclaim(home)

    after = path_of(home, SHARED).stat()
    assert (after.st_blocks, after.st_size) == (before.st_blocks, before.st_size)
    assert path_of(home, DEAD).exists()
    assert report.plan is not None
    assert len(report.plan.left) == 1  # nothing was left of SHARED to say how much of it would come back


def test_a_file_with_another_name_is_left_alone(home: NiFiHome, tmp_path: Path) -> None:
    """A backup made of hard links would change with it."""
    os.link(path_of(home, MIXED), tmp_path / "backup")
    before = path_of(home, MIXED).read_bytes()

    report = reclaim(home)

    assert path_of(home, MIXED).read_bytes() == before
    assert report.plan is not None
    assert [left.first for left in report.plan.left] == [MIXED]


def test_a_content_that_lies_in_the_archive_is_left_alone(home: NiFiHome) -> None:
    """A replay has made it alive again where it is."""
    path = path_of(home, MIXED)
    (path.parent / "archive").mkdir()
    path.rename(path.parent / "archive" / path.name)
    before = (path.parent / "archive" / path.name).read_bytes()

    reclaim(home)

    assert (path.parent / "archive" / path.name).read_bytes() == before


def test_what_lies_in_the_archive_is_nifis(home: NiFiHome) -> None:
    """It keeps it for replays as long as its settings say."""
    kept = path_of(home, DEAD).parent / "archive" / "1600000000000-9"
    kept.parent.mkdir()
    kept.write_bytes(bytes(5 * BLOCK))

    reclaim(home)

    assert kept.stat().st_size == 5 * BLOCK


def test_containers_of_one_directory_are_refused(home: NiFiHome, tmp_path: Path) -> None:
    """What is alive by one name would be dead by the other."""
    for path in (home.containers["default"], f"{home.containers['default']}/1"):
        twice = NiFiHome(home.flowfiles, {**home.containers, "second": path}, provenance=home.provenance)
        nothing_is_touched(twice, "lie in")


def test_containers_that_flowfiles_lie_in_must_be_known(home: NiFiHome) -> None:
    """Else it is another NiFi's content, or another name is given to it."""
    one = NiFiHome(home.flowfiles, {"default": home.containers["default"]}, provenance=home.provenance)

    nothing_is_touched(one, "the container second, of which no directory is known")


def test_containers_that_were_mixed_up_lose_no_file(home: NiFiHome) -> None:
    """Each has the other's name: all contents are missing, and all files look like nobody's."""
    names = dict(zip(home.containers, reversed(home.containers.values()), strict=True))

    before = of_nifi(home)
    report = reclaim(NiFiHome(home.flowfiles, names, provenance=home.provenance))

    assert report.outcome is ReclaimOutcome.NOTHING
    assert of_nifi(home) == before


def test_where_events_are_must_be_known(home: NiFiHome) -> None:
    """They may name anything."""
    nothing_is_touched(NiFiHome(home.flowfiles, home.containers), UNKNOWN_HISTORY)


def test_events_that_can_not_be_read_keep_everything(home: NiFiHome) -> None:
    """They may name anything; if replays are refused they need not be read."""
    (events,) = map(Path, home.provenance or ())
    (events / "9.prov").write_bytes(b"\0\x0ebad event file")

    report = reclaim(home, replays=Replays.KEEP)

    assert report.outcome is ReclaimOutcome.NOTHING
    assert report.plan is not None
    assert "any content may be named there" in report.plan.doubts[0]
    assert reclaim(home).outcome is ReclaimOutcome.DONE


def test_encrypted_contents_are_left_alone(home: NiFiHome) -> None:
    """They are longer than NiFi says: properties would tell, and where none are at hand each content does."""
    path = path_of(home, SHARED)
    data = bytearray(path.read_bytes())
    data[4 * BLOCK : 4 * BLOCK + 6] = b"\0\0\xac\xed\0\5"
    path.write_bytes(data)

    report = reclaim(home)

    assert path.read_bytes() == data
    assert report.plan is not None
    assert [left.first for left in report.plan.left] == [SHARED]
    assert "encrypted" in report.plan.left[0].why


def test_what_was_begun_is_finished_with_the_same_directories(home: NiFiHome) -> None:
    """Others may have other files of these names."""
    with pytest.raises(Killed):
        NiFiReclaimer(home, ManualClock(1), StoppedChanges(20)).reclaim(Replays.REFUSE, "")
    before = of_nifi(home)
    others = NiFiHome(
        home.flowfiles,
        {**home.containers, "third": f"{home.containers['default']}/../third"},
        provenance=home.provenance,
    )
    Path(others.containers["third"]).mkdir()

    with pytest.raises(NotSurveyable, match="begun with other directories"):
        reclaim(others)
    assert of_nifi(home) == before
