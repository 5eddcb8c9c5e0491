"""Making a repository of a backup (docs/storage.md, "Backup").

contents, swap files, snapshot, each synced | container identities | rename root identity
                                                                     ^ commit point: until then no repository

A backup may come from anywhere. What its manifest names lies where a backup has it, and no link in the backup is
followed: one would have the restorer read, as content, a file that whoever made the backup can't read.
"""

import os
from collections.abc import Callable

import msgspec

from ullage.beneath import LeadsOut
from ullage.contract import ContentRepositorySpec
from ullage.engine.backupdirectory import DirectoryPlace, write_pieces
from ullage.engine.backupfiles import BackupFile, BackupManifest, all_files, lies_in, read_manifest
from ullage.engine.backupplace import MANIFEST, BackupPlace
from ullage.engine.content.containers import LOST_AND_FOUND, ContainerDirectory, directories_of
from ullage.engine.files import Files, OsFiles, make_directories, replace_file
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.model import ResourceClaim
from ullage.engine.opening import IDENTITY, SWAP
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import DirectoryNotEmpty, InvalidArgument, RepositoryDamaged
from ullage.wire.upkeep import BackupReport

Progress = Callable[[int, int], None]


def restore(
    source: str | BackupPlace,
    spec: ContentRepositorySpec,
    files: Files | None = None,
    on_progress: Progress = lambda _done, _total: None,
) -> BackupReport:
    """Make the repository of a backup, in a directory or another place, where the spec says; every file is verified
    against its CRC-32C on the way.

    DirectoryNotEmpty; InvalidArgument: the spec lacks a container; RepositoryDamaged: a file is not as the manifest has
    it, or a link. Open it and check deeply afterwards.
    """
    files = files or OsFiles()
    place = DirectoryPlace(files, source) if isinstance(source, str) else source
    manifest = read_manifest(place)
    root = spec.storage.host_path.path
    identity = msgspec.structs.replace(
        manifest.identity, containers={one.name: one.sub_path for one in spec.storage.containers}, forgotten=()
    )
    containers = {container.name: container for container in directories_of(files, spec)}
    _require_restorable(files, manifest, spec, containers)
    for directory in ("", FLOWFILE, SWAP, *sorted({file.directory for file in (*manifest.runs, *manifest.provenance)})):
        make_directories(files, os.path.join(root, directory))
    for container in containers.values():
        container.create(identity.repository, FORMAT_VERSION)
    total = sum(file.length for file in all_files(manifest))
    done = 0
    directories: set[str] = set()
    for file in all_files(manifest):
        target = _target(file, root, containers)
        directories.add(os.path.dirname(target))
        path = f"{place.name}/{file.lies_at}"
        try:
            crc = write_pieces(files, target, place.pieces(file.lies_at, file.length)).crc
        except LeadsOut as error:
            raise RepositoryDamaged(f"{path} is or lies behind a link, as in no backup: use another one") from error
        if crc != file.crc:
            raise RepositoryDamaged(f"{path} does not match its checksum in {MANIFEST}: use another backup")
        done += file.length
        on_progress(done, total)
    for directory in sorted(directories):
        files.sync_directory(directory)
    # Last: until it is there an `open` finds no repository, and a restoration that was cut short is begun again.
    replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
    count = len(all_files(manifest))
    return BackupReport(last_id=manifest.last_id, copied_files=count, copied_bytes=total, kept_files=0, kept_bytes=0)


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


def _require_restorable(
    files: Files, manifest: BackupManifest, spec: ContentRepositorySpec, containers: dict[str, ContainerDirectory]
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
    mounts = {path.split("/")[0] for path in spec.storage.provenance_directories}
    mounts |= {os.path.relpath(container.path, root).split(os.sep)[0] for container in containers.values()}
    volumes = [os.path.join(root, FLOWFILE), *(container.path for container in containers.values())]
    for directory, allowed in ((root, {*mounts, FLOWFILE}), *((volume, set[str]()) for volume in volumes)):
        names = files.list_directory(directory) if files.exists(directory) else []
        if foreign := [name for name in names if name not in allowed and name != LOST_AND_FOUND]:
            raise DirectoryNotEmpty(f"{directory} is not empty ({foreign[0]}): restore into an empty directory")
