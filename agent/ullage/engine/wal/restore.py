"""What a log's files hold, and how much of it was acknowledged: the reading half of a restore.

Nothing here changes a file. `scan_partition` finds the frames of one chain; `resolve` decides, from all chains
together, which transactions are to be applied, and stops where something acknowledged is missing.

    D          the largest `durable` in the snapshot and in all valid frames: everything up to D was acknowledged
    missing    an id in (snapshot's last id, D] that no chain holds: loss, the start stops
    g          the first missing id above D: frames above it are discarded, none of them was acknowledged
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from ullage.engine.files import File, Files
from ullage.engine.wal.failingdisk import Readable
from ullage.engine.wal.format import (
    CLOSE,
    FILE_MAGIC,
    FRAME_HEADER_BYTES,
    HEADER_BYTES_MAX,
    MAGIC_PREFIX,
    PAYLOAD_BYTES_MAX,
    UNDECODABLE,
    CloseRecord,
    FrameHeader,
    LogHeader,
    decode_header,
    salt_number,
    salt_of,
    unpack_file_header,
    unpack_frame_header,
)
from ullage.engine.wal.partition import log_paths, partition_directory
from ullage.engine.wal.serde import require_serde
from ullage.engine.wal.state import RecordDirectory, log_name
from ullage.errors import RepositoryDamaged

WINDOW_BYTES = PAYLOAD_BYTES_MAX + FRAME_HEADER_BYTES
"""A window this large always holds the frame at its start whole."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end of a file that no acknowledged transaction needs."""

    path: str
    offset: int
    length: int


@dataclass(slots=True)
class LogFile:
    """One scanned file: where its transactions lie, and what its end looks like."""

    path: str
    header: LogHeader
    ids: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    end: int = 0
    body_end: int = 0
    close: CloseRecord | None = None
    last_id: int = 0

    @property
    def has_frames(self) -> bool:
        return self.last_id > 0


@dataclass(slots=True)
class Chain:
    """A partition's files from the first one needed, in order."""

    number: int
    files: list[LogFile] = field(default_factory=list)
    torn: list[TornTail] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    close: CloseRecord | None = None
    durable: int = 0
    last_sequence: int = 0
    last_id: int = 0


@dataclass(slots=True)
class RestoreReport:
    """What a restore finds: ids in (`snapshot_last_id`, `last_id`] are applied, all above were never acknowledged.
    `clean`: the log was closed properly, nothing needs proving again.
    """

    snapshot_last_id: int = 0
    last_id: int = 0
    discarded: tuple[int, ...] = ()
    torn: tuple[TornTail, ...] = ()
    clean: bool = True
    snapshot_records: int = 0
    snapshot_bytes: int = 0
    snapshot_millis: int = 0
    transactions: int = 0


class Proof(NamedTuple):
    """The most that valid frame headers behind a bad region say: how far the file, and the log, was synced."""

    id: int
    synced: int
    durable: int


class _Windows:
    """Reads a file front to back so that the frame at `at` is always whole in memory."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._base = 0
        self._data = b""

    def at(self, offset: int, count: int) -> tuple[bytes, int]:
        """The window's bytes and the position of `offset` in them, `count` bytes following unless the file ends."""
        if not (self._base <= offset and offset + count <= self._base + len(self._data)):
            self._base = offset
            self._data = self._file.read(max(WINDOW_BYTES, count), offset)
        return self._data, offset - self._base


def read_frames(file: File, start: int, salt: int) -> Iterator[tuple[int, FrameHeader, bytes]]:
    """Offset, header and payload of each whole frame from `start` on; ends at the first that is not."""
    windows = _Windows(file)
    offset = start
    while True:
        data, at = windows.at(offset, FRAME_HEADER_BYTES)
        header = unpack_frame_header(data, at, salt ^ offset)
        if header is None:
            return
        data, at = windows.at(offset, FRAME_HEADER_BYTES + header.length)
        first = at + FRAME_HEADER_BYTES
        payload = data[first : first + header.length]
        if len(payload) != header.length or crc32c(payload) != header.payload_crc:
            return
        yield offset, header, payload
        offset += FRAME_HEADER_BYTES + header.length


def scan_partition(place: RecordDirectory, number: int, first_sequence: int | None, salt_key: bytes | None) -> Chain:
    """All frames of one partition from `first_sequence` on.

    None: the snapshot knows no file of it, so what is there is left over from before the snapshot. A file without a
    frame is no link of the chain: it was created, and its first frame never became durable.
    """
    directory = partition_directory(place.path, number)
    paths = log_paths(place.files, directory)
    if first_sequence is None:
        return Chain(number, unused=paths)
    chain = Chain(number, last_sequence=first_sequence - 1)
    scanned: list[LogFile] = []
    for path in paths:
        log = _scan_file(place, path, first_sequence, salt_key, chain)
        if log is None:
            chain.unused.append(path)
        else:
            scanned.append(log)
    for log in sorted(scanned, key=lambda log: (log.header.sequence, log.path)):
        chain.close = log.close
        if log.has_frames:
            _link(chain, log, directory)
        else:
            chain.unused.append(log.path)
    # Its header was durable before the snapshot was: a file that was cut to nothing is no file that never came to be.
    if salt_key is not None and all(log.header.sequence != first_sequence for log in scanned):
        others = f"; it may be one of these, whose header is gone: {', '.join(chain.unused)}" if chain.unused else ""
        raise RepositoryDamaged(
            f"{directory}: log file number {first_sequence}, which the snapshot needs, is missing{others}; restore it "
            "from a backup of this volume"
        )
    return chain


