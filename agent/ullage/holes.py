"""Giving the blocks in a file's middle back, which the os module can't."""

import ctypes
import errno
import os
from typing import Final

CANNOT_PUNCH: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})

TRIED_BYTES: Final = 64 << 10
"""A block at the least, whatever the filesystem's are."""

_FALLOC_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_libc = ctypes.CDLL(None, use_errno=True)


def punch_hole(descriptor: int, offset: int, count: int) -> None:
    """fallocate(2), which keeps the file's length: what lies there reads as zeros."""
    mode = ctypes.c_int(_FALLOC_KEEP_SIZE_PUNCH_HOLE)
    if _libc.fallocate64(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(count)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cannot_punch(error: OSError) -> bool:
    """Whether it means that the filesystem has no holes, rather than that the disk failed."""
    return error.errno in CANNOT_PUNCH


def can_punch(directory: str) -> bool:
    """Whether files there can have holes. Tried on a file without a name, which a kill leaves no trace of."""
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # no file without a name to try it on: the first punch finds out
    try:
        os.ftruncate(descriptor, 2 * TRIED_BYTES)
        punch_hole(descriptor, 0, TRIED_BYTES)
    except OSError as error:
        return not cannot_punch(error)
    finally:
        os.close(descriptor)
    return True
