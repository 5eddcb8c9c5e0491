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

from ullage.errors import ForkedRepository

REFUSED: Final = "the repository is open in the parent of this process: open it anew in the child"

LETTING_GO: Final = ("close", "abandon", "forked")


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

_lost: dict[type, type] = {}
"""Of each class the one that its objects have in the child, which stays what it is."""


def refuse_in_child(inherited: Inherited) -> None:
    """From now on it is told in each forked child, as long as it lives."""
    _inherited.add(inherited)


def lose(*objects: Any) -> None:
    """In the child: whoever uses one of these is refused, also in the midst of its work; nothing asks beforehand, so
    that the parent pays for nothing. To let go of it does nothing.
    """
    for each in objects:
        kind = type(each)
        if kind not in _lost:
            _lost[kind] = _lost_kind(kind)
        each.__class__ = _lost[kind]


def _lost_kind(kind: type) -> type:
    def refuse(self: object, name: str) -> Any:
        if name in LETTING_GO or name.startswith("__"):
            return object.__getattribute__(self, name)
        raise ForkedRepository(REFUSED)

    def let_go(self: object) -> None:
        """Nothing: it is the parent's."""

    names: dict[str, Any] = dict.fromkeys(LETTING_GO, let_go)
    made = type(kind)(kind.__name__, (kind,), names | {"__slots__": (), "__getattribute__": refuse, "__del__": let_go})
    _lost[made] = made
    return made


def _in_child() -> None:
    try:
        for inherited in list(_inherited):
            inherited.forked()
        _inherited.clear()
    finally:
        steady.release()


os.register_at_fork(before=steady.acquire, after_in_parent=steady.release, after_in_child=_in_child)
