"""What is followed of the cluster, and observations made of it."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Final

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
from ullage_operator.objects import (
    MANAGED,
    MANAGER,
    POD_MAKERS,
    TROUBLE_MAX,
    Object,
    RepositoryObject,
    is_owned,
    selector_of,
)
from ullage_operator.observation import SigningRequest, lean
from ullage_operator.planning.decide import is_due
from ullage_operator.planning.observe import listed
from ullage_operator.repository.observe import Answers, Followed, Key
from ullage_operator.repository.signing import signing_request_of
from ullage_operator.repository.trust import authority_of, authority_secret_name
from ullage_operator.settings import OperatorSettings

Changed = Callable[[Key | None, bool], None]
"""Told which repository to look at anew, None: all, and whether only sums have changed."""

NO_NEWS: Final = frozenset(
    encoded
    for name, encoded in zip(NodeStatus.__struct_fields__, NodeStatus.__struct_encode_fields__, strict=True)
    if name in HEARTBEAT_FIELDS
)
"""Of an agent's status as the API server has it: what its every heartbeat changes."""

POD_NAME: Final = re.compile(r'pods? "[^"]*"', re.IGNORECASE)
COMBINED: Final = "(combined from similar events): "
"""What the recorder of events puts before words that it has seen too often."""

OURS: Final = f"{MANAGED}={MANAGER}"
OWNED: Final = (
    *("ConfigMap", "ServiceAccount", "Service", *POD_MAKERS),
    *("EndpointSlice", "NetworkPolicy", "Role", "RoleBinding", "PodDisruptionBudget", CLAIM),
)


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
        self._on_node: dict[str, set[Key]] = {}
        self._found: dict[Key, dict[tuple[str, str, str], Object]] = {}
        by_label, by_pod = self._by_label, self._by_pod
        # Of these kopf tells too, and to our own writes of their statuses there is nothing to add.
        asked = partial(Informer, api, namespaces=places, tells_answers=False)
        self.repositories = asked("ContentRepository", on_change=self._by_name)
        self.runs = asked("ReclamationRun", on_change=self._by_spec)
        self.backups = asked("ContentBackup", on_change=self._by_spec)
        self.restores = asked("ContentRestore", on_change=self._by_spec)
        self.node_objects = Informer(api, "ContentRepositoryNode", namespaces=places, on_change=self._by_agent)
        self.nodes = Informer(api, "Node", keep=lean, on_change=self._by_node)
        self.agents = Informer(api, "Pod", namespaces=places, labels=OURS, keep=lean, on_change=by_label)
        blocking = partial(Informer, api, "Pod", namespaces=self._others, keep=lean, on_change=by_pod)
        self.spark, self.opted_in = blocking(labels=blockers.SPARK), blocking(labels=blockers.OPTED_IN)
        self.owned = {kind: Informer(api, kind, namespaces=places, labels=OURS, on_change=by_label) for kind in OWNED}
        asked_for = [self.repositories, self.runs, self.backups, self.restores]
        self._stores = [
            *asked_for,
            self.node_objects,
            self.nodes,
            self.agents,
            self.spark,
            self.opted_in,
            *self.owned.values(),
        ]
        self.reserved: dict[Key, dict[str, frozenset[str]]] = {}

    async def start(self) -> None:
        """Follow everything; returns when it was listed once, or refused, but for what blocks: unknown is busy."""
        for store in self._stores:
            store.start()
        for store in self._stores:
            if store not in (self.spark, self.opted_in):
                await store.answered.wait()

    def require_followed(self) -> None:
        """OperatorError where we may not follow what a decision goes by: else pods and nodes that nobody sees any more
        would be taken for what they were, or for none, and a status would say that all is well.
        """
        for store in self._stores:
            if store not in (self.spark, self.opted_in) and store.refusal:
                raise OperatorError(f"The operator is blind, and leaves everything as it is: {store.refusal}")

    @property
    def ended(self) -> int:
        """How many kinds are followed no longer, though they should be."""
        return sum(store.has_ended for store in self._stores)

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
                kept = authority_of(await self.find(repository, "Secret", self._settings.namespace, name))
                authority = rotated(kept, datetime.fromtimestamp(clock() / 1000, UTC), "/".join(repository.key))
        refused = await self._refused_pods(repository)
        planning = await listed(self._api, repository) if is_due(repository, clock()) else None
        expandable = await self._expandable(repository)
        return Answers(extra, problem, authority, has_cert_manager, signing, published, refused, planning, expandable)

    def followed(self) -> Followed:
        """All that is followed, as it is now."""
        problems = [each for each in (self.spark.problem, self.opted_in.problem) if each]
        if not (self.spark.listed.is_set() and self.opted_in.listed.is_set()):
            problems.append("the pods of Spark were not listed yet")
        return Followed(
            repositories=dict(self.repositories.objects),
            node_objects=dict(self.node_objects.objects),
            runs=dict(self.runs.objects),
            backups=dict(self.backups.objects),
            restores=dict(self.restores.objects),
            nodes=dict(self.nodes.objects),
            agents=dict(self.agents.objects),
            blocking=[*self.spark.objects.values(), *self.opted_in.objects.values()],
            problems=problems,
            owned={kind: dict(informer.objects) for kind, informer in self.owned.items()},
            reserved=dict(self.reserved),
        )

    async def find(self, repository: RepositoryObject, kind: str, namespace: str | None, name: str) -> Object | None:
        """An object of a repository whose kind is not followed: as it was when it was last asked for, or written."""
        known = self._found.setdefault(repository.key, {})
        what = repository.uid, kind, name
        if what not in known:
            found = await self._api.get(kind, namespace, name)
            if found is None:
                return None
            known[what] = found
        return known[what]

    def found(self, repository: RepositoryObject, kind: str, found: Object) -> None:
        """What was written of such a kind."""
        self._found.setdefault(repository.key, {})[repository.uid, kind, found["metadata"]["name"]] = found

    def forget_found(self, key: Key) -> None:
        """Ask anew for what is not followed: nothing tells when it was changed or deleted."""
        self._found.pop(key, None)

    async def _expandable(self, repository: RepositoryObject) -> dict[str, bool]:
        """Whether volumes of a storage class can grow, where claims are smaller than what is asked for."""
        claims = list(self.owned[CLAIM].objects.values())
        names = await asyncio.to_thread(classes_in_question, repository, claims)
        classes = {name: await self._api.get("StorageClass", None, name) for name in names}
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
        sets = [found for kind in POD_MAKERS for found in self.owned[kind].objects.values()]
        lacking = await asyncio.to_thread(_lacking, sets, repository.uid)
        if not lacking:
            return None
        told, _ = await self._api.list("Event", repository.namespace, fields=f"involvedObject.uid={lacking[0]}")
        return refusal(told)

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

    def _by_name(self, found: Object) -> None:
        """Kopf tells who is there, and whose spec has changed. Not that somebody else wrote a status, nor who is gone:
        that one lies in nobody's way any more, and its runs have to be told.
        """
        key = found["metadata"]["namespace"], found["metadata"]["name"]
        self._changed(key, False)
        if key not in self.repositories.objects:
            self._changed(None, False)

    def _by_spec(self, found: Object) -> None:
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def _by_agent(self, found: Object) -> None:
        """A heartbeat says that nothing has happened; one after a silence is news."""
        metadata, status = found["metadata"], found.get("status") or {}
        key = metadata["namespace"], metadata["name"]
        on_node = self._on_node.setdefault(found["spec"]["nodeName"], set())
        if key not in self.node_objects.objects:
            self._heard.pop(key, None)
            on_node.discard(key)
            self._by_spec(found)
            return
        on_node.add(key)
        words = (
            *(found["spec"], metadata.get("annotations"), metadata["uid"], "deletionTimestamp" in metadata),
            metadata.get("finalizers"),
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
        """Only repositories on its node wait for it, and for none that has no node yet."""
        for key in self._on_node.get((found.get("spec") or {}).get("nodeName", ""), ()):
            if (each := self.node_objects.objects.get(key)) is not None:
                self._by_spec(each)


def _lacking(sets: Iterable[Object], owner: str) -> list[str]:
    """The uids of those of this owner that lack pods."""
    return [found["metadata"]["uid"] for found in sets if is_owned(found, owner) and _lacks_pods(found)]


def refusal(told: Iterable[Object]) -> str:
    """Why pods were refused, among the events of what makes them. Empty if one was made since: a roll lacks pods for
    moments, and must not be blamed for what an event of an hour ago says. Events have whole seconds: within one, the
    refusal counts, for it stands where there was room for some of the pods alone.
    """
    latest = max(
        (each for each in told if each.get("reason") in ("FailedCreate", "SuccessfulCreate")),
        key=lambda event: (str(event.get("lastTimestamp") or ""), event["reason"] == "FailedCreate"),
        default={},
    )
    refused = latest.get("reason") == "FailedCreate"
    # Each try has a pod's name of its own, which is no news.
    words = str(latest.get("message", "")).removeprefix(COMBINED)
    return POD_NAME.sub("pods", words)[:TROUBLE_MAX] if refused else ""


def _lacks_pods(found: Object) -> bool:
    """Whether a controller that knows the latest wish has made fewer pods than it should."""
    status = found.get("status") or {}
    if status.get("observedGeneration") != found["metadata"].get("generation"):
        return False
    if "desiredNumberScheduled" in status:
        return bool(status.get("currentNumberScheduled", 0) < status["desiredNumberScheduled"])
    return bool(status.get("replicas", 0) < found["spec"].get("replicas", 1))
