"""Some of what was shipped, in a repository of its own: a queue, a FlowFile or a handle, as of a point."""

import json
import os
from pathlib import Path
from typing import Final

import msgspec
import pytest

import ullage
from tests.cli.test_commands import ullage as run
from tests.places import Place
from tests.shipping.test_restoration_resumes import SHIPPED, Measured
from tests.support import Workshop, drain, put_each
from ullage.embedded.backupplaces import place_of_share
from ullage.embedded.partialrestoring import WantedRecords
from ullage.embedded.replication import parts_of
from ullage.embedded.shares import FoundShare, restore_some_replicated
from ullage.engine.engine import Engine
from ullage.engine.shipping.shareplace import SharePlace
from ullage.engine.shipping.sharerestoring import point_at
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.shipping.shippingparts import ShippingLimits
from ullage.engine.wal.serde import SerDe
from ullage.errors import DirectoryNotEmpty, HandleNotFound, InvalidArgument, NotABackup, NotFound
from ullage.wire.upkeep import PartialRestoration

LARGE: Final = 100 << 10
BASED, PACKED, RIDING = os.urandom(LARGE), os.urandom(LARGE), b"small"
"""Contents by where they are: in a pack of the base, in a pack of a log object, and in the log object itself."""


@pytest.fixture
def place() -> Measured:
    return Measured()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**SHIPPED)


def shipped(repository: Engine, place: SharePlace) -> tuple[int, dict[str, str]]:
    """A share whose queue has all three, as another one; the number of that point, and ids. Later it is empty."""
    shipper = Shipper(parts_of(repository), place, "node", ShippingLimits(pack_bytes=LARGE))
    (first,) = put_each(repository, "q", [BASED])
    put_each(repository, "other", [os.urandom(LARGE)])
    shipper.begin()
    shipper.step()
    put_each(repository, "q", [PACKED, RIDING, b""], n="1")
    put_each(repository, "other", [os.urandom(LARGE), b"small too"])
    known = {"small": repository.handles.put(b"small"), "large": repository.handles.put(os.urandom(LARGE))}
    shipper.step()
    assert shipper._writer is not None
    point = shipper._writer.number - 1
    drain(repository, "q")
    shipper.step()
    return point, known | {"first": first.id}


def some(
    place: SharePlace, repository: Engine, to: Path, queues: tuple[str, ...], ids: tuple[str, ...], point: int | None
) -> PartialRestoration:
    """As `ullage restore --queue --id` does."""
    found = FoundShare(place, repository.identity.repository)
    return restore_some_replicated(found, str(to), WantedRecords(queues, ids), point, None, {})


