import gc
import re
import uuid
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from ullage.engine.byteranges import Move, pack_moves
from ullage.engine.model import (
    NO_ATTRIBUTES,
    Answer,
    ClaimBlocks,
    Content,
    ContentClaim,
    Delete,
    EventRun,
    EventType,
    FlowFileRecord,
    HandlePack,
    IndexCeiling,
    LeaseEnd,
    LeaseRecord,
    Operation,
    QueueDefinition,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    RestingShares,
    RunFile,
    SetAside,
    SetAsideEnd,
    Staged,
    StagedWrite,
    SwapDrop,
    SwapFirst,
    SwapIn,
    SwapOut,
    SwapShare,
    TransactionEvents,
    Undrained,
    Update,
    format_uuid,
    new_uuids,
    pack_attributes,
    parse_uuid,
    split_uuids,
    unpack_attributes,
)
from ullage.engine.updates import updated
from ullage.engine.wal.serde import operation_count
from ullage.uuids import FEW, format_uuids, parse_uuids

A = b"a" * 16
B = b"b" * 16
CLAIM = ContentClaim(7, 4_096, 100, 0xDEADBEEF)
RECORD = FlowFileRecord(A, 3, CLAIM, 10, 50, 1_000, 900, 42, pack_attributes({"color": "red", "size": "2"}), B, 5, 0)

texts = st.text(max_size=8)
attribute_maps = st.dictionaries(texts.filter(lambda name: name != "uuid"), texts, max_size=5)

SAMPLES: list[tuple[int, Any]] = [
    (1, RECORD),
    (2, Update(A, 4, 43, Content(CLAIM, 0, 100), pack_attributes({"a": "b"}), ("color",), 6, 7)),
    (3, Delete(A + B)),
    (4, QueueDefinition(1, "inbox", "FirstInFirstOut", "priority", 10, 20, 30)),
    (5, ResourceClaim(7, "c1", 1_000, 2, 4_196, True, 1, 5, 3, 4, 6)),
    (6, ResourceClaimGone(7)),
    (7, ClaimBlocks(7, 4_096, b"1234")),
    (8, IndexCeiling(4_096)),
    (
        9,
        SwapOut(
            "f.swap", 3, 2, 100, 1, 2, 3, (SwapShare(7, 2, 100, 4_196),), SwapFirst(60, 5, 2, NO_ATTRIBUTES), A + B
        ),
    ),
    (10, SwapIn("f.swap")),
    (11, SwapDrop("f.swap")),
    (20, TransactionEvents("p1", "RouteText", (EventRun(EventType.ROUTE, 0, 2, "nifi"),), (RECORD,), True)),
    (21, Undrained(7, 1_000, (RECORD, TransactionEvents("", "", (EventRun(EventType.CREATE, 0),))))),
    (
        20,
        TransactionEvents(
            "p1", "RouteText", (EventRun(EventType.ROUTE, 0, 2, "nifi", "d", "u", "i", 3, A, B),), (RECORD,), True
        ),
    ),
    (23, LeaseRecord(A, "reader", (1, 2), 7, 1_000, 2_000, holds_files=True)),
    (24, LeaseEnd(A)),
    (30, RunFile(7, "answers", 2, 300, 5, b"a" * 16, b"b" * 16, 1_000, 7, b"\0\0\0\0")),
    (25, Answer(b"k" * 32, b"r" * 32, b"{}", 1_000, 7)),
    (26, StagedWrite(A, 3, "spark", 1, 0, 1_000, 2_000, B, b"{}")),
    (27, Staged(A, B, 1, A + B)),
    (
        28,
        SetAside(A, "record 3 of transaction 9", "no uuid", b"\x92\x03\xc4\x00", 7, B, (RECORD,), (7, 8), "f.swap", 9),
    ),
    (29, SetAsideEnd(A)),
    (32, RestingShares(1, bytes(32), 7, bytes(8))),
    (31, HandlePack(A + B, b"\x01\0\x02\0", b"\x90\x90", 3)),
    (22, Relocation(1, 2, pack_moves([Move(0, 100, 4096), Move(300, 50, 4196)]), 9)),
]


