from collections.abc import Iterator

import pytest

from tests.cluster.node import Cluster, cluster_running
from tests.e2e.story import story

__all__ = ["story"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The story's own: its kinds and its operator are everywhere in it, and it ends with them."""
    with cluster_running(nodes=2) as running:
        yield running
