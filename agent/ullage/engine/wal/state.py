"""What a write-ahead log is the log of, and where files of records lie."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from ullage.engine.files import Files
from ullage.engine.model import Operation
from ullage.engine.wal.format import FORMAT_VERSION, UNDECODABLE
from ullage.engine.wal.serde import SerDe, Undecodable
from ullage.errors import FlowFileNotFound, RepositoryDamaged

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


def log_name(path: str) -> str:
    """`partition-<n>/<first id>.wal`: how a log file is named, so that a repository can be moved."""
    return "/".join(path.rsplit("/", 2)[-2:])


class RecordUnusable(RepositoryDamaged):
    """A record inside a valid checksum can't be used: a start that is careful sets it aside and goes on."""


UNUSABLE = (
    *(RepositoryDamaged, FlowFileNotFound, LookupError, ValueError, TypeError),
    *(AttributeError, ArithmeticError, AssertionError, *UNDECODABLE),
)
"""What using a record may raise whose checksum is right and whose meaning is not."""


class LoggedState(Protocol):
    """What the log is the log of.

    While it is restored, transactions and blocks are taken in whole (`replay`, `load`), and the first record that can't
    be used ends the restore with RecordUnusable; where it `is_careful`, they are taken in record by record
    (`replay_each`), and those that can't be used are set aside.
    """

    @property
    def is_careful(self) -> bool: ...

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        """Raise if the operations contradict the state: what cannot be applied must never be written."""
        ...

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        """Take one transaction in; called under the partition's lock."""
        ...

    def replay(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        """The same at restore, in id order."""
        ...

    def load(self, operations: list[Operation]) -> None:
        """Take one block of a snapshot in."""
        ...

    def end_load(self) -> None:
        """All blocks of the snapshot were taken in, whole or record by record; the log's transactions follow."""
        ...

    def replay_each(self, transaction: int, millis: int, found: Sequence[Operation | Undecodable], place: str) -> None:
        """Take in what can be used of a transaction or, as transaction 0, of a block of a snapshot, and set aside the
        rest. `place` names it for people.
        """
        ...

    def end_replay(self, last_id: int) -> bool:
        """All transactions were, up to this id; whether the state is another one now than they say, so that a snapshot
        must say it before anything is served.
        """
        ...

    def freeze(self) -> Iterable[Sequence[Operation]]:
        """A stable view of everything applied so far, in blocks; called under the exclusive lock, so short."""
        ...

    def release(self) -> None:
        """The view is no longer needed."""
        ...

    def published(self) -> None:
        """A snapshot of the last view was published: whatever holds its records beside it counts from now on."""
        ...
