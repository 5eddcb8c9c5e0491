"""Reading damaged files of records for what can still be proved: the first half of a salvage. It only reads.

An ordinary restore stops at damage, because all that follows may be wrong. Here each frame and block is judged by
itself, and whatever is not read is named as a `LostRange`. Nothing is believed that a checksum does not prove:

    log file      a frame is bound to its file and its place by the salt, so one behind damage proves itself
    record file   a block is not: bytes inside an attribute may look like one. What lies behind a damaged block counts
                  only where the chain of heads leads to the footer, whose CRC covers all heads. A damaged header stands
                  at the file's end once more
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from ullage.engine.wal.failingdisk import Openable, Readable
from ullage.engine.wal.format import (
    CLOSE,
    FILE_MAGIC,
    FRAME_HEADER_BYTES,
    HEADER_BYTES_MAX,
    MAGIC_PREFIX,
    TRANSACTION,
    FrameHeader,
    LogHeader,
    decode_header,
    pack_file_header,
    salt_number,
    salt_of,
    unpack_file_header,
    unpack_frame_header,
)
from ullage.engine.wal.records import BLOCK_BYTES_MAX, header_copy
from ullage.engine.wal.restore import last_used_byte
from ullage.engine.wal.state import log_name
from ullage.errors import RepositoryDamaged

WINDOW_BYTES = 1 << 20
"""How much of a damaged region is searched at a time."""

_BLOCK = struct.Struct("<III")
_FOOTER = struct.Struct("<IQII")
_LENGTH = struct.Struct("<I")


class LostRange(NamedTuple):
    """Bytes that can't be used, and why. `id` is the transaction that lay there, where its frame's header says so."""

    path: str
    offset: int
    length: int
    reason: str
    id: int | None = None


class FoundFrame(NamedTuple):
    """Where a frame is whose header and payload are proved. A log may be larger than the memory: see `payloads`."""

    path: str
    offset: int
    header: FrameHeader


@dataclass(slots=True)
class FoundLog:
    """One log file. `header` is None where it is damaged. `durable` is the most that a proved header says was synced,
    of frames with a damaged payload too; `synced` how far those behind the first lost bytes say that the file was.
    """

    path: str
    header: LogHeader | None = None
    frames: list[FoundFrame] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    durable: int = 0
    synced: int = 0

    @property
    def is_torn(self) -> bool:
        """Whether nothing proves that what is lost was synced, so that nobody was told that it is safe: to a start this
        is a torn tail, and no damage.
        """
        return self.header is not None and bool(self.lost) and self.synced <= self.lost[0].offset


@dataclass(slots=True)
class FoundBlocks:
    """One snapshot or swap file: header body and payloads that are proved, each with its offset. `is_whole` where the
    footer says that nothing is missing.
    """

    path: str
    body: bytes | None = None
    payloads: list[tuple[int, bytes]] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    is_whole: bool = False


class SalvagedLog(NamedTuple):
    """Transactions by what can be said of them: `proved` follow the snapshot without a gap; before each of `behind`
    one is missing, so what they leave may have been changed or deleted by it. `gaps` are the missing ids, both ends
    included; one that ends the list was there, and nothing behind it was found. `is_loss` is False where nothing proves
    that the first missing one was synced: nobody was told of it, or of what is behind it, and a start discards these.
    """

    proved: list[FoundFrame]
    behind: list[FoundFrame]
    gaps: list[tuple[int, int]]
    is_loss: bool = False


def read_log(files: Openable, path: str, salt_key: bytes | None) -> FoundLog:
    """All frames of a log file that are proved. Without its header and the snapshot's key none can be."""
    found = FoundLog(path)
    with closing(files.open(path)) as file:
        end = last_used_byte(file, 0)
        header = unpack_file_header(FILE_MAGIC, file.read(HEADER_BYTES_MAX, 0))
        if header is not None:
            try:
                found.header = decode_header(header[0], LogHeader, path)
            except RepositoryDamaged as error:
                # Its checksum is right, so it was written like this: nobody knows what follows it.
                found.lost.append(LostRange(path, 0, end, str(error)))
                return found
            _read_frames(file, header[1], end, found.header.salt_number, found)
        elif salt_key is not None:
            _read_frames(file, 0, end, salt_number(salt_of(salt_key, log_name(path))), found)
        elif end:
            found.lost.append(LostRange(path, 0, end, "neither its header nor the snapshot's key can be read"))
    return found


