"""Every call that changes a NiFi's disk: one place, so that tests can stop a reclaim at each of them."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, NamedTuple, Self

from ullage.beneath import names_below, without_links
from ullage.holes import can_punch, punch_hole
from ullage.wholesync import can_sync_whole, sync_whole

PRIVATE: Final = 0o600
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Likeness(NamedTuple):
    """What a new file has of an old one: its owner and permissions, and its date; None: that of now."""

    user: int
    group: int
    mode: int
    modified_ns: int | None = None

    @classmethod
    def of(cls, found: os.stat_result) -> "Likeness":
        return cls(found.st_uid, found.st_gid, found.st_mode & 0o7777)


class Changes:
    """The calls themselves, on the operating system's files. None follows a link in a path's last name, and below the
    folders that `keep_inside` names none in the whole path: whoever may write there may swap a folder for a link at any
    time.
    """

    _inside_of: tuple[str, ...] = ()

    def keep_inside(self, folders: Iterable[str]) -> None:
        """From now on what lies below these folders too is reached from them name by name; other paths are trusted."""
        found = {*self._inside_of, *map(os.path.abspath, folders)}
        self._inside_of = tuple(sorted(found, key=len, reverse=True))

    def write_new(
        self, path: str, pieces: Iterable[bytes], like: Likeness | None = None, *, is_synced: bool = True
    ) -> None:
        """A new file, durable once its folder is synced; FileExistsError. What could not be written whole is gone.

        `is_synced`: else its filesystem has to be synced.
        """
        with self._reached(path) as (name, folder, _):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    if like is not None:
                        self._own(descriptor, like)
                    if is_synced:
                        os.fsync(descriptor)
            except OSError:
                with suppress(OSError):  # the first error is the one to tell
                    os.unlink(name, dir_fd=folder)
                raise

    def make_folder(self, path: str, like: Likeness | None = None) -> None:
        """One that may be there."""
        with self._reached(path) as (name, folder, _), suppress(FileExistsError):  # a call that was stopped made it
            os.mkdir(name, 0o700, dir_fd=folder)
            if like is not None:
                descriptor = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    self._own(descriptor, like)
                finally:
                    os.close(descriptor)

    def remove_folder(self, path: str) -> None:
        """One that is empty, or nothing."""
        with suppress(OSError), self._reached(path) as (name, folder, _):  # what somebody put there stays
            os.rmdir(name, dir_fd=folder)

    def names(self, path: str) -> list[str]:
        """What lies in a folder."""
        with self._folder(path) as descriptor:
            return sorted(os.listdir(descriptor))

    def sync_folder(self, path: str) -> None:
        """Names in it are durable afterwards."""
        with self._folder(path) as descriptor:
            os.fsync(descriptor)

    def rename(self, source: str, target: str) -> None:
        with self._reached(source) as (name, folder, _), self._reached(target) as (new_name, new_folder, _):
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def unlink(self, path: str) -> None:
        with self._reached(path) as (name, folder, _):
            os.unlink(name, dir_fd=folder)

    def open(self, path: str) -> int:
        """A descriptor of a file that is there, to change it by."""
        with self._reached(path) as (name, folder, _):
            return os.open(name, FILE, dir_fd=folder)

    def create(self, path: str, mode: int) -> int:
        """The same of a new file, or of one that is there."""
        with self._reached(path) as (name, folder, _):
            return os.open(name, FILE | os.O_CREAT, mode, dir_fd=folder)

    def _reached(self, path: str) -> AbstractContextManager[tuple[str, int | None, int]]:
        """As `without_links`; of folders that lie in one another the inner one is where a path begins."""
        whole = os.path.abspath(path)
        return without_links(whole, next((each for each in self._inside_of if names_below(whole, each)), ""))

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        with self._reached(path) as (name, folder, no_link):
            descriptor = os.open(name, FOLDER | no_link, dir_fd=folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def punch(self, descriptor: int, begin: int, end: int) -> None:
        punch_hole(descriptor, begin, end - begin)

    def can_punch(self, folder: str) -> bool:
        """Whether files there can have holes."""
        return can_punch(folder)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written

    def own(self, descriptor: int, user: int, group: int, mode: int) -> None:
        """As it was; whoever may not give files away keeps them."""
        self._own(descriptor, Likeness(user, group, mode))

    def _own(self, descriptor: int, like: Likeness) -> None:
        with suppress(PermissionError):  # not being root
            os.fchown(descriptor, like.user, like.group)
        # No content runs as its owner: whoever says what a file is like may not have root make one that does.
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        os.fchmod(descriptor, like.mode if is_folder else like.mode & 0o777)
        if like.modified_ns is not None:
            os.utime(descriptor, ns=(like.modified_ns, like.modified_ns))

    def date(self, descriptor: int, modified_ns: int) -> None:
        """As it was before: by a file's date, archives are cleaned and people look."""
        os.utime(descriptor, ns=(modified_ns, modified_ns))

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def open_filesystem(self, folder: str) -> int:
        """A descriptor to sync its filesystem by, from now on; -1: there each file has to be synced."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it is not there: nothing is changed in it
            return -1
        if can_sync_whole(descriptor):
            return descriptor
        os.close(descriptor)
        return -1

    def sync_filesystem(self, descriptor: int) -> None:
        sync_whole(descriptor)

    def free(self, folder: str) -> tuple[int, int]:
        """Which disk a folder lies on, and the bytes that are free there."""
        found = os.statvfs(folder)
        return os.stat(folder).st_dev, found.f_bavail * found.f_frsize


class Durability:
    """Makes what is changed in some folders durable: at once for each filesystem, or, where that can't be relied on,
    file by file. A context; `finish` is the moment from which on everything is durable.
    """

    def __init__(self, changes: Changes, folders: Mapping[str, str]) -> None:
        self._changes = changes
        self._whole = {name: changes.open_filesystem(path) for name, path in folders.items()}
        self._folders: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._whole.values():
            if descriptor >= 0:
                os.close(descriptor)

    def is_whole(self, name: str) -> bool:
        """Whether files there need not be synced one by one."""
        return self._whole[name] >= 0

    def file(self, name: str, descriptor: int) -> None:
        """It was changed."""
        if not self.is_whole(name):
            self._changes.sync(descriptor)

    def folder(self, name: str, path: str) -> None:
        """Names in it were changed."""
        if not self.is_whole(name):
            self._folders.add(path)

    def finish(self) -> None:
        """OSError: not everything may be durable."""
        for descriptor in self._whole.values():
            if descriptor >= 0:
                self._changes.sync_filesystem(descriptor)
        for folder in sorted(self._folders):
            self._changes.sync_folder(folder)
