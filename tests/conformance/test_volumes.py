"""Volumes that go away for good, as a program meets them, here and over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import opened
from tests.service.socket.conftest import short_path as short_path
from tests.support import TWO
from ullage import Repository
from ullage.errors import InvalidArgument, VolumeAway
from ullage.wire.provenance import EventQuery

COUNT = 12


@pytest.fixture(params=["embedded", "http", "all transports"])
def spread(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[Repository]:
    """FlowFiles and handles on two volumes, a file each; the second one is away."""
    sections = {"storage": TWO, "claims": {"max_flow_files": 1}}
    with opened(request.param, tmp_path / "repository", short_path, **sections) as repository:
        for number in range(COUNT):
            repository.queues.put(f"q{number % 3}", f"content {number}".encode())
        for number in range(COUNT):
            repository.handles.put(f"handle {number}".encode())
        volume = tmp_path / "repository" / "c2"
        volume.rename(tmp_path / "away")
        yield repository
        (tmp_path / "away").rename(volume)


def test_each_volume_tells_what_would_be_lost_with_it(spread: Repository) -> None:
    """Its state and why, and what lies there by queue; asking changes nothing."""
    here, away = spread.volumes()

    assert [(here.container, here.state, here.reason), (away.container, away.state)] == [
        ("c1", "available", ""),
        ("c2", "away"),
    ]
    assert "has no ullage.json: is its volume mounted" in away.reason
    assert (here.total_bytes > 0, away.total_bytes) == (True, 0)
    assert sum(here.flow_files.values()) + sum(away.flow_files.values()) == COUNT
    assert here.handles + away.handles == COUNT
    assert min(away.handles, *away.flow_files.values(), away.live_bytes, away.resource_claims) > 0
    assert spread.volumes()[1] == away


def test_only_an_accepted_loss_forgets_one(spread: Repository) -> None:
    """Then it is gone, with a DROP event for each FlowFile and handle, and everything else is served."""
    _, away = spread.volumes()
    with pytest.raises(InvalidArgument, match="accept_loss"):
        spread.forget_volume("c2")
    with pytest.raises(InvalidArgument, match="the volume of c1 is there"):
        spread.forget_volume("c1", accept_loss=True)
    with pytest.raises(InvalidArgument, match="no container"):
        spread.forget_volume("c3", accept_loss=True)
    unread = 0
    for head in spread.handles.all():
        try:
            spread.handles.get(head.id)
        except VolumeAway:
            unread += 1
    assert unread == away.handles

    lost = spread.forget_volume("c2", accept_loss=True)

    assert (lost.flow_files, lost.handles, lost.state) == (away.flow_files, away.handles, "forgotten")
    (here,) = spread.volumes()
    assert here.container == "c1"
    assert sum(queue.flow_files for queue in spread.queues.all()) == sum(here.flow_files.values())
    left = [head.id for head in spread.handles.all()]
    assert len(left) == COUNT - away.handles
    assert all(spread.handles.get(handle).startswith(b"handle") for handle in left)
    dropped = spread.provenance.search(EventQuery(types=["DROP"], limit=100)).events
    assert len(dropped) == away.handles + sum(away.flow_files.values())
    assert spread.check(deep=True).problems == ()
