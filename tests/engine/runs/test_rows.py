"""A run of rows: it gives back what was written, or says which block cannot be read; each block proves itself."""

import random
from unittest import mock

import msgspec
import pytest

from ullage.engine.files import File
from ullage.engine.runs.rows import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_WANTED,
    BlockDamaged,
    LostRows,
    RowRun,
    RowsHead,
    RunRow,
    key_of,
    packed_key,
    salvaged_rows,
    write_rows,
)
from ullage.testing.crashing import CrashFiles, Image

PATH = "/x/run"
HEAD = RowsHead(format=1, serde="s", serde_version=1, repository="r", number=7, space="a")


def rows_of(chooser: random.Random, count: int) -> list[RunRow]:
    keys = sorted({(chooser.getrandbits(64), chooser.getrandbits(64)) for _ in range(count)})
    return [RunRow(key, chooser.randbytes(chooser.choice((0, 1, 90, 300)))) for key in keys]


def written(rows: list[RunRow], head: RowsHead = HEAD) -> bytes:
    files = CrashFiles()
    files.make_directory("/x")
    with_rows = files.create(PATH)
    said = write_rows(with_rows, head, rows)
    data = files.image().files[PATH]
    assert said.rows == len(rows)
    assert said.length == len(data)
    assert (said.first, said.last) == (packed_key(rows[0].key), packed_key(rows[-1].key))
    return data


def opened(data: bytes) -> RowRun:
    return RowRun.open(PATH, a_file(data))


def a_file(data: bytes) -> File:
    return CrashFiles(Image({PATH: data}, frozenset({"/x"}))).open(PATH)


def found(run: RowRun, row: RunRow) -> bytes | None:
    block = run.block_of(row.key)
    return None if block is None else run.block(block).find(row.key)


@pytest.mark.parametrize("count", [1, 2, 3_000])
def test_a_run_gives_back_each_row_and_no_other(seed: int, count: int) -> None:
    """Small and large values, in one block and in many; a key that is not there costs a read in few cases."""
    chooser = random.Random(seed)
    rows = rows_of(chooser, count)

    run = opened(written(rows))

    assert [row for number in range(len(run)) for row in run.block(number)] == rows
    packed = b"".join(run.block(number).packed_keys for number in range(len(run)))
    assert packed == b"".join(packed_key(row.key) for row in rows)
    assert all(found(run, row) == row.value for row in rows)
    others = [RunRow((chooser.getrandbits(64), chooser.getrandbits(64)), b"") for _ in range(2_000)]
    assert all(found(run, row) is None for row in others)
    assert sum(run.block_of(row.key) is not None for row in others) < 20
    assert len(run) <= 1 + sum(36 + len(row.value) for row in rows) // BLOCK_BYTES_WANTED
    assert run.rows == count


def test_words_are_compared_as_numbers() -> None:
    """The high one first; keys that differ in the low one alone stand in the order of that, over blocks too."""
    rows = [RunRow((high, low), b"x" * 900) for high in (0, 1, (1 << 64) - 1) for low in (0, 5, 1 << 63, (1 << 64) - 1)]

    run = opened(written(rows))

    assert len(run) > 1
    assert all(found(run, row) == row.value for row in rows)
    assert found(run, RunRow((1, 4), b"")) is None
    assert [packed_key(row.key) for row in rows] == sorted(packed_key(row.key) for row in rows)
    assert all(key_of(packed_key(row.key)) == row.key for row in rows)


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_block_is_named_and_no_other_is_harmed(seed: int, damaged: int) -> None:
    """A flipped bit anywhere in it, its own head included."""
    chooser = random.Random(seed)
    rows = rows_of(chooser, 500)
    data = written(rows)
    whole = opened(data)
    ends = [0, *memoryview(whole.head.ends).cast("Q")]
    at = chooser.randrange(ends[damaged], ends[damaged + 1])

    run = opened(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])

    for number in range(len(run)):
        if number == damaged:
            with pytest.raises(BlockDamaged, match=f"block {damaged} at offset {ends[damaged]}") as raised:
                run.block(number)
            assert raised.value.block == damaged
        else:
            assert list(run.block(number)) == list(whole.block(number))


