"""A log object: transactions in their order, and the small contents that they made.

    header         magic "ULLAGELO", as in sections.py (LogObjectHeader)
    transactions   count times payload length u32, then the payloads, as the log has them
    contents       an index of count contents, then their bytes

It is put when everything that is alive at its end is in the share: small contents in it, others in the packs that it
and those before it name. Its end is a point to restore to. One without transactions is a *fence*: with it a writer
takes the log over.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
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
from ullage.engine.shipping.sharedocs import SHARE_FORMAT, Name, Number
from ullage.engine.shipping.shareplace import ShareWriter, pack_of
from ullage.engine.wal.format import PAYLOAD_BYTES_MAX
from ullage.engine.wal.serde import SerDe, require_serde
from ullage.errors import RepositoryDamaged

LOG_MAGIC: Final = b"ULLAGELO"

PACKS_MAX: Final = 500
"""Packs that one names: its header stays small."""

LOG_OBJECT_BYTES_MAX: Final = 32 << 20
"""A reader has one in memory. It holds at least one transaction, however large, with its contents."""

TRANSACTIONS_MAX: Final = 100_000

_LENGTH = struct.Struct("<I")


class NamedPack(msgspec.Struct, frozen=True, array_like=True):
    """A pack by its name, and its length."""

    name: Name
    length: Whole


class LogObjectHeader(ObjectHeader, frozen=True, kw_only=True):
    """What a log object says of itself. `first` is the id of its first transaction; `packs` were put since the log
    object before it.
    """

    number: Number
    serde: Name
    serde_version: int
    first: Whole
    millis: Whole
    packs: Annotated[tuple[NamedPack, ...], msgspec.Meta(max_length=PACKS_MAX)]
    transactions: ObjectSection
    contents: ObjectSection

    @property
    def is_fence(self) -> bool:
        return self.transactions.count == 0

    @property
    def last(self) -> int:
        """The id of its last transaction."""
        return self.first + self.transactions.count - 1


class SmallContent(NamedTuple):
    """A content that rides in a log object."""

    claim: ContentClaim
    data: bytes | memoryview


class LogBatch(NamedTuple):
    """What a log object is to hold: payloads of transactions that follow each other from `first` on."""

    first: int
    millis: int
    payloads: Sequence[bytes]
    contents: Sequence[SmallContent] = ()
    packs: Sequence[NamedPack] = ()


NOTHING: Final = LogBatch(0, 0, ())
"""What a fence holds."""


class LogObject(NamedTuple):
    """A log object that is whole."""

    header: LogObjectHeader
    payloads: list[bytes]
    contents: list[SmallContent]

    def transactions(self) -> Iterator[tuple[int, bytes]]:
        """Id and payload of each."""
        yield from enumerate(self.payloads, self.header.first)


def encode_log_object(share: str, writer: ShareWriter, number: int, batch: LogBatch, serde: SerDe) -> bytes:
    """The bytes of the object of that number."""
    lengths = b"".join(_LENGTH.pack(len(payload)) for payload in batch.payloads)
    transactions = lengths + b"".join(batch.payloads)
    contents = pack_index(each.claim for each in batch.contents) + b"".join(each.data for each in batch.contents)
    header = LogObjectHeader(
        format=SHARE_FORMAT,
        share=share,
        epoch=writer.epoch,
        nonce=writer.nonce,
        number=number,
        serde=serde.name,
        serde_version=serde.version,
        first=batch.first,
        millis=batch.millis,
        packs=tuple(batch.packs),
        transactions=section_of(transactions, len(batch.payloads)),
        contents=section_of(contents, len(batch.contents)),
    )
    return pack_header(LOG_MAGIC, header) + transactions + contents


def decode_log_header(data: bytes, share: str, number: int, path: str) -> tuple[LogObjectHeader, int]:
    """What the object of that number says of itself, and where its header ends. RepositoryDamaged; FormatTooNew."""
    header, end = unpack_header(LOG_MAGIC, data, LogObjectHeader, share, path)
    if header.number != number:
        raise RepositoryDamaged(f"{path} says that it is log object {header.number}")
    count = header.transactions.count
    if count > TRANSACTIONS_MAX or bool(count) != bool(header.first) or header.last >= 1 << 63:
        raise RepositoryDamaged(f"{path} holds {count} transactions from {header.first} on, as no log object does")
    if misnamed := [pack.name for pack in header.packs if pack_of(pack.name) is None]:
        raise RepositoryDamaged(f"{path} names {misnamed[0]!r}, which is no pack")
    return header, end


def decode_log_object(data: bytes, share: str, number: int, path: str, serde: SerDe) -> LogObject:
    """The object of that number, every byte of it proved. RepositoryDamaged; FormatTooNew."""
    if len(data) > LOG_OBJECT_BYTES_MAX:
        raise RepositoryDamaged(f"{path} has {len(data)} bytes, more than a log object may have")
    header, end = decode_log_header(data, share, number, path)
    require_serde(serde, header.serde, header.serde_version, path)
    split = end + header.transactions.length
    view = memoryview(data)
    transactions = section_bytes(view[end:split], header.transactions, path, "transactions")
    contents = section_bytes(view[split:], header.contents, path, "contents")
    return LogObject(
        header,
        _payloads(transactions, header.transactions.count, path),
        _contents(contents, header.contents.count, path),
    )


def _payloads(data: bytes | memoryview, count: int, path: str) -> list[bytes]:
    start = count * _LENGTH.size
    lengths = [length for (length,) in _LENGTH.iter_unpack(data[:start])] if start <= len(data) else []
    if len(lengths) != count or start + sum(lengths) != len(data) or any(n > PAYLOAD_BYTES_MAX for n in lengths):
        raise RepositoryDamaged(f"{path}: its transactions are not as long as it says")
    payloads = []
    for length in lengths:
        payloads.append(bytes(data[start : start + length]))
        start += length
    return payloads


def _contents(data: bytes | memoryview, count: int, path: str) -> list[SmallContent]:
    at = count * CONTENT_ENTRY.size
    claims = unpack_index(data[:at], count, path)
    if at + sum(claim.length for claim in claims) != len(data):
        raise RepositoryDamaged(f"{path}: its contents are not as long as it says")
    contents = []
    for claim in claims:
        found = data[at : at + claim.length]
        if crc32c(found) != claim.crc:
            raise RepositoryDamaged(f"{path}: the content at {claim.offset} of {claim.resource} is another one")
        contents.append(SmallContent(claim, found))
        at += claim.length
    return contents
