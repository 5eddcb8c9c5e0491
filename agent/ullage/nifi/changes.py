"""Every call that changes a NiFi's disk: one place, so that tests can stop a reclaim at each of them."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ullage.holes import punch_hole

PRIVATE: Final = 0o600

TRIED_BYTES: Final = 64 << 10
NO_HOLES: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""What a filesystem says that has none."""


class Changes:
    """The calls themselves, on the operating system's files. None follows a link in a path's last name."""

    def write_new(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new file, durable once its folder is synced; FileExistsError. What could not be written whole is gone."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.unlink(path)
            raise

    def make_folder(self, path: str) -> None:
        """One that may be there."""
        with suppress(FileExistsError):  # a call that was stopped made it
            os.mkdir(path, 0o700)

    def remove_folder(self, path: str) -> None:
        """One that is empty, or nothing."""
        with suppress(OSError):  # what somebody put there stays
            os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        """Names in it are durable afterwards."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def open(self, path: str) -> int:
        """A descriptor of a file that is there, to change it by."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def create(self, path: str, mode: int) -> int:
        """The same of a new file, or of one that is there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)

    def punch(self, descriptor: int, begin: int, end: int) -> None:
        punch_hole(descriptor, begin, end - begin)

    def can_punch(self, folder: str) -> bool:
        """Whether files there can have holes. Tried on a file without a name, which a kill leaves no trace of."""
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, PRIVATE)
        except OSError:
            return True  # no file without a name to try it on: the first punch finds out
        try:
            os.ftruncate(descriptor, 2 * TRIED_BYTES)
            punch_hole(descriptor, 0, TRIED_BYTES)
        except OSError as error:
            return error.errno not in NO_HOLES
        finally:
            os.close(descriptor)
        return True

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
        with suppress(PermissionError):  # not being root
            os.fchown(descriptor, user, group)
        os.fchmod(descriptor, mode)

    def date(self, descriptor: int, modified_ns: int) -> None:
        """As it was before: by a file's date, archives are cleaned and people look."""
        os.utime(descriptor, ns=(modified_ns, modified_ns))

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)
