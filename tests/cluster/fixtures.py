"""pytest's view of clusters: `pytest_plugins = ["tests.cluster.fixtures"]`, then ask for the smallest level that does.

One cluster of each level serves all tests of a process; `namespace` gives each test a place of its own in it.
"""

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane, control_plane_running
from tests.cluster.fleet import Fleet, fleet_running
from tests.cluster.node import Cluster, cluster_running


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd, API server, controllers and scheduler; no node."""
    with control_plane_running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """A control plane of its own with kwok: `fleet.add_nodes(100)`."""
    with fleet_running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane with two real nodes, each in namespaces of its own; needs root."""
    with cluster_running(nodes=2) as running:
        yield running


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """The name of a new namespace of `cluster`, deleted at the end."""
    with cluster.namespace(f"test-{secrets.token_hex(4)}") as name:
        yield name


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """The name of a new namespace of `control_plane`, deleted at the end."""
    with control_plane.namespace(f"test-{secrets.token_hex(4)}") as name:
        yield name
