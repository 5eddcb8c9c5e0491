"""Opening a file of NiFi's: what lies under its name may be anything."""

import errno
import os
import stat

from ullage.beneath import without_links


def open_regular(path: str, folder: str = "") -> int:
    """A descriptor to read a file by; FileNotFoundError, OSError if something else lies there, or nothing can.

    `folder`: below it no link is followed, whatever is put there meanwhile. Else those of the path are.
    """
    try:
        whole = os.path.abspath(path) if folder else path
        with without_links(whole, folder and os.path.abspath(folder)) as (name, above, no_link):
            # A pipe would be waited for until somebody writes to it.
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | no_link, dir_fd=above)
    except ValueError as error:  # a name with NUL, or of no encoding, as damaged bytes have it
        raise OSError(errno.EINVAL, "no file can have this name", repr(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file, but a directory, a pipe or a device", path)
    return descriptor
