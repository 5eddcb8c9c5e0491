"""Transactions that decode, under valid checksums, and contradict the ledger: refused by name, with nothing removed."""

import re
import struct
from collections.abc import Callable, Sequence

import pytest

from tests.fuzz.corpus import killed, with_transaction
from tests.rot.specimen import abandon, reopen
from ullage.engine.model import FlowFileRecord
from ullage.errors import RepositoryDamaged

NOBODY = bytes(16)
HUGE = (1 << 64) - 1


def resident() -> FlowFileRecord:
    """A FlowFile that stands in memory at the end, with content."""
    truth = killed().truth
    gone = {uuid for members in truth.swapped.values() for uuid in members}
    return next(record for uuid, record in truth.records.items() if record.claim is not None and uuid not in gone)


def flow_file(**fields: object) -> list[object]:
    """The operation that creates one, in its wire form, with fields of the tester's choice."""
    form: dict[str, object] = {
        "uuid": NOBODY,
        "queue": 1,
        "claim": None,
        "start": 0,
        "size": 0,
        "entry_millis": 1,
        "lineage_millis": 1,
        "queued": 1,
        "attributes": b"\x80",
    }
    return [1, *(form | fields).values()]


def claim(*, offset: int = 0, length: int = 1, resource: int | None = None) -> list[int]:
    known = resident().claim
    assert known is not None
    return [known.resource if resource is None else resource, offset, length, 0]


def held(intent: int, length: int) -> list[object]:
    """A promise about a resource claim that FlowFiles use."""
    known = resident().claim
    assert known is not None
    return [5, known.resource, "c1", 1_700_000_000_000, 2, known.end, True, 9, 0, intent, length]


def output() -> list[object]:
    """A resource claim that content could have been moved to."""
    return [5, 900, "c1", 1_700_000_000_000, 2, 1 << 30, True, 1]


def moves(*numbers: tuple[int, ...]) -> bytes:
    """Packed runs or moves."""
    return b"".join(struct.pack(f"<{len(each)}Q", *each) for each in numbers)


