"""What tests of the service share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.socket.node import Node
from tests.support import Workshop


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room in a socket's address, which is no longer than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="u-") as folder:
        yield Path(folder)


@pytest.fixture
def node(workshop: Workshop, short_path: Path) -> Iterator[Node]:
    made = Node(workshop, short_path)
    yield made
    made.server.stop()
    assert not [lease for lease in made.repository.leases.all() if lease.holder.startswith("socket")]
