"""What is read of damaged log, snapshot and swap files: all that is proved, nothing else, and the rest is named."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from ullage.engine.files import OsFiles
from ullage.engine.model import Delete, Operation
from ullage.engine.wal.format import (
    CLOSE,
    FILE_MAGIC,
    FRAME_HEADER_BYTES,
    TRANSACTION,
    FrameHeader,
    LogHeader,
    pack_file_header,
    pack_frame_header,
    salt_number,
    salt_of,
)
from ullage.engine.wal.lenient import FoundFrame, FoundLog, chain, payloads, read_blocks, read_log
from ullage.engine.wal.records import RecordHeader, RecordReader, header_copy, write_records
from ullage.engine.wal.serde import SerDe
from ullage.errors import RepositoryDamaged

KEY = b"k" * 16
MAGIC = b"ULLAGESN"
NAME = "partition-0/00000000000000000001.wal"
SALT = salt_of(KEY, NAME)


def write_log(root: Path, payloads: list[bytes]) -> tuple[Path, list[int]]:
    """A log file with a frame for each payload; its path and where each frame begins."""
    header = LogHeader(
        format=1,
        serde="ullage-msgpack",
        serde_version=2,
        repository="r",
        partition=0,
        sequence=1,
        previous_last_id=0,
        salt=SALT,
    )
    data = pack_file_header(FILE_MAGIC, msgspec.msgpack.encode(header))
    offsets = []
    for id, payload in enumerate(payloads, 1):
        offsets.append(len(data))
        mark = salt_number(SALT) ^ len(data)
        data += pack_frame_header(TRANSACTION, id, id - 1, len(data), payload, mark) + payload
    path = root / NAME
    path.parent.mkdir()
    path.write_bytes(data + bytes(4096))
    return path, offsets


def spoil(path: Path, offset: int) -> None:
    """One flipped bit."""
    found = bytearray(path.read_bytes())
    found[offset] ^= 1
    path.write_bytes(found)


def ids(log: FoundLog) -> list[int]:
    return [frame.header.id for frame in log.frames]


def test_a_whole_log_is_read_whole(tmp_path: Path) -> None:
    """Preallocated zeros behind the last frame are not lost."""
    path, _ = write_log(tmp_path, [b"one", b"two"])
    log = read_log(OsFiles(), str(path), None)
    assert (ids(log), log.lost, log.durable) == ([1, 2], [], 1)


@pytest.mark.parametrize("at", [0, 5, 20, 39])
def test_frames_behind_a_damaged_frame_header_are_found(tmp_path: Path, at: int) -> None:
    """The search for the next frame leads past the damage."""
    path, offsets = write_log(tmp_path, [b"one", b"two", b"three"])
    spoil(path, offsets[1] + at)
    log = read_log(OsFiles(), str(path), None)
    assert ids(log) == [1, 3]
    assert [(lost.offset, lost.length) for lost in log.lost] == [(offsets[1], offsets[2] - offsets[1])]


def test_a_damaged_payload_is_named_by_its_transaction(tmp_path: Path) -> None:
    """Its header proves which transaction it was, and how long."""
    path, offsets = write_log(tmp_path, [b"one", b"two", b"three"])
    spoil(path, offsets[1] + FRAME_HEADER_BYTES)
    log = read_log(OsFiles(), str(path), None)
    assert (ids(log), [lost.id for lost in log.lost]) == ([1, 3], [2])


def test_a_payload_that_ends_in_zeros_at_the_end_of_the_file_is_read(tmp_path: Path) -> None:
    """The last byte that is not zero may lie inside a frame."""
    path, _ = write_log(tmp_path, [b"one", b"two" + bytes(100)])
    log = read_log(OsFiles(), str(path), None)
    assert (ids(log), log.lost) == ([1, 2], [])


def test_a_frame_inside_a_damaged_one_is_none(tmp_path: Path) -> None:
    """A frame in an attribute has not the file's salt."""
    forged = pack_frame_header(TRANSACTION, 7, 7, 7, b"forged", 0) + b"forged"
    path, offsets = write_log(tmp_path, [forged, b"two"])
    spoil(path, offsets[0])
    assert ids(read_log(OsFiles(), str(path), None)) == [2]


def test_without_its_header_a_log_is_read_by_the_key_or_not_at_all(tmp_path: Path) -> None:
    """The salt follows from the snapshot's key and the name."""
    path, _ = write_log(tmp_path, [b"one", b"two"])
    spoil(path, 3)
    assert ids(read_log(OsFiles(), str(path), KEY)) == [1, 2]
    for key in (None, b"another key of 16"):
        log = read_log(OsFiles(), str(path), key)
        assert log.frames == []
        assert [lost.offset for lost in log.lost] == [0]


