import random
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support import Workshop, committing, put_all
from tests.threads import in_thread
from ullage.engine.byteranges import Move, pack_moves
from ullage.engine.ledger.blockrows import DELETED
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.state import SwapContent
from ullage.engine.ledger.swap import summarize
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import (
    NO_ATTRIBUTES,
    ClaimBlocks,
    Content,
    ContentClaim,
    Delete,
    FlowFileRecord,
    IndexCeiling,
    Operation,
    QueueDefinition,
    Relocation,
    ResourceClaim,
    SwapDrop,
    SwapIn,
    Update,
    new_uuids,
)


def no_swap(name: str) -> SwapContent:
    raise AssertionError(name)


def state_of(ledger: Ledger) -> dict[str, object]:
    """All that a snapshot must bring back."""
    return {
        "records": {record.uuid: record for record in ledger.flow_files()},
        "resources": {
            entry.claim.index: (
                msgspec.structs.replace(
                    entry.claim, last_death_millis=entry.last_death_millis, last_death=entry.last_death
                ),
                entry.claimants,
                entry.bytes_live,
                entry.relocation,
                set(entry.sources or ()),
            )
            for entry in ledger.entries()
        },
        "queues": dict(ledger.queues),
        "swaps": dict(ledger.swaps),
        "ceiling": ledger.index_ceiling,
    }


def loaded(blocks: Iterable[Sequence[Operation]]) -> dict[str, object]:
    """The state that a start would have after this snapshot."""
    ledger = Ledger(no_swap)
    for block in blocks:
        ledger.load(block)
    return state_of(ledger)


class Writer:
    """Commits transactions of every kind to a bare ledger."""

    def __init__(self, seed: int) -> None:
        self.ledger = Ledger(no_swap)
        self.chooser = random.Random(seed)
        self.swapped: dict[str, SwapContent] = {}
        self.transaction = 0
        self.resource = 0

    def commit(self, *operations: Operation) -> None:
        self.transaction += 1
        self.ledger.apply(self.transaction, 1_000 + self.transaction, operations)

    def step(self) -> None:
        deeds = [self.create, self.create, self.update, self.delete, self.swap_out, self.bring_in, self.relocate]
        self.chooser.choice(deeds)()

    def create(self) -> None:
        self.resource += 1
        claims = [ContentClaim(self.resource, offset, 300_000, 1) for offset in (0, 300_000)]
        self.commit(
            ResourceClaim(self.resource, "c1", 1),
            *(ClaimBlocks(claim.resource, claim.offset, b"12345678") for claim in claims),
            *(
                FlowFileRecord(uuid, 1, claim, 0, 10, 1, 1, self.transaction, NO_ATTRIBUTES)
                for claim in claims
                for uuid in new_uuids(2)
            ),
        )

    def relocate(self) -> None:
        """Two resource claims move to an output: once, or over again from another one."""
        born = [entry.claim.index for entry in self.ledger.entries() if entry.claim.length == 0]
        if born:
            self.resource += 1
            moves = pack_moves([Move(0, 300_000, 0), Move(300_000, 300_000, 400_000)])
            sources = self.chooser.sample(sorted(born), min(2, len(born)))
            self.commit(
                ResourceClaim(self.resource, "c1", 1, length=700_000, sealed=True),
                *(Relocation(source, self.resource, moves) for source in sources),
            )

    def some(self, count: int) -> list[FlowFileRecord]:
        records = sorted(self.ledger.flow_files(), key=lambda record: record.uuid)
        return self.chooser.sample(records, min(count, len(records)))

    def update(self) -> None:
        donor = self.some(1)
        for record in self.some(3):
            self.commit(Update(record.uuid, content=Content(donor[0].claim, 0, 5), queued=self.transaction))

    def delete(self) -> None:
        records = self.some(4)
        if records:
            self.commit(Delete(b"".join(record.uuid for record in records)))

    def swap_out(self) -> None:
        records = self.some(3)
        if records:
            summary = summarize(records, self.ledger.queues[1], self.transaction)
            self.swapped[summary.name] = SwapContent(records)
            uuids = b"".join(record.uuid for record in records)
            self.commit(msgspec.structs.replace(summary, uuids=uuids))

    def bring_in(self) -> None:
        if self.swapped:
            name = self.chooser.choice(sorted(self.swapped))
            content = self.swapped.pop(name)
            if self.chooser.random() < 0.3:
                self.commit(SwapDrop(name))
            else:
                self.ledger.swap_contents[name] = content
                self.commit(SwapIn(name))


