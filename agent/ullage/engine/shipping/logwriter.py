"""The fence: of all who ever wrote a share, one may go on.

    take `epoch`, one higher, if it is what was read | create the next free number: a fence | read `epoch` again: ours
                                                                                            ^ from here on it may write

Numbers are one sequence for all epochs, and an object is only ever created. A writer goes on at the number behind its
last one, which is where its successor's fence stands, unless it was there first: so the successor reads it. Who takes
`epoch` and falls asleep may wake and put a fence behind later writers: it reads `epoch` again and stops, and what it
put is *void*, as is each object behind one of a higher epoch.

    1 takes epoch | 2 takes it, fence 1, batch 2 | 1 lists, puts fence 3, reads epoch, stops | 2: 3 is void, puts 4

Who *adopts* a share writes so into `epoch`, and whoever follows keeps it. A root that was made before does not take
`epoch` from there any more, however often it is started: looked at is the very object that is replaced.

One put is under way at a time, sent again with the same bytes until it is settled. What a put meets that lies there is
told by the nonce: ours, of an earlier try whose answer was lost, or another's.
"""

import secrets
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from ullage.engine.shipping.lease import OwnedLease
from ullage.engine.shipping.logobject import NOTHING, LogBatch, LogObjectHeader, decode_log_header, encode_log_object
from ullage.engine.shipping.logreader import newest_log
from ullage.engine.shipping.sharedocs import ADOPTIONS_MAX, EpochDocument, decode_document, encode_document
from ullage.engine.shipping.shareplace import (
    EPOCH,
    SharedObject,
    SharePlace,
    ShareWriter,
    Taken,
    epoch_gone,
    log_name,
)
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, RepositoryDamaged, ShareFenced


def new_nonce() -> str:
    """What tells a writer from any other."""
    return secrets.token_hex(8)


class _PutUnderWay(NamedTuple):
    """A put that is not settled."""

    batch: LogBatch
    data: bytes


class LogWriter:
    """Writes the log of a share, from its fence on. For one thread.

    `number` is where the next object goes.
    """

    def __init__(self, place: SharePlace, share: str, writer: ShareWriter, serde: SerDe, number: int) -> None:
        """Use `LogWriter.begin`."""
        self._place = place
        self._share = share
        self._serde = serde
        self._under_way: _PutUnderWay | None = None
        self.writer = writer
        self.number = number

    @classmethod
    def begin(
        cls,
        place: SharePlace,
        share: str,
        owner: str,
        serde: SerDe,
        nonce: str = "",
        adoption: str | None = "",
        watched: EpochDocument | None = None,
        lease: OwnedLease | None = None,
        own: Collection[str] | None = None,
    ) -> "LogWriter":
        """Take the log over from whoever writes it. `adoption` is the one that the writer's root was made after; None
        adopts the share. `watched`: what `epoch` must still say. ShareFenced: somebody else took it at the same time,
        or has adopted it since, or has renewed its lease. BucketUnavailable: nobody may write now; begin once more.
        `lease` is the writer's from the moment on at which it is one. `own`: the nonces of whom alone it is taken from.
        """
        asked = 0.0 if lease is None else lease.lease.ask(lease.term)
        if lease is not None:
            # takes the share as x | bucket away before all is known | takes it as y | keeper renews x and finds y: lost
            lease.writer = None
        mine = EpochDocument(
            share=share,
            epoch=1,
            nonce=nonce or new_nonce(),
            owner=owner,
            term_millis=0 if lease is None else lease.term_millis,
        )
        writer = _take_epoch(place, mine, adoption, watched, own)
        begun = cls(place, share, writer, serde, newest_log(place) + 1)
        begun.append(NOTHING)
        begun.require_epoch()
        if lease is not None:
            lease.begin(writer, asked)
        return begun

    def require_epoch(self) -> None:
        """ShareFenced if somebody else has taken `epoch` since. BucketUnavailable: it is gone."""
        found = self._place.get(EPOCH)
        if found is None:
            raise epoch_gone(self._place)
        if _decoded(found, self._share, self._place).writer != self.writer:
            raise self._fenced()

    def append(self, batch: LogBatch) -> int:
        """Put the next object; its number. It counts once this returns.

        BucketUnavailable: the same batch is to be given again, for it may be there. ShareFenced: it is not, and nothing
        will be; somebody else writes now.
        """
        if self._under_way is not None and self._under_way.batch is not batch:
            raise ValueError("another batch is under way: it may be there, so the same is to be given again")
        while True:
            if self._under_way is None:
                data = encode_log_object(self._share, self.writer, self.number, batch, self._serde)
                self._under_way = _PutUnderWay(batch, data)
            is_ours = self._put(self._under_way.data)
            self._under_way = None
            self.number += 1
            if is_ours:
                return self.number - 1

    def _put(self, data: bytes) -> bool:
        """Whether the number is ours now; else what lies there is void. ShareFenced."""
        name = log_name(self.number)
        try:
            self._place.put_new(name, data)
        except Taken:
            there = self._there(name)
            if there.writer == self.writer:
                return True
            if there.epoch >= self.writer.epoch:
                raise self._fenced() from None
            return False
        return True

    def _there(self, name: str) -> LogObjectHeader:
        found = self._place.get(name)
        path = f"{self._place.name}/{name}"
        if found is None:
            raise RepositoryDamaged(f"{path} was there and is gone: nobody removes the newest of a log")
        return decode_log_header(found.data, self._share, self.number, path)[0]

    def _fenced(self) -> ShareFenced:
        return ShareFenced(
            f"{self._place.name} has another writer now: nothing more is put by the one of epoch {self.writer.epoch}"
        )


