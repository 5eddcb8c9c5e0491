"""Records that were written under right checksums, and that no start can use: all others come back, in every place."""

from typing import Any

import msgspec
import pytest

from tests.engine.flowfile.steps import SMALL, define, numbers, peek
from tests.support import Workshop, careless_log as careless_log, claim_of, drain, entry_of, put_all, put_each
from ullage.engine.engine import Engine
from ullage.engine.model import (
    Answer,
    Delete,
    FlowFileRecord,
    IndexCeiling,
    LeaseRecord,
    Operation,
    QueueDefinition,
    StagedWrite,
    SwapOut,
    Update,
    new_uuids,
)
from ullage.enums import SpaceUse
from ullage.wire.provenance import EventQuery

WILD: dict[str, Any] = {
    "a number beyond 63 bits": 1 << 63,
    "a negative number": -5,
    "a fraction": 0.5,
    "no number": float("nan"),
    "text": "seven",
    "nothing": None,
    "bytes": b"\xff\xfe",
    "a truth": True,
}
UUID = b"u" * 16

COUNTED = msgspec.msgpack.encode({"count": 5})
"""Attributes of which a value is no text, as an entrance that did not look once let in."""


@pytest.fixture(autouse=True)
def _careless(careless_log: None) -> None:
    """The log takes what it would not be able to read."""


def told(repository: Engine, place: str = "") -> list[tuple[bytes, str]]:
    """Bytes and reason of each record that was set aside."""
    return [(record.data, record.reason) for record in repository.set_aside.listed(100) if place in record.place]


def restarted(workshop: Workshop, how: str) -> Engine:
    """The log, or a snapshot, is what the next start reads."""
    if how == "snapshot":
        workshop.repository.checkpoint()
    workshop.kill()
    return workshop.open()


@pytest.mark.parametrize("how", ["log", "snapshot"])
@pytest.mark.parametrize("wild", WILD)
def test_a_wild_value_costs_its_own_record_only(workshop: Workshop, wild: str, how: str) -> None:
    """Of each kind of record one holds a value that no decoder takes; whatever else there is comes back."""
    repository = workshop.make()
    kept = put_all(repository, "q", numbers(5))
    value = WILD[wild]
    records: list[Operation] = [
        QueueDefinition(77, "wild", "FirstInFirstOut", "", value, 0, 0),
        FlowFileRecord(UUID, 77, None, 0, 0, value, 1, 1, b"\x80"),
        LeaseRecord(UUID, "reader", (claim_of(kept[0]).resource,), 1, 1, value),
        Answer(UUID, UUID, b"", value),
        StagedWrite(UUID, 1, "spark", 0, value, 1, 1 << 50),
    ]
    is_taken = isinstance(value, bool)  # msgpack's true is no number, and Python's is: what is written is a truth
    for record in records:
        repository.committer.commit([record], creates=False)
    put_all(repository, "q", numbers(5, 5))

    repository = restarted(workshop, how)

    aside = [data for data, _ in told(repository)]
    written = {msgspec.msgpack.encode(record) for record in records}
    if how == "log":
        assert is_taken or written <= set(aside), told(repository)
    else:  # some say by then which transaction they came with
        assert is_taken or sorted(data[1] for data in aside) == [1, 4, 23, 25, 26], told(repository)
    assert peek(repository, "q") == numbers(10)
    for again in range(2):
        assert [data for data, _ in told(workshop.restart(["clean", "crash"][again]))] == aside
    assert peek(workshop.repository, "q") == numbers(10)


@pytest.mark.parametrize("how", ["log", "snapshot"])
def test_attributes_that_are_none_stop_nobody(workshop: Workshop, how: str) -> None:
    """What a decoder of records does not look into is looked at all the same: else every rollover of events fails."""
    repository = workshop.make()
    record, other = put_all(repository, "q", numbers(2))
    fields = {"uuid": UUID, "attributes": COUNTED}
    repository.committer.commit([msgspec.structs.replace(record, **fields)], creates=True)
    repository.committer.commit([Update(other.uuid, set_attributes=b"\x81\xa1n\xc0")], creates=False)

    repository = restarted(workshop, how)

    reasons = [reason for _, reason in told(repository)]
    assert len(reasons) == 2, reasons
    assert peek(repository, "q") == numbers(1)
    repository.provenance.drain()
    aside = repository.set_aside.listed(10)
    gone = {flow_file.uuid for each in aside for flow_file in each.flow_files} | {each.uuids for each in aside}
    assert gone >= {UUID, other.uuid}


