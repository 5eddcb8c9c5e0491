"""What is loaded by name: ours, and what other packages bring as entry points."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import UnknownPlugin

T = TypeVar("T")


class Plugins(Generic[T]):
    """All implementations of one thing, which a setting chooses from by name.

    `kind` is what messages call the thing; `ours` leads from a name to `module:attribute`, as entry points do, so that
    nothing is imported before somebody chooses it. A name of ours cannot be taken by another package.
    """

    def __init__(self, group: str, kind: str, ours: Mapping[str, str]) -> None:
        self.group = group
        self._kind = kind
        self._ours = {name: EntryPoint(name, place, group) for name, place in ours.items()}

    def names(self) -> list[str]:
        """All there are: ours, then those of other packages by name."""
        return [*self._ours, *sorted(self._others().keys() - self._ours.keys())]

    @uninterrupted  # what a signal's handler raises is no word about the package
    def load(self, name: str) -> T:
        """The implementation of this name. UnknownPlugin, with the names there are, if there is none; also if it cannot
        be imported.
        """
        # Ours without a look at what else is installed: it reads the metadata of every package, 13 ms, and an open
        # repository chooses four times.
        entry = self._ours.get(name) or self._others().get(name)
        if entry is None:
            raise UnknownPlugin(
                f"there is no {self._kind} {name!r}: choose one of {', '.join(map(repr, self.names()))}"
            )
        try:
            return cast("T", entry.load())
        except Exception as error:  # another package's code may raise anything
            raise UnknownPlugin(f"{self._kind} {name!r} of {entry.value} cannot be loaded: {error}") from error

    def _others(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.group)}
