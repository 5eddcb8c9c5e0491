"""The end of a repository: what kopf's finalizer waits for.

First     tickets are taken back, planning ends, agents go
Retain    node objects go; directories and claims stay as they are
Delete    claims go, or the directory of each node is emptied by a job there; a node that is gone is passed over

Nothing can be made in a namespace that ends. So where that is why the repository goes, jobs run in the operator's own
namespace; node objects may have gone before, and where content may lie is known from the spec and the last status.

What stays is told in an event and a line of the log, in the operator's namespace if the repository's own ends.
"""

from typing import Final, NamedTuple

import msgspec

from ullage.contract import NodeSpec, record_of
from ullage_operator import objects
from ullage_operator.agents.claims import CLAIM
from ullage_operator.cluster.api import ApiClient
from ullage_operator.content import let_go
from ullage_operator.errors import ApiError, is_changed
from ullage_operator.objects import Object, RepositoryObject, has_labels, selector_of
from ullage_operator.observation import ClusterNode
from ullage_operator.planning.build import labels as planning_labels
from ullage_operator.repository import build
from ullage_operator.repository.acceptance import overlap, path_problem
from ullage_operator.repository.cache import InformerCache, refusal
from ullage_operator.repository.decide import deletes_data
from ullage_operator.repository.observe import Key
from ullage_operator.repository.placement import places
from ullage_operator.repository.trust import authority_secret_name
from ullage_operator.settings import OperatorSettings

POD_SECURITY: Final = "violates PodSecurity"
"""What the API server says of a pod that a namespace's standard forbids: no later try is taken either."""

NAMED_MAX: Final = 10
"""Nodes or volumes that an event names; the log names all."""


class RemovalStep(NamedTuple):
    """Of one step. `waits`: what is still waited for, empty when nothing is left to do. `stays`: what is left of the
    data, in words, and `where`: all nodes or volumes; `is_asked`: whether that is as the policy asks.
    """

    waits: str = ""
    stays: str = ""
    where: tuple[str, ...] = ()
    is_asked: bool = True
    namespace_ends: bool = False


