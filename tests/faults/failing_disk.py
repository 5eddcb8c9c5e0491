"""A disk that really fails: nbdkit's error filter before memory, as a file through FUSE, as a loop device, mounted.

nbdkit memory + error filter | nbdfuse | loop device | ext4, XFS, btrfs
                 ^ refuses every write with EIO for as long as a trigger file exists; it knows no refused flush

The filesystem sees what it sees of a broken disk: its journal aborts, pages are marked clean though they were never
written, and each fsync says EIO once. What the disk took before stays.
"""

import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults import volumes

START_SECONDS = 10.0
"""How long nbdkit and nbdfuse may take to show the disk."""


def missing() -> str:
    """Why there can be no failing disk here; empty if there can."""
    absent = [program for program in ("nbdkit", "nbdfuse") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    return volumes.missing()


class FailingDisk(volumes.Volume):
    """A mounted filesystem whose disk can be told to fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "mount", directory / "fuse" / "disk")
        self._directory = directory

    def fail_writes(self) -> None:
        """From now on every write to the disk is EIO."""
        (self._directory / "refuse").touch()

    def heal(self) -> None:
        """The disk works again; what the filesystem thinks of it is another matter."""
        (self._directory / "refuse").unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Nothing reaches the disk any more, then all starts again: for filesystems that know no shutdown."""
        self.fail_writes()
        self.unmount()
        self.heal()
        self.mount()


@contextmanager
def failing_disk(filesystem: str, size_bytes: int = 0) -> Iterator[FailingDisk]:
    """A healthy one to begin with; everything is ended and removed afterwards."""
    with volumes.scratch() as directory:
        disk = FailingDisk(directory)
        disk.path.mkdir()
        disk.image.parent.mkdir()
        size = max(size_bytes, volumes.SIZE_MIN[filesystem])
        with ExitStack() as processes:
            processes.enter_context(_running(_nbdkit(directory, size)))
            _wait_for(directory / "pid")  # written once it listens, unlike the socket
            processes.enter_context(_running(_nbdfuse(directory, disk.image)))
            _wait_for(disk.image)
            volumes.run(*volumes.MAKE[filesystem], str(disk.image))
            disk.mount()
            try:
                yield disk
            finally:
                disk.heal()
                volumes.unmount_below(directory)


def _nbdkit(directory: Path, size_bytes: int) -> list[str]:
    errors = [f"error-{kind}{what}" for kind in ("pwrite", "zero", "trim") for what in ("=EIO", "-rate=100%")]
    errors += [f"error-{kind}-file={directory / 'refuse'}" for kind in ("pwrite", "zero", "trim")]
    # It ends with this process, also if that is killed; nbdfuse then has nobody to ask, and is unmounted as a leftover.
    command = ["nbdkit", "--foreground", "--exit-with-parent", "--unix", str(directory / "socket")]
    command += ["--pidfile", str(directory / "pid")]
    return [*command, "--filter=error", "memory", f"size={size_bytes}", *errors]


def _nbdfuse(directory: Path, file: Path) -> list[str]:
    return ["nbdfuse", str(file), f"nbd+unix:///?socket={directory / 'socket'}"]


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    """A process for as long as the block lasts; its complaints go nowhere, the kernel repeats them."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _wait_for(path: Path) -> None:
    """Until somebody makes the file."""
    deadline = time.monotonic() + START_SECONDS
    while not os.path.lexists(path):
        assert time.monotonic() < deadline, f"{path} did not appear"
        select.select([], [], [], 0.01)
