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
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import Action, Operation, ResourceClaim, ResourceClaimGone
from ullage_agent.engine.reclaim.plan import Plan, Step

SLICE_STEPS = 200
"""Steps between two transactions: some milliseconds of file operations, and a bound on what a crash repeats."""

Commit = Callable[[Sequence[Operation]], None]


@dataclass(slots=True)
class Report:
    """What an execution did. `skipped` steps were overtaken by events; a later plan sees them anew."""

    done: dict[Action, int] = field(default_factory=dict)
    freed_bytes: int = 0
    skipped: int = 0
    is_stopped: bool = False

    def add(self, action: Action, freed_bytes: int) -> None:
        self.done[action] = self.done.get(action, 0) + 1
        self.freed_bytes += freed_bytes


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
        """Run a plan once. Stops between slices when asked; an error leaves intents that the next start finishes."""
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
        """Do what durable intents promise, and commit that it is done. Safe to repeat after any crash."""
        results: list[Operation] = []
        directories: set[str] = set()
        for intent in intents:
            container = self._store.container_of(intent)
            self._store.forget(intent.index)
            if intent.intent == Action.TRUNCATE:
                results.append(self._truncate(intent, report))
            elif intent.intent == Action.ARCHIVE:
                results.append(self._archive(intent, report, directories))
            else:
                path = container.current_path(intent)
                if self._files.exists(path):
                    self._files.unlink(path)
                directories.add(os.path.dirname(path))
                container.add_bytes(-intent.length)
                report.add(Action.DELETE, intent.length)
                results.append(ResourceClaimGone(intent.index))
        for directory in sorted(directories):
            if self._files.exists(directory):
                self._files.sync_directory(directory)
        self._commit(results)

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

    def _truncate(self, intent: ResourceClaim, report: Report) -> ResourceClaim:
        container = self._store.container_of(intent)
        path = container.current_path(intent)
        file = self._files.open(path, writable=True)
        try:
            if file.size().length > intent.intent_length:
                file.truncate(intent.intent_length)
            # Reported as freed means freed for good: without this a crash could bring the tail back.
            file.sync()
        finally:
            file.close()
        freed = intent.length - intent.intent_length
        container.add_bytes(-freed)
        report.add(Action.TRUNCATE, freed)
        return _done(intent, length=intent.intent_length)

    def _archive(self, intent: ResourceClaim, report: Report, directories: set[str]) -> ResourceClaim:
        container = self._store.container_of(intent)
        source, target = container.live_path(intent), container.archive_path(intent)
        container.ensure_directory(os.path.dirname(target))
        if self._files.exists(source):
            self._files.rename(source, target)
        directories.update((os.path.dirname(source), os.path.dirname(target)))
        report.add(Action.ARCHIVE, 0)
        return _done(intent, archived_millis=self._clock.now_millis())


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
