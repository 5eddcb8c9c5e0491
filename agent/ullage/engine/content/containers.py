"""Containers: directories on volumes over which content files are striped, each in up to 1,024 sections.

A container says in `ullage.json` which repository it belongs to, so that a volume that is not mounted is never taken
for an empty one, nor another repository's files for orphans.
"""

import enum
import os
import threading
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from ullage.contract import ContentRepositorySpec
from ullage.engine.files import DiskUsage, FileMark, Files, make_directories, read_file, replace_file
from ullage.engine.model import ResourceClaim
from ullage.engine.oserrors import TOO_MANY
from ullage.engine.wal.format import decode_header
from ullage.errors import ForeignContainer, RepositoryDamaged

IDENTITY = "ullage.json"
ARCHIVE = "archive"
LOST_AND_FOUND = "lost+found"
"""What mkfs makes in the root of a volume: with nothing else in it, the volume is empty."""


class ContainerIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a container's `ullage.json`."""

    format: int
    repository: str
    container: str


class BeingWritten(Protocol):
    """A file that is being written: it ends at `offset`, and its container is charged for `charged` bytes of it."""

    offset: int
    charged: int


class VolumeState(enum.Enum):
    """What can be done with the volume that a container lies on."""

    AVAILABLE = "available"
    READ_ONLY = "read-only"
    AWAY = "away"
    """It is not mounted, or its device does not answer."""
    FOREIGN = "foreign"
    """Another container, or another repository's, is where it should be: it is neither read, written nor cleaned."""
    FORGOTTEN = "forgotten"
    """What lay on it was given up: it is neither read, written nor cleaned, also if it comes back."""


class VolumeCondition(NamedTuple):
    """The state of a container's volume, and why, where it is not available."""

    state: VolumeState
    reason: str = ""


HERE = VolumeCondition(VolumeState.AVAILABLE)


class Usage(NamedTuple):
    """How full a container is: of its capacity quota where it has one, else of its volume."""

    total_bytes: int
    used_bytes: int

    @property
    def percentage(self) -> float:
        """None of a volume that is away, which nobody is to make room on."""
        return 100.0 * self.used_bytes / self.total_bytes if self.total_bytes else 0.0

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
        self.condition = HERE
        self.unmade = ""
        """Why it could not be made; until it is, the repository does not have it. It is tried again at each look."""
        self.is_forgotten = False
        self.forgotten_by = ""
        self._lock = threading.Lock()
        self._bytes_used = 0

    @property
    def is_available(self) -> bool:
        """Whether its volume is there: contents on one that is not are unavailable until it is back."""
        return self.condition.state in (VolumeState.AVAILABLE, VolumeState.READ_ONLY)

    @property
    def is_writable(self) -> bool:
        """Whether new content may be put there, as far as the volume is concerned; how full it is is another matter."""
        return self.failure is None and self.condition.state is VolumeState.AVAILABLE

    @property
    def bytes_used(self) -> int:
        return self._bytes_used

    def charge(self, written: BeingWritten) -> None:
        """Account for a file that is being written as far as it reaches now."""
        with self._lock:
            # In one statement, without a call: an interrupt between the two would charge for the same bytes twice.
            self._bytes_used, written.charged = self._bytes_used + written.offset - written.charged, written.offset

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
        if not self.is_available:
            return Usage(0, 0)  # of its mount point, which is another volume's, nobody asks
        try:
            volume = self.volume()
        except OSError:
            return Usage(0, 0)  # it has just gone away
        return Usage(volume.total_bytes, volume.total_bytes - volume.free_bytes)

    def volume(self) -> DiskUsage:
        """The figures of what the container lies on."""
        raise NotImplementedError

    def device(self) -> int:
        """The number of what the container lies on: containers on one device share its speed."""
        raise NotImplementedError

    def can_punch(self) -> bool:
        """Whether a hole in the middle of content gives its bytes back."""
        return False

    def content_files(self) -> list[str]:
        """Paths of all content files on disk, archived ones included. OSError where its volume is away."""
        return []


