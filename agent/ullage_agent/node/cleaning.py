"""`python -m ullage_agent.node.cleaning DIRECTORY`: empty a repository's directory, when it is deleted with its data.

Whoever could write to the directory may have left links in it, or put one in a directory's place while this runs:

    it looks      c1/0 is a directory
    somebody      mv c1/0 elsewhere; ln -s /etc c1/0
    it enters     c1/0, and would delete what is in /etc

So every step begins at a directory that is already open, names one entry of it and follows no link: what has become a
link meanwhile is removed as the link that it is. Volumes that are mounted below are emptied, and stay.
"""

import errno
import os
import stat
import sys
from typing import Final

DEPTH_MAX: Final = 64
"""Directories in one another: each holds a descriptor, and a repository has at most nine or so."""

_LINK: Final = (errno.ELOOP, errno.ENOTDIR)
"""What opening a directory says if it is one no more."""


def empty(path: str) -> None:
    """Remove all that lies below the directory, which stays. OSError names what could not be removed."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _empty(directory, path, DEPTH_MAX)
    finally:
        os.close(directory)


def _empty(directory: int, path: str, depth: int) -> None:
    if depth == 0:
        raise OSError(errno.ELOOP, f"more than {DEPTH_MAX} directories lie in one another", path)
    for name in os.listdir(directory):
        below = f"{path}/{name}"
        try:
            _remove(directory, name, below, depth)
        except FileNotFoundError:
            continue  # somebody else removed it
        except OSError as error:
            raise OSError(error.errno, error.strerror, error.filename or below) from error


def _remove(directory: int, name: str, path: str, depth: int) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    try:
        entered = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno not in _LINK:
            raise
        os.unlink(name, dir_fd=directory)  # it was a directory a moment ago
        return
    try:
        _empty(entered, path, depth - 1)
    finally:
        os.close(entered)
    try:
        os.rmdir(name, dir_fd=directory)
    except NotADirectoryError:
        os.unlink(name, dir_fd=directory)  # the same, a moment later
    except OSError as error:
        if error.errno != errno.EBUSY:  # a volume is mounted there
            raise


if __name__ == "__main__":
    empty(sys.argv[1])
