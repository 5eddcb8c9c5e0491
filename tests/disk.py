"""The disk of the tests: an ext4 whose blocks lie in memory, where this machine can have one.

A sync of a disk that machines share takes 3 to 30 ms, by the hour, and half of the time of a test of the engine went
into waiting for it. What a sync promises is proved elsewhere: by the crash states, and by the volumes on real disks of
`tests/faults` and `tests/kill`.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.faults import volumes

MEMORY = Path("/dev/shm")
SIZE_MAX = 8 << 30
"""Bytes; the image is sparse, and takes what the tests of a moment have stored: two GiB."""

MEMORY_SHARE = 3
"""The disk may take so small a part of the memory that is free. Clusters and JVMs take most of the rest."""

SIZE_MIN = 4 << 30
"""A smaller disk would be full sooner than any real one, and tests of space would see it."""

# No journal: after a crash of the machine nobody reads it again.
MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard")


def why_not() -> str:
    """Why the tests have the disk that temporary files are on; empty if there is one in memory."""
    if "ext4" not in volumes.filesystems():
        return volumes.missing() or "no ext4 can be made here"
    if not MEMORY.is_dir():
        return f"{MEMORY} is missing"
    if _size() < SIZE_MIN:
        return f"too little memory is free: {MEMORY_SHARE * SIZE_MIN >> 30} GiB are needed"
    return ""


@contextmanager
def in_memory() -> Iterator[Path]:
    """An empty disk of `_size()` bytes, for as long as the context lasts; the place to put directories into."""
    with volumes.scratch() as directory:
        place = directory / "d"  # short: a socket's path may have 107 bytes
        place.mkdir()
        with tempfile.NamedTemporaryFile(dir=MEMORY, prefix="ullage-") as image:
            # Without a name, what a killed run has left goes with the mount, which the next run takes away.
            image.truncate(_size())
            volumes.run(*MAKE, image.name)
            volumes.run("mount", "-o", "loop,discard", image.name, str(place))
        yield place


def _size() -> int:
    return min(SIZE_MAX, psutil.virtual_memory().available // MEMORY_SHARE, shutil.disk_usage(MEMORY).free)
