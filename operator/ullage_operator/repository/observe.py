"""Observations made of what is followed of the cluster, and of what it has answered. Pure but for what is remembered.

The documents of thousands of objects are read here, which takes longer than a watch should wait: in a thread, while the
cluster is followed. That is safe because a document is replaced when its object changes, and never changed itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from ullage.contract import object_name
from ullage_operator.authority import CertificateAuthority
from ullage_operator.node import blockers
from ullage_operator.objects import Object, RepositoryObject, has_labels, is_held, is_owned
from ullage_operator.observation import (
    BackupObject,
    Blockers,
    ClusterNode,
    NodeObject,
    Observation,
    ObservedPlanning,
    RestoreObject,
    RunObject,
    SigningRequest,
    agents_of,
)

Key = tuple[str, str]
"""Namespace and name."""

Objects = dict[Key, Object]

T = TypeVar("T")
Asked = TypeVar("Asked", RunObject, BackupObject, RestoreObject)


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


class Followed(NamedTuple):
    """All that is followed, at one moment. `blocking`: pods that block, `problems` why not all are known; `reserved`:
    volumes by node, for tickets that each repository is about to give.
    """

    repositories: Objects
    node_objects: Objects
    runs: Objects
    backups: Objects
    restores: Objects
    nodes: Objects
    agents: Objects
    blocking: list[Object]
    problems: list[str]
    owned: dict[str, Objects]
    reserved: dict[Key, dict[str, frozenset[str]]]

    def service_of(self, repository: RepositoryObject) -> Object | None:
        """The headless one, if the repository was ever started."""
        found = self.owned["Service"].get((repository.namespace, repository.service))
        return found if found is not None and is_owned(found, repository.uid) else None


class Readings(Generic[T]):
    """What documents say, each read once: a pass looks at thousands, of which a few have changed since the last."""

    def __init__(self, read: Callable[[Object], T]) -> None:
        self._read = read
        self._known: dict[Key, tuple[Object, T]] = {}

    def of(self, found: Iterable[tuple[Key, Object]]) -> dict[Key, T]:
        """Of these; all others are forgotten."""
        before, self._known = self._known, {}
        for key, document in found:
            known = before.get(key)
            if known is None or known[0] is not document:
                known = document, self._read(document)
            self._known[key] = known
        return {key: said for key, (_, said) in self._known.items()}


class Observer:
    """Reads what it is given, one call at a time."""

    def __init__(self) -> None:
        self._repositories = Readings(RepositoryObject.of)
        self._nodes = Readings(ClusterNode.of)
        self._objects: dict[Key, Readings[NodeObject | None]] = {}

    def observe(self, key: Key, followed: Followed, answers: Answers, now_millis: int) -> Observation:
        """What is known of a repository that is among what is followed."""
        repositories = self._repositories.of(followed.repositories.items())
        repository = repositories.pop(key)
        named = dict(naming(key, followed.node_objects))
        objects = self._objects.setdefault(key, Readings(_node_object)).of(named.items())
        problems = [each for each in (answers.problem, *followed.problems) if each]
        blocking = blockers.by_node([*followed.blocking, *answers.pods])
        return Observation(
            now_millis=now_millis,
            repository=repository,
            others=tuple(repositories.values()),
            # By name, so that what follows from them is always the same.
            cluster_nodes=tuple(self._nodes.of(sorted(followed.nodes.items())).values()),
            objects={each.spec.node_name: each for each in objects.values() if each is not None},
            strays=tuple(each for each in named.values() if is_held(each) and not _is_named_well(each)),
            agents=agents_of(_own_pods(repository, followed.agents)),
            runs=tuple(asked(RunObject, key, followed.runs)),
            backups=tuple(asked(BackupObject, key, followed.backups)),
            restores=tuple(asked(RestoreObject, key, followed.restores)),
            blockers=Blockers(by_node=blocking, problem="; ".join(problems)),
            busy_volumes=_busy_volumes(key, followed),
            owned=followed.owned,
            has_cert_manager=answers.has_cert_manager,
            authority=answers.authority,
            signing_requests=answers.signing,
            published=answers.published,
            planning=answers.planning,
            refused_pods=answers.refused_pods,
            expandable=answers.expandable,
        )

    def forget(self, key: Key) -> None:
        """The repository is gone."""
        self._objects.pop(key, None)


def naming(key: Key, objects: Mapping[Key, Object]) -> Iterator[tuple[Key, Object]]:
    """Those that name the repository in their spec."""
    namespace, name = key
    for each, found in objects.items():
        if each[0] == namespace and found["spec"].get("repository") == name:
            yield each, found


def asked(kind: type[Asked], key: Key, objects: Mapping[Key, Object]) -> Iterator[Asked]:
    """Those of a kind that people ask by, but for those whose spec cannot be read: other definitions let them in."""
    for (_, name), found in naming(key, objects):
        try:
            yield kind.of(found)
        except msgspec.ValidationError as error:
            words = f"a {kind.__name__} cannot be read"
            structlog.get_logger("observe").error(words, namespace=key[0], name=name, problem=str(error))


def _node_object(found: Object) -> NodeObject | None:
    if not _is_named_well(found):
        return None  # somebody's: it would stand in the way of the one that the agent writes
    try:
        return NodeObject.of(found)
    except msgspec.ValidationError as error:
        name = found["metadata"]["name"]
        structlog.get_logger("observe").error("a node's object cannot be read", name=name, problem=str(error))
        return None


def _is_named_well(found: Object) -> bool:
    spec = found["spec"]
    return bool(found["metadata"]["name"] == object_name(spec["repository"], spec["nodeName"]))


def _own_pods(repository: RepositoryObject, agents: Mapping[Key, Object]) -> Iterator[Object]:
    for (namespace, _), pod in agents.items():
        if namespace == repository.namespace and has_labels(pod, repository.labels):
            yield pod


def _busy_volumes(key: Key, followed: Followed) -> dict[str, frozenset[str]]:
    """Volumes on which others hold tickets: those that were written, and those that are about to be."""
    busy: dict[str, set[str]] = {}
    for (namespace, _), found in followed.node_objects.items():
        spec = found["spec"]
        if (namespace, spec["repository"]) != key and spec.get("ticket"):
            volumes = (found.get("status") or {}).get("volumes") or ()
            busy.setdefault(spec["nodeName"], set()).update(volumes)
    for other, nodes in followed.reserved.items():
        for node, volumes in nodes.items() if other != key else ():
            busy.setdefault(node, set()).update(volumes)
    return {node: frozenset(volumes) for node, volumes in busy.items()}
