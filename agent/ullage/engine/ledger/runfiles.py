"""The directory of a key space's runs: rows of the ledger that left memory.

    <root>/flowfile/runs/<key space>/<number>.run

A run counts once a published snapshot lists it, and as long as one does; any other file there is a leftover, but for
what this process has written and the next snapshot will list.

    run written, synced | its directory synced | snapshot that lists it synced | rename | unlisted runs unlinked
                                                                                 ^ commit point
"""

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress

from ullage.engine.files import File, make_directories
from ullage.engine.keepers import Keepers
from ullage.engine.ledger.runlistings import given_up_blocks
from ullage.engine.ledger.state import LedgerState
from ullage.engine.model import RunFile
from ullage.engine.oserrors import is_about_file
from ullage.engine.runs.rows import BlockDamaged, RowBlock, RowRun, RowsHead, RowsWriter, RunRow
from ullage.engine.wal.serde import require_serde
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import FormatTooNew, RepositoryDamaged

RUNS = "runs"
SUFFIX = ".run"

ROOM = 1.5
"""So many times its length must be free before a run is written that nothing needs: what is left is for commits."""


class NewRun:
    """A run that is being written, whose file nobody removes until `close`: by then the ledger knows it, or nobody
    will. Used by one thread.
    """

    def __init__(self, files: "RunFiles", number: int, file: File, head: RowsHead) -> None:
        """Use `RunFiles.begin`."""
        self.number = number
        self._files = files
        self._close_file = weakref.finalize(self, file.close)  # once
        self._writer = RowsWriter(file, head)
        self._is_finished = False

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._writer.rows

    def add(self, row: RunRow) -> None:
        """The next row, in order."""
        self._writer.add(row)

    def finish(self, newest_millis: int = 0, through: int | None = None) -> RunFile:
        """Make it and its name durable: only then may a snapshot list it. It stands in the place of the runs up to
        `through`; None: it is the newest one.
        """
        written = self._writer.finish()
        self._close_file()
        # | run synced | snapshot published, rows gone from memory | power | no name: they are forgotten |
        self._files.sync_names()
        self._is_finished = True
        through = self.number if through is None else through
        bounds = written.first, written.last
        said = written.rows, written.length, written.crc, *bounds, newest_millis
        return RunFile(self.number, self._files.space, *said, through)

    def give_up(self) -> None:
        """It was finished, and nobody is going to list it."""
        self._is_finished = False

    def close(self) -> None:
        """What is not finished, or given up, is removed, now or with other leftovers."""
        self._close_file()
        self._files.let_go(self.number, is_kept=self._is_finished)


