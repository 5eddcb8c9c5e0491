"""The operator's hold on the objects of nodes with content: who deletes one by hand makes nobody forget the node.

Where the repository goes, where its content was given up, and where a node holds nothing, the operator lets go of it.
"""

from collections.abc import Mapping
from typing import Any, Final

from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiError, is_changed
from ullage_operator.objects import CONTENT, is_held

KIND: Final = "ContentRepositoryNode"
TRIES_MAX: Final = 5
"""Each loses a race for the object, mostly against its agent's last words."""


async def let_go(api: ApiClient, found: Mapping[str, Any]) -> None:
    """Take our finalizer off this object, whatever else of it has changed since; those of others stay. ApiError if the
    API server refuses.
    """
    metadata, now = found["metadata"], found
    for tries_left in reversed(range(TRIES_MAX)):
        if not is_held(now):
            return
        try:
            await api.set_finalizers(KIND, now["metadata"], [f for f in now["metadata"]["finalizers"] if f != CONTENT])
        except ApiError as error:
            if not is_changed(error) or not tries_left:
                raise
            latest = await api.get(KIND, metadata["namespace"], metadata["name"])
            if latest is None or latest["metadata"]["uid"] != metadata["uid"]:
                return
            now = latest
        else:
            return


async def let_go_of_all(api: ApiClient, namespace: str | None) -> None:
    """Of a namespace, or of the cluster, where no repository is left that could hold anything."""
    found, _ = await api.list(KIND, namespace)
    for each in found:
        await let_go(api, each)
