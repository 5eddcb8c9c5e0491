"""The filesystem as an erasure has it that overwrites: what goes is full of zeros before its blocks are free.

    unlink            zeros, synced | unlinked
    punch, truncate   zeros where bytes go, synced | punched, cut
    rename over       renamed | its directory synced | zeros in the one that was replaced, synced
                                ^ until then a crash may bring that back, and it has to be whole

Whatever the engine lets go is overwritten so, whoever in it does that; and nothing else is: bytes that somebody needs
are in no file that goes. Only where bytes that are written again keep their blocks; and not in a file that has another
name as well, which is somebody's copy.
"""

import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from ullage.engine.files import File, Files
from ullage.engine.heldfiles import HeldFile, HeldFiles

PIECE: Final = 64 << 10
"""Bytes that are looked at together: where all are zero nothing is written, so that a hole needs no room."""

ZEROS: Final = bytes(PIECE)


@dataclass
class Overwritten:
    """What was done so far; `failures` in words. `is_resumed`: something went before, of which this knows nothing."""

    bytes: int = 0
    spared: int = 0
    linked: int = 0
    failures: list[str] = field(default_factory=list)
    is_resumed: bool = False

    def overwrite(self, file: File, offset: int, end: int) -> None:
        """Durably; what a crash leaves is part zeros."""
        is_changed = False
        while offset < end and (piece := file.read(min(PIECE, end - offset), offset)):
            if piece.count(0) < len(piece):
                file.write(ZEROS[: len(piece)], offset)
                self.bytes += len(piece)
                is_changed = True
            offset += len(piece)
        if is_changed:
            file.sync()

    def not_promised(self) -> tuple[str, ...]:
        """Where bytes may be still, in sentences."""
        found = [
            (
                f"{self.bytes} bytes were overwritten with zeros before their blocks were given back. What was removed "
                "before this erasure may still lie in free blocks of the disk; and an SSD, a snapshot of the volume, "
                "the filesystem's journal, or storage behind a network may keep what was overwritten where no program "
                "reaches."
            )
        ]
        if self.spared:
            found.append(
                f"Files that were not overwritten before they were removed: {self.spared}. They lay on a filesystem "
                "that is not known to write bytes again where they were, as those that copy on write do not."
            )
        if self.linked:
            found.append(
                f"Files that were not overwritten, because they have another name as well: {self.linked}. Under that "
                "name somebody keeps what was in them."
            )
        if self.is_resumed:
            found.append(
                "This erasure was interrupted and went on. What was being replaced then, or was removed by whoever "
                "opened the repository in between, may lie in free blocks."
            )
        return tuple(found)


class OverwritingFile(HeldFile):
    """A file that may be written, on a filesystem where zeros take the place of what was there."""

    __slots__ = ("_overwritten",)

    def __init__(self, file: File, files: "OverwritingFiles") -> None:
        super().__init__(file, files)
        self._overwritten = files.overwritten

    def truncate(self, length: int) -> None:
        self._overwritten.overwrite(self._held, length, self._held.size().length)
        super().truncate(length)

    def punch(self, offset: int, count: int) -> None:
        self._overwritten.overwrite(self._held, offset, offset + count)
        super().punch(offset, count)


class OverwritingFiles(HeldFiles):
    """Those of one erasure, used by one thread; they are closed after the repository."""

    def __init__(self, files: Files, overwritten: Overwritten | None = None) -> None:
        super().__init__(files, None)
        self.overwritten = overwritten or Overwritten()
        self._replaced: dict[str, list[File]] = {}

    def without_links_below(self, folder: str) -> Files:
        return OverwritingFiles(self._held.without_links_below(folder), self.overwritten)

    def create(self, path: str) -> File:
        return self._watched(path, self._held.create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        file = self._held.open(path, writable=writable)
        return self._watched(path, file) if writable else file

    def unlink(self, path: str) -> None:
        file = self._going(path)
        if file is not None:
            with closing(file):
                try:
                    self.overwritten.overwrite(file, 0, file.size().length)
                except OSError as error:
                    self._fail(path, error)
                    raise  # so that it keeps its name, and the next erasure tries again
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        is_replaced = self._held.exists(target) and self._held.size(target).is_file
        replaced = self._going(target) if is_replaced else None
        try:
            super().rename(source, target)
        except BaseException:
            if replaced is not None:
                replaced.close()
            raise
        if replaced is not None:
            self._replaced.setdefault(os.path.dirname(target), []).append(replaced)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        # Not before: a crash could bring the old name back, and what is there then has to be what was there.
        for file in self._replaced.pop(path, ()):
            with closing(file):
                try:
                    self.overwritten.overwrite(file, 0, file.size().length)
                except OSError as error:  # the names are durable: that is what was asked
                    self._fail(f"what was replaced in {path}", error)

    def settle(self) -> None:
        """Overwrite what was replaced and waits for its directory."""
        for directory in list(self._replaced):
            self.sync_directory(directory)

    def close(self) -> None:
        """What still waits is not overwritten: a crash came first, or as good as one."""
        for file in (each for some in self._replaced.values() for each in some):
            file.close()
        self._replaced.clear()
        super().close()

    def _watched(self, path: str, file: File) -> File:
        return OverwritingFile(file, self) if self._is_in_place(path) else file

    def _is_in_place(self, path: str) -> bool:
        return self._held.overwrites_in_place(os.path.dirname(path))

    def _going(self, path: str) -> File | None:
        """The file at a path that goes, to be overwritten and closed; None where that would be in vain, or wrong."""
        if not self._is_in_place(path):
            self.overwritten.spared += 1
            return None
        file = self._held.open(path, writable=True)
        # A link that leads to it goes alone, and what has another name is there still when this one is gone.
        if file.is_at(path) and file.size().links == 1:
            return file
        file.close()
        self.overwritten.linked += 1
        return None

    def _fail(self, what: str, error: OSError) -> None:
        self.overwritten.failures.append(f"{what} could not be overwritten: {error}")