@pytest.mark.parametrize("other", [{"repository": "other"}, {"number": 8}])
def test_a_block_counts_at_its_own_place_only(seed: int, other: dict[str, object]) -> None:
    """One of another run or repository is damage, whole as it is."""
    rows = rows_of(random.Random(seed), 400)
    data, strange = written(rows), written(rows, msgspec.structs.replace(HEAD, **other))
    end = memoryview(opened(strange).head.ends).cast("Q")[-1]

    run = opened(strange[:end] + data[end:])

    for number in range(len(run)):
        with pytest.raises(BlockDamaged, match=f"block {number} "):
            run.block(number)
    assert list(salvaged_rows(a_file(strange), "r", "a", 7)) == [LostRows(0, end, "no rows can be read here")]


def test_a_block_that_lies_where_another_one_was_is_damage() -> None:
    """As long as that one, of the same run, and whole."""
    data = written([RunRow((high, 0), bytes(2_000)) for high in range(9)])
    first, second, third = memoryview(opened(data).head.ends).cast("Q")
    assert second - first == third - second == first

    run = opened(data[:first] + data[second:third] + data[first:second] + data[third:])

    assert len(list(run.block(0))) == 3
    for number in (1, 2):
        with pytest.raises(BlockDamaged, match=f"block {number} "):
            run.block(number)
    assert [type(part) for part in salvaged_rows(a_file(data[:first] + data[second:]), "r", "a", 7)][1:] == [LostRows]


def test_every_cut_and_every_flip_of_a_head_is_refused(seed: int) -> None:
    """Nothing is believed of a head that does not verify."""
    data = written(rows_of(random.Random(seed), 60))
    end = memoryview(opened(data).head.ends).cast("Q")[-1]

    for at in range(end, len(data)):
        with pytest.raises(BlockDamaged):
            opened(data[:at])
        with pytest.raises(BlockDamaged) as raised:
            opened(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        assert raised.value.block is None


def test_a_salvage_finds_every_block_that_proves_itself(seed: int) -> None:
    """Behind damage, and without the head; what lies between is told as lost."""
    chooser = random.Random(seed)
    rows = rows_of(chooser, 500)
    data = bytearray(written(rows))
    run = opened(bytes(data))
    ends = [0, *memoryview(run.head.ends).cast("Q")]
    blocks = [list(run.block(number)) for number in range(len(run))]
    data[ends[2] + 5] ^= 1
    del data[-7:]

    parts = list(salvaged_rows(a_file(bytes(data)), "r", "a", 7))

    lost = [part for part in parts if isinstance(part, LostRows)]
    assert [(part.offset, part.length) for part in lost] == [
        (ends[2], ends[3] - ends[2]),
        (ends[-1], len(data) - ends[-1]),
    ]
    assert [list(part.rows) for part in parts if not isinstance(part, LostRows)] == [*blocks[:2], *blocks[3:]]
    assert [
        list(part.rows) for part in salvaged_rows(a_file(written(rows)), "r", "a", 7) if not isinstance(part, LostRows)
    ] == blocks


def test_a_length_that_is_damaged_allocates_nothing() -> None:
    """A salvage reads no further than a block may reach, and than the file does."""
    data = b"ULLb" + (1).to_bytes(4, "little") + (0xFFFF_FFFF).to_bytes(4, "little") + bytes(40)
    file = a_file(data)

    with mock.patch.object(file, "read", wraps=file.read) as read:
        assert [type(part) for part in salvaged_rows(file, "r", "a", 7)] == [LostRows]

    assert max(call.args[0] for call in read.call_args_list) < BLOCK_BYTES_MAX
