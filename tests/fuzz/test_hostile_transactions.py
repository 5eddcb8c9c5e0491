"""Records under valid checksums that do not decode, or contradict all others: set aside, and everything else serves."""

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.fuzz.corpus import killed, with_transaction
from tests.rot.specimen import Shown, abandon, reopen, shown
from ullage.engine.model import Delete, FlowFileRecord, Operation, ResourceClaim
from ullage.engine.reclaim.pacing import RunTicket

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
    "attributes that are none": lambda: [[2, resident().uuid, None, None, None, b"\xff"]],
    "an event of nothing": lambda: [[20, "", "", [[2, 0, 1]]]],
    "events without end": lambda: [flow_file(), [20, "", "", [[2, 0, 1 << 62]]]],
    "an event of no known type": lambda: [flow_file(), [20, "", "", [[77, 0, 1]]]],
    "text that is no UTF-8": lambda: [[4, 9, b"\xff\xfe", "FirstInFirstOut", "p", 0, 0, 0]],
    "a claim outside its file": lambda: [flow_file(claim=claim(offset=1 << 40, length=10), size=10)],
    "content set to what is outside its file": lambda: [
        [2, resident().uuid, None, None, [claim(offset=1 << 40), 0, 1]]
    ],
    "a file that ends before its content": lambda: [[5, claim()[0], "c1", 1_700_000_000_000, 2, 1, True, 9]],
    "an unknown container": lambda: [[5, 4_000, "../../c9", 1]],
    "an impossible order": lambda: [[4, 9, "q", "Alphabetical", "p", 0, 0, 0]],
    "a promise to delete live content": lambda: [held(2, 0)],
    "a promise to cut live content": lambda: [held(1, 0)],
    "a promise to archive live content": lambda: [held(3, 0)],
    "a promise to punch live content": lambda: [[*held(4, 0), 0, moves((0, 1 << 30))]],
    "a promise to unlink what was not moved": lambda: [held(5, 0)],
    "content that is nowhere in its output": lambda: [output(), [22, claim()[0], 900, moves((1 << 40, 1, 0))]],
}


def named(operation: Any) -> set[bytes]:
    """The FlowFiles of the specimen that an operation names."""
    places = {1: 1, 2: 1, 3: 1, 9: 9}
    place = places.get(operation[0], len(operation)) if isinstance(operation[0], int) else len(operation)
    uuids = operation[place] if place < len(operation) else b""
    assert isinstance(uuids, bytes)
    return {uuids[at : at + 16] for at in range(0, len(uuids), 16)} & killed().truth.records.keys()


@pytest.mark.parametrize("name", TRANSACTION)
def test_a_record_that_cannot_be_is_set_aside_and_all_others_serve(name: str) -> None:
    """The start says which record, keeps its bytes, holds on to what it may mean, and comes back with all the rest."""
    operations = list(TRANSACTION[name]())
    path, data, id = with_transaction(killed(), operations)
    before = seen()
    gone = set().union(*map(named, operations))

    repository = reopen(killed().with_file(path, data), killed().spec)

    aside = repository.ledger.set_aside.all()
    assert aside, "a record that can't be used was used"
    assert all(f"transaction {id} " in each.place or "together" in each.place for each in aside), aside
    assert {whole(msgspec.msgpack.encode(operation)) for operation in operations} & {whole(each.data) for each in aside}
    now, refused = shown(repository)
    assert {uuid: now.get(uuid) for uuid in before if uuid not in gone} == {
        uuid: content for uuid, content in before.items() if uuid not in gone
    }
    assert not gone & now.keys()
    assert gone <= {record.uuid for each in aside for record in each.flow_files}
    assert not refused
    repository.close()
    image = repository._files.image()  # type: ignore[attr-defined]  # a CrashFiles
    again = reopen(image, killed().spec)
    assert again.ledger.set_aside.all() == aside, "the next start sets nothing aside anew, and forgets nothing"
    assert again.restored.clean
    assert not [problem for problem in again.check(deep=True).problems if "resource claim 900" not in problem]
    abandon(again)


@pytest.mark.parametrize("name", TRANSACTION)
def test_what_a_record_set_aside_may_mean_is_not_reclaimed(name: str) -> None:
    """Cleaning and compaction take no file that it may point at, before a person has given it up."""
    path, data, _ = with_transaction(killed(), list(TRANSACTION[name]()))
    repository = reopen(killed().with_file(path, data), killed().spec)
    aside = repository.ledger.set_aside
    before = {
        entry.claim.index: entry.claim
        for entry in repository.ledger.entries()
        if aside.may_mean(entry.claim.index) and repository.content.length_of(entry.claim) is not None
    }

    for uuid in [record.uuid for record in repository.ledger.flow_files()]:
        repository.committer.commit([Delete(uuid)], creates=False)
    for _ in range(3):
        repository.clock.machine.advance(10 * 86_400)  # type: ignore[attr-defined]  # a ManualClock
        repository.reclamation.clean()
        repository.compactor.execute(repository.compactor.plan(), RunTicket())

    for index, claim in before.items():
        now = repository.ledger.claim(index)
        assert now is not None, index
        assert (now.holes, now.length) == (claim.holes, claim.length), index
    abandon(repository)


def test_content_moved_into_a_file_that_is_not_there_is_unavailable() -> None:
    """A relocation that fits all that is known, into an output that another record forgets: both can't be used."""
    moved = [output(), [22, claim()[0], 900, moves((0, 1 << 30, 0))], [6, 900]]
    path, data, id = with_transaction(killed(), moved)
    repository = reopen(killed().with_file(path, data), killed().spec)

    assert [each.place.split(" in ")[0] for each in repository.ledger.set_aside.all()] == [
        f"record 2 of transaction {id}"
    ]
    repository.proof.run()
    assert {each.record.claim.resource for each in repository.unavailable.listed(100) if each.record.claim} == {
        claim()[0]
    }
    abandon(repository)


def test_a_queue_whose_definition_is_missing_gets_a_name() -> None:
    """FlowFiles of a queue that no usable record defines stand in one that is named after its number."""
    path, data, _ = with_transaction(killed(), [flow_file(uuid=b"u" * 16, queue=999)])
    repository = reopen(killed().with_file(path, data), killed().spec)

    assert [record.uuid for record in repository.queues.find("queue 999").records()] == [b"u" * 16]
    abandon(repository)


def whole(data: bytes) -> bytes:
    """An operation that decodes, with the defaults of the fields that are left out."""
    try:
        operation = msgspec.msgpack.decode(data, type=Operation)
        if isinstance(operation, ResourceClaim):
            operation = msgspec.structs.replace(operation, changed=0)  # filled in when it was applied
        return msgspec.msgpack.encode(operation)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return data


@functools.cache
def seen() -> dict[bytes, Shown]:
    repository = reopen(killed().image, killed().spec)
    found, refused = shown(repository)
    abandon(repository)
    assert not refused
    return found
