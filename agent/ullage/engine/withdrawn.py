"""Objects that nobody may use any more, whoever still holds them: the parts of a repository in a forked child, and what
people hold of one that was closed.

Such an object is given a class that refuses. Nothing asks beforehand, so an open repository pays for nothing.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ullage.errors import RepositoryClosed, UllageError

LETTING_GO: Final = ("close", "abandon", "forked")
"""What does nothing then: to let go of something is never wrong."""

CLOSED: Final = "the repository is closed: open it again"


class Refusal(NamedTuple):
    """With what whoever uses a withdrawn object is refused, but for names that begin with `spared`.

    With two underscores whoever is in the midst of its work is stopped there, as only a child may be, which has no such
    threads. With one, work that has begun goes on to its end: its commit may be durable by now, and an error would have
    it done again.
    """

    error: type[UllageError]
    why: str
    spared: str


WHEN_CLOSED: Final = Refusal(RepositoryClosed, CLOSED, spared="_")

_kinds: dict[tuple[type, Refusal], type] = {}
"""Of each class the one that its objects have once they are withdrawn. They stay what they are."""


def withdraw(objects: Iterable[Any], refusal: Refusal) -> None:
    """Whoever uses one of these is refused from now on."""
    for each in objects:
        each.__class__ = _withdrawn_kind(type(each), refusal)


def _withdrawn_kind(kind: type, refusal: Refusal) -> type:
    if (kind, refusal) in _kinds:
        return _kinds[kind, refusal]

    def refuse(self: object, name: str) -> Any:
        if name in LETTING_GO or name.startswith(refusal.spared):
            return object.__getattribute__(self, name)
        raise refusal.error(refusal.why)

    def let_go(self: object) -> None:
        """Nothing."""

    names: dict[str, Any] = dict.fromkeys(LETTING_GO, let_go)
    made = type(kind)(kind.__name__, (kind,), names | {"__slots__": (), "__getattribute__": refuse, "__del__": let_go})
    _kinds[kind, refusal] = _kinds[made, refusal] = made
    return made
