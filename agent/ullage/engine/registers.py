"""The register of erasures: digests of the subjects that were erased, so that no restoration brings one back.

    <root>/erasure/register    of a repository: an entry for each erasure, before its intent goes
    backup.json                all that registers had when generations were written, for whichever is restored
    FILE                       a copy, which outlives the repository
    <root>/erase.partial       what is to be erased from what was restored; away, durably, once all of that is gone

A digest is keyed with a secret that stands beside it: whoever has a register can't read from it who was erased, but can
try values.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ullage.engine.files import Files, discard_partial, make_directories, read_file, replace_file
from ullage.engine.model import Whole
from ullage.engine.opening import ERASING, IDENTITY, RESTORING, RepositoryIdentity
from ullage.engine.wal.format import FORMAT_VERSION, decode_header, pack_file_header, unpack_file
from ullage.errors import RepositoryDamaged
from ullage.wire.upkeep import BackupReport

ERASURE: Final = "erasure"
REGISTER: Final = "register"
KEY_BYTES: Final = 32
Secret = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
"""A key, or a digest: a register may come from anywhere, and without names it would mean everybody."""

_REGISTER_MAGIC: Final = b"ULLAGERE"
_PENDING_MAGIC: Final = b"ULLAGEPE"


class SubjectDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A subject without its values: the names of its attributes, in order, and a digest of the values, keyed with
    `key`.
    """

    attributes: Annotated[tuple[str, ...], Meta(min_length=1)]
    key: Secret
    digest: Secret


class RegisteredSubject(SubjectDigest, frozen=True, kw_only=True):
    """A subject that was erased. From which repository, when, and with which last transaction its certificate says,
    too.
    """

    repository: str
    ended_millis: Whole
    last_transaction: Whole

    def is_in(self, moment: "RestoredMoment") -> bool:
        """Whether what was restored may have what was erased. What came in since then is not meant: whoever was erased
        may have come anew.
        """
        # By both: after a restoration transactions are numbered from there on again, and clocks may go wrong.
        is_before = moment.millis < self.ended_millis or moment.last_id < self.last_transaction
        return moment.repository != self.repository or is_before


class RestoredMoment(NamedTuple):
    """As of when something is restored: of which repository, up to which transaction, and when that was."""

    repository: str
    last_id: int
    millis: int


class _Register(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    subjects: tuple[RegisteredSubject, ...]


class PendingErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be erased from what was restored: from where that was, as it was said, and which generation or point
    was asked for, None for the newest; as of when it is, and `made`, what the restoration did before.
    """

    format: int
    source: str
    asked: int | None
    subjects: tuple[RegisteredSubject, ...]
    moment: RestoredMoment = RestoredMoment("", 0, 0)
    made: BackupReport | None = None


def register_path(root: str) -> str:
    """Where a repository has its own."""
    return os.path.join(root, ERASURE, REGISTER)


def read_register(files: Files, path: str) -> tuple[RegisteredSubject, ...]:
    """All entries; none where there is no such file. RepositoryDamaged: it is damaged, or no register; FormatTooNew."""
    if not files.exists(path):
        return ()
    found = unpack_file(_REGISTER_MAGIC, read_file(files, path))
    if found is None:
        raise RepositoryDamaged(
            f"{path} is damaged, or no register of erasures: put a copy of it there, or move it away. What only it "
            "names a restoration brings back"
        )
    return decode_header(found, _Register, path).subjects


def packed_register(subjects: Iterable[RegisteredSubject]) -> bytes:
    """A register as a file has it."""
    register = _Register(format=FORMAT_VERSION, subjects=tuple(subjects))
    return pack_file_header(_REGISTER_MAGIC, msgspec.msgpack.encode(register))


def register(files: Files, root: str, subjects: Iterable[RegisteredSubject]) -> None:
    """Add to the register of a repository, durably, what it does not have yet."""
    path = register_path(root)
    before = read_register(files, path)
    after = merged(before, subjects)
    if after != before:
        make_directories(files, os.path.dirname(path))
        replace_file(files, path, packed_register(after))


def merged(*registers: Iterable[RegisteredSubject]) -> tuple[RegisteredSubject, ...]:
    """All entries, a subject of a repository once for each key, as of its last erasure: with that it went once more."""
    found: dict[tuple[object, ...], RegisteredSubject] = {}
    for each in (each for one in registers for each in one):
        key = each.repository, each.attributes, each.key, each.digest
        found[key] = max(found.get(key, each), each, key=lambda one: (one.ended_millis, one.last_transaction))
    return tuple(found.values())


def pending_erasure(files: Files, root: str) -> PendingErasure | None:
    """What is to be erased from what was restored there; None: nothing is. RepositoryDamaged: that can't be told."""
    path = os.path.join(root, ERASING)
    if not files.exists(path):
        return None
    found = unpack_file(_PENDING_MAGIC, read_file(files, path))
    if found is None:
        raise RepositoryDamaged(f"{path} is damaged: remove what is in {root}, and restore it once more")
    return decode_header(found, PendingErasure, path)


def note_pending(files: Files, root: str, pending: PendingErasure) -> None:
    """From here on nobody opens a repository there, but who erases that from it."""
    body = msgspec.msgpack.encode(pending)
    replace_file(files, os.path.join(root, ERASING), pack_file_header(_PENDING_MAGIC, body))


def commit_restored(
    files: Files,
    root: str,
    identity: RepositoryIdentity,
    made: BackupReport,
    millis: int,
    to_erase: PendingErasure | None,
) -> None:
    """The end of a restoration, as of a time: from here on there is a repository, and none that opens where something
    is to be erased from it.
    """
    if to_erase is not None and to_erase.subjects:
        # Before the identity: nobody opens what still has whom the register names.
        before = pending_erasure(files, root)
        subjects = merged(before.subjects if before else (), to_erase.subjects)
        moment = RestoredMoment(identity.repository, made.last_id, millis)
        note_pending(files, root, msgspec.structs.replace(to_erase, subjects=subjects, moment=moment, made=made))
    # Last: until it is there an `open` finds no repository.
    replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
    files.unlink(os.path.join(root, RESTORING))
    files.sync_directory(root)


def end_erasing(files: Files, root: str) -> None:
    """All of it is gone: the repository may be used."""
    files.unlink(os.path.join(root, ERASING))
    discard_partial(files, os.path.join(root, ERASING))
    files.sync_directory(root)
