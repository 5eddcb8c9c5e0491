"""For whom a repository acts, and what is left out for them.

Every transport asks the repository of whoever asks, so that rules about queues are looked at in one place, whatever way
a request came.
"""

import copy
from collections.abc import Callable
from typing import Final

from ullage.contract import FEED_PREFIX, NO_QUEUE, QueueAccess, QueueUse, Right
from ullage.engine.servingright import ServingRight
from ullage.errors import Forbidden

OWNER: Final = "this process"
"""Who holds leases and asks for runs, where nobody else is told."""


class Acting:
    """One principal, as the repository sees them. Thread-safe."""

    def __init__(
        self,
        owner: str = OWNER,
        queues: QueueAccess | None = None,
        may: Callable[[Right], bool] = lambda _: True,
        by: str = "",
        leases_max: int | None = None,
        holds_max: int | None = None,
        writes_max: int | None = None,
        streams_max: int | None = None,
        queues_max: int | None = None,
        counters_max: int | None = None,
    ) -> None:
        """`may` says whether they have a right, and may take its time; `by` is what events call them. The rest bounds
        what they hold at a time: leases, holds of events, staged writes, streams of queues, queues that they made,
        counters that they named; None: as much as all together may.
        """
        self.owner = owner
        self.queues = queues or QueueAccess()
        self.may = may
        self.by = by
        self.leases_max = leases_max
        self.holds_max = holds_max
        self.writes_max = writes_max
        self.streams_max = streams_max
        self.queues_max = queues_max
        self.counters_max = counters_max
        self.right = ServingRight()

    def of(self, right: ServingRight) -> "Acting":
        """The same one, of a repository that may lose the right to serve anybody."""
        mine = copy.copy(self)
        mine.right = right
        return mine

    def require(self, use: QueueUse, queue: str = NO_QUEUE) -> None:
        """Forbidden if the rules do not let them do this in the queue, or with handles. LeaseLapsed: nobody may now;
        NodeFenced: nobody may but read.
        """
        self.right.require()
        if not self.queues.allows(use, queue):
            where = f"queue {queue}" if queue else "handles"
            raise Forbidden(f"{self.owner} may not {use} {where}: spec.auth.queues leaves that to others")
        if use != QueueUse.READ and queue.startswith(FEED_PREFIX) and not self.may(Right.REVOKE):
            raise Forbidden(f"{queue} is what a stream holds: it changes it itself, or who has {Right.REVOKE}")
        if use != QueueUse.READ:  # also to hand out: what is taken here could never be committed
            self.right.require_changes()

    def require_everywhere(self, use: QueueUse, what: str) -> None:
        """Forbidden if there may be a queue in which they may not do this: `what` does not tell queues apart. As
        `require`.
        """
        self.right.require()
        if not self.queues.allows_everywhere(use):
            raise Forbidden(
                f"{what}: that is for who may {use} every queue, and spec.auth.queues keeps {self.owner} out of some"
            )
        if use != QueueUse.READ:
            self.right.require_changes()


LOCAL: Final = Acting()
"""Whoever has the repository open, and so may do everything."""
