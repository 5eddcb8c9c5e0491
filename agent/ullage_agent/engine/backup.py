"""Backup of a repository that goes on working, and its restoration (docs/storage.md, "Backup").

    hold reclamation | checkpoint | copy what the last backup has not | sync | rename manifest | remove what it lacks
                                                                               ^ commit point
    a crash before it: the last backup counts, and none of its files was touched; after it: leftovers are unlisted

Bytes that the ledger names never change, so only the moment needs care: the checkpoint's snapshot says what belongs
to it, and nothing is given back until that is copied. Files of a backup are never written again: a resource claim
whose generation or length differs gets another file.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from crc32c import crc32c

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.backupfiles import (
    BACKUP_FORMAT,
    MANIFEST,
    BackupFile,
    Manifest,
    all_files,
    encode_manifest,
    read_manifest,
)
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.errors import ContentMissing, RepositoryDamaged, SessionMisuse
from ullage_agent.engine.files import COPY_BYTES, PARTIAL_SUFFIX, Files, make_directories, replace_file
from ullage_agent.engine.flowfile.swap import SwapFiles
from ullage_agent.engine.model import Action, FlowFile, Operation, Relocation, ResourceClaim, SwapOut
from ullage_agent.engine.opening import FLOWFILE, IDENTITY, SWAP, RepositoryIdentity, containers_of
from ullage_agent.engine.provenance.store import PROVENANCE, ProvenanceStore
from ullage_agent.engine.wal.format import FORMAT_VERSION
from ullage_agent.engine.wal.records import RecordReader, write_records
from ullage_agent.engine.wal.serde import SerDe
from ullage_agent.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader

CONTENT = "content"

HOLE_BYTES = 64 << 10
"""Zeros of so many bytes are left out of a copy: sixteen blocks, so that writes stay large."""

ZEROS = bytes(HOLE_BYTES)

Progress = Callable[[int, int], None]


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup or a restoration did, in files and bytes. `kept`: what the last backup had already."""

    last_id: int
    copied_files: int
    copied_bytes: int
    kept_files: int
    kept_bytes: int


class BackupPlan(msgspec.Struct, frozen=True):
    """What must be copied (source and file to be, its CRC not known yet), and what is there already."""

    copies: tuple[tuple[str, BackupFile], ...]
    kept: tuple[BackupFile, ...]


class BackedUpRepository(Protocol):
    """The parts that a backup reads."""

    files: Files
    clock: Clock
    root: str
    serde: SerDe
    identity: RepositoryIdentity
    content: ContentRepository
    swap_files: SwapFiles
    provenance: ProvenanceStore

    def checkpoint(self) -> None: ...

    def keeping(self) -> AbstractContextManager[None]: ...


