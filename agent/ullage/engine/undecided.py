"""Handles that a transaction is changing which is not known to be durable: applied, and perhaps taken back by a crash.

    put      | applied, in the ledger | synced, `put` returns |
    reader        | finds it, waits for the sync .............. | shown

Without the wait a reader could act on a handle, and the power fail: after the restart there never was one. Who finds
none of these, which is nearly always, waits for nothing.
"""

from collections.abc import Callable, Collection, Iterable
from types import TracebackType

from ullage.errors import CommitOutcomeUnknown


class Change:
    """One transaction's handles, for the time of its commit; see `Undecided.change`."""

    __slots__ = ("_among", "_found", "_uuids")

    def __init__(self, among: "set[Change]", uuids: Callable[[], Iterable[bytes]]) -> None:
        self._among = among
        self._uuids = uuids
        self._found: frozenset[bytes] | None = None

    @property
    def uuids(self) -> frozenset[bytes]:
        """Made when somebody asks: a writer of a thousand handles has no use for it."""
        if self._found is None:
            self._found = frozenset(self._uuids())
        return self._found

    def __enter__(self) -> None:
        self._among.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What is unknown, or was interrupted, stays: readers ask the log about it, for as long as the process lives.
        if kind is None or (issubclass(kind, Exception) and not issubclass(kind, CommitOutcomeUnknown)):
            self._among.discard(self)


class Undecided:
    """Thread-safe: a set's single steps are. Only contexts change `changes`; nearly always there are none."""

    def __init__(self) -> None:
        self.changes: set[Change] = set()

    def change(self, uuids: Callable[[], Iterable[bytes]]) -> Change:
        """A context for the commit that creates or changes these; they are asked for if a reader comes meanwhile."""
        return Change(self.changes, uuids)

    def touches(self, uuids: Collection[bytes]) -> bool:
        """Whether one of these, as the ledger had it before this call, may be taken back."""
        return any(not change.uuids.isdisjoint(uuids) for change in list(self.changes))
