"""Making all of a filesystem durable at once, which the os module can't: one wait for the disk, not thousands."""

import ctypes
import os
import re
from typing import Final

LINUX_MIN: Final = (5, 8)
"""From here on syncfs(2) tells of what could not be written."""

KINDS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
"""ext4, XFS, Btrfs and tmpfs, as statfs(2) has them. Of one in a process, or elsewhere, syncfs asks too little."""

_STATFS_BYTES: Final = 512
_libc = ctypes.CDLL(None, use_errno=True)


def can_sync_whole(descriptor: int) -> bool:
    """Whether what `sync_whole` says of this filesystem can be relied on."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is None or tuple(map(int, version.groups())) < LINUX_MIN:
        return False
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value in KINDS


def sync_whole(descriptor: int) -> None:
    """syncfs(2): everything of the filesystem of an open file or folder is durable when this returns.

    OSError: something could not be written since the descriptor was opened, so open it before what is to be durable is
    written.
    """
    if _libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
