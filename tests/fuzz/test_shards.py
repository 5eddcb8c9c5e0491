"""A shard of the index made of any bytes: it is refused, or searched within bounds; an answer is never made of it."""

import functools
import random
import struct
from contextlib import suppress

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, seed

from tests.fuzz.corpus import EXAMPLES, SEED, Edit, edited, edits
from tests.fuzz.test_parsers import fuzz
from tests.proof.figures import note
from ullage.engine.provenance.shard import MAGIC, Shard, ShardHeader, Span, write_shard
from ullage.engine.provenance.terms import ROW_BITS, Term
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.sorted_run import BLOCK_KEYS, RunDamaged
from ullage.testing.crashing import CrashFiles, Image

ROWS = 2 * BLOCK_KEYS
TERMS = [[Term("type", 1), Term("type", 2)], [Term("flow_file", 1 << 20)]]


@functools.cache
def shard() -> bytes:
    """One of two fields and some blocks."""
    chooser = random.Random(SEED)
    head = ShardHeader(repository="r", fields=("type",), attributes=("a",), span=Span(1, ROWS, ROWS, 1))
    types = pa.array([chooser.randint(1, 3) << ROW_BITS | row for row in range(ROWS)], pa.uint64())
    uuids = pa.array([chooser.randrange(1 << 32) << ROW_BITS | row for row in range(ROWS)], pa.uint64())
    files = CrashFiles()
    files.make_directory("/x")
    write_shard(files, "/x/1.terms", head, [("type", [types.sort()]), ("flow_file", [uuids.sort()])])
    return files.image().files["/x/1.terms"]


def search(data: bytes) -> None:
    """Whatever is found lies within what was asked for."""
    files = CrashFiles(Image({"/x/1.terms": data}, frozenset({"/x"})))
    found = Shard.open(files, "/x/1.terms", BlockCache(1 << 20))
    if found is None:
        return
    for conditions in (TERMS, TERMS[:1], TERMS[1:]):
        with suppress(RunDamaged):  # refusing is right; what counts is what is found before
            for row in found.search(conditions, 3, ROWS // 2, newest_first=len(conditions) == 1):
                assert 3 <= row <= ROWS // 2


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_hostile_shard_is_refused_or_searched_within_bounds(*, is_sealed: bool) -> None:
    """With its checksums as they come, and with a forged head under a valid one."""
    print(f"seed {SEED}")
    data = shard()
    length = struct.unpack("<I", data[-16:-12])[0]
    keys, head = data[: -16 - length], data[-16 - length : -16]

    @seed(SEED)
    @fuzz
    @given(edits())
    def run(changes: list[Edit]) -> None:
        if is_sealed:
            body = edited(head, changes)
            search(keys + body + struct.pack("<II8s", len(body), crc32c(body), MAGIC))
        else:
            search(edited(data, changes))

    search(data)
    run()
    note(examples=EXAMPLES)
