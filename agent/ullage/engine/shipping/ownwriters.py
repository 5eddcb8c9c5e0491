"""By which writers a root has written its share, noted in it: so a start takes the share from itself alone.

    start     read `epoch`: x | x is noted: note x and y, durable | take `epoch` as y, if it is still x
    crash                                                        ^ the next start finds x, or y: both are its own

Without the note a node that was fenced by a copy of its volume would take the share back when it is started again, and
be followed in its turn: two would go on with one repository, and both be believed. A copy has the note as well: so it
goes on behind what it is a copy of, and only as long as that has not been started since. What is further back, such as
a volume that was put back, and who was fenced, take a share only if somebody says so. A root without a note takes it,
as ever: it was made of the share just now, or by what left no note.
"""

import errno
import os
from collections.abc import Collection
from typing import Final

import msgspec
from crc32c import crc32c

from ullage.engine.files import Files, read_file, replace_file
from ullage.engine.shipping.lease import OwnedLease
from ullage.engine.shipping.logwriter import LogWriter, new_nonce
from ullage.engine.shipping.sharedocs import EpochDocument, decode_document
from ullage.engine.shipping.shareplace import EPOCH, SharedObject, SharePlace
from ullage.engine.shipping.shippingparts import ShippingParts
from ullage.engine.wal.format import UNDECODABLE

NOTE: Final = "share-writer.json"
"""In the root of a repository that ships, always."""

UNKNOWN_WRITER: Final = "another node"
"""Where `epoch` could not be read."""

NONCES_MAX: Final = 1_000
"""Of tries to take a share of which nobody knows what became: each begins with an answer of the bucket, so there are
few. Of more the oldest are forgotten, but for that of whom `epoch` is.
"""


class WriterNote(msgspec.Struct, frozen=True):
    """`nonces`: of all by whom `epoch` may be this root's, none where it is another's. `fenced_by`: who had the share
    when it was found to be another's, "" if it was not. `wrote`: of one that was fenced, the last writer all of whose
    puts are this root's own, "" where nobody could tell. The nonces do not say that: a copy has the same, and the
    first may be another's, from whom it was to be taken.
    """

    place: str
    nonces: tuple[str, ...] = ()
    fenced_by: str = ""
    wrote: str = ""


DAMAGED: Final = WriterNote("", fenced_by=UNKNOWN_WRITER)
"""What a note that is damaged counts as: never written, so it goes on being one until somebody says whose the share is.
"""


def noted(files: Files, root: str, place: str) -> WriterNote | None:
    """None: this root has never written there, nor was it fenced anywhere."""
    found = _read(files, root)
    return found if found is not None and (found.place == place or found.fenced_by) else None


def noted_fence(files: Files, root: str) -> WriterNote | None:
    """That of a root that was fenced, wherever it shipped, and whether it is to ship or not by now: without
    spec.replication, or with another URL, somebody else goes on with the same repository all the same. None: it was
    not.
    """
    found = _read(files, root)
    return found if found is not None and found.fenced_by else None


def _read(files: Files, root: str) -> WriterNote | None:
    path = os.path.join(root, NOTE)
    if not files.exists(path):
        return None
    body, _, crc = read_file(files, path).rpartition(b"\n")
    if crc != b"%08x" % crc32c(body):  # a flipped bit in the name of a field would else lift a fence
        return DAMAGED
    try:
        return msgspec.json.decode(body, type=WriterNote)
    except UNDECODABLE:
        return DAMAGED


def last_own_writer(files: Files, root: str, place: str) -> str:
    """The nonce of the last writer of a share all of whose puts are this root's own; "" where that is not noted."""
    found = _read(files, root)
    return found.wrote if found is not None and found.place == place else ""


def note_fence(files: Files, root: str, place: str, by: str, wrote: str = "") -> None:
    """The share is somebody else's: the next start knows it before the bucket has answered. A note that is damaged, or
    of a fence of another place, stays what it is.
    """
    before = _read(files, root)
    if before is DAMAGED or (before is not None and before.fenced_by and before.place != place):
        return
    if before is not None and before.fenced_by:  # nothing was shipped since
        wrote = wrote or before.wrote
    _put(files, root, WriterNote(place, fenced_by=by, wrote=wrote))


def forget_writers(files: Files, root: str) -> None:
    """Somebody says so: the next start is not fenced, and takes the share from whoever writes it, but from who has
    adopted it.
    """
    if files.exists(os.path.join(root, NOTE)):
        _put(files, root, WriterNote(""))


def begin_as_itself(
    parts: ShippingParts, place: SharePlace, owner: str, lease: OwnedLease | None, found: SharedObject | None
) -> LogWriter:
    """Take the share from this root's own last writer; `found` is what `epoch` says. ShareFenced: it is another's, or
    was. BucketUnavailable: begin once more. OSError: the note can't be written, and nothing was taken.
    """
    identity, note = parts.identity(), noted(parts.files, parts.root, place.name)
    before = "" if found is None else _writer_in(found, identity.repository, place)
    own, nonce = None if note is None else note.nonces, new_nonce()
    if note is None or not note.fenced_by:
        first, *tried = *_still_possible(before, own or ()), nonce
        # Durable before the bucket hears of it: it may take the share, and nobody be told. Whose `epoch` is now stays
        # whatever else is forgotten: 1,000 refused tries of a night would else have fenced a node that nobody followed.
        try:
            _put(parts.files, parts.root, WriterNote(place.name, (first, *tried[-NONCES_MAX + 1 :])))
        except OSError as error:  # without a note the next start would be fenced by this very try
            what = "make room on" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "look at"
            raise OSError(
                error.errno,
                f"{NOTE} can't be written ({error.strerror}), and nothing is shipped before it is: {what} this "
                "repository's disk. It is tried again by itself",
                os.path.join(parts.root, NOTE),
            ) from error
    who = place, identity.repository, owner, parts.serde
    return LogWriter.begin(*who, nonce, adoption=identity.adoption, lease=lease, own=own)


def _still_possible(before: str, own: Collection[str]) -> list[str]:
    """Whose `epoch` is, and whoever tried to take it from there: those before can't come any more, for the object on
    whose condition they were put is gone.
    """
    nonces = list(own)
    if before in nonces:
        return nonces[nonces.index(before) :]
    return nonces or [before]


def _writer_in(found: SharedObject, share: str, place: SharePlace) -> str:
    return decode_document(found.data, EpochDocument, share, f"{place.name}/{EPOCH}").nonce


def _put(files: Files, root: str, note: WriterNote) -> None:
    body = msgspec.json.encode(note)
    replace_file(files, os.path.join(root, NOTE), body + b"\n%08x" % crc32c(body))
