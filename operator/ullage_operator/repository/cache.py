"""What is followed of the cluster, and observations made of it."""

import math
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec
import structlog

from ullage.contract import (
    HEARTBEAT_FIELDS,
    HEARTBEAT_SECONDS,
    REPOSITORY_LABEL,
    ContentRepositorySpec,
    NodeStatus,
    TlsMode,
)
from ullage_operator.agents.claims import CLAIM, classes_in_question
from ullage_operator.authority import CertificateAuthority
from ullage_operator.certificates import rotated
from ullage_operator.cluster.api import ApiClient
from ullage_operator.cluster.informer import Informer
from ullage_operator.errors import OperatorError
from ullage_operator.node import blockers
from ullage_operator.objects import MANAGED, MANAGER, Object, RepositoryObject, is_owned, selector_of
from ullage_operator.observation import (
    TROUBLE_MAX,
    Blockers,
    ClusterNode,
    NodeObject,
    Observation,
    ObservedPlanning,
    RunObject,
    SigningRequest,
    agents_of,
    lean,
)
from ullage_operator.planning.decide import is_due
from ullage_operator.planning.observe import listed
from ullage_operator.repository.signing import signing_request_of
from ullage_operator.repository.trust import authority_of, authority_secret_name
from ullage_operator.settings import OperatorSettings

Key = tuple[str, str]

Changed = Callable[[Key | None, bool], None]
"""Told which repository to look at anew, None: all, and whether only sums have changed."""

NO_NEWS: Final = frozenset(
    encoded
    for name, encoded in zip(NodeStatus.__struct_fields__, NodeStatus.__struct_encode_fields__, strict=True)
    if name in HEARTBEAT_FIELDS
)
"""Of an agent's status as the API server has it: what its every heartbeat changes."""

POD_NAME: Final = re.compile(r'pods? "[^"]*"')
OURS: Final = f"{MANAGED}={MANAGER}"
OWNED: Final = (
    *("ConfigMap", "ServiceAccount", "Service", "DaemonSet", "StatefulSet"),
    *("EndpointSlice", "NetworkPolicy", "Role", "RoleBinding", "PodDisruptionBudget", CLAIM),
)


class Answers(NamedTuple):
    """Of one asking. `pods`: others than Spark's that block, and `problem` why they are not known."""

    pods: list[Object]
    problem: str
    authority: CertificateAuthority
    has_cert_manager: bool
    signing: tuple[SigningRequest, ...]
    published: str | None
    refused_pods: str | None
    planning: ObservedPlanning | None
    expandable: dict[str, bool]


