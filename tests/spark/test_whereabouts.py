"""How the contents of a group are found and read: with few calls, each claim once, in bounded memory."""

import itertools
import random
import tracemalloc

import pyarrow as pa
import pytest

from tests.spark.fleet import Fleet
from tests.spark.test_content import asked_for, with_uuid
from ullage.client.descriptors import SMALL_BYTES, WINDOW_BYTES
from ullage.wire.frames import BLOCK_BYTES
from ullage_spark.opener import ContentUse, pickled
from ullage_spark.whereabouts import ADDRESS, Whereabouts


def test_small_claims_are_read_with_few_calls_of_bounded_size(seed: int) -> None:
    """In any order, several times, with others between them: each is found where it lies, and read once."""
    chance = random.Random(seed)
    places = []
    lengths = [1, 1_000, 5_000] * 50 + [SMALL_BYTES, SMALL_BYTES + 1, BLOCK_BYTES, BLOCK_BYTES + 1]
    for resource in range(3):
        offset = 0
        for _ in range(500):
            places.append((resource, offset, (length := chance.choice(lengths))))
            offset += length
    chosen = chance.choices(places, k=3_000)
    columns = [[*column, -1] for column in zip(*((*each, 7, 0, each[2]) for each in chosen), strict=True)]
    where = Whereabouts.of(pa.record_batch(list(map(pa.array, columns)), names=list(ADDRESS)))

    runs, apart, rows, numbers = where.nearest()

    found = [
        (run.resource, run.offset + begin, end - begin)
        for run in runs
        for begin, end in zip(run.begins, run.ends, strict=True)
    ]
    found += [claim[:3] for claim in apart]
    small = [at for at, (_, _, length) in enumerate(chosen) if length <= BLOCK_BYTES]
    assert (sorted(rows.tolist()), where.others(rows)) == (small, sorted({*range(3_001)} - {*small}))
    assert numbers is not None
    assert [found[number] for number in numbers] == [chosen[row] for row in rows.tolist()]
    assert len(set(found)) == len(found)
    assert [claim[:3] for claim in apart] == sorted({each for each in chosen if SMALL_BYTES < each[2] <= BLOCK_BYTES})
    assert all(run.span == max(run.ends) <= WINDOW_BYTES + 2 * SMALL_BYTES for run in runs)
    bounds = [(run.resource, run.offset, run.offset + run.span) for run in runs]
    assert all(after[0] > before[0] or after[1] >= before[2] for before, after in itertools.pairwise(bounds))
    wanted = sum(length for _, _, length in set(chosen) if length <= SMALL_BYTES)
    assert sum(run.span for run in runs) < 2 * wanted
    assert len(runs) < len(found) / 20
    assert not len(where.part(3_000, 1).nearest().rows)
    large = [at for at, (_, _, length) in enumerate(chosen) if length > BLOCK_BYTES]
    firsts = [next(at for at in small if chosen[at][0] == resource) for resource in range(3)]
    assert where.asked_rows() == sorted([*firsts, *large])
    assert (where.part(3_000, 1).asked_rows(), where.part(0, 0).asked_rows()) == ([], [])


def test_rows_that_say_different_checksums_of_one_place_are_each_verified(fleet: Fleet) -> None:
    """One is never given what was read and verified for another."""
    with fleet.repository("a").session() as session:
        session.ingest("in", [b"verified"])
        session.commit()
    opener_of, rows = asked_for(fleet)
    lying = rows.set_column(rows.schema.names.index("claim_crc32c"), "claim_crc32c", pa.array([7], pa.int64()))
    both = pa.Table.from_batches([rows, lying, rows]).combine_chunks().to_batches()[0]

    (made,) = opener_of(ContentUse(pickled(with_uuid), tells_problems=True)).run(iter([both]))

    assert made.column("content").to_pylist() == [b"verified", b"content-corrupt", b"verified"]


@pytest.mark.parametrize(("wholes", "taken"), [(1, 2_000), (40, 1)], ids=["all of one", "one of many"])
def test_a_part_of_a_claim_takes_no_more_memory_than_it_has_bytes(
    fleet: Fleet, seed: int, wholes: int, taken: int
) -> None:
    """Files of many records that were split: each record is verified with all of its file, and does not keep it."""
    expected: dict[str, bytes] = {}
    with fleet.repository("a").session() as session:
        for number in range(wholes):
            whole = random.Random(seed + number).randbytes(200_000)
            parent = session.write(session.create(), whole)
            parts = session.split(parent, [100] * 2_000)
            session.remove_many([parent, *parts[taken:]])
            session.transfer_many(parts[:taken], "in")
            expected |= {part.id: whole[100 * at : 100 * (at + 1)] for at, part in enumerate(parts[:taken])}
        session.commit()
    opener_of, rows = asked_for(fleet)
    opener = opener_of(ContentUse(pickled(with_uuid), group_bytes=1_000_000))

    tracemalloc.start()
    try:
        (made,) = opener.run(iter([rows]))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    found = dict(zip(made.column("uuid").to_pylist(), made.column("content").to_pylist(), strict=True))
    assert found == expected
    assert most < 20 * 200_000
