"""Content files open for reading: a bounded number of shared descriptors."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.errors import ContentMissing
from ullage_agent.engine.files import File, Files
from ullage_agent.engine.model import ResourceClaim

T = TypeVar("T")

OPEN_FILES_MAX = 256
"""Descriptors kept open for reading."""


class OpenFiles:
    """The least recently read ones are closed first. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._forgotten = 0
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, claim: ResourceClaim, container: Container) -> Iterator[File]:
        """See `ContentRepository.reading`."""
        opened = self._acquire(claim, container)
        try:
            yield opened.file
        finally:
            with self._lock:
                opened.users -= 1
                if opened.is_doomed and opened.users == 0:
                    opened.file.close()

    def descriptor(self, claim: ResourceClaim, container: Container) -> int:
        """See `ContentRepository.open_descriptor`."""
        try:
            return _anywhere(container, claim, self._files.open_descriptor)
        except FileNotFoundError as error:
            raise _missing(claim, container) from error

    def forget(self, index: int) -> None:
        """See `ContentRepository.forget`."""
        with self._lock:
            self._forgotten += 1
            opened = self._open.pop(index, None)
            if opened is not None:
                opened.doom()

    def close(self) -> None:
        """Release all descriptors but those in readers' hands, which are released when given back."""
        with self._lock:
            for opened in self._open.values():
                opened.doom()
            self._open.clear()

    def _acquire(self, claim: ResourceClaim, container: Container) -> "_OpenFile":
        with self._lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                self._open.move_to_end(claim.index)
                opened.users += 1
                return opened
            forgotten = self._forgotten
        try:
            file = _anywhere(container, claim, self._files.open)
        except FileNotFoundError as error:
            raise _missing(claim, container) from error
        with self._lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                file.close()
            elif forgotten != self._forgotten:
                # A file went while this one was opened, perhaps this very one: it is not kept open after the read.
                opened = _OpenFile(file)
                opened.is_doomed = True
            else:
                opened = self._open[claim.index] = _OpenFile(file)
                if len(self._open) > OPEN_FILES_MAX:
                    self._open.popitem(last=False)[1].doom()
            opened.users += 1
            return opened


class _OpenFile:
    """A shared descriptor; closed when the last reader has left after it was doomed."""

    __slots__ = ("file", "is_doomed", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_doomed = False

    def doom(self) -> None:
        self.is_doomed = True
        if self.users == 0:
            self.file.close()


def _anywhere(container: Container, claim: ResourceClaim, opening: Callable[[str], T]) -> T:
    """Open the live path, else the archived one: the file may move between the two at any time."""
    try:
        return opening(container.live_path(claim))
    except FileNotFoundError:
        return opening(container.archive_path(claim))


def _missing(claim: ResourceClaim, container: Container) -> ContentMissing:
    return ContentMissing(f"resource claim {claim.index} is missing: {container.live_path(claim)} does not exist")