def test_a_flow_file_goes_with_the_record_that_names_it(workshop: Workshop) -> None:
    """Its state before is kept, its content is neither read nor given back, and what names it later follows it."""
    repository = workshop.make(archive={"enabled": False})
    first, second, third = put_each(repository, "q", [b"a" * 100_000, b"b" * 100_000, b"c" * 100_000])
    repository.committer.commit([Update(second.uuid, queued=-1)], creates=False)
    repository.committer.commit([Delete(second.uuid + third.uuid)], creates=False)

    repository = restarted(workshop, "log")

    update, delete = repository.set_aside.listed(10)
    assert [record.uuid for record in update.flow_files] == [second.uuid]
    assert update.resources == (claim_of(second).resource,)
    assert "was set aside" in delete.reason
    assert delete.data == msgspec.msgpack.encode(Delete(second.uuid))
    assert peek(repository, "q") == [b"a" * 100_000]

    drain(repository, "q")
    repository.checkpoint()
    repository.reclamation.clean()
    assert repository.ledger.entry(claim_of(first).resource) is None
    assert repository.ledger.entry(claim_of(third).resource) is None
    assert workshop.content_file(claim_of(second).resource).read_bytes() == b"b" * 100_000


def test_a_dropped_record_gives_its_space_back_and_is_told_of(workshop: Workshop) -> None:
    """A person's word: a DROP event that names them for each FlowFile, and the next cleaning takes the file."""
    repository = workshop.make(archive={"enabled": False})
    (record,) = put_all(repository, "q", [b"x" * 100_000])
    repository.committer.commit([Update(record.uuid, queued=-1)], creates=False)
    repository = restarted(workshop, "log")
    (aside,) = repository.set_aside.listed(10)

    repository.reclamation.clean()
    assert workshop.content_file(claim_of(record).resource).exists()
    assert repository.set_aside.drop([aside.id, b"?" * 16], "ann") == 1

    assert repository.set_aside.listed(10) == []
    repository.reclamation.clean()
    assert repository.ledger.entry(claim_of(record).resource) is None
    found = repository.history.query(EventQuery(types=["DROP"])).events
    assert [(event.flow_file, event.component_type) for event in found] == [(record.id, "ann")]
    assert workshop.crash().set_aside.listed(10) == []


def test_a_transaction_without_a_time_costs_none_of_its_records(workshop: Workshop) -> None:
    """It says when, and nothing follows from that."""
    repository = workshop.make()
    serde = repository.log._place.serde  # type: ignore[attr-defined]
    encode = serde.encode
    serde.encode = lambda millis, operations: encode("then", operations)
    put_all(repository, "q", [b"x"])
    serde.encode = encode

    repository = restarted(workshop, "log")

    assert repository.set_aside.listed(10) == []
    assert drain(repository, "q") == [b"x"]


def test_a_transaction_that_is_none_holds_everything_back(workshop: Workshop) -> None:
    """Nobody can say what it meant: nothing that was there before goes, until it is given up."""
    repository = workshop.make(archive={"enabled": False})
    records = put_each(repository, "q", [b"x" * 100_000, b"y" * 100_000])
    serde = repository.log._place.serde  # type: ignore[attr-defined]
    encode = serde.encode
    serde.encode = lambda millis, operations: b"\x93\x01\x02\x03"
    repository.committer.commit([Delete(b"")], creates=False)
    serde.encode = encode
    repository = restarted(workshop, "log")
    ceiling = repository.ledger.index_ceiling

    (aside,) = repository.set_aside.listed(10)
    assert (aside.data, aside.held_through > 0) == (b"\x93\x01\x02\x03", True)
    drain(repository, "q")
    repository.reclamation.clean()
    assert all(workshop.content_file(claim_of(record).resource).exists() for record in records)

    (new,) = put_all(repository, "q", [b"z" * 100_000])
    assert claim_of(new).resource > ceiling > 1 << 32, "an index that may have been handed out was given again"
    drain(repository, "q")
    repository.reclamation.clean()
    assert repository.ledger.entry(claim_of(new).resource) is None
    repository.set_aside.drop([aside.id])
    repository.reclamation.clean()
    assert not [record for record in records if repository.ledger.entry(claim_of(record).resource)]


def test_an_index_that_cannot_be_known_is_not_given_again(workshop: Workshop) -> None:
    """The record that says how far indexes went can't be used: they go on far behind what they can have been."""
    repository = workshop.make()
    (record,) = put_all(repository, "q", [b"x"])
    repository.committer.commit([IndexCeiling(1 << 63)], creates=False)

    repository = restarted(workshop, "log")

    (new,) = put_all(repository, "q", [b"y"])
    assert claim_of(new).resource > claim_of(record).resource + (1 << 31)
    assert peek(repository, "q") == [b"x", b"y"]