class Backup:
    """Writes backups of one open repository; one at a time. Sessions may commit meanwhile."""

    def __init__(self, repository: BackedUpRepository) -> None:
        self._repository = repository
        self._files = repository.files
        self._lock = threading.Lock()

    def write(self, destination: str, on_progress: Progress = lambda _done, _total: None) -> BackupReport:
        """Bring the backup in `destination` up to date, or begin one; `on_progress` gets bytes copied and to copy.

        Until it returns, nothing dead is given back. SessionMisuse: the directory holds something else, or lies in the
        repository. ContentMissing: a file is too short for what lives in it. An error leaves the last backup as it was.
        """
        repository = self._repository
        _require_apart(repository, destination)
        with self._lock, repository.keeping():
            previous = _previous(self._files, destination, repository.identity)
            make_directories(self._files, destination)
            sequence = 1 if previous is None else previous.sequence + 1
            with repository.provenance.still():
                repository.checkpoint()
                snapshot, header, named = self._write_snapshot(destination, sequence)
                events, event_sources = self._write_provenance(destination, sequence)
            plan = plan_backup([*self._sources(named), *event_sources], previous)
            copied = self._copy_all(destination, plan, on_progress)
            files = (*copied, *plan.kept)
            manifest = Manifest(
                format=BACKUP_FORMAT,
                identity=repository.identity,
                sequence=sequence,
                created_millis=repository.clock.now_millis(),
                last_id=header.last_id,
                snapshot=snapshot,
                swaps=tuple(file for file in files if not file.container and not file.directory),
                contents=tuple(file for file in files if file.container),
                provenance=(*(file for file in files if file.directory), *events),
            )
            self._sync_directories(destination, manifest)
            replace_file(self._files, os.path.join(destination, MANIFEST), encode_manifest(manifest))
        self._remove_unlisted(destination, manifest)
        return BackupReport(
            last_id=header.last_id,
            copied_files=len(copied),
            copied_bytes=sum(file.length for file in copied),
            kept_files=len(plan.kept),
            kept_bytes=sum(file.length for file in plan.kept),
        )

    def _write_snapshot(self, destination: str, sequence: int) -> tuple[BackupFile, SnapshotHeader, "_Named"]:
        """The repository's snapshot without its log's places, verified on the way, and what it names."""
        repository = self._repository
        named = _Named()
        directory = os.path.join(destination, FLOWFILE)
        make_directories(self._files, directory)
        name = f"{SNAPSHOT}-{sequence}"
        path = os.path.join(directory, name)
        source = os.path.join(repository.root, FLOWFILE, SNAPSHOT)
        reader = RecordReader(self._files, source, SNAPSHOT_MAGIC, SnapshotHeader, repository.serde)
        try:
            header = msgspec.structs.replace(
                reader.header,
                serde=repository.serde.name,
                serde_version=repository.serde.version,
                next_sequences={},
            )
            blocks = named.noting(reader.blocks())
            length = write_records(self._files, path, SNAPSHOT_MAGIC, header, blocks, repository.serde)
        finally:
            reader.close()
        crc = _crc_of(self._files, path, length)
        return BackupFile(path=os.path.join(FLOWFILE, name), length=length, crc=crc, name=SNAPSHOT), header, named

    def _write_provenance(
        self, destination: str, sequence: int
    ) -> tuple[list[BackupFile], list[tuple[str, BackupFile]]]:
        """The manifest of event files, copied while nothing moves to them, and the files that it lists."""
        store = self._repository.provenance
        source = store.place
        if source is None:
            return [], []
        directory = os.path.join(destination, PROVENANCE)
        make_directories(self._files, directory)
        name = os.path.basename(source)
        path = os.path.join(PROVENANCE, f"{name}-{sequence}")
        target = os.path.join(destination, path)
        if self._files.exists(target):  # of a backup that was cut short
            self._files.unlink(target)
        length = self._files.size(source).length
        crc = copy_file(self._files, source, target, length)
        manifest = BackupFile(path=path, length=length, crc=crc, name=name, directory=PROVENANCE)
        sources = [
            (
                store.event_files.path(file),
                BackupFile(
                    path=os.path.join(PROVENANCE, file.name),
                    length=file.bytes,
                    crc=0,
                    name=file.name,
                    directory=file.directory,
                ),
            )
            for file in store.manifest.files
        ]
        return [manifest], sources

    def _sources(self, named: "_Named") -> list[tuple[str, BackupFile]]:
        """Each file to have in the backup, with where it is now."""
        repository = self._repository
        sources: list[tuple[str, BackupFile]] = []
        for swap in named.swaps:
            path = repository.swap_files.path(swap.name)
            length = self._files.size(path).length
            sources.append((path, BackupFile(path=os.path.join(SWAP, swap.name), length=length, crc=0, name=swap.name)))
        for claim in named.claims:
            container = repository.content.container_of(claim)
            path = container.current_path(claim)
            if claim.index in named.moved:
                continue  # its content lies in an output; a file that is left of it is about to go
            if claim.intent == Action.DELETE and not self._files.exists(path):
                continue
            length = named.length_of(claim)
            kept_as = f"{claim.name}-{claim.generation}-{length}"
            file = BackupFile(
                path=os.path.join(CONTENT, claim.container, kept_as),
                length=length,
                crc=0,
                name=claim.name,
                container=claim.container,
                resource=claim.index,
                is_archived=path == container.archive_path(claim),
            )
            sources.append((path, file))
        return sources

    def _copy_all(self, destination: str, plan: BackupPlan, on_progress: Progress) -> list[BackupFile]:
        total = sum(file.length for _, file in plan.copies)
        done = 0
        copied: list[BackupFile] = []
        for directory in sorted({os.path.dirname(file.path) for _, file in plan.copies}):
            make_directories(self._files, os.path.join(destination, directory))
        for source, file in plan.copies:
            crc = copy_file(self._files, source, os.path.join(destination, file.path), file.length)
            copied.append(msgspec.structs.replace(file, crc=crc))
            done += file.length
            on_progress(done, total)
        return copied

    def _sync_directories(self, destination: str, manifest: Manifest) -> None:
        for directory in sorted({os.path.dirname(file.path) for file in all_files(manifest)}):
            self._files.sync_directory(os.path.join(destination, directory))

    def _remove_unlisted(self, destination: str, manifest: Manifest) -> None:
        listed = {file.path for file in all_files(manifest)}
        for path in _found(self._files, destination):
            if path not in listed:
                self._files.unlink(os.path.join(destination, path))


