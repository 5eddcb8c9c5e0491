"""Whether this process may acknowledge, hand out and read: where another may have the repository by now, it may not.

    asked before   a commit is refused before its frame is written; what is read or handed out is refused
    asked behind   a frame was written while it might, and is durable when it may not: nobody knows who counts it

    commit  | may | frame written ... durable | may not ......................... | may again: answered
    lease        held                         lapsed        renewed: nobody else has it

Whoever waits behind is answered when it may again, and told that nobody knows where that never comes: an error at once
would leave memory behind the ledger, for a repository that may go on a moment later.

Without a lease a node serves whatever the bucket does, until it sees that somebody else writes its share: from then on
nothing changes here, and what is here may be read. Behind that line is what it has alone:

    commit  | admitted | frame written ... durable: answered, it is of what only this node has
    fence                    seen          | admits no change
"""

import threading
from collections.abc import Sequence
from typing import Final, Protocol

from ullage.engine.model import (
    Delete,
    FlowFileRecord,
    Operation,
    QueueDefinition,
    SetAsideEnd,
    Staged,
    StagedWrite,
    SwapDrop,
    TransactionEvents,
    Update,
)
from ullage.errors import CommitOutcomeUnknown, LeaseLapsed, NodeFenced

CHANGES: Final = frozenset(
    {
        FlowFileRecord,
        Update,
        Delete,
        QueueDefinition,
        SwapDrop,
        TransactionEvents,
        StagedWrite,
        Staged,
        SetAsideEnd,
    }
)
"""Operations by which a repository says something else than before. The others are about where its bytes and records
lie, and who reads them: without those nothing could be read, and no space be given back.
"""


class ServingLease(Protocol):
    """What the right hangs on. `is_lost`: for good."""

    is_lost: bool

    @property
    def is_held(self) -> bool:
        """Whether it holds now; any thread may ask."""
        ...


class ServingRight:
    """Thread-safe. Until it is bound to a lease, or fenced, everything may be done."""

    def __init__(self) -> None:
        self._lease: ServingLease | None = None
        self._fence = ""
        self._is_over = False
        self._changed = threading.Condition()

    @property
    def is_given(self) -> bool:
        """Whether it may now, changes included."""
        lease = self._lease
        return not self._fence and (lease is None or lease.is_held)

    def bind(self, lease: ServingLease) -> None:
        """From now on it may only while this holds."""
        self._lease = lease

    def fence(self, why: str) -> None:
        """Somebody else has the repository, for good: from now on nothing is changed here, and what is here may be
        read. `why` says who has it, and what to do. Said again, that counts.
        """
        self._fence = why

    @property
    def may_change(self) -> bool:
        """Whether nobody else has the repository: where somebody does, nothing expires and nothing is purged."""
        return not self._fence

    def require_changes(self) -> None:
        """NodeFenced where what is here may only be read."""
        if self._fence:
            raise NodeFenced(self._fence)

    def require(self) -> None:
        """LeaseLapsed where it may not even read."""
        lease = self._lease
        if lease is None or lease.is_held:
            return
        if lease.is_lost:
            raise LeaseLapsed("another node has this repository by now (spec.replication.adoptAfter): go there")
        raise LeaseLapsed(
            "another node may have this repository by now: the bucket did not answer for spec.replication.adoptAfter, "
            "or not since the start. Nothing is served until it does"
        )

    def admit(self, operations: Sequence[Operation]) -> bool:
        """As `require` and `require_changes`, of a commit; whether somebody is told of it: who closes the repository
        has some of its own.
        """
        if self._is_over:
            return False
        self.require()
        if self._fence and not CHANGES.isdisjoint(map(type, operations)):
            raise NodeFenced(self._fence)
        return True

    def settle(self, id: int) -> None:
        """Behind a transaction that is durable: return when it may be answered. CommitOutcomeUnknown where nobody will
        know here. Where only a fence came meanwhile it is answered: it was promised to be on this node, and it is.
        """
        lease = self._lease
        if lease is None or lease.is_held:
            return
        with self._changed:
            self._changed.wait_for(lambda: lease.is_held or lease.is_lost or self._is_over)
        if not lease.is_held:
            raise CommitOutcomeUnknown(
                f"transaction {id} is on this node's disk, and was not answered in time: another node may have this "
                "repository by now, without it"
            )

    def notice(self) -> None:
        """The lease was renewed, or lost."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody commits any more but who closes the repository: whoever waits is told that nobody knows."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