def write_blocks(path: Path, count: int) -> list[int]:
    """A record file of that many blocks; where each begins."""
    header = RecordHeader(format=1, serde="ullage-msgpack", serde_version=SerDe.version, repository="r")
    blocks: list[list[Operation]] = [[Delete(bytes([number]) * 16)] for number in range(count)]
    write_records(OsFiles(), str(path), MAGIC, header, blocks, SerDe())
    start = len(pack_file_header(MAGIC, msgspec.msgpack.encode(header)))
    size = 12 + len(SerDe().encode_block(blocks[0]))
    return [start + number * size for number in range(count)]


def test_blocks_behind_a_damaged_one_count_where_the_footer_proves_them(tmp_path: Path) -> None:
    """The footer's CRC over all heads proves where each block begins."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 4)
    spoil(path, offsets[1] + 14)
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert [offset for offset, _ in found.payloads] == [offsets[0], offsets[2], offsets[3]]
    assert [(lost.offset, lost.length) for lost in found.lost] == [(offsets[1], offsets[2] - offsets[1])]
    assert not found.is_whole


def test_without_a_footer_only_blocks_before_the_damage_count(tmp_path: Path) -> None:
    """Nothing proves where blocks behind the damage begin."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 4)
    spoil(path, offsets[1] + 14)
    copy = header_copy(path.read_bytes()[: offsets[0]])
    path.write_bytes(path.read_bytes()[: -len(copy) - 1])
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert [offset for offset, _ in found.payloads] == offsets[:1]
    assert [lost.offset for lost in found.lost] == offsets[1:2]


@pytest.mark.parametrize("offset", [0, 9, 13, 20], ids=["magic", "length", "checksum", "body"])
def test_a_damaged_header_is_read_from_the_files_end(tmp_path: Path, offset: int) -> None:
    """And all blocks with it; both damaged, nothing tells where they begin."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 4)
    whole = read_blocks(OsFiles(), str(path), MAGIC)
    assert (whole.lost, whole.is_whole) == ([], True)
    spoil(path, offset)
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert (found.body, found.payloads, found.is_whole) == (whole.body, whole.payloads, True)
    assert [(lost.offset, lost.length) for lost in found.lost] == [(0, offsets[0])]
    spoil(path, path.stat().st_size - 10)
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert (found.body, found.payloads, len(found.lost)) == (None, [], 1)


@pytest.mark.parametrize("ruin", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:-1] + b"!"])
def test_a_damaged_copy_of_a_header_costs_nothing(tmp_path: Path, ruin: Callable[[bytes], bytes]) -> None:
    """It is named, and a start refuses the file."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 4)
    path.write_bytes(ruin(path.read_bytes()))
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert [offset for offset, _ in found.payloads] == offsets
    assert found.is_whole
    assert ["copy" in lost.reason for lost in found.lost] == [True]
    reader = RecordReader(OsFiles(), str(path), MAGIC, RecordHeader, SerDe())
    with closing(reader), pytest.raises(RepositoryDamaged, match="copy of its header"):
        reader.verify()


