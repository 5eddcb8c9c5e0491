"""A run made of any bytes: it is refused, or searched within bounds; a salvage reads no more of it than there is."""

import functools
import random
import struct
from contextlib import suppress

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, seed, strategies as st

from tests.fuzz.corpus import EXAMPLES, SEED, Edit, edited, edits
from tests.fuzz.test_parsers import fuzz
from tests.proof.figures import note
from ullage.engine.files import File
from ullage.engine.runs.rows import (
    RUN_MAGIC,
    BlockDamaged,
    LostRows,
    RowRun,
    RowsHead,
    RunRow,
    salvaged_rows,
    write_rows,
)
from ullage.engine.runs.sorted_run import packed_head
from ullage.testing.crashing import CrashFiles, Image

PATH = "/x/1.run"
HEAD = RowsHead(format=1, serde="s", serde_version=1, repository="r", number=1, space="a")
BLOCK_HEAD = 16


@functools.cache
def run_bytes() -> bytes:
    """One of some blocks."""
    chooser = random.Random(SEED)
    keys = sorted((chooser.getrandbits(64), chooser.getrandbits(64)) for _ in range(90))
    files = CrashFiles()
    files.make_directory("/x")
    write_rows(files.create(PATH), HEAD, (RunRow(key, chooser.randbytes(chooser.randrange(250))) for key in keys))
    return files.image().files[PATH]


def opened(data: bytes) -> File:
    return CrashFiles(Image({PATH: data}, frozenset({"/x"}))).open(PATH)


def read(data: bytes) -> None:
    """Every block and some keys; whatever is found lies in the file."""
    with suppress(BlockDamaged):  # refusing is right; what counts is what is read before
        run = RowRun.open(PATH, opened(data))
        for key in ((0, 0), (1 << 63, 5), ((1 << 64) - 1, (1 << 64) - 1)):
            block = run.block_of(key)
            assert block is None or block < len(run)
        for number in range(len(run)):
            with suppress(BlockDamaged):  # the same
                for row in run.block(number):
                    assert len(row.value) <= len(data)
                    run.block(number).find(row.key)


def salvaged(data: bytes) -> None:
    """All of it is told once, as rows or as lost."""
    parts = list(salvaged_rows(opened(data), "r", "a", 1))
    lost = [part for part in parts if isinstance(part, LostRows)]
    assert all(part.length > 0 and part.offset + part.length <= len(data) for part in lost)
    assert sum(len(part) for part in parts if not isinstance(part, LostRows)) <= 90 or lost


def sealed_head(data: bytes, changes: list[Edit]) -> bytes:
    """With another head, under checksums that are right."""
    length = struct.unpack("<I", data[-16:-12])[0]
    body = edited(data[-16 - length : -16], changes)
    return data[: -16 - length] + body + struct.pack("<II8s", len(body), crc32c(body), RUN_MAGIC)


def sealed_block(data: bytes, changes: list[Edit]) -> bytes:
    """With another first block of the same length, under checksums that are right."""
    length = struct.unpack_from("<4sIII", data)[2]
    columns = (edited(data[BLOCK_HEAD : BLOCK_HEAD + length], changes) + bytes(length))[:length]
    begin = data[: BLOCK_HEAD - 4]
    covered = b"ra" + struct.pack("<QQ", 1, 0) + begin + columns
    return begin + struct.pack("<I", crc32c(covered)) + columns + data[BLOCK_HEAD + length :]


def test_columns_of_a_head_that_do_not_fit_are_refused() -> None:
    """Each that its decoder takes: of any length and content, and of those of a whole run cut or moved."""
    print(f"seed {SEED}")
    data = run_bytes()
    whole = RowRun.open(PATH, opened(data)).head
    blocks = data[: memoryview(whole.ends).cast("Q")[-1]]
    columns = {name: getattr(whole, name) for name in ("counts", "fences", "ends", "filter")}

    @seed(SEED)
    @fuzz
    @given(st.sampled_from(sorted(columns)), st.binary(max_size=64), st.integers(0, 9))
    def run(name: str, other: bytes, cut: int) -> None:
        for column in (other, columns[name][8 * cut :], columns[name][cut:] + other[:cut]):
            read(blocks + packed_head(msgspec.structs.replace(whole, **{name: column}), RUN_MAGIC))

    run()
    note(examples=EXAMPLES)


@pytest.mark.parametrize("how", ["as it comes", "head", "block"])
def test_a_hostile_run_is_refused_or_read_within_bounds(how: str) -> None:
    """With its checksums as they come, and with a forged head or block under valid ones."""
    print(f"seed {SEED}")
    data = run_bytes()
    change = {"as it comes": edited, "head": sealed_head, "block": sealed_block}[how]

    @seed(SEED)
    @fuzz
    @given(edits())
    def run(changes: list[Edit]) -> None:
        made = change(data, changes)
        read(made)
        salvaged(made)

    read(change(data, []))
    assert [len(RowRun.open(PATH, opened(change(data, []))))] == [len(RowRun.open(PATH, opened(data)))]
    run()
    note(examples=EXAMPLES)
