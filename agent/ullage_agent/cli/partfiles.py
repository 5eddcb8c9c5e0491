"""Files that get their name when they are whole: until then each is `.ullage-UUID.part`, in the same directory.

A get may be killed at any moment. What has a name of its own is whole, synced, and has its permissions, owner and time.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from secrets import token_hex
from types import TracebackType
from typing import Final, NamedTuple, Self

from ullage.beneath import rename_to_free

PART: Final = re.compile(r"\.ullage-[^/]{1,64}\.part")

NAME_BYTES_MAX: Final = 255
"""Of Linux, in one directory."""

NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What a filesystem without them says: FAT, some network shares."""

LINKS_MAX: Final = 40
"""Of one path, on Linux."""

CONTINUES: Final = range(0x80, 0xC0)
"""Bytes of UTF-8 that no character begins with."""


class FileIdentity(NamedTuple):
    """What tells a file from any other that has had its name."""

    device: int
    inode: int


def part_name(id: str) -> str:
    """Where the content of a FlowFile is gathered."""
    return f".ullage-{id}.part"


def is_part_name(name: str) -> bool:
    """Whether a get may take a file of this name for what a killed one has left, and replace it."""
    return PART.fullmatch(name) is not None


def name_beside(name: str, id: str) -> str:
    """The name with the uuid behind it. A long name loses its end, whole characters, so that a filesystem takes it."""
    raw = os.fsencode(name)
    end = NAME_BYTES_MAX - 1 - len(id)
    if len(raw) > end:
        while end > 0 and raw[end] in CONTINUES:
            end -= 1
        name = os.fsdecode(raw[:end])
    return f"{name}.{id}"


def identity_of(name: str, folder: int | None = None) -> FileIdentity | None:
    """Of what stands there, a link itself; None if nothing does."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def found_at(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What a path leads to; None if nothing is there. OSError, such as of links that lead round in a circle."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def own_descriptor(path: str) -> int | None:
    """Which of this process's descriptors a path means, such as /dev/stdout, or /dev/fd/63 of a shell's `>(...)`.
    OSError: one that nobody gave to it.
    """
    for _ in range(LINKS_MAX):
        folder, name = os.path.split(path)
        if os.path.realpath(folder) == f"/proc/{os.getpid()}/fd":
            if not name.isdecimal():
                return None
            # What this process opened by itself is not inheritable: /dev/fd/9 without `9>file` may be a log of content.
            if not os.get_inheritable(int(name)):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
            return int(name)
        try:
            path = os.path.join(folder, os.readlink(path))
        except OSError:  # no link
            return None
    return None


def usual_mode() -> int:
    """The permissions of a new file of this process."""
    mask = os.umask(0o077)  # there is no other way to ask; a file that another thread makes meanwhile is closed
    os.umask(mask)
    return 0o666 & ~mask


class PartFile:
    """The file of one FlowFile while it is written, for its owner alone; gone at the end, if it got no name.

    What a killed get has left of the same FlowFile is replaced, and its bytes are not trusted: whoever may write into
    the directory can have left it.
    """

    def __init__(self, folder: int, id: str) -> None:
        self.part = part_name(id)
        self.id = id
        self.folder = folder
        self._left = self._take_left()
        try:
            self._descriptor = self._opened()
        except BaseException:
            self._close_left()
            raise
        found = os.fstat(self._descriptor)
        self.identity = FileIdentity(found.st_dev, found.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_left()
        os.close(self._descriptor)
        if kind is not None:
            self.drop()

    def drop(self) -> None:
        """Take the name of the part away, if it is this file's still: another get may have one of its own by now."""
        with suppress(OSError):  # a directory that can't be written any more keeps it, and says so elsewhere
            if identity_of(self.part, self.folder) == self.identity:
                os.unlink(self.part, dir_fd=self.folder)

    def fill(self, content: Iterable[bytes], finish: Callable[[str], None]) -> None:
        """Write all of it, call `finish` with a path to the open file, and make it durable."""
        for piece in content:
            view = memoryview(piece)
            while view:
                view = view[os.write(self._descriptor, view) :]
        finish(f"/proc/self/fd/{self._descriptor}")
        os.fsync(self._descriptor)

    def is_as(self, name: str, *, is_dated: bool) -> bool:
        """Whether the file of this name has the owner, the permissions and, if asked, the time of this one."""
        own, found = os.fstat(self._descriptor), os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        is_same = (own.st_mode, own.st_uid, own.st_gid) == (found.st_mode, found.st_uid, found.st_gid)
        return is_same and (not is_dated or own.st_mtime_ns == found.st_mtime_ns)

    def is_left_as(self, name: str) -> bool:
        """Whether a killed get gave its file of this FlowFile this name: both were the same file."""
        if self._left is None:
            return False
        found = os.fstat(self._left)
        return identity_of(name, self.folder) == FileIdentity(found.st_dev, found.st_ino)

    def link_as(self, name: str) -> None:
        """Give it a free name; FileExistsError of any other. The name of the part stays until `drop`."""
        try:
            # By its descriptor: the name of the part may be that of another get's file by now, which is not whole.
            os.link(f"/proc/self/fd/{self._descriptor}", name, dst_dir_fd=self.folder)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            self._move_to_free(name)

    def replace(self, name: str) -> None:
        """Take the name from the file that has it, which is this FlowFile's or one of its earlier versions."""
        self._require_own()
        os.rename(self.part, name, src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def _require_own(self) -> None:
        if identity_of(self.part, self.folder) != self.identity:
            raise FileNotFoundError(errno.ENOENT, "somebody took it away, or another get writes it", self.part)

    def _move_to_free(self, name: str) -> None:
        """By a rename that replaces nothing. Where there is none, an empty file keeps the name for it, and is left by a
        get that is killed just then: a plain rename alone would replace whatever somebody put there meanwhile.
        """
        self._require_own()
        if rename_to_free(self.folder, self.part, name):
            return
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.folder))
        try:
            self.replace(name)
        except BaseException:
            os.unlink(name, dir_fd=self.folder)
            raise

    def _opened(self) -> int:
        # O_EXCL follows no link: it finds the name taken.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self.part, flags, 0o600, dir_fd=self.folder)
        except FileExistsError:
            # By somebody who has made it here once more, or whose it is where only owners remove files, such as /tmp.
            self.part = part_name(f"{self.id}-{token_hex(4)}")
            return os.open(self.part, flags, 0o600, dir_fd=self.folder)

    def _take_left(self) -> int | None:
        """Hold what a killed get left, so that no other file can get its number, and free the name, if it may."""
        try:
            left = os.open(self.part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.folder)
        except FileNotFoundError:
            return None
        try:
            os.unlink(self.part, dir_fd=self.folder)
        except (PermissionError, IsADirectoryError):  # no get of this user left it
            os.close(left)
            return None
        except BaseException:
            os.close(left)
            raise
        return left

    def _close_left(self) -> None:
        if self._left is not None:
            os.close(self._left)
            self._left = None
