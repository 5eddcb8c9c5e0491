"""What a disk could hold after a crash: what is durable, and any part of what is pending (see testing.py)."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

SECTOR_BYTES = 512
"""What a disk writes or does not write as one."""

SUBSETS = 8
"""Random subsets of the pending changes tried at each crash point, beside the systematic ones."""

BLOCK_BYTES = 4096

OF_BYTES = ("write", "truncate", "punch")
"""Changes of a file's bytes; the others are of names."""


class PendingChange(NamedTuple):
    """One pending change. `kind` is write, truncate, punch (of an inode), link, unlink, rename or mkdir (of names).

    `path` is the directory entry; for a rename `data` is the new path in bytes, for a punch its length as text. `inode`
    is 0 for directories.
    """

    kind: str
    inode: int
    path: str
    offset: int
    data: bytes


class Image(NamedTuple):
    """What a disk holds: file contents by path, and the directories."""

    files: Mapping[str, bytes]
    directories: frozenset[str]

    def digest(self) -> bytes:
        """Equal images have equal digests."""
        hasher = blake2b(digest_size=16)
        for path in sorted(self.directories):
            hasher.update(path.encode() + b"\0d")
        for path in sorted(self.files):
            hasher.update(path.encode() + b"\0f" + len(self.files[path]).to_bytes(8, "little"))
            hasher.update(self.files[path])
        return hasher.digest()


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The disk at one moment: durable inodes and names, and the changes that are pending."""

    inodes: Mapping[int, bytes]
    names: Mapping[str, int]
    directories: frozenset[str]
    pending: tuple[PendingChange, ...]

    def image(self, kept: Sequence[PendingChange]) -> Image:
        """The disk if just these pending changes had reached it, in their order."""
        inodes = {number: bytearray(data) for number, data in self.inodes.items()}
        names = dict(self.names)
        directories = set(self.directories)
        for change in kept:
            if change.kind in OF_BYTES:
                change_bytes(inodes.setdefault(change.inode, bytearray()), change)
            else:
                change_names(names, directories, change)
        reachable = {path: number for path, number in names.items() if _has_parents(path, directories)}
        return Image(
            {path: bytes(inodes.get(number, b"")) for path, number in reachable.items()},
            frozenset(path for path in directories if _has_parents(path, directories)),
        )

    def images(self, seed: int, torn: bool = True) -> Iterator[Image]:
        """The bounded set of storage crash states: nothing, everything, each alone dropped or kept, every prefix,
        random subsets, and the last write torn at sector edges.
        """
        pending = self.pending
        seen: set[bytes] = set()
        for kept in self._choices(seed, torn):
            image = self.image(kept)
            digest = image.digest()
            if digest not in seen:
                seen.add(digest)
                yield image
        assert pending is self.pending

    def _choices(self, seed: int, torn: bool) -> Iterator[Sequence[PendingChange]]:
        pending = self.pending
        yield ()
        yield pending
        for at in range(len(pending)):
            yield pending[:at] + pending[at + 1 :]
            yield pending[at : at + 1]
            yield pending[:at]
        # Numbers from the seed: any run can be repeated.
        chooser = random.Random(seed)  # noqa: S311
        for _ in range(SUBSETS if len(pending) > 1 else 0):
            yield tuple(change for change in pending if chooser.random() < 0.5)
        if torn:
            for at, change in enumerate(pending):
                for part in _torn(change, chooser):
                    yield (*pending[:at], part)
                    yield (*pending[:at], part, *pending[at + 1 :])


def _torn(change: PendingChange, chooser: random.Random) -> Iterator[PendingChange]:
    """A write of which only some sectors arrived: a prefix, or a hole in the middle that still holds zeros."""
    size = len(change.data)
    if change.kind != "write" or size <= 1:
        return
    first = -change.offset % SECTOR_BYTES or SECTOR_BYTES
    edges = list(range(first, size, SECTOR_BYTES))
    for cut in {*edges[:1], *edges[-1:], *(chooser.sample(edges, 1) if edges else ())}:
        yield change._replace(data=change.data[:cut])
        yield change._replace(offset=change.offset + cut, data=change.data[cut:])


def change_bytes(data: bytearray, change: PendingChange) -> None:
    """Make a change of a file's bytes."""
    if change.kind == "truncate":
        if change.offset <= len(data):
            del data[change.offset :]
        else:
            data.extend(bytes(change.offset - len(data)))
        return
    if change.kind == "punch":
        end = min(len(data), change.offset + int(change.data))
        data[change.offset : end] = bytes(max(0, end - change.offset))
        return
    if change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))
    data[change.offset : change.offset + len(change.data)] = change.data


def change_names(names: dict[str, int], directories: set[str], change: PendingChange) -> None:
    """Make a change of names."""
    if change.kind == "mkdir":
        directories.add(change.path)
    elif change.kind == "link":
        names[change.path] = change.inode
    elif change.kind == "unlink":
        if names.get(change.path) == change.inode:
            del names[change.path]
    else:
        if names.get(change.path) == change.inode:
            del names[change.path]
        names[change.data.decode()] = change.inode


def _has_parents(path: str, directories: set[str] | frozenset[str]) -> bool:
    parent = os.path.dirname(path)
    return parent == path or (parent in directories and _has_parents(parent, directories))
