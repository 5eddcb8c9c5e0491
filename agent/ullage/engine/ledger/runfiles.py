"""The directory of a repository's runs: rows of the ledger that left memory.

    <root>/flowfile/runs/<number>.run

A run counts once a published snapshot lists it, and as long as one does; any other file there is a leftover.

    run written, synced | its directory synced | snapshot that lists it synced | rename | unlisted runs unlinked
                                                                                 ^ commit point
"""

import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing, suppress

import msgspec

from ullage.engine.files import make_directories
from ullage.engine.keepers import Keepers
from ullage.engine.model import RunFile
from ullage.engine.runs.rows import BlockDamaged, RowBlock, RowRun, RowsHead, RunRow, write_rows
from ullage.engine.wal.serde import require_serde
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import FormatTooNew, RepositoryDamaged

RUNS = "runs"
SUFFIX = ".run"


class RunFiles:
    """Thread-safe, but for `write_run` and `remove_all_but`, which one checkpoint at a time does."""

    def __init__(self, place: RecordDirectory) -> None:
        self.directory = place.path
        self._place = place
        self._files = place.files
        self._lock = threading.Lock()
        self._open: dict[int, RowRun] = {}
        self._keepers = Keepers(self._lock)

    def write_run(self, above: int, space: str, newest_millis: int, rows: Iterable[RunRow]) -> RunFile:
        """Write a run and make it and its name durable: only then may a snapshot list it. Its number is above any that
        has a file, and above the one given. What a failure leaves is removed, now or with other leftovers.
        """
        if not self._files.exists(self.directory):
            make_directories(self._files, self.directory)
        number = 1 + max((above, *self.numbers()))
        path = self.path(number)
        file = self._files.create(path)
        try:
            with closing(file):
                written = write_rows(file, self._place.header(RowsHead, number=number, space=space), rows)
            # | run synced | snapshot published, answers gone from memory | power | no name: they are forgotten |
            self._files.sync_directory(self.directory)
        except BaseException:
            with suppress(OSError):  # the error that led here counts
                self._files.unlink(path)
            raise
        bounds = written.first, written.last
        return RunFile(number, space, written.rows, written.length, written.crc, *bounds, newest_millis)

    def run(self, listed: RunFile) -> RowRun:
        """A run that a snapshot lists, open for reading. BlockDamaged."""
        found = self._open.get(listed.number)
        if found is None:
            path = self.path(listed.number)
            try:
                length = self._files.size(path).length
                file = self._files.open(path)
            except OSError as error:
                raise BlockDamaged(f"{path} cannot be opened: {error}") from error
            found = RowRun.open(path, file)
            self._require(found, length, listed)
            with self._lock:
                found = self._open.setdefault(listed.number, found)
        return found

    def blocks(self, listed: RunFile) -> Iterator[RowBlock | BlockDamaged]:
        """Every block that was not given up, or why it cannot be read."""
        try:
            run = self.run(listed)
        except BlockDamaged as error:
            yield error
            return
        given_up = given_up_blocks(listed)
        for number in range(len(run)):
            if number not in given_up:
                try:
                    yield run.block(number)
                except BlockDamaged as error:
                    yield error

    def numbers(self) -> list[int]:
        """Of all runs on disk, in order; none where their directory is not there, or something else in its place."""
        try:
            names = self._files.list_directory(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(number for name in names if (number := run_number(name)) is not None)

    def remove_all_but(self, listed: Collection[int]) -> None:
        """Unlink the files that no published snapshot lists, unless somebody keeps them. No sync: what a crash brings
        back, the next start removes again.
        """
        with self._lock:
            if self._keepers:
                return
            for number in [number for number in self._open if number not in listed]:
                del self._open[number]
        for number in self.numbers():
            if number not in listed:
                with suppress(IsADirectoryError):  # somebody's: no snapshot ever listed it
                    self._files.unlink(self.path(number))

    def keeping(self) -> AbstractContextManager[None]:
        """While this lasts, no run is removed."""
        return self._keepers.keeping()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        for run in opened:
            run.close()

    def path(self, number: int) -> str:
        return os.path.join(self.directory, run_name(number))

    def _require(self, run: RowRun, length: int, listed: RunFile) -> None:
        """BlockDamaged if it is another run than the one listed: an old one, or another repository's."""
        head = run.head
        try:
            require_serde(self._place.serde, head.serde, head.serde_version, run.path)
        except (RepositoryDamaged, FormatTooNew) as error:
            run.close()
            raise BlockDamaged(str(error)) from error
        said = head.repository, head.number, head.space, run.rows, length, run.crc
        wanted = self._place.repository, listed.number, listed.space, listed.rows, listed.length, listed.crc
        if said != wanted:
            run.close()
            raise BlockDamaged(f"{run.path} is another run than the one that the snapshot lists")


def run_name(number: int) -> str:
    """How the file of a run is called."""
    return f"{number:020d}{SUFFIX}"


def run_number(name: str) -> int | None:
    """The number of a run by its file's name; None for any other name."""
    digits = name.removesuffix(SUFFIX)
    is_number = digits.isascii() and digits.isdecimal()
    return int(digits) if is_number and int(digits) > 0 and run_name(int(digits)) == name else None


def given_up_blocks(listed: RunFile) -> Collection[int]:
    """The numbers of blocks that a person does without."""
    return frozenset(memoryview(listed.given_up).cast("I"))


def given_up(listed: RunFile, block: int | None) -> RunFile:
    """The same run without a block; None: nothing of it counts any more."""
    if block is None:
        return msgspec.structs.replace(listed, rows=0)
    return msgspec.structs.replace(listed, given_up=listed.given_up + block.to_bytes(4, "little"))
