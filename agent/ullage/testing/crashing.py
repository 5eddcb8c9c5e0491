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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ullage.engine.files import DiskUsage, File, FileMark, FileSize
from ullage.testing.faults import CHANGING as CHANGING, LOOKING as LOOKING, Call as Call, Fault as Fault
from ullage.testing.images import (
    BLOCK_BYTES,
    OF_BYTES,
    CrashPoint as CrashPoint,
    Image as Image,
    PendingChange as PendingChange,
    change_bytes,
    change_names,
)


@dataclass(slots=True)
class _Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    allocated: int = 0
    punched: set[int] = field(default_factory=set)

    @property
    def length(self) -> int:
        """What is allocated reads as zeros, of which `data` holds only the first."""
        return max(len(self.data), self.allocated)


class CrashFiles:
    """The `Files` interface over memory. `before` is called ahead of every mutating call and may raise, `after` when
    it is done: where a test crashes and records; `before_look` ahead of those that change nothing. `fault` is the one
    call that is to fail; `held` counts open files.
    Without `has_holes` no file can be punched.

    Durable state is kept in immutable pieces, so that a `CrashPoint` costs little to take.
    """

    def __init__(self, image: Image | None = None, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.has_holes = True
        self.calls = 0
        self.held = 0
        self.fault: Fault | None = None
        self.before: Callable[[Call], None] = _nothing
        self.after: Callable[[Call], None] = _nothing
        self.before_look: Callable[[Call], None] = _nothing
        self._inodes: dict[int, _Inode] = {}
        self._names: dict[str, _Inode] = {}
        self._directories: set[str] = {"/"}
        self._durable_inodes: dict[int, bytes] = {}
        self._durable_names: dict[str, int] = {}
        self._durable_directories: set[str] = {"/"}
        self._pending: list[PendingChange] = []
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

    def without_links_below(self, folder: str) -> "CrashFiles":
        return self  # there are none

    def create(self, path: str) -> File:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        self._require_parent(path)
        with _Mutation(self, "create", path):
            inode = _Inode(self._next)
            self._next += 1
            self._inodes[inode.number] = inode
            self._names[path] = inode
            self._pending.append(PendingChange("link", inode.number, path, 0, b""))
        return CrashFile(self, inode, path)

    def open(self, path: str, *, writable: bool = False) -> File:
        self.look("open", path)
        return CrashFile(self, self._find(path), path)

    def open_descriptor(self, path: str) -> int:
        raise OSError(errno.EOPNOTSUPP, "files in memory have no descriptors", path)

    def exists(self, path: str) -> bool:
        self.look("exists", path)
        return path in self._names or path in self._directories

    def leads_to(self, path: str, inode: _Inode) -> bool:
        """Whether a path is the name of this file."""
        return self._names.get(path) is inode

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
            self._pending.append(PendingChange("mkdir", 0, path, 0, b""))

    def rename(self, source: str, target: str) -> None:
        inode = self._find(source)
        self._require_parent(target)
        with _Mutation(self, "rename", source):
            del self._names[source]
            self._names[target] = inode
            self._pending.append(PendingChange("rename", inode.number, source, 0, target.encode()))

    def unlink(self, path: str) -> None:
        inode = self._find(path)
        with _Mutation(self, "unlink", path):
            del self._names[path]
            self._pending.append(PendingChange("unlink", inode.number, path, 0, b""))

    def sync_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        with _Mutation(self, "sync_directory", path):
            kept: list[PendingChange] = []
            for change in self._pending:
                if change.kind in OF_BYTES or path not in _parents_of(change):
                    kept.append(change)
                else:
                    change_names(self._durable_names, self._durable_directories, change)
            self._pending = kept

    def overwrites_in_place(self, path: str) -> bool:
        return True

    def usage(self, path: str) -> DiskUsage:
        self.look("usage", path)
        return self.room()

    def room(self) -> DiskUsage:
        """The figures, without a call that may fail."""
        used = sum(inode.length - len(inode.punched) * BLOCK_BYTES for inode in self._names.values())
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - used))

    def mark(self, path: str) -> FileMark:
        self.look("mark", path)
        number = 0 if path in self._directories else self._find(path).number
        return FileMark(1, number, 0)  # nothing that is asked for its mark is written in place

    def is_mount_point(self, path: str) -> bool:
        return False

    def can_punch(self, directory: str) -> bool:
        self.look("can_punch", directory)
        return self.has_holes

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        self.look("lock", directory)
        if directory in self._locked and not is_shared:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", directory)
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._locked.add(directory)
        return _Lock(self, directory)

    def unlock(self, path: str) -> None:
        """Release a lock, as the end of its process does."""
        self._locked.discard(path)

    def look(self, kind: str, path: str) -> None:
        """What a call that changes nothing goes through."""
        self.before_look(Call(self.calls, kind, path))
        if self.fault is not None and self.fault.strikes(Call(self.calls, kind, path)):
            raise self.fault.error

    def change(self, call: str, change: PendingChange, inode: _Inode) -> None:
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

    def _change(self, inode: _Inode, change: PendingChange) -> None:
        change_bytes(inode.data, change)
        if change.kind == "write":
            inode.punched.difference_update(_blocks(change.offset, len(change.data)))
        elif change.kind == "punch":
            inode.punched.update(
                range(-(-change.offset // BLOCK_BYTES), (change.offset + int(change.data)) // BLOCK_BYTES)
            )
        self._pending.append(change)

    def sync(self, inode: _Inode, path: str) -> None:
        """Make a file's bytes and size durable; after a failed one the bytes stay lost (the page cache trap)."""
        try:
            with _Mutation(self, "sync", path):
                mine = [change for change in self._pending if _is_of(change, inode.number)]
                self._pending = [change for change in self._pending if not _is_of(change, inode.number)]
                data = bytearray(self._durable_inodes.get(inode.number, b""))
                for change in mine:
                    change_bytes(data, change)
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
        self._files.change(
            "write", PendingChange("write", self._inode.number, self._path, offset, bytes(data)), self._inode
        )

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Each buffer is a change of its own: content may be torn at any claim's edge."""
        for data in buffers:
            self.write(data, offset)
            offset += len(data)

    def read(self, count: int, offset: int) -> bytes:
        self._files.look("read", self._path)
        data = bytes(self._inode.data[offset : offset + count])
        wanted = min(count, self._inode.length - offset)
        return data + bytes(max(0, wanted - len(data)))

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        data = self.read(sum(map(len, buffers)), offset)
        at = 0
        for buffer in buffers:
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
        return len(data)

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

    def punch(self, offset: int, count: int) -> None:
        if not self._files.has_holes:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), self._path)
        self._files.change(
            "punch", PendingChange("punch", self._inode.number, self._path, offset, str(count).encode()), self._inode
        )

    def is_cached(self, offset: int) -> bool:
        """A hint that promises nothing: here everything is in memory."""
        return True

    def expect_reads(self, offset: int, count: int) -> None:
        """A hint promises nothing."""

    def drop_cache(self, offset: int, count: int) -> None:
        """A hint promises nothing."""

    def size(self) -> FileSize:
        self._files.look("size", self._path)
        return size_of(self._inode)

    def is_at(self, path: str) -> bool:
        self._files.look("is_at", path)
        return self._files.leads_to(path, self._inode)

    def close(self) -> None:
        """Nothing is synced by closing."""
        self._files.held -= self._is_open
        self._is_open = False

    def _length(self, length: int) -> PendingChange:
        return PendingChange("truncate", self._inode.number, self._path, length, b"")


class _Lock(CrashFile):
    def __init__(self, files: CrashFiles, path: str) -> None:
        super().__init__(files, _Inode(0), path)

    def close(self) -> None:
        super().close()
        self._files.unlock(self._path)


def size_of(inode: _Inode) -> FileSize:
    """Length, and whole blocks without those punched."""
    blocks = -(-inode.length // BLOCK_BYTES)
    return FileSize(inode.length, (blocks - sum(block < blocks for block in inode.punched)) * BLOCK_BYTES)


def _blocks(offset: int, count: int) -> range:
    """The numbers of the blocks that these bytes touch."""
    return range(offset // BLOCK_BYTES, -(-(offset + count) // BLOCK_BYTES))


def _is_of(change: PendingChange, number: int) -> bool:
    return change.inode == number and change.kind in OF_BYTES


def _parents_of(change: PendingChange) -> tuple[str, ...]:
    if change.kind == "rename":
        return os.path.dirname(change.path), os.path.dirname(change.data.decode())
    return (os.path.dirname(change.path),)


def _nothing(call: Call) -> None:
    """The hook of a test that has none."""
