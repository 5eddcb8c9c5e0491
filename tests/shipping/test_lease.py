"""The lease: once another has a share, who had it holds none, in every order of both, of time, and of puts gone wrong.

Time is an object of the simulated bucket, which a program of its own moves on: so reading a clock is a request as any
other, and what happens between two readings is every thing that may.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest

from tests.proof.figures import note
from tests.shipping.explored import Bucket, Program, Replayed, Request, explore, is_epoch
from tests.shipping.test_fence import SHARE
from ullage.engine.shipping import lease as leases
from ullage.engine.shipping.lease import LeaseRenewer, LeaseWatch, WriterLease, margin_of
from ullage.engine.shipping.logwriter import _take_epoch
from ullage.engine.shipping.sharedocs import EpochDocument, decode_document, encode_document
from ullage.engine.shipping.shareplace import EPOCH, ShareWriter
from ullage.errors import BucketUnavailable, ShareFenced

OWNER: Final = ShareWriter(1, "1" * 16)
TERM: Final = 2.0
MARGIN: Final = 1.0
TICKS: Final = 4
CLOCK: Final = "clock"
FIRST = EpochDocument(share=SHARE, epoch=1, nonce=OWNER.nonce, owner="node-1", term_millis=int(TERM * 1000))
NEXT = EpochDocument(share=SHARE, epoch=1, nonce="2" * 16, owner="node-2")
BEGINS = {EPOCH: encode_document(FIRST), CLOCK: b"0"}


def clock_of(place: Replayed) -> Callable[[], float]:
    def now() -> float:
        found = place.get(CLOCK)
        assert found is not None
        return float(found.data)

    return now


def slow(time: float) -> float:
    """The owner's clock, of which a term takes as long as a term and a margin of the adopter's."""
    return time * TERM / (TERM + MARGIN)


def ticking(place: Replayed, _told: list[bytes]) -> None:
    for tick in range(1, TICKS + 1):
        place.put_pieces(CLOCK, [b"%d" % tick], 1)


def owning(renewals: int) -> Program:
    """One that tells until when its lease holds, whenever that changes."""

    def run(place: Replayed, told: list[bytes]) -> None:
        now = clock_of(place)
        lease = WriterLease(lambda: slow(now()))
        renewer = LeaseRenewer(place, SHARE, OWNER, lease)
        for _ in range(renewals):
            with suppress(BucketUnavailable):  # what it holds then, it still tells
                renewer.renew(TERM)
            told.append(b"%r" % lease._until)

    return run


def adopting(looks: int, *, is_watched: bool = True) -> Program:
    """One that takes `epoch` when it may, which is the first thing that an adoption does."""

    def run(place: Replayed, told: list[bytes]) -> None:
        watch = LeaseWatch(place, SHARE, clock_of(place))
        for _ in range(looks):
            if watch.look() <= 0:
                _take_epoch(place, NEXT, None, watch.seen if is_watched else None)
                told.append(b"adopted")
                return

    return run


def one_holds(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
    """From the moment on at which `epoch` is another's."""
    owner = decode_document(objects[EPOCH], EpochDocument, SHARE, EPOCH)
    until = float(told[0][-1]) if told[0] else -math.inf
    assert owner.writer == OWNER or slow(float(objects[CLOCK])) >= until, (objects[CLOCK], told)


@pytest.fixture(autouse=True)
def margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A margin of as many ticks as the owner's clock is slow by."""
    monkeypatch.setattr(leases, "margin_of", lambda _term: MARGIN)


