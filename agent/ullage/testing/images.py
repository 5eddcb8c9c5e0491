"""What a disk could hold after a crash: what is durable, and any part of what is pending (see testing.py)."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

SECTOR_BYTES = 512
"""What a disk writes or does not write as one."""

SUBSETS = 8
"""Random subsets of the pending changes tried at each crash point, beside the systematic ones."""

BLOCK_BYTES = 4096

DIGEST_BYTES = 16

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
        parts = [path.encode() + b"\0d" for path in sorted(self.directories)]
        parts += [path.encode() + b"\0f" + _digest(self.files[path]) for path in sorted(self.files)]
        return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The disk at one moment: durable inodes and names, and the changes that are pending."""

    inodes: Mapping[int, bytes]
    names: Mapping[str, int]
    directories: frozenset[str]
    pending: tuple[PendingChange, ...]

    def image(self, kept: Sequence[PendingChange]) -> Image:
        """The disk if just these pending changes had reached it, in their order."""
        inodes = dict(self.inodes)
        changed: dict[int, bytearray] = {}
        names = dict(self.names)
        directories = set(self.directories)
        for change in kept:
            if change.kind not in OF_BYTES:
                change_names(names, directories, change)
                continue
            if change.inode not in changed:
                changed[change.inode] = bytearray(inodes.get(change.inode, b""))
            change_bytes(changed[change.inode], change)
        # Only what changes is copied: each point has many images, and most files are the same in all of them.
        inodes.update((number, bytes(data)) for number, data in changed.items())
        there = _reachable(directories)
        return Image(
            {path: inodes.get(number, b"") for path, number in names.items() if _parent(path) in there},
            frozenset(there),
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


def _reachable(directories: set[str]) -> set[str]:
    """Those of which every parent is there too; a parent's path sorts before its children's."""
    there = {"/"} & directories
    for path in sorted(directories):
        if _parent(path) in there:
            there.add(path)
    return there


_parent = lru_cache(65536)(os.path.dirname)


@lru_cache(1024)
def _digest(data: bytes) -> bytes:
    """Of a file's content; found again at once for the many images that share it."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
