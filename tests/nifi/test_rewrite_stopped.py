"""A rewrite, and its undo, stopped at each of their calls on real files.

Whatever has happened by then, every FlowFile is as it was, and the next call finishes it, or takes it back.
"""

import os
import random
from functools import partial
from pathlib import Path

import pytest

from tests.nifi.stopping import StoppedChanges
from tests.nifi.test_reclaim_stopped import FULL, Place, Trial, bytes_of, calls_to_stop_at, lose_power, stop, undo
from tests.nifi.test_rewrite import flowfiles_of, held
from ullage.nifi.reclaimplan import Replays

SAMPLED = 2
LOSSES = 4 if FULL else 1
"""By chance at each call, besides the loss of everything that was not synced."""


def rewrite(place: Place, changes: StoppedChanges | None = None) -> object:
    return place.reclaimer(changes).reclaim(Replays.REFUSE, str(place.copies or ""), is_rewriting=True)


def whole(place: Place) -> list[object]:
    """All that FlowFiles are, but for the order of swapped ones among others, which NiFi keeps apart."""
    return sorted(held(place.home), key=repr)


def some_of(counted: StoppedChanges) -> list[int]:
    """Where to stop: in CI at a few of the calls."""
    calls = calls_to_stop_at(counted)
    return calls if FULL else sorted(random.Random(len(calls)).sample(calls, min(SAMPLED, len(calls))))


def left_over(place: Place) -> list[str]:
    """What an intent or a build leaves beside NiFi's files."""
    return sorted(name for name in os.listdir(place.home.flowfiles) if name.startswith("ullage-reclaim"))


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "for good"])
def test_a_rewrite_that_is_killed_is_finished_by_the_next_one(is_saved: bool, in_memory: Path) -> None:
    """At each call, done or not: FlowFiles are whole then, and afterwards the disk is as after one that was not."""
    trial = Trial(in_memory, is_saved=is_saved)
    place = trial.begin()
    live = held(place.home)
    counted = StoppedChanges()
    rewrite(place, counted)
    after, names = bytes_of(place.home), left_over(place)
    for number in some_of(counted):
        for is_done in (False, True):
            place = trial.begin()
            assert stop(partial(rewrite, place), StoppedChanges(number, is_done=is_done))
            assert whole(place) == sorted(live, key=repr), number

            rewrite(place)

            assert held(place.home) == live
            assert bytes_of(place.home) == after, number
            assert left_over(place) == names, number


def test_a_rewrite_that_is_killed_can_be_undone(in_memory: Path) -> None:
    """At each call, with the holes that were punched before it: afterwards the disk is as it was."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live = bytes_of(place.home), held(place.home)
    counted = StoppedChanges()
    rewrite(place, counted)
    for number in some_of(counted):
        place = trial.begin()
        assert stop(partial(rewrite, place), StoppedChanges(number, is_done=bool(number % 2)))

        undo(place)

        assert held(place.home) == live
        assert bytes_of(place.home) == before, number
        assert set(left_over(place)) <= {"ullage-reclaim.partial"}


def test_an_undo_of_a_rewrite_that_is_killed_is_finished_by_the_next_one(in_memory: Path) -> None:
    """At each call: FlowFiles are whole then, and afterwards the disk is as before."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live = bytes_of(place.home), held(place.home)
    rewrite(place)
    counted = StoppedChanges()
    place.undo(counted)
    assert bytes_of(place.home) == before
    for number in some_of(counted):
        for is_done in (False, True):
            place = trial.begin()
            rewrite(place)
            assert stop(place.undo, StoppedChanges(number, is_done=is_done))
            assert whole(place) == sorted(live, key=repr), number

            undo(place)

            assert bytes_of(place.home) == before, number
            assert left_over(place) == []


@pytest.mark.parametrize("is_whole", [True, False], ids=["filesystem", "file by file"])
def test_a_loss_of_power_amid_a_rewrite_loses_no_content(is_whole: bool, in_memory: Path) -> None:
    """At each call, what was not synced is gone, or some of it: the next call finishes it, or takes it back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live = bytes_of(place.home), held(place.home)
    counted = StoppedChanges()
    rewrite(place, counted)
    for number in some_of(counted):
        for loss in range(LOSSES + 1):
            place = trial.begin()
            changes = trial.losing(number)
            changes.is_synced_whole = is_whole
            lose_power(partial(rewrite, place), changes, number, loss)
            assert whole(place) == sorted(live, key=repr), (number, loss)

            if (number + loss) % 2:
                rewrite(place)
                assert held(place.home) == live, (number, loss)
            undo(place)

            assert bytes_of(place.home) == before, (number, loss)


def test_a_loss_of_power_amid_an_undo_of_a_rewrite_loses_no_content(in_memory: Path) -> None:
    """The same: the next undo goes on, and everything is back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live = bytes_of(place.home), held(place.home)
    rewrite(place)
    counted = StoppedChanges()
    place.undo(counted)
    for number in some_of(counted):
        for loss in range(LOSSES + 1):
            place = trial.begin()
            rewrite(place)
            lose_power(place.undo, trial.losing(number), number, loss)
            assert whole(place) == sorted(live, key=repr), (number, loss)

            undo(place)

            assert bytes_of(place.home) == before, (number, loss)


def test_a_call_that_fails_amid_a_rewrite_leaves_what_the_next_one_finishes(in_memory: Path) -> None:
    """Each of them once, with an error of the disk; afterwards everything can be taken back."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before, live = bytes_of(place.home), held(place.home)
    counted = StoppedChanges()
    rewrite(place, counted)
    for number in some_of(counted):
        place = trial.begin()
        failing = StoppedChanges(number, error=OSError(5, "Input/output error"))
        try:
            rewrite(place, failing)
        except OSError:
            assert whole(place) == sorted(live, key=repr), number
            rewrite(place)
        assert held(place.home) == live, number

        undo(place)

        assert bytes_of(place.home) == before, number


def test_what_a_rewrite_reported_survives_a_loss_of_power(in_memory: Path) -> None:
    """What came back stays so, and what was taken back does: nothing is left to be synced."""
    trial = Trial(in_memory, is_saved=True)
    place = trial.begin()
    before = bytes_of(place.home)
    changes = trial.losing(-1)
    rewrite(place, changes)
    after = bytes_of(place.home)

    changes.lose()

    assert bytes_of(place.home) == after
    assert len(flowfiles_of(place.home)) == len(held(place.home))
    changes = trial.losing(-1)
    place.undo(changes)
    changes.lose()
    assert bytes_of(place.home) == before
    assert left_over(place) == []
