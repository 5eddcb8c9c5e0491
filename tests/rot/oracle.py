"""What the bytes of a damaged log still prove, worked out from docs/storage.md alone.

An engine may lose an acknowledged transaction in silence in one case only: no valid frame that is left says that the
file was synced beyond the first bad offset, and none anywhere says that the transaction was durable.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from tests.rot.specimen import Specimen

HEADER_BYTES = 40
KINDS = (b"ULLt", b"ULLv", b"ULLc")


class Frame(NamedTuple):
    """One frame where it lies. `is_whole`: its payload verifies too."""

    kind: bytes
    offset: int
    end: int
    id: int
    durable: int
    synced: int
    is_whole: bool


class Damage(NamedTuple):
    """What a damaged log file means: the first transaction that is lost (0: none), and whether its loss is provable."""

    first_lost: int
    is_provable: bool


def frame_at(data: bytes, at: int, salt: int) -> Frame | None:
    """The frame whose header is valid at this offset."""
    if len(data) < at + HEADER_BYTES or data[at : at + 4] not in KINDS:
        return None
    kind, length, id, durable, synced, payload_crc, header_crc = struct.unpack_from("<4sIQQQII", data, at)
    if crc32c(data[at : at + 36]) ^ salt ^ at != header_crc:
        return None
    end = at + HEADER_BYTES + length
    payload = data[at + HEADER_BYTES : end]
    return Frame(kind, at, end, id, durable, synced, len(payload) == length and crc32c(payload) == payload_crc)


def frames_from(data: bytes, start: int) -> Iterator[Frame]:
    """Whole frames back to back, in a file whose header is whole."""
    salt = salt_of(data)
    while (frame := frame_at(data, start, salt)) is not None and frame.is_whole:
        yield frame
        start = frame.end


def start_of(data: bytes) -> int:
    """Where frames begin; 0 where the file header does not verify."""
    if len(data) < 16:
        return 0
    magic, length, crc = struct.unpack_from("<8sII", data)
    body = data[16 : 16 + length]
    is_valid = magic == b"ULLAGEWL" and len(body) == length > 0 and crc32c(body) == crc
    return 16 + length if is_valid else 0


def salt_of(data: bytes) -> int:
    """What the frames of a file with a whole header are mixed with."""
    salt: bytes = msgspec.msgpack.decode(data[16 : start_of(data)])["salt"]
    return int.from_bytes(salt, "little")


def damage(whole: Specimen, path: str, data: bytes) -> Damage:
    """What is lost when the log file at `path` holds `data`, and whether the files that are left prove it."""
    original = list(_frames(whole.image.files[path]))
    found = list(_frames(data))
    end = found[-1].end if found else start_of(data)
    lost = [frame.id for frame in original if frame.kind != b"ULLc" and frame.end > end and frame not in found]
    lost = [id for id in lost if id > whole.snapshot_id]
    if not lost:
        return Damage(0, is_provable=False)
    # Known where the header is not: it follows from the file's name.
    salt = salt_of(whole.image.files[path])
    behind = [frame for at in range(end, len(data)) if (frame := frame_at(data, at, salt)) is not None]
    others = [
        frame for other in whole.files_like(".wal") if other != path for frame in _frames(whole.image.files[other])
    ]
    durable = max((frame.durable for frame in [*found, *behind, *others]), default=0)
    synced = max((frame.synced for frame in behind), default=0)
    return Damage(min(lost), is_provable=synced > end or durable >= min(lost))


def _frames(data: bytes) -> list[Frame]:
    start = start_of(data)
    return list(frames_from(data, start)) if start else []
