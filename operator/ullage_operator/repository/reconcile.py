"""One reconciliation: observe, decide, build, apply. The same call does everything, at any time, again."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from ullage_operator import metrics
from ullage_operator.backup.decide import health
from ullage_operator.cluster.api import ApiClient
from ullage_operator.content import let_go
from ullage_operator.errors import OperatorError
from ullage_operator.node.runs import next_millis
from ullage_operator.objects import Object, RepositoryObject, is_held, soonest
from ullage_operator.observation import BackupObject, Observation, RestoreObject, RunObject
from ullage_operator.repository.apply import Applier
from ullage_operator.repository.build import Desired, addresses, desired
from ullage_operator.repository.cache import InformerCache
from ullage_operator.repository.decide import Decision, decide
from ullage_operator.repository.observe import Answers, Followed, Key, Observer, asked, naming
from ullage_operator.repository.removal import RemovalStep
from ullage_operator.repository.trust import trusted
from ullage_operator.settings import OperatorSettings

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 60.0


def now_millis() -> int:
    """Of this machine's clock."""
    return time.time_ns() // 1_000_000


class Reconciler:
    """Keeps every ContentRepository as it is asked for."""

    def __init__(self, api: ApiClient, settings: OperatorSettings, clock: Callable[[], int] = now_millis) -> None:
        self._settings = settings
        self._clock = clock
        self._api = api
        self.queue = WorkQueue(settings.workers)
        self.cache = InformerCache(api, settings, self._changed)
        self._observer = Observer()
        self._applier = Applier(api, self.cache, settings)
        self._workers: list[asyncio.Task[None]] = []
        self._deciding = asyncio.Lock()
        self._log = structlog.get_logger("reconcile")

    async def start(self) -> None:
        """Follow the cluster, and begin to work on what is said to be due."""
        await self.cache.start()
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.workers)]

    async def stop(self) -> None:
        """End; what is half done is seen by the next."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self.cache.stop()

    @property
    def problem(self) -> str:
        """Why this process should be started anew; empty if it should not."""
        workers, stores = sum(worker.done() for worker in self._workers), self.cache.ended
        return f"{workers} workers and {stores} watches ended" if workers or stores else ""

    def repository_changed(self, found: Object) -> None:
        """One that is there, as it is now; another may lie in its way, or not any more."""
        self.cache.repositories.put(found)
        self._changed(None, False)

    def run_changed(self, found: Object) -> None:
        """A ReclamationRun that is there, as it is now."""
        self.cache.runs.put(found)
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def backup_changed(self, found: Object) -> None:
        """A ContentBackup that is there, as it is now."""
        self.cache.backups.put(found)
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def restore_changed(self, found: Object) -> None:
        """A ContentRestore that is there, as it is now."""
        self.cache.restores.put(found)
        self._changed((found["metadata"]["namespace"], found["spec"]["repository"]), False)

    def look_again(self, key: Key) -> None:
        """Though nothing was heard of it, and at all of it anew."""
        self.cache.forget_found(key)
        self.queue.add(key)

    def _changed(self, key: Key | None, is_quiet: bool) -> None:
        delay = self._settings.figures_seconds if is_quiet else self._settings.settle_seconds
        for each in self.cache.repositories.objects if key is None else [key]:
            self.queue.add(each, delay)

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            began = time.monotonic()
            try:
                next_seconds = await self.reconcile(key)
            except OperatorError as error:
                self._log.warning("not reconciled", repository="/".join(key), problem=str(error))
                self._failed(key, "error")
            except Exception as error:  # noqa: BLE001 - one object that is like no other must not stop all
                self._log.error("not reconciled", repository="/".join(key), exc_info=error)
                self._failed(key, "bug")
            else:
                metrics.RECONCILES.labels("done").inc()
                self.queue.done(key)
                if next_seconds is not None:
                    self.queue.add(key, next_seconds)
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - began)

    def _failed(self, key: Key, outcome: str) -> None:
        metrics.RECONCILES.labels(outcome).inc()
        self.cache.forget_found(key)  # it may have been this that was wrong
        self.queue.failed(key)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one repository where it should be; in how many seconds to look again, None if nothing is due."""
        found = self.cache.repositories.objects.get(key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            self.cache.reserved.pop(key, None)
            self.cache.forget_found(key)
            self._observer.forget(key)
            metrics.forget(*key)
            return None if found is not None else await self._orphans(key)
        repository = RepositoryObject.of(found)
        try:
            self.cache.require_followed()
            answers = await self.cache.ask(repository, self._clock)
            # From the observation to what it reserves nobody else decides: two repositories never give tickets for one
            # volume at once. In a thread: among thousands of nodes a decision takes longer than a watch should wait.
            async with self._deciding:
                followed, now = self.cache.followed(), self._clock()
                if key not in followed.repositories:
                    return None
                seen, decision, wanted = await asyncio.to_thread(self._look, key, followed, answers, now)
                self._reserve(seen, decision)
        except Exception as error:
            await self._applier.tell_failure(repository, error, self._clock())
            raise
        waits = await self._applier.apply(seen, decision, wanted)
        await asyncio.to_thread(_measure, seen, decision)
        return self._seconds_until(decision.next_millis, wanted.next_millis, waits)

    def _look(
        self, key: Key, followed: Followed, answers: Answers, now_millis: int
    ) -> tuple[Observation, Decision, Desired]:
        observed = self._observer.observe(key, followed, answers, now_millis)
        return decided(observed, followed.service_of(observed.repository), self._settings)

    def _seconds_until(self, *times: int | None) -> float | None:
        first = soonest(*times)
        return None if first is None else max(0.1, (first - self._clock()) / 1000)

    async def tell_removal(self, repository: RepositoryObject, waits: str = "", error: str = "") -> None:
        """What a removal waits for, or why a step of it was refused."""
        await self._applier.tell_removal(repository, waits, error, self._clock())

    async def tell_stays(self, repository: RepositoryObject, step: RemovalStep) -> None:
        """What a repository that is gone has left, and where."""
        await self._applier.tell_stays(repository, step, self._clock())

    async def _orphans(self, key: Key) -> float | None:
        held = [each for _, each in naming(key, self.cache.node_objects.objects) if is_held(each)]
        # Asked, since of repositories that cannot be listed none is known.
        if held and await self._api.get("ContentRepository", *key) is None:
            for each in held:
                await let_go(self._api, each)
        runs, now = list(asked(RunObject, key, self.cache.runs.objects)), self._clock()
        backups = list(asked(BackupObject, key, self.cache.backups.objects))
        restores = list(asked(RestoreObject, key, self.cache.restores.objects))
        again = await self._applier.tell_orphans(key[0], runs, backups, restores, now)
        return self._seconds_until(next_millis(runs, now), again)

    def _reserve(self, seen: Observation, decision: Decision) -> None:
        self.cache.reserved[seen.repository.key] = {
            node: frozenset(seen.objects[node].status.volumes)
            for node, spec in decision.nodes.items()
            if spec.ticket is not None and node in seen.objects
        }


def decided(
    seen: Observation, service: Object | None, settings: OperatorSettings
) -> tuple[Observation, Decision, Desired]:
    """What shall be, as the observation with its certificates, the decision, and what is built of it: where hands are
    kept off, the addresses behind its Service as that is. Pure.
    """
    seen = trusted(seen, settings.cluster_domain)
    decision = decide(seen, settings)
    if decision.keeps_hands_off:
        return seen, decision, addresses(seen, service)
    return seen, decision, desired(seen, decision, settings)


class WorkQueue:
    """What is due when: each key once, never two workers on one key, the earliest first. Times are the event loop's.

    At most half of the workers are busy with keys that have failed: those whose every write waits for somebody, as for
    a webhook that does not answer, would hold up all others.
    """

    def __init__(self, workers: int) -> None:
        self._failing_max = max(1, workers // 2)
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """At the latest then; an earlier time stands. From the event loop's thread."""
        due = asyncio.get_running_loop().time() + delay_seconds
        self._due[key] = min(due, self._due.get(key, due))
        metrics.QUEUE.set(len(self._due))
        self._changed.set()

    async def take(self) -> Key:
        """The next key that is due; `done` gives it back."""
        loop = asyncio.get_running_loop()
        while True:
            # Between here and the wait nothing is awaited: no change falls in between, and each wakes all who wait.
            self._changed.clear()
            free = {key: due for key, due in self._due.items() if key not in self._busy}
            if sum(key in self._failures for key in self._busy) >= self._failing_max:
                free = {key: due for key, due in free.items() if key not in self._failures}
            key = min(free, key=free.__getitem__, default=None)
            if key is not None and free[key] <= loop.time():
                del self._due[key]
                metrics.QUEUE.set(len(self._due))
                self._busy.add(key)
                return key
            with contextlib.suppress(TimeoutError):  # something became due
                async with asyncio.timeout_at(None if key is None else free[key]):
                    await self._changed.wait()

    def done(self, key: Key) -> None:
        """It went well."""
        self._busy.discard(key)
        self._failures.pop(key, None)
        self._changed.set()  # it may be due again already

    def failed(self, key: Key) -> None:
        """It did not: again, later and later."""
        self._busy.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self.add(key, min(BACKOFF_SECONDS * 2.0 ** (count - 1), BACKOFF_SECONDS_MAX))


def _measure(seen: Observation, decision: Decision) -> None:
    where = seen.repository.key
    status = decision.status
    metrics.WINDOWS_OPEN.labels(*where).set(status.next_window == "Open")
    metrics.TICKETS.labels(*where).set(status.nodes_reclaiming)
    metrics.DEFERRALS.labels(*where).set(status.nodes_deferred)
    metrics.WANTING.labels(*where).set(sum(bool(found.status.wanted) for found in seen.objects.values()))
    metrics.OVERDUE.labels(*where).set(decision.nodes_overdue)
    metrics.tell_backups(*where, health(seen.backups, decision.backups, seen.now_millis))
    for state, count in (("wanted", status.nodes), ("ready", status.nodes_ready), ("lost", status.nodes_lost)):
        metrics.NODES.labels(*where, state).set(count)
