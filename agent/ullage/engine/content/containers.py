"""Containers: directories on volumes over which content files are striped, each in up to 1,024 sections.

A container says in `ullage.json` which repository it belongs to, so that a volume that is not mounted is never taken
for an empty one, nor another repository's files for orphans.
"""

import os
import threading
from typing import NamedTuple

import msgspec

from ullage.contract import ContentRepositorySpec
from ullage.engine.files import DiskUsage, Files, make_directories, read_file, replace_file
from ullage.engine.model import ResourceClaim
from ullage.engine.wal.format import decode_header
from ullage.errors import ForeignContainer, RepositoryDamaged

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
    """One container, wherever its bytes lie. `bytes_used` is what the repository's content takes in it, with what is
    archived; `failure` what made it stop writing until the repository is reopened.
    """

    def __init__(self, name: str, path: str, capacity: int | None, *, evacuates: bool = False) -> None:
        self.name = name
        self.path = path
        self.capacity = capacity
        self.evacuates = evacuates
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        self._bytes_used = 0

    @property
    def bytes_used(self) -> int:
        return self._bytes_used

    def add_bytes(self, count: int) -> None:
        """Account for content written (or, negative, given back)."""
        with self._lock:
            self._bytes_used += count

    def has_room_for(self, count: int) -> bool:
        """Whether the quota allows `count` more bytes; the volume itself says so when they are written."""
        return self.capacity is None or self._bytes_used + count <= self.capacity

    def usage(self) -> Usage:
        """The figures of this moment, never cached ones."""
        if self.capacity is not None:
            return Usage(self.capacity, self._bytes_used)
        volume = self.volume()
        return Usage(volume.total_bytes, volume.total_bytes - volume.free_bytes)

    def volume(self) -> DiskUsage:
        """The figures of what the container lies on; containers on one device share its speed."""
        raise NotImplementedError

    def can_punch(self) -> bool:
        """Whether a hole in the middle of content gives its bytes back."""
        return False

    def content_files(self) -> list[str]:
        """Paths of all content files on disk, archived ones included."""
        return []


class ContainerDirectory(Container):
    """A container that is one directory."""

    def __init__(
        self, files: Files, name: str, path: str, capacity: int | None, sections: int, *, evacuates: bool = False
    ) -> None:
        super().__init__(name, path, capacity, evacuates=evacuates)
        self._files = files
        self._sections = sections
        self._known: set[str] = set()
        self._directory_lock = threading.Lock()

    def create(self, repository: str, format: int) -> None:
        """Make the directory and its identity; ForeignContainer if it is another one's."""
        make_directories(self._files, self.path)
        if self._files.exists(self._identity_path):
            self.require_identity(repository)
            # An init that was killed between the rename and this leaves a name that a power loss still takes away; then
            # the container would be a foreign one, with acknowledged content in it.
            self._files.sync_directory(self.path)
            return
        # The root of a volume that lost its identity, or another repository's: to write one here would make its files
        # orphans of ours, which are adopted and cleaned away.
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
        return os.path.join(self.path, str(claim.index % self._sections))

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
        if path in self._known:  # without the lock: what is in the set was synced before it was put there
            return
        with self._directory_lock:  # held over the sync, or a second writer's frame could be durable before the name
            for directory in (os.path.dirname(path), path):
                if directory != self.path and directory not in self._known:
                    self._files.make_directory(directory)
                    self._files.sync_directory(os.path.dirname(directory))
                    self._known.add(directory)

    def volume(self) -> DiskUsage:
        return self._files.usage(self.path)

    def can_punch(self) -> bool:
        return self._files.can_punch(self.path)

    def content_files(self) -> list[str]:
        found: list[str] = []
        for section in self._files.list_directory(self.path):
            if not section.isdigit():  # lost+found, our identity, the ballast
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


def directories_of(files: Files, spec: ContentRepositorySpec) -> list[ContainerDirectory]:
    """The spec's containers as directories; nothing on disk is looked at."""
    storage = spec.storage
    return [
        ContainerDirectory(
            files,
            container.name,
            os.path.join(storage.host_path.path, container.sub_path),
            None if container.capacity is None else int(container.capacity),
            storage.sections,
            evacuates=container.evacuate,
        )
        for container in storage.containers
    ]
