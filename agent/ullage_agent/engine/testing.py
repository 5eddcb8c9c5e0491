"""Files that crash: an in-memory filesystem that knows what of it is durable. Shipped, for users' tests too.

    current     what a running process sees: the page cache
    durable     what the disk is sure to hold
    pending     the changes between the two, in order: writes, truncations, creations, renames, unlinks

`crash_images` yields what the disk could hold if the machine stopped now: durable plus some of what is pending. POSIX
promises no order among changes that no sync separates, so any of them may be missing, the last write may be torn, and
a name may be there without its bytes. A file's sync makes its bytes and size durable but not its name; a directory's
sync makes names durable but no bytes. That is stricter than ext4, XFS or btrfs are.

A `Fault` makes one call fail. A file's sync that fails is the page cache trap: the process goes on seeing what it
wrote, later syncs succeed, and the disk never gets it. After a failed sync lengths cut by a truncation, and of a
directory its names, stay pending: a filesystem with a journal either still has them in hand or stops altogether.

Not modelled: bytes changing that nobody wrote (bit rot is tested apart), and a disk that ignores flushes.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from ullage_agent.engine.faults import CHANGING as CHANGING
from ullage_agent.engine.faults import LOOKING as LOOKING
from ullage_agent.engine.faults import Call as Call
from ullage_agent.engine.faults import Fault as Fault
from ullage_agent.engine.files import DiskUsage, File, FileSize

SECTOR_BYTES = 512
"""What a disk writes or does not write as one."""

SUBSETS = 8
"""Random subsets of the pending changes tried at each crash point, beside the systematic ones."""

BLOCK_BYTES = 4096


class Change(NamedTuple):
    """One pending change. `kind` is write, truncate (of an inode), link, unlink, rename or mkdir (of names).

    `path` is the directory entry; for a rename `data` is the new path in bytes. `inode` is 0 for directories.
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
    pending: tuple[Change, ...]

    def image(self, kept: Sequence[Change]) -> Image:
        """The disk if just these pending changes had reached it, in their order."""
        inodes = {number: bytearray(data) for number, data in self.inodes.items()}
        names = dict(self.names)
        directories = set(self.directories)
        for change in kept:
            if change.kind in ("write", "truncate"):
                _change_bytes(inodes.setdefault(change.inode, bytearray()), change)
            else:
                _change_names(names, directories, change)
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

    def _choices(self, seed: int, torn: bool) -> Iterator[Sequence[Change]]:
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


def _torn(change: Change, chooser: random.Random) -> Iterator[Change]:
    """A write of which only some sectors arrived: a prefix, or a hole in the middle that still holds zeros."""
    size = len(change.data)
    if change.kind != "write" or size <= 1:
        return
    first = -change.offset % SECTOR_BYTES or SECTOR_BYTES
    edges = list(range(first, size, SECTOR_BYTES))
    for cut in {*edges[:1], *edges[-1:], *(chooser.sample(edges, 1) if edges else ())}:
        yield change._replace(data=change.data[:cut])
        yield change._replace(offset=change.offset + cut, data=change.data[cut:])


def _change_bytes(data: bytearray, change: Change) -> None:
    if change.kind == "truncate":
        if change.offset <= len(data):
            del data[change.offset :]
        else:
            data.extend(bytes(change.offset - len(data)))
        return
    if change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))
    data[change.offset : change.offset + len(change.data)] = change.data


def _change_names(names: dict[str, int], directories: set[str], change: Change) -> None:
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


@dataclass(slots=True)
class _Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    allocated: int = 0

    @property
    def length(self) -> int:
        """What is allocated reads as zeros, of which `data` holds only the first."""
        return max(len(self.data), self.allocated)


