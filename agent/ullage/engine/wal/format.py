"""The bytes of a log file: one header, then frames. Integers are little-endian, checksums CRC-32C (Castagnoli).

    file header   magic "ULLAGEWL" | body length u32 | body CRC u32 | body: msgpack map (LogHeader)
    frame         magic 4s | payload length u32 | id u64 | durable u64 | synced u64 | payload CRC u32 | header CRC u32
                  | payload

The magic tells the kind: "ULLt" a transaction, "ULLc" a close. The header CRC is mixed with the file's salt and with
the frame's offset, so that bytes inside a payload, or of another file, are no frame (see `salt_of`).
`durable` and `synced` are what was known when the frame was written: every transaction up to `durable` was synced,
and this file was synced up to offset `synced`. They are the proof that tells corruption from a torn tail: no writer
was ever told that unsynced bytes are safe, so a bad region is loss only where some valid frame says it was synced.

Files are preallocated: zeros after the last frame are unused space, not damage.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from ullage.errors import FormatTooNew, RepositoryDamaged

FORMAT_VERSION = 1
"""Version of the files of a repository as a whole; raised when an older reader would go wrong."""

FILE_MAGIC = b"ULLAGEWL"
TRANSACTION = b"ULLt"
CLOSE = b"ULLc"
KINDS = frozenset((TRANSACTION, CLOSE))
MAGIC_PREFIX = b"ULL"

PAYLOAD_BYTES_MAX = 8 << 20
"""A transaction's limit; it also bounds what a reader allocates for a damaged length field."""

OPERATIONS_MAX = 10_000
"""A transaction's limit in records: what one lock hold and one sync may cost everybody else."""

HEADER_BYTES_MAX = 64 << 10
"""A file header's body is a few hundred bytes; more is damage."""

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: text that is no UTF-8 and deep nesting included."""

Header = TypeVar("Header", bound=msgspec.Struct)

_FRAME = struct.Struct("<4sIQQQI")
_CRC = struct.Struct("<I")
_FILE = struct.Struct("<8sII")
FRAME_HEADER_BYTES = _FRAME.size + _CRC.size
SALT_BYTES = 4


class FrameHeader(NamedTuple):
    """A frame's header, checksum verified."""

    kind: bytes
    length: int
    id: int
    durable: int
    synced: int
    payload_crc: int


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a log file says of itself. `previous_last_id` is the last id of this partition's predecessor file; `salt` is
    what `salt_of` made of its name when it was created.
    """

    format: int
    serde: str
    serde_version: int
    repository: str
    partition: int
    sequence: int
    previous_last_id: int
    salt: bytes

    @property
    def salt_number(self) -> int:
        """See the function of that name."""
        return salt_number(self.salt)


class CloseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a close frame: the last id of the whole log, and each log file's length in bytes."""

    last_id: int
    lengths: dict[str, int]


def salt_of(key: bytes, name: str) -> bytes:
    """The salt of the log file of that name (`partition-<n>/<first id>.wal`), in a log of that secret key.

    Without it who writes attributes could write frames: where a crash tears the frame around them, a start would take
    them for proof that the file was synced, and refuse. It follows from key and name, so that it is known where the
    file's own header is damaged, which only its frames can tell from one that was never durable.
    """
    return hashlib.blake2b(name.encode(), digest_size=SALT_BYTES, key=key).digest()


def salt_number(salt: bytes) -> int:
    """A salt as the checksums of frames are mixed with it."""
    return int.from_bytes(salt[:SALT_BYTES], "little")


def pack_frame_header(kind: bytes, id: int, durable: int, synced: int, payload: bytes, mark: int) -> bytes:
    """What stands before a frame's payload. `mark` is the file's salt XOR the frame's offset: a copy elsewhere in the
    same file is none.
    """
    header = _FRAME.pack(kind, len(payload), id, durable, synced, crc32c(payload))
    return header + _CRC.pack((crc32c(header) ^ mark) & 0xFFFFFFFF)


def unpack_frame_header(data: bytes, at: int, mark: int) -> FrameHeader | None:
    """The header at `at`, or None where there is no valid one; `mark` as for `pack_frame_header`."""
    end = at + FRAME_HEADER_BYTES
    # The kind first: a search for proof tries every "ULL" in megabytes of damage.
    if end > len(data) or data[at : at + 4] not in KINDS:
        return None
    # The header proves itself before its length is believed: a damaged length would hide all frames behind it.
    crc = crc32c(data[at : end - _CRC.size]) ^ mark
    if crc & 0xFFFFFFFF != _CRC.unpack_from(data, end - _CRC.size)[0]:
        return None
    header = FrameHeader(*_FRAME.unpack_from(data, at))
    # Under a valid checksum too: nothing that somebody forged may decide how much we allocate.
    return header if header.length <= PAYLOAD_BYTES_MAX else None


def pack_file_header(magic: bytes, body: bytes) -> bytes:
    """The first bytes of a log or snapshot file."""
    return _FILE.pack(magic, len(body), crc32c(body)) + body


def unpack_file_header(magic: bytes, data: bytes, bytes_max: int = HEADER_BYTES_MAX) -> tuple[bytes, int] | None:
    """The header's body and the offset after it; None where the bytes are no such header."""
    if len(data) < _FILE.size:
        return None
    found, length, crc = _FILE.unpack_from(data)
    end = _FILE.size + length
    # An empty body would make zeros behind a magic, a torn write, a header: the CRC of nothing is 0.
    if found != magic or not 0 < length <= bytes_max or end > len(data):
        return None
    body = data[_FILE.size : end]
    return (body, end) if crc32c(body) == crc else None


def unpack_file(magic: bytes, data: bytes) -> bytes | None:
    """The body of a file that is one header of any length, and nothing more; None where the bytes are no such file."""
    found = unpack_file_header(magic, data, len(data))
    return found[0] if found is not None and found[1] == len(data) else None


class _AnyHeader(msgspec.Struct):
    """What the header of every version has."""

    format: int


def decode_header(
    body: bytes, header_type: type[Header], path: str, decode: Callable[..., Any] = msgspec.msgpack.decode
) -> Header:
    """A file header's body, or with `decode` of JSON an identity.

    FormatTooNew comes first: a newer header may lack fields that this version demands.
    """
    try:
        require_format(decode(body, type=_AnyHeader).format, path)
        header: Header = decode(body, type=header_type)
    except UNDECODABLE as error:
        raise RepositoryDamaged(f"{path} cannot be read: {error}; restore it from a backup") from error
    return header


def require_format(format: int, path: str) -> None:
    """Refuse files of a newer format, naming both versions."""
    if format > FORMAT_VERSION:
        raise FormatTooNew(
            f"{path} has format version {format}; this version of Ullage reads up to {FORMAT_VERSION}: "
            "open it with the newer Ullage that wrote it"
        )
    if format < 1:
        raise RepositoryDamaged(f"{path} names format version {format}, which never existed")
