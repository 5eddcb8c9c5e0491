"""What a snapshot has in packs a start takes in at once: it comes to the same as handle by handle."""

import random

import msgspec
import pytest

from tests.engine.ledger.test_resident_records import create, handle, no_swap, packed_count
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.packed import BITS_MAX, GROWTH_BITS, ROWS_MAX, PackedHandles
from ullage.engine.model import FlowFileRecord, HandlePack, Operation, ResourceClaim
from ullage.engine.packs import NO_HANDLES, records_of, rows_of, with_more
from ullage.errors import RepositoryDamaged

CLAIMS = 3
"""Handles of one content, here and there."""


def written(count: int, seed: int = 1) -> tuple[list[FlowFileRecord], list[Operation]]:
    """Handles, and what a snapshot has of them: packs, and some that are too young."""
    choose = random.Random(seed)
    ledger = Ledger(no_swap)
    ledger.records.end_start()
    resources: list[Operation] = [ResourceClaim(1 + number, "c1", 1) for number in range(1 + count // 1_000)]
    records = [
        handle(choose, number - number % CLAIMS * (number % 50 == 7), expires_millis=int(number % 100 == 7))
        for number in range(count)
    ]
    claims = {record.claim.offset + (record.claim.resource << 32): record.claim for record in records if record.claim}
    records = [  # one claim has one checksum
        msgspec.structs.replace(record, claim=claims[record.claim.offset + (record.claim.resource << 32)])
        for record in records
        if record.claim
    ]
    ledger.apply(1, 1, [*resources, *records[20:]])
    ledger.records.pack(0)
    ledger.apply(2, 2, records[:20])
    view = ledger.freeze()
    blocks = list(view)
    ledger.release()
    return records, [operation for block in blocks for operation in block]


def totals(ledger: Ledger) -> list[tuple[int, ...]]:
    """Of every resource claim."""
    return [
        (each.claim.index, each.claimants, each.live_bytes, each.resident_bound, each.residents().end)
        for each in ledger.entries()
    ]


@pytest.mark.parametrize("count", [30, 3_000, 3 * ROWS_MAX * 9])
def test_packs_come_back_as_they_were(count: int) -> None:
    """Records, what is in use and how often, ends, places: all as if each had been taken in by itself."""
    records, operations = written(count)
    packs = [each for each in operations if isinstance(each, HandlePack)]
    assert sum(pack.size for pack in packs) == count - 20
    whole, each = Ledger(no_swap), Ledger(no_swap)
    for at in range(0, len(operations), 20):
        whole.load(operations[at : at + 20])
        assert at < len(operations) // 2 or list(whole.entries())  # somebody looks: what follows counts all the same
    each.load([one for op in operations for one in (records_of(op) if isinstance(op, HandlePack) else [op])])

    assert {record.uuid: record for record in whole.flow_files()} == {record.uuid: record for record in records}
    assert packed_count(whole.records) == count - 20
    assert totals(whole) == totals(each)
    assert count < 1_000 or len({record.claim for record in records}) < count
    assert all(whole.find(record.uuid) == record for record in records)
    restored = {record.uuid for record in whole.records.restored()}
    assert restored == {record.uuid for record in records[:20]} | {each.uuid for each in records if each.expires_millis}
    assert whole.records.queued_max == max(record.queued for record in records[20:])
    with whole.lock:
        assert list(whole.records.problems()) == []
    view = whole.freeze()
    assert sorted(map(msgspec.msgpack.encode, (op for block in view for op in block))) == sorted(
        map(msgspec.msgpack.encode, operations)
    )


def test_packs_that_do_not_lie_where_they_say_come_back_all_the_same() -> None:
    """Of uuids that belong elsewhere, of another division, or one too fine: they are taken in handle by handle."""
    choose = random.Random(3)
    anywhere = [handle(choose, number) for number in range(50)]
    here = [handle(choose, number, shard=9) for number in range(50, 90)]
    finer = [each for each in here if not each.uuid[1] >> 5]
    fine = [handle(choose, number, shard=8) for number in range(90, 100)]
    wide = [handle(choose, number, shard=10) for number in range(100, 120)]
    packs = [
        with_more(NO_HANDLES, anywhere),
        with_more(msgspec.structs.replace(NO_HANDLES, bits=GROWTH_BITS), finer),
        with_more(NO_HANDLES, [each for each in here if each not in finer]),
        with_more(msgspec.structs.replace(NO_HANDLES, bits=GROWTH_BITS), wide),
        with_more(msgspec.structs.replace(NO_HANDLES, bits=BITS_MAX + 1), fine[:5]),
        with_more(msgspec.structs.replace(NO_HANDLES, bits=(1 << 63) - 1), fine[5:]),
    ]
    ledger = Ledger(no_swap)
    ledger.load([ResourceClaim(1, "c1", 1), *packs])

    expected = {record.uuid: record for record in (*anywhere, *here, *fine, *wide)}
    assert {record.uuid: record for record in ledger.flow_files()} == expected
    assert totals(ledger)[0][1] == len(expected)
    with ledger.lock:
        assert list(ledger.records.problems()) == []


@pytest.mark.parametrize("where", ["in the same pack", "in a pack", "as an object", "as an object behind it"])
def test_no_handle_is_there_twice(where: str) -> None:
    """As for handles that come one by one."""
    choose = random.Random(4)
    records = [handle(choose, number, shard=9) for number in range(10)]
    pack = with_more(NO_HANDLES, records)
    again = with_more(NO_HANDLES, [records[3]])
    order: list[Operation] = {
        "in the same pack": [with_more(pack, [records[3]])],
        "in a pack": [pack, again],
        "as an object": [records[3], pack],
        "as an object behind it": [pack, records[3]],
    }[where]  # type: ignore[assignment]

    with pytest.raises(RepositoryDamaged, match="is created twice"):
        Ledger(no_swap).load([ResourceClaim(1, "c1", 1), *order])


def test_a_pack_of_contents_of_nowhere_is_refused() -> None:
    """As a handle is whose resource claim nobody knows."""
    pack = with_more(NO_HANDLES, [handle(random.Random(5), number, shard=9) for number in range(10)])

    with pytest.raises(RepositoryDamaged, match="names resource claim 1"):
        Ledger(no_swap).load([pack])


def test_no_transaction_brings_a_pack() -> None:
    """Only a snapshot does: what is logged is counted record by record."""
    pack = with_more(NO_HANDLES, [handle(random.Random(5), number, shard=9) for number in range(10)])

    with pytest.raises(RepositoryDamaged, match="transaction 7 brings handles in a pack"):
        Ledger(no_swap).apply(7, 7, [ResourceClaim(1, "c1", 1), pack])


def test_a_start_joins_packs_of_which_little_is_left() -> None:
    """Many handles were removed: what is left takes no more than if it had never been many."""
    choose = random.Random(6)
    packed = PackedHandles()
    records = [handle(choose, number, shard=7) for number in range(ROWS_MAX * 9)]
    packed.add(records)
    assert len(packed) == 1 << 2 * GROWTH_BITS
    for record in records[10:]:
        packed.remove(record.uuid)

    packed.join_small()

    assert len(packed) == 1
    assert all(packed.find(record.uuid) == record for record in records[:10])
    assert sorted(rows_of(packed.packs[0]).uuids) == sorted(record.uuid for record in records[:10])
    packed.add(records[10:])
    assert all(packed.find(record.uuid) == record for record in records)


def test_objects_and_packs_of_one_shard_are_both_there() -> None:
    """A start takes in first those that were not packed."""
    choose = random.Random(7)
    young, old = (handle(choose, number, shard=3) for number in range(2))
    ledger = Ledger(no_swap)
    create(ledger.records, young)
    ledger.load([ResourceClaim(1, "c1", 1), with_more(NO_HANDLES, [old])])

    assert [ledger.find(record.uuid) for record in (young, old)] == [young, old]
    assert packed_count(ledger.records) == 1
