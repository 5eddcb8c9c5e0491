"""Contents that are put in the place of Arrow's buffer: the stream is byte for byte the one that Arrow makes."""

import random
from typing import Final

import pyarrow as pa
import pytest

from ullage.embedded.outgoing import OutgoingBatch, absent
from ullage.wire.schemas import GET_SCHEMA
from ullage_agent.service.flight.ipc import packed_stream

MIB: Final = 1 << 20
SIZES: Final = (None, 0, 1, 7, 8, 9, 63, 64, 65, 127, 1_000, 70_000)
"""Around the eight bytes to which Arrow pads what it writes, and the 64 to which it aligns what it has."""

CASES: Final = [
    [],
    *([size] for size in SIZES),
    [None] * 100,
    [0] * 10_000,
    [1] * 10_000,
    [*[None] * 9, 1],
    [MIB],
    [MIB - 1, 1, MIB],
]


def streams(sizes: list[int | None], chance: random.Random) -> tuple[bytes, bytes]:
    """What goes out, and what Arrow alone would send."""
    contents = [None if size is None else chance.randbytes(size) for size in sizes]
    given = [each if each is None or chance.random() < 0.7 else memoryview(each) for each in contents]
    others = [pa.array(range(len(sizes)), GET_SCHEMA.field(number).type) for number in (0, 1)]
    problems = pa.array([None if content else "gone" for content in contents], pa.string())
    ours = pa.RecordBatch.from_arrays([*others, absent(given, pa.binary()), problems], schema=GET_SCHEMA)
    plain = pa.RecordBatch.from_arrays([*others, pa.array(contents, pa.binary()), problems], schema=GET_SCHEMA)
    sent = packed_stream(GET_SCHEMA, [OutgoingBatch(ours, [each for each in given if each])])
    return b"".join(sent), b"".join(packed_stream(GET_SCHEMA, [OutgoingBatch(plain)]))


@pytest.mark.parametrize("sizes", CASES, ids=lambda sizes: f"{len(sizes)}-{sum(each or 0 for each in sizes)}")
def test_a_batch_goes_out_as_arrow_has_it(sizes: list[int | None]) -> None:
    """Without contents, with many empty ones, at the edges of padding, and as large as batches become."""
    ours, plain = streams(sizes, random.Random(1))
    assert ours == plain


def test_any_mixture_does(seed: int) -> None:
    """The seed draws it."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        ours, plain = streams([chance.choice(SIZES) for _ in range(chance.randrange(1, 60))], chance)
        assert ours == plain