TRANSACTION: dict[str, Callable[[], Sequence[object]]] = {
    "an unknown uuid updated": lambda: [[2, NOBODY, 1]],
    "an unknown uuid deleted": lambda: [[3, NOBODY]],
    "half a uuid deleted": lambda: [[3, NOBODY[:7]]],
    "a short uuid": lambda: [flow_file(uuid=b"short")],
    "no uuid": lambda: [flow_file(uuid=b"")],
    "a huge uuid": lambda: [flow_file(uuid=bytes(1 << 20))],
    "a FlowFile created twice": lambda: [flow_file(uuid=resident().uuid)],
    "an unknown resource claim": lambda: [flow_file(claim=claim(resource=1 << 40), size=1)],
    "a negative offset": lambda: [flow_file(claim=claim(offset=-1), size=1)],
    "a negative size": lambda: [flow_file(claim=claim(), size=-1)],
    "a negative queue": lambda: [flow_file(queue=-5)],
    "a place beyond all numbers": lambda: [flow_file(queued=HUGE)],
    "an index beyond all numbers": lambda: [[8, HUGE]],
    "an unknown swap file": lambda: [[10, "1-1-00000000-0000-4000-8000-000000000000.swap"]],
    "a swap file elsewhere": lambda: [[9, "../ullage.json", 1, 1, 0, 0, 0, 0, []], [10, "../ullage.json"]],
    "a swap file with no name": lambda: [[9, "", 1, 1, 0, 0, 0, 0, []], [10, ""]],
    "a swap file with a name of zeros": lambda: [[9, "\0.swap", 1, 1, 0, 0, 0, 0, []], [10, "\0.swap"]],
    "an unknown uuid swapped out": lambda: [[9, "1-1-x.swap", 1, 1, 0, 0, 0, 0, [], NOBODY]],
    "a swap file that shares an unknown claim": lambda: [[9, "1-1-x.swap", 1, 1, 0, 0, 0, 0, [[1 << 40, 1, 1, 1]]]],
    "an absurd count": lambda: [[9, "1-1-x.swap", 1, -9, 0, 0, 0, 0, []]],
    "a resource claim forgotten in use": lambda: [[6, claim()[0]]],
    "a tag that was never given": lambda: [[99, 1]],
    "an unknown promise": lambda: [held(77, 0)],
    "content moved to nowhere": lambda: [[22, claim()[0], 1 << 40, b""]],
    "content moved from nowhere": lambda: [[22, 1 << 40, claim()[0], b""]],
    "content moved to itself": lambda: [[22, claim()[0], claim()[0], b""]],
    "half a move": lambda: [output(), [22, claim()[0], 900, bytes(7)]],
    "moves that overlap": lambda: [output(), [22, claim()[0], 900, moves((0, 10, 0), (5, 10, 20))]],
    "moves that are not sorted": lambda: [output(), [22, claim()[0], 900, moves((50, 10, 0), (5, 10, 20))]],
    "a hole of seven bytes": lambda: [[*held(0, 0), 0, b"", bytes(7)]],
    "a lease without a name": lambda: [[23, b"short", "reader", [], 0, 1, 2]],
    "an output forgotten in use": lambda: [output(), [22, claim()[0], 900, moves((0, 1 << 30, 0))], [6, 900]],
    "attributes that are none": lambda: [[2, resident().uuid, None, None, None, b"\xff"]],
    "an event of nothing": lambda: [[20, "", "", [[2, 0, 1]]]],
    "events without end": lambda: [flow_file(), [20, "", "", [[2, 0, 1 << 62]]]],
    "an event of no known type": lambda: [flow_file(), [20, "", "", [[77, 0, 1]]]],
    "text that is no UTF-8": lambda: [[4, 9, b"\xff\xfe", "FirstInFirstOut", "p", 0, 0, 0]],
}

STATE: dict[str, Callable[[], Sequence[object]]] = {
    "a queue that nobody defined": lambda: [flow_file(queue=999)],
    "a claim outside its file": lambda: [flow_file(claim=claim(offset=1 << 40, length=10), size=10)],
    "an unknown container": lambda: [[5, 4_000, "../../c9", 1]],
    "an impossible order": lambda: [[4, 9, "q", "Alphabetical", "p", 0, 0, 0]],
    "a promise to delete live content": lambda: [held(2, 0)],
    "a promise to cut live content": lambda: [held(1, 0)],
    "a promise to archive live content": lambda: [held(3, 0)],
    "a promise to punch live content": lambda: [[*held(4, 0), 0, moves((0, 1 << 30))]],
    "a promise to unlink what was not moved": lambda: [held(5, 0)],
    "content that is nowhere in its output": lambda: [output(), [22, claim()[0], 900, moves((1 << 40, 1, 0))]],
}


@pytest.mark.parametrize("name", TRANSACTION)
def test_a_transaction_that_contradicts_the_ledger_is_named(name: str) -> None:
    """The start stops with RepositoryDamaged and says which transaction cannot be."""
    path, data, id = with_transaction(killed(), list(TRANSACTION[name]()))

    with pytest.raises(RepositoryDamaged, match=rf"\b[Tt]ransaction {id}\b"):
        abandon(reopen(killed().with_file(path, data), killed().spec))


@pytest.mark.parametrize("name", STATE)
def test_a_state_that_cannot_be_is_refused(name: str) -> None:
    """What only shows once all is applied stops the start as well, naming queue, container or resource claim."""
    path, data, _ = with_transaction(killed(), list(STATE[name]()))

    with pytest.raises(RepositoryDamaged, match=re.compile(r"queues? (number )?\[?\d+|resource claim \d+")):
        abandon(reopen(killed().with_file(path, data), killed().spec))