class ContainerDirectory(Container):
    """A container that is one directory."""

    def __init__(
        self,
        files: Files,
        name: str,
        path: str,
        capacity: int | None,
        sections: int,
        *,
        evacuates: bool = False,
        is_mounted: bool = False,
    ) -> None:
        """`is_mounted`: it is made only where something is mounted."""
        super().__init__(name, path, capacity, evacuates=evacuates)
        self._files = files
        self._sections = sections
        self._needs_mount = is_mounted
        self._known: set[str] = set()
        self._was_mounted = False
        self._proved: FileMark | None = None
        """Of the identity's file when it was found to be this container's, of the one repository that asks."""

        self._directory_lock = threading.Lock()

    def create(self, repository: str, format: int) -> None:
        """Make the directory and its identity; ForeignContainer if it is another one's."""
        was_mounted, self._was_mounted = self._was_mounted, self._was_mounted or self._is_mounted()
        # A wrong volume was in the way before, and is unmounted now: what was made here would be hidden by the right
        # one, mounted a moment later, which could never be made then.
        if was_mounted and not self._is_mounted():
            raise ForeignContainer(f"nothing is mounted at {self.path} any more: mount the volume that belongs there")
        if self._needs_mount and not self._files.is_mount_point(self.path):
            raise ForeignContainer(f"nothing is mounted at {self.path}: mount the volume of {self.name} there")
        make_directories(self._files, self.path)
        if self._files.exists(self._identity_path):
            self.require_identity(repository)
            # An init that was killed between the rename and this leaves a name that a power loss still takes away; then
            # the container would be a foreign one, with acknowledged content in it.
            self._files.sync_directory(self.path)
            return
        # The root of a volume that lost its identity, or another repository's: to write one here would make its files
        # orphans of ours, which are adopted and cleaned away.
        if any(self._content_files()):
            raise ForeignContainer(
                f"{self.path} holds content files but no {IDENTITY}: restore that file from a backup, or choose an "
                "empty directory"
            )
        identity = ContainerIdentity(format=format, repository=repository, container=self.name)
        replace_file(self._files, self._identity_path, msgspec.json.encode(identity))

    def look(self, repository: str) -> VolumeCondition:
        """Whether the right volume is there at this moment, by the identity on it."""
        if self.is_forgotten:
            return VolumeCondition(VolumeState.FORGOTTEN, f"what lay on container {self.name} was given up")
        if self.unmade:
            return VolumeCondition(VolumeState.AWAY, f"container {self.name} could not be made yet: {self.unmade}")
        try:
            self.require_identity(repository)
            is_read_only = self._files.usage(self.path).is_read_only
        except ForeignContainer as error:
            is_there = self._files.exists(self._identity_path)
            return VolumeCondition(VolumeState.FOREIGN if is_there else VolumeState.AWAY, str(error))
        except OSError as error:
            if error.errno in TOO_MANY:
                return self.condition  # it says nothing about the volume
            return VolumeCondition(VolumeState.AWAY, f"container {self.name} at {self.path} does not answer: {error}")
        return self.read_only() if is_read_only else HERE

    def read_only(self) -> VolumeCondition:
        """What a write that was refused says, too."""
        return VolumeCondition(VolumeState.READ_ONLY, f"container {self.name} at {self.path} is mounted read-only")

    def forget_directories(self) -> None:
        """Which names are durable is not known of a volume that was away."""
        with self._directory_lock:
            self._known = set()

    def require_identity(self, repository: str) -> None:
        """ForeignContainer unless this is the very directory that the repository was made with."""
        try:
            mark = self._files.mark(self._identity_path)  # before its bytes: what changes between is read again
            found = read_file(self._files, self._identity_path)
        except OSError as error:
            if self._files.exists(self._identity_path):
                raise
            raise ForeignContainer(
                f"container {self.name} at {self.path} has no {IDENTITY}: is its volume mounted? Mount it, or if the "
                "content is lost for good, restore it from a backup"
            ) from error
        try:
            identity = decode_header(found, ContainerIdentity, self._identity_path, msgspec.json.decode)
        except RepositoryDamaged as error:
            raise ForeignContainer(str(error)) from error
        if identity.repository != repository or identity.container != self.name:
            raise ForeignContainer(
                f"{self.path} is container {identity.container} of repository {identity.repository}, not container "
                f"{self.name} of repository {repository}: check the paths and mounts"
            )
        self._proved = mark

    def is_as_proved(self) -> bool:
        """Whether the identity's file is the one that was read last, unchanged: asked at the sync of each new content
        file, where reading it took 30 of the 400 us of a content of 100 KB.
        """
        try:
            return self._files.mark(self._identity_path) == self._proved
        except OSError:
            return False  # whoever asks looks then, and hears why

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

    def device(self) -> int:
        return self._files.mark(self.path).device

    def can_punch(self) -> bool:
        return self._files.can_punch(self.path)

    def content_files(self) -> list[str]:
        return list(self._content_files())

    def _content_files(self) -> Iterator[str]:
        for section in self._files.list_directory(self.path):
            if not section.isdigit():  # lost+found, our identity, the ballast
                continue
            directory = os.path.join(self.path, section)
            for name in self._names_in(directory):
                path = os.path.join(directory, name)
                if name == ARCHIVE:
                    yield from (os.path.join(path, archived) for archived in self._names_in(path))
                else:
                    yield path

    def _is_mounted(self) -> bool:
        try:
            return self.device() != self._files.mark(os.path.dirname(self.path)).device
        except OSError:
            return False

    def _names_in(self, directory: str) -> list[str]:
        try:
            return self._files.list_directory(directory)
        except (NotADirectoryError, FileNotFoundError):
            return []  # what somebody put into a section's place, a link that leads nowhere too, is none of ours

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
            is_mounted=container.mounted,
        )
        for container in storage.containers
    ]