class RepositoryRemoval:
    """Of one repository."""

    def __init__(
        self, api: ApiClient, cache: InformerCache, repository: RepositoryObject, settings: OperatorSettings
    ) -> None:
        self._api = api
        self._cache = cache
        self._repository = repository
        self._settings = settings
        self._namespace_ends = False

    async def step(self) -> RemovalStep:
        """Do the next part. Everything can be done again."""
        repository, namespace = self._repository, self._repository.namespace
        selector = selector_of(repository.labels)
        found = await self._node_objects()
        await self._call_off(found)
        if not self._settings.namespaces:
            await self._api.delete("ClusterRoleBinding", None, build.delegation_name(repository))
        for kind in objects.POD_MAKERS:
            await self._delete_all(kind, namespace, selector)
        holder = await self._api.get("Namespace", None, namespace)
        self._namespace_ends = holder is None or "deletionTimestamp" in holder["metadata"]
        nodes = self._nodes_of(found)
        outcome = await self._cleaned(nodes) if self._is_emptied else self._kept(nodes)
        if not outcome.waits:
            for each in await self._node_objects():
                await let_go(self._api, each)
                await self._api.delete(
                    "ContentRepositoryNode", namespace, each["metadata"]["name"], each["metadata"]["uid"]
                )
            await self._api.delete("Secret", self._settings.namespace, authority_secret_name(repository))
        return outcome._replace(namespace_ends=self._namespace_ends)

    async def _node_objects(self) -> list[Object]:
        """All that name it, and not by their labels: a directory whose object somebody took them from would stay, and
        the next repository of this name would come upon it.
        """
        found, _ = await self._api.list("ContentRepositoryNode", self._repository.namespace)
        return [each for each in found if each["spec"]["repository"] == self._repository.name]

    @property
    def _is_emptied(self) -> bool:
        return self._repository.document is not None and deletes_data(self._repository.spec)

    async def _call_off(self, found: list[Object]) -> None:
        """Tickets and planning: whoever deletes a repository means now, and not when the last node is emptied."""
        repository = self._repository
        for each in found:
            spec = record_of(NodeSpec, each["spec"])
            if spec.ticket is None:
                continue
            document = build.node_object(repository, msgspec.structs.replace(spec, ticket=None))
            document["metadata"]["uid"] = each["metadata"]["uid"]
            del document["metadata"]["finalizers"]  # those that it has stay
            try:
                await self._api.replace(document)
            except ApiError as error:
                if not is_changed(error):  # it went meanwhile, and its ticket with it
                    raise
        planned = selector_of(planning_labels(repository))
        await self._delete_all("Job", repository.namespace, planned)
        if await self._api.serves("SparkApplication"):
            await self._delete_all("SparkApplication", repository.namespace, planned)

    def _nodes_of(self, found: list[Object]) -> list[str]:
        """Where its content may lie, by name."""
        nodes = {each["spec"]["nodeName"] for each in found}
        repository = self._repository
        if self._namespace_ends and repository.status.nodes:
            nodes |= {each.node for each in repository.status.out_of_reach}
            if repository.document is not None:
                known = (ClusterNode.of(each) for each in self._cache.nodes.objects.values())
                nodes |= {each.name for each in known if places(repository.spec, each)}
        return sorted(nodes)

    def _kept(self, nodes: list[str]) -> RemovalStep:
        repository = self._repository
        if not nodes and not repository.status.nodes:
            return RemovalStep()
        if repository.document is None:
            return RemovalStep(stays="stays where it is, because its spec cannot be read", where=tuple(nodes))
        if repository.root:
            words = f"stays in {repository.root}, as deletionPolicy Retain asks"
            return RemovalStep(stays="; ".join([words, *self._unnamed()]), where=tuple(nodes))
        claims = [
            each
            for (namespace, _), each in self._cache.owned[CLAIM].objects.items()
            if namespace == repository.namespace and has_labels(each, repository.labels)
        ]
        volumes = sorted(each["spec"].get("volumeName") or each["metadata"]["name"] for each in claims)
        words = "stays in its claims, as deletionPolicy Retain asks"
        if self._namespace_ends:
            words = "was in claims that go with the namespace: it stays where a volume's reclaim policy is Retain"
        return RemovalStep(stays=words, where=tuple(volumes), is_asked=not self._namespace_ends)

    async def _cleaned(self, nodes: list[str]) -> RemovalStep:
        repository = self._repository
        pods, _ = await self._api.list("Pod", repository.namespace, selector_of(repository.labels))
        if pods:
            return RemovalStep(f"{len(pods)} agents to end")
        if not repository.root:
            await self._delete_all(CLAIM, repository.namespace, selector_of(repository.labels))
            return RemovalStep()
        if waits := self._in_the_way(nodes):
            return RemovalStep(waits)
        return await self._emptied(nodes)

    def _in_the_way(self, nodes: list[str]) -> str:
        """Why its directories must not be emptied: they are not allowed any more, or another one's lie with them."""
        repository = self._repository
        otherwise = "or set spec.deletionPolicy: Retain, and they stay as they are"
        if nodes and (problem := path_problem(repository, self._settings)):
            return f"its directories to be allowed, {otherwise}: {problem}"
        others: dict[Key, str] = {}
        for found in self._cache.node_objects.objects.values():
            if found["spec"]["nodeName"] in nodes:
                others[found["metadata"]["namespace"], found["spec"]["repository"]] = found["spec"]["nodeName"]
        for key, node in others.items():
            known = self._cache.repositories.objects.get(key)
            if known is not None and overlap(repository, other := RepositoryObject.of(known)):
                lies = f"whose {other.root} lies with it on node {node}"
                return f"{other.namespace}/{other.name} to go, {lies}, {otherwise}"
        return ""

    async def _emptied(self, nodes: list[str]) -> RemovalStep:
        repository, settings = self._repository, self._settings
        present = {name for _, name in self._cache.nodes.objects}
        place = settings.namespace if self._namespace_ends else repository.namespace
        left, refused = [], ""
        for node in nodes:
            if node not in present:
                continue
            job = build.cleaning_job(repository, settings.agent_image, node, pods=settings.pods, place=place)
            found = await self._api.get("Job", place, job["metadata"]["name"])
            if found is None:
                await self._api.apply(job)
            if found is None or not (found.get("status") or {}).get("succeeded"):
                left.append(node)
            if found is not None and len(left) == 1 and left[0] == node:  # what refuses one refuses all
                refused = await self._refused(place, found)
        if left and not (self._namespace_ends and POD_SECURITY in refused):
            words = f": {refused}" if refused else ""
            return RemovalStep(f"{len(left)} nodes to be emptied, {left[0]} among them{words}")
        if left:
            await self._delete_all("Job", place, selector_of(build.cleaning_labels(repository)))
        return self._left(nodes, left, present, refused)

    async def _refused(self, place: str, job: Object) -> str:
        """Why its pods are refused, in the API server's words; empty if they are not."""
        told, _ = await self._api.list("Event", place, fields=f"involvedObject.uid={job['metadata']['uid']}")
        return refusal(told)

    def _left(self, nodes: list[str], left: list[str], present: set[str], refused: str) -> RemovalStep:
        """What was not emptied, and why."""
        repository = self._repository
        gone = [node for node in nodes if node not in present]
        words = []
        if left:
            again = "make both again and delete the repository before its namespace, or empty it by hand"
            words.append(f"the operator's namespace refuses pods that could empty it ({refused}): {again}")
        if gone:
            words.append(f"{len(gone)} nodes have left the cluster")
        words += self._unnamed()
        if not words:
            return RemovalStep()
        stays = f"stays in {repository.root}, though deletionPolicy is Delete: {'; '.join(words)}"
        return RemovalStep(stays=stays, where=(*left, *gone), is_asked=False)

    def _unnamed(self) -> list[str]:
        status = self._repository.status
        more = status.nodes_out_of_reach - len(status.out_of_reach)
        is_told = self._namespace_ends and more > 0
        return [f"{more} nodes more were out of reach, whose names its status does not have"] if is_told else []

    async def _delete_all(self, kind: str, namespace: str, selector: str) -> None:
        found, _ = await self._api.list(kind, namespace, selector)
        for each in found:
            await self._api.delete(kind, namespace, each["metadata"]["name"], each["metadata"]["uid"])


def told(repository: RepositoryObject, outcome: RemovalStep) -> str:
    """What stays where, as a sentence for people."""
    named = ", ".join(outcome.where[:NAMED_MAX])
    more = f" and {len(outcome.where) - NAMED_MAX} more" if len(outcome.where) > NAMED_MAX else ""
    on = f" On {named}{more}." if named else ""
    return f"ContentRepository {repository.namespace}/{repository.name} is gone, and what it held {outcome.stays}.{on}"
