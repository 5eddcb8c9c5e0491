"""Real files to mutate, and what puts valid checksums around mutated bytes again."""

import functools
import os
import struct

import msgspec
from crc32c import crc32c
from hypothesis import strategies as st

from tests.rot.oracle import HEADER_BYTES, Frame, frames_from, salt_of, start_of
from tests.rot.specimen import Specimen, abandon, reopen, specimen
from ullage.testing.crashing import CrashFiles, Image
from ullage.wire.upkeep import Keep

SEED = int(os.environ.get("ULLAGE_FUZZ_SEED") or "20261121")
EXAMPLES = int(os.environ.get("ULLAGE_FUZZ_EXAMPLES", "150"))
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)

Edit = tuple[str, int, int]


@functools.cache
def killed() -> Specimen:
    return specimen(closed=False, partitions=1)


@functools.cache
def closed() -> Specimen:
    return specimen(closed=True, partitions=1)


@functools.cache
def backed_up() -> Image:
    """The closed repository with a backup of it in two generations, in /b."""
    repository = reopen(closed().image, closed().spec)
    try:
        for _ in range(2):
            repository.backup("/b", keep=Keep(last=2))
        assert isinstance(repository._files, CrashFiles)
        return repository._files.image()
    finally:
        abandon(repository)


def files_of(part: str) -> list[bytes]:
    """Every file of one format, of a closed and a killed repository and a backup; logs without the zeros at the end."""
    images = (killed().image, closed().image, backed_up())
    found = {data for image in images for path, data in image.files.items() if part in path}
    return sorted(data.rstrip(b"\0") + bytes(64) if part == ".wal" else data for data in found)


def edits() -> st.SearchStrategy[list[Edit]]:
    """What is done to a file: flips, blown up lengths, cuts, repeated and swapped runs."""
    kinds = st.sampled_from(("flip", "extreme", "cut", "repeat", "splice", "grow"))
    return st.lists(st.tuples(kinds, st.integers(0, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=6)


def edited(data: bytes, changes: list[Edit]) -> bytes:
    """The file after all edits; offsets wrap around its length."""
    for kind, where, what in changes:
        if not data:
            return data
        at, other = where % len(data), what % len(data)
        if kind == "flip":
            data = data[:at] + bytes((data[at] ^ (1 << what % 8),)) + data[at + 1 :]
        elif kind == "extreme":
            data = data[:at] + struct.pack("<I", EXTREMES[what % len(EXTREMES)]) + data[at + 4 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "repeat":
            data = data[: at + other % 200] + data[at:]
        elif kind == "splice":
            data = data[:at] + data[other : other + 64] + data[at + 64 :]
        else:
            data = data[:at] + b"\xdd\xff\xff\xff\xff" * (1 + what % 50) + data[at:]
    return data


def resealed_header(data: bytes, changes: list[Edit]) -> bytes:
    """A file whose header's body is edited, under a valid checksum."""
    return with_header(data, edited(header_of(data), changes))


def resealed_block(data: bytes, changes: list[Edit]) -> bytes:
    """A snapshot or swap file whose first block's payload is edited, under valid checksums and footer."""
    return with_block(data, edited(block_of(data), changes) or b"\x90")


def has_frames(log: bytes) -> bool:
    """A log that was begun just before the end has none."""
    return any(True for _ in frames_from(log, start_of(log)))


def resealed_frame(data: bytes, changes: list[Edit], choice: int) -> bytes:
    """A log one of whose frames has an edited payload, under valid checksums."""
    return with_frame(data, edited(frame_of(data, choice), changes), choice)


def header_of(data: bytes) -> bytes:
    """The body of a file's header."""
    return data[16 : 16 + struct.unpack_from("<8sII", data)[1]]


def with_header(data: bytes, body: bytes) -> bytes:
    """The file under another header."""
    magic, length, _ = struct.unpack_from("<8sII", data)
    return struct.pack("<8sII", magic, len(body), crc32c(body)) + body + data[16 + length :]


def block_of(data: bytes) -> bytes:
    """The payload of a record file's first block."""
    start = 16 + len(header_of(data))
    length, _, _ = struct.unpack_from("<III", data, start)
    return data[start + 12 : start + 12 + length]


def with_block(data: bytes, payload: bytes) -> bytes:
    """The record file with this as its only block."""
    start = 16 + len(header_of(data))
    _, count, _ = struct.unpack_from("<III", data, start)
    head = struct.pack("<III", len(payload), count, crc32c(payload))
    footer = struct.pack("<IQI", 0, count, crc32c(head))
    return data[:start] + head + payload + footer + struct.pack("<I", crc32c(footer))


def frame_of(data: bytes, choice: int) -> bytes:
    """The payload of one frame of a log."""
    frame = _frame(data, choice)
    return data[frame.offset + 40 : frame.end]


def with_frame(data: bytes, payload: bytes, choice: int) -> bytes:
    """The log with another payload in this frame. Those behind it move, so that they are packed anew."""
    chosen, salt = _frame(data, choice), salt_of(data)
    packed, end = data[: chosen.offset], chosen.offset
    for frame in frames_from(data, start_of(data)):
        if frame.offset >= chosen.offset:
            content = payload if frame == chosen else data[frame.offset + HEADER_BYTES : frame.end]
            packed += packed_frame(frame.kind, frame.id, frame.durable, frame.synced, content, salt ^ len(packed))
            end = frame.end
    return packed + data[end:]


def _frame(data: bytes, choice: int) -> Frame:
    frames = list(frames_from(data, start_of(data)))
    return frames[choice % len(frames)]


def packed_frame(kind: bytes, id: int, durable: int, synced: int, payload: bytes, mark: int) -> bytes:
    """A frame, by docs/storage.md."""
    head = struct.pack("<4sIQQQI", kind, len(payload), id, durable, synced, crc32c(payload))
    return head + struct.pack("<I", crc32c(head) ^ mark) + payload


def with_transaction(whole: Specimen, operations: list[object]) -> tuple[str, bytes, int]:
    """The killed repository's log with one more transaction, well formed or not: path, bytes and its id."""
    (path,) = whole.files_like(".wal")
    data = whole.image.files[path]
    *_, last = frames_from(data, start_of(data))
    payload = msgspec.msgpack.encode([1_700_000_200_000, operations])
    frame = packed_frame(b"ULLt", last.id + 1, last.id, last.end, payload, salt_of(data) ^ last.end)
    return path, data[: last.end] + frame + bytes(64), last.id + 1