def _read_frames(file: Readable, start: int, end: int, salt: int, found: FoundLog) -> None:
    offset = start
    while offset < end:
        header = unpack_frame_header(file.read(FRAME_HEADER_BYTES, offset), 0, salt ^ offset)
        if header is None:
            # A frame that ends in zeros ends behind the last byte that is none: `end` may lie inside the last frame.
            following = _next_frame(file, offset + 1, end, salt)
            found.lost.append(LostRange(found.path, offset, following - offset, "no frame can be read here"))
            offset = following
            continue
        # A close repeats the last id of the whole log, which another partition's lost end may have held.
        found.durable = max(found.durable, header.id if header.kind == CLOSE else header.durable)
        if found.lost:
            found.synced = max(found.synced, header.synced)
        payload = file.read(header.length, offset + FRAME_HEADER_BYTES)
        length = FRAME_HEADER_BYTES + header.length
        if len(payload) == header.length and crc32c(payload) == header.payload_crc:
            found.frames.append(FoundFrame(found.path, offset, header))
        else:
            id = header.id if header.kind == TRANSACTION else None
            found.lost.append(LostRange(found.path, offset, length, "the payload of this frame is damaged", id))
        # Past a damaged payload as well: its header proves how long it was.
        offset += length


def _next_frame(file: Readable, start: int, end: int, salt: int) -> int:
    """Where the next frame with a proved header begins; `end` if none does."""
    while start < end:
        window = file.read(WINDOW_BYTES + FRAME_HEADER_BYTES, start)
        at = window.find(MAGIC_PREFIX)
        while 0 <= at < WINDOW_BYTES:
            if unpack_frame_header(window, at, salt ^ (start + at)) is not None:
                return start + at
            at = window.find(MAGIC_PREFIX, at + 1)
        start += WINDOW_BYTES
    return end


def read_blocks(files: Openable, path: str, magic: bytes) -> FoundBlocks:
    """All blocks of a snapshot or swap file that are proved."""
    found = FoundBlocks(path)
    with closing(files.open(path)) as file:
        length = file.size().length
        header = unpack_file_header(magic, file.read(HEADER_BYTES_MAX, 0))
        body = header[0] if header is not None else _copied_header(file, magic, length)
        if body is None:
            # Nobody knows where the first block begins, or whose file this is.
            found.lost.append(LostRange(path, 0, length, "its header is damaged"))
            return found
        begin = pack_file_header(magic, body)
        if header is None:
            found.lost.append(LostRange(path, 0, len(begin), "its header is damaged: it was read from the file's end"))
        found.body = body
        _read_blocks(file, begin, length, found)
    return found


def _copied_header(file: Readable, magic: bytes, end: int) -> bytes | None:
    """The body of the copy at the end of a record file; None where what stands there is none."""
    said = file.read(_LENGTH.size, max(0, end - _LENGTH.size))
    length = _LENGTH.unpack(said)[0] if len(said) == _LENGTH.size else 0
    at = end - _LENGTH.size - length
    if at < 0 or length > HEADER_BYTES_MAX:
        return None
    copied = unpack_file_header(magic, file.read(length, at))
    return copied[0] if copied is not None and copied[1] == length else None


def _read_blocks(file: Readable, begin: bytes, end: int, found: FoundBlocks) -> None:
    unproved: list[tuple[int, bytes]] = []
    damaged: list[LostRange] = []
    behind, running, records = len(begin), 0, 0
    for offset, head, payload in _walk(file, len(begin)):
        running = crc32c(head, running)
        length, count, crc = _BLOCK.unpack(head)
        records += count
        if crc32c(payload) != crc or len(payload) != length:
            damaged.append(LostRange(found.path, offset, _BLOCK.size + length, "this block is damaged"))
        else:
            (unproved if damaged else found.payloads).append((offset, payload))
        behind = offset + _BLOCK.size + length
    footer = file.read(_FOOTER.size, behind)
    if _is_footer(footer, records, running):
        found.payloads += unproved
        found.lost += damaged
        behind += _FOOTER.size
        copy = header_copy(begin)
        if file.read(len(copy) + 1, behind) != copy:
            found.lost.append(LostRange(found.path, behind, max(end - behind, 0), "this is no copy of its header"))
        found.is_whole = not damaged
        return
    first = damaged[0].offset if damaged else behind
    # A file may be cut at the end of a block, and then no byte of what is lost is there to be counted.
    reason = "what follows is damaged or missing, and the file's footer does not prove it"
    found.lost.append(LostRange(found.path, first, max(end - first, 0), reason))


