"""The end of a repository: what kopf's finalizer waits for.

Retain    agents and node objects go; directories and claims stay as they are
Delete    agents go first, then claims, or the directory on each node by a job there; a node that is gone is passed over
"""

from ullage_operator import build
from ullage_operator.api import Api
from ullage_operator.decide import deletes_data
from ullage_operator.observe import Wish
from ullage_operator.surroundings import Surroundings


async def removed(api: Api, seen: Surroundings, wish: Wish, image: str) -> str:
    """Do the next part; what is still waited for, empty when nothing is left."""
    namespace = wish.namespace
    selector = ",".join(f"{key}={value}" for key, value in sorted(build.labels(wish).items()))
    await api.delete("ClusterRoleBinding", None, build.delegation_name(wish))
    for kind in ("DaemonSet", "StatefulSet"):
        found, _ = await api.list(kind, namespace, selector)
        for each in found:
            await api.delete(kind, namespace, each["metadata"]["name"])
    objects, _ = await api.list("ContentRepositoryNode", namespace, selector)
    if wish.document is not None and deletes_data(wish.document.spec):
        pods, _ = await api.list("Pod", namespace, selector)
        if pods:
            return f"{len(pods)} agents to end"
        if waits := await _data_gone(api, seen, wish, image, [each["spec"]["nodeName"] for each in objects], selector):
            return waits
    for each in objects:
        await api.delete("ContentRepositoryNode", namespace, each["metadata"]["name"])
    return ""


async def _data_gone(api: Api, seen: Surroundings, wish: Wish, image: str, nodes: list[str], selector: str) -> str:
    assert wish.document is not None
    if wish.document.spec.storage.local_persistent_volume is not None:
        claims, _ = await api.list("PersistentVolumeClaim", wish.namespace, selector)
        for claim in claims:
            await api.delete("PersistentVolumeClaim", wish.namespace, claim["metadata"]["name"])
        return ""
    present = {name for _, name in seen.nodes.objects}
    left = []
    for node in nodes:
        if node not in present:
            continue
        job = build.cleaning_job(wish, image, node)
        found = await api.get("Job", wish.namespace, job["metadata"]["name"])
        if found is None:
            await api.apply(job)
        if found is None or not (found.get("status") or {}).get("succeeded"):
            left.append(node)
    return f"{len(left)} nodes to be emptied, {left[0]} among them" if left else ""