def explored(renewals: int, looks: int, faults: int, bucket: Bucket | None = None) -> tuple[int, bool]:
    is_adopted = False

    def holds(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
        nonlocal is_adopted
        is_adopted = is_adopted or bool(told[1])
        one_holds(objects, told)

    programs = [owning(renewals), adopting(looks), ticking]
    return explore(programs, holds, faults, bucket, BEGINS, is_epoch_put).states, is_adopted


def is_epoch_put(request: Request) -> bool:
    return is_epoch(request) and request.kind == "put_over"


def test_whoever_lost_the_share_holds_no_lease_any_more() -> None:
    """An owner that renews, an adopter that watches, and time, in every order, with a put gone wrong."""
    states, is_adopted = explored(renewals=2, looks=2, faults=1)

    note(lease_states=states)
    assert is_adopted


def counted_from_the_answer(lease: WriterLease, _asked: float, term: float) -> None:
    lease._until = lease._now() + term


def watched_since_before(watch: LeaseWatch) -> float:
    began = watch._now()
    found = watch._place.get(EPOCH)
    assert found is not None
    document = decode_document(found.data, EpochDocument, SHARE, EPOCH)
    if document != watch.seen:
        watch.seen, watch._since = document, began
    return watch._since + TERM + MARGIN - watch._now()


def watched_whatever_changes(watch: LeaseWatch) -> float:
    """As if one that was seen once stood there for ever."""
    found = watch._place.get(EPOCH)
    assert found is not None
    now = watch._now()
    if watch.seen is None:
        watch._since = now
    watch.seen = decode_document(found.data, EpochDocument, SHARE, EPOCH)
    return watch._since + TERM + MARGIN - now


@pytest.mark.parametrize(
    ("place", "name", "instead"),
    [
        (WriterLease, "grant", counted_from_the_answer),
        (LeaseWatch, "look", watched_since_before),
        (LeaseWatch, "look", watched_whatever_changes),
        (leases, "margin_of", lambda _term: 0.0),
    ],
    ids=["from the answer", "since before", "whatever changes", "no margin"],
)
def test_each_wait_is_needed(place: object, name: str, instead: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there are two for a moment."""
    monkeypatch.setattr(place, name, instead)
    with pytest.raises(AssertionError):
        explored(renewals=2, looks=2, faults=0)


def test_what_is_taken_must_be_what_was_watched() -> None:
    """The owner may renew it between the last look and the moment at which it is taken."""
    with pytest.raises(AssertionError):
        explore([owning(2), adopting(2, is_watched=False), ticking], one_holds, 0, None, BEGINS)


def test_a_renewal_is_never_put_twice_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first try, which comes late, is taken for the second, and counted from when that was asked for."""
    monkeypatch.setattr(leases, "max", lambda _own, there: there, raising=False)
    with pytest.raises(AssertionError):
        explored(renewals=2, looks=2, faults=1)


def test_without_the_condition_of_epoch_a_renewal_could_put_an_adopter_out() -> None:
    """It would hold a lease by an `epoch` that it has put over the adopter's: an object that is nobody's evidence."""
    seen: list[bytes] = []

    def holds(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
        owner = decode_document(objects[EPOCH], EpochDocument, SHARE, EPOCH)
        if told[1] and owner.writer == OWNER:
            seen.append(objects[EPOCH])

    explore([owning(2), adopting(2), ticking], holds, 0, Bucket(is_epoch), BEGINS, is_epoch_put)
    assert seen
    seen.clear()
    explore([owning(2), adopting(2), ticking], holds, 0, None, BEGINS, is_epoch_put)
    assert not seen


class AtOnce:
    """A bucket of one object, whose puts are carried out."""

    name = "s3://simulated"

    def __init__(self) -> None:
        self.objects = dict(BEGINS)

    def get(self, key: str) -> object:
        return Bucket().carried_out(self.objects, Request("get", key)).value

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        assert not Bucket().carried_out(self.objects, Request("put_over", key, data, tag)).error


def test_a_term_that_is_made_shorter_counts_when_it_is_asked_for_and_a_longer_one_when_it_is_there() -> None:
    """And where none is asked for any more, once that is in the bucket; an adopter then waits for ever."""
    now = [100.0]
    lease = WriterLease(lambda: now[0])
    place = AtOnce()
    renewer = LeaseRenewer(place, SHARE, OWNER, lease)  # type: ignore[arg-type]
    watch = LeaseWatch(place, SHARE, lambda: now[0])  # type: ignore[arg-type]

    assert not lease.is_held
    renewer.renew(10.0)
    assert lease.seconds_left == 10
    now[0] += 1
    asked = lease.ask(4.0)
    assert lease.seconds_left == 4
    lease.grant(asked, 4.0)
    lease.ask(60.0)
    assert lease.seconds_left == 4
    renewer.renew(60.0)
    assert lease.seconds_left == 60
    assert watch.look() == 60 + MARGIN
    now[0] += 61
    assert not lease.is_held
    assert watch.look() == 0
    renewer.renew(0.0)
    assert watch.look() == lease.seconds_left == math.inf


def test_a_fenced_writer_never_holds_a_lease_again() -> None:
    """Whatever is granted to it later."""
    place = AtOnce()
    lease = WriterLease(lambda: 0.0)
    renewer = LeaseRenewer(place, SHARE, ShareWriter(1, "3" * 16), lease)  # type: ignore[arg-type]
    with pytest.raises(ShareFenced):
        renewer.renew(10.0)
    lease.lose()
    lease.grant(0.0, 10.0)
    assert not lease.is_held


def test_the_margin_is_a_tenth_and_a_second_at_least() -> None:
    """As docs/shipping.md has it."""
    assert [margin_of(term) for term in (5.0, 60.0)] == [1.0, 6.0]
