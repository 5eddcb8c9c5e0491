"""Files beside a repository, or anywhere else, that only their owner may read: keys, certificates, registers."""

import os
import tempfile
from contextlib import suppress

from ullage.engine.files import OsFiles, make_directories


def write_anew(path: str, data: bytes, *, is_replaced: bool = False) -> None:
    """A file that only its owner may read, durable with its name; FileExistsError if there is one that is not to be
    replaced. Directories that are missing are made. A killed process may leave a file that is not whole beside it,
    under a name that nobody else has.
    """
    files, directory = OsFiles(), os.path.dirname(os.path.abspath(path))
    make_directories(files, directory)
    descriptor, partial = tempfile.mkstemp(".partial", ".ullage-", directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_replaced:
            os.replace(partial, path)
        else:
            os.link(partial, path)  # unlike a rename it replaces nothing
    finally:
        with suppress(FileNotFoundError):  # it has its name by now
            os.unlink(partial)
    files.sync_directory(directory)
