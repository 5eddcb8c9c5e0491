"""Content files open for reading: a bounded number of shared descriptors."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

from ullage.engine.content.containers import ContainerDirectory
from ullage.engine.files import File, Files
from ullage.engine.model import ResourceClaim
from ullage.errors import ContentMissing

T = TypeVar("T")

OPEN_FILES_MAX = 256
"""Descriptors kept open for reading."""


class OpenFiles:
    """The least recently read ones are closed first. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[int, _SharedFile] = OrderedDict()
        self._forgotten = 0
        self._lock = threading.Lock()

    def reading(self, claim: ResourceClaim, container: ContainerDirectory) -> AbstractContextManager[File]:
        """See `ContentStore.reading`."""
        return _FileInUse(self, claim, container)

    def descriptor(self, claim: ResourceClaim, container: ContainerDirectory) -> int:
        """See `ContentStore.open_descriptor`."""
        return _anywhere(container, claim, self._files.open_descriptor)

    def forget(self, index: int) -> None:
        """The file is gone: no descriptor is kept that would hold its blocks."""
        with self._lock:
            self._forgotten += 1
            opened = self._open.pop(index, None)
            if opened is not None:
                opened.doom()

    def forget_container(self, name: str) -> None:
        """Its volume went away or came back: a descriptor that is kept would read the filesystem that was there."""
        with self._lock:
            self._forgotten += 1
            for index in [index for index, opened in self._open.items() if opened.container == name]:
                self._open.pop(index).doom()

    def close(self) -> None:
        """Release all descriptors but those in readers' hands, which are released when given back."""
        with self._lock:
            for opened in self._open.values():
                opened.doom()
            self._open.clear()

    def acquire(self, claim: ResourceClaim, container: ContainerDirectory) -> "_SharedFile":
        """The file, open until it is released."""
        with self._lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                self._open.move_to_end(claim.index)
                opened.users += 1
                return opened
            forgotten = self._forgotten
        # Opened without the lock, which no system call may hold up: whoever reads another file would wait for it.
        file = _anywhere(container, claim, self._files.open)
        with self._lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                file.close()  # another reader was faster
            elif forgotten != self._forgotten:
                # A file went while this one was opened, perhaps this very one: kept, its descriptor would hold blocks
                # that were reported as freed, until 256 others are read. It is closed after this read.
                opened = _SharedFile(file, container.name, is_doomed=True)
            else:
                opened = self._open[claim.index] = _SharedFile(file, container.name)
                if len(self._open) > OPEN_FILES_MAX:
                    self._open.popitem(last=False)[1].doom()
            opened.users += 1
            return opened

    def release(self, opened: "_SharedFile") -> None:
        """Give back what `acquire` gave."""
        with self._lock:
            opened.users -= 1
            if opened.is_doomed and opened.users == 0:
                opened.file.close()


class _FileInUse(AbstractContextManager[File]):
    """One read of a file. Not a generator, which takes a microsecond more of each small content's ten."""

    __slots__ = ("_claim", "_container", "_files", "_opened")

    def __init__(self, files: OpenFiles, claim: ResourceClaim, container: ContainerDirectory) -> None:
        self._files = files
        self._claim = claim
        self._container = container

    def __enter__(self) -> File:
        self._opened = self._files.acquire(self._claim, self._container)
        return self._opened.file

    def __exit__(self, *exception: object) -> None:
        self._files.release(self._opened)


@dataclass(slots=True, eq=False)
class _SharedFile:
    """A shared descriptor; closed when the last reader has left after it was doomed."""

    file: File
    container: str
    users: int = 0
    is_doomed: bool = False

    def doom(self) -> None:
        self.is_doomed = True
        if self.users == 0:
            self.file.close()


def _anywhere(container: ContainerDirectory, claim: ResourceClaim, opening: Callable[[str], T]) -> T:
    """Open the live path, else the archived one. In this order: a file moves to the archive and never back, so one that
    has left the first place before we look there is in the second when we look there.
    """
    live = container.live_path(claim)
    with suppress(FileNotFoundError):  # archived, or gone: the next line tells
        return opening(live)
    try:
        return opening(container.archive_path(claim))
    except FileNotFoundError as error:
        raise ContentMissing(f"resource claim {claim.index} is missing: {live} does not exist") from error