def test_new_uuids_are_random_uuids_of_version_4() -> None:
    """Every new uuid is a distinct RFC 4122 uuid, version 4."""
    made = new_uuids(1_000)

    assert new_uuids(0) == []
    assert len(set(made)) == 1_000
    assert {uuid.UUID(bytes=each).version for each in made} == {4}
    assert {uuid.UUID(bytes=each).variant for each in made} == {uuid.RFC_4122}


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_survives_its_notation(raw: bytes) -> None:
    """Formatting and parsing are inverse, and the notation is Python's own."""
    assert parse_uuid(format_uuid(raw)) == raw
    assert format_uuid(raw) == str(uuid.UUID(bytes=raw))


@pytest.mark.parametrize("text", ["", "abc", "g" * 32, "a" * 31, "a" * 33, "aa" * 15 + "  ", "é" * 32])
def test_what_is_no_uuid_is_refused(text: str) -> None:
    """Anything but 32 hexadecimal digits, with or without dashes, is a ValueError."""
    with pytest.raises(ValueError, match=r"uuid|hexadecimal"):
        parse_uuid(text)


@given(
    st.lists(
        st.one_of(
            st.binary(min_size=16, max_size=16).map(format_uuid),
            st.binary(min_size=16, max_size=16).map(bytes.hex),
            st.text(alphabet="0f- -", min_size=30, max_size=38),
            st.sampled_from(["0" * 31 + " ", "0" * 33 + "---", "0" * 31 + "-----", "-" * 36, "\ud800" * 32]),
        ),
        max_size=4,
    )
)
def test_many_uuids_are_read_as_each_is(texts: list[str]) -> None:
    """Or not at once, if they are written in different ways, or one of them is none."""
    found = parse_uuids(texts)

    assert found is None or found == list(map(parse_uuid, texts))
    if texts and len({len(text) for text in texts}) == 1 and all(is_uuid(text) for text in texts):
        assert found is not None


@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, FEW + 1, 1_000])
def test_many_uuids_are_written_as_each_is(count: int) -> None:
    """Few one by one, many at once: nobody can tell."""
    uuids = new_uuids(count)

    assert format_uuids(uuids) == list(map(format_uuid, uuids))


def is_uuid(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) is not None


def test_joined_uuids_come_apart_in_order() -> None:
    """A run of uuids keeps its order."""
    assert list(split_uuids(A + B)) == [A, B]
    assert list(split_uuids(b"")) == []


@given(attribute_maps)
def test_attributes_survive_packing(attributes: dict[str, str]) -> None:
    """Packed attributes unpack to the same map; packing none gives the constant for none."""
    packed = pack_attributes(attributes)

    assert unpack_attributes(packed) == attributes
    assert (packed == NO_ATTRIBUTES) == (attributes == {})


def test_the_uuid_is_never_stored_as_an_attribute() -> None:
    """`uuid` is the record's own: packing leaves it out."""
    assert unpack_attributes(pack_attributes({"uuid": "x", "a": "b"})) == {"a": "b"}
    assert pack_attributes({"uuid": "x"}) == NO_ATTRIBUTES


def test_the_core_attributes_are_derived_unless_set() -> None:
    """`uuid` is always the record's, `filename` and `path` have defaults that may be replaced."""
    plain = FlowFileRecord(A, 1, None, 0, 0, 0, 0, 0, NO_ATTRIBUTES)
    named = msgspec.structs.replace(plain, attributes=pack_attributes({"filename": "a.txt", "path": "x/"}))

    assert plain.attribute_map() == {"uuid": plain.id, "filename": plain.id, "path": "./"}
    assert named.attribute_map() == {"uuid": plain.id, "filename": "a.txt", "path": "x/"}


def test_parents_are_told_by_their_ids() -> None:
    """A record names its parents, 16 bytes each."""
    record = msgspec.structs.replace(RECORD, parents=A + B)

    assert record.parent_ids == [format_uuid(A), format_uuid(B)]


def test_an_update_changes_what_it_carries() -> None:
    """Queue, place, content and both dates are replaced; entry, lineage and parents stay for ever."""
    other = ContentClaim(8, 0, 9, 1)

    after = updated(RECORD, Update(A, 9, 99, Content(other, 1, 2), None, (), 0, 77))

    assert after == FlowFileRecord(A, 9, other, 1, 2, 1_000, 900, 99, RECORD.attributes, B, 0, 77)


def test_an_update_can_take_the_content_away() -> None:
    """Content without a claim is no content, which differs from no change of content."""
    after = updated(RECORD, Update(A, content=Content(None, 0, 0)))

    assert (after.claim, after.start, after.size) == (None, 0, 0)


