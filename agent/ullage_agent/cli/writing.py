"""How output fails: by a disk that is not the repository's."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FAILED: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EROFS})

STDOUT: Final = "stdout"


class OutputFailed(OSError):
    """The disk of what a command writes for its user is full, fails or is read-only: that says nothing of the
    repository's.
    """


@contextmanager
def writing(path: str) -> Iterator[None]:
    """For a block that writes output, and meets the system in nothing else: OutputFailed of a disk."""
    try:
        yield
    except OutputFailed:  # by a block within, which knows the file
        raise
    except OSError as error:
        if error.errno not in DISK_FULL | DISK_FAILED:
            raise
        failed = OutputFailed(error.errno, f"it can't be written: {error.strerror}", error.filename or path)
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from error
