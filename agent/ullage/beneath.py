"""Paths below a folder in which others may write: none leads out of it, whatever they plant or swap meanwhile.

A path is walked name by name, each from the descriptor of the one before, and no link is followed. openat2 would do it
in one call, but Linux before 5.6 lacks it, and Python has no name for it.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_rename: Final = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_NO_REPLACE: Final = 1

NO_NAMES: Final = frozenset({"", ".", ".."})


class LeadsOut(OSError):
    """Where a folder should be lies a link or a file, or the path itself leads out: it is not followed."""


@contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """A descriptor of a folder that the caller trusts: links in this path are followed."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(folder: int, names: Sequence[str], *, make: bool = False, mode: int = 0o777) -> int:
    """A descriptor, for the caller to close, of the folder that these names lead to below `folder`.

    With `make`, missing ones are made with this mode, each durable in its parent. LeadsOut; FileNotFoundError.
    """
    current = os.dup(folder)
    try:
        for name in names:
            if name in NO_NAMES or "/" in name:
                raise LeadsOut(errno.ELOOP, "this leads out of its folder", name)
            if make:
                _make(current, name, mode)
            try:
                found = os.open(name, FOLDER, dir_fd=current)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise LeadsOut(errno.ELOOP, "a link or a file lies where a folder should be", name) from error
                raise
            os.close(current)
            current = found
    except BaseException:
        os.close(current)
        raise
    return current


@contextmanager
def walked(folder: int, names: Sequence[str]) -> Iterator[int]:
    """What `walk` finds, closed at the end."""
    descriptor = walk(folder, names)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def rename_to_free(folder: int, name: str, to: str) -> bool:
    """Rename a file within a folder, and replace nothing: FileExistsError. False, with nothing done, where the kernel
    or the filesystem has no such call.
    """
    if _rename is None:  # a library other than glibc, or one before 2.28
        return False
    if _rename(folder, os.fsencode(name), folder, os.fsencode(to), _NO_REPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), to)


def sync_folder(folder: int) -> None:
    """Names in it are durable afterwards."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names_below(path: str, folder: str) -> list[str] | None:
    """The names that lead from an absolute folder to a path; none for the folder itself, None for what is elsewhere."""
    whole, base = os.path.normpath(path), os.path.normpath(folder)
    if whole == base:
        return []
    prefix = base.rstrip("/") + "/"
    return whole.removeprefix(prefix).split("/") if whole.startswith(prefix) else None


@contextmanager
def without_links(path: str, folder: str) -> Iterator[tuple[str, int | None, int]]:
    """How to open a path: its name, the `dir_fd` that it is meant from, and the flag that follows no link at its end.

    That is for what lies below `folder`; any other path is the caller's own, and given back as it is. LeadsOut.
    """
    names = names_below(path, folder) if folder else None
    if not names:
        yield path, None, 0
        return
    with opened_folder(folder) as top:
        try:
            parent = walk(top, names[:-1])
        except LeadsOut as error:
            raise LeadsOut(*error.args[:2], path) from error
        try:
            yield names[-1], parent, os.O_NOFOLLOW
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(parent, names[-1]):
                raise LeadsOut(errno.ELOOP, "a link lies there, and is not followed", path) from error
            if error.filename == names[-1]:
                error.filename = path  # the kernel was asked for the name alone, which says nobody where
            raise
        finally:
            os.close(parent)


def _is_link(folder: int, name: str) -> bool:
    with suppress(FileNotFoundError):  # no link, then
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _make(folder: int, name: str, mode: int) -> None:
    with suppress(FileExistsError):  # what it is, the walk finds out
        os.mkdir(name, mode, dir_fd=folder)
        sync_folder(folder)
