"""A reclaim that is stopped at any of its calls, on real files: killed, with the page cache as it was, or by a loss of
power, after which nothing is there that was not synced, or only some of it.
"""

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ullage.nifi.changes import Changes, Likeness


class Killed(BaseException):
    """The process is gone: nobody catches this."""


class Undo(NamedTuple):
    """How to take back something that is not durable yet; `by` is what makes it so, or a sync of all that is around
    `path`.
    """

    by: object
    path: str
    act: Callable[[], object]


class StoppedChanges(Changes):
    """The real calls up to the `last` one. That one is not done, or done and its return never seen; or it fails."""

    is_synced_whole = True
    """Whether filesystems can be synced as a whole, or only file by file."""

    def __init__(self, last: int = -1, *, is_done: bool = False, error: OSError | None = None) -> None:
        self.calls: list[str] = []
        self._last = last
        self._is_done = is_done
        self._error = error

    def _call(self, name: str, act: Callable[[], object]) -> object:
        self.calls.append(name)
        is_last = len(self.calls) - 1 == self._last
        if is_last and self._error is not None:
            raise self._error
        if is_last and not self._is_done:
            raise Killed(name)
        done = act()
        if is_last:
            raise Killed(name)
        return done

    def write_new(
        self, path: str, pieces: Iterable[bytes], like: Likeness | None = None, *, is_synced: bool = True
    ) -> None:
        def half() -> None:
            with open(path, "xb") as file:
                file.write(b"".join(pieces)[: 1 << 16])

        if len(self.calls) == self._last and self._is_done and self._error is None:
            self._call("write_new", half)  # killed as it writes
        write = super().write_new
        self._call("write_new", lambda: write(path, pieces, like, is_synced=is_synced))

    def make_folder(self, path: str, like: Likeness | None = None) -> None:
        self._call("make_folder", lambda: super(StoppedChanges, self).make_folder(path, like))

    def open_filesystem(self, folder: str) -> int:
        return super().open_filesystem(folder) if self.is_synced_whole else -1

    def sync_filesystem(self, descriptor: int) -> None:
        self._call("sync_filesystem", lambda: super(StoppedChanges, self).sync_filesystem(descriptor))

    def remove_folder(self, path: str) -> None:
        self._call("remove_folder", lambda: super(StoppedChanges, self).remove_folder(path))

    def sync_folder(self, path: str) -> None:
        self._call("sync_folder", lambda: super(StoppedChanges, self).sync_folder(path))

    def rename(self, source: str, target: str) -> None:
        self._call("rename", lambda: super(StoppedChanges, self).rename(source, target))

    def unlink(self, path: str) -> None:
        self._call("unlink", lambda: super(StoppedChanges, self).unlink(path))

    def create(self, path: str, mode: int) -> int:
        self._call("create", lambda: os.close(super(StoppedChanges, self).create(path, mode)))
        return super().create(path, mode)

    def punch(self, descriptor: int, begin: int, end: int) -> None:
        self._call("punch", lambda: super(StoppedChanges, self).punch(descriptor, begin, end))

    def truncate(self, descriptor: int, length: int) -> None:
        self._call("truncate", lambda: super(StoppedChanges, self).truncate(descriptor, length))

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        self._call("write", lambda: super(StoppedChanges, self).write(descriptor, data, at))

    def date(self, descriptor: int, modified_ns: int) -> None:
        self._call("date", lambda: super(StoppedChanges, self).date(descriptor, modified_ns))

    def sync(self, descriptor: int) -> None:
        self._call("sync", lambda: super(StoppedChanges, self).sync(descriptor))


class LosingChanges(StoppedChanges):
    """The same, and `lose` is the loss of power: what was not synced is taken back, all of it or by chance."""

    def __init__(self, last: int, trash: Path) -> None:
        super().__init__(last, is_done=True)
        self._trash = trash
        self._undo: list[Undo] = []

    def lose(self, chance: random.Random | None = None) -> None:
        for undo in reversed(self._undo):
            if chance is None or chance.random() < 0.5:
                undo.act()
        self._undo.clear()

    def _call(self, name: str, act: Callable[[], object]) -> object:
        return super()._call(name, act)

    def write_new(
        self, path: str, pieces: Iterable[bytes], like: Likeness | None = None, *, is_synced: bool = True
    ) -> None:
        self._note(os.path.dirname(path), path, lambda: Path(path).unlink(missing_ok=True))
        if not is_synced:
            self._note(path, path, lambda: _empty(path))
        super().write_new(path, pieces, like, is_synced=is_synced)

    def make_folder(self, path: str, like: Likeness | None = None) -> None:
        if not os.path.isdir(path):
            self._note(os.path.dirname(path), path, lambda: Changes.remove_folder(self, path))
        super().make_folder(path, like)

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._undo = [undo for undo in self._undo if undo.by != path]

    def sync_filesystem(self, descriptor: int) -> None:
        super().sync_filesystem(descriptor)
        below = os.readlink(f"/proc/self/fd/{descriptor}") + os.sep
        self._undo = [undo for undo in self._undo if not undo.path.startswith(below)]

    def rename(self, source: str, target: str) -> None:
        before = Path(target).read_bytes() if os.path.isfile(target) else None
        modified = os.stat(target).st_mtime_ns if before is not None else 0

        def back() -> None:
            if os.path.lexists(target):
                if os.path.isdir(os.path.dirname(source)):
                    os.rename(target, source)
                if before is not None:
                    Path(target).write_bytes(before)
                    os.utime(target, ns=(modified, modified))

        # A move between two folders is taken back unless both are durable; the later sync of the two counts here.
        self._note(os.path.dirname(source), target, back)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        kept = self._trash / str(len(os.listdir(self._trash)))

        def back() -> None:
            if not os.path.lexists(path):
                os.rename(kept, path)

        self._note(os.path.dirname(path), path, back)
        self._call("unlink", lambda: os.rename(path, kept))

    def create(self, path: str, mode: int) -> int:
        if not os.path.lexists(path):
            self._note(os.path.dirname(path), path, lambda: Path(path).unlink(missing_ok=True))
        return super().create(path, mode)

    def punch(self, descriptor: int, begin: int, end: int) -> None:
        self._note_bytes(descriptor, begin, end)
        super().punch(descriptor, begin, end)

    def truncate(self, descriptor: int, length: int) -> None:
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        tail = os.pread(descriptor, max(0, found.st_size - length), length)

        def back() -> None:
            if os.path.lexists(path):
                os.truncate(path, found.st_size)
                _rewrite(path, length, tail)

        self._note((found.st_dev, found.st_ino), path, back)
        super().truncate(descriptor, length)

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        self._note_bytes(descriptor, at, at + len(data))
        super().write(descriptor, data, at)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        found = os.fstat(descriptor)
        self._undo = [undo for undo in self._undo if undo.by != (found.st_dev, found.st_ino)]

    def _note(self, by: object, path: str, act: Callable[[], object]) -> None:
        self._undo.append(Undo(by, path, act))

    def _note_bytes(self, descriptor: int, begin: int, end: int) -> None:
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        before = os.pread(descriptor, end - begin, begin)
        self._note((found.st_dev, found.st_ino), path, lambda: _rewrite(path, begin, before))


def _empty(path: str) -> None:
    """Its bytes were not on disk yet."""
    if os.path.lexists(path):
        os.truncate(path, 0)


def _rewrite(path: str, at: int, data: bytes) -> None:
    """The bytes that were there, if there is such a file."""
    if data and os.path.lexists(path):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data)
