"""Parts of a share's binary objects.

    header     magic 8s | body length u32 | body CRC u32 | body: msgpack map, which says of each section its count,
               length and CRC
    contents   count times (resource claim u64 | offset u64 | length u64 | CRC of its bytes u32)

Little-endian, CRC-32C. A content is a run of bytes at the address with which it was born.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from crc32c import crc32c

from ullage.engine.model import ContentClaim
from ullage.engine.shipping.sharedocs import Name, Nonce, Number, ShareFormat, require_share, require_share_format
from ullage.engine.shipping.shareplace import ShareWriter
from ullage.engine.wal.format import UNDECODABLE, pack_file_header, unpack_file_header
from ullage.errors import FormatTooNew, RepositoryDamaged

AS_IT_IS: Final = ""
"""How the bytes behind a header are encoded. Nothing else is, yet: a reader refuses what it does not know."""

CONTENT_ENTRY: Final = struct.Struct("<QQQI")
"""One content in an index."""

Whole32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]

_LARGEST = (1 << 63) - 1


class ObjectSection(msgspec.Struct, frozen=True, array_like=True):
    """A section: how many things are in it, its length in bytes and its CRC-32C."""

    count: Whole32
    length: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
    crc: Whole32


class ObjectHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What every binary object says of itself."""

    format: int
    share: Name
    epoch: Number
    nonce: Nonce
    encoding: str = AS_IT_IS

    @property
    def writer(self) -> ShareWriter:
        return ShareWriter(self.epoch, self.nonce)


Header = TypeVar("Header", bound=ObjectHeader)


def section_of(data: bytes, count: int) -> ObjectSection:
    """What a header says of these bytes."""
    return ObjectSection(count, len(data), crc32c(data))


def pack_header(magic: bytes, header: ObjectHeader) -> bytes:
    """The first bytes of an object."""
    return pack_file_header(magic, msgspec.msgpack.encode(header))


def unpack_header(magic: bytes, data: bytes, kind: type[Header], share: str, path: str) -> tuple[Header, int]:
    """The header that an object begins with, and where it ends. RepositoryDamaged; FormatTooNew."""
    found = unpack_file_header(magic, data)
    if found is None:
        raise RepositoryDamaged(f"{path} has no header that is whole")
    body, end = found
    try:
        require_share_format(msgspec.msgpack.decode(body, type=ShareFormat).format, path)
        header = msgspec.msgpack.decode(body, type=kind)
    except UNDECODABLE as error:
        raise RepositoryDamaged(f"{path} has a header that does not decode: {error}") from error
    require_share(header.share, share, path)
    if header.encoding != AS_IT_IS:
        raise FormatTooNew(f"{path} is encoded as {header.encoding!r}, which this version can't read")
    return header, end


def section_bytes(data: bytes | memoryview, section: ObjectSection, path: str, what: str) -> bytes | memoryview:
    """The same bytes, once they are as the header has them. RepositoryDamaged."""
    if len(data) != section.length or crc32c(data) != section.crc:
        raise RepositoryDamaged(f"{path}: its {what} do not match their checksum")
    return data


def pack_index(claims: Iterable[ContentClaim]) -> bytes:
    """An index of contents."""
    return b"".join(CONTENT_ENTRY.pack(each.resource, each.offset, each.length, each.crc) for each in claims)


def unpack_index(data: bytes | memoryview, count: int, path: str) -> list[ContentClaim]:
    """The inverse; the bytes are those that were written, which somebody may have forged. RepositoryDamaged."""
    if len(data) != count * CONTENT_ENTRY.size:
        raise RepositoryDamaged(f"{path}: its index is not as long as {count} contents make it")
    claims = [ContentClaim(*row) for row in CONTENT_ENTRY.iter_unpack(data)]
    _require_possible(claims, path)
    return claims


def _require_possible(claims: Sequence[ContentClaim], path: str) -> None:
    for claim in claims:
        if not claim.resource or not claim.length or max(claim.resource, claim.end, claim.length) > _LARGEST:
            raise RepositoryDamaged(
                f"{path} holds {claim.length} bytes at {claim.offset} of resource claim {claim.resource}, where no "
                "content is"
            )
