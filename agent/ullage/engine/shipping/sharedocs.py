"""The small objects of a share, which people may read: JSON, a line feed, and the CRC-32C of what stands before it.

    epoch        who writes. Replaced by whoever takes over, and to renew its lease, on the condition that it is what
                 that one has read
    manifest     the bases that count, and where the log goes on behind each. Replaced on the same condition
    pins/<id>    what somebody is restoring: nobody removes it

They come from a bucket, where others may write: what is decoded is of a known version, of this share, and names objects
where a share has them.
"""

from typing import Annotated, Final, TypeVar

import msgspec
from crc32c import crc32c

from ullage.engine.model import Whole
from ullage.engine.shipping.shareplace import NONCE, ShareWriter, base_of
from ullage.engine.wal.format import UNDECODABLE
from ullage.errors import FormatTooNew, InvalidArgument, RepositoryDamaged

SHARE_FORMAT: Final = 1
"""Version of all objects of a share; raised when an older reader would go wrong."""

DOCUMENT_BYTES_MAX: Final = 1 << 20
BASES_MAX: Final = 1_000
"""That a manifest lists, and as many that were dropped: a reader refuses more."""

ADOPTIONS_MAX: Final = 1_000
"""That are remembered, the last ones."""

Nonce = Annotated[str, msgspec.Meta(pattern=f"^{NONCE}$")]
Number = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=255)]


class ShareDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each says: its version, the uuid of the share, and who wrote it."""

    format: int = SHARE_FORMAT
    share: Name
    epoch: Number
    nonce: Nonce

    @property
    def writer(self) -> ShareWriter:
        return ShareWriter(self.epoch, self.nonce)


class EpochDocument(ShareDocument, frozen=True, kw_only=True):
    """The content of `epoch`. `owner`: the node, for people. `adoptions`: the nonces of those who adopted the share, in
    their order: of the repository's roots only those that were made after the last may write. `term_millis`: for how
    long its lease holds, 0 if it asks for none; `renewal`: how often it was asked for, so no two have the same bytes.
    """

    owner: Name
    adoptions: Annotated[tuple[Nonce, ...], msgspec.Meta(max_length=ADOPTIONS_MAX)] = ()
    term_millis: Whole = 0
    renewal: Whole = 0

    @property
    def adoption(self) -> str:
        """The last one, "" if there was none."""
        return self.adoptions[-1] if self.adoptions else ""


class ListedBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A base: where it lies, as of which transaction and when, and the log object that goes on behind it. `next_pack`
    is the number of its writer's next pack: those before it the base names, or nothing behind it needs them.
    """

    name: Name
    transaction: Whole
    millis: Whole
    next_log: Number
    next_pack: Number

    @property
    def writer(self) -> ShareWriter:
        found = base_of(self.name)
        assert found is not None, "decoding refuses other names"
        return found.writer


class DroppedBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A base that counts no more, and since when: what it needs is still there for a while."""

    base: ListedBase
    millis: Whole


class ShareManifest(ShareDocument, frozen=True, kw_only=True):
    """The content of `manifest`: the bases, oldest first. Restorations may begin with any of them; there is none until
    the first writer has put one.
    """

    bases: Annotated[tuple[ListedBase, ...], msgspec.Meta(max_length=BASES_MAX)] = ()
    dropped: Annotated[tuple[DroppedBase, ...], msgspec.Meta(max_length=BASES_MAX)] = ()


class SharePin(ShareDocument, frozen=True, kw_only=True):
    """The content of a pin: what begins with this base and ends with that log object is being read."""

    base: ListedBase
    last_log: Whole


Document = TypeVar("Document", bound=ShareDocument)


class ShareFormat(msgspec.Struct):
    """What every version of an object has."""

    format: int


def encode_document(document: ShareDocument) -> bytes:
    """The bytes of an object. InvalidArgument for one that nobody would read."""
    try:
        body = msgspec.json.encode(document)
        # One that can't be read stays for good: an `epoch` with too long a name of its node could not be taken over,
        # by its writer or by anybody else.
        msgspec.json.decode(body, type=type(document))
    except UNDECODABLE as error:
        raise InvalidArgument(f"what is to be put into the bucket would be read by nobody: {error}") from error
    return body + b"\n%08x" % crc32c(body)


def decode_document(data: bytes, kind: type[Document], share: str, path: str) -> Document:
    """What the bytes at a path say. RepositoryDamaged; FormatTooNew."""
    body, _, crc = data.rpartition(b"\n")
    if len(data) > DOCUMENT_BYTES_MAX or crc != b"%08x" % crc32c(body):
        raise RepositoryDamaged(f"{path} is damaged: its checksum does not match")
    try:
        require_share_format(msgspec.json.decode(body, type=ShareFormat).format, path)
        document = msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        raise RepositoryDamaged(f"{path} is none of a share's objects: {error}") from error
    require_share(document.share, share, path)
    bases: tuple[ListedBase, ...] = ()
    if isinstance(document, ShareManifest):
        bases = (*(each.base for each in document.dropped), *document.bases)
    if isinstance(document, SharePin):
        bases = (document.base,)
    _require_in_order(bases, path)
    return document


def require_share_format(format: int, path: str) -> None:
    """FormatTooNew of a newer version's object."""
    if format > SHARE_FORMAT:
        raise FormatTooNew(f"{path} was written by a newer version: use that one")
    if format < 1:
        raise RepositoryDamaged(f"{path} names format version {format}, which never existed")


def require_share(found: str, share: str, path: str) -> None:
    """RepositoryDamaged of another share's object."""
    if found != share:
        raise RepositoryDamaged(f"{path} belongs to share {found}, not to {share}: give each a prefix of its own")


def _require_in_order(bases: tuple[ListedBase, ...], path: str) -> None:
    next_log = 0
    for base in bases:
        found = base_of(base.name)
        if found is None or found.transaction != base.transaction:
            raise RepositoryDamaged(f"{path} lists {base.name!r}, which is no base as of {base.transaction}")
        if base.next_log < next_log:
            raise RepositoryDamaged(f"{path} lists bases in another order than they were made")
        next_log = base.next_log
