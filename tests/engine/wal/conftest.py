from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.wal.logbook import Logbook


@pytest.fixture
def logbook(tmp_path: Path) -> Iterator[Logbook]:
    """A log in a fresh directory, released when the test ends."""
    made = Logbook(tmp_path / "flowfile")
    yield made
    made.close()