@given(st.integers(0, 1 << 32), st.integers(0, 15), st.lists(st.integers(0, 3), max_size=60))
def test_a_view_is_one_moment(seed: int, first: int, steps: list[int]) -> None:
    """A snapshot read while transactions go on is the state at its freeze, all of it and nothing later: writers copy
    what they change, before the first block is read and after it.
    """
    writer = Writer(seed)
    writer.commit(QueueDefinition(1, "q", "FirstInFirstOut", "priority", 0, 0, 0), IndexCeiling(100))
    for _ in range(12):
        writer.step()
    before = state_of(writer.ledger)
    reading = iter(writer.ledger.freeze())
    writer.commit(IndexCeiling(9_999), QueueDefinition(1, "q", "NewestFirst", "priority", 0, 0, 0))
    read: list[Sequence[Operation]] = []
    for count in [first, *steps, 0]:
        for _ in range(count):
            writer.step()
        read.extend(block for block in [next(reading, None)] if block)
    read.extend(reading)
    writer.ledger.release()

    assert loaded(read) == before


def test_block_checksums_of_the_dead_stay_with_the_checkpoint_and_with_whoever_reads_by_them() -> None:
    """A claim that dies while the checkpoint is written keeps its block CRCs there: the log may not hold its death. A
    reader keeps them too, until the last unpin.
    """
    ledger = Ledger(no_swap)
    claim, blocks = ContentClaim(1, 0, 300_000, 1), ClaimBlocks(1, 0, b"12345678")
    record = FlowFileRecord(new_uuids(1)[0], 1, claim, 0, 10, 1, 1, 1, NO_ATTRIBUTES)
    ledger.apply(1, 1, [ResourceClaim(1, "c1", 1), blocks, record])
    frozen, _ = ledger.blocks.freeze()
    ledger.pin([claim])
    ledger.pin([claim])

    ledger.apply(2, 2, [Delete(record.uuid)])
    ledger.unpin([claim])
    assert ledger.blocks.find((1, 0)) == b"12345678"

    ledger.unpin([claim])
    assert ledger.blocks.find((1, 0)) == DELETED
    assert frozen == {(1, 0): b"12345678"}


def test_one_view_at_a_time() -> None:
    """Two checkpoints at a time would each miss what the other copied."""
    ledger = Ledger(no_swap)
    assert isinstance(ledger.freeze(), LedgerView)

    with pytest.raises(AssertionError, match="two checkpoints"):
        ledger.freeze()

    ledger.release()
    ledger.freeze()


def test_checkpoints_beside_commits(workshop: Workshop) -> None:
    """Snapshots published while several threads commit lose and invent nothing, whatever the log adds."""
    repository = workshop.make(flow_file={"swap_threshold": 20, "swap_batch": 10})

    def commit(name: str) -> None:
        for number in range(60):
            put_all(repository, "q", [f"{name}{number}".encode()])
            with committing(repository) as session:
                for record in session.get_many("q", 1):
                    session.transfer(session.put_attribute(record, "seen", name), "r")

    with in_thread(*(partial(commit, name) for name in "abc")):
        for _ in range(8):
            repository.checkpoint()

    repository = workshop.crash()
    total = sum(repository.queue(name).figures().flow_files for name in "qr")
    assert total == 180
