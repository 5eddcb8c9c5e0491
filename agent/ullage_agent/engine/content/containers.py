"""Containers: directories on volumes over which content files are striped, each in up to 1,024 sections.

A container says in `ullage.json` which repository it belongs to, so that a volume that is not mounted is never taken
for an empty one, nor another repository's files for orphans.
"""

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ullage_agent.engine.errors import ForeignContainer, RepositoryDamaged
from ullage_agent.engine.files import Files, make_directories, read_file, replace_file
from ullage_agent.engine.model import ResourceClaim
from ullage_agent.engine.wal.format import decode_header

IDENTITY = "ullage.json"
ARCHIVE = "archive"


class ContainerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a container's `ullage.json`."""

    format: int
    repository: str
    container: str


class Usage(NamedTuple):
    """How full a container is: of its capacity quota where it has one, else of its volume."""

    total_bytes: int
    used_bytes: int

    @property
    def percentage(self) -> float:
        return 100.0 * self.used_bytes / self.total_bytes if self.total_bytes else 100.0

    @property
    def free_bytes(self) -> int:
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def free_percentage(self) -> float:
        return max(0.0, 100.0 - self.percentage)


class Container:
    """One directory. `bytes_used` is what the repository's content files take here, archived ones included."""

    def __init__(
        self, files: Files, name: str, path: str, capacity: int | None, sections: int, *, evacuates: bool = False
    ) -> None:
        self.name = name
        self.evacuates = evacuates
        self.path = path
        self.capacity = capacity
        self.failure: BaseException | None = None
        self._files = files
        self.sections = sections
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._directory_lock = threading.Lock()
        self._bytes_used = 0

    def create(self, repository: str, format: int) -> None:
        """Make the directory and its identity; ForeignContainer if it is another one's."""
        make_directories(self._files, self.path)
        if self._files.exists(self._identity_path):
            self.require_identity(repository)
            self._files.sync_directory(self.path)  # an init that was cut short may not have come to it
            return
        if self.content_files():
            raise ForeignContainer(
                f"{self.path} holds content files but no {IDENTITY}: restore that file from a backup, or choose an "
                "empty directory"
            )
        identity = ContainerIdentity(format=format, repository=repository, container=self.name)
        replace_file(self._files, self._identity_path, msgspec.json.encode(identity))

    def require_identity(self, repository: str) -> None:
        """ForeignContainer unless this is the very directory that the repository was made with."""
        if not self._files.exists(self._identity_path):
            raise ForeignContainer(
                f"container {self.name} at {self.path} has no {IDENTITY}: is its volume mounted? Mount it, or if the "
                "content is lost for good, restore it from a backup"
            )
        try:
            found = read_file(self._files, self._identity_path)
            identity = decode_header(found, ContainerIdentity, self._identity_path, msgspec.json.decode)
        except RepositoryDamaged as error:
            raise ForeignContainer(str(error)) from error
        if identity.repository != repository or identity.container != self.name:
            raise ForeignContainer(
                f"{self.path} is container {identity.container} of repository {identity.repository}, not container "
                f"{self.name} of repository {repository}: check the paths and mounts"
            )

    def section_directory(self, claim: ResourceClaim) -> str:
        return os.path.join(self.path, str(claim.index % self.sections))

    def claim_at(self, path: str) -> ResourceClaim | None:
        """The resource claim that a content file of this container would be, by its name; None for anything else."""
        name = os.path.basename(path)
        millis, _, index = name.partition("-")
        if not (millis.isdecimal() and index.isdecimal()):
            return None
        claim = ResourceClaim(int(index), self.name, int(millis))
        return claim if claim.name == name and path in (self.live_path(claim), self.archive_path(claim)) else None

    def live_path(self, claim: ResourceClaim) -> str:
        return os.path.join(self.section_directory(claim), claim.name)

    def archive_path(self, claim: ResourceClaim) -> str:
        return os.path.join(self.section_directory(claim), ARCHIVE, claim.name)

    def current_path(self, claim: ResourceClaim) -> str:
        """Where the file lies by what the ledger knows; an archive move under way may be at either place."""
        archived = self.archive_path(claim)
        if claim.archived_millis or (claim.intent and self._files.exists(archived)):
            return archived
        return self.live_path(claim)

    def ensure_directory(self, path: str) -> None:
        """Create a section or archive directory on first use, durable in its parent.

        One that is there already may have been made by a process, or a thread, that did not come to sync it: so the
        parent is synced at the first use in any case, and nobody passes before that is done.
        """
        if path in self._known:
            return
        with self._directory_lock:
            for directory in (os.path.dirname(path), path):
                if directory != self.path and directory not in self._known:
                    self._files.make_directory(directory)
                    self._files.sync_directory(os.path.dirname(directory))
                    self._known.add(directory)

    def add_bytes(self, count: int) -> None:
        """Account for content written (or, negative, given back)."""
        with self._lock:
            self._bytes_used += count

    @property
    def bytes_used(self) -> int:
        return self._bytes_used

    def usage(self) -> Usage:
        """The figures of this moment, never cached ones."""
        if self.capacity is not None:
            return Usage(self.capacity, self._bytes_used)
        disk = self._files.usage(self.path)
        return Usage(disk.total_bytes, disk.total_bytes - disk.free_bytes)

    def has_room_for(self, count: int) -> bool:
        """Whether the quota allows `count` more bytes; the volume itself says so when they are written."""
        return self.capacity is None or self._bytes_used + count <= self.capacity

    def content_files(self) -> list[str]:
        """Paths of all content files on disk, archived ones included: a walk over every section."""
        found: list[str] = []
        for section in self._files.list_directory(self.path):
            if not section.isdigit():
                continue
            directory = os.path.join(self.path, section)
            for name in self._files.list_directory(directory):
                path = os.path.join(directory, name)
                if name == ARCHIVE:
                    found.extend(os.path.join(path, archived) for archived in self._files.list_directory(path))
                else:
                    found.append(path)
        return found

    @property
    def _identity_path(self) -> str:
        return os.path.join(self.path, IDENTITY)


def choose(containers: Sequence[Container], turn: int) -> Sequence[Container]:
    """Round robin: the container whose turn it is first, then the others, without those that stopped writing."""
    start = turn % len(containers)
    return [container for container in (*containers[start:], *containers[:start]) if container.failure is None]
