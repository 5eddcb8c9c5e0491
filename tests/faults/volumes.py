"""Real filesystems of a few megabytes, each in a file on a loop device: to be filled, moved, and cut from power.

Mounting needs root. Each volume has a directory of its own below the temporary one, with a lock in it: a directory
whose lock is free was left behind by a run that was killed, and is unmounted and removed by the next one.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),  # no blocks kept back for root, which is who fills it
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
"""How each filesystem is made."""

SIZE_MIN = {"ext4": 48 * MIB, "xfs": 300 * MIB, "btrfs": 128 * MIB}
"""Smaller ones cannot be made, or, with ext4, would be all journal."""

CAN_SHUT_DOWN = ("ext4", "xfs")
"""Filesystems that know the shutdown below; the kernels at hand say ENOTTY for btrfs."""

CAN_GROW = ("xfs", "btrfs", "tmpfs")
"""Filesystems that grow while they are mounted. ext4 does too, for who has CAP_SYS_RESOURCE, which containers lack."""

SHUTDOWN = 0x8004587D
"""ioctl XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN."""

SHUTDOWN_NO_LOG_FLUSH = 2
"""Nothing that is still in memory reaches the disk any more, neither data nor journal: what a power cut does."""

CAP_SYS_ADMIN = 21

_ROOT = Path(tempfile.gettempdir()) / "ullage-v"  # short: the path of a socket has 107 bytes at most


def _cannot_mount() -> str:
    if os.geteuid() != 0:
        return "mounting needs root"
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    if not int(effective, 16) >> CAP_SYS_ADMIN & 1:
        return "mounting needs CAP_SYS_ADMIN"
    return ""


def missing() -> str:
    """Why volumes on loop devices cannot be mounted here; empty if they can."""
    if reason := _cannot_mount():
        return reason
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


def filesystems() -> list[str]:
    """The filesystems that can be made and mounted here."""
    if missing():
        return []
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    return [name for name, command in MAKE.items() if shutil.which(command[0]) and name in known]


def fillable() -> list[str]:
    """Those, and one in memory, where blocks are counted exactly."""
    return filesystems() if _cannot_mount() else [*filesystems(), "tmpfs"]


def describe() -> str:
    """One line for the head of a test run."""
    absent = [name for name in MAKE if name not in filesystems()]
    return (
        f"loop volumes: {', '.join(filesystems()) or 'none'}"
        + (f"; without {', '.join(absent)}" if absent else "")
        + (f" ({missing()})" if missing() else "")
    )


class Volume:
    """A mounted filesystem."""

    def __init__(self, path: Path, image: Path, filesystem: str = "") -> None:
        self.path = path
        self.filesystem = filesystem
        self.image = image

    @property
    def is_exact(self) -> bool:
        """Whether it lies in memory, where blocks are counted exactly."""
        return not self.image.exists()

    @property
    def free_bytes(self) -> int:
        """What a writer can take, once the filesystem has closed its books: btrfs counts what was freed after that."""
        run("sync", "--file-system", str(self.path))
        figures = os.statvfs(self.path)
        return figures.f_bavail * figures.f_frsize

    def mount(self) -> None:
        """The kernel makes the loop device, and takes it away with the mount."""
        options = "loop,nouuid" if self.filesystem == "xfs" else "loop"  # of a copy, see `cut_power`
        run("mount", "-o", options, str(self.image), str(self.path))

    def unmount(self) -> None:
        run("umount", str(self.path))

    def grow(self) -> None:
        """To twice its size, while it is mounted."""
        if self.is_exact:
            run("mount", "-o", f"remount,size={32 * MIB}", str(self.path))
            return
        with self.image.open("r+b") as file:
            file.truncate(2 * self.image.stat().st_size)
        device = run("losetup", "--associated", str(self.image), "--noheadings", "--output", "NAME").strip()
        run("losetup", "--set-capacity", device)
        enlarge = {
            "xfs": ("xfs_growfs", str(self.path)),
            "btrfs": ("btrfs", "filesystem", "resize", "max", str(self.path)),
        }
        run(*enlarge[self.filesystem])

    def cut_power(self) -> None:
        """Lose what no sync made durable, then start again."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", SHUTDOWN_NO_LOG_FLUSH))
        finally:
            os.close(descriptor)
        self.unmount()
        if run("losetup", "--associated", str(self.image)).strip():
            # A container that was started meanwhile has a copy of the mount in its namespace. Mounted again, the image
            # would give back the filesystem that was shut down, which answers EIO for ever.
            copy = self.image.with_name(f"{self.image.name}-again")
            run("cp", "--sparse=always", str(self.image), str(copy))
            self.image = copy
        self.mount()

    def fill(self) -> None:
        """Others take what room is left."""
        for piece in (MIB, 4096, 1):
            try:
                with (self.path / "others").open("ab", buffering=0) as file:
                    while file.write(bytes(piece)):
                        os.fdatasync(file.fileno())
            except OSError:
                continue  # no room for a piece of this size: that is what was wanted

    def unfill(self) -> None:
        """Others go away."""
        (self.path / "others").unlink(missing_ok=True)


@contextmanager
def volume(filesystem: str, size_bytes: int = 0) -> Iterator[Volume]:
    """A new volume; unmounted and removed at the end, whatever happens."""
    with scratch() as directory:
        made = Volume(directory / "mount", directory / "image", filesystem)
        made.path.mkdir()
        if filesystem == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={16 * MIB}", "tmpfs", str(made.path))
            yield made
            return
        with made.image.open("wb") as file:
            file.truncate(max(size_bytes, SIZE_MIN[filesystem]))
        run(*MAKE[filesystem], str(made.image))
        made.mount()
        yield made


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for mounts that a later run cleans up if this one is killed."""
    remove_leftovers()
    _ROOT.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="", dir=_ROOT))
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
    finally:
        _remove(directory)
        os.close(lock)


def remove_leftovers() -> None:
    """Unmount and remove what killed runs left."""
    for directory in sorted(_ROOT.glob("*")):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # its owner removed it just now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(directory.iterdir()):
                _remove(directory)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody uses it, or removed it just now
        finally:
            os.close(lock)


def unmount_below(directory: Path) -> None:
    """Newest first, and lazily, so that a reader who is still there cannot keep a volume for ever."""
    for mounted in reversed(_mounts_below(directory)):
        run("umount", "--lazy", mounted)


def _remove(directory: Path) -> None:
    unmount_below(directory)
    if _mounts_below(directory):
        raise AssertionError(f"{directory} could not be unmounted")
    shutil.rmtree(directory, ignore_errors=True)


def _mounts_below(directory: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    return [point for point in points if point.startswith(f"{directory}/")]


def run(*command: str) -> str:
    """A command that has to work; what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
