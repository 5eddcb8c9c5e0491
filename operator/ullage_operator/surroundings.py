"""The stores that are followed, and observations made of them."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from ullage_agent.fleet import HEARTBEAT_FIELDS, HEARTBEAT_SECONDS, REPOSITORY_LABEL, NodeStatus
from ullage_operator import spark_jobs
from ullage_operator.api import Api, Object
from ullage_operator.build import MANAGED, MANAGER, labels
from ullage_operator.observe import (
    TEMPLATE,
    Blockers,
    NodeObject,
    Observation,
    PlanningSeen,
    Run,
    Wish,
    agents_of,
    machines_of,
)
from ullage_operator.watching import Store

Key = tuple[str, str]

Changed = Callable[[Key | None, bool], None]
"""Told which repository to look at anew, None: all, and whether only sums have changed."""

NO_NEWS: Final = frozenset(
    encoded
    for name, encoded in zip(NodeStatus.__struct_fields__, NodeStatus.__struct_encode_fields__, strict=True)
    if name in HEARTBEAT_FIELDS
)
"""Of an agent's status as the API server has it: what its every heartbeat changes."""

OURS: Final = f"{MANAGED}={MANAGER}"
OWNED: Final = (
    *("ConfigMap", "Secret", "ServiceAccount", "Service", "DaemonSet", "StatefulSet"),
    *("EndpointSlice", "NetworkPolicy", "Role", "RoleBinding", "PodDisruptionBudget"),
)


def _lean_node(node: Object) -> Object:
    """Of a node, what is looked at: its status carries every image there."""
    metadata = node["metadata"]
    ready = [c for c in (node.get("status") or {}).get("conditions") or () if c["type"] == "Ready"]
    return {
        "metadata": {key: metadata[key] for key in ("name", "labels", "resourceVersion") if key in metadata},
        "spec": {key: value for key, value in (node.get("spec") or {}).items() if key in ("taints", "unschedulable")},
        "status": {"conditions": [{"type": c["type"], "status": c["status"]} for c in ready]},
    }


def _lean_pod(pod: Object) -> Object:
    """Of an agent's pod."""
    status = pod.get("status") or {}
    keep = ("name", "namespace", "uid", "labels", "resourceVersion", "deletionTimestamp")
    made_from = (pod["metadata"].get("annotations") or {}).get(TEMPLATE, "")
    return {
        "metadata": {key: pod["metadata"][key] for key in keep if key in pod["metadata"]}
        | {"annotations": {TEMPLATE: made_from}},
        "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName")},
        "status": {"podIP": status.get("podIP", ""), "conditions": status.get("conditions") or []},
    }