def test_a_swap_file_gives_back_what_can_be_used(workshop: Workshop) -> None:
    """A record in it that can't be used is set aside when the others come back, and its content is held from before."""
    repository = workshop.make(flow_file=SMALL, archive={"enabled": False})
    define(repository)
    records = put_each(repository, "q", numbers(6))
    extra = put_each(repository, "other", numbers(3, 6))
    swapped = [
        msgspec.structs.replace(extra[0], uuid=new_uuids(1)[0], queue=records[0].queue),
        msgspec.structs.replace(extra[1], uuid=UUID, queue=records[0].queue, lineage_millis=-1),
        msgspec.structs.replace(extra[2], uuid=b"v" * 16, queue=records[0].queue, attributes=COUNTED),
    ]
    repository.committer.commit(list(swapped), creates=True)
    repository.queues._write_swap(repository.queue("q"), swapped)
    drain(repository, "other")
    repository = restarted(workshop, "snapshot")
    found = repository.check()
    assert (found.problems, len(found.set_aside)) == ((), 2)

    assert drain(repository, "q") == numbers(7)

    assert len(repository.set_aside.listed(10)) == 2
    assert {each.uuids for each in repository.set_aside.listed(10)} == {UUID, b"v" * 16}
    assert repository.queue("q").figures()[:2] == (0, 0)
    repository.reclamation.clean()
    assert entry_of(repository, extra[1]) is not None
    repository = workshop.crash()
    assert {each.uuids for each in repository.set_aside.listed(10)} == {UUID, b"v" * 16}


def test_a_swap_file_whose_block_is_none_gives_back_nothing_and_stops_nobody(workshop: Workshop) -> None:
    """It is passed over as a damaged one is, and the log and snapshot behind it are read."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    serde = repository.log._place.serde  # type: ignore[attr-defined]
    put_each(repository, "q", [b"1", b"2"])
    encode = serde.encode_block
    serde.encode_block = lambda operations: b"\x07"
    put_each(repository, "q", [b"3", b"4"])
    serde.encode_block = encode

    assert drain(repository, "q") == [b"1", b"2"]
    repository = restarted(workshop, "log")

    workshop.expects_problems = True
    put_all(repository, "q", [b"5"])
    assert drain(repository, "q") == [b"5"]


def test_a_repair_leaves_the_swap_file_of_a_record_that_was_set_aside(workshop: Workshop) -> None:
    """Its FlowFiles may be nowhere else."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    commit = repository.committer.commit

    def carelessly(operations: list[Operation], **options: Any) -> int:
        wild = [
            msgspec.structs.replace(each, size_bytes=-5) if isinstance(each, SwapOut) else each for each in operations
        ]
        return commit(wild, **options)

    repository.committer.commit = carelessly  # type: ignore[assignment, method-assign]
    put_each(repository, "q", numbers(6))
    names = repository.swap_files.names()
    assert names
    repository = restarted(workshop, "log")
    assert {record.swap_file for record in repository.ledger.set_aside.all()} >= set(names)

    repository.repair.execute(repository.repair.plan(deep=True))

    assert set(repository.swap_files.names()) >= set(names)


def test_a_check_names_them_and_succeeds(workshop: Workshop) -> None:
    """They are no contradiction: everything else is as it should be."""
    repository = workshop.make()
    repository.committer.commit([QueueDefinition(77, "wild", "FirstInFirstOut", "", 1 << 63, 0, 0)], creates=False)
    repository = restarted(workshop, "log")

    found = repository.check(deep=True)

    assert found.problems == ()
    (named,) = found.set_aside
    assert "record 0 of transaction" in named
    assert "does not decode" in named


def test_what_is_set_aside_is_in_the_sum_of_all_bytes(workshop: Workshop) -> None:
    """Its dead bytes have a reason of their own."""
    repository = workshop.make(archive={"enabled": False})
    (record,) = put_all(repository, "q", [b"x" * 100_000])
    repository.committer.commit([Update(record.uuid, queued=-1)], creates=False)
    repository = restarted(workshop, "log")

    shares = {share.use: share.bytes for share in repository.account.explain(repository.spec)}

    assert shares[SpaceUse.SET_ASIDE] >= 100_000


def test_the_careful_start_is_made_once(workshop: Workshop) -> None:
    """The start that sets aside writes a snapshot, by which all later ones are ordinary."""
    repository = workshop.make()
    repository.committer.commit([QueueDefinition(77, "wild", "FirstInFirstOut", "", 1 << 63, 0, 0)], creates=False)

    first, second = restarted(workshop, "log"), restarted(workshop, "log")

    assert first._state.careful is not None
    assert second._state.careful is None
    assert len(second.set_aside.listed(10)) == 1
