"""What handles of a run claim, as rows of a run beside it: what goes in comes out, by resource claim."""

import random

import pytest

from ullage.engine.ledger import claimrows
from ullage.engine.ledger.claimrows import (
    GROUP_CLAIMS,
    LAST_KEY,
    RESOURCE_BITS,
    ClaimedRow,
    ClaimRowsWriter,
    claims_of,
    segments_of,
    total_of,
)
from ullage.engine.packs import ClaimRow
from ullage.engine.runs.rows import RunRow

WIDE = 1 << 40


def written(claims: list[ClaimRow | None]) -> list[RunRow]:
    made: list[RunRow] = []
    writer = ClaimRowsWriter(made.append)
    for claim in claims:
        writer.take(claim)
    writer.finish()
    return made


def some(seed: int, count: int) -> list[ClaimRow | None]:
    """Claims of few files and of many, some of one offset, some beyond 4 GiB, some of none."""
    chance = random.Random(seed)
    found: list[ClaimRow | None] = []
    for _ in range(count):
        resource = chance.choice([1, 2, chance.randrange(3, 500), (1 << RESOURCE_BITS) - 1])
        offset = chance.choice([0, 16 * chance.randrange(2_000), WIDE + chance.randrange(9)])
        length = chance.choice([1, 16, WIDE]) if resource == 2 else 16
        found.append(chance.choice([None, *[(resource, offset, length, chance.getrandbits(32))] * 9]))
    return found


@pytest.mark.parametrize("segment_rows", [1 << 20, 64, 1])
def test_what_goes_in_comes_out(monkeypatch: pytest.MonkeyPatch, segment_rows: int) -> None:
    """Each claim with its row, in the order of segments, resource claims and offsets, and no key twice."""
    monkeypatch.setattr(claimrows, "SEGMENT_ROWS", segment_rows)
    for seed, count in enumerate([0, 1, 63, 64, 65, 1_000]):
        claims = some(seed, count)
        *rows, last = written(claims)
        found = [each for row in rows for each in claims_of(row)]
        wanted = [ClaimedRow(row, claim) for row, claim in enumerate(claims) if claim is not None]
        assert sorted(found) == wanted
        places = [(each.row // segment_rows, each.claim[:2]) for each in found]
        assert places == sorted(places)
        keys = [row.key for row in rows]
        assert keys == sorted(set(keys))
        assert {high >> RESOURCE_BITS for high, _ in keys} <= set(segments_of(count))
        assert (last.key, total_of(last)) == (LAST_KEY, len(wanted))


def test_claims_of_one_offset_stand_in_one_row() -> None:
    """However many there are: the next row has another key."""
    shared: list[ClaimRow | None] = [(1, 16 * (row // 1_000), 16, 7) for row in range(3_000)]
    *rows, _ = written(shared)
    assert [len(claims_of(row)) for row in rows] == [1_000] * 3
    *rows, _ = written([(1, 16 * row, 16, 7) for row in range(3 * GROUP_CLAIMS)])
    assert [len(claims_of(row)) for row in rows] == [GROUP_CLAIMS] * 3


@pytest.mark.parametrize(
    "value",
    [
        *[b"", b"\0\0\0", b"\0\0\0\0", b"\1\0\0\0" + bytes(15), b"\1\0\0\0" + bytes(20), b"\2\0\0\0" + bytes(16)],
        b"\1\0\0\0\7" + bytes(15),
        b"\2\0\0\0" + bytes(4) + b"\1" + bytes(27) + b"\0",
    ],
)
def test_a_value_that_is_none_is_refused(value: bytes) -> None:
    """One of another length, one without claims, one whose first offset is not its key's."""
    with pytest.raises(ValueError, match=r"count|claims|offsets"):
        claims_of(RunRow((1, 0), value))
    with pytest.raises(ValueError, match="how many"):
        total_of(RunRow(LAST_KEY, value))


def test_offsets_out_of_order_are_refused() -> None:
    """A search among them would miss some."""
    (row, _) = written([(1, 0, 16, 7), (1, 16, 16, 8)])
    swapped = row.value[:8] + bytes([0, 0, 0, 0]) + row.value[12:]
    assert claims_of(RunRow(row.key, swapped))[1].claim[1] == 0
    with pytest.raises(ValueError, match="order"):
        claims_of(RunRow((1, 16), row.value[:4] + row.value[8:12] + row.value[4:8] + row.value[12:]))
