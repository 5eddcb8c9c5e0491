"""The content files of a repository that is made of a share.

Each content is written at the address with which it was born, and nothing else is: so a content that an earlier try
wrote is found there, and proved by its CRC-32C. What is proved is synced all the same: whoever wrote it may have been
killed before.
"""

import os
from collections.abc import Iterable

from crc32c import crc32c

from ullage.engine.content.containers import ContainerDirectory
from ullage.engine.files import File, Files
from ullage.engine.model import ContentClaim, Operation, ResourceClaim, ResourceClaimGone
from ullage.engine.shipping.contentpack import PIECE_BYTES
from ullage.errors import RepositoryDamaged

OPEN_MAX = 100
"""Content files that are open at a time."""


class RestoredContent:
    """Each resource claim has a file, if only an empty one. `goes_on`: an earlier try may have left some."""

    def __init__(self, files: Files, containers: dict[str, ContainerDirectory], *, goes_on: bool = False) -> None:
        self._files = files
        self._containers = containers
        self._goes_on = goes_on
        self._claims: dict[int, ResourceClaim] = {}
        self._open: dict[int, File] = {}
        self._paths: dict[int, str] = {}
        self._taken_over: set[int] = set()
        self._written: set[int] = set()
        self.directories: set[str] = set()

    @property
    def written(self) -> int:
        """How many files something was written to, or were made empty."""
        return len(self._written)

    @property
    def kept(self) -> int:
        """How many files an earlier try had made, and nothing was written to."""
        return len(self._paths) - len(self._written)

    def note(self, operations: Iterable[Operation]) -> None:
        """Which resource claims there are."""
        for operation in operations:
            if isinstance(operation, ResourceClaim):
                if operation.container not in self._containers:
                    raise RepositoryDamaged(
                        f"resource claim {operation.index} lies in {operation.container!r}, which is no container"
                    )
                self._claims[operation.index] = operation
            elif isinstance(operation, ResourceClaimGone):
                self._claims.pop(operation.index, None)
                self._discard(operation.index)

    def has(self, resource: int) -> bool:
        """Whether there is such a resource claim."""
        return resource in self._claims

    def is_there(self, claim: ContentClaim) -> bool:
        """Whether an earlier try has written this content of a resource claim that there is."""
        if not self._goes_on:
            return False
        file = self._file(claim.resource)
        try:
            if claim.resource not in self._taken_over or file.size().length < claim.end:
                return False
            crc = 0
            for at in range(claim.offset, claim.end, PIECE_BYTES):
                crc = crc32c(file.read(min(PIECE_BYTES, claim.end - at), at), crc)
        except OSError:  # what the disk can't read is written anew
            return False
        return crc == claim.crc

    def write(self, resource: int, offset: int, data: bytes) -> None:
        """Bytes of a resource claim that there is."""
        self._file(resource).write(data, offset)
        self._written.add(resource)

    def finish(self) -> None:
        """Make the files that have no content here, and have all of them synced."""
        for resource in self._claims:
            if resource not in self._paths:
                self._file(resource)
        self.close()

    def close(self) -> None:
        """What was written is synced, so that whoever goes on finds it."""
        for resource in list(self._open):
            self._sync(resource)

    def _file(self, resource: int) -> File:
        file = self._open.pop(resource, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._sync(next(iter(self._open)))
            file = self._opened(resource)
        self._open[resource] = file  # the last that was used is the last to go
        return file

    def _opened(self, resource: int) -> File:
        if resource in self._paths:
            return self._files.open(self._paths[resource], writable=True)
        claim = self._claims[resource]
        path = self._containers[claim.container].live_path(claim)
        self._containers[claim.container].ensure_directory(os.path.dirname(path))
        self.directories.add(os.path.dirname(path))
        self._paths[resource] = path
        if self._goes_on and self._files.exists(path):
            self._taken_over.add(resource)
            return self._files.open(path, writable=True)
        self._written.add(resource)
        return self._files.create(path)

    def _sync(self, resource: int) -> None:
        file = self._open.pop(resource)
        try:
            file.sync()
        except OSError:
            # The page cache lies from now on: who goes on would read it, and believe that it is on the disk.
            self._files.unlink(self._paths[resource])
            raise
        finally:
            file.close()

    def _discard(self, resource: int) -> None:
        if (file := self._open.pop(resource, None)) is not None:
            file.close()
        # What an earlier try made is among them by now: what rode in the log comes again, and packs come last.
        if (path := self._paths.pop(resource, None)) is not None:
            self._files.unlink(path)
        self._written.discard(resource)
