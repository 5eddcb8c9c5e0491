"""One reconciliation: observe, decide, build, apply what differs. The same call does everything, at any time, again.

A process that ends anywhere in it leaves nothing that the next one does not see and mend: what was decided is in the
objects, not in memory. Reports of runs are kept before the tickets that they are about are taken back.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from ullage_agent.contract import TlsMode
from ullage_agent.fleet import NodeSpec, RepositoryStatus, plain
from ullage_operator import build, certificates, metrics, planning_jobs, spark_jobs
from ullage_operator.api import Api, Object
from ullage_operator.decide import Decision, decide
from ullage_operator.desired import covers, is_owned
from ullage_operator.errors import ApiError, OperatorError
from ullage_operator.events import Teller
from ullage_operator.observe import NodeObject, Observation, Wish
from ullage_operator.planning import is_due, refused
from ullage_operator.queue import Queue
from ullage_operator.settings import Settings
from ullage_operator.surroundings import Key, Surroundings
from ullage_operator.tickets import overdue

FIGURES = ("live", "dead", "free", "reclaimed")


OBSOLESCENT = (
    *("DaemonSet", "StatefulSet", "EndpointSlice", "PodDisruptionBudget"),
    *("RoleBinding", "Role", "ServiceAccount"),
)
"""Kinds of which no object is kept that is no longer wished for."""


def now_millis() -> int:
    """Of this machine's clock."""
    return time.time_ns() // 1_000_000


