"""A reclaim, and its undo, stopped at each of their calls on real files.

Whatever has happened by then, every FlowFile has its content, no event names zeros, and the next call finishes it, or
takes it back: afterwards the disk is as if nothing had been in between.
"""

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.nifi.stopped import NAMES, contents, of_nifi, path_of, stopped_nifi
from tests.nifi.stopping import Killed, LosingChanges, StoppedChanges
from tests.support import ManualClock
from ullage.nifi.changes import Changes
from ullage.nifi.home import NiFiHome
from ullage.nifi.reclaiming import NiFiReclaimer, ReclaimReport
from ullage.nifi.reclaimplan import Replays
from ullage.nifi.trouble import NothingToUndo

FULL = "ULLAGE_NIFI_FULL" in os.environ
NOW_MILLIS = 1_800_000_000_000
LOSSES = 6 if FULL else 1
"""By chance at each call, besides the loss of everything that was not synced."""


class Place(NamedTuple):
    """A NiFi to try on, and the folder for copies; empty: for good."""

    home: NiFiHome
    copies: Path | None

    def reclaimer(self, changes: Changes | None = None) -> NiFiReclaimer:
        return NiFiReclaimer(self.home, ManualClock(NOW_MILLIS), changes)

    def reclaim(self, replays: Replays, changes: Changes | None = None) -> ReclaimReport:
        return self.reclaimer(changes).reclaim(replays, str(self.copies or ""))

    def undo(self, changes: Changes | None = None) -> None:
        self.reclaimer(changes).undo()


class Trial:
    """A NiFi that is made anew for each call that it is stopped at, always in the same place."""

    def __init__(self, folder: Path, *, is_saved: bool) -> None:
        self._model, self._folder, self._is_saved = folder / "model", folder / "nifi", is_saved
        self._trash = folder / "trash"
        stopped_nifi(self._folder)  # paths of swap files are absolute
        shutil.copytree(self._folder, self._model)
        self.begin()

    def begin(self) -> Place:
        for folder in (self._folder, self._trash):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._model, self._folder)
        self._trash.mkdir()
        home = NiFiHome(
            str(self._folder / "flowfile_repository"),
            {"default": str(self._folder / "content_repository"), "second": str(self._folder / "content_second")},
            provenance=(str(self._folder / "provenance_repository"),),
        )
        copies = self._folder / "copies"
        copies.mkdir()
        return Place(home, copies if self._is_saved else None)

    def losing(self, last: int) -> LosingChanges:
        return LosingChanges(last, self._trash)


def held(place: Place, live: dict[int, bytes], named: list[bytes]) -> None:
    """What must hold at any moment: FlowFiles have their contents, and what events in NiFi's sight name is there."""
    assert contents(place.home) == live
    (events,) = map(Path, place.home.provenance or ())
    if (events / "0.prov").exists():
        assert named_bytes(place.home) == named


def named_bytes(home: NiFiHome) -> list[bytes]:
    found = []
    for file, begin, size in NAMES:
        data = path_of(home, file).read_bytes() if path_of(home, file).exists() else b""
        found.append(data[begin : begin + size])
    return found


def calls_to_stop_at(counted: StoppedChanges) -> list[int]:
    """All; in CI the last one of each kind behind each other kind."""
    calls = ["", *counted.calls, ""]
    kinds = {tuple(calls[number : number + 2]): number for number in range(len(counted.calls))}
    return list(range(len(counted.calls))) if FULL else sorted(kinds.values())


def stop(act: Callable[[Changes], object], changes: Changes) -> bool:
    """Whether it was stopped before its end."""
    try:
        act(changes)
    except Killed:
        return True
    return False


def lose_power(act: Callable[[Changes], object], changes: LosingChanges, number: int, loss: int) -> None:
    """At this call; of what was not synced all is gone, or, of later losses, some by chance."""
    assert stop(act, changes)
    changes.lose(random.Random(number * 100 + loss) if loss else None)


def bytes_of(home: NiFiHome) -> dict[str, bytes]:
    """Without dates: those of files that a loss of power has touched are nobody's promise."""
    return {path: what[1] for path, what in of_nifi(home).items()}


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "for good"])
@pytest.mark.parametrize("replays", list(Replays) if FULL else [Replays.REFUSE])
def test_a_reclaim_that_is_killed_is_finished_by_the_next_one(
    replays: Replays, is_saved: bool, in_memory: Path
) -> None:
    """At each call, done or not: afterwards the disk is as after one that was not killed."""
    trial = Trial(in_memory, is_saved=is_saved)
    place = trial.begin()
    live, named = contents(place.home), named_bytes(place.home)
    counted = StoppedChanges()
    place.reclaim(replays, counted)
    after = of_nifi(place.home)
    for number in calls_to_stop_at(counted):
        for is_done in (False, True):
            place = trial.begin()
            assert stop(partial(place.reclaim, replays), StoppedChanges(number, is_done=is_done))
            held(place, live, named)

            report = place.reclaim(replays)

            held(place, live, named)
            assert report.passed_over == []
            assert of_nifi(place.home) == after, number
            assert os.listdir(place.home.flowfiles).count("ullage-reclaim.done") == 1
            assert not list(Path(place.home.flowfiles).glob("ullage-reclaim.[!d]*")), number
            assert len(list((in_memory / "nifi" / "copies").iterdir())) == is_saved, number


