"""Where a backup lies (docs/storage.md, "Backup"): a directory, or something that leaves the machine."""

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

MANIFEST = "backup.json"

CONTENT = "content"
"""The directory that has one for each container."""

NOTES = "notes"
"""The directory of what runs note down for the next one, should they be cut short."""

GENERATIONS = "generations"
"""The directory of the manifests of older generations."""

SNAPSHOTS = "flowfile"
"""The directory of snapshots, which every backup has."""

FLAT_DIRECTORIES = (SNAPSHOTS, "runs", "swap", "provenance", NOTES, GENERATIONS)
"""Those that hold nothing but files."""

PUT = re.compile(
    r"""
    (?: content/[^/]+/[0-9]+-[0-9]+-[0-9]+-[0-9]+(?:-holes-[0-9a-f]{8})?(?:-[0-9]+)?
      | flowfile/(?:snapshot-[0-9]+|probe)
      | runs/[^/]+-[0-9]+-[0-9a-f]{8}(?:-[0-9]+)?
      | swap/[^/]+[.]swap(?:-[0-9]+)?
      | provenance/[^/]+-(?:[0-9a-f]{8}|[0-9]+)(?:-[0-9]+)?
      | (?:notes|generations)/[0-9]+
    )
    [.][0-9a-f]{16}
    """,
    re.VERBOSE,
)
"""The paths under which runs put files. An ending alone would do to tell two runs apart, and does not tell a run from a
person: `notes` and `content` are names of folders that people have.
"""

PINS = "pins"
"""What is read at this moment, in a bucket: nobody removes it."""


class Put(NamedTuple):
    """What a file that was written holds: its length and CRC-32C."""

    length: int
    crc: int


def new_suffix() -> str:
    """One that no other run has."""
    return f".{secrets.token_hex(8)}"


def is_put(path: str) -> bool:
    """Whether the path is one under which runs put files: all else is somebody's own, and stays."""
    return PUT.fullmatch(path) is not None


class BackupPlace(Protocol):
    """Files under paths of their own, none of them written twice, and the manifest that lists those that count.

    Files are put and read by several threads at a time; all else is one thread's, of one writer in a process. Others
    may write to the same place from elsewhere: where it can tell, one of them publishes; BackupOvertaken to others.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def suffix(self) -> str:
        """What is to follow the path of each file that is put from now on, so that no other writer's has its name."""
        ...

    @property
    def lanes(self) -> int:
        """How many files are best put or read at a time."""
        ...

    @property
    def in_flight_bytes(self) -> int:
        """How many bytes of them may be in memory; one file that is larger passes by itself, in parts."""
        ...

    def manifest(self) -> bytes | None:
        """The manifest that counts; None if there is none. What is published next follows this one, or fails."""

    def names(self) -> list[str]:
        """What lies there on the first level, a manifest included; empty where there is nothing at all."""
        ...

    def held(self) -> dict[str, int]:
        """The paths of the files that lie where files of backups lie, with their lengths."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """For as long as a backup is written, and before its manifest is read. BackupOvertaken: somebody else does, as
        far as the place can tell beforehand.
        """
        ...

    def prepare(self) -> None:
        """Called once before anything is put, also if there is nothing yet."""

    def pinned(self, manifest: bytes) -> AbstractContextManager[None]:
        """While this lasts nobody removes what a manifest lists, if it counted still when this had begun. Where one may
        only read, or nothing can be locked, it promises nothing: then a file that is removed meanwhile is missing.
        """
        ...

    def put(self, path: str, pieces: Iterable[bytes], length: int = 0) -> Put:
        """Write a file of these pieces, none of them empty, one after the other; durable when `publish` returns.

        `length` is how long it will be, as far as that is known: a place may cut it accordingly.
        """
        ...

    def settle(self, paths: Collection[str]) -> None:
        """Have the names of files that were put made durable, as `publish` has those of what it lists."""

    def read(self, path: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes of a file; fewer only at its end, none if there is no such file. OSError."""
        ...

    def pieces(self, path: str, length: int) -> Iterator[bytes]:
        """The first `length` bytes of a file; ContentMissing if it has fewer or is not there."""
        ...

    def publish(self, manifest: bytes, paths: Collection[str]) -> None:
        """The commit point: from here on this manifest counts, and the files at `paths` are durable, name and all.

        An error leaves the last one, or has put this one in its place: both are whole.
        """

    def remove_unlisted(self, listed: Collection[str], listed_in: Callable[[bytes], Collection[str]]) -> None:
        """Remove what runs have put and no manifest needs, once the one that lists these counts.

        What somebody reads stays for another time; `listed_in` says of a manifest what that is.
        """
