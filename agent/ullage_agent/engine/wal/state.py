"""What a write-ahead log is the log of: the interface that its owner implements."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ullage_agent.engine.model import Operation


class LogState(Protocol):
    """What the log is the log of."""

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        """Raise if the operations contradict the state: what cannot be applied must never be written."""
        ...

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        """Take one transaction in. Called in id order at restore, under the partition's lock afterwards."""
        ...

    def load(self, operations: list[Operation]) -> None:
        """Take one block of a snapshot in."""
        ...

    def freeze(self) -> Iterable[list[Operation]]:
        """A stable view of everything applied so far, in blocks; called under the exclusive lock, so short."""
        ...

    def release(self) -> None:
        """The view is no longer needed."""
        ...