def _take_epoch(
    place: SharePlace,
    mine: EpochDocument,
    adoption: str | None,
    watched: EpochDocument | None,
    own: Collection[str] | None = None,
) -> ShareWriter:
    """`mine`, one epoch higher than what is there."""
    found = place.get(EPOCH)
    before = None if found is None else _decoded(found, mine.share, place)
    if watched is not None and before != watched:
        raise ShareFenced(f"{place.name}: {watched.owner} renewed its lease, or somebody else took the share")
    if before is not None and adoption is not None:
        _require_adoption(before, adoption, place)
    _require_own(before, own, place)
    known = tuple(filter(None, [adoption])) if before is None else before.adoptions
    mine = msgspec.structs.replace(
        mine,
        epoch=1 if before is None else before.epoch + 1,
        adoptions=known if adoption is not None else (*known, mine.nonce)[-ADOPTIONS_MAX:],
    )
    data = encode_document(mine)
    try:
        if found is None:
            place.put_new(EPOCH, data)
        else:
            place.put_over(EPOCH, data, found.tag)
    except (Taken, BucketUnavailable) as error:
        # An answer that was lost makes a second request of one that was carried out.
        there = place.get(EPOCH)
        if there is not None and there.data == data:
            return mine.writer
        if isinstance(error, BucketUnavailable):
            raise
        if there is None:  # taken, and nobody's: it went meanwhile, or the bucket remembers what was removed beneath it
            raise BucketUnavailable(f"{place.name}: {EPOCH} is taken and not there, begin once more") from error
        if _decoded(there, mine.share, place).nonce in (own or ()):
            raise BucketUnavailable(f"{place.name}: an earlier try to take it came late, begin once more") from error
        raise ShareFenced(f"{place.name}: somebody else began to write there at the same moment") from None
    return mine.writer


def _require_adoption(before: EpochDocument, adoption: str, place: SharePlace) -> None:
    """ShareFenced unless a root that was made after that adoption may go on from here."""
    if before.adoption != adoption:
        raise ShareFenced(
            f"{place.name} was adopted, and {before.owner} writes it now: this repository was made before, and ships "
            "nothing there any more"
        )


def _require_own(before: EpochDocument | None, own: Collection[str] | None, place: SharePlace) -> None:
    """ShareFenced unless the share is taken from one of these writers; None: whoever it is, and with nobody there is
    one to be made again.
    """
    if own is None or (before is None and own) or (before is not None and before.nonce in own):
        return
    raise ShareFenced(
        f"{place.name}: {'somebody else' if before is None else before.owner} has taken it since this repository last "
        "wrote there: it is not taken back unless somebody says so (ullage serve --take-share)"
    )


def _decoded(found: SharedObject, share: str, place: SharePlace) -> EpochDocument:
    return decode_document(found.data, EpochDocument, share, f"{place.name}/{EPOCH}")
