"""The files of a backup, and the manifest that lists them (docs/storage.md, "Backup").

A manifest may come from anywhere, and its checksum proves nothing about who wrote it: what it names must lie where a
backup or a repository has such a file, so that a restoration writes nowhere else.
"""

import os
from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated

import msgspec
from crc32c import crc32c

from ullage.engine.backupplace import GENERATIONS, MANIFEST, BackupPlace
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.keyspaces import SPACES
from ullage.engine.ledger.runfiles import RUNS, run_number
from ullage.engine.ledger.swap import SUFFIX as SWAP_SUFFIX
from ullage.engine.opening import IDENTITY, SWAP, RepositoryIdentity
from ullage.engine.registers import RegisteredSubject
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import FormatTooNew, NotABackup, RepositoryDamaged
from ullage.wire.documents import COUNT_MAX
from ullage.wire.upkeep import BackupGeneration, Keep

RUNS_DIRECTORIES = {space: f"{FLOWFILE}/{RUNS}/{space}" for space in SPACES}
"""Where runs go in a repository, by key space."""

BACKUP_FORMAT = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
"""A length, a number or a time."""

Crc = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]

NAME_BYTES_MAX = 255
"""What a filesystem takes for one name."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup: what it is, by a path that no other content has; its length and CRC-32C, and where it goes
    in a repository. It lies at `path` with `suffix`, which tells it from what other writers put under the same path.
    """

    path: str
    length: Count
    crc: Crc
    name: str
    container: str = ""
    resource: Count = 0
    is_archived: bool = False
    directory: str = ""
    suffix: str = ""

    @property
    def lies_at(self) -> str:
        """Where it is in the backup."""
        return self.path + self.suffix


class OlderManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where the manifest of a generation is that is not the newest, as it was when it was."""

    lies_at: str
    length: Count
    generation: BackupGeneration


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `backup.json`. `last_id`: every transaction up to it is in here, and none above. `older`: the
    generations before it that are kept, in their order, and `keep` why. `erased`: whom nobody brings back from any.
    """

    format: int
    identity: RepositoryIdentity
    sequence: Count
    created_millis: int
    last_id: Count
    snapshot: BackupFile
    swaps: tuple[BackupFile, ...]
    contents: tuple[BackupFile, ...]
    provenance: tuple[BackupFile, ...] = ()
    runs: tuple[BackupFile, ...] = ()
    keep: Keep = Keep()
    older: tuple[OlderManifest, ...] = ()
    erased: tuple[RegisteredSubject, ...] = ()

    @property
    def generation(self) -> BackupGeneration:
        """What is told of it."""
        files = all_files(self)
        return BackupGeneration(
            sequence=self.sequence,
            created_millis=self.created_millis,
            last_id=self.last_id,
            files=len(files),
            bytes=sum(file.length for file in files),
        )


class BackupNote(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a run has copied which was about to follow the manifest whose snapshot lies at `followed`, or none."""

    repository: str
    followed: str
    files: tuple[BackupFile, ...]


class _Version(msgspec.Struct):
    """What every version of the manifest has."""

    format: int


def all_files(manifest: BackupManifest) -> tuple[BackupFile, ...]:
    """Every file but the manifest itself."""
    return (*manifest.contents, *manifest.swaps, *manifest.runs, *manifest.provenance, manifest.snapshot)


def is_run(file: BackupFile) -> bool:
    """Whether a file is a run of records."""
    return file.directory in RUNS_DIRECTORIES.values()


def encode_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of `backup.json`."""
    return _with_checksum(msgspec.json.encode(manifest))


def encode_note(note: BackupNote) -> bytes:
    """The bytes of a file in `notes`."""
    return _with_checksum(msgspec.json.encode(note))


def decode_note(data: bytes) -> BackupNote | None:
    """What the bytes say; None of those that a crash left behind, or that another version wrote: it costs a copy."""
    body, _, crc = data.rpartition(b"\n")
    if crc != b"%08x" % crc32c(body):
        return None
    try:
        return msgspec.json.decode(body, type=BackupNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _with_checksum(body: bytes) -> bytes:
    return body + b"\n%08x" % crc32c(body)


def newest_manifest(place: BackupPlace) -> BackupManifest:
    """The manifest of the newest generation; NotABackup if there is none, RepositoryDamaged or FormatTooNew."""
    data = place.manifest()
    if data is None:
        raise NotABackup(f"{place.name} holds no backup: there is no {MANIFEST} in it")
    return decode_manifest(data, f"{place.name}/{MANIFEST}")


def decode_manifest(data: bytes, path: str) -> BackupManifest:
    """What the bytes at a path say; RepositoryDamaged or FormatTooNew."""
    body, _, crc = data.rpartition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise RepositoryDamaged(f"{path} is damaged: its checksum does not match; use another backup")
    try:
        if msgspec.json.decode(body, type=_Version).format > BACKUP_FORMAT:
            raise FormatTooNew(f"{path} was written by a newer version: use that one")
        manifest = msgspec.json.decode(body, type=BackupManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RepositoryDamaged(f"{path} is no manifest of a backup ({error}): use another backup") from error
    if any(not (_is_inside(each.lies_at) and each.lies_at.startswith(f"{GENERATIONS}/")) for each in manifest.older):
        raise RepositoryDamaged(f"{path} lists an older generation elsewhere, as no backup does: use another one")
    for file in _misplaced(manifest):
        raise RepositoryDamaged(f"{path} lists {file.path!r} as {file.name!r}, as no backup does: use another one")
    return manifest


def _misplaced(manifest: BackupManifest) -> Iterator[BackupFile]:
    """Files that are not, or would not go, where a backup or a repository has such files."""
    for file in all_files(manifest):
        if "/" in file.name or not (_is_inside(file.lies_at) and _is_inside(file.name)):
            yield file
    yield from (file for file in (*manifest.swaps, manifest.snapshot) if file.container or file.directory)
    yield from (file for file in manifest.swaps if not file.name.endswith(SWAP_SUFFIX))
    yield from (file for file in manifest.runs if file.container or not is_run(file))
    yield from (file for file in manifest.runs if run_number(file.name) is None)
    yield from (file for file in (manifest.snapshot,) if file.name != SNAPSHOT)
    yield from (file for file in manifest.contents if file.directory or not _is_content_name(file))
    directories = {parent for file in manifest.provenance for parent in accumulate(file.directory.split("/"), _below)}
    places: set[str] = set()
    for file in manifest.provenance:
        is_reserved = file.directory.split("/")[0] in (IDENTITY, FLOWFILE, SWAP)
        place = _below(file.directory, file.name)
        is_taken = place in directories or place in places
        if file.container or is_reserved or is_taken or not _is_inside(file.directory):
            yield file
        places.add(place)


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}"


def _is_inside(path: str) -> bool:
    """Whether a path leads to something below where it begins, and a filesystem takes it."""
    parts = path.split("/")
    return "\0" not in path and all(part not in ("", ".", "..") and _is_short(part) for part in parts)


def _is_short(name: str) -> bool:
    return len(name.encode()) <= NAME_BYTES_MAX


def _is_content_name(file: BackupFile) -> bool:
    """`<millis>-<index>`, of the resource claim that it says it is."""
    millis, _, index = file.name.partition("-")
    return millis.isdecimal() and millis.isascii() and index == str(file.resource) and file.resource > 0


def lies_in(path: str, place: str) -> bool:
    """Whether a path is a place, or lies in it."""
    place = os.path.abspath(place)
    return os.path.commonpath([os.path.abspath(path), place]) == place