class _Named:
    """What a snapshot names: resource claims, how far FlowFiles reach into them, and swap files."""

    def __init__(self) -> None:
        self.claims: list[ResourceClaim] = []
        self.swaps: list[SwapOut] = []
        self.moved: set[int] = set()
        self._ends: dict[int, int] = {}

    def noting(self, blocks: Iterator[list[Operation]]) -> Iterator[list[Operation]]:
        """The blocks as they come, looked at in passing."""
        for block in blocks:
            for operation in block:
                if isinstance(operation, FlowFile) and operation.claim is not None:
                    self._reach(operation.claim.resource, operation.claim.end)
                elif isinstance(operation, ResourceClaim):
                    self.claims.append(operation)
                elif isinstance(operation, Relocation):
                    self.moved.add(operation.source)
                elif isinstance(operation, SwapOut):
                    self.swaps.append(operation)
                    for share in operation.shares:
                        self._reach(share.resource, share.end)
            yield block

    def length_of(self, claim: ResourceClaim) -> int:
        """What belongs to the backup. An open resource claim's length was recorded when it was new: it reaches further
        by now, to the end of its last claim.
        """
        if claim.intent == Action.TRUNCATE:
            return min(claim.length, claim.intent_length)
        return claim.length if claim.sealed else max(claim.length, self._ends.get(claim.index, 0))

    def _reach(self, resource: int, end: int) -> None:
        self._ends[resource] = max(self._ends.get(resource, 0), end)


def plan_backup(sources: Sequence[tuple[str, BackupFile]], previous: Manifest | None) -> BackupPlan:
    """Pure: a file that the last backup has under the same path has the same bytes, since none is written twice."""
    had = {} if previous is None else {file.path: file for file in all_files(previous)}
    copies = tuple((source, file) for source, file in sources if file.path not in had)
    kept = tuple(msgspec.structs.replace(file, crc=had[file.path].crc) for _, file in sources if file.path in had)
    return BackupPlan(copies, kept)


def restore(
    files: Files,
    source: str,
    spec: ContentRepositorySpec,
    on_progress: Progress = lambda _done, _total: None,
) -> BackupReport:
    """Make the repository of a backup where the spec says; every file is verified against its CRC-32C on the way.

    contents, swap files, snapshot, each synced | container identities | rename root identity
                                                                         ^ commit point: until then no repository

    SessionMisuse: a directory is not empty, or the spec lacks a container. Open it and check deeply afterwards.
    """
    manifest = read_manifest(files, source)
    root = spec.storage.host_path.path
    identity = msgspec.structs.replace(
        manifest.identity, containers={one.name: one.sub_path for one in spec.storage.containers}
    )
    containers = {container.name: container for container in containers_of(files, spec, identity)}
    _require_restorable(files, manifest, spec, containers)
    for directory in ("", FLOWFILE, SWAP, *sorted({file.directory for file in manifest.provenance})):
        make_directories(files, os.path.join(root, directory))
    for container in containers.values():
        container.create(identity.repository, FORMAT_VERSION)
    total = sum(file.length for file in all_files(manifest))
    done = 0
    directories: set[str] = set()
    for file in all_files(manifest):
        target = _target(file, root, containers)
        directories.add(os.path.dirname(target))
        path = os.path.join(source, file.path)
        if copy_file(files, path, target, file.length) != file.crc:
            raise RepositoryDamaged(f"{path} does not match its checksum in {MANIFEST}: use another backup")
        done += file.length
        on_progress(done, total)
    for directory in sorted(directories):
        files.sync_directory(directory)
    replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
    count = len(all_files(manifest))
    return BackupReport(last_id=manifest.last_id, copied_files=count, copied_bytes=total, kept_files=0, kept_bytes=0)


def copy_file(files: Files, source: str, target: str, length: int) -> int:
    """Copy the first `length` bytes to a new, synced file; returns their CRC-32C. A leftover target is replaced.

    What is zeros stays a hole, so that the copy of a punched file takes no more blocks than the file.
    """
    if files.exists(target):
        files.unlink(target)
    try:
        reading = files.open(source)
    except FileNotFoundError as error:
        raise ContentMissing(f"{source} is missing: `ullage check` tells what else is") from error
    try:
        writing = files.create(target)
        try:
            offset = crc = 0
            while offset < length:
                data = reading.read(min(COPY_BYTES, length - offset), offset)
                if not data:
                    raise ContentMissing(f"{source} ends at {offset}, {length} bytes of it are in use")
                step = HOLE_BYTES if ZEROS in data else len(data)
                for begin in range(0, len(data), step):
                    piece = data[begin : begin + step]
                    if piece != ZEROS:
                        writing.write(piece, offset + begin)
                crc = crc32c(data, crc)
                offset += len(data)
            writing.truncate(length)
            writing.sync()
        finally:
            writing.close()
    finally:
        reading.close()
    return crc