class InformerCache:
    """All that the operator knows of the cluster."""

    def __init__(
        self,
        api: ApiClient,
        settings: OperatorSettings,
        changed: Changed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        places = settings.namespaces or (None,)
        # Where every namespace may be read, Spark is looked for in all of them.
        self._others = settings.spark_namespaces or places
        self._settings = settings
        self._api = api
        self._clock = clock
        self._changed = changed
        self._nodes_seen: dict[str, object] = {}
        self._heard: dict[Key, tuple[object, float]] = {}
        self._log = structlog.get_logger("cache")
        by_label, by_pod = self._by_label, self._by_pod
        self.repositories = Informer(api, "ContentRepository", namespaces=places, on_change=self._by_name)
        self.node_objects = Informer(api, "ContentRepositoryNode", namespaces=places, on_change=self._by_agent)
        self.runs = Informer(api, "ReclamationRun", namespaces=places, on_change=self._by_run)
        self.nodes = Informer(api, "Node", keep=lean, on_change=self._by_node)
        self.agents = Informer(api, "Pod", namespaces=places, labels=OURS, keep=lean, on_change=by_label)
        blocking = partial(Informer, api, "Pod", namespaces=self._others, keep=lean, on_change=by_pod)
        self.spark, self.opted_in = blocking(labels=blockers.SPARK), blocking(labels=blockers.OPTED_IN)
        self.owned = {kind: Informer(api, kind, namespaces=places, labels=OURS, on_change=by_label) for kind in OWNED}
        followed = [self.repositories, self.node_objects, self.runs, self.nodes, self.agents, self.spark, self.opted_in]
        self._stores = [*followed, *self.owned.values()]
        self.reserved: dict[Key, dict[str, frozenset[str]]] = {}

    async def start(self) -> None:
        """Follow everything; returns when it was listed once, but for what blocks: unknown is busy."""
        for store in self._stores:
            store.start()
        for store in self._stores:
            if store not in (self.spark, self.opted_in):
                await store.listed.wait()

    async def stop(self) -> None:
        """Follow nothing any more."""
        for store in self._stores:
            await store.stop()

    async def ask(self, repository: RepositoryObject, clock: Callable[[], int]) -> Answers:
        """What is not followed, because it is seldom wanted."""
        extra, problem = list[Object](), ""
        authority = CertificateAuthority()
        has_cert_manager = False
        signing: tuple[SigningRequest, ...] = ()
        published: str | None = ""
        if repository.document is not None:
            mode = repository.spec.tls.mode
            extra, problem = await self._other_pods(repository.spec)
            has_cert_manager = mode == TlsMode.CERT_MANAGER and await self._api.serves("CertificateRequest")
            if has_cert_manager:
                signing, published = await self._signing(repository)
            if mode == TlsMode.OPERATOR:
                name = authority_secret_name(repository)
                kept = authority_of(await self._api.get("Secret", self._settings.namespace, name))
                authority = rotated(kept, datetime.fromtimestamp(clock() / 1000, UTC), "/".join(repository.key))
        refused = await self._refused_pods(repository)
        planning = await listed(self._api, repository) if is_due(repository, clock()) else None
        expandable = await self._expandable(repository)
        return Answers(extra, problem, authority, has_cert_manager, signing, published, refused, planning, expandable)

    def observe(self, key: Key, answers: Answers, clock: Callable[[], int]) -> Observation | None:
        """What is known of a repository now: what is followed, and what was answered. None if it has gone meanwhile."""
        found = self.repositories.objects.get(key)
        if found is None:
            return None
        repository = RepositoryObject.of(found)
        others = [other for other_key, other in self.repositories.objects.items() if other_key != key]
        return Observation(
            now_millis=clock(),
            repository=repository,
            others=tuple(map(RepositoryObject.of, others)),
            # By name, so that what follows from them is always the same.
            cluster_nodes=tuple(ClusterNode.of(node) for _, node in sorted(self.nodes.objects.items())),
            objects={each.spec.node_name: each for each in self._node_objects(repository)},
            agents=agents_of(self._own_pods(repository)),
            runs=tuple(self.runs_of(*key)),
            blockers=self._blockers(answers.pods, answers.problem),
            busy_volumes=self._busy_volumes(key),
            # Decided on in a thread, while the cluster is followed.
            owned={kind: dict(informer.objects) for kind, informer in self.owned.items()},
            has_cert_manager=answers.has_cert_manager,
            authority=answers.authority,
            signing_requests=answers.signing,
            published=answers.published,
            planning=answers.planning,
            refused_pods=answers.refused_pods,
            expandable=answers.expandable,
        )

    async def _expandable(self, repository: RepositoryObject) -> dict[str, bool]:
        """Whether volumes of a storage class can grow, where claims are smaller than what is asked for."""
        claims = (each for (place, _), each in self.owned[CLAIM].objects.items() if place == repository.namespace)
        mine = [each for each in claims if repository.labels.items() <= (each["metadata"].get("labels") or {}).items()]
        classes = {
            name: await self._api.get("StorageClass", None, name) for name in classes_in_question(repository, mine)
        }
        return {name: bool((found or {}).get("allowVolumeExpansion")) for name, found in classes.items()}

    async def _signing(self, repository: RepositoryObject) -> tuple[tuple[SigningRequest, ...], str | None]:
        """What cert-manager was asked for it, and the authorities that clients are told of: None if others do that."""
        made, _ = await self._api.list("CertificateRequest", repository.namespace, selector_of(repository.labels))
        ours = [signing_request_of(each) for each in made if is_owned(each, repository.uid)]
        told = await self._api.get("ConfigMap", repository.namespace, repository.authority)
        if told is not None and not is_owned(told, repository.uid):
            return tuple(ours), None
        return tuple(ours), ((told or {}).get("data") or {}).get("ca.crt", "")

    async def _refused_pods(self, repository: RepositoryObject) -> str | None:
        """Why pods of agents were refused, in the words of the last event that says so; empty if none says it, and None
        where all pods were made. Asked for only where they were not.
        """
        lacking = [
            found["metadata"]["uid"]
            for kind in ("DaemonSet", "StatefulSet")
            for found in self.owned[kind].objects.values()
            if is_owned(found, repository.uid) and _lacks_pods(found)
        ]
        if not lacking:
            return None
        about = f"involvedObject.uid={lacking[0]},reason=FailedCreate"
        told, _ = await self._api.list("Event", repository.namespace, fields=about)
        last = max(told, key=lambda event: str(event.get("lastTimestamp") or ""), default={})
        # Each try has a pod's name of its own, which is no news.
        return POD_NAME.sub("pods", str(last.get("message", "")))[:TROUBLE_MAX]

    def runs_of(self, namespace: str, name: str) -> list[RunObject]:
        """The ReclamationRuns that name a repository, whether or not it is there."""
        return [RunObject.of(each) for each in _of(namespace, name, self.runs)]

    async def _other_pods(self, spec: ContentRepositorySpec) -> tuple[list[Object], str]:
        """Pods of spec.maintenance.blockers.podSelectors, in all namespaces that are looked at; and why they could not
        be asked for.
        """
        found: list[Object] = []
        for selector in spec.maintenance.blockers.pod_selectors:
            try:
                for place in self._others:
                    found += (await self._api.list("Pod", place, selector_of(selector.match_labels)))[0]
            except OperatorError as error:
                return [], str(error)
        return found, ""

    def _own_pods(self, repository: RepositoryObject) -> Iterable[Object]:
        own_labels = repository.labels.items()
        for (namespace, _), pod in self.agents.objects.items():
            if namespace == repository.namespace and own_labels <= (pod["metadata"].get("labels") or {}).items():
                yield pod

    def _blockers(self, extra: Iterable[Object], problem: str) -> Blockers:
        """`extra`: pods that block as Spark's do, and `problem` why they are not known."""
        problems = [each for each in (problem, self.spark.problem, self.opted_in.problem) if each]
        if not (self.spark.listed.is_set() and self.opted_in.listed.is_set()):
            problems.append("the pods of Spark were not listed yet")
        pods = [*self.spark.objects.values(), *self.opted_in.objects.values(), *extra]
        return Blockers(by_node=blockers.by_node(pods), problem="; ".join(problems))

    def _node_objects(self, repository: RepositoryObject) -> Iterable[NodeObject]:
        for found in _of(*repository.key, self.node_objects):
            try:
                yield NodeObject.of(found)
            except msgspec.ValidationError as error:
                name = found["metadata"]["name"]
                self._log.error("a node's object cannot be read", name=name, problem=str(error))

    def _busy_volumes(self, key: Key) -> dict[str, frozenset[str]]:
        """Volumes on which others hold tickets: those that were written, and those that are about to be."""
        busy: dict[str, set[str]] = {}
        for (namespace, _), found in self.node_objects.objects.items():
            spec = found["spec"]
            if (namespace, spec["repository"]) != key and spec.get("ticket"):
                volumes = (found.get("status") or {}).get("volumes") or ()
                busy.setdefault(spec["nodeName"], set()).update(volumes)
        for other, nodes in self.reserved.items():
            for node, volumes in nodes.items() if other != key else ():
                busy.setdefault(node, set()).update(volumes)
        return {node: frozenset(volumes) for node, volumes in busy.items()}

    def _by_name(self, found: Object) -> None:
        """Of one that is there, kopf tells what matters. One that is gone lies in nobody's way any more, and its runs
        have to be told.
        """
        key = found["metadata"]["namespace"], found["metadata"]["name"]
        if key not in self.repositories.objects:
            self._changed(None, False)
            self._changed(key, False)

    def _by_run(self, found: Object) -> None:
        """The same: what it has started is called off when it is gone."""
        if (found["metadata"]["namespace"], found["metadata"]["name"]) not in self.runs.objects:
            self._by_spec(found)

    def _by_spec(self, found: Object) -> None:
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def _by_agent(self, found: Object) -> None:
        """A heartbeat says that nothing has happened; one after a silence is news."""
        metadata, status = found["metadata"], found.get("status") or {}
        key = metadata["namespace"], metadata["name"]
        if key not in self.node_objects.objects:
            self._heard.pop(key, None)
            self._by_spec(found)
            return
        words = (
            *(found["spec"], metadata.get("annotations"), metadata["uid"], "deletionTimestamp" in metadata),
            {name: value for name, value in status.items() if name not in NO_NEWS},
        )
        now = self._clock()
        before, at = self._heard.get(key, (None, -math.inf))
        self._heard[key] = words, now
        is_quiet = words == before and now - at <= 2 * HEARTBEAT_SECONDS
        self._changed((metadata["namespace"], found["spec"]["repository"]), is_quiet)

    def _by_label(self, found: Object) -> None:
        name = (found["metadata"].get("labels") or {}).get(REPOSITORY_LABEL)
        if name:
            self._changed((found["metadata"]["namespace"], name), False)

    def _by_node(self, found: Object) -> None:
        """Heartbeats of nodes change nothing that is looked at."""
        name = found["metadata"]["name"]
        facts = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
        seen = (facts, found["spec"], found["status"], ("", name) in self.nodes.objects)
        if self._nodes_seen.get(name) != seen:
            self._nodes_seen[name] = seen
            self._changed(None, False)

    def _by_pod(self, found: Object) -> None:
        """Only repositories whose nodes want something wait for pods."""
        node = found["spec"]["nodeName"]
        for (namespace, _), each in self.node_objects.objects.items():
            if each["spec"]["nodeName"] == node:
                self._changed((namespace, each["spec"]["repository"]), False)


def _lacks_pods(found: Object) -> bool:
    """Whether a controller that knows the latest wish has made fewer pods than it should."""
    status = found.get("status") or {}
    if status.get("observedGeneration") != found["metadata"].get("generation"):
        return False
    if "desiredNumberScheduled" in status:
        return bool(status.get("currentNumberScheduled", 0) < status["desiredNumberScheduled"])
    return bool(status.get("replicas", 0) < found["spec"].get("replicas", 1))


def _of(namespace: str, name: str, informer: Informer) -> Iterable[Object]:
    """What names the repository in its spec."""
    for (place, _), found in informer.objects.items():
        if place == namespace and found["spec"].get("repository") == name:
            yield found
