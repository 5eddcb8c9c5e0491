"""Which nodes are told to take nothing new."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import changed, decided, fleet, node
from ullage_operator.observation import ClusterNode

SHIPS: dict[str, Any] = {"replication": {"mode": "Async", "url": "s3://flows/r"}}


@pytest.mark.parametrize(
    ("spec", "annotation", "is_cordoned", "drains"),
    [
        ({}, "", True, False),
        (SHIPS, "", False, False),
        (SHIPS, "", True, True),
        (SHIPS, "true", False, True),
        ({}, "true", False, True),
        (SHIPS, "false", False, False),
        (SHIPS, "yes", False, False),
    ],
)
def test_a_cordon_drains_what_can_be_shipped_and_a_person_anything(
    spec: dict[str, Any], annotation: str, *, is_cordoned: bool, drains: bool
) -> None:
    """And no other node with it."""
    seen = fleet(2, spec)
    hosts = (ClusterNode(name="node-0", labels={}, is_cordoned=is_cordoned), ClusterNode(name="node-1", labels={}))
    objects = seen.objects | {"node-0": msgspec.structs.replace(node("node-0"), drain=annotation)}

    nodes = decided(changed(seen, cluster_nodes=hosts, objects=objects)).nodes

    assert (nodes["node-0"].draining, nodes["node-1"].draining) == (drains, False)


def test_a_node_that_is_selected_no_more_is_drained_if_it_is_still_there() -> None:
    """Its agent may be, on a local volume; of a node that has left nobody is told anything."""
    seen = fleet(2, SHIPS | {"nodeSelector": {"flows": "yes"}})
    hosts = (ClusterNode(name="node-0", labels={"flows": "yes"}), ClusterNode(name="node-1", labels={}))

    here, gone = (decided(changed(seen, cluster_nodes=each)).nodes for each in (hosts, hosts[:1]))

    assert (here["node-0"].draining, here["node-1"].draining) == (False, True)
    assert not gone["node-1"].draining


def test_what_was_given_up_is_made_anew_and_takes_content() -> None:
    """The annotation was about the object that goes."""
    seen = fleet(1)
    given_up = msgspec.structs.replace(node("node-0", release="node-0"), drain="true")

    assert not decided(changed(seen, objects={"node-0": given_up})).nodes["node-0"].draining