def _link(chain: Chain, log: LogFile, directory: str) -> None:
    """Append a file to its chain. Frames of the predecessor above the id named here were discarded by an earlier start.

    When not one frame of the predecessor counts, this file has taken over its number.
    """
    if chain.files:
        before = chain.files[-1]
        limit = log.header.previous_last_id
        # An earlier start has discarded them, and given their ids again since then.
        while before.ids and before.ids[-1] > limit:
            before.ids.pop()
            before.offsets.pop()
        if log.header.sequence == chain.last_sequence and not before.ids:
            chain.unused.append(chain.files.pop().path)
            chain.last_sequence -= 1
    if log.header.sequence != chain.last_sequence + 1:
        raise RepositoryDamaged(
            f"{directory}: log file number {chain.last_sequence + 1} is missing (found {log.header.sequence} in "
            f"{log.path}); restore it from a backup of this volume"
        )
    chain.files.append(log)
    chain.last_sequence = log.header.sequence
    chain.last_id = max(log.header.previous_last_id, log.last_id)


def _scan_file(
    place: RecordDirectory, path: str, first_sequence: int, salt_key: bytes | None, chain: Chain
) -> LogFile | None:
    """One file's frames. None: the snapshot covers it (its deletion was cut short), or it never had a whole header."""
    repository, number = place.repository, chain.number
    with closing(place.files.open(path)) as file:
        found = unpack_file_header(FILE_MAGIC, file.read(HEADER_BYTES_MAX, 0))
        if found is None:
            _judge_header(file, path, salt_key, chain)
            return None
        body, start = found
        header = decode_header(body, LogHeader, path)
        require_serde(place.serde, header.serde, header.serde_version, path)
        if header.repository != repository or header.partition != number:
            raise RepositoryDamaged(
                f"{path} belongs to partition {header.partition} of repository {header.repository}, "
                f"not to partition {number} of {repository}"
            )
        if header.sequence < first_sequence:
            return None
        log = LogFile(path, header, end=start, body_end=start)
        _collect(file, start, log, chain)
        _judge_end(file, path, log.end, header.salt_number, chain)
        return log


def _collect(file: File, start: int, log: LogFile, chain: Chain) -> None:
    for offset, header, payload in read_frames(file, start, log.header.salt_number):
        log.end = offset + FRAME_HEADER_BYTES + header.length
        chain.durable = max(chain.durable, header.durable)
        if header.kind == CLOSE:
            log.close = _decode_close(payload, log.path, offset)
            log.body_end = offset
            continue
        # Only a close frame that nothing follows says how the log ended.
        log.close = None
        log.body_end = log.end
        log.last_id = header.id
        log.ids.append(header.id)
        log.offsets.append(offset)


def _decode_close(payload: bytes, path: str, offset: int) -> CloseRecord:
    try:
        return msgspec.msgpack.decode(payload, type=CloseRecord)
    except UNDECODABLE as error:
        raise RepositoryDamaged(f"{path}: the close frame at offset {offset} does not decode: {error}") from error


def _judge_header(file: File, path: str, salt_key: bytes | None, chain: Chain) -> None:
    """A header and frames that no sync ever covered may be torn in any way; only a frame that says that the file was
    synced proves that the header once was whole. Which bytes are frames of this file the snapshot's key must say.
    """
    if salt_key is not None:
        _judge_end(file, path, 0, salt_number(salt_of(salt_key, log_name(path))), chain)
    elif last_used_byte(file, 0):
        raise RepositoryDamaged(
            f"{path}: the file header at offset 0 is damaged, and without a snapshot nobody can tell whether the file "
            "was synced: restore the flowfile directory from a backup"
        )


def _judge_end(file: File, path: str, end: int, salt: int, chain: Chain) -> None:
    """Tell corruption from a torn tail: only a valid frame can prove that the bytes after `end` were synced."""
    # Blocks are reserved ahead as zeros, which are no damage: what is there ends at the last byte that is none.
    torn_end = last_used_byte(file, end)
    if torn_end <= end:
        return
    proof = _find_proof(file, end, salt)
    chain.durable = max(chain.durable, proof.durable)
    if proof.synced > end:
        what = "file header" if end == 0 else "frame"
        raise RepositoryDamaged(
            f"{path}: the {what} at offset {end} is damaged, and transaction {proof.id} behind it proves that the "
            f"file was synced up to offset {proof.synced}: acknowledged data is lost here; restore this file from a "
            "backup"
        )
    chain.torn.append(TornTail(path, end, torn_end - end))


