"""The lease: for how long who writes a share may say that it is the only one, and when another may take it.

    owner     clock read: a | put `epoch`, one renewal further, if it is what was read | answered: held until a + term
    adopter   `epoch` read: x | clock read: b | ... a term and a margin later: take `epoch`, if it is still x

What the adopter has read was asked for before b: so the owner's lease ends at b + term at the latest, by clocks that
run alike; the margin is for those that do not. An owner that is frozen counts on when it wakes, by a clock that went on
meanwhile. One that is answered late counts from when it asked; one that is answered never, not at all. No two renewals
have the same bytes: else one that was lost, is put again and arrives late would count from the second try.

    owner     asks at 1: put 5 .............. asks again at 9: put 5 | in the way lies 5: held until 9 + term
    adopter                     reads 5 at 3 ........................ takes it at 3 + term + margin

`epoch` says the term: 0 where the owner asks for no lease, and serves whatever the bucket does.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from ullage.engine.shipping.sharedocs import EpochDocument, decode_document, encode_document
from ullage.engine.shipping.shareplace import EPOCH, SharePlace, ShareWriter, Taken, epoch_gone
from ullage.errors import BucketUnavailable, ShareFenced

MARGIN_PART: Final = 0.1
"""Of a term: by how much two nodes' clocks may differ in how fast they run. Real ones differ by a ten thousandth."""

MARGIN_SECONDS_MIN: Final = 1.0
"""For what is answered already and on its way."""


def margin_of(term: float) -> float:
    """How long after a term an adopter still waits, in seconds."""
    return max(MARGIN_SECONDS_MIN, term * MARGIN_PART)


def millis_of(term: float) -> int:
    """A term as `epoch` says it: not shorter than it is."""
    return math.ceil(term * 1000)


class WriterLease:
    """Whether who writes a share may acknowledge, hand out and read: not before the first renewal that is known to be
    in the bucket, nor later than a term after it was asked for. One thread renews it; any may ask.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds of a clock that goes on while the machine sleeps."""
        self._now = now
        self._until = -math.inf
        self.is_lost = False

    @property
    def seconds_left(self) -> float:
        """How much longer it holds: 0 and less if it does not, infinite if none is asked for."""
        return -math.inf if self.is_lost else self._until - self._now()

    @property
    def is_held(self) -> bool:
        """Whether it holds now."""
        return self.seconds_left > 0

    def ask(self, term: float) -> float:
        """Right before a renewal is sent, of so many seconds, 0 for no lease: the moment to name once it is granted."""
        asked = self._now()
        # A shorter term counts from here on: the bucket may have it before anybody says so.
        self._until = min(self._until, asked + (term or math.inf))
        return asked

    def grant(self, asked: float, term: float) -> None:
        """The renewal that was sent right after this moment is in the bucket."""
        self._until = asked + (term or math.inf)

    def lose(self) -> None:
        """Somebody else has the share: for good."""
        self.is_lost = True


class OwnedLease:
    """What one process has of a share: the lease, of which term, in seconds, and as which writer, once it is one."""

    def __init__(self, now: Callable[[], float], term: float) -> None:
        self.lease = WriterLease(now)
        self.term = term
        self.writer: ShareWriter | None = None
        self.on_change: Callable[[], None] = lambda: None

    @property
    def term_millis(self) -> int:
        """As `epoch` says it."""
        return millis_of(self.term)

    def begin(self, writer: ShareWriter, asked: float) -> None:
        """The share is taken, by a put that was sent right after this moment."""
        self.lease.grant(asked, self.term)
        self.writer = writer
        self.on_change()


class LeaseRenewer:
    """Renews the lease of one writer. For one thread."""

    def __init__(self, place: SharePlace, share: str, writer: ShareWriter, lease: WriterLease) -> None:
        """`writer` has taken `epoch`."""
        self._place = place
        self._share = share
        self.writer = writer
        self._lease = lease
        self._renewal = 0

    def renew(self, term: float) -> None:
        """One renewal, of so many seconds; 0: from here on no lease is needed. BucketUnavailable: nobody knows, try
        again. ShareFenced: somebody else has the share.
        """
        found = self._place.get(EPOCH)
        before = self._own(found and found.data)
        assert found is not None, "it is ours"
        # Not one behind what lies there: an earlier try may be on its way with that.
        self._renewal = max(self._renewal, before.renewal) + 1
        data = encode_document(msgspec.structs.replace(before, renewal=self._renewal, term_millis=millis_of(term)))
        asked = self._lease.ask(term)
        try:
            self._place.put_over(EPOCH, data, found.tag)
        except (Taken, BucketUnavailable) as error:
            there = self._place.get(EPOCH)
            self._own(there and there.data)
            if there is None or there.data != data:
                raise BucketUnavailable(f"{self._place.name}: whether its lease was renewed nobody knows") from error
        self._lease.grant(asked, term)

    def _own(self, data: bytes | None) -> EpochDocument:
        if data is None:
            raise epoch_gone(self._place)
        document = decode_document(data, EpochDocument, self._share, f"{self._place.name}/{EPOCH}")
        if document.writer == self.writer:
            return document
        raise ShareFenced(f"{self._place.name} has another writer now: epoch {self.writer.epoch} is over")


class LeaseWatch:
    """An adopter's: `epoch` unchanged for a term and a margin, by the adopter's own clock."""

    def __init__(self, place: SharePlace, share: str, now: Callable[[], float]) -> None:
        self._place = place
        self._share = share
        self._now = now
        self._since = -math.inf
        self.seen: EpochDocument | None = None

    def look(self) -> float:
        """Read `epoch`; how many seconds it has to stay as it is from now on, 0 and less once `seen` may be taken:
        infinite where its owner asks for no lease. ShareFenced: there is none. BucketUnavailable; RepositoryDamaged.
        """
        found = self._place.get(EPOCH)
        if found is None:
            raise ShareFenced(f"{self._place.name} holds no share any more")
        document = decode_document(found.data, EpochDocument, self._share, f"{self._place.name}/{EPOCH}")
        # Read after the answer: it may have been put right before that.
        now = self._now()
        if document != self.seen:
            self.seen, self._since = document, now
        if not document.term_millis:
            return math.inf
        term = document.term_millis / 1000
        return self._since + term + margin_of(term) - now
