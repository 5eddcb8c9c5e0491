"""What a forked child has of the repositories that its parent has open: nothing.

Parent and child that both go on write the same files from two memories, and neither result opens. A descriptor that the
child keeps, the lock's above all, outlives the parent: nobody could open the repository while an idle child lives. Nor
may the child wait for a lock of the engine's: the thread that held it is not there.

This and the signal handlers of uninterrupted.py are the engine's only state of the whole process: neither forks nor
signals know another.
"""

import os
import threading
from typing import Any, Final, Protocol
from weakref import WeakSet

from ullage.engine.withdrawn import Refusal, withdraw
from ullage.errors import ForkedRepository

REFUSED: Final = "the repository is open in the parent of this process: open it anew in the child"


IN_CHILD: Final = Refusal(ForkedRepository, REFUSED, spared="__")


class Inherited(Protocol):
    """What a child must not use."""

    def forked(self) -> None:
        """Called in the child, before anything else runs there. It must wait for no lock: who held it is not there."""
        ...


steady = threading.RLock()
"""Held where a fork would copy a descriptor that the child could not find. A fork waits for it, so nothing slow is done
under it; a signal handler that forks meanwhile gets through, as it is of the same thread.
"""

_inherited: WeakSet[Inherited] = WeakSet()


def refuse_in_child(inherited: Inherited) -> None:
    """From now on it is told in each forked child, as long as it lives."""
    _inherited.add(inherited)


def lose(*objects: Any) -> None:
    """In the child: whoever uses one of these is refused; see `withdrawn.py`. To let go of it does nothing: it is the
    parent's.
    """
    withdraw(objects, IN_CHILD)


def _in_child() -> None:
    try:
        for inherited in list(_inherited):
            inherited.forked()
        _inherited.clear()
    finally:
        steady.release()


os.register_at_fork(before=steady.acquire, after_in_parent=steady.release, after_in_child=_in_child)
