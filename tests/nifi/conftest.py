import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for thousands of files, or syncs: real ones, on a disk that is none. `make nifi-full` takes the disk."""
    with _in_memory(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="module")
def module_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for all tests of a module."""
    with _in_memory(tmp_path_factory.mktemp("module")) as folder:
        yield folder


@contextmanager
def _in_memory(on_disk: Path) -> Iterator[Path]:
    if "ULLAGE_NIFI_FULL" in os.environ or not os.access("/dev/shm", os.W_OK):
        yield on_disk
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ullage-nifi-") as folder:
        yield Path(folder)
