"""Calls of Linux that the os module lacks."""

import ctypes
import os
import re
from collections.abc import Iterable
from typing import Final

_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)

_STATFS_LONGS = 32
"""Room for the kernel's `struct statfs`, whose first field is the kind of filesystem."""

_IN_PLACE = frozenset((0xEF53, 0x58465342))
"""ext2 to ext4, and XFS without reflinks to share (log files never have any)."""

_MOUNT_POINT: Final = 4
"""The field of a line that says where something is mounted."""

_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
"""How the kernel writes a space, a tab, a line's end and a backslash in it."""


def start_writeback(descriptor: int, offset: int, count: int) -> None:
    """sync_file_range(2), as a hint: what goes wrong is left to a sync."""
    _libc.sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def overwrites_in_place(path: str) -> bool:
    """statfs(2), because os.statvfs does not tell which kind of filesystem it is."""
    figures = (ctypes.c_long * _STATFS_LONGS)()
    if _libc.statfs(os.fsencode(path), figures) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return figures[0] in _IN_PLACE


def is_mount_point(mounts: Iterable[bytes], path: str) -> bool:
    """By the lines of the kernel's list of mounts: a directory that is mounted from elsewhere on the same filesystem
    has the number of its parent's device.
    """
    wanted = os.fsencode(os.path.realpath(path))
    named = (line.split()[_MOUNT_POINT] for line in mounts)
    return any(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), each) == wanted for each in named)
