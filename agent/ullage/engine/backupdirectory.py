"""A backup in a directory, and files as pieces: how they are read for a copy, and written as one."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from crc32c import crc32c

from ullage.beneath import LeadsOut
from ullage.engine.backupplace import CONTENT, FLAT_DIRECTORIES, MANIFEST, SNAPSHOTS, Put, is_put, new_suffix
from ullage.engine.files import COPY_BYTES, Files, make_directories, read_file, replace_file
from ullage.engine.oserrors import NotAFile, is_about_file
from ullage.errors import BackupOvertaken, ContentMissing, RepositoryDamaged

HOLE_BYTES = 64 << 10
"""Zeros of so many bytes are left out of a copy: sixteen blocks, so that writes stay large."""

ZEROS = bytes(HOLE_BYTES)

WRITEBACK_BYTES = 8 << 20
"""How often the kernel is asked to start writing."""


class DirectoryPlace:
    """A directory. No link below `within` is followed, which is the directory itself if it is empty: LeadsOut.

    write, sync | sync directories | write and rename manifest | remove
                                             ^ commit point
    """

    lanes = 1
    in_flight_bytes = COPY_BYTES

    def __init__(self, files: Files, path: str, within: str = "") -> None:
        self.name = path
        self.suffix = new_suffix()
        self._files = files.without_links_below(within or path)

    def manifest(self) -> bytes | None:
        path = os.path.join(self.name, MANIFEST)
        if not self._files.exists(path):
            return None
        try:
            return read_file(self._files, path)
        except LeadsOut as error:
            raise RepositoryDamaged(f"{path} is a link, as in no backup: use another one") from error
        except NotAFile as error:
            raise RepositoryDamaged(f"{path} is no file, as in no backup: use another one") from error

    def names(self) -> list[str]:
        return self._files.list_directory(self.name) if self._files.exists(self.name) else []

    def held(self) -> dict[str, int]:
        # What is somebody's own may be a folder or a pipe; that it is there is all that matters.
        return {path: self._files.size(self._at(path)).length if is_put(path) else 0 for path in self._found()}

    @contextmanager
    def writing(self) -> Iterator[None]:
        if not self._files.exists(self.name):
            make_directories(self._files, self.name)
        self.names()  # LeadsOut for a link, which the lock would follow: then somebody else seems to write
        try:
            lock = self._locked(self.name)
        except BlockingIOError as error:
            raise BackupOvertaken(
                f"somebody else writes a backup to {self.name} at this moment: give each repository a directory of its "
                "own, or try again"
            ) from error
        with lock:
            yield

    def prepare(self) -> None:
        """Nothing: a directory takes files as it is."""

    @contextmanager
    def pinned(self, manifest: bytes) -> Iterator[None]:
        with self._locked(self._at(SNAPSHOTS), is_shared=True):
            yield

    def put(self, path: str, pieces: Iterable[bytes], length: int = 0) -> Put:
        target = self._at(path)
        make_directories(self._files, os.path.dirname(target))
        return write_pieces(self._files, target, pieces)

    def settle(self, paths: Collection[str]) -> None:
        for directory in sorted({os.path.dirname(path) for path in paths}):
            self._files.sync_directory(self._at(directory))

    def read(self, path: str, offset: int, count: int) -> bytes:
        with closing(self._files.open(self._at(path))) as file:
            return file.read(min(count, max(0, file.size().length - offset)), offset)  # a manifest may say anything

    def pieces(self, path: str, length: int) -> Iterator[bytes]:
        return read_pieces(self._files, self._at(path), length)

    def publish(self, manifest: bytes, paths: Collection[str]) -> None:
        self.settle(paths)  # names before the manifest that lists them: its rename is the commit point
        replace_file(self._files, self._at(MANIFEST), manifest)

    def remove_unlisted(self, listed: Collection[str], listed_in: Callable[[bytes], Collection[str]]) -> None:
        try:
            lock = self._locked(self._at(SNAPSHOTS))
        except BlockingIOError:
            return  # somebody reads a generation: the next run removes what this one leaves
        with lock:
            for path in self._found():
                if path not in listed and is_put(path):
                    self._files.unlink(self._at(path))

    def _locked(self, directory: str, *, is_shared: bool = False) -> AbstractContextManager[object]:
        """A lock until the end of the block; BlockingIOError."""
        if not self._files.exists(directory):  # no link, which the lock would follow
            return nullcontext()
        try:
            return closing(self._files.lock(directory, is_shared=is_shared))
        except BlockingIOError:
            raise
        except OSError:  # NFS locks no directory: whoever writes there has it for himself, as people agree
            return nullcontext()

    def _at(self, path: str) -> str:
        return os.path.join(self.name, path)

    def _found(self) -> Iterator[str]:
        for directory in FLAT_DIRECTORIES:
            yield from self._below(directory)
        for container in self._below(CONTENT):
            yield from self._below(container)

    def _below(self, directory: str) -> list[str]:
        path = self._at(directory)
        try:
            names = self._files.list_directory(path) if self._files.exists(path) else []
        except NotADirectoryError:
            return [directory]  # somebody's own file
        return [os.path.join(directory, name) for name in names]


def read_pieces(files: Files, path: str, length: int) -> Iterator[bytes]:
    """The first `length` bytes of a file. ContentMissing if it is not there, ends before or can't be read."""
    try:
        reading = files.open(path)
    except FileNotFoundError as error:
        raise ContentMissing(f"{path} {'is no file' if isinstance(error, NotAFile) else 'is missing'}") from error
    with closing(reading):
        offset = 0
        while offset < length:
            try:
                data = reading.read(min(COPY_BYTES, length - offset), offset)
            except OSError as error:
                if not is_about_file(error):
                    raise
                raise ContentMissing(f"{path} can't be read at {offset}: {error.strerror}") from error
            if not data:
                raise ContentMissing(f"{path} ends at {offset}, {length} bytes of it are in use")
            yield data
            offset += len(data)


def write_pieces(files: Files, target: str, pieces: Iterable[bytes]) -> Put:
    """Write a new, synced file of these pieces.

    What is zeros stays a hole, so that the copy of a punched file takes no more blocks than the file.
    """
    try:
        return _written(files, target, pieces)
    except OSError as error:
        if error.filename is None:  # of a write the kernel knows only a number
            error.filename = target
        raise


def _written(files: Files, target: str, pieces: Iterable[bytes]) -> Put:
    with closing(files.create(target)) as writing:
        offset = crc = hinted = 0
        for data in pieces:
            step = HOLE_BYTES if ZEROS in data else len(data)
            for begin in range(0, len(data), step):
                piece = data[begin : begin + step]
                if piece != ZEROS:
                    writing.write(piece, offset + begin)
            crc = crc32c(data, crc)
            offset += len(data)
            # Else the sync at the end would write all of it at once, and the commits' syncs would wait behind it.
            if offset - hinted >= WRITEBACK_BYTES:
                writing.start_writeback(hinted, offset - hinted)
                hinted = offset
        writing.truncate(offset)  # where it ends with zeros, nothing was written there
        writing.sync()
    return Put(offset, crc)