def test_a_queue_and_single_ids_come_back_as_of_a_point(repository: Engine, place: Measured, tmp_path: Path) -> None:
    """With their ids, attributes and order, wherever in the share their contents are; and nothing else is made."""
    point, known = shipped(repository, place)
    made = some(place, repository, tmp_path / "r", ("q",), (known["large"],), point)

    assert (made.queues, made.handles, made.lost_count, made.generation) == ({"q": 4}, 1, 0, point)
    assert made.check.problems == ()
    with ullage.open(tmp_path / "r") as again:
        found = list(again.queues.all_flow_files("q"))
        assert [again.content(each.id).read() for each in found] == [BASED, PACKED, RIDING, b""]
        assert [each.attributes.get("n") for each in found] == [None, "1", "1", "1"]
        assert len(again.handles.get(known["large"])) == LARGE
        assert [queue.name for queue in again.queues.all()] == ["q"]
        with pytest.raises(HandleNotFound):
            again.handles.get(known["small"])
    newest = some(place, repository, tmp_path / "newest", (), (known["small"],), None)
    assert (newest.queues, newest.handles) == ({}, 1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_no_other_content_is_fetched(repository: Engine, place: Measured, tmp_path: Path) -> None:
    """But for what rides in the log: of the packs their indexes, and one content."""
    point, known = shipped(repository, place)
    place.forget()
    some(place, repository, tmp_path / "r", (), (known["large"],), point)
    indexes = len(place.lengths("content"))

    assert place.reads["content"] == indexes + 1
    assert place.lengths("pins") == {}


def test_what_is_not_there_is_said_and_nothing_is_made(repository: Engine, place: Measured, tmp_path: Path) -> None:
    """As of that point, with the queues that there are then."""
    point, known = shipped(repository, place)
    for queues, ids, at, words in (
        (("none",), (), point, f"point {point} of s3://held has no queue 'none'; it has: other, q"),
        ((), (known["first"],), None, f"has no FlowFile or handle {known['first']}"),
    ):
        with pytest.raises(NotFound, match=words):
            some(place, repository, tmp_path / "none", queues, ids, at)
    with pytest.raises(InvalidArgument, match="goes back to"):
        some(place, repository, tmp_path / "none", ("q",), (), 0)
    assert not (tmp_path / "none").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(DirectoryNotEmpty):
        some(place, repository, tmp_path / "full", ("q",), (), point)


@pytest.mark.parametrize("is_gone", [True, False])
def test_content_that_is_damaged_there_is_named_and_the_rest_comes(
    repository: Engine, place: Measured, tmp_path: Path, is_gone: bool
) -> None:
    """Whether its pack is gone or has another byte."""
    point, _ = shipped(repository, place)
    (name,) = (name for name, data in place.objects.items() if name.startswith("content/") and PACKED in data)
    if is_gone:
        del place.objects[name]
    else:
        data = bytearray(place.objects[name])
        data[-1] ^= 1
        place.objects[name] = bytes(data)
    made = some(place, repository, tmp_path / "r", ("q",), (), point)

    assert (made.queues, made.lost_count) == ({"q": 3}, 1)
    assert made.lost[0].size == LARGE
    assert made.check.problems == ()


def test_the_command_brings_some_back(repository: Engine, bucket: Place, tmp_path: Path) -> None:
    """Out of a bucket of a real server, with the number of the point."""
    assert bucket.bucket is not None
    share = msgspec.structs.replace(bucket.bucket, url=f"{bucket.bucket.url}/{repository.identity.repository}")
    point, known = shipped(repository, place_of_share(share))
    asked = ("--endpoint", share.endpoint, "--generation", point, "--json", "--id", known["large"])
    made = json.loads(run("restore", bucket.bucket.url, tmp_path / "r", "--queue", "q", *asked).stdout)

    assert (made["queues"], made["handles"], made["generation"]) == ({"q": 4}, 1, point)
    with ullage.open(tmp_path / "r") as again:
        assert len(again.handles.get(known["large"])) == LARGE
    newest = run(
        "restore", bucket.bucket.url, tmp_path / "s", "--at", "0s", "--queue", "q", "--endpoint", share.endpoint
    )
    assert "as of generation or point" in newest.stderr
    before = ("--at", "2020-01-31T12:00", "--endpoint", share.endpoint)
    assert "goes back to" in run("restore", bucket.bucket.url, tmp_path / "t", *before, expect=2).stderr


def test_a_moment_means_the_newest_point_that_is_not_later(
    workshop: Workshop, repository: Engine, place: Measured, tmp_path: Path
) -> None:
    """Of the base that it lies behind no more than its log is read; before the first there is none."""
    shipper = Shipper(parts_of(repository), place, "node")
    shipper.begin()
    shipper.step()
    points = [(repository.clock.now_millis(), 1)]
    for number in range(4):
        workshop.clock.advance(60_000)
        put_each(repository, "q", [b"%d" % number])
        shipper.step()
        assert shipper._writer is not None
        points.append((repository.clock.now_millis(), shipper._writer.number - 1))
        if number == 1:
            workshop.clock.advance(30_000)
            shipper._make_base()
    share = repository.identity.repository

    for millis, number in points:
        for later in (0, 20_000):
            assert point_at(place, share, millis + later, SerDe()) == number
    with pytest.raises(InvalidArgument, match="goes back to 20"):
        point_at(place, share, points[0][0] - 1, SerDe())
    with pytest.raises(NotABackup):
        point_at(Measured(), share, 0, SerDe())
    made = some(place, repository, tmp_path / "r", ("q",), (), point_at(place, share, points[2][0] + 1, SerDe()))
    assert made.queues == {"q": 2}