class Surroundings:
    """All that the operator knows of the cluster."""

    def __init__(
        self,
        api: Api,
        namespaces: tuple[str, ...],
        changed: Changed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        places = namespaces or (None,)
        self._clock = clock
        self._changed = changed
        self._machines: dict[str, object] = {}
        self._words: dict[Key, object] = {}
        self._heard: dict[Key, float] = {}
        self._log = structlog.get_logger("surroundings")
        by_label, by_spec = self._by_label, self._by_spec
        self.wishes = Store(api, "ContentRepository", namespaces=places, on_change=self._by_name)
        self.objects = Store(api, "ContentRepositoryNode", namespaces=places, on_change=self._by_agent)
        self.runs = Store(api, "ReclamationRun", namespaces=places, on_change=by_spec)
        self.nodes = Store(api, "Node", keep=_lean_node, on_change=self._by_machine)
        self.agents = Store(api, "Pod", namespaces=places, labels=OURS, keep=_lean_pod, on_change=by_label)
        self.spark = Store(api, "Pod", labels=spark_jobs.SPARK, keep=spark_jobs.kept, on_change=self._by_pod)
        self.opted_in = Store(api, "Pod", labels=spark_jobs.OPTED_IN, keep=spark_jobs.kept, on_change=self._by_pod)
        self.owned = {kind: Store(api, kind, namespaces=places, labels=OURS, on_change=by_label) for kind in OWNED}
        self.reserved: dict[Key, dict[str, frozenset[str]]] = {}

    @property
    def stores(self) -> list[Store]:
        """All of them."""
        own = [self.wishes, self.objects, self.runs, self.nodes, self.agents, self.spark, self.opted_in]
        return [*own, *self.owned.values()]

    async def start(self) -> None:
        """Follow everything; returns when it was listed once, but for what blocks: unknown is busy."""
        for store in self.stores:
            store.start()
        for store in self.stores:
            if store not in (self.spark, self.opted_in):
                await store.ready()

    async def stop(self) -> None:
        """Follow nothing any more."""
        for store in self.stores:
            await store.stop()

    def repositories(self) -> list[Key]:
        """Of all repositories."""
        return list(self.wishes.objects)

    def observe(
        self,
        key: Key,
        now_millis: int,
        extra: Iterable[Object],
        problem: str,
        *,
        has_cert_manager: bool = False,
        planning: PlanningSeen | None = None,
    ) -> Observation | None:
        """What is known of a repository now; None if there is none."""
        found = self.wishes.objects.get(key)
        if found is None:
            return None
        wish = Wish.of(found)
        own_labels = labels(wish).items()
        mine = [
            pod
            for (namespace, _), pod in self.agents.objects.items()
            if namespace == wish.namespace and own_labels <= (pod["metadata"].get("labels") or {}).items()
        ]
        problems = [each for each in (problem, self.spark.problem, self.opted_in.problem) if each]
        if not (self.spark.is_listed and self.opted_in.is_listed):
            problems.append("the pods of Spark were not listed yet")
        pods = [*self.spark.objects.values(), *self.opted_in.objects.values(), *extra]
        return Observation(
            now_millis=now_millis,
            wish=wish,
            others=tuple(Wish.of(other) for other_key, other in self.wishes.objects.items() if other_key != key),
            machines=machines_of(self.nodes.objects.values()),
            objects={each.spec.node_name: each for each in self._node_objects(wish)},
            agents=agents_of(mine),
            runs=tuple(self._runs(wish)),
            blockers=Blockers(by_node=spark_jobs.by_node(pods), problem="; ".join(problems)),
            busy_volumes=self._busy_volumes(key),
            has_cert_manager=has_cert_manager,
            planning=planning,
        )

    def _node_objects(self, wish: Wish) -> Iterable[NodeObject]:
        for (namespace, name), found in self.objects.objects.items():
            if namespace == wish.namespace and found["spec"].get("repository") == wish.name:
                try:
                    yield NodeObject.of(found)
                except msgspec.ValidationError as error:
                    self._log.error("a node's object cannot be read", name=name, problem=str(error))

    def _runs(self, wish: Wish) -> Iterable[Run]:
        for (namespace, _), found in self.runs.objects.items():
            if namespace == wish.namespace and found["spec"].get("repository") == wish.name:
                yield Run.of(found)

    def _busy_volumes(self, key: Key) -> dict[str, frozenset[str]]:
        """Volumes on which others hold tickets: those that were written, and those that are about to be."""
        busy: dict[str, set[str]] = {}
        for (namespace, _), found in self.objects.objects.items():
            spec = found["spec"]
            if (namespace, spec["repository"]) != key and spec.get("ticket"):
                volumes = (found.get("status") or {}).get("volumes") or ()
                busy.setdefault(spec["nodeName"], set()).update(volumes)
        for other, nodes in self.reserved.items():
            for node, volumes in nodes.items() if other != key else ():
                busy.setdefault(node, set()).update(volumes)
        return {node: frozenset(volumes) for node, volumes in busy.items()}

    def _by_name(self, found: Object) -> None:
        """Another repository may lie in this one's way, or not any more."""
        self._changed(None, False)

    def _by_spec(self, found: Object) -> None:
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def _by_agent(self, found: Object) -> None:
        """A heartbeat says that nothing has happened; one after a silence is news."""
        metadata, status = found["metadata"], found.get("status") or {}
        key = metadata["namespace"], metadata["name"]
        if key not in self.objects.objects:
            self._words.pop(key, None)
            self._heard.pop(key, None)
            self._by_spec(found)
            return
        words = (
            *(found["spec"], metadata.get("annotations"), metadata["uid"], "deletionTimestamp" in metadata),
            {name: value for name, value in status.items() if name not in NO_NEWS},
        )
        now = self._clock()
        was_silent = now - self._heard.get(key, -math.inf) > 2 * HEARTBEAT_SECONDS
        is_quiet = words == self._words.get(key) and not was_silent
        self._words[key], self._heard[key] = words, now
        self._changed((metadata["namespace"], found["spec"]["repository"]), is_quiet)

    def _by_label(self, found: Object) -> None:
        name = (found["metadata"].get("labels") or {}).get(REPOSITORY_LABEL)
        if name:
            self._changed((found["metadata"]["namespace"], name), False)

    def _by_machine(self, found: Object) -> None:
        """Heartbeats of nodes change nothing that is looked at."""
        name = found["metadata"]["name"]
        facts = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
        seen = (facts, found["spec"], found["status"], ("", name) in self.nodes.objects)
        if self._machines.get(name) != seen:
            self._machines[name] = seen
            self._changed(None, False)

    def _by_pod(self, found: Object) -> None:
        """Only repositories whose nodes want something wait for pods."""
        node = found["spec"]["nodeName"]
        for (namespace, _), each in self.objects.objects.items():
            if each["spec"]["nodeName"] == node:
                self._changed((namespace, each["spec"]["repository"]), False)