def _walk(file: Readable, offset: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Offset, head and payload of what the heads say are blocks, up to the footer or what can be neither."""
    while True:
        head = file.read(_BLOCK.size, offset)
        if len(head) < _BLOCK.size:
            return
        length = _BLOCK.unpack(head)[0]
        if not 0 < length <= BLOCK_BYTES_MAX:
            return
        payload = file.read(length, offset + _BLOCK.size)
        yield offset, head, payload
        offset += _BLOCK.size + length


def _is_footer(data: bytes, records: int, running: int) -> bool:
    if len(data) < _FOOTER.size:
        return False
    zero, said, heads, crc = _FOOTER.unpack(data)
    return (zero, said, heads) == (0, records, running) and crc32c(data[:-4]) == crc


def chain(logs: Iterable[FoundLog], last_id: int) -> SalvagedLog:
    """What the frames of all log files are worth behind a snapshot of `last_id`. It looks at no file."""
    logs = list(logs)
    ids: dict[int, FoundFrame] = {}
    contradicted: set[int] = set()
    for log in logs:
        limit = _disowned_above(log, logs)
        for frame in log.frames:
            id = frame.header.id
            if frame.header.kind != TRANSACTION or id <= last_id or (limit is not None and id > limit):
                continue
            # A copy of a frame is the frame. Two that differ can't both have happened, and nobody knows which did.
            if id in ids and _payload_of(ids[id]) != _payload_of(frame):
                contradicted.add(id)
            ids.setdefault(id, frame)
    usable = sorted(ids.keys() - contradicted)
    durable = max([0, *contradicted, *(log.durable for log in logs)])
    gaps = []
    expected = last_id + 1
    for id in usable:
        if id > expected:
            gaps.append((expected, id - 1))
        expected = id + 1
    known = max([durable, *(lost.id for log in logs for lost in log.lost if lost.id is not None)])
    if known >= expected:
        gaps.append((expected, known))
    first_gap = gaps[0][0] if gaps else expected
    proved = [ids[id] for id in usable if id < first_gap]
    behind = [ids[id] for id in usable if id > first_gap]
    is_torn = first_gap > durable and all(log.is_torn or not log.lost for log in logs)
    return SalvagedLog(proved, behind, gaps, is_loss=bool(gaps) and not is_torn)


def _payload_of(frame: FoundFrame) -> tuple[int, int]:
    return frame.header.length, frame.header.payload_crc


def payloads(files: Openable, frames: Iterable[FoundFrame]) -> Iterator[tuple[FoundFrame, bytes]]:
    """The frames with their payloads, read one by one. RepositoryDamaged for one that is not what it was."""
    with ExitStack() as stack:
        opened: dict[str, Readable] = {}
        for frame in frames:
            if frame.path not in opened:
                opened[frame.path] = stack.enter_context(closing(files.open(frame.path)))
            payload = opened[frame.path].read(frame.header.length, frame.offset + FRAME_HEADER_BYTES)
            if (len(payload), crc32c(payload)) != _payload_of(frame):
                raise RepositoryDamaged(
                    f"{frame.path}: the frame at offset {frame.offset} changed between two reads: copy the repository "
                    "to a disk that does not fail, and salvage the copy"
                )
            yield frame, payload


def _disowned_above(log: FoundLog, logs: list[FoundLog]) -> int | None:
    """Frames of the log above this id are none: their write failed, and the next file of the partition says so."""
    if log.header is None:
        return None
    mine = log.header
    limits = []
    for other in logs:
        header = other.header
        if header is None or (header.repository, header.partition) != (mine.repository, mine.partition):
            continue
        # A file that took over the number of one without a frame that counts disowns all of that one's.
        if header.sequence == mine.sequence + 1 or (header.sequence == mine.sequence and other.path > log.path):
            limits.append(header.previous_last_id)
    return min(limits, default=None)
