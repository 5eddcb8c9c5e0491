"""The newest events: committed, in the log, and not yet in an event file.

They are kept as the operations they are worked out from, which live FlowFiles share with the ledger. A transaction
enters when it is applied and counts once it is durable; then it gets its place in the sequence, which follows from
its id alone: a restart that reads the log again comes to the same numbers.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ullage.engine.model import Operation, TransactionEvents
from ullage.engine.provenance.events import RecordedTransaction, count_events, require_subjects, size_of


class Numbered(NamedTuple):
    """A durable transaction, and the sequence number of its first event."""

    told: RecordedTransaction
    first_sequence: int

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.told.events - 1


class Tail:
    """Thread-safe. `drained` is the last transaction whose events are in event files; `next_sequence` follows them.

    `events` counts those of all transactions here, `bytes` (about) only of durable ones.
    """

    def __init__(self, drained: int = 0, next_sequence: int = 1) -> None:
        self._lock = threading.Lock()
        self._drained = drained
        self._next = next_sequence
        self._fresh: list[RecordedTransaction] = []
        self._settled: list[Numbered] = []
        self.events = 0
        self.bytes = 0

    def take(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        """One transaction was applied. Those that are drained already, and those without events, pass by."""
        # Events stand last, so that most commits without any cost one look.
        if id <= self._drained or not operations or type(operations[-1]) is not TransactionEvents:
            return
        require_subjects(id, operations)
        told = RecordedTransaction(id, millis, operations, count_events(operations[-1:]))
        with self._lock:
            self._fresh.append(told)
            self.events += told.events

    def told(self) -> list[RecordedTransaction]:
        """Everything that is here, durable or not."""
        with self._lock:
            return [*(numbered.told for numbered in self._settled), *self._fresh]

    def settle(self, durable: int) -> None:
        """Number what has become durable, in the order of transactions."""
        with self._lock:
            if not self._fresh:
                return
            # Partitions apply side by side, so transactions come out of order; sequence numbers follow ids.
            self._fresh.sort(key=lambda told: told.transaction)
            ready = 0
            for told in self._fresh:
                if told.transaction > durable:
                    break
                self._settled.append(Numbered(told, self._next))
                self.bytes += size_of(told)
                self._next += told.events
                ready += 1
            del self._fresh[:ready]

    def numbered(self, after: int = 0) -> list[Numbered]:
        """The durable transactions that hold events with a sequence above `after`, in order."""
        with self._lock:
            at = bisect_right(self._settled, after, key=lambda numbered: numbered.last_sequence)
            return self._settled[at:]

    def forget(self, count: int) -> None:
        """The first `count` durable transactions are in an event file now."""
        with self._lock:
            gone = self._settled[:count]
            del self._settled[:count]
            if gone:
                self._drained = gone[-1].told.transaction
            self.events -= sum(numbered.told.events for numbered in gone)
            self.bytes -= sum(size_of(numbered.told) for numbered in gone)
