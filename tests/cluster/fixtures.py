"""pytest's view of clusters: `pytest_plugins = ["tests.cluster.fixtures"]`, then ask for the smallest level that does.

One cluster of each level serves all tests of a process; `namespace` gives each test a place of its own in it.
"""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane, control_plane_running
from tests.cluster.fleet import Fleet, fleet_running
from tests.cluster.node import Cluster, cluster_running, why_no_node

FULL = "ULLAGE_CLUSTER_FULL"
"""Set: the tests that take many minutes run too; `make cluster-full` sets it."""

SLOW = {"jobs", "kubeflow", "planning", "quickstart", "no_go", "built_twice", "stranger"}
"""Fixtures of such tests: Spark's image and the kubeflow operator; what the story has shown already of the installed
chart; a Go that is fetched; an image that is built without the cache; two releases, each with all of its images.
"""


NODE_SECONDS_MAX = 1200
"""Of a test on real nodes, unless it says otherwise: on a busy machine an image alone takes minutes to load."""


def _not_here(item: pytest.Item, lacking: str) -> bool:
    wanted = getattr(item, "fixturenames", ())
    is_slow = not SLOW.isdisjoint(wanted)
    return (is_slow and not os.environ.get(FULL)) or ("cluster" in wanted and bool(lacking))


def pytest_report_header() -> str:
    """Which levels are tested here: what cannot be is named, and not collected."""
    lacking = why_no_node()
    node = f"no real nodes ({lacking})" if lacking else "real nodes"
    slow = "Spark on them" if os.environ.get(FULL) and not lacking else "no Spark on them (make cluster-full, make e2e)"
    return f"clusters: control plane, fleet, {node}, {slow}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the header says cannot be tested here."""
    lacking = why_no_node() if any("cluster" in getattr(item, "fixturenames", ()) for item in items) else ""
    left_out = [item for item in items if _not_here(item, lacking)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(NODE_SECONDS_MAX))


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
    with cluster.namespace(awaits_end=False) as name:
        yield name
