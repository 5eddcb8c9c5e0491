"""Which nodes take nothing new, and ship what only they have, since they are to go. Pure."""

from collections.abc import Collection

from ullage.contract import ReplicationMode
from ullage_operator.objects import RepositoryObject
from ullage_operator.observation import ClusterNode, NodeObject


def drains(
    repository: RepositoryObject, found: NodeObject | None, host: ClusterNode | None, hosts: Collection[str]
) -> bool:
    """Whether the agent of a node is told so. `host`: the node as the cluster has it, `hosts`: those that are selected.

    Whom somebody names is drained in any mode. A cordon, or a selection that has changed, drains only what can be
    shipped: anywhere else it would stop the programs of a node that comes back in a minute, and save nothing.
    """
    if found is not None and found.drain == "true":
        return True
    if repository.spec.replication.mode == ReplicationMode.NONE or host is None:
        return False
    return host.is_cordoned or host.name not in hosts
