"""Transactions on their way from the log to a share: noted as they are applied, in memory, within a bound.

What the log applies at a start it notes too, so that a share that has all up to some transaction goes on behind it.
Beyond the bound nothing is noted any more: a share then needs a new base.
"""

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from ullage.engine.model import Operation

OPERATIONS_MAX: Final = 500_000
"""Operations that wait at most. Nearly all of them are records that the ledger has in memory as well."""


class TappedTransaction(NamedTuple):
    """A transaction as it was committed."""

    id: int
    millis: int
    operations: Sequence[Operation]


class ShippingTap:
    """Thread-safe. Off until `open`: then it costs a commit nothing."""

    def __init__(self, operations_max: int = OPERATIONS_MAX, *, is_open: bool = False) -> None:
        self._operations_max = operations_max
        self._lock = threading.Lock()
        self._waiting: list[TappedTransaction] = []
        self._operations = 0
        self._is_open = is_open
        self.is_lost = False
        """Whether something was not noted since it was opened."""

    @property
    def since_millis(self) -> int | None:
        """When the oldest that waits was committed."""
        with self._lock:
            return min((each.millis for each in self._waiting[:1]), default=None)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> None:
        """From now on everything is noted; what waits is forgotten."""
        with self._lock:
            self._forget()
            self._is_open, self.is_lost = True, False

    def close(self) -> None:
        """From now on nothing is."""
        with self._lock:
            self._forget()
            self._is_open = False

    def lose(self) -> None:
        """Forget what waits, and note nothing until it is opened again."""
        with self._lock:
            self._forget()
            self.is_lost = True

    def take(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        """A transaction is applied. With several partitions they come in another order than that of their ids."""
        if not self._is_open or self.is_lost:
            return
        with self._lock:
            self._operations += len(operations) + 1
            if self._operations > self._operations_max:
                self._forget()
                self.is_lost = True
            else:
                self._waiting.append(TappedTransaction(id, millis, operations))

    def through(self, durable: int) -> list[TappedTransaction]:
        """Those that wait up to an id, in their order; they wait no more."""
        with self._lock:
            taken = sorted((each for each in self._waiting if each.id <= durable), key=lambda each: each.id)
            self._waiting = [each for each in self._waiting if each.id > durable]
            self._operations -= sum(len(each.operations) + 1 for each in taken)
        return taken

    def _forget(self) -> None:
        self._waiting, self._operations = [], 0