@pytest.mark.parametrize("replays", list(Replays))
def test_a_reclaim_that_is_killed_can_be_undone(replays: Replays, in_memory: Path) -> None:
    """At each call: afterwards the disk is as before it was begun."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before = of_nifi(place.home)
    counted = StoppedChanges()
    place.reclaim(replays, counted)
    for number in calls_to_stop_at(counted):
        place = trial.begin()
        assert stop(partial(place.reclaim, replays), StoppedChanges(number))

        undo(place)

        assert of_nifi(place.home) == before, number
        assert not list(Path(place.home.flowfiles).glob("ullage-reclaim.[!p]*"))


def undo(place: Place) -> None:
    """Where it was stopped before the intent was there, nothing is to be undone."""
    try:
        place.undo()
    except NothingToUndo as error:
        assert "nothing was reclaimed" in str(error)  # noqa: PT017 - it may as well be undone


@pytest.mark.parametrize("then", ["undo", "reclaim"])
def test_an_undo_that_is_killed_is_finished_by_the_next_call(then: str, in_memory: Path) -> None:
    """Whichever: afterwards the disk is as before the reclaim."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live, named = of_nifi(place.home), contents(place.home), named_bytes(place.home)
    place.reclaim(Replays.REFUSE)
    counted = StoppedChanges()
    place.undo(counted)
    for number in calls_to_stop_at(counted):
        for is_done in (False, True):
            place = trial.begin()
            place.reclaim(Replays.REFUSE)
            assert stop(place.undo, StoppedChanges(number, is_done=is_done))
            held(place, live, named)
            is_begun = bool(list(Path(place.home.flowfiles).glob("ullage-reclaim.undoing")))

            if then == "reclaim" and is_begun:
                place.reclaim(Replays.REFUSE)
            else:
                undo(place)

            assert of_nifi(place.home) == before, number


@pytest.mark.parametrize("replays", list(Replays))
def test_a_loss_of_power_amid_a_reclaim_loses_no_content(replays: Replays, in_memory: Path) -> None:
    """At each call, what was not synced is gone, or some of it: the next call finishes it, or takes it back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live, named = bytes_of(place.home), contents(place.home), named_bytes(place.home)
    counted = StoppedChanges()
    place.reclaim(replays, counted)
    for number in calls_to_stop_at(counted):
        for loss in range(LOSSES + 1):
            place = trial.begin()
            lose_power(partial(place.reclaim, replays), trial.losing(number), number, loss)
            held(place, live, named)

            if (number + loss) % 2:
                place.reclaim(replays)
                held(place, live, named)
            undo(place)

            assert bytes_of(place.home) == before, (number, loss)


def test_a_loss_of_power_amid_an_undo_loses_no_content(in_memory: Path) -> None:
    """The same: the next undo goes on, and everything is back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live, named = bytes_of(place.home), contents(place.home), named_bytes(place.home)
    place.reclaim(Replays.REFUSE)
    counted = StoppedChanges()
    place.undo(counted)
    for number in calls_to_stop_at(counted):
        for loss in range(LOSSES + 1):
            place = trial.begin()
            place.reclaim(Replays.REFUSE)
            lose_power(place.undo, trial.losing(number), number, loss)
            held(place, live, named)

            undo(place)

            assert bytes_of(place.home) == before, (number, loss)


@pytest.mark.parametrize("replays", list(Replays))
def test_a_call_that_fails_leaves_what_the_next_one_finishes(replays: Replays, in_memory: Path) -> None:
    """Each of them once, with an error of the disk; afterwards everything can be taken back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live, named = bytes_of(place.home), contents(place.home), named_bytes(place.home)
    counted = StoppedChanges()
    place.reclaim(replays, counted)
    for number in calls_to_stop_at(counted):
        place = trial.begin()
        failing = StoppedChanges(number, error=OSError(5, "Input/output error"))
        try:
            place.reclaim(replays, failing)
        except OSError:
            held(place, live, named)
            place.reclaim(replays)
        held(place, live, named)

        undo(place)

        assert bytes_of(place.home) == before, number


@pytest.mark.parametrize("replays", list(Replays))
def test_what_was_reported_survives_a_loss_of_power(replays: Replays, in_memory: Path) -> None:
    """What came back stays so, and what was taken back does: nothing is left to be synced."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before = bytes_of(place.home)
    changes = trial.losing(-1)
    place.reclaim(replays, changes)
    after = bytes_of(place.home)

    changes.lose()

    assert bytes_of(place.home) == after
    changes = trial.losing(-1)
    place.undo(changes)
    changes.lose()
    assert bytes_of(place.home) == before
    assert not list(Path(place.home.flowfiles).glob("ullage-reclaim*"))
