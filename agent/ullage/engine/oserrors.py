"""What an error of the operating system says: of a file, of its disk, or only of this process and moment."""

import errno

from ullage.beneath import LeadsOut

NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP})
"""Something else lies where a directory should be."""

NO_SUCH_PLACE = frozenset({errno.ENOENT, errno.ENOTDIR})
"""What opening a directory for its sync says where the volume that it was on is not mounted any more."""

TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""What opening a path answers where a directory, a socket, a device, a link to itself or a path through a file is."""


class SyncNotTried(OSError):
    """A sync that did not come about, because there is no descriptor or memory left to open what it is of.

    Unlike a failed one it says nothing about the disk: what is to be synced can be synced later.
    """


class NotAFile(FileNotFoundError):
    """What lies at the path is a directory, a pipe, a link that leads nowhere: the file that was there is missing."""


def of_opening(error: OSError) -> OSError:
    """What opening a file has met, `NotAFile` where something else lies there."""
    if isinstance(error, LeadsOut) or error.errno not in _NO_FILE:
        return error
    return NotAFile(*error.args[:2], error.filename)


def is_about_file(error: OSError) -> bool:
    """Whether it says something of the file or its disk, rather than of this process or of a signal's handler."""
    return error.errno is not None and error.errno not in TOO_MANY


def unreadable(error: OSError) -> str:
    """What it says of a file that was to be read, for a message that begins with its path. Raises it again if it says
    nothing of the file.
    """
    if not is_about_file(error):
        raise error
    return "is missing" if isinstance(error, FileNotFoundError) else f"can't be read ({error.strerror})"


def is_disk_full(error: OSError) -> bool:
    """Whether it means that there is no room, rather than that the disk failed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
