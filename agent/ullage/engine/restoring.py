"""Making a repository of a backup (docs/storage.md, "Backup").

marker | container identities | contents, swap files, snapshot, each synced | rename root identity | remove marker
                                                                              ^ commit point: until then no repository

Where a register names subjects that are to be erased from it, that is noted before the rename (engine/registers.py).

A crash before it leaves what the next restoration of the same backup to the same place goes on with: what is there is
read, and fetched only if its checksum is another. The marker says which backup it was.

A backup may come from anywhere. What its manifest names lies where a backup has it, and no link in the backup is
followed: one would have the restorer read, as content, a file that whoever made the backup can't read.
"""

import os
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, Self

import msgspec
from crc32c import crc32c

from ullage.beneath import LeadsOut
from ullage.contract import ContentRepositorySpec
from ullage.engine.backupdirectory import DirectoryPlace, read_pieces, write_pieces
from ullage.engine.backupfiles import BackupFile, BackupManifest, all_files, lies_in
from ullage.engine.backupgenerations import reading
from ullage.engine.backupplace import MANIFEST, BackupPlace
from ullage.engine.content.containers import LOST_AND_FOUND, ContainerDirectory, directories_of
from ullage.engine.files import PARTIAL_SUFFIX, Files, OsFiles, length_of, make_directories, read_file, replace_file
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.lanes import in_lanes
from ullage.engine.model import ResourceClaim
from ullage.engine.opening import IDENTITY, RESTORING, SWAP, lock_directory
from ullage.engine.registers import PendingErasure, commit_restored
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import ContentMissing, DirectoryNotEmpty, InvalidArgument, RepositoryDamaged
from ullage.wire.upkeep import BackupReport

Progress = Callable[[int, int], None]


def restore(
    source: str | BackupPlace,
    spec: ContentRepositorySpec,
    files: Files | None = None,
    on_progress: Progress = lambda _done, _total: None,
    generation: int | None = None,
    to_erase: PendingErasure | None = None,
) -> BackupReport:
    """Make the repository of a backup's generation, the newest if none is said, where the spec says; every file is
    verified against its CRC-32C on the way.

    A restoration that was cut short goes on where it was. DirectoryNotEmpty; RepositoryLocked: another one is under way
    there; InvalidArgument: the spec lacks a container; RepositoryDamaged: a file is not as the manifest has it, or a
    link. Open it and check deeply afterwards.
    """
    files = files or OsFiles()
    place = DirectoryPlace(files, source) if isinstance(source, str) else source
    with reading(place, generation) as manifest:
        return restore_manifest(files, place, manifest, spec, on_progress, to_erase)


def restore_manifest(
    files: Files,
    place: BackupPlace,
    manifest: BackupManifest,
    spec: ContentRepositorySpec,
    on_progress: Progress,
    to_erase: PendingErasure | None = None,
) -> BackupReport:
    """The same of a generation that is being read. With `to_erase` nobody opens what is made until that is erased."""
    root = spec.storage.host_path.path
    containers = {container.name: container for container in directories_of(files, spec)}
    _require_fitting(manifest, spec, containers)
    begun = msgspec.json.encode(_Restoring.of(manifest, spec))
    if not _is_begun(files, root, begun):
        require_empty(files, spec, containers)
    make_directories(files, root)
    with closing(lock_directory(files, root)):
        is_begun = _is_begun(files, root, begun)
        if not is_begun:
            replace_file(files, os.path.join(root, RESTORING), begun)
        return _Restoration(files, place, manifest, spec, containers, is_begun).run(on_progress, to_erase)


class _Restoring(NamedTuple):
    """What a marker holds: which backup it is, and where it goes."""

    repository: str
    snapshot: str
    crc: int
    containers: dict[str, str]

    @classmethod
    def of(cls, manifest: BackupManifest, spec: ContentRepositorySpec) -> Self:
        """No two manifests have their snapshot at the same place."""
        paths = {one.name: one.sub_path for one in spec.storage.containers}
        return cls(manifest.identity.repository, manifest.snapshot.lies_at, manifest.snapshot.crc, paths)


