"""The objects of a share: what is put is what is read, and hostile bytes are read or refused in bounded memory."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, seed, strategies as st

from tests.fuzz.corpus import SEED, Edit, edited, edits, resealed_header
from tests.fuzz.test_parsers import fuzz
from tests.shipping.held import HeldShare
from ullage.engine.model import ContentClaim
from ullage.engine.shipping.baseobject import BASE_MAGIC, CHUNK_BYTES_MAX, BaseHeader, BaseReader, base_pieces
from ullage.engine.shipping.contentpack import pack_pieces, read_pack_index, read_packed
from ullage.engine.shipping.logobject import (
    NOTHING,
    LogBatch,
    NamedPack,
    SmallContent,
    decode_log_object,
    encode_log_object,
)
from ullage.engine.shipping.sections import AS_IT_IS, ObjectHeader
from ullage.engine.shipping.sharedocs import (
    EpochDocument,
    ListedBase,
    ShareDocument,
    ShareManifest,
    SharePin,
    decode_document,
    encode_document,
)
from ullage.engine.shipping.shareplace import (
    ShareWriter,
    base_name,
    base_of,
    log_name,
    log_number,
    pack_name,
    pack_of,
)
from ullage.engine.wal.format import pack_file_header, unpack_file_header
from ullage.engine.wal.serde import SerDe
from ullage.errors import ContentCorrupt, ContentMissing, FormatTooNew, RepositoryDamaged, UllageError

SHARE = "00000000-0000-0000-0000-000000000001"
WRITER = ShareWriter(7, "0123456789abcdef")
SERDE = SerDe()
MEMORY_BYTES_MAX = 8 << 20

Made = tuple[ContentClaim, bytes]


def content(resource: int, offset: int, data: bytes) -> Made:
    return ContentClaim(resource, offset, len(data), crc32c(data)), data


MADE = [content(1, 0, b"first"), content(1, 5, b"second"), content(9, 1 << 40, bytes(range(256)) * 40)]
BATCH = LogBatch(
    41,
    1_700_000_000_000,
    [b"one", b"", b"three"],
    [SmallContent(*made) for made in MADE],
    [NamedPack(pack_name(WRITER, 3), 99)],
)
LISTED = ListedBase(name=base_name(40, WRITER, 1), transaction=40, millis=1, next_log=12, next_pack=4)
DOCUMENTS: list[ShareDocument] = [
    EpochDocument(share=SHARE, epoch=7, nonce=WRITER.nonce, owner="node-1"),
    ShareManifest(share=SHARE, epoch=7, nonce=WRITER.nonce, bases=(LISTED,)),
    SharePin(share=SHARE, epoch=7, nonce=WRITER.nonce, base=LISTED, last_log=20),
]
HEADER = BaseHeader(format=1, share=SHARE, epoch=7, nonce=WRITER.nonce, transaction=40, millis=1, next_log=12)
MEMBERS = [("flowfile/snapshot", [b"a" * 100, b"b"]), ("packs", []), ("provenance/manifest", [b"c"])]


def log_object() -> bytes:
    return encode_log_object(SHARE, WRITER, 12, BATCH, SERDE)


def pack() -> bytes:
    contents = dict(MADE)
    return b"".join(pack_pieces(SHARE, WRITER, 3, list(contents), lambda claim: iter([contents[claim]])))


def base() -> bytes:
    return b"".join(base_pieces(HEADER, MEMBERS))


def read_log_object(data: bytes) -> object:
    return decode_log_object(data, SHARE, 12, "log", SERDE)


def read_pack(data: bytes) -> object:
    place = HeldShare({pack_name(WRITER, 3): data})
    index = read_pack_index(place, pack_name(WRITER, 3), SHARE)
    return [(claim, b"".join(read_packed(place, index, claim))) for claim in index.places]


def in_pieces(data: bytes, length: int) -> Iterator[bytes]:
    return (data[at : at + length] for at in range(0, len(data), length))


def read_base(data: bytes) -> object:
    reader = BaseReader(in_pieces(data, 1_000), base_name(40, WRITER, 1), SHARE, "base")
    return reader.header, list(reader.members())


def read_document(kind: type[ShareDocument]) -> Callable[[bytes], object]:
    return lambda data: decode_document(data, kind, SHARE, "document")


FORMATS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], object]]] = {
    "log": (log_object, read_log_object),
    "pack": (pack, read_pack),
    "base": (base, read_base),
    **{
        type(each).__name__: ((lambda each=each: encode_document(each)), read_document(type(each)))  # type: ignore[misc]
        for each in DOCUMENTS
    },
}


def test_what_is_put_is_what_is_read() -> None:
    """Each object, and a fence."""
    found = decode_log_object(log_object(), SHARE, 12, "log", SERDE)
    assert list(found.transactions()) == [(41, b"one"), (42, b""), (43, b"three")]
    assert [(each.claim, bytes(each.data)) for each in found.contents] == MADE
    assert (found.header.packs, found.header.last, found.header.writer) == (tuple(BATCH.packs), 43, WRITER)
    assert decode_log_object(
        encode_log_object(SHARE, WRITER, 1, NOTHING, SERDE), SHARE, 1, "log", SERDE
    ).header.is_fence
    assert read_pack(pack()) == MADE
    header, members = BaseReader(in_pieces(base(), 7), base_name(40, WRITER, 1), SHARE, "base"), dict[str, bytes]()
    for name, piece in header.members():
        members[name] = members.get(name, b"") + piece
    assert members == {name: b"".join(pieces) for name, pieces in MEMBERS}
    assert [FORMATS[type(each).__name__][1](encode_document(each)) for each in DOCUMENTS] == DOCUMENTS


@pytest.mark.parametrize("format", FORMATS)
def test_a_byte_that_changed_and_an_end_that_is_gone_are_noticed(format: str) -> None:
    """At every place of it, for each kind of object."""
    made, read = FORMATS[format]
    data = made()
    for at in {*range(0, len(data), 1 + len(data) // 300), len(data) - 1}:
        with pytest.raises(UllageError):
            read(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(UllageError):
            read(data[:at])
    with pytest.raises(UllageError):
        read(data + b"x" if format != "pack" else b"x" + data)


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_bytes_are_read_or_refused_in_bounded_memory(format: str) -> None:
    """Edits of all of it, and of the header under a valid checksum."""
    made, read = FORMATS[format]
    data = made()

    @seed(SEED)
    @fuzz
    @given(edits(), st.booleans())
    def hostile(changes: list[Edit], is_sealed: bool) -> None:
        changed = edited(data, changes)
        if is_sealed and data.startswith(b"ULLAGE"):
            changed = resealed_header(data, changes)
        elif is_sealed:
            body = edited(data[:-9], changes)
            changed = body + b"\n%08x" % crc32c(body)
        tracemalloc.start()
        try:
            read(changed)
        except UllageError:
            pass  # refused, as it may be
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MEMORY_BYTES_MAX

    hostile()


@pytest.mark.parametrize("format", FORMATS)
def test_an_object_of_another_share_or_a_newer_version_is_refused(format: str) -> None:
    """Two repositories under one prefix would else be mixed, and a newer format misread."""
    made, read = FORMATS[format]
    for field, value, error in (("share", "another", RepositoryDamaged), ("format", 2, FormatTooNew)):
        with pytest.raises(error):
            read(with_field(made(), field, value))
    if format in ("log", "pack", "base"):
        with pytest.raises(FormatTooNew, match="encoded as 'zstd'"):
            read(with_field(made(), "encoding", "zstd"))


def with_field(data: bytes, name: str, value: object) -> bytes:
    """The object with another field in what it says of itself."""
    if not data.startswith(b"ULLAGE"):
        body = msgspec.json.encode(msgspec.json.decode(data[:-9]) | {name: value})
        return body + b"\n%08x" % crc32c(body)
    found = unpack_file_header(data[:8], data)
    assert found is not None
    header = msgspec.msgpack.decode(found[0]) | {name: value}
    return pack_file_header(data[:8], msgspec.msgpack.encode(header)) + data[found[1] :]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first", 0),
        ("first", (1 << 63) - 2),
        ("number", 13),
        ("packs", [["content/../epoch", 1]]),
        ("packs", [["content/1-0123456789abcdef-0", 1]]),
    ],
)
def test_a_log_object_that_no_writer_puts_is_refused(name: str, value: object) -> None:
    """Under a valid checksum, as somebody may forge it."""
    with pytest.raises(RepositoryDamaged):
        read_log_object(with_field(log_object(), name, value))


def test_a_length_that_is_a_lie_allocates_nothing() -> None:
    """A chunk says that it has 4 GiB, and is refused before they are asked for."""
    start = len(base()) - len(base()[base().index(struct.pack("<B", 1), 16) :])
    lie = base()[:start] + struct.pack("<BII", 2, 0xFFFFFFFF, 0) + bytes(100)
    with pytest.raises(RepositoryDamaged):
        read_base(lie)
    assert CHUNK_BYTES_MAX < 0xFFFFFFFF
    assert base().startswith(BASE_MAGIC)


def test_content_that_is_not_what_its_claim_says_makes_no_pack() -> None:
    """Neither when it is put nor when it is read; one that is gone is told as that."""
    claim, data = MADE[0]
    with pytest.raises(ContentCorrupt, match="do not match"):
        list(pack_pieces(SHARE, WRITER, 3, [claim], lambda _: iter([data[:-1]])))
    whole = pack()
    with pytest.raises(ContentCorrupt):
        read_pack(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ContentMissing, match="ends at"):
        read_pack(whole[:-1])
    with pytest.raises(ContentMissing, match="is missing"):
        read_pack(b"")


def test_manifests_list_bases_in_the_order_in_which_they_were_made() -> None:
    """And under the names that bases have."""
    later = ListedBase(name=base_name(50, WRITER, 2), transaction=50, millis=2, next_log=15, next_pack=4)
    misnamed = msgspec.structs.replace(later, name=base_name(51, WRITER, 2))
    earlier = msgspec.structs.replace(later, next_log=11)
    for bases, is_right in (
        ((LISTED, later), True),
        ((later, LISTED), False),
        ((LISTED, misnamed), False),
        ((LISTED, earlier), False),
    ):
        data = encode_document(msgspec.structs.replace(DOCUMENTS[1], bases=bases))
        if is_right:
            assert decode_document(data, ShareManifest, SHARE, "manifest").bases == bases
        else:
            with pytest.raises(RepositoryDamaged):
                decode_document(data, ShareManifest, SHARE, "manifest")


def test_names_say_what_they_are() -> None:
    """And no other name says it."""
    assert log_number(log_name(12)) == 12
    assert pack_of(pack_name(WRITER, 3)) == (WRITER, 3)
    assert base_of(base_name(40, WRITER, 1)) == (40, WRITER, 1)
    for name in ("log/12", "content/7-0123456789abcdef-3.tmp", "content/0-0123456789abcdef-3", "base/40", "epoch"):
        assert (log_number(name), pack_of(name), base_of(name)) == (None, None, None)


def test_every_binary_object_has_room_for_an_encoding() -> None:
    """So that what is encrypted by its writer one day is refused by readers that do not know it."""
    assert msgspec.structs.fields(ObjectHeader)[-1].default == AS_IT_IS
