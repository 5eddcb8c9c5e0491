"""Adoption: a share is taken from a writer that is gone, which cannot take it back.

    take `epoch`, with an adoption of its own | fence | manifest | make a repository of all that counts, with that
    ^ who wrote before is refused from here on, whenever it starts                      adoption in its identity

Whoever takes a share over otherwise takes it from itself: one root, started anew. An adopter makes another root, and
the old one may still be there and start. So `epoch` says which adoption was the last, a root's identity which it was
made after, and only where they are the same does `LogWriter.begin` go on. Where an adoption is cut short nobody may
write: it goes on in its directory as long as nobody else took the share, and elsewhere the next one takes it again.
"""

from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from ullage.engine.opening import RepositoryIdentity
from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.logobject import LogObjectHeader, decode_log_header
from ullage.engine.shipping.logreader import log_headers
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.publishing import take_manifest
from ullage.engine.shipping.sharedocs import EpochDocument, decode_document
from ullage.engine.shipping.shareplace import EPOCH, LOG, SharePlace, ShareWriter, log_name
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, InvalidArgument, NotABackup, RepositoryDamaged

FENCES_AHEAD: Final = 16
"""Log objects that are asked for at a time, where all fences are looked for."""

NO_NUMBER: Final = 1 << 63
"""Behind all log objects."""


def owner_of(place: SharePlace, share: str) -> EpochDocument:
    """Who writes a share. NotABackup: nobody ever did; RepositoryDamaged."""
    found = place.get(EPOCH)
    if found is None:
        raise NotABackup(f"{place.name} holds no share")
    return decode_document(found.data, EpochDocument, share, f"{place.name}/{EPOCH}")


class Adoption(NamedTuple):
    """A share that was adopted: by whom, and the number of its fence. What stands behind it is none of it."""

    writer: ShareWriter
    fence: int


def adopt_share(
    place: SharePlace, share: str, owner: str, serde: SerDe, nonce: str = "", watched: EpochDocument | None = None
) -> Adoption:
    """Take a share from whoever wrote it: once this returns, all that anybody was ever told is there can be read, and
    nobody is told so any more but who comes from the repository that is made of it. ShareFenced: somebody else took it
    at the same moment, or `epoch` is not what was `watched`. BucketUnavailable: whether it is taken nobody knows; adopt
    it once more.
    """
    writer = LogWriter.begin(place, share, owner, serde, nonce, adoption=None, watched=watched)
    take_manifest(place, share, writer.writer)
    fence = writer.number - 1
    # Who reads the log lists it: a list that lacks the fence may lack what somebody was told stands before it.
    if log_name(fence) not in place.lengths(LOG):
        raise BucketUnavailable(f"{place.name} does not list yet what was put there: adopt it once more")
    return Adoption(writer.writer, fence)


def adoption_cut_short(place: SharePlace, share: str, point: int | None) -> Adoption | None:
    """The adoption that a restoration to this point was begun for, if nobody has taken the share since, so that nobody
    was told anything since. RepositoryDamaged; BucketUnavailable.
    """
    owner = owner_of(place, share)
    found = None if point is None else place.get(log_name(point))
    if found is None or point is None or owner.adoption != owner.nonce:
        return None
    header, _ = decode_log_header(found.data, share, point, f"{place.name}/{log_name(point)}")
    return Adoption(owner.writer, point) if header.is_fence and header.writer == owner.writer else None


def fence_behind(place: SharePlace, share: str, adoption: str) -> int:
    """The number of the fence of whoever adopted a share right after this adoption, "" for none: what a root that was
    made after that has shipped stands before it, and nothing else that was adopted. InvalidArgument: nobody did.
    """
    known = ("", *owner_of(place, share).adoptions)
    if adoption not in known[:-1]:
        raise InvalidArgument(f"{place.name} was adopted by nobody since this repository was made, or too often")
    later = known[known.index(adoption) + 1 :]  # one that was cut short before its fence was followed by the next
    fence = next((each.fence for each in _written(place, share) if each.nonce in later), None)
    if fence is None:
        raise RepositoryDamaged(f"{place.name} lacks the fence of an adoption that its `epoch` names")
    return fence


class _Written(NamedTuple):
    """What one writer put into a share behind its fence. `begins_anew`: a base of what it had itself, before anything
    else; of an earlier state it may lack what was shipped before, which nobody can tell from what it had removed.
    """

    nonce: str
    fence: int
    begins_anew: bool
    is_nothing: bool


def _written(place: SharePlace, share: str) -> list[_Written]:
    """By all whose fences count, in their order."""
    fences, batches, epoch = list[LogObjectHeader](), list[int](), 0
    for number, header in log_headers(place, share, place.lengths(LOG), ahead=FENCES_AHEAD):
        if header is None or not header.is_fence:  # who was followed puts nothing behind: only fences are ever void
            batches.append(number)
        elif header.epoch > epoch:  # else void: of one that slept, and stands behind who came later
            fences.append(header)
            epoch = header.epoch
    bases, written = listed_bases(place, share), list[_Written]()
    for fence, end in zip(fences, [*(each.number for each in fences[1:]), NO_NUMBER], strict=True):
        first = min((number for number in batches if fence.number < number < end), default=NO_NUMBER)
        own = [base.next_log for base in bases if base.writer == fence.writer]
        written.append(
            _Written(fence.nonce, fence.number, any(at <= first for at in own), first == NO_NUMBER and not own)
        )
    return written


class Follower(NamedTuple):
    """Who wrote a share right after one of its writers: the number of its fence, and whether it and all who came later
    went on with what was shipped, instead of what they had themselves.
    """

    fence: int
    goes_on: bool


def follower_of(place: SharePlace, share: str, nonce: str) -> Follower | None:
    """Of this writer. None: what it wrote is not there, or nobody followed."""
    written = _written(place, share)
    at = next((at for at, each in enumerate(written) if each.nonce == nonce), len(written))
    behind = written[at + 1 :]
    if not behind:
        return None
    adoptions, is_of_the_share, goes_on = owner_of(place, share).adoptions, False, True
    for each in behind:
        # Who adopted the share has made its root of all that was there: until something is put, a base is of that.
        is_of_the_share = is_of_the_share or each.nonce in adoptions
        goes_on = goes_on and (is_of_the_share or not each.begins_anew)
        is_of_the_share = is_of_the_share and each.is_nothing
    return Follower(behind[0].fence, goes_on)


def with_adoption(identity: RepositoryIdentity, place: SharePlace, share: str) -> RepositoryIdentity:
    """Of a repository that is made of a share now: it may write there unless it is adopted later."""
    with suppress(NotABackup, RepositoryDamaged):  # what is to be restored is no worse for it, and writes nothing yet
        return msgspec.structs.replace(identity, adoption=owner_of(place, share).adoption)
    return identity
