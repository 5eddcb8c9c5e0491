"""An adoption whose requests fail, each once and in both ways: said again it goes on, and nobody is in two places."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.shipping.held import HeldShare
from tests.shipping.test_shipper import SHIPPED, UNARCHIVED, begun
from tests.support import Workshop, claim_of, flip, put_each, spec_at
from ullage.embedded import adopting
from ullage.embedded.replication import parts_of
from ullage.embedded.repository import open_embedded
from ullage.embedded.shares import FoundShare
from ullage.engine.engine import Engine
from ullage.engine.shipping.adopting import adopt_share
from ullage.engine.shipping.sharedocs import EpochDocument, decode_document
from ullage.engine.shipping.shareplace import EPOCH
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, ShareFenced
from ullage.wire.upkeep import AdoptionReport


@pytest.fixture
def old(workshop: Workshop) -> Engine:
    return workshop.make(**SHIPPED, **UNARCHIVED)


@pytest.fixture
def shipped(old: Engine) -> HeldShare:
    """A share with a base, a pack, and two log objects."""
    place = HeldShare()
    shipper = begun(old, place)
    for number in range(2):
        put_each(old, "q", [b"small %d" % number, bytes(100_000)])
        shipper.step()
    return place


def adopted(place: HeldShare, share: str, to: Path, monkeypatch: pytest.MonkeyPatch) -> AdoptionReport:
    monkeypatch.setattr(adopting, "share_in", lambda _: FoundShare(place, share))
    return adopting.adopt_from("s3://held", to, {}, "node-2", None, node_is_off=True)


def epoch_of(place: HeldShare, share: str) -> int:
    return decode_document(place.objects[EPOCH], EpochDocument, share, EPOCH).epoch


def failing_once(number: int) -> Callable[[str, str], None]:
    """Of the requests from here on this one, from 0; a put counts once before it is carried out, and once behind it."""
    counted = count()

    def fault(_kind: str, key: str) -> None:
        if next(counted) == number:
            raise BucketUnavailable(f"{key}: nobody answers")

    return fault


def test_whatever_request_fails_an_adoption_is_finished_by_the_next(
    old: Engine, shipped: HeldShare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that was shipped; and neither the old root nor what an adoption left half made is let back."""
    share = old.identity.repository
    whole = dict(shipped.objects)
    asked = len(shipped.requests)
    adopted(shipped, share, tmp_path / "whole", monkeypatch)
    requests = len(shipped.requests) - asked
    went_on = 0
    for failing in range(requests):
        place, to = HeldShare(dict(whole)), tmp_path / str(failing)
        place.fault = failing_once(failing)
        try:
            adopted(place, share, to, monkeypatch)
        except BucketUnavailable:
            before = epoch_of(place, share)
            adopted(place, share, to, monkeypatch)
            went_on += epoch_of(place, share) == before
        with open_embedded(to, None, create=False, maintain=False) as repository:
            assert repository.queues.find("q").flow_files == 4
            again = Shipper(parts_of(repository.engine), place, "node-2")
            again.begin()
            again.close()
        with pytest.raises(ShareFenced, match="adopted"):
            Shipper(parts_of(old), place, "node-1").begin()
    assert went_on > 3


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_node_that_comes_back_says_how_much_is_there_alone(
    workshop: Workshop,
    old: Engine,
    shipped: HeldShare,
    tmp_path: Path,
    is_killed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it acknowledged behind the last that the adopter has, whatever that one has put since; if a checkpoint
    has taken its log, nobody knows.
    """
    share, last = old.identity.repository, old.log.durable
    put_each(old, "q", [b"here alone", b"and here"])
    tail = old.log.durable - last
    adopted(shipped, share, tmp_path / "new", monkeypatch)
    with Engine.open(spec_at(tmp_path / "new", **SHIPPED)) as elsewhere:
        other = begun(elsewhere, shipped)
        put_each(elsewhere, "q", [b"elsewhere"] * 3)
        other.step()
    if is_killed:
        workshop.kill()
        again = workshop.open()
    else:
        old.checkpoint()
        again = workshop.reopen()
    back = Shipper(parts_of(again), shipped, "node-1")
    with pytest.raises(ShareFenced):
        back.begin()

    figures = back.figures
    assert figures.awaits_base is not is_killed
    assert not is_killed or (figures.through, figures.waiting_transactions) == (last, tail)


def test_what_a_base_lacks_is_found_without_anybody_reading_it(
    workshop: Workshop, old: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adoption reads nothing twice, so its start proves all that came: also what no transaction of its log names."""
    damaged, _ = put_each(old, "q", [bytes(100_000), b"whole"])
    claim = claim_of(damaged)
    flip(workshop.content_file(claim.resource), claim.offset)
    place = HeldShare()
    begun(old, place)
    workshop.expects_problems = True

    made = adopted(place, old.identity.repository, tmp_path / "new", monkeypatch)
    with Engine.open(spec_at(tmp_path / "new", **SHIPPED)) as elsewhere:
        unread = elsewhere.availability.count
        elsewhere.proof.run()
        found = [each.record.uuid for each in elsewhere.unavailable.listed(10)]

    assert made.check is None
    assert (unread, found) == (0, [damaged.uuid])


def test_a_start_that_is_fenced_keeps_no_swap_file(workshop: Workshop) -> None:
    """Nobody will ship what was in it."""
    swapping: dict[str, Any] = {"flow_file": {"swap_threshold": 4, "swap_batch": 2}}
    repository, place = workshop.make(**SHIPPED, **UNARCHIVED, **swapping), HeldShare()
    put_each(repository, "q", [b"%d" % number for number in range(12)])
    begun(repository, place)
    adopt_share(place, repository.identity.repository, "node-2", SerDe())
    assert repository.swap_files.names()
    fenced = Shipper(parts_of(repository), place, "node-1")
    with pytest.raises(ShareFenced):
        fenced.begin()
    assert repository.queues.drop(repository.queue("q")) == 12
    repository.checkpoint()
    assert repository.swap_files.names() == []
    assert not fenced.has_begun
