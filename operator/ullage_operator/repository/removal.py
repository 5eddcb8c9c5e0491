"""The end of a repository: what kopf's finalizer waits for.

Retain    agents and node objects go; directories and claims stay as they are
Delete    agents go first, then claims, or the directory on each node by a job there; a node that is gone is passed over
"""

from ullage_operator import objects
from ullage_operator.cluster.api import ApiClient
from ullage_operator.objects import RepositoryObject
from ullage_operator.repository import build
from ullage_operator.repository.acceptance import overlap, path_problem
from ullage_operator.repository.cache import InformerCache
from ullage_operator.repository.decide import deletes_data
from ullage_operator.repository.observe import Key
from ullage_operator.repository.trust import authority_secret_name
from ullage_operator.settings import OperatorSettings


async def removed(
    api: ApiClient, cache: InformerCache, repository: RepositoryObject, settings: OperatorSettings
) -> str:
    """Do the next part; what is still waited for, empty when nothing is left."""
    namespace = repository.namespace
    selector = objects.selector_of(repository.labels)
    if not settings.namespaces:
        await api.delete("ClusterRoleBinding", None, build.delegation_name(repository))
    for kind in objects.POD_MAKERS:
        await _delete_all(api, kind, namespace, selector)
    node_objects, _ = await api.list("ContentRepositoryNode", namespace, selector)
    nodes = [each["spec"]["nodeName"] for each in node_objects]
    if repository.document is not None and deletes_data(repository.spec):
        pods, _ = await api.list("Pod", namespace, selector)
        if pods:
            return f"{len(pods)} agents to end"
        if repository.spec.storage.local_persistent_volume is not None:
            await _delete_all(api, "PersistentVolumeClaim", namespace, selector)
        else:
            waits = _in_the_way(cache, repository, nodes, settings)
            waits = waits or await _emptied(api, cache, repository, settings, nodes)
            if waits:
                return waits
    await _delete_all(api, "ContentRepositoryNode", namespace, selector)
    await api.delete("Secret", settings.namespace, authority_secret_name(repository))
    return ""


def _in_the_way(
    cache: InformerCache, repository: RepositoryObject, nodes: list[str], settings: OperatorSettings
) -> str:
    """Why its directories must not be emptied: they are not allowed any more, or another one's lie with them."""
    otherwise = "or set spec.deletionPolicy: Retain, and they stay as they are"
    if nodes and (problem := path_problem(repository, settings)):
        return f"its directories to be allowed, {otherwise}: {problem}"
    others: dict[Key, str] = {}
    for found in cache.node_objects.objects.values():
        if found["spec"]["nodeName"] in nodes:
            others[found["metadata"]["namespace"], found["spec"]["repository"]] = found["spec"]["nodeName"]
    for key, node in others.items():
        known = cache.repositories.objects.get(key)
        if known is not None and overlap(repository, other := RepositoryObject.of(known)):
            return f"{other.namespace}/{other.name} to go, whose {other.root} lies with it on node {node}, {otherwise}"
    return ""


async def _delete_all(api: ApiClient, kind: str, namespace: str, selector: str) -> None:
    found, _ = await api.list(kind, namespace, selector)
    for each in found:
        await api.delete(kind, namespace, each["metadata"]["name"], each["metadata"]["uid"])


async def _emptied(
    api: ApiClient, cache: InformerCache, repository: RepositoryObject, settings: OperatorSettings, nodes: list[str]
) -> str:
    present = {name for _, name in cache.nodes.objects}
    left = []
    for node in nodes:
        if node not in present:
            continue
        job = build.cleaning_job(repository, settings.agent_image, node, pods=settings.pods)
        found = await api.get("Job", repository.namespace, job["metadata"]["name"])
        if found is None:
            await api.apply(job)
        if found is None or not (found.get("status") or {}).get("succeeded"):
            left.append(node)
    return f"{len(left)} nodes to be emptied, {left[0]} among them" if left else ""
