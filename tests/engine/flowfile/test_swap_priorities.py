"""What a consumer of a queue in an order of priorities gets first, when most of the queue is swapped out."""

import random
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from tests.engine.flowfile.steps import define
from tests.support import Workshop, drain, put_all
from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec, FlowFileSettings, QueuePriority
from ullage.engine.content.availability import Availability
from ullage.engine.files import OsFiles
from ullage.engine.flowfile.order import key_of
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.state import SwapContent
from ullage.engine.ledger.swap import summarize
from ullage.engine.model import FlowFileRecord, QueueDefinition, SwapOut, pack_attributes
from ullage.engine.parts import RepositoryParts
from ullage.engine.wal.serde import SerDe
from ullage.memory.content import MemoryContentStore

THRESHOLD = FlowFileSettings().swap_threshold
BATCH = FlowFileSettings().swap_batch

_PARTS = RepositoryParts(OsFiles(), Clock(), ContentRepositorySpec.embedded("nowhere"), SerDe(), "")
NOTHING_DAMAGED = Availability(
    Ledger(lambda name: SwapContent([], [])), MemoryContentStore(_PARTS, lambda _ceiling: None)
)

Key = Callable[[Any], Any]


class NiFiQueue:
    """NiFi's SwappablePriorityQueue: arrivals above the threshold wait; of those that wait, the best batch becomes a
    swap file; the files come back in the order in which they were written, and before what still waits.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.active: list[FlowFileRecord] = []
        self.waiting: list[FlowFileRecord] = []
        self.files: deque[list[FlowFileRecord]] = deque()

    def offer(self, records: list[FlowFileRecord]) -> None:
        for record in records:
            if self.files or self.waiting or len(self.active) >= THRESHOLD:
                self.waiting.append(record)
            else:
                self.active.append(record)
        while len(self.waiting) >= BATCH:
            self.waiting.sort(key=self.key)
            self.files.append(self.waiting[:BATCH])
            del self.waiting[:BATCH]

    def poll(self, count: int) -> list[FlowFileRecord]:
        taken: list[FlowFileRecord] = []
        self.active.sort(key=self.key)
        while len(taken) < count:
            if not self.active and self.files:
                self.active = self.files.popleft()
            elif not self.active:
                self.waiting.sort(key=self.key)
                self.active, self.waiting = self.waiting[:THRESHOLD], self.waiting[THRESHOLD:]
            part = self.active[: count - len(taken)]
            if not part:
                break
            del self.active[: len(part)]
            taken += part
        return taken


class Swapping:
    """A queue with swap files in memory, moved as the manager moves them. A restart knows their summaries alone."""

    def __init__(self, definition: QueueDefinition) -> None:
        self.queue = FlowFileQueue(definition, THRESHOLD, BATCH, NOTHING_DAMAGED)
        self.files: dict[str, list[FlowFileRecord]] = {}

    def offer(self, records: list[FlowFileRecord]) -> None:
        self.queue.offer(records)
        while batch := self.queue.take_swap_batch():
            summary = summarize(batch, self.queue.definition, 0)
            self.files[summary.name] = batch
            self.queue.swapped_out(summary)

    def poll(self, count: int) -> list[FlowFileRecord]:
        taken: list[FlowFileRecord] = []
        while len(taken) < count:
            if self.queue.needs_swap_in():
                summary = self.queue.first_swapped()
                assert summary is not None
                self.queue.swapped_in(summary, self.files.pop(summary.name))
            records = self.queue.poll(count - len(taken), 0).records
            if not records:
                break
            self.queue.acknowledge(records)
            taken += records
        return taken

    def restart(self, definition: QueueDefinition | None = None) -> None:
        summaries = [
            msgspec.msgpack.decode(msgspec.msgpack.encode(s), type=SwapOut) for s in self.queue.swap_summaries()
        ]
        records = self.queue.records()
        self.queue = FlowFileQueue(definition or self.queue.definition, THRESHOLD, BATCH, NOTHING_DAMAGED)
        self.queue.restore(records, sum(record.size for record in records), summaries[::-1])
        assert len(records) <= THRESHOLD + BATCH


def arrivals(chance: random.Random, count: int, first: int = 0) -> list[FlowFileRecord]:
    """FlowFiles whose priority, age and size say nothing of each other, nor of when they arrive."""
    return [
        FlowFileRecord(
            uuid=number.to_bytes(16, "big"),
            queue=1,
            claim=None,
            start=0,
            size=chance.randrange(60_000),
            entry_millis=0,
            lineage_millis=chance.randrange(60_000),
            queued=number,
            attributes=pack_attributes({"priority": str(chance.randrange(60_000)), "other": "x"}),
        )
        for number in range(first + 1, first + count + 1)
    ]


def ordered_by(priority: QueuePriority) -> QueueDefinition:
    return QueueDefinition(1, "q", str(priority), "priority", 0, 0, 0)


def standing(polled: list[FlowFileRecord], key: Key) -> list[float]:
    """After each 10,000 polled: the mean place, in the order asked for, of all that were polled until then."""
    rank = {record.uuid: place for place, record in enumerate(sorted(polled, key=key))}
    sums = list(accumulate(rank[record.uuid] for record in polled))
    return [sums[at - 1] / at for at in range(10_000, len(polled) + 1, 10_000)]


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("priority", list(QueuePriority))
@pytest.mark.parametrize("seed", [1])
def test_the_best_come_first_at_the_defaults(seed: int, priority: QueuePriority, restart: bool) -> None:
    """Of 60,000 FlowFiles of random priority whoever has polled some has polled no worse ones than NiFi hands out, and
    from file to file they become worse, not better.
    """
    chance = random.Random(seed)
    definition = ordered_by(priority)
    key = key_of(definition)
    ours, theirs = Swapping(definition), NiFiQueue(key)
    for first in range(0, 60_000, 5_000):
        records = arrivals(chance, 5_000, first)
        ours.offer(records)
        theirs.offer(records)
    if restart:
        ours.restart()

    polled = ours.poll(70_000)

    assert sorted(record.queued for record in polled) == list(range(1, 60_001))
    assert all(
        mine <= nifi for mine, nifi in zip(standing(polled, key), standing(theirs.poll(70_000), key), strict=True)
    )
    assert standing(polled, key) == sorted(standing(polled, key))


@pytest.mark.parametrize("priority", list(QueuePriority))
@pytest.mark.parametrize("seed", [4])
def test_arrivals_between_polls(seed: int, priority: QueuePriority) -> None:
    """Polls, arrivals and restarts in any order: each FlowFile once, and the best earlier than from NiFi."""
    chance = random.Random(seed)
    definition = ordered_by(priority)
    key = key_of(definition)
    ours, theirs = Swapping(definition), NiFiQueue(key)
    mine: list[FlowFileRecord] = []
    nifi: list[FlowFileRecord] = []
    for first in range(0, 90_000, 6_000):
        records = arrivals(chance, 6_000, first)
        ours.offer(records)
        theirs.offer(records)
        count = chance.choice([0, 1_000, 4_000])
        mine += ours.poll(count)
        nifi += theirs.poll(count)
        if not chance.randrange(4):
            ours.restart()

    mine += ours.poll(130_000)
    nifi += theirs.poll(130_000)

    assert sorted(record.queued for record in mine) == list(range(1, 90_001))
    assert sum(standing(mine, key)) <= sum(standing(nifi, key))


@pytest.mark.parametrize("seed", [5])
def test_a_new_order_decides_which_file_comes_back(seed: int) -> None:
    """After a redefinition the files come by what the new order says of their first FlowFile; none is lost."""
    ours = Swapping(ordered_by(QueuePriority.LARGEST_FIRST))
    ours.offer(arrivals(random.Random(seed), 60_000))
    by_age = ordered_by(QueuePriority.OLDEST_FIRST)
    ours.queue.redefine(by_age)

    firsts = [summary.first for summary in ours.queue.swap_summaries()]

    assert len(firsts) == 4
    assert firsts == sorted(firsts, key=key_of(by_age))
    assert sorted(record.queued for record in ours.poll(70_000)) == list(range(1, 60_001))


@pytest.mark.parametrize("seed", [6])
@pytest.mark.parametrize("restart", ["none", "clean", "crash", "checkpoint"])
def test_through_swap_files_on_disk(workshop: Workshop, restart: str, seed: int) -> None:
    """Whatever ended the process, the swap files of a queue of priorities come back best first."""
    repository = workshop.make(flow_file={"swap_threshold": 6, "swap_batch": 3})
    define(repository, priority="PriorityAttribute", priority_attribute="rank")
    ranks = random.Random(seed).sample(range(100, 1_000), 60)
    for rank in ranks:
        put_all(repository, "q", [str(rank).encode()], rank=str(rank))
    repository = workshop.restart(restart)
    files = repository.queue("q").swap_summaries()
    firsts = [int(repository.swap_files.read(summary.name).records[0].attribute_map()["rank"]) for summary in files]

    assert len(files) >= 15
    assert firsts == sorted(firsts)
    assert sorted(int(content) for content in drain(repository, "q")) == sorted(ranks)
