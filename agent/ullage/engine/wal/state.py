"""What a write-ahead log is the log of, and where files of records lie."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from ullage.engine.files import Files
from ullage.engine.model import Operation
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.serde import SerDe

Header = TypeVar("Header", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class RecordDirectory:
    """A directory of files that a SerDe writes, and the repository whose they are."""

    files: Files
    path: str
    repository: str
    serde: SerDe

    def header(self, kind: type[Header], **said: Any) -> Header:
        """The header of a file that is written here now; `said` is what its kind adds."""
        serde = self.serde
        return kind(
            format=FORMAT_VERSION, serde=serde.name, serde_version=serde.version, repository=self.repository, **said
        )


class LoggedState(Protocol):
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