@given(attribute_maps, st.lists(st.tuples(attribute_maps, st.lists(texts, max_size=2)), max_size=20))
def test_many_updates_leave_what_they_set_last(
    first: dict[str, str], changes: list[tuple[dict[str, str], list[str]]]
) -> None:
    """However updates are kept until somebody reads, their order decides; what stands there is one msgpack map."""
    record = msgspec.structs.replace(RECORD, attributes=pack_attributes(first))
    expected = dict(first)

    for new, removed in changes:
        record = updated(
            record, Update(A, set_attributes=pack_attributes(new) if new else None, remove_attributes=tuple(removed))
        )
        expected = {name: value for name, value in expected.items() if name not in removed} | new

        assert unpack_attributes(record.attributes) == expected


def test_a_record_that_is_only_updated_stays_small() -> None:
    """Values that were replaced take memory for some updates, and no more."""
    record = msgspec.structs.replace(RECORD, attributes=pack_attributes({"filename": "a.txt", "state": "s" * 50}))
    once = len(record.attributes)

    sizes = []
    for number in range(1_000):
        change = pack_attributes({"state": str(number).rjust(50, "s")})
        record = updated(record, Update(A, set_attributes=change))
        sizes.append(len(record.attributes))

    assert max(sizes) < once + 1_000
    assert min(sizes[500:]) == once


def test_operations_count_for_the_flow_files_they_touch() -> None:
    """A delete and a swap-out count for each uuid, what accompanies content for nothing."""
    swap = SwapOut("f", 1, 2, 0, 0, 0, 0, (), SwapFirst(0, 0, 0, NO_ATTRIBUTES), A + B)

    assert operation_count([RECORD, Update(A), Delete(A + B), swap, SwapIn("f"), IndexCeiling(1)]) == 8
    assert operation_count([ResourceClaim(1, "c1", 0), ClaimBlocks(1, 0, b"")]) == 0


def test_every_operation_has_a_sample_here() -> None:
    """The table below covers all of the wire format."""
    assert {type(sample) for _, sample in SAMPLES} == set(get_args(Operation))


@pytest.mark.parametrize(("tag", "sample"), SAMPLES, ids=lambda value: type(value).__name__)
def test_wire_tags_are_stable(tag: int, sample: Any) -> None:
    """Each operation is an array headed by its number, which never changes, followed by its fields in order."""
    packed = msgspec.msgpack.encode(sample)
    raw = msgspec.msgpack.decode(packed)

    assert raw[0] == tag
    assert len(raw) == 1 + len(type(sample).__struct_fields__)
    assert msgspec.msgpack.decode(packed, type=Operation) == sample


@pytest.mark.parametrize("sample", [sample for _, sample in SAMPLES], ids=lambda value: type(value).__name__)
def test_records_with_fewer_trailing_fields_still_decode(sample: Any) -> None:
    """A record that was written before its newest fields existed decodes to one with their defaults."""
    fields = msgspec.structs.fields(type(sample))
    required = sum(field.required for field in fields)
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(sample))

    for kept in range(required, len(fields) + 1):
        old = msgspec.msgpack.decode(msgspec.msgpack.encode(raw[: 1 + kept]), type=Operation)
        for field in fields[:kept]:
            assert getattr(old, field.name) == getattr(sample, field.name)
        for field in fields[kept:]:
            assert getattr(old, field.name) == field.default


@pytest.mark.parametrize("sample", [sample for _, sample in SAMPLES], ids=lambda value: type(value).__name__)
def test_records_are_immutable(sample: Any) -> None:
    """What was committed cannot be changed in place."""
    with pytest.raises(AttributeError):
        setattr(sample, type(sample).__struct_fields__[0], None)


def test_records_cost_the_garbage_collector_nothing() -> None:
    """FlowFiles and claims are not tracked, however many there are."""
    assert not gc.is_tracked(RECORD)
    assert not gc.is_tracked(CLAIM)
    assert not gc.is_tracked(msgspec.msgpack.decode(msgspec.msgpack.encode(RECORD), type=FlowFileRecord))


def test_a_resource_claims_name_is_nifis() -> None:
    """A content file is called after its time and index."""
    assert ResourceClaim(12, "c1", 1_700_000_000_000).name == "1700000000000-12"
    assert CLAIM.end == 4_196
