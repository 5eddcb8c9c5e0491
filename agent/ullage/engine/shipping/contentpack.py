"""A pack: contents that are too large to ride in a log object, or that a base needs.

    header     magic "ULLAGECP", as in sections.py (PackHeader)
    index      count contents
    contents   their bytes, one after the other

The index comes first, so that a pack is written while its contents are read, however large, and one content is read
without the others.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ullage.engine.model import ContentClaim, Whole
from ullage.engine.shipping.sections import (
    CONTENT_ENTRY,
    ObjectHeader,
    ObjectSection,
    pack_header,
    pack_index,
    section_bytes,
    section_of,
    unpack_header,
    unpack_index,
)
from ullage.engine.shipping.sharedocs import SHARE_FORMAT, Number
from ullage.engine.shipping.shareplace import SharePlace, ShareWriter, pack_of
from ullage.engine.wal.format import HEADER_BYTES_MAX
from ullage.errors import ContentCorrupt, ContentMissing, RepositoryDamaged

PACK_MAGIC: Final = b"ULLAGECP"

PACK_CONTENTS_MAX: Final = 65_536
"""Contents of one pack: its index is in memory."""

PIECE_BYTES: Final = 4 << 20
"""What is read of a pack at a time."""

GAP_BYTES: Final = 64 << 10
"""So much that nobody wants is read rather than that there is one request more."""


class PackHeader(ObjectHeader, frozen=True, kw_only=True):
    """What a pack says of itself; `number` counts its writer's."""

    number: Number
    index: ObjectSection
    length: Whole


class PackIndex(NamedTuple):
    """Where in a pack each of its contents lies."""

    name: str
    places: dict[ContentClaim, int]


def pack_length(claims: Sequence[ContentClaim]) -> int:
    """About how long a pack of these becomes."""
    return HEADER_BYTES_MAX + len(claims) * CONTENT_ENTRY.size + sum(claim.length for claim in claims)


def pack_pieces(
    share: str,
    writer: ShareWriter,
    number: int,
    claims: Sequence[ContentClaim],
    read: Callable[[ContentClaim], Iterator[bytes]],
) -> Iterator[bytes]:
    """The bytes of a pack, while `read` gives those of each content. ContentCorrupt: they are not what the claim says,
    and what was put is no pack.
    """
    index = pack_index(claims)
    header = PackHeader(
        format=SHARE_FORMAT,
        share=share,
        epoch=writer.epoch,
        nonce=writer.nonce,
        number=number,
        index=section_of(index, len(claims)),
        length=sum(claim.length for claim in claims),
    )
    yield pack_header(PACK_MAGIC, header) + index
    for claim in claims:
        crc = length = 0
        for piece in read(claim):
            crc, length = crc32c(piece, crc), length + len(piece)
            yield piece
        if (length, crc) != (claim.length, claim.crc):
            raise ContentCorrupt(
                f"the content at offset {claim.offset} of resource claim {claim.resource} read as {length} bytes that "
                "do not match its checksum"
            )


def read_pack_index(place: SharePlace, name: str, share: str) -> PackIndex:
    """The index of a pack that must be there. ContentMissing; RepositoryDamaged; FormatTooNew."""
    path = f"{place.name}/{name}"
    data = place.read(name, 0, HEADER_BYTES_MAX)
    if not data:
        raise ContentMissing(f"{path} is missing: restore to another point")
    header, end = unpack_header(PACK_MAGIC, data, PackHeader, share, path)
    if pack_of(name) != (header.writer, header.number):
        raise RepositoryDamaged(f"{path} says that it is another pack")
    if header.index.count > PACK_CONTENTS_MAX or header.index.length != header.index.count * CONTENT_ENTRY.size:
        raise RepositoryDamaged(f"{path} holds {header.index.count} contents, as no pack does")
    behind = end + header.index.length
    rest = data[end:behind]
    rest += place.read(name, end + len(rest), behind) if len(rest) < header.index.length else b""
    claims = unpack_index(section_bytes(rest, header.index, path, "index"), header.index.count, path)
    if header.length != sum(claim.length for claim in claims):
        raise RepositoryDamaged(f"{path}: its contents are not as long as it says")
    places: dict[ContentClaim, int] = {}
    for claim in claims:
        places[claim] = behind
        behind += claim.length
    return PackIndex(name, places)


def read_packed(place: SharePlace, index: PackIndex, claim: ContentClaim) -> Iterator[bytes]:
    """The bytes of one content of a pack. ContentMissing, ContentCorrupt: which may be told after the last of them."""
    start = index.places[claim]
    path = f"{place.name}/{index.name}"
    crc = 0
    for at in range(start, start + claim.length, PIECE_BYTES):
        end = min(at + PIECE_BYTES, start + claim.length)
        piece = place.read(index.name, at, end)
        if len(piece) != end - at:
            raise ContentMissing(f"{path} ends at {at + len(piece)}, before its end")
        crc = crc32c(piece, crc)
        yield piece
    if crc != claim.crc:
        raise ContentCorrupt(f"{path}: the content at offset {start} does not match its checksum")


def read_contents(
    place: SharePlace, index: PackIndex, is_wanted: Callable[[ContentClaim], bool]
) -> Iterator[tuple[ContentClaim, Iterator[bytes]]]:
    """The wanted contents of a pack, each with its bytes, to be taken before the next is asked for. Those that
    lie near each other come with one request, up to the length of a piece. ContentMissing, ContentCorrupt.
    """
    near: list[ContentClaim] = []
    start = end = 0
    for claim, at in index.places.items():  # in the order in which they lie there
        if not is_wanted(claim):
            continue
        if near and (at - end > GAP_BYTES or at + claim.length - start > PIECE_BYTES):
            yield from _near(place, index, near)
            near = []
        if claim.length > PIECE_BYTES:
            yield claim, read_packed(place, index, claim)
            continue
        start, end = (start if near else at), at + claim.length
        near.append(claim)
    if near:
        yield from _near(place, index, near)


def _near(
    place: SharePlace, index: PackIndex, claims: Sequence[ContentClaim]
) -> Iterator[tuple[ContentClaim, Iterator[bytes]]]:
    start, path = index.places[claims[0]], f"{place.name}/{index.name}"
    data = place.read(index.name, start, index.places[claims[-1]] + claims[-1].length)
    for claim in claims:
        at = index.places[claim] - start
        piece = data[at : at + claim.length]
        if len(piece) != claim.length:
            raise ContentMissing(f"{path} ends at {start + len(data)}, before its end")
        if crc32c(piece) != claim.crc:
            raise ContentCorrupt(f"{path}: the content at offset {start + at} does not match its checksum")
        yield claim, iter((piece,))
