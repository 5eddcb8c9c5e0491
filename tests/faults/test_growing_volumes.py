"""Volumes that come and grow while an agent serves: each is taken up without a restart."""

import os
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from tests.faults.volumes import CAN_GROW, MIB, Volume, fillable, run, volume
from tests.service.running import LOCAL, Running, document_at
from tests.support import ManualClock, put_all, spec_at
from tests.threads import JOIN_SECONDS, begin
from ullage.contract import ContainerSettings, ContentRepositorySpec
from ullage.engine.content.containers import VolumeState
from ullage.engine.engine import Engine
from ullage.errors import ForeignContainer

ROUNDS_MAX = 400
"""Of puts of a MiB: more than the largest volume here can hold."""

PRESSURE = 60
"""From which percentage on writers wait."""


@pytest.fixture(params=[name for name in fillable() if name in CAN_GROW])
def growing(request: pytest.FixtureRequest) -> Iterator[Volume]:
    """A small volume of each filesystem that can grow here."""
    with volume(request.param) as made:
        yield made


def put(agent: Running) -> int:
    return agent.client.post("/v1/handles", content=os.urandom(MIB)).status_code


def figures(agent: Running) -> tuple[int, float]:
    """The size that the agent says of its only container, and which share of it is used."""
    (container,) = agent.client.get("/v1/reclamation/survey").json()["containers"]
    return container["total_bytes"], container["used_percentage"]


def test_a_filesystem_that_grows_is_followed(growing: Volume) -> None:
    """Writers wait from the share that is set, of the size that the volume has at that moment: one that waits goes on
    as soon as it has grown.
    """
    archive = {"enabled": False, "max_usage_percentage": 50, "backpressure_percentage": PRESSURE}
    document = document_at(growing.path / "repository", archive=archive, **LOCAL)
    with Running(document) as agent:
        rounds = 0
        while figures(agent)[1] < PRESSURE:
            assert put(agent) == httpx.codes.CREATED
            rounds += 1
            assert rounds < ROUNDS_MAX
        size, _ = figures(agent)
        waiting = begin(lambda: put(agent))

        growing.grow()

        assert waiting.result(JOIN_SECONDS) == httpx.codes.CREATED
        grown, used = figures(agent)
        assert grown > size * 3 // 2
        assert used < PRESSURE


@pytest.fixture(params=fillable()[-1:])
def place(request: pytest.FixtureRequest) -> Iterator[Volume]:
    """Where directories can be mounted over each other."""
    with volume(request.param) as made:
        yield made


def spec_with(place: Volume, *mounted: str) -> ContentRepositorySpec:
    """A repository of c1, and of these, which must be mounted."""
    given = ContainerSettings(name="c1", sub_path="c1")
    more = (ContainerSettings(name=name, sub_path=name, mounted=True) for name in mounted)
    spec = spec_at(place.path / "repository", archive={"backpressure_percentage": 100})
    return msgspec.structs.replace(spec, storage=msgspec.structs.replace(spec.storage, containers=(given, *more)))


def test_a_container_that_must_be_mounted_is_made_once_it_is(place: Volume) -> None:
    """Until then all content goes to the other, and nothing is written where the volume would hide it; also where what
    is mounted is another directory of the same filesystem.
    """
    Engine.initialize(spec_with(place), clock=ManualClock())
    disk, target = place.path / "a disk", place.path / "repository" / "c2"
    disk.mkdir()
    with Engine.open(spec_with(place, "c2"), clock=ManualClock()) as repository:
        put_all(repository, "q", [b"x" * 60_000] * 4)
        condition = repository.content.containers["c2"].condition
        assert condition.state is VolumeState.AWAY
        assert "nothing is mounted" in condition.reason
        assert not target.exists()
        target.mkdir()
        run("mount", "--bind", str(disk), str(target))

        repository.volumes.look()

        put_all(repository, "q", [b"x" * 60_000] * 4)
        assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1", "c2"}
        assert (disk / "ullage.json").exists()
        assert repository.check(deep=True).problems == ()


def test_a_new_repository_waits_for_all_of_its_volumes(place: Volume) -> None:
    """Which of them is missing is said, and nothing is made there."""
    with pytest.raises(ForeignContainer, match=r"nothing is mounted at .*/c2: mount the volume of c2 there"):
        Engine.initialize(spec_with(place, "c2"), clock=ManualClock())
    assert not (place.path / "repository" / "c2").exists()
