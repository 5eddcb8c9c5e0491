"""Packs of handles: what is made of them says what their records said, however they are changed and divided."""

import random

import msgspec
import pytest

from tests.engine.ledger.test_resident_records import handle
from ullage.engine.model import UUID_BYTES, FlowFileRecord, HandlePack
from ullage.engine.packs import (
    NO_HANDLES,
    divided,
    encoded,
    ends_of,
    is_whole,
    joined,
    place_of,
    prefix_of,
    records_of,
    rows_of,
    with_more,
    without,
)
from ullage.engine.wal.state import UNUSABLE

BITS = 3


def some(seed: int, count: int, bulk: int = 0) -> list[FlowFileRecord]:
    """Handles of one shard; a `bulk` makes them long."""
    choose = random.Random(seed)
    attributes = msgspec.msgpack.encode({"a": "x" * bulk})
    return [
        msgspec.structs.replace(
            handle(choose, number, shard=7, expires_millis=number % 3),
            attributes=attributes if bulk else handle(choose, number).attributes,
        )
        for number in range(count)
    ]


def unlike(pack: HandlePack, **changes: bytes) -> HandlePack:
    return msgspec.structs.replace(pack, **changes)


@pytest.mark.parametrize("bulk", [0, 900])
def test_a_pack_is_its_records(bulk: int) -> None:
    """Grown, read at once, shrunk row by row, divided and joined again: also where its ends take four bytes each."""
    records = some(1, 200, bulk)
    pack = with_more(with_more(NO_HANDLES, records[:60]), records[60:])
    assert (pack.size, ends_of(pack).format, is_whole(pack)) == (200, "I" if bulk else "H", True)
    assert records_of(pack) == records
    assert [msgspec.msgpack.decode(each, type=FlowFileRecord) for each in encoded(pack)] == records

    rows = rows_of(pack)
    assert rows.uuids == [record.uuid for record in records]
    assert rows.claims == tuple(msgspec.structs.astuple(record.claim) for record in records if record.claim)
    for field in rows._fields[4:]:
        assert getattr(rows, field) == tuple(getattr(record, field) for record in records)

    parts = divided(pack, BITS)
    assert (len(parts), {part.bits for part in parts}) == (1 << BITS, {BITS})
    assert all(prefix_of(each.uuid) >> 56 - BITS == at for at, part in enumerate(parts) for each in records_of(part))
    again = joined(parts)
    assert (again.bits, sorted(records_of(again), key=lambda each: each.uuid)) == (
        0,
        sorted(records, key=lambda each: each.uuid),
    )

    for index in (199, 100, 0, 50, *range(195, 0, -1), 0):
        gone = records.pop(index)
        pack = without(pack, index)
        assert place_of(pack, gone.uuid) == -1
        assert records_of(pack) == records
        assert not records or rows_of(pack).uuids == [record.uuid for record in records]
    assert (records, pack) == ([], unlike(NO_HANDLES))


def damaged() -> dict[str, HandlePack]:
    """What a writer may have made that is no pack."""
    records = some(2, 20)
    pack = with_more(NO_HANDLES, records)
    first = ends_of(pack)[0]
    negative = with_more(NO_HANDLES, [msgspec.structs.replace(records[0], size=-1), *records[1:]])
    text = with_more(NO_HANDLES, [msgspec.structs.replace(records[0], queued="seven"), *records[1:]])
    other_end = (first + 1).to_bytes(2, "little")
    return {
        "nothing": NO_HANDLES,
        "a uuid too few": unlike(pack, uuids=pack.uuids[UUID_BYTES:]),
        "half a uuid more": unlike(pack, uuids=pack.uuids + bytes(8)),
        "an end too few": unlike(pack, ends=pack.ends[:-2]),
        "half an end": unlike(pack, ends=pack.ends[:-1]),
        "another end": unlike(pack, ends=other_end + pack.ends[2:]),
        "a row cut": unlike(pack, rows=pack.rows[:-1]),
        "a row more": unlike(pack, rows=pack.rows + pack.rows[:first]),
        "a row of one field more": unlike(pack, rows=bytes([pack.rows[0] + 1]) + pack.rows[1:]),
        "a negative number": negative,
        "text for a number": text,
    }


@pytest.mark.parametrize("what", damaged())
def test_what_is_no_pack_is_not_read_as_one(what: str) -> None:
    """Each error is one by which a start goes on, record by record."""
    with pytest.raises(UNUSABLE):
        rows_of(damaged()[what])


@pytest.mark.parametrize("seed", range(30))
def test_a_pack_with_a_changed_byte_is_one_or_none(seed: int) -> None:
    """Where it is read all the same, each handle is found at its end by itself, too."""
    choose = random.Random(seed)
    pack = with_more(NO_HANDLES, some(3, 12))
    for _ in range(200):
        field = choose.choice(["uuids", "ends", "rows"])
        data = bytearray(getattr(pack, field))
        data[choose.randrange(len(data))] = choose.randrange(256)
        other = unlike(pack, **{field: bytes(data)})
        try:
            rows = rows_of(other)
        except UNUSABLE:
            continue  # refused, as most are
        found = records_of(other)
        assert [record.uuid for record in found] == rows.uuids
        assert [record.attributes for record in found] == list(rows.attributes)