def last_used_byte(file: Readable, offset: int) -> int:
    """The end of the last non-zero byte at or after `offset`; `offset` itself where all is preallocated zeros."""
    end = offset
    while window := file.read(1 << 20, offset):
        used = len(window.rstrip(b"\0"))
        if used:
            end = offset + used
        offset += len(window)
    return end


def _find_proof(file: File, offset: int, salt: int) -> Proof:
    """What the valid frame headers at or behind `offset` prove; all zeros where there are none."""
    best = Proof(0, 0, 0)
    # A header may lie across two windows.
    overlap = FRAME_HEADER_BYTES - 1
    while len(window := file.read((1 << 20) + overlap, offset)) > 0:
        at = window.find(MAGIC_PREFIX)
        while 0 <= at < (1 << 20):
            header = unpack_frame_header(window, at, salt ^ (offset + at))
            if header is not None:
                id = header.id if header.synced > best.synced else best.id
                best = Proof(id, max(best.synced, header.synced), max(best.durable, header.durable))
            at = window.find(MAGIC_PREFIX, at + 1)
        offset += 1 << 20
    return best


def resolve(chains: list[Chain], snapshot_last_id: int) -> RestoreReport:
    """Decide what counts (see the module's text). RepositoryDamaged names the first acknowledged id that is missing."""
    # Eight bytes an id: a log of 4 GiB may hold tens of millions of them.
    ids: array[int] = array("Q")
    for chain in chains:
        for log in chain.files:
            ids.extend(log.ids)
    held = sorted(id for id in ids if id > snapshot_last_id)
    durable = max((chain.durable for chain in chains), default=0)
    last = snapshot_last_id
    for id in held:
        # Both frames are whole, so one of them is not of this repository's making: neither is to be chosen by
        # guessing.
        if id == last:
            raise RepositoryDamaged(f"transaction {id} is in the log twice")
        if id != last + 1:
            break
        last = id
    torn = tuple(tail for chain in chains for tail in chain.torn)
    # | 5 | 6 lost | 7, which says that 6 was durable |: somebody was told so, and a start would take it back in
    # silence.
    if last < durable:
        where = ", ".join(f"{tail.path} at offset {tail.offset}" for tail in torn) or f"none; {_ends(chains)}"
        raise RepositoryDamaged(
            f"transaction {last + 1} is missing, but a later frame proves that everything up to {durable} was "
            f"acknowledged (damaged regions: {where}); restore the flowfile directory from a backup"
        )
    # No sync has covered the missing one, so none has covered these: nobody was told of them.
    discarded = tuple(id for id in held if id > last)
    return RestoreReport(snapshot_last_id, last, discarded, torn, not torn and _is_clean(chains, last))


def _ends(chains: list[Chain]) -> str:
    """Where each chain's frames end: one of these files is cut short, or the file after it is gone."""
    ends = [f"{chain.files[-1].path} ends at offset {chain.files[-1].end}" for chain in chains if chain.files]
    ends += [f"{path} holds no frame" for chain in chains for path in chain.unused]
    return "a log file is cut short or gone: " + ", ".join(ends)


def _is_clean(chains: list[Chain], last_id: int) -> bool:
    """Whether the log was closed at exactly this end; RepositoryDamaged if a file that its close lists has changed."""
    used = [chain for chain in chains if chain.files or chain.unused]
    records = [chain.close for chain in used if chain.close is not None and chain.close.last_id == last_id]
    if not records or len(records) != len(used):
        return False
    found = {log_name(log.path): log.body_end for chain in chains for log in chain.files}
    for name, length in records[0].lengths.items():
        if found.get(name, 0) != length:
            said = used[0].files[-1].path if used[0].files else used[0].unused[-1]
            raise RepositoryDamaged(
                f"log file {name} had {length} bytes when the repository was closed, says the close frame in {said}, "
                f"{found.get(name, 0)} are left; restore it from a backup of this volume"
            )
    return True


def replay(files: Files, chains: list[Chain], found: RestoreReport) -> Iterator[tuple[int, bytes, int, str]]:
    """Id, payload, SerDe version and file of each transaction to apply, by smallest id over all partitions."""
    with ExitStack() as stack:  # an error in one chain closes the files of all
        runs = [stack.enter_context(closing(_chain_payloads(files, chain, found))) for chain in chains]
        yield from heapq.merge(*runs)


def _chain_payloads(
    files: Files, chain: Chain, found: RestoreReport
) -> Generator[tuple[int, bytes, int, str], None, None]:
    for log in chain.files:
        # Frames at both ends may not count: the snapshot has the first ones, the last ones were never acknowledged.
        at, end = bisect_right(log.ids, found.snapshot_last_id), bisect_right(log.ids, found.last_id)
        if at == end:
            continue
        with closing(files.open(log.path)) as file:
            for _, header, payload in read_frames(file, log.offsets[at], log.header.salt_number):
                if header.id == log.ids[at]:
                    yield header.id, payload, log.header.serde_version, log.path
                    at += 1
                    if at == end:
                        break
        if at < end:
            raise RepositoryDamaged(f"{log.path}: the frame at offset {log.offsets[at]} changed between two reads")
