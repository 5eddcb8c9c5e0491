"""The one place that changes the cluster: what a decision and a build say, where the cluster differs.

Everything can be done again at any time. A process that ends anywhere in it leaves nothing that the next one does not
see and mend. The order is part of it: reports of runs are kept before the tickets that they are about are taken back,
and what is taken back is taken back before anything is given.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from ullage.contract import API_VERSION, NodeSpec, RepositoryStatus
from ullage_operator import certificates, metrics, objects
from ullage_operator.agents.claims import CLAIM, lost_claims
from ullage_operator.agents.pods import template_digest
from ullage_operator.backup.decide import orphaned as orphaned_backup
from ullage_operator.backup.restore import orphaned as orphaned_restore
from ullage_operator.cluster.api import ApiClient
from ullage_operator.content import let_go
from ullage_operator.election import lease_reference
from ullage_operator.errors import ApiError, OperatorError, is_changed, is_namespace_ending
from ullage_operator.node.runs import FINAL, expired, orphaned
from ullage_operator.objects import (
    CONTENT,
    DESIRED,
    POD_MAKERS,
    Object,
    RepositoryObject,
    covers,
    has_labels,
    is_owned,
    soonest,
)
from ullage_operator.observation import RELEASE, BackupObject, NodeObject, Observation, RestoreObject, RunObject
from ullage_operator.planning.decide import refused
from ullage_operator.repository.build import Desired, node_object
from ullage_operator.repository.cache import InformerCache
from ullage_operator.repository.conditions import WORKING, failed, news, with_facts
from ullage_operator.repository.decide import Decision
from ullage_operator.repository.observe import Key
from ullage_operator.repository.reach import is_kept
from ullage_operator.repository.removal import RemovalStep, told
from ullage_operator.repository.statuses import StatusWriter
from ullage_operator.settings import OperatorSettings

SUMS: Final = ("live", "dead", "free", "reclaimed")
"""Fields of a status that change with every heartbeat, and are written once in a while."""


class Applier:
    """Writes what differs; answers go into the cache before the watch brings them."""

    def __init__(self, api: ApiClient, cache: InformerCache, settings: OperatorSettings) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._statuses = StatusWriter(api, cache, settings)
        self._sums_written: dict[Key, int] = {}
        self._log = structlog.get_logger("apply")

    async def apply(self, seen: Observation, decision: Decision, desired: Desired) -> int | None:
        """Make it so. When to look again, None if nothing waits.

        What goes wrong stands in the status and in an event before it is raised: whoever asked for it reads no log.
        """
        status, failure, again, refused_until = decision.status, None, None, None
        try:
            # First: what a node reported is in its object only until its ticket is taken back.
            refused_until = await self._write_asked(seen, decision)
            refused: OperatorError | None = await self._write_claims(seen, desired)
            try:
                await self._write_objects(seen, desired)
            except OperatorError as error:
                refused = error  # a ticket is taken back though a ConfigMap is somebody else's
            again = await self._write_nodes(seen, decision)
            await self._replace_pods(seen, decision)
            status = await self._write_planning(seen, decision, desired)
            if refused is not None:
                raise refused
        except Exception as error:
            if is_namespace_ending(error):  # what the status says is what the removal goes by
                raise
            failure = error
            status = failed(seen.repository, status, error, seen.now_millis)
        waits = await self._write_status(seen.repository, status, seen.now_millis)
        if failure is not None:
            raise failure
        return soonest(waits, again, refused_until)

    async def tell_failure(self, repository: RepositoryObject, error: Exception, now_millis: int) -> None:
        """What kept a repository from being looked at, in its status and an event."""
        status = failed(repository, repository.status, error, now_millis)
        await self._write_status(repository, status, now_millis)

    async def tell_removal(self, repository: RepositoryObject, waits: str, error: str, now_millis: int) -> None:
        """What a removal waits for, or what was refused, in the status and an event."""
        going = ("Reconciling", "HandsOff", "") if error else ("Reconciling", "Removing", f"It waits for {waits}.")
        stalled = ("Stalled", "RemovalRefused", error) if error else WORKING
        status = with_facts(repository, repository.status, [going, stalled], now_millis)
        await self._write_status(repository, status, now_millis)

    async def tell_stays(self, repository: RepositoryObject, step: RemovalStep, now_millis: int) -> None:
        """What is left of the data, in the log and in an event. Where its namespace ends nothing is kept of either, so
        the event is about the operator's own Lease.
        """
        words, about = told(repository, step), {**repository.reference, "namespace": repository.namespace}
        say = self._log.info if step.is_asked else self._log.warning
        say("data stays", repository="/".join(repository.key), told=words, where=step.where)
        if step.namespace_ends:
            about = await lease_reference(self._api, self._settings)
        kind = "Normal" if step.is_asked else "Warning"
        await self._statuses.tell(about, (kind, "DataStays", words[:1024]), now_millis)

    async def tell_orphans(
        self,
        namespace: str,
        runs: Sequence[RunObject],
        backups: Sequence[BackupObject],
        restores: Sequence[RestoreObject],
        now_millis: int,
    ) -> int | None:
        """That these runs, backups and restorations have no repository; the time of runs that ended goes on. When to
        look again, None if nothing waits.
        """
        put = partial(self._statuses.put_asked, namespace, now_millis)
        await self._delete_runs(namespace, expired(runs, now_millis))
        return soonest(
            await put(runs, {each.name: orphaned(each, now_millis) for each in runs if each.status.phase not in FINAL}),
            await put(backups, {each.name: orphaned_backup(each, now_millis) for each in backups}),
            await put(restores, {each.name: orphaned_restore(each, now_millis) for each in restores}),
        )

    async def _write_asked(self, seen: Observation, decision: Decision) -> int | None:
        put = partial(self._statuses.put_asked, seen.repository.namespace, seen.now_millis)
        runs = await put(seen.runs, decision.runs)
        await self._delete_runs(seen.repository.namespace, decision.expired)
        return soonest(runs, await put(seen.backups, decision.backups), await put(seen.restores, decision.restores))

    async def _delete_runs(self, namespace: str, runs: Iterable[RunObject]) -> None:
        for run in runs:
            await self._api.delete("ReclamationRun", namespace, run.name, run.uid)

    async def _write_claims(self, seen: Observation, desired: Desired) -> ApiError | None:
        """Why one was refused, by a quota for instance: told when all else is done, which does not wait for it.
        OperatorError for a claim of somebody else: no pod shall come upon what lies there.
        """
        try:
            differing = await asyncio.to_thread(_differing, seen, desired.claims)
            await self._all(self._apply(seen.repository, claim) for claim in differing)
        except ApiError as error:
            return error
        return None

    async def _write_objects(self, seen: Observation, desired: Desired) -> None:
        repository = seen.repository
        differing = await asyncio.to_thread(_differing, seen, desired.objects)
        for wave in _waves(differing):
            await self._all(self._apply(repository, each) for each in wave)
        for kind, name, uid in await asyncio.to_thread(_obsolete, seen, desired):
            await self._api.delete(kind, repository.namespace, name, uid)
        self._tell_expiry(seen, desired.certificates)

    async def _apply(self, repository: RepositoryObject, document: Object) -> None:
        kind, metadata = document["kind"], document["metadata"]
        namespace, name = metadata.get("namespace"), metadata["name"]
        informer = self._cache.owned.get(kind)
        if informer is None:
            found = await self._cache.find(repository, kind, namespace, name)
        elif (found := informer.objects.get((namespace, name))) is None:  # it may be there without our label
            found = await self._api.get(kind, namespace, name)
        if covers(found, document):
            return
        self._require_ours(found, document)
        found = await self._api.apply(document)
        if informer is None:
            self._cache.found(repository, kind, found)
        else:
            informer.put(found)

    def _require_ours(self, found: Object | None, document: Object) -> None:
        """Whoever may name a repository must not have the operator change what is somebody else's by its name. A claim
        has no owner, so that it outlives the repository: its labels say whose it is.
        """
        if found is None:
            return
        metadata = document["metadata"]
        owners: list[Object] = metadata.get("ownerReferences") or []
        is_theirs = bool(owners) and not (is_owned(found, owners[0]["uid"]) or _is_orphan(found, metadata["labels"]))
        if document["kind"] == CLAIM:
            is_theirs = not has_labels(found, metadata["labels"])
        if is_theirs:
            kind, name = document["kind"], document["metadata"]["name"]
            raise OperatorError(f"{kind} {name} is there already and is not this repository's: rename one of the two")

    def _tell_expiry(self, seen: Observation, signed: tuple[str, ...]) -> None:
        """The first to end: an agent whose certificate has ended is refused by its clients."""
        if signed:
            soonest = min(map(certificates.expiry, signed))
            metrics.CERTIFICATE_EXPIRY.labels(*seen.repository.key).set(soonest.timestamp())

    async def _write_nodes(self, seen: Observation, decision: Decision) -> int | None:
        """When to decide anew, because a node's object is another one by now; None if all were written."""
        # What is given up goes first: a process that ends here leaves a node without an object, which gets one.
        await self._all(self._release(seen, found) for found in decision.released)
        taken, given = await asyncio.to_thread(_changed_nodes, seen, decision)
        # What is taken back is taken back before anything is given.
        passed_over = list[str]()
        await self._all(self._write_node(each, passed_over) for each in taken)
        await self._all(self._write_node(each, passed_over) for each in given)
        for stray in seen.strays:
            await let_go(self._api, stray)
        for found in seen.objects.values():
            if found.release and not found.is_released:
                await self._tell_unconfirmed(seen, found)
            if is_kept(found):
                await self._tell_kept(seen, found)
        return seen.now_millis + int(self._settings.settle_seconds * 1000) if passed_over else None

    async def _write_node(self, document: Object, passed_over: list[str]) -> None:
        """`passed_over` gets its name if it is another one than was decided on, if only because its agent has said
        meanwhile that it lives.
        """
        metadata = document["metadata"]
        try:
            # As a whole: a ticket that somebody else wrote into it would outlive all applying, and permit what it says.
            write = self._api.replace if "uid" in metadata else self._api.apply
            self._cache.node_objects.put(await write(document))
        except ApiError as error:
            if "uid" not in metadata or not is_changed(error):
                raise
            passed_over.append(metadata["name"])

    async def _release(self, seen: Observation, found: NodeObject) -> None:
        """Its agent's pod goes too, unless it serves: it may be waiting for its next try, minutes from now. So do
        claims whose volume is gone: the next ones get what volumes there are.
        """
        repository, node = seen.repository, found.spec.node_name
        await let_go(self._api, {"metadata": found.metadata(repository.namespace)})
        await self._api.delete("ContentRepositoryNode", repository.namespace, found.name, found.uid)
        if not found.is_released:
            return
        agent = seen.agents.get(node)
        if agent is not None and not agent.is_ready and agent.name:
            await self._api.delete("Pod", repository.namespace, agent.name, agent.uid)
        for claim in lost_claims(seen, node):
            await self._api.delete(CLAIM, repository.namespace, claim["metadata"]["name"], claim["metadata"]["uid"])
        about = {**repository.reference, "namespace": repository.namespace}
        live = objects.rounded(found.status.space.live_bytes)
        words = f"What node {node} held ({live} live) was given up: the annotation {RELEASE} of {found.name} said so."
        await self._statuses.tell(about, ("Normal", "Released", words), seen.now_millis)

    async def _tell_unconfirmed(self, seen: Observation, found: NodeObject) -> None:
        about = {**seen.repository.reference, "namespace": seen.repository.namespace}
        words = f"{found.name} is kept: give up what it holds by the value {found.uid}, its uid, of {RELEASE}."
        await self._statuses.tell(about, ("Warning", "ReleaseNotConfirmed", words), seen.now_millis)

    async def _tell_kept(self, seen: Observation, found: NodeObject) -> None:
        """At the object itself, where whoever waits for its deletion looks."""
        about = {"apiVersion": API_VERSION, "kind": "ContentRepositoryNode", "name": found.name, "uid": found.uid}
        words = (
            f"It stays, because content lies on node {found.spec.node_name}: delete the repository, or give up "
            f"what the node holds by the value {found.uid} of {RELEASE}. An agent that serves says anew what it has."
        )
        await self._statuses.tell(
            {**about, "namespace": seen.repository.namespace}, ("Warning", "ContentKept", words), seen.now_millis
        )

    async def _replace_pods(self, seen: Observation, decision: Decision) -> None:
        """Once the controller has seen the template: before that it would make the same pods again."""
        repository = seen.repository
        found = self._cache.owned["DaemonSet"].objects.get((repository.namespace, f"{repository.name}-ullage"))
        if not decision.rollout.replaced or found is None:
            return
        if (found.get("status") or {}).get("observedGeneration") != found["metadata"]["generation"]:
            return
        if template_digest(found["spec"]["template"]) != decision.rollout.template:
            return
        for agent in decision.rollout.replaced:
            await self._api.delete("Pod", repository.namespace, agent.name, agent.uid)

    async def _write_planning(self, seen: Observation, decision: Decision, desired: Desired) -> RepositoryStatus:
        """The status to write: a run that is refused has failed, and holds up nothing else."""
        status = decision.status
        for run in decision.planning.removed:
            await self._api.delete(run.kind, seen.repository.namespace, run.name, run.uid)
        if desired.planning is None or status.planning is None:
            return status
        try:
            await self._api.apply(desired.planning)
        except ApiError as error:
            return msgspec.structs.replace(status, planning=refused(status.planning, str(error), seen.now_millis))
        return status

    async def _write_status(
        self, repository: RepositoryObject, status: RepositoryStatus, now_millis: int
    ) -> int | None:
        """If it says something new, with the events that this makes. Sums alone wait for a while; until when, None if
        nothing waits.
        """
        before, key = repository.status, repository.key
        metrics.tell_conditions(*key, status.conditions)
        if status == before:
            return None
        if msgspec.structs.replace(status, **{name: getattr(before, name) for name in SUMS}) == before:
            due = self._sums_written.get(key, 0) + self._settings.figures_seconds * 1000
            if now_millis < due:
                return due
        self._sums_written[key] = now_millis
        about = {**repository.reference, "namespace": repository.namespace}
        await self._statuses.put(about, status, is_unreadable=bool(repository.trouble))
        for event in news("ContentRepository", before.conditions, status.conditions):
            await self._statuses.tell(about, event, now_millis)
        return None

    async def _all(self, tasks: Iterable[Awaitable[None]]) -> None:
        """A few side by side; the first failure is raised when all have ended. The next is begun when one has ended:
        thousands that are begun at once hold up the watches until the last of them has sent its request.
        """
        waiting, failures = iter(tasks), list[Exception]()

        async def work() -> None:
            for task in waiting:
                try:
                    await task
                except Exception as error:  # noqa: BLE001 - raised below
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(self._settings.writes_at_once)))
        if failures:
            raise failures[0]


