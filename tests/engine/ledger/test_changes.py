"""The ledger notes whatever changes the figures of a resource claim's file: a survey looks at nothing else."""

from collections.abc import Callable

import pytest

from ullage.engine.byteranges import Move, pack_moves
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import pin_bytes
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import (
    Content,
    ContentClaim,
    Delete,
    FlowFileRecord,
    Operation,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    SwapDrop,
    SwapFirst,
    SwapIn,
    SwapOut,
    SwapShare,
    Update,
)

FIRST, SECOND, OUTPUT, OTHER = 1, 2, 3, 4
CLAIMS = {index: ContentClaim(index, 0, 10, 0) for index in (FIRST, SECOND)}


def resource(index: int) -> ResourceClaim:
    return ResourceClaim(index, "c1", 1, 2, 100, sealed=True)


def flow_file(number: int, claim: ContentClaim | None) -> FlowFileRecord:
    return FlowFileRecord(bytes(15) + bytes([number]), 1, claim, 0, 10 if claim else 0, 1, 1, 1, b"\x80")


def moved(source: int, output: int) -> Relocation:
    return Relocation(source, output, pack_moves([Move(0, 10, 0)]))


def swapped(number: int) -> SwapOut:
    share = SwapShare(FIRST, 1, 10, 10)
    return SwapOut("s", 1, 1, 10, 1, 1, 1, (share,), SwapFirst(10, 1, 1, b""), flow_file(number, None).uuid)


@pytest.fixture
def ledger() -> Ledger:
    """Two files with a FlowFile in each, an output and another file; nothing is noted."""
    made = Ledger(lambda _: SwapContent([flow_file(1, CLAIMS[FIRST])], []))
    made.load([resource(index) for index in (FIRST, SECOND, OUTPUT, OTHER)])
    made.load([flow_file(index, claim) for index, claim in CLAIMS.items()])
    assert made.take_changed() is None  # nobody has looked yet
    return made


def changed(ledger: Ledger, *operations: Operation) -> set[int] | None:
    ledger.take_changed()
    ledger.apply(7, 7, operations)
    return ledger.take_changed()


def test_what_happens_to_flow_files_is_noted(ledger: Ledger) -> None:
    """Of each resource claim that gains or loses a claimant, and of no other."""
    uuid = flow_file(1, None).uuid
    assert changed(ledger, flow_file(8, CLAIMS[FIRST]), flow_file(9, CLAIMS[SECOND])) == {FIRST, SECOND}
    assert changed(ledger, flow_file(10, None)) == set()
    assert changed(ledger, Update(uuid, queue=2)) == set()
    assert changed(ledger, Update(uuid, deleted_millis=3)) == {FIRST}
    assert changed(ledger, Update(uuid, deleted_millis=0)) == {FIRST}
    assert changed(ledger, Update(flow_file(10, None).uuid, deleted_millis=3)) == set()
    assert changed(ledger, Update(uuid, content=Content(CLAIMS[SECOND], 0, 10))) == {FIRST, SECOND}
    assert changed(ledger, Update(flow_file(10, None).uuid, content=Content(CLAIMS[SECOND], 0, 10))) == {SECOND}
    assert changed(ledger, Delete(uuid)) == {SECOND}


def test_what_happens_to_files_is_noted(ledger: Ledger) -> None:
    """A new one, another state, an end."""
    assert changed(ledger, resource(9)) == {9}
    assert changed(ledger, resource(9)) == {9}
    assert changed(ledger, ResourceClaimGone(9)) == {9}


def test_what_is_moved_is_noted_on_both_sides(ledger: Ledger) -> None:
    """The output's figures are those of the claims in it: whatever becomes of a source is noted for both."""
    assert changed(ledger, moved(FIRST, OUTPUT)) == {FIRST, OUTPUT}
    assert changed(ledger, flow_file(8, CLAIMS[FIRST])) == {FIRST, OUTPUT}
    assert changed(ledger, moved(FIRST, OTHER)) == {FIRST, OUTPUT, OTHER}
    assert changed(ledger, Delete(flow_file(8, None).uuid + flow_file(1, None).uuid)) == {FIRST, OTHER}
    assert changed(ledger, ResourceClaimGone(FIRST)) == {FIRST, OTHER}


@pytest.mark.parametrize("end", [SwapIn("s"), SwapDrop("s")])
def test_what_is_swapped_is_noted(ledger: Ledger, end: Operation) -> None:
    """On its way out, and on its way back or away."""
    assert changed(ledger, swapped(FIRST)) == {FIRST}
    assert changed(ledger, end) == {FIRST}


@pytest.mark.parametrize(
    "pin", [lambda ledger: ledger.pin([CLAIMS[FIRST]]), lambda ledger: pin_bytes(ledger, CLAIMS[FIRST])]
)
def test_what_is_pinned_is_noted(ledger: Ledger, pin: Callable[[Ledger], None]) -> None:
    """A pin may be all that keeps bytes, so its end is noted too."""
    ledger.take_changed()
    pin(ledger)
    assert ledger.take_changed() == {FIRST}
    ledger.unpin([CLAIMS[FIRST]])
    assert ledger.take_changed() == {FIRST}