class CrashFiles:
    """The `Files` interface over memory. `before` is called ahead of every mutating call and may raise, `after` when
    it is done: where a test crashes and records. `fault` is the one call that is to fail; `held` counts open files.

    Durable state is kept in immutable pieces, so that a `CrashPoint` costs little to take.
    """

    def __init__(self, image: Image | None = None, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls = 0
        self.held = 0
        self.fault: Fault | None = None
        self.before: Callable[[Call], None] = _nothing
        self.after: Callable[[Call], None] = _nothing
        self._inodes: dict[int, _Inode] = {}
        self._names: dict[str, _Inode] = {}
        self._directories: set[str] = {"/"}
        self._durable_inodes: dict[int, bytes] = {}
        self._durable_names: dict[str, int] = {}
        self._durable_directories: set[str] = {"/"}
        self._pending: list[Change] = []
        self._locked: set[str] = set()
        self._next = 1
        if image is not None:
            self._load(image)

    def crash_point(self) -> CrashPoint:
        """The disk as of now."""
        return CrashPoint(
            dict(self._durable_inodes),
            dict(self._durable_names),
            frozenset(self._durable_directories),
            tuple(self._pending),
        )

    def image(self) -> Image:
        """What a running process sees: everything, as if it had all been synced."""
        return Image({path: bytes(inode.data) for path, inode in self._names.items()}, frozenset(self._directories))

    def create(self, path: str) -> File:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        self._require_parent(path)
        with _Mutation(self, "create", path):
            inode = _Inode(self._next)
            self._next += 1
            self._inodes[inode.number] = inode
            self._names[path] = inode
            self._pending.append(Change("link", inode.number, path, 0, b""))
        return CrashFile(self, inode, path)

    def open(self, path: str, *, writable: bool = False) -> File:
        self.look("open", path)
        return CrashFile(self, self._find(path), path)

    def exists(self, path: str) -> bool:
        self.look("exists", path)
        return path in self._names or path in self._directories

    def size(self, path: str) -> FileSize:
        self.look("size", path)
        return size_of(self._find(path))

    def list_directory(self, path: str) -> list[str]:
        self.look("list_directory", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        prefix = path.rstrip("/") + "/"
        found = {
            name[len(prefix) :].split("/")[0] for name in (*self._names, *self._directories) if name.startswith(prefix)
        }
        return sorted(found - {""})

    def make_directory(self, path: str) -> None:
        if path in self._directories:
            return
        self._require_parent(path)
        with _Mutation(self, "make_directory", path):
            self._directories.add(path)
            self._pending.append(Change("mkdir", 0, path, 0, b""))

    def rename(self, source: str, target: str) -> None:
        inode = self._find(source)
        self._require_parent(target)
        with _Mutation(self, "rename", source):
            del self._names[source]
            self._names[target] = inode
            self._pending.append(Change("rename", inode.number, source, 0, target.encode()))

    def unlink(self, path: str) -> None:
        inode = self._find(path)
        with _Mutation(self, "unlink", path):
            del self._names[path]
            self._pending.append(Change("unlink", inode.number, path, 0, b""))

    def sync_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        with _Mutation(self, "sync_directory", path):
            kept: list[Change] = []
            for change in self._pending:
                if change.kind in ("write", "truncate") or path not in _parents_of(change):
                    kept.append(change)
                else:
                    _change_names(self._durable_names, self._durable_directories, change)
            self._pending = kept

    def overwrites_in_place(self, path: str) -> bool:
        return True

    def usage(self, path: str) -> DiskUsage:
        self.look("usage", path)
        return self.room()

    def room(self) -> DiskUsage:
        """The figures, without a call that may fail."""
        used = sum(inode.length for inode in self._names.values())
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - used), 1)

    def scratch_directory(self, path: str) -> str | None:
        return None

    def remove_scratch(self, path: str) -> None:
        """There is none."""

    def lock(self, path: str) -> File:
        self.look("lock", path)
        if path in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self._require_parent(path)
        self._locked.add(path)
        return _Lock(self, path)

    def unlock(self, path: str) -> None:
        """Release a lock, as the end of its process does."""
        self._locked.discard(path)

    def look(self, kind: str, path: str) -> None:
        """What a call that changes nothing goes through."""
        if self.fault is not None and self.fault.strikes(Call(self.calls, kind, path)):
            raise self.fault.error

    def change(self, call: str, change: Change, inode: _Inode) -> None:
        """One change of a file's bytes, made by a call of this kind; of a write that fails a part may arrive."""
        mutation = _Mutation(self, call, change.path)
        try:
            with mutation:
                self._change(inode, change)
        except BaseException:
            kept = mutation.kept_bytes(len(change.data))
            if kept:
                self._change(inode, change._replace(data=change.data[:kept]))
            raise

    def _change(self, inode: _Inode, change: Change) -> None:
        _change_bytes(inode.data, change)
        self._pending.append(change)

    def sync(self, inode: _Inode, path: str) -> None:
        """Make a file's bytes and size durable; after a failed one the bytes stay lost (the page cache trap)."""
        try:
            with _Mutation(self, "sync", path):
                mine = [change for change in self._pending if _is_of(change, inode.number)]
                self._pending = [change for change in self._pending if not _is_of(change, inode.number)]
                data = bytearray(self._durable_inodes.get(inode.number, b""))
                for change in mine:
                    _change_bytes(data, change)
                self._durable_inodes[inode.number] = bytes(data)
        except OSError:
            self._pending = [c for c in self._pending if c.kind != "write" or c.inode != inode.number]
            raise

    def require_room(self, count: int) -> None:
        """ENOSPC if so many more bytes do not fit."""
        if count > self.room().free_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")

    def _load(self, image: Image) -> None:
        self._directories = set(image.directories) | {"/"}
        self._durable_directories = set(self._directories)
        for path, data in image.files.items():
            inode = _Inode(self._next, bytearray(data))
            self._next += 1
            self._inodes[inode.number] = inode
            self._names[path] = inode
            self._durable_inodes[inode.number] = data
            self._durable_names[path] = inode.number

    def _find(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _require_parent(self, path: str) -> None:
        if os.path.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", os.path.dirname(path))


class _Mutation:
    """Brackets one mutating call with the hooks."""

    def __init__(self, files: CrashFiles, kind: str, path: str) -> None:
        self._files = files
        files.calls += 1
        self._call = Call(files.calls, kind, path)
        self._struck: Fault | None = None

    def __enter__(self) -> None:
        self._files.before(self._call)
        fault = self._files.fault
        if fault is not None and fault.strikes(self._call):
            self._struck = fault
            if not fault.is_late:
                raise fault.error

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None:
            self._files.after(self._call)
            if self._struck is not None:
                raise self._struck.error

    def kept_bytes(self, count: int) -> int:
        """How much of a write of so many bytes arrives although it fails."""
        fault = self._struck
        return 0 if fault is None or fault.is_late else int(count * fault.keeps)


class CrashFile:
    """One open file of `CrashFiles`."""

    def __init__(self, files: CrashFiles, inode: _Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._is_open = True
        files.held += 1

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._files.require_room(max(0, offset + len(data) - self._inode.length))
        self._files.change("write", Change("write", self._inode.number, self._path, offset, bytes(data)), self._inode)

    def write_vector(self, buffers: Sequence[bytes], offset: int) -> None:
        """Each buffer is a change of its own: content may be torn at any claim's edge."""
        for data in buffers:
            self.write(data, offset)
            offset += len(data)

    def read(self, count: int, offset: int) -> bytes:
        self._files.look("read", self._path)
        data = bytes(self._inode.data[offset : offset + count])
        wanted = min(count, self._inode.length - offset)
        return data + bytes(max(0, wanted - len(data)))

    def sync(self) -> None:
        self._files.sync(self._inode, self._path)

    def truncate(self, length: int) -> None:
        self._files.change("truncate", self._length(length), self._inode)
        self._inode.allocated = min(self._inode.allocated, length)

    def allocate(self, offset: int, count: int) -> None:
        """The file grows with zeros; a crash keeps only the first of them, or none, so that memory lasts."""
        self._files.require_room(max(0, offset + count - self._inode.length))
        grown = min(offset + count, len(self._inode.data) + BLOCK_BYTES)
        if grown > len(self._inode.data):
            self._files.change("allocate", self._length(grown), self._inode)
        else:
            self._files.look("allocate", self._path)
        self._inode.allocated = max(self._inode.allocated, offset + count)

    def start_writeback(self, offset: int, count: int) -> None:
        """A hint promises nothing."""

    def size(self) -> FileSize:
        self._files.look("size", self._path)
        return size_of(self._inode)

    def close(self) -> None:
        """Nothing is synced by closing."""
        self._files.held -= self._is_open
        self._is_open = False

    def _length(self, length: int) -> Change:
        return Change("truncate", self._inode.number, self._path, length, b"")


class _Lock(CrashFile):
    def __init__(self, files: CrashFiles, path: str) -> None:
        super().__init__(files, _Inode(0), path)

    def close(self) -> None:
        super().close()
        self._files.unlock(self._path)


def size_of(inode: _Inode) -> FileSize:
    """Length, and whole blocks."""
    return FileSize(inode.length, -(-inode.length // BLOCK_BYTES) * BLOCK_BYTES)


def _is_of(change: Change, number: int) -> bool:
    return change.inode == number and change.kind in ("write", "truncate")


def _parents_of(change: Change) -> tuple[str, ...]:
    if change.kind == "rename":
        return os.path.dirname(change.path), os.path.dirname(change.data.decode())
    return (os.path.dirname(change.path),)


def _nothing(call: Call) -> None:
    """The hook of a test that has none."""
