"""The manifest: which event files count, and up to which transaction the log is in them.

    magic 8s "ULLAGEPM" | length u32 | CRC u32 | body: msgpack map

It is replaced as a whole: written beside, synced, renamed. That rename is the commit point of every change to the
event files. A file it does not list is a leftover: its events are still in the log.
"""

import os
from typing import NamedTuple

import msgspec

from ullage.engine.files import Files, read_file, replace_file
from ullage.engine.model import Whole
from ullage.engine.wal.format import FORMAT_VERSION, decode_header, pack_file_header, unpack_file
from ullage.errors import RepositoryDamaged

MAGIC = b"ULLAGEPM"


class EventFile(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file: where it lies, and what it holds without being opened.

    `directory` is a path below the root; `first_id` and `last_id` are transactions, the times those of its events.
    """

    directory: str
    name: str
    first_sequence: Whole
    events: Whole
    first_id: Whole
    last_id: Whole
    millis_min: Whole
    millis_max: Whole
    bytes: Whole
    crc: Whole

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.events - 1


class LostEvents(msgspec.Struct, frozen=True, array_like=True):
    """Events that were given up because there was no room for them (`onFull: Drop`), or set aside with the transaction
    that they are of, because they cannot be told, or that a salvage found no proof of.
    """

    first_sequence: Whole
    events: Whole


class ProvenanceManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`drained`: all events of transactions up to it are in these files, were lost, or were removed by retention.

    `removed_through`: the last sequence number that retention has removed.
    """

    format: int
    repository: str
    drained: Whole
    next_sequence: Whole
    removed_through: Whole = 0
    files: tuple[EventFile, ...] = ()
    lost: tuple[LostEvents, ...] = ()


class ManifestFile(NamedTuple):
    """Where a manifest lies, and whose it must be."""

    files: Files
    path: str
    repository: str

    def read(self) -> ProvenanceManifest | None:
        """None where there is none; RepositoryDamaged or FormatTooNew."""
        if not self.files.exists(self.path):
            return None
        # A killed process may not have come to it, and the snapshot of an unclean start leaves out what is drained.
        self.files.sync_directory(os.path.dirname(self.path))
        return self.decoded(read_file(self.files, self.path))

    def decoded(self, data: bytes) -> ProvenanceManifest:
        """What the bytes of the file say; as `read`."""
        found = unpack_file(MAGIC, data)
        if found is None:
            raise RepositoryDamaged(f"{self.path} is damaged: restore it from a backup; no event file was touched")
        manifest = decode_header(found, ProvenanceManifest, self.path)
        if manifest.repository != self.repository:
            raise RepositoryDamaged(
                f"{self.path} belongs to repository {manifest.repository}, not to {self.repository}"
            )
        if problem := _problem(manifest):
            raise RepositoryDamaged(f"{self.path} contradicts itself: {problem}; restore it from a backup")
        return manifest

    def write(self, manifest: ProvenanceManifest) -> None:
        """Replace it, durably."""
        body = msgspec.msgpack.encode(manifest)
        replace_file(self.files, self.path, pack_file_header(MAGIC, body))

    def new(self, drained: int) -> ProvenanceManifest:
        """That of a repository whose transactions up to `drained` had no events."""
        return ProvenanceManifest(format=FORMAT_VERSION, repository=self.repository, drained=drained, next_sequence=1)


def _problem(manifest: ProvenanceManifest) -> str:
    """Files, what was lost and what was removed make up the sequence, without a gap and in order."""
    spans = [(file.first_sequence, file.events) for file in manifest.files]
    spans += [(lost.first_sequence, lost.events) for lost in manifest.lost]
    expected = manifest.removed_through + 1
    for first, events in sorted(spans):
        if first != expected or events < 1:
            return f"event {expected} is followed by {first}"
        expected = first + events
    if expected != manifest.next_sequence:
        return f"its files end before event {expected}, and the next one is {manifest.next_sequence}"
    last = 0
    for file in manifest.files:
        if not last < file.first_id <= file.last_id <= manifest.drained:
            return f"{file.name} holds transactions {file.first_id} to {file.last_id}, out of order"
        last = file.last_id
    return ""


def without(manifest: ProvenanceManifest, count: int) -> ProvenanceManifest:
    """The manifest once its first `count` files are gone, and what was lost before or between them."""
    removed_through = manifest.files[count - 1].last_sequence
    files = manifest.files[count:]
    lost = tuple(lost for lost in manifest.lost if lost.first_sequence > removed_through)
    while lost and lost[0].first_sequence == removed_through + 1:
        # Reported as removed from now on: nothing older is left that they could be a gap in.
        removed_through += lost[0].events
        lost = lost[1:]
    return msgspec.structs.replace(manifest, files=files, lost=lost, removed_through=removed_through)