def _crc_of(files: Files, path: str, length: int) -> int:
    file = files.open(path)
    try:
        crc = 0
        for offset in range(0, length, COPY_BYTES):
            crc = crc32c(file.read(min(COPY_BYTES, length - offset), offset), crc)
        return crc
    finally:
        file.close()


def _target(file: BackupFile, root: str, containers: dict[str, Container]) -> str:
    """Where a file goes; its directory is made."""
    if file.directory:
        return os.path.join(root, file.directory, file.name)
    if not file.container:
        return os.path.join(root, FLOWFILE if file.name == SNAPSHOT else SWAP, file.name)
    container = containers[file.container]
    millis = int(file.name.partition("-")[0])
    claim = ResourceClaim(file.resource, file.container, millis)
    path = container.archive_path(claim) if file.is_archived else container.live_path(claim)
    container.ensure_directory(os.path.dirname(path))
    return path


def _require_apart(repository: BackedUpRepository, destination: str) -> None:
    inside = [repository.root, *(container.path for container in repository.content.containers.values())]
    if any(_lies_in(destination, place) for place in inside):
        raise SessionMisuse(f"{destination} lies in the repository: choose a directory elsewhere, best on another disk")


def _previous(files: Files, destination: str, identity: RepositoryIdentity) -> Manifest | None:
    if not files.exists(destination):
        return None
    if files.exists(os.path.join(destination, MANIFEST)):
        manifest = read_manifest(files, destination)
        if manifest.identity.repository != identity.repository:
            raise SessionMisuse(f"{destination} holds a backup of repository {manifest.identity.repository}")
        return manifest
    ours = {CONTENT, FLOWFILE, SWAP, PROVENANCE, MANIFEST + PARTIAL_SUFFIX}
    if foreign := [name for name in files.list_directory(destination) if name not in ours]:
        raise SessionMisuse(f"{destination} is not empty ({foreign[0]}), and no backup: choose another directory")
    return None


def _require_restorable(
    files: Files, manifest: Manifest, spec: ContentRepositorySpec, containers: dict[str, Container]
) -> None:
    if spec.storage.sections != manifest.identity.sections:
        raise SessionMisuse(f"the backup has {manifest.identity.sections} sections: say so in spec.storage.sections")
    if missing := sorted({file.container for file in manifest.contents} - set(containers)):
        raise SessionMisuse(f"the backup has containers {', '.join(missing)}: list them in spec.storage.containers")
    root = spec.storage.host_path.path
    for file in manifest.provenance:
        directory = os.path.join(root, file.directory)
        if name := next((name for name, one in containers.items() if _lies_in(directory, one.path)), ""):
            raise SessionMisuse(
                f"the backup has event files in {file.directory}, which is where spec.storage.containers puts {name}: "
                f"give that container another subPath"
            )
    mounts = {path.split("/")[0] for path in spec.storage.provenance_directories}
    mounts |= {os.path.relpath(container.path, root).split(os.sep)[0] for container in containers.values()}
    for directory, allowed in ((root, mounts), *((container.path, set()) for container in containers.values())):
        names = files.list_directory(directory) if files.exists(directory) else []
        if foreign := [name for name in names if name not in allowed]:
            raise SessionMisuse(f"{directory} is not empty ({foreign[0]}): restore into an empty directory")


def _lies_in(path: str, place: str) -> bool:
    """Whether a path is a place, or lies in it."""
    place = os.path.abspath(place)
    return os.path.commonpath([os.path.abspath(path), place]) == place


def _found(files: Files, destination: str) -> Iterator[str]:
    """All files in the directories of a backup, relative to it."""
    for directory in (FLOWFILE, SWAP, PROVENANCE):
        if files.exists(os.path.join(destination, directory)):
            yield from (
                os.path.join(directory, name) for name in files.list_directory(os.path.join(destination, directory))
            )
    content = os.path.join(destination, CONTENT)
    for container in files.list_directory(content) if files.exists(content) else ():
        for name in files.list_directory(os.path.join(content, container)):
            yield os.path.join(CONTENT, container, name)