class RunFiles:
    """Thread-safe. The snapshots' part is one checkpoint's at a time: `list`, `published`."""

    def __init__(self, place: RecordDirectory, space: str, ledger: LedgerState) -> None:
        self.space = space
        self.directory = place.path
        self._place = place
        self._files = place.files
        self._ledger = ledger
        self._lock = threading.Lock()
        self._open: dict[int, RowRun] = {}
        self._opened: weakref.WeakSet[RowRun] = weakref.WeakSet()
        """All of which a file may be open: readers, or an error, hold some that are on disk no more."""
        self._keepers = Keepers(self._lock)
        self._writing: set[int] = set()
        self._last_number = 0
        """The highest that this process has given to a run, or opened a run of: what it knows by a number, as blocks in
        memory, is never another run's.
        """

        self._is_durable = False
        """Whether this process has seen to it that the directory outlives a loss of power."""

        self._listed: frozenset[int] = frozenset()
        """Numbers of the runs in the snapshot that was written last."""

        self._known: frozenset[int] = frozenset()
        """Those of the last one that was published as well: a failed rename may have come to pass."""

        self._passed_over: frozenset[int] = frozenset()
        """What lay there when somebody kept leftovers from being removed: the next checkpoint does it."""

    @property
    def last_number(self) -> int:
        """The highest that has a file, or that counts, or was given to a run."""
        with self._lock:
            return self._highest()

    def begin(self, above: int = 0) -> NewRun:
        """A new run. Its number is above this one, and any that has a file, or that counts."""
        self._make_directory()
        with self._lock:
            number = self._last_number = 1 + max(above, self._highest())
            self._writing.add(number)  # before there is a file, which somebody else would take for a leftover
        return self._begun(number)

    def begin_beside(self, number: int) -> NewRun:
        """A new run that has the number of another key space's, which was begun above `last_number`."""
        self._make_directory()
        with self._lock:
            self._last_number = max(self._last_number, number)
            self._writing.add(number)
        return self._begun(number)

    def _make_directory(self) -> None:
        # | directory made | killed | next process: run in it, listed | power | the directory had no name that lasts |
        if not self._is_durable or not self._files.exists(self.directory):
            make_directories(self._files, self.directory)
            self._is_durable = True

    def _begun(self, number: int) -> NewRun:
        try:
            file = self._files.create(self.path(number))
        except BaseException:
            self._writing.discard(number)
            raise
        return NewRun(self, number, file, self._place.header(RowsHead, number=number, space=self.space))

    def _highest(self) -> int:
        return max((*self.numbers(), *self._counting(), self._last_number))

    def has_room(self, count: int) -> bool:
        """Whether there is room for so many bytes that nothing needs."""
        return self._files.usage(os.path.dirname(os.path.dirname(self._place.path))).free_bytes >= ROOM * count

    def sync_names(self) -> None:
        """Make the runs' names durable, and the end of those that are gone."""
        if self._files.exists(self.directory):
            self._files.sync_directory(self.directory)

    def let_go(self, number: int, *, is_kept: bool) -> None:
        """A run is not being written any more."""
        if not is_kept:
            with suppress(OSError):  # the error that led here counts
                self._files.unlink(self.path(number))
        with self._lock:
            self._writing.discard(number)

    def run(self, listed: RunFile) -> RowRun:
        """A run that counts, open for reading. BlockDamaged where its head was looked at twice."""
        with self._lock:
            # run 1 listed at a start, a block of it read | all its rows leave | checkpoint: unlinked | a new run: 1
            #
            # Handles that live were not found, or as they had been: their block came from memory.
            self._last_number = max(self._last_number, listed.number)
        found = self._open.get(listed.number)
        if found is None:
            try:
                found = self._opened_run(listed, is_second=False)
            except BlockDamaged:  # as of a block: a disk that failed once would cost all of the run's rows
                found = self._opened_run(listed, is_second=True)
            with self._lock:
                found = self._open.setdefault(listed.number, found)
                self._opened.add(found)
        return found

    def _opened_run(self, listed: RunFile, *, is_second: bool) -> RowRun:
        """One look at a run's head. BlockDamaged."""
        path = self.path(listed.number)
        try:
            length = self._files.size(path).length
            file = self._files.open(path)
        except OSError as error:
            if not is_about_file(error):  # no descriptor is left: that says nothing of the run
                raise
            raise BlockDamaged(f"{path} cannot be opened: {error}") from error
        if is_second:
            file.drop_cache(0, length)  # what damaged a page in memory may have left the disk alone
        found = RowRun.open(path, file)
        self._require(found, length, listed)
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

    def damages(self, listed: RunFile, *, deep: bool) -> list[BlockDamaged]:
        """What of a run cannot be read: its head or, `deep`, each of its blocks."""
        if deep:
            return [block for block in self.blocks(listed) if isinstance(block, BlockDamaged)]
        try:
            self.run(listed)
        except BlockDamaged as error:
            return [error]
        return []

    def numbers(self) -> list[int]:
        """Of all runs on disk, in order; none where their directory is not there, or something else in its place."""
        try:
            names = self._files.list_directory(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(number for name in names if (number := run_number(name)) is not None)

    def list(self, runs: Iterable[RunFile]) -> None:
        """The snapshot that is being written lists these."""
        self._listed = frozenset(run.number for run in runs)
        self._known |= self._listed

    def published(self) -> None:
        """It is published: what it does not list leaves the disk."""
        self._remove_leftovers()
        self._known = self._listed  # of what could not be removed now nobody is told: the next one comes to it

    def remove_leftovers(self) -> None:
        """Runs that the snapshot of a start does not list: of a checkpoint that did not come to its rename, of merges
        that no checkpoint followed, or over.
        """
        self._listed = self._known = self._counting()
        self._remove_leftovers()

    def leftovers(self) -> Iterator[str]:
        """Files that no snapshot lists, nor the next one will."""
        if not self._ledger.set_aside.may_mean_run():
            found, writing = self.numbers(), set(self._writing)
            known = self._counting() | self._known | self._passed_over | writing
            yield from (f"run {self.path(number)} is listed by no snapshot" for number in found if number not in known)

    def keeping(self) -> AbstractContextManager[None]:
        """While this lasts, no run is removed."""
        return self._keepers.keeping()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            opened, self._open = list(self._opened), {}
        for run in opened:
            run.close()

    def path(self, number: int) -> str:
        return os.path.join(self.directory, run_name(number))

    def _counting(self) -> frozenset[int]:
        return frozenset(run.number for run in self._ledger.runs_of(self.space))

    def _remove_leftovers(self) -> None:
        """Unlink the files that no published snapshot lists, unless somebody keeps them. No sync: what a crash brings
        back, the next start removes again.
        """
        if self._ledger.set_aside.may_mean_run():
            return
        # In this order: what is found and not being written any more is known to the ledger by now, or to nobody.
        found = self.numbers()
        with self._lock:
            self._passed_over = frozenset(found) if self._keepers else frozenset()
            if self._keepers:
                return
            kept = self._listed | self._writing
        kept |= self._counting()
        with self._lock:
            for number in [number for number in self._open if number not in kept]:
                del self._open[number]  # who reads it holds it, and the file is closed after the last of them
        for number in found:
            if number not in kept:
                # Somebody's, which no snapshot ever listed; or a merge has failed meanwhile, and removed it itself.
                with suppress(IsADirectoryError, FileNotFoundError):
                    self._files.unlink(self.path(number))

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
