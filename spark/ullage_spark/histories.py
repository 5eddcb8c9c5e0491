"""Where a history is kept: tables of Parquet files, a folder of them or tables of Iceberg.

Each table has a *state* beside its rows: how far every node is read. Files and state of a commit become visible
together or not at all, so whoever is killed begins again where the last commit ended:

    write files          nobody sees them
    commit               a folder: `manifest.json` is replaced, which names all files and has the state
                         Iceberg: a transaction appends the files and sets the property `ullage.state`
    (killed in between)  the next run reads the same rows again into other files; those of a folder are removed

A history has one writer at a time. Readers of a folder go by its manifest; files that it does not name any more stay
for an hour, for those who began with the manifest before.
"""

import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, Protocol

import msgspec
import pyarrow as pa

from ullage.clock import Clock
from ullage_spark.errors import SparkSourceError

MANIFEST: Final = "manifest.json"
LOCK: Final = "lock"
KEPT_MILLIS: Final = 3_600_000
"""How long a file is there that the manifest does not name any more."""

State = dict[str, Any]
"""By node; JSON."""


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a table: the rows of one day, in UTC. `path` is below the folder, or the whole address."""

    path: str
    day: str
    rows: int
    bytes: int


class HistoryTable(Protocol):
    """One table of a history."""

    @property
    def id(self) -> str:
        """Of this table alone, for as long as it is there."""

    @property
    def location(self) -> str:
        """Where its files are."""

    @property
    def state(self) -> State:
        """What the last commit said."""

    def files(self) -> Sequence[HistoryFile]:
        """Those that were committed."""

    def address(self, file: HistoryFile) -> str:
        """Where anybody finds it."""

    def create(self, day: str) -> tuple[str, IO[bytes]]:
        """A new file, its path, and what to write it to."""

    def open(self, file: HistoryFile) -> Any:
        """Its bytes, for pyarrow."""

    def commit(self, state: State, added: Sequence[HistoryFile], removed: Sequence[HistoryFile] = ()) -> None:
        """All of it becomes visible at once, and is durable."""

    def drop(self, path: str) -> None:
        """Remove a file that was created and not committed."""


class _Removed(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    millis: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a folder's table."""

    id: str
    state: State
    files: tuple[HistoryFile, ...] = ()
    removed: tuple[_Removed, ...] = ()


class FolderTable:
    """A table in a folder of a filesystem that renames at once and keeps what was synced."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._manifest = _read(folder) or _Manifest(id=str(uuid.uuid4()), state={})

    @property
    def id(self) -> str:
        return self._manifest.id

    @property
    def location(self) -> str:
        return os.path.abspath(self._folder)

    @property
    def state(self) -> State:
        return self._manifest.state

    def files(self) -> Sequence[HistoryFile]:
        return self._manifest.files

    def address(self, file: HistoryFile) -> str:
        return os.path.join(self._folder, file.path)

    def create(self, day: str) -> tuple[str, IO[bytes]]:
        folder = os.path.join(self._folder, day)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            _sync(self._folder)
        path = os.path.join(day, f"{uuid.uuid4()}.parquet")
        return path, open(os.path.join(self._folder, path), "xb")

    def open(self, file: HistoryFile) -> Any:
        return pa.OSFile(self.address(file))

    def commit(self, state: State, added: Sequence[HistoryFile], removed: Sequence[HistoryFile] = ()) -> None:
        for each in added:
            _sync(self.address(each))
        for day in {each.day for each in added}:
            _sync(os.path.join(self._folder, day))
        now, gone = self._clock.now_millis(), {each.path for each in removed}
        fresh = _Manifest(
            id=self.id,
            state=state,
            files=(*(each for each in self._manifest.files if each.path not in gone), *added),
            removed=(
                *(each for each in self._manifest.removed if now - each.millis < KEPT_MILLIS),
                *(_Removed(path=path, millis=now) for path in sorted(gone)),
            ),
        )
        path = os.path.join(self._folder, MANIFEST)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(fresh), indent=1))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        _sync(self._folder)
        self._manifest = fresh

    def drop(self, path: str) -> None:
        os.unlink(os.path.join(self._folder, path))

    def sweep(self) -> None:
        """Remove files that no commit names: those of a run that was killed, and those that were replaced long ago."""
        now = self._clock.now_millis()
        named = {file.path for file in self._manifest.files}
        named |= {each.path for each in self._manifest.removed if now - each.millis < KEPT_MILLIS}
        for day in (each for each in os.scandir(self._folder) if each.is_dir()):
            for name in os.listdir(day.path):
                if (path := os.path.join(day.name, name)) not in named:
                    self.drop(path)


def _read(folder: str) -> _Manifest | None:
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            return msgspec.json.decode(file.read(), type=_Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise SparkSourceError(f"{folder}/{MANIFEST} is not one of a history: {error}") from error


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_tables(where: str, names: Iterable[str], clock: Clock) -> Iterator[dict[str, HistoryTable]]:
    """Those of a folder, by name, for its one writer; made if there are none. SparkSourceError if another process
    writes to it.
    """
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, LOCK), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SparkSourceError(f"another process writes to the history {where}") from None
        found: dict[str, HistoryTable] = {}
        for name in names:
            folder = os.path.join(where, name)
            os.makedirs(folder, exist_ok=True)
            table = found[name] = FolderTable(folder, clock)
            table.sweep()
        _sync(where)
        yield found


def addresses_of_files(where: str, table: str, days: Sequence[str] = ()) -> list[str]:
    """The Parquet files of a table of a history in a folder as they are now, of all days or of these: what
    `spark.read.parquet` and `pyarrow.dataset.dataset` take. SparkSourceError where there is no such table.
    """
    if not os.path.isdir(folder := os.path.join(where, table)):
        raise SparkSourceError(f"{where} holds no table {table} of a history")
    found = _read(folder)
    files = () if found is None else found.files
    return [os.path.join(folder, file.path) for file in files if not days or file.day in days]
