"""Carry out a plan: intents, the change itself, and what was done, each durable before the next.

    plan | intents in one frame, synced | rename, truncate, unlink; sync | results in one frame, synced
           ^ from here on the bytes are gone for readers, and a restart finishes what a crash cut short

Each step is derived again under the ledger's lock: another generation, a new pin or a shorter dead tail than planned
makes it smaller or skips it. Work is done in slices, so that no commit waits behind a mass deletion.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.content.reserve import Reserve
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import File, Files, is_disk_full
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import Action, Operation, ResourceClaim, ResourceClaimGone
from ullage_agent.engine.reclaim.plan import Plan, Step

SLICE_STEPS = 200
"""Steps between two transactions: some milliseconds of file operations, and a bound on what a crash repeats."""

Commit = Callable[[Sequence[Operation]], None]


@dataclass(slots=True)
class Report:
    """What an execution did. `skipped` steps were overtaken by events; a later plan sees them anew.

    `problems` names files that were not there to be cut: their content was lost before, and `check` reports it.
    """

    done: dict[Action, int] = field(default_factory=dict)
    freed_bytes: int = 0
    skipped: int = 0
    is_stopped: bool = False
    problems: list[str] = field(default_factory=list)

    def add(self, action: Action, freed_bytes: int) -> None:
        self.done[action] = self.done.get(action, 0) + 1
        self.freed_bytes += freed_bytes

    def merge(self, other: "Report") -> None:
        """Add what another execution did."""
        for action, count in other.done.items():
            self.done[action] = self.done.get(action, 0) + count
        self.freed_bytes += other.freed_bytes
        self.skipped += other.skipped
        self.is_stopped |= other.is_stopped
        self.problems += other.problems


@dataclass(slots=True)
class _Result:
    """One change that has happened but for the sync of `directories`: what to commit, and what to report then."""

    intent: ResourceClaim
    operation: Operation
    freed_bytes: int
    directories: tuple[str, ...] = ()


class Executor:
    """Executes plans on one repository; one execution at a time (the repository sees to that)."""

    def __init__(self, files: Files, ledger: Ledger, store: ContentRepository, commit: Commit, clock: Clock) -> None:
        self._files = files
        self._ledger = ledger
        self._store = store
        self._commit = commit
        self._clock = clock

    def execute(
        self,
        plan: Plan,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Run a plan once. Stops between slices when asked; an error leaves intents that the next run finishes."""
        report = Report()
        for first in range(0, len(plan.steps), SLICE_STEPS):
            if should_stop():
                report.is_stopped = True
                break
            steps = plan.steps[first : first + SLICE_STEPS]
            intents = self._intend(steps)
            report.skipped += len(steps) - len(intents)
            if intents:
                self._commit(intents)
                self.finish(intents, report)
            if on_progress is not None:
                on_progress(first + len(steps), report.freed_bytes)
        return report

    def finish(self, intents: Iterable[ResourceClaim], report: Report) -> None:
        """Do what durable intents promise, and commit that it is done. Safe to repeat after any crash.

        An intent that fails does not keep the others from being finished; the first failure is raised at the end. What
        is not committed as done is charged to its container until it is: by the next run, or after the next start.
        """
        results: list[_Result] = []
        failures: list[OSError] = []
        for intent in intents:
            try:
                results.append(self._change(intent, report))
            except OSError as error:
                failures.append(error)
        results = self._sync_directories(results, failures)
        if results:
            self._commit([result.operation for result in results])
        for result in results:
            self._store.container_of(result.intent).add_bytes(-result.freed_bytes)
            report.add(Action(result.intent.intent), result.freed_bytes)
        if failures:
            raise failures[0]

    def pending(self) -> list[ResourceClaim]:
        """Durable intents that an earlier failure left unfinished, but for those where only a restart can tell."""
        return [
            entry.claim
            for entry in self._ledger.entries()
            if entry.has_intent and self._store.container_of(entry.claim).failure is None
        ]

    def _change(self, intent: ResourceClaim, report: Report) -> _Result:
        if intent.intent == Action.TRUNCATE:
            return self._truncate(intent, report)
        if intent.intent == Action.ARCHIVE:
            return self._archive(intent)
        return self._delete(intent)

    def _sync_directories(self, results: Sequence[_Result], failures: list[OSError]) -> list[_Result]:
        """The results whose names are durable."""
        failed: set[str] = set()
        for directory in sorted({directory for result in results for directory in result.directories}):
            try:
                self._files.sync_directory(directory)
            except OSError as error:
                failed.add(directory)
                failures.append(error)
        for result in results:
            if not failed.isdisjoint(result.directories):
                # As with content: after a failed sync only a restart can tell what the disk holds.
                self._store.container_of(result.intent).failure = failures[-1]
        return [result for result in results if failed.isdisjoint(result.directories)]

    def _intend(self, steps: Sequence[Step]) -> list[ResourceClaim]:
        """The steps that still hold, as intents; at most what the plan named."""
        intents: list[ResourceClaim] = []
        with self._ledger.lock:
            for step in steps:
                entry = self._ledger.entry(step.resource)
                if entry is None or entry.claim.generation != step.generation:
                    continue
                if not entry.claim.sealed or entry.has_intent:
                    continue
                length = entry.claim.length
                if step.action == Action.TRUNCATE:
                    length = max(step.length, entry.end_in_use())
                    if length >= entry.claim.length or entry.is_free:
                        continue
                elif not entry.is_free:
                    continue
                intents.append(
                    msgspec.structs.replace(
                        entry.claim,
                        intent=step.action,
                        intent_length=length,
                        last_death_millis=entry.last_death_millis,
                    )
                )
        return intents

    def _truncate(self, intent: ResourceClaim, report: Report) -> _Result:
        container = self._store.container_of(intent)
        path = container.current_path(intent)
        try:
            file = self._files.open(path, writable=True)
        except FileNotFoundError:
            # Its live content was lost before, which reads and `check` report. An intent kept for it would be tried
            # for ever, and would stop the next start.
            report.problems.append(f"resource claim {intent.index}: {path} is missing")
            return _Result(intent, _done(intent), 0)
        try:
            if file.size().length > intent.intent_length:
                file.truncate(intent.intent_length)
            # Reported as freed means freed for good: without this a crash could bring the tail back.
            self._sync(file, container)
        finally:
            file.close()
        return _Result(intent, _done(intent, length=intent.intent_length), intent.length - intent.intent_length)

    def _sync(self, file: File, container: Container) -> None:
        try:
            file.sync()
        except OSError as error:
            container.failure = error
            raise

    def _archive(self, intent: ResourceClaim) -> _Result:
        container = self._store.container_of(intent)
        source, target = container.live_path(intent), container.archive_path(intent)
        self._spending_reserve(container, lambda: container.ensure_directory(os.path.dirname(target)))
        if self._files.exists(source):
            self._spending_reserve(container, lambda: self._files.rename(source, target))
        elif not self._files.exists(target):
            return _Result(intent, ResourceClaimGone(intent.index), intent.length)
        directories = (os.path.dirname(source), os.path.dirname(target))
        return _Result(intent, _done(intent, archived_millis=self._clock.now_millis()), 0, directories)

    def _spending_reserve(self, container: Container, change: Callable[[], None]) -> None:
        """A new directory or name may need a block, and a full disk must not keep us from emptying it."""
        try:
            change()
        except OSError as error:
            if not is_disk_full(error) or not Reserve(self._files, container.path).spend():
                raise
            change()

    def _delete(self, intent: ResourceClaim) -> _Result:
        container = self._store.container_of(intent)
        path = container.current_path(intent)
        if self._files.exists(path):
            self._files.unlink(path)
        self._store.forget(intent.index)
        return _Result(intent, ResourceClaimGone(intent.index), intent.length, self._existing(os.path.dirname(path)))

    def _existing(self, directory: str) -> tuple[str, ...]:
        return (directory,) if self._files.exists(directory) else ()


def _done(intent: ResourceClaim, *, length: int | None = None, archived_millis: int | None = None) -> ResourceClaim:
    """The state after the change: no intent, a new generation."""
    return msgspec.structs.replace(
        intent,
        intent=Action.NONE,
        intent_length=0,
        generation=intent.generation + 1,
        length=intent.length if length is None else length,
        archived_millis=intent.archived_millis if archived_millis is None else archived_millis,
    )
