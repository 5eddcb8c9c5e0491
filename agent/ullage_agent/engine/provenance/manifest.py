"""The manifest: which event files count, and up to which transaction the log is in them.

    magic 8s "ULLAGEPM" | length u32 | CRC u32 | body: msgpack map

It is replaced as a whole: written beside, synced, renamed. That rename is the commit point of every change to the
event files. A file it does not list is a leftover: its events are still in the log.
"""

import os
import struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from ullage_agent.engine.errors import RepositoryDamaged
from ullage_agent.engine.files import Files, read_file, replace_file
from ullage_agent.engine.model import Whole
from ullage_agent.engine.wal.format import FORMAT_VERSION, decode_header

MAGIC = b"ULLAGEPM"
_HEAD = struct.Struct("<8sII")


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


class Lost(msgspec.Struct, frozen=True, array_like=True):
    """Events that were given up because there was no room for them (`onFull: Drop`)."""

    first_sequence: Whole
    events: Whole


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`drained`: all events of transactions up to it are in these files, were lost, or were removed by retention.

    `removed_through`: the last sequence number that retention has removed.
    """

    format: int
    repository: str
    drained: Whole
    next_sequence: Whole
    removed_through: Whole = 0
    files: tuple[EventFile, ...] = ()
    lost: tuple[Lost, ...] = ()


class Place(NamedTuple):
    """Where a manifest lies, and whose it must be."""

    files: Files
    path: str
    repository: str

    def read(self) -> Manifest | None:
        """None where there is none; RepositoryDamaged or FormatTooNew."""
        if not self.files.exists(self.path):
            return None
        # A killed process may not have come to it, and the snapshot of an unclean start leaves out what is drained.
        self.files.sync_directory(os.path.dirname(self.path))
        data = read_file(self.files, self.path)
        body = _body(data)
        if body is None:
            raise RepositoryDamaged(f"{self.path} is damaged: restore it from a backup; no event file was touched")
        manifest = decode_header(body, Manifest, self.path)
        if manifest.repository != self.repository:
            raise RepositoryDamaged(
                f"{self.path} belongs to repository {manifest.repository}, not to {self.repository}"
            )
        if problem := _problem(manifest):
            raise RepositoryDamaged(f"{self.path} contradicts itself: {problem}; restore it from a backup")
        return manifest

    def write(self, manifest: Manifest) -> None:
        """Replace it, durably."""
        body = msgspec.msgpack.encode(manifest)
        replace_file(self.files, self.path, _HEAD.pack(MAGIC, len(body), crc32c(body)) + body)

    def new(self, drained: int) -> Manifest:
        """That of a repository whose transactions up to `drained` had no events."""
        return Manifest(format=FORMAT_VERSION, repository=self.repository, drained=drained, next_sequence=1)


def _body(data: bytes) -> bytes | None:
    if len(data) < _HEAD.size:
        return None
    magic, length, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    return body if magic == MAGIC and 0 < length == len(body) and crc32c(body) == crc else None


def _problem(manifest: Manifest) -> str:
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
