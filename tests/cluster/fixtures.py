"""pytest's view of clusters: `pytest_plugins = ["tests.cluster.fixtures"]`, then ask for the smallest level that does.

One cluster of each level serves all tests of a process; `namespace` gives each test a place of its own in it.
"""

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane, control_plane_running
from tests.cluster.fleet import Fleet, fleet_running


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


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """The name of a new namespace of `control_plane`, deleted at the end."""
    with control_plane.namespace(f"test-{secrets.token_hex(4)}") as name:
        yield name
