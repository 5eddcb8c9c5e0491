"""A machine's clock that is wrong by years, as a program meets it, here and over HTTP."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import opened
from tests.service.socket.conftest import short_path as short_path
from ullage import Repository
from ullage.clock import LATEST_MILLIS, Clock
from ullage.errors import HandleDeleted, HandleNotFound, InvalidArgument

YEARS = 11 * 365 * 86_400_000
Wrong = Callable[[int], None]


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Wrong:
    """Sets how many milliseconds the machine's clock is ahead."""

    def be(by: int) -> None:
        monkeypatch.setattr(Clock, "now_millis", lambda _: time.time_ns() // 1_000_000 + by)

    return be


@pytest.fixture(params=["embedded", "memory", "http"])
def repository(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[Repository]:
    with opened(request.param, tmp_path / "repository", short_path) as repository:
        yield repository


def test_it_is_told_and_can_be_accepted(repository: Repository, wrong: Wrong) -> None:
    """What lives goes on to live; what is due by an accepted time is due."""
    handle = repository.handles.put(b"content", ttl_millis=3_600_000)
    assert repository.state().clock.reason == ""
    wrong(YEARS)

    told = repository.state()
    assert "the machine's clock says" in told.clock.reason
    assert told.now_millis == told.clock.believed_millis < told.clock.machine_millis - YEARS // 2
    checked = repository.check()
    assert "the machine's clock says" in checked.clock
    assert checked.problems == ()
    assert repository.handles.get(handle) == b"content"

    accepted = repository.accept_clock()
    assert (accepted.reason, accepted.machine_millis) == ("", accepted.believed_millis)
    assert repository.state().clock.reason == ""
    with pytest.raises((HandleDeleted, HandleNotFound)):
        repository.handles.get(handle)


def test_it_is_over_when_the_clock_is_right_again(repository: Repository, wrong: Wrong) -> None:
    """By itself, and what was put meanwhile is as old as it is."""
    wrong(-YEARS)
    assert repository.state().clock.reason
    handle = repository.handles.put(b"content", ttl_millis=3_600_000)
    wrong(0)

    assert repository.state().clock.reason == ""
    assert repository.handles.get(handle) == b"content"


@pytest.mark.parametrize("by", [LATEST_MILLIS, (1 << 63) - 1, 1 << 70, -LATEST_MILLIS])
def test_what_is_no_time_is_told_and_refused(repository: Repository, wrong: Wrong, by: int) -> None:
    """Everything else goes on."""
    wrong(by)
    repository.queues.put("in", b"content")

    assert repository.state().clock.reason
    with pytest.raises(InvalidArgument, match="no time"):
        repository.accept_clock()
    assert repository.provenance.search().events
