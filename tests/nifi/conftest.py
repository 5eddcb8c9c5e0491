import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for thousands of files, or syncs: real ones, on a disk that is none. `make nifi-full` takes the disk."""
    if "ULLAGE_NIFI_FULL" in os.environ or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ullage-nifi-") as folder:
        yield Path(folder)