def _is_orphan(found: Object, labels: Mapping[str, str]) -> bool:
    """Whether we made it, and somebody took its owner away: it gets it back."""
    metadata = found["metadata"]
    is_owned_by_others = any(owner.get("controller") for owner in metadata.get("ownerReferences") or ())
    return not is_owned_by_others and has_labels(found, labels) and DESIRED in (metadata.get("annotations") or {})


def _waves(documents: Iterable[Object]) -> list[list[Object]]:
    """Each names others only of those before it. A role must be there before it is given to anybody, and what pods need
    before they are: a DaemonSet that was made beside its ServiceAccount had pods refused, which its user was told of.
    """
    waves: list[list[Object]] = [[], [], []]
    for each in documents:
        waves[2 if each["kind"] in POD_MAKERS else int(each["kind"] == "RoleBinding")].append(each)
    return waves


def _differing(seen: Observation, documents: Iterable[Object]) -> list[Object]:
    """Those that are not as they shall be, as far as they are followed."""
    found: list[Object] = []
    for each in documents:
        metadata = each["metadata"]
        known = seen.owned.get(each["kind"], {}).get((metadata.get("namespace", ""), metadata["name"]))
        if not covers(known, each):
            found.append(each)
    return found


def _obsolete(seen: Observation, desired: Desired) -> list[tuple[str, str, str]]:
    """What was desired once, by kind, name and uid; never secrets, and never claims.

    Labels do not say whose something is: the cluster copies those of a Service to the EndpointSlice that it keeps for
    it, and without that slice nobody gets through to an agent. The owner says it.
    """
    repository = seen.repository
    kept = {(document["kind"], document["metadata"]["name"]) for document in desired.objects}
    found = [
        (kind, name, each["metadata"]["uid"])
        for kind in desired.obsolescent
        for (namespace, name), each in seen.owned[kind].items()
        if namespace == repository.namespace and is_owned(each, repository.uid)
    ]
    found += [("CertificateRequest", made.name, made.uid) for made in seen.signing_requests]
    return [each for each in found if each[:2] not in kept]


def _is_as(found: NodeObject | None, spec: NodeSpec, labels: Mapping[str, str]) -> bool:
    """Whether the object of a node needs no writing."""
    if found is None or found.spec != spec or not labels.items() <= found.labels.items():
        return False
    return CONTENT in found.finalizers or found.is_going


def _changed_nodes(seen: Observation, decision: Decision) -> tuple[list[Object], list[Object]]:
    """The node objects that shall be written: those that have no ticket then, and those that have one."""
    released = {each.name for each in decision.released}
    # What others hold of those is in the way of the next.
    staying = {each.spec.node_name for each in decision.released if set(each.finalizers) - {CONTENT}}
    kept = {node: each for node, each in seen.objects.items() if each.name not in released}
    changed = [
        spec
        for node, spec in decision.nodes.items()
        if node not in staying and not _is_as(kept.get(node), spec, seen.repository.labels)
    ]

    def written(*, with_ticket: bool) -> list[Object]:
        specs = (spec for spec in changed if (spec.ticket is not None) == with_ticket)
        return [node_object(seen.repository, spec, kept.get(spec.node_name)) for spec in specs]

    return written(with_ticket=False), written(with_ticket=True)