def test_blocks_behind_a_damaged_head_are_not_believed(tmp_path: Path) -> None:
    """The chain of heads no longer leads to the footer."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 4)
    spoil(path, offsets[1] + 8)
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert [offset for offset, _ in found.payloads] == offsets[:1]


def test_a_file_that_is_cut_between_blocks_is_not_whole(tmp_path: Path) -> None:
    """No byte shows what is lost; the missing footer does."""
    path = tmp_path / "snapshot"
    offsets = write_blocks(path, 3)
    path.write_bytes(path.read_bytes()[: offsets[2]])
    found = read_blocks(OsFiles(), str(path), MAGIC)
    assert [offset for offset, _ in found.payloads] == offsets[:2]
    assert (len(found.lost), found.is_whole) == (1, False)


@pytest.mark.parametrize("seed", range(24))
def test_no_ruin_of_either_file_gives_what_was_never_written(tmp_path: Path, seed: int) -> None:
    """Cut, remove, repeat, zero or overwrite bytes anywhere: what is read was written."""
    print("seed", seed)
    rng = random.Random(seed)
    written_payloads = [rng.randbytes(rng.randrange(1, 300)) for _ in range(8)]
    log, _ = write_log(tmp_path, written_payloads)
    blocks = tmp_path / "snapshot"
    write_blocks(blocks, 6)
    written = {payload for _, payload in read_blocks(OsFiles(), str(blocks), MAGIC).payloads}
    for path in (log, blocks):
        data = path.read_bytes()
        at, size = rng.randrange(len(data)), rng.randrange(1, 200)
        source = rng.randrange(len(data))
        ruins = (
            data[:at],
            data[:at] + data[at + size :],
            data[:at] + data[source : source + size] + data[at:],
            data[:at] + bytes(size) + data[at + size :],
            data[:at] + rng.randbytes(size) + data[at + size :],
        )
        path.write_bytes(rng.choice(ruins))
    frames = read_log(OsFiles(), str(log), KEY).frames
    assert all(written_payloads[frame.header.id - 1] == payload for frame, payload in payloads(OsFiles(), frames))
    assert {payload for _, payload in read_blocks(OsFiles(), str(blocks), MAGIC).payloads} <= written


def log_of(
    *found: tuple[int, bytes], durable: int = 0, path: str = "a", sequence: int = 1, previous: int = 0
) -> FoundLog:
    header = LogHeader(
        format=1,
        serde="s",
        serde_version=2,
        repository="r",
        partition=0,
        sequence=sequence,
        previous_last_id=previous,
        salt=SALT,
    )
    frames = [FoundFrame(path, 0, FrameHeader(TRANSACTION, len(data), id, 0, 0, crc32c(data))) for id, data in found]
    return FoundLog(path, header, frames, durable=durable)


def judged(logs: list[FoundLog], last_id: int = 0) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    found = chain(logs, last_id)
    return [f.header.id for f in found.proved], [f.header.id for f in found.behind], found.gaps


def test_transactions_count_up_to_the_first_gap() -> None:
    """Behind it nobody can exclude that something was deleted."""
    logs = [log_of((3, b""), (5, b"")), log_of((4, b""), (8, b""), path="b", sequence=9)]
    assert judged(logs, 2) == ([3, 4, 5], [8], [(6, 7)])


def test_only_a_missing_transaction_that_was_synced_is_a_loss(tmp_path: Path) -> None:
    """No frame says that the last one was, nor one behind which another is not synced either; of others one does."""
    path, offsets = write_log(tmp_path, [b"one", b"two", b"three", b"four"])
    whole = path.read_bytes()
    for victim, gap, is_loss in ((3, (4, 4), False), (2, (3, 3), True), (0, (1, 1), True)):
        path.write_bytes(whole)
        spoil(path, offsets[victim] + FRAME_HEADER_BYTES)
        found = read_log(OsFiles(), str(path), None)
        assert (chain([found], 0).gaps, chain([found], 0).is_loss) == ([gap], is_loss)
        assert found.is_torn is not is_loss
    assert not chain([log_of((1, b"")), log_of((3, b""), durable=1, path="b", sequence=9)], 0).is_loss
    assert chain([log_of((1, b"")), log_of((3, b""), durable=2, path="b", sequence=9)], 0).is_loss


def test_a_lost_end_that_was_durable_is_a_gap() -> None:
    """`durable` says that transactions were there which are not found."""
    assert judged([log_of((1, b""), durable=4)]) == ([1], [], [(2, 4)])


def test_two_transactions_of_one_id_that_differ_are_none_and_copies_are_one() -> None:
    """Nobody knows which of them happened."""
    logs = [log_of((1, b"a"), (2, b"b"), (3, b"c")), log_of((1, b"a"), (2, b"x"), path="b", sequence=9)]
    assert judged(logs) == ([1], [3], [(2, 2)])


def test_frames_that_the_next_file_disowns_do_not_count() -> None:
    """Their write failed, and the id was given again."""
    logs = [log_of((1, b""), (2, b"failed")), log_of((2, b"again"), path="b", sequence=2, previous=1)]
    found = chain(logs, 0)
    assert [(frame.path, frame.header.id) for frame in found.proved] == [("a", 1), ("b", 2)]


def test_a_frame_that_is_another_one_at_the_second_read_is_refused(tmp_path: Path) -> None:
    """Payloads are read when they are wanted: a disk that fails meanwhile must not make up what they say."""
    path, offsets = write_log(tmp_path, [b"one", b"two"])
    frames = read_log(OsFiles(), str(path), None).frames
    assert [payload for _, payload in payloads(OsFiles(), frames)] == [b"one", b"two"]
    spoil(path, offsets[1] + FRAME_HEADER_BYTES)
    with pytest.raises(RepositoryDamaged, match=f"offset {offsets[1]} changed between two reads"):
        list(payloads(OsFiles(), frames))


def test_a_close_is_no_transaction() -> None:
    """It changes nothing."""
    closed = FoundLog("a", None, [FoundFrame("a", 0, FrameHeader(CLOSE, 0, 1, 0, 0, 0))])
    assert judged([closed]) == ([], [], [])


def test_a_close_says_how_far_the_whole_log_went(tmp_path: Path) -> None:
    """Its id is the last one of all partitions."""
    path, _ = write_log(tmp_path, [b"one"])
    data = path.read_bytes()[:-4096]
    path.write_bytes(data + pack_frame_header(CLOSE, 4, 1, 0, b"", salt_number(SALT) ^ len(data)))
    assert judged([read_log(OsFiles(), str(path), None)]) == ([1], [], [(2, 4)])