class _Restoration:
    """One that nothing stands against any more."""

    def __init__(
        self,
        files: Files,
        place: BackupPlace,
        manifest: BackupManifest,
        spec: ContentRepositorySpec,
        containers: dict[str, ContainerDirectory],
        is_begun: bool,
    ) -> None:
        self._files = files
        self._place = place
        self._manifest = manifest
        self._spec = spec
        self._root = spec.storage.host_path.path
        self._containers = containers
        self._is_begun = is_begun

    def run(self, on_progress: Progress, to_erase: PendingErasure | None) -> BackupReport:
        """All of it."""
        files, root, manifest = self._files, self._root, self._manifest
        run_directories = {file.directory for file in (*manifest.runs, *manifest.provenance)}
        for directory in (FLOWFILE, SWAP, *sorted(run_directories)):
            make_directories(files, os.path.join(root, directory))
        for container in self._containers.values():
            container.create(manifest.identity.repository, FORMAT_VERSION)
        all_of_it = all_files(manifest)
        total = sum(file.length for file in all_of_it)
        done = copied_files = copied_bytes = 0
        directories: set[str] = set()
        jobs = ((file, _target(file, root, self._containers)) for file in all_of_it)
        for (file, target), is_copied in in_lanes(
            jobs, self._fetch, lambda job: job[0].length, self._place.lanes, self._place.in_flight_bytes
        ):
            directories.add(os.path.dirname(target))
            done += file.length
            copied_files += is_copied
            copied_bytes += file.length if is_copied else 0
            on_progress(done, total)
        for directory in sorted(directories):
            files.sync_directory(directory)
        identity = msgspec.structs.replace(
            manifest.identity,
            containers={one.name: one.sub_path for one in self._spec.storage.containers},
            forgotten=(),
        )
        report = BackupReport(
            last_id=manifest.last_id,
            generation=manifest.sequence,
            generations=1 + len(manifest.older),
            copied_files=copied_files,
            copied_bytes=copied_bytes,
            kept_files=len(all_of_it) - copied_files,
            kept_bytes=total - copied_bytes,
        )
        commit_restored(files, root, identity, report, manifest.created_millis, to_erase)
        return report

    def _fetch(self, job: tuple[BackupFile, str]) -> bool:
        """Have a file where it belongs; whether it had to be copied."""
        file, target = job
        if self._is_begun and self._is_there(file, target):
            return False
        self._remove(target)
        path = f"{self._place.name}/{file.lies_at}"
        try:
            crc = write_pieces(self._files, target, self._place.pieces(file.lies_at, file.length)).crc
        except LeadsOut as error:
            raise RepositoryDamaged(f"{path} is or lies behind a link, as in no backup: use another one") from error
        except OSError:
            # After a failed sync the page cache lies: who goes on would read it, and believe that it is on the disk.
            self._remove(target)
            raise
        if crc != file.crc:
            raise RepositoryDamaged(f"{path} does not match its checksum in {MANIFEST}: use another backup")
        return True

    def _remove(self, target: str) -> None:
        """What an earlier run left of a file, or this one."""
        if self._files.exists(target):
            self._files.unlink(target)

    def _is_there(self, file: BackupFile, target: str) -> bool:
        """Whether an earlier run has it, by its bytes; what was killed before it synced them is synced now."""
        if length_of(self._files, target) != file.length:
            return False
        crc = 0
        try:
            for piece in read_pieces(self._files, target, file.length):
                crc = crc32c(piece, crc)
        except ContentMissing:  # what the disk can't read is written anew
            return False
        if crc == file.crc:
            with closing(self._files.open(target, writable=True)) as reading:
                reading.sync()
        return crc == file.crc


def _is_begun(files: Files, root: str, begun: bytes) -> bool:
    """Whether a restoration of the same backup to the same place was cut short. DirectoryNotEmpty: of another one."""
    marker = os.path.join(root, RESTORING)
    if not files.exists(marker) or files.exists(os.path.join(root, IDENTITY)):
        return False
    if read_file(files, marker) != begun:
        raise DirectoryNotEmpty(
            f"{root} holds part of another backup, or of another generation of this one: a restoration was cut short "
            "there. Say that one (`ullage backup list` names generations), or remove what is there"
        )
    return True


def _target(file: BackupFile, root: str, containers: dict[str, ContainerDirectory]) -> str:
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


def _require_fitting(
    manifest: BackupManifest, spec: ContentRepositorySpec, containers: dict[str, ContainerDirectory]
) -> None:
    if spec.storage.sections != manifest.identity.sections:
        raise InvalidArgument(f"the backup has {manifest.identity.sections} sections: say so in spec.storage.sections")
    if missing := sorted({file.container for file in manifest.contents} - set(containers)):
        raise InvalidArgument(f"the backup has containers {', '.join(missing)}: list them in spec.storage.containers")
    root = spec.storage.host_path.path
    for file in manifest.provenance:
        directory = os.path.join(root, file.directory)
        if name := next((name for name, one in containers.items() if lies_in(directory, one.path)), ""):
            raise InvalidArgument(
                f"the backup has event files in {file.directory}, which is where spec.storage.containers puts {name}: "
                f"give that container another subPath"
            )


def require_empty(files: Files, spec: ContentRepositorySpec, containers: dict[str, ContainerDirectory]) -> None:
    """DirectoryNotEmpty if something lies where a repository is to be made."""
    root = spec.storage.host_path.path
    if files.exists(os.path.join(root, IDENTITY)):
        raise DirectoryNotEmpty(f"{root} is not empty: it holds a repository, whole. Restore into an empty directory")
    mounts = {path.split("/")[0] for path in spec.storage.provenance_directories}
    mounts |= {os.path.relpath(container.path, root).split(os.sep)[0] for container in containers.values()}
    in_root = {*mounts, FLOWFILE, RESTORING + PARTIAL_SUFFIX}
    volumes = [os.path.join(root, FLOWFILE), *(container.path for container in containers.values())]
    for directory, allowed in (
        (root, in_root),
        *((volume, set[str]()) for volume in volumes),
    ):
        names = files.list_directory(directory) if files.exists(directory) else []
        if foreign := [name for name in names if name not in allowed and name != LOST_AND_FOUND]:
            raise DirectoryNotEmpty(f"{directory} is not empty ({foreign[0]}): restore into an empty directory")
