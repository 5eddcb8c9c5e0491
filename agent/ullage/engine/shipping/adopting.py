"""Adoption: a share is taken from a writer that is gone, which cannot take it back.

    take `epoch`, with an adoption of its own | fence | manifest | make a repository of all that counts, with that
    ^ who wrote before is refused from here on, whenever it starts                      adoption in its identity

Whoever takes a share over otherwise takes it from itself: one root, started anew. An adopter makes another root, and
the old one may still be there and start. So `epoch` says which adoption was the last, a root's identity which it was
made after, and only where they are the same does `LogWriter.begin` go on. Where an adoption is cut short nobody may
write: it goes on in its directory as long as nobody else took the share, and elsewhere the next one takes it again.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ullage.engine.opening import RepositoryIdentity
from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.logobject import decode_log_header
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.publishing import FENCE_BYTES_MAX, take_manifest
from ullage.engine.shipping.sharedocs import EpochDocument, decode_document
from ullage.engine.shipping.shareplace import EPOCH, LOG, SharePlace, ShareWriter, log_name, log_number
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, InvalidArgument, NotABackup, RepositoryDamaged


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
    nonce = known[known.index(adoption) + 1]
    for name, length in sorted(place.lengths(LOG).items(), reverse=True):
        number = log_number(name)
        found = None if number is None or length > FENCE_BYTES_MAX else place.get(name)
        if found is None or number is None:
            continue
        header, _ = decode_log_header(found.data, share, number, f"{place.name}/{name}")
        if header.is_fence and header.nonce == nonce:
            return number
    raise RepositoryDamaged(f"{place.name} lacks the fence of an adoption that its `epoch` names")


class Follower(NamedTuple):
    """Who wrote a share right after one of its writers: the number of its fence, and whether it went on with what that
    one had shipped, instead of what it had itself.
    """

    fence: int
    goes_on: bool


def follower_of(place: SharePlace, share: str, own: Collection[str]) -> Follower | None:
    """Of the last of these writers that counts; None: what they wrote is not there, or nobody followed."""
    fences, batches, epoch = list[tuple[int, str]](), list[int](), 0
    for name, length in sorted(place.lengths(LOG).items()):
        number = log_number(name)
        found = None if number is None or length > FENCE_BYTES_MAX else place.get(name)
        if number is None:
            continue
        if found is None:
            batches.append(number)
            continue
        header, _ = decode_log_header(found.data, share, number, f"{place.name}/{name}")
        if not header.is_fence:
            batches.append(number)
        elif header.epoch > epoch:  # else void: of one that slept, and stands behind who came later
            fences.append((number, header.nonce))
            epoch = header.epoch
    last = max((at for at, (_, nonce) in enumerate(fences) if nonce in own), default=len(fences))
    if last + 1 >= len(fences):
        return None
    fence = fences[last + 1][0]
    first_batch = min((number for number in batches if number > fence), default=1 << 63)
    # A base before anything else is of what the follower had: it may lack what was shipped, and never had removed it.
    begins_anew = any(fence < base.next_log <= first_batch for base in listed_bases(place, share))
    return Follower(fence, not begins_anew)


def with_adoption(identity: RepositoryIdentity, place: SharePlace, share: str) -> RepositoryIdentity:
    """Of a repository that is made of a share now: it may write there unless it is adopted later."""
    with suppress(NotABackup, RepositoryDamaged):  # what is to be restored is no worse for it, and writes nothing yet
        return msgspec.structs.replace(identity, adoption=owner_of(place, share).adoption)
    return identity
