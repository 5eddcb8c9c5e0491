"""What proved records come to, one by one: what keeps its place, what is held, and what is passed over."""

import pytest

from ullage.engine.check.salvagestate import SalvagedState
from ullage.engine.ledger.aside import set_aside
from ullage.engine.model import (
    NO_ATTRIBUTES,
    STAGED_QUEUE,
    Answer,
    ContentClaim,
    Delete,
    FlowFileRecord,
    QueueDefinition,
    SetAsideEnd,
    SwapDrop,
    SwapFirst,
    SwapIn,
    SwapOut,
    Update,
)
from ullage.engine.wal.serde import SerDe, Undecodable

QUEUE = QueueDefinition(1, "q", "FirstInFirstOut", "priority", 0, 0, 0)


def flow_file(number: int, queue: int = 1, claim: ContentClaim | None = None, size: int = 0) -> FlowFileRecord:
    return FlowFileRecord(bytes([number] * 16), queue, claim, 0, size, 1, 1, number, NO_ATTRIBUTES)


A, B, C = flow_file(1), flow_file(2), flow_file(3)
FIRST = SwapFirst(0, 1, 1, NO_ATTRIBUTES)
SWAP = SwapOut("1.swap", 1, 2, 0, 1, 1, 2, (), FIRST)


@pytest.fixture
def state() -> SalvagedState:
    found = SalvagedState({"1.swap": [A, B]}, SerDe())
    found.take([QUEUE], "the snapshot")
    return found


def test_a_delete_behind_a_gap_deletes_nothing(state: SalvagedState) -> None:
    """What was to be left in exchange may be among what is lost."""
    state.take([A, B], "1")
    state.take([Delete(A.uuid)], "2")
    state.take([Delete(B.uuid), C], "4", "behind 3")
    state.finish("", is_snapshot_whole=True)
    assert set(state.records) == {B.uuid, C.uuid} == set(state.held)


def test_all_is_held_where_something_lost_may_say_more() -> None:
    """Nobody can tell which of them it meant."""
    state = SalvagedState({}, SerDe())
    state.take([A, flow_file(2, queue=0)], "1")
    state.finish("lost", is_snapshot_whole=True)
    assert state.held == {A.uuid: "lost", B.uuid: "lost"}


def test_what_is_staged_is_held(state: SalvagedState) -> None:
    """Nobody has said whether it is to appear."""
    state.take([flow_file(1, queue=STAGED_QUEUE)], "1")
    state.finish("", is_snapshot_whole=True)
    assert set(state.held) == {A.uuid}


def test_swapped_flow_files_come_from_the_file_or_from_the_log(state: SalvagedState) -> None:
    """What swapped out of the log's own records is there without the file; what is lost with it is counted."""
    state.take([SWAP, C], "1")
    state.take(
        [SwapOut("2.swap", 1, 1, 0, 1, 1, 1, (), FIRST, C.uuid), SwapOut("3.swap", 1, 5, 0, 1, 1, 1, (), FIRST)], "2"
    )
    state.finish("", is_snapshot_whole=True)
    assert set(state.records) == {A.uuid, B.uuid, C.uuid}
    assert [each.place for each in state.unusable] == ["swap file 3.swap"]
    assert not state.held


def test_dropped_and_swapped_in_files_bring_nothing_back(state: SalvagedState) -> None:
    """Also where something of the snapshot is lost, which might have named them."""
    state.take([SWAP, SwapDrop("1.swap")], "1")
    state.finish("", is_snapshot_whole=False)
    assert not state.records
    again = SalvagedState({"1.swap": [A, B]}, SerDe())
    again.take([SWAP, SwapIn("1.swap"), Delete(A.uuid)], "1")
    again.finish("", is_snapshot_whole=False)
    assert set(again.records) == {B.uuid}


def test_a_swap_file_that_no_record_names_is_held_where_the_record_may_be_lost(state: SalvagedState) -> None:
    """Else it is a leftover."""
    state.finish("", is_snapshot_whole=False)
    assert set(state.held) == {A.uuid, B.uuid}
    whole = SalvagedState({"1.swap": [A, B]}, SerDe())
    whole.finish("", is_snapshot_whole=True)
    assert not whole.records


def test_a_record_that_cannot_be_used_holds_what_it_names_and_nothing_else(state: SalvagedState) -> None:
    """It is named, with what changes a FlowFile that is not there."""
    state.take([A, B, Undecodable(SerDe().encode_operation(Delete(A.uuid)), "odd"), Update(C.uuid, queue=1)], "1")
    state.finish("", is_snapshot_whole=True)
    assert set(state.held) == {A.uuid}
    assert [each.place for each in state.unusable] == ["record 2 of 1", "record 3 of 1"]
    assert C.id in state.unusable[1].reason


def test_what_was_set_aside_is_held_until_it_was_given_up(state: SalvagedState) -> None:
    """Its FlowFiles stood nowhere, and are not forgotten."""
    aside = set_aside(b"\x00", "odd", "there", 1, 1, [A])
    state.take([aside], "1")
    assert set(state.held) == {A.uuid}
    state.take([SetAsideEnd(aside.id)], "2")
    state.finish("", is_snapshot_whole=True)
    assert not state.records


def test_an_answer_stays_given(state: SalvagedState) -> None:
    """Also behind a gap: a repeat of its request would store a second time what is held."""
    state.take([Answer(b"old", b"put", b"1", 1, transaction=7)], "the snapshot")
    state.take([A, Answer(b"new", b"put", b"2", 1)], "9", "behind 8", 9)
    assert [(each.key, each.transaction) for each in state.answers.all()] == [(b"old", 7), (b"new", 9)]


def test_a_slice_outside_its_content_and_an_unknown_queue(state: SalvagedState) -> None:
    """The one is left out, the other gets a queue; both are told of."""
    state.take([flow_file(1, claim=ContentClaim(1, 0, 5, 0), size=6), flow_file(2, queue=7)], "1")
    state.finish("", is_snapshot_whole=True)
    assert set(state.records) == {B.uuid}
    assert state.queues[7].name == "queue 7"
    assert [each.place for each in state.unusable] == [f"FlowFile {A.id}", "queue number 7"]
