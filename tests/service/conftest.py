from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import Running, document_at


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server on an empty repository; what it leaves is checked when the test ends."""
    with Running(document_at(tmp_path / "repository")) as made:
        yield made