class Reconciler:
    """Keeps every ContentRepository as it is wished for."""

    def __init__(self, api: Api, settings: Settings, clock: Callable[[], int] = now_millis) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self.queue = Queue()
        self.seen = Surroundings(api, settings.namespaces, self._changed)
        self._teller = Teller(api, settings.event_seconds)
        self._figures_written: dict[Key, int] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._log = structlog.get_logger("reconcile")

    async def start(self) -> None:
        """Follow the cluster, and begin to work."""
        await self.seen.start()
        for key in self.seen.repositories():
            self.queue.add(key)
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.workers)]

    async def stop(self) -> None:
        """End; what is half done is seen by the next."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self.seen.stop()

    @property
    def problem(self) -> str:
        """Why this process should be started anew; empty if it should not."""
        dead = [worker for worker in self._workers if worker.done()]
        return f"{len(dead)} workers ended" if dead else ""

    def _changed(self, key: Key | None, is_quiet: bool) -> None:
        delay = self._settings.figures_seconds if is_quiet else self._settings.settle_seconds
        for each in self.seen.repositories() if key is None else [key]:
            self.queue.add(each, delay)

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            began = time.monotonic()
            try:
                next_seconds = await self.reconcile(key)
            except OperatorError as error:
                metrics.RECONCILES.labels("error").inc()
                self._log.warning("not reconciled", repository="/".join(key), problem=str(error))
                self.queue.failed(key)
            except Exception as error:  # noqa: BLE001 - one object that is like no other must not stop all
                metrics.RECONCILES.labels("bug").inc()
                self._log.error("not reconciled", repository="/".join(key), exc_info=error)
                self.queue.failed(key)
            else:
                metrics.RECONCILES.labels("done").inc()
                self.queue.done(key)
                if next_seconds is not None:
                    self.queue.add(key, next_seconds)
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - began)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one repository where it should be; in how many seconds to look again, None if it is gone."""
        found = self.seen.wishes.objects.get(key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            self.seen.reserved.pop(key, None)
            metrics.forget(*key)
            return None
        wish = Wish.of(found)
        extra: list[Object] = []
        problem = ""
        if wish.document is not None:
            extra, problem = await spark_jobs.others(self._api, wish.document.spec)
        wants_certificate = wish.document is not None and wish.document.spec.tls.mode == TlsMode.CERT_MANAGER
        has_cert_manager = wants_certificate and await self._api.serves("Certificate")
        planning = await planning_jobs.listed(self._api, wish) if is_due(wish, self._clock()) else None
        # From here to the reservation nothing is awaited: two repositories never give tickets for one volume at once.
        seen = self.seen.observe(
            key, self._clock(), extra, problem, has_cert_manager=has_cert_manager, planning=planning
        )
        if seen is None:
            return None
        decision = decide(seen, self._settings)
        self._reserve(seen, decision)
        if not decision.keeps_hands_off:
            await self._write_runs(seen, decision)
            rotation_millis = await self._write_objects(seen, decision)
            await self._write_nodes(seen, decision)
            await self._replace_pods(wish, decision)
            status = await self._write_planning(seen, decision)
        else:
            rotation_millis, status = None, decision.status
        late = await self._write_status(seen, status)
        about = {
            "apiVersion": "ullage.dev/v1alpha1",
            "kind": "ContentRepository",
            "namespace": seen.wish.namespace,
            "name": seen.wish.name,
            "uid": seen.wish.uid,
        }
        for news in decision.news:
            await self._teller.tell(about, seen.now_millis, news)
        _measure(seen, decision)
        times = [millis for millis in (decision.next_millis, rotation_millis, late) if millis is not None]
        soonest = (min(times) - self._clock()) / 1000 if times else self._settings.resync_seconds
        return max(0.1, min(soonest, self._settings.resync_seconds))

    def _reserve(self, seen: Observation, decision: Decision) -> None:
        self.seen.reserved[seen.wish.key] = {
            node: frozenset(seen.objects[node].status.volumes)
            for node, spec in decision.nodes.items()
            if spec.ticket is not None and node in seen.objects
        }

    async def _write_runs(self, seen: Observation, decision: Decision) -> None:
        for name, status in decision.runs.items():
            metrics.WRITES.labels("ReclamationRun").inc()
            document = _without_none(plain(status))
            self.seen.runs.put(await self._api.replace_status("ReclamationRun", seen.wish.namespace, name, document))

    async def _write_nodes(self, seen: Observation, decision: Decision) -> None:
        wish = seen.wish

        async def write(spec: NodeSpec) -> None:
            metrics.WRITES.labels("ContentRepositoryNode").inc()
            self.seen.objects.put(await self._api.apply(build.node_object(wish, spec)))

        async def release(found: NodeObject) -> None:
            metrics.WRITES.labels("ContentRepositoryNode").inc()
            await self._api.delete("ContentRepositoryNode", wish.namespace, found.name, found.uid)

        changed = [
            spec for node, spec in decision.nodes.items() if node not in seen.objects or seen.objects[node].spec != spec
        ]
        # What is taken back is taken back before anything is given.
        await _all(write(spec) for spec in changed if spec.ticket is None)
        await _all(write(spec) for spec in changed if spec.ticket is not None)
        await _all(release(found) for found in decision.released)

    async def _replace_pods(self, wish: Wish, decision: Decision) -> None:
        """Once the controller has seen the template: before that it would make the same pods again."""
        if not decision.rollout.replaced:
            return
        name = (wish.namespace, f"{wish.name}-ullage")
        found = self.seen.owned["DaemonSet"].objects.get(name)
        if found is None or (found.get("status") or {}).get("observedGeneration") != found["metadata"]["generation"]:
            return
        if build.template_digest(found["spec"]["template"]) != decision.rollout.template:
            return
        for agent in decision.rollout.replaced:
            metrics.WRITES.labels("Pod").inc()
            await self._api.delete("Pod", wish.namespace, agent.name, agent.uid)

    async def _write_planning(self, seen: Observation, decision: Decision) -> RepositoryStatus:
        """The status to write: a run that is refused has failed, and holds up nothing else."""
        wish, due, status = seen.wish, decision.planning, decision.status
        for run in due.removed:
            metrics.WRITES.labels(run.kind).inc()
            await self._api.delete(run.kind, wish.namespace, run.name, run.uid)
        if due.begin is None or seen.planning is None or status.planning is None:
            return status
        is_published = (wish.namespace, build.authority_name(wish)) in self.seen.owned["ConfigMap"].objects
        made = planning_jobs.run_object(
            wish,
            self._settings.spark_image,
            due.begin,
            is_application=seen.planning.has_spark_applications,
            has_authority=planning_jobs.has_authority(wish, is_published),
        )
        metrics.WRITES.labels(made["kind"]).inc()
        try:
            await self._api.apply(made)
        except ApiError as error:
            told = refused(status.planning, str(error), seen.now_millis)
            return msgspec.structs.replace(status, planning=told)
        return status

    async def _write_objects(self, seen: Observation, decision: Decision) -> int | None:
        """Everything that belongs to the repository; when a certificate is due."""
        wish = seen.wish
        assert wish.document is not None
        image = self._settings.agent_image
        desired = build.shared_objects(wish, image, is_gated=decision.rollout.is_gated)
        rotation: int | None = None
        if wish.document.spec.tls.mode == TlsMode.OPERATOR:
            made, rotation = self._tls(wish)
            desired += made
        elif wish.document.spec.tls.mode == TlsMode.CERT_MANAGER:
            await self._ask_for_certificate(wish)
        if wish.document.spec.tls.mode in (TlsMode.CERT_MANAGER, TlsMode.SECRET):
            desired += await self._foreign_authority(wish)
        desired += build.endpoint_slices(wish, seen.agents)
        if wish.document.spec.planning.schedule:
            desired += planning_jobs.account_objects(wish)
        if wish.document.spec.storage.local_persistent_volume is not None:
            desired += self._stateful_sets(seen, decision, image)
        if (delegation := build.delegation(wish)) is not None:
            found = await self._api.get("ClusterRoleBinding", None, delegation["metadata"]["name"])
            if not covers(found, delegation):
                await self._api.apply(delegation)
        # A role must be there before it is given to anybody.
        await _all(self._apply(document) for document in desired if document["kind"] != "RoleBinding")
        await _all(self._apply(document) for document in desired if document["kind"] == "RoleBinding")
        await self._remove_obsolete(wish, desired)
        return rotation

    async def _ask_for_certificate(self, wish: Wish) -> None:
        """Certificates are not followed: their kind may be missing, and a watch of it would never begin."""
        document = build.certificate(wish)
        found = await self._api.get("Certificate", wish.namespace, document["metadata"]["name"])
        if not covers(found, document):
            metrics.WRITES.labels("Certificate").inc()
            await self._api.apply(document)

    async def _foreign_authority(self, wish: Wish) -> list[Object]:
        """Whom clients should trust, where somebody else signs: what their secret says, once it is there."""
        secret = await self._api.get("Secret", wish.namespace, build.tls_name(wish))
        authority = _decoded(secret).get("ca.crt", "")
        self._tell_expiry(wish, _decoded(secret).get("tls.crt", ""))
        return (
            [build.owned(wish, "ConfigMap", "v1", build.authority_name(wish), data={"ca.crt": authority})]
            if authority
            else []
        )

    def _tell_expiry(self, wish: Wish, certificate: str) -> None:
        """Whoever made it: an agent whose certificate has ended is refused by its clients."""
        if not certificate:
            return
        try:
            expiry = certificates.expiry(certificate)
        except ValueError as error:
            self._log.warning("the agents' certificate cannot be read", repository=wish.name, problem=str(error))
            return
        metrics.CERTIFICATE_EXPIRY.labels(wish.namespace, wish.name).set(expiry.timestamp())

    async def _apply(self, document: Object) -> None:
        store = self.seen.owned.get(document["kind"])
        key = document["metadata"]["namespace"], document["metadata"]["name"]
        if store is not None and covers(store.objects.get(key), document):
            return
        metrics.WRITES.labels(document["kind"]).inc()
        found = await self._api.apply(document)
        if store is not None:
            store.put(found)

    def _stateful_sets(self, seen: Observation, decision: Decision, image: str) -> list[Object]:
        """New ones at once; changed ones as many at a time as may be away, those whose pod is not ready first."""
        store = self.seen.owned["StatefulSet"].objects
        settled: list[tuple[str, Object]] = []
        changed: list[tuple[str, Object]] = []
        for node in decision.nodes:
            made = build.stateful_set(seen.wish, image, node)
            found = store.get((seen.wish.namespace, made["metadata"]["name"]))
            (settled if found is None or covers(found, made) else changed).append((node, made))
        away = {node for node in decision.nodes if seen.is_away(node)}
        if not decision.rollout.may_go:
            return [*(made for _, made in settled), *(_as_found(store, made) for _, made in changed)]
        room = build.unavailable_max(seen.wish, len(decision.nodes)) - len(away)
        unready = [made for node, made in changed if node in away]
        ready = [made for node, made in changed if node not in away]
        kept = [_as_found(store, made) for made in ready[max(0, room) :]]
        return [*(made for _, made in settled), *unready, *ready[: max(0, room)], *kept]

    def _tls(self, wish: Wish) -> tuple[list[Object], int]:
        """The secrets and the ConfigMap of the own authority, rotated if it is time."""
        secrets = self.seen.owned["Secret"].objects
        names = f"{wish.name}-ullage-authority", build.tls_name(wish)
        kept = certificates.kept_of(*(_decoded(secrets.get((wish.namespace, name))) for name in names))
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        kept = certificates.rotated(kept, now, f"{wish.namespace}/{wish.name}", build.certificate_names(wish))
        self._tell_expiry(wish, kept.leaf)
        objects = [
            build.owned(wish, "Secret", "v1", name, type=kind, data=_encoded(data))
            for name, kind, data in zip(
                names, ("Opaque", "kubernetes.io/tls"), certificates.secrets_of(kept), strict=True
            )
        ]
        objects.append(build.owned(wish, "ConfigMap", "v1", build.authority_name(wish), data={"ca.crt": kept.bundle}))
        return objects, int(certificates.next_rotation(kept).timestamp() * 1000)

    async def _remove_obsolete(self, wish: Wish, desired: list[Object]) -> None:
        """What was wished for once; never secrets, and never claims.

        Labels do not say whose something is: the cluster copies those of a Service to the EndpointSlice that it keeps
        for it, and without that slice nobody gets through to an agent. The owner says it.
        """
        kept = {(document["kind"], document["metadata"]["name"]) for document in desired}
        for kind in OBSOLESCENT:
            for (namespace, name), found in list(self.seen.owned[kind].objects.items()):
                if namespace == wish.namespace and is_owned(found, wish.uid) and (kind, name) not in kept:
                    metrics.WRITES.labels(kind).inc()
                    await self._api.delete(kind, namespace, name, found["metadata"]["uid"])

    async def _write_status(self, seen: Observation, status: RepositoryStatus) -> int | None:
        """If it says something new. Sums alone wait for a while; until when, None if nothing waits."""
        before = seen.wish.status
        if status == before:
            return None
        figures = {name: getattr(before, name) for name in FIGURES}
        if msgspec.structs.replace(status, **figures) == before:
            due = self._figures_written.get(seen.wish.key, 0) + self._settings.figures_seconds * 1000
            if seen.now_millis < due:
                return due
        self._figures_written[seen.wish.key] = seen.now_millis
        metrics.WRITES.labels("ContentRepository").inc()
        document = _without_none(plain(status))
        self.seen.wishes.put(
            await self._api.replace_status("ContentRepository", seen.wish.namespace, seen.wish.name, document)
        )
        return None


async def _all(tasks: Iterable[Awaitable[None]]) -> None:
    """Side by side; the first failure is raised when all have ended."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _as_found(store: object, made: Object) -> Object:
    """A set whose turn has not come: named, so that it is kept; as it is, so that nothing is written."""
    assert isinstance(store, dict)
    found: Object = store[made["metadata"]["namespace"], made["metadata"]["name"]]
    return {**found, "apiVersion": made["apiVersion"], "kind": made["kind"]}  # lists leave them out of their items


def _decoded(secret: Object | None) -> dict[str, str]:
    data = (secret or {}).get("data") or {}
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def _encoded(data: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def _without_none(value: Any) -> Any:
    """Without what is not there; an object that lost its last field in an apply would become null, which is none."""
    if isinstance(value, dict):
        kept = {key: _without_none(below) for key, below in value.items() if below is not None}
        return {key: below for key, below in kept.items() if below != {}}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value]
    return value


def _measure(seen: Observation, decision: Decision) -> None:
    where = seen.wish.key
    status = decision.status
    metrics.WINDOWS_OPEN.labels(*where).set(status.next_window == "Open")
    metrics.TICKETS.labels(*where).set(status.nodes_reclaiming)
    metrics.DEFERRALS.labels(*where).set(status.nodes_deferred)
    metrics.WANTING.labels(*where).set(sum(bool(found.status.wanted) for found in seen.objects.values()))
    if seen.wish.document is not None:
        deferrals = (spec.deferral for spec in decision.nodes.values())
        metrics.OVERDUE.labels(*where).set(overdue(deferrals, seen.wish.document.spec, seen.now_millis))
    for state, count in (
        ("wanted", status.nodes),
        ("ready", status.nodes_ready),
        ("lost", status.nodes_lost),
    ):
        metrics.NODES.labels(*where, state).set(count)
