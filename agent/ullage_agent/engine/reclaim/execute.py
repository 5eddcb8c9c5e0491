"""Carry out a plan: intents, the change itself, and what was done, each durable before the next.

    plan | intents in one frame, synced | rename, truncate, unlink; sync | results in one frame, synced
           ^ from here on the bytes are gone for readers, and a restart finishes what a crash cut short

Each step is derived again under the ledger's lock: another generation, a new pin or a shorter dead tail than planned
makes it smaller or skips it. Work is done in slices, so that no commit waits behind a mass deletion.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.content.reserve import Reserve
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import File, Files, cannot_punch, is_disk_full
from ullage_agent.engine.flowfile.held import held_by
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.placement import births, end_in_use, is_unused
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action, Operation, ResourceClaim, ResourceClaimGone
from ullage_agent.engine.reclaim.anatomy import Anatomist, Anatomy, covers
from ullage_agent.engine.reclaim.pacing import Ticket
from ullage_agent.engine.reclaim.plan import Plan, Step
from ullage_agent.engine.reclaim.report import Left, Report
from ullage_agent.engine.runs import Run, allocated_bytes, merged, pack_runs, total, unpack_runs, whole_blocks

SLICE_STEPS = 200
"""Steps between two transactions: some milliseconds of file operations, and a bound on what a crash repeats."""

BATCH_OPERATIONS = 5_000
"""Operations of one transaction that says what was done: half of what a transaction may have."""

Commit = Callable[[Sequence[Operation]], None]


@dataclass(slots=True)
class _Result:
    """One change that has happened but for the sync of `directories`: what to commit, and what to report then.

    `freed_bytes` are blocks of the disk, `credited_bytes` what the container is no longer charged for.
    """

    intent: ResourceClaim
    operations: list[Operation]
    freed_bytes: int
    credited_bytes: int
    directories: tuple[str, ...] = ()


class Executor:
    """Executes plans on one repository; one execution at a time (the repository sees to that)."""

    def __init__(
        self,
        files: Files,
        ledger: Ledger,
        store: ContentRepository,
        anatomist: Anatomist,
        commit: Commit,
        clock: Clock,
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._store = store
        self._anatomist = anatomist
        self._commit = commit
        self._clock = clock

    def execute(
        self,
        plan: Plan,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int, int], None] | None = None,
        ticket: Ticket | None = None,
    ) -> Report:
        """Take the steps of a plan that move no bytes, once. Stops between slices when asked, or when the ticket ends;
        an error leaves intents that the next run finishes.
        """
        report = Report()
        light = [step for step in plan.steps if step.action != Action.REWRITE]
        for first in range(0, len(light), SLICE_STEPS):
            if should_stop():
                report.is_stopped = True
                break
            steps = self._allowed(light[first : first + SLICE_STEPS], ticket or Ticket(), report)
            intents = self._intend(steps)
            report.skipped += len(steps) - len(intents)
            try:
                if intents:
                    self._commit(intents)
                    self.finish(intents, report)
            finally:
                self.give_back({intent.index for intent in intents})
            if on_progress is not None:
                on_progress(first + len(steps), report.freed_bytes)
        return report

    def take(self, indexes: set[int]) -> bool:
        """Nobody else changes these resource claims until they are given back; False, none taken, if one is in other
        hands. Called under the ledger's lock, where the steps are derived.
        """
        if not self._ledger.taken.isdisjoint(indexes):
            return False
        self._ledger.taken |= indexes
        return True

    def give_back(self, indexes: set[int]) -> None:
        """The opposite of `take`."""
        with self._ledger.lock:
            self._ledger.taken -= indexes

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
        for batch in _batches(results):
            self._commit([operation for result in batch for operation in result.operations])
        for result in results:
            self._store.container_of(result.intent).add_bytes(-result.credited_bytes)
            report.add(Action(result.intent.intent), result.freed_bytes)
        if failures:
            raise failures[0]

    def pending(self) -> list[ResourceClaim]:
        """Durable intents that an earlier failure left unfinished, but for those where only a restart can tell."""
        return [
            entry.claim
            for entry in self._ledger.entries()
            if entry.has_intent
            and entry.claim.index not in self._ledger.taken
            and self._store.container_of(entry.claim).failure is None
        ]

    def _allowed(self, steps: Sequence[Step], ticket: Ticket, report: Report) -> list[Step]:
        """The steps that may be taken now: with the ticket, or without it because their container is nearly full."""
        allowed: list[Step] = []
        refusals = {action: ticket.refusal(action, self._clock) for action in {step.action for step in steps}}
        free = {name: self._store.containers[name].usage().free_percentage for name in {s.container for s in steps}}
        for step in steps:
            refusal = refusals[step.action]
            if refusal and ticket.is_emergency(step.action, free[step.container]):
                report.emergency += 1
            elif refusal:
                report.refused += ticket.is_refused(step.action)
                report.is_stopped |= not ticket.is_refused(step.action)
                report.left.append(Left(step.action, step.resource, step.container, refusal))
                continue
            allowed.append(step)
        return allowed

    def _change(self, intent: ResourceClaim, report: Report) -> _Result:
        if intent.intent in (Action.TRUNCATE, Action.PUNCH):
            return self._change_in_place(intent, report)
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
        """The steps that still hold, as intents; at most what the plan named. Their resource claims are taken."""
        anatomies = {
            step.resource: self._anatomist.examine_if_known(step.resource)
            for step in steps
            if step.action == Action.PUNCH
        }
        intents: list[ResourceClaim] = []
        with self._ledger.lock:
            held = held_by(self._ledger.leases.values(), self._clock.now_millis())
            for step in steps:
                entry = self._ledger.entry(step.resource)
                if entry is None or entry.claim.generation != step.generation:
                    continue
                if not entry.claim.sealed or entry.has_intent or held.refuses(self._ledger, entry, step.action):
                    continue
                intent = self._derive(step, entry, anatomies.get(step.resource))
                if intent is not None and self.take({step.resource}):
                    intents.append(intent)
        return intents

    def _derive(self, step: Step, entry: ResourceEntry, anatomy: Anatomy | None) -> ResourceClaim | None:
        """The intent of one step by what is in use now; None if nothing is left of it."""
        length, holes = entry.claim.length, b""
        is_free = entry.is_free if entry.relocation is not None else is_unused(self._ledger, entry)
        if step.action == Action.TRUNCATE:
            length = max(step.length, end_in_use(self._ledger, entry))
            if length >= entry.claim.length or is_free:
                return None
        elif step.action == Action.PUNCH:
            if anatomy is None or is_free or not covers(self._ledger, entry, anatomy):
                return None
            dead = anatomy.dead_runs(entry.claim.length, entry.claim.holes)
            holes = pack_runs(hole for hole in map(whole_blocks, _common(step.holes, dead)) if hole.length)
            if not holes:
                return None
        elif not is_free or any(birth.has_intent for birth in births(self._ledger, entry)):
            return None
        return msgspec.structs.replace(
            entry.claim,
            intent=step.action,
            intent_length=length,
            intent_holes=holes,
            last_death_millis=entry.last_death_millis,
            last_death=entry.last_death,
        )

    def _change_in_place(self, intent: ResourceClaim, report: Report) -> _Result:
        container = self._store.container_of(intent)
        path = container.current_path(intent)
        try:
            file = self._files.open(path, writable=True)
        except FileNotFoundError:
            # Its live content was lost before, which reads and `check` report. An intent kept for it would be tried
            # for ever, and would stop the next start.
            report.problems.append(f"resource claim {intent.index}: {path} is missing")
            return _Result(intent, [_done(intent)], 0, 0)
        try:
            done = self._truncated(file, intent) if intent.intent == Action.TRUNCATE else self._punched(file, intent)
            # Reported as freed means freed for good: without this a crash could bring the bytes back.
            self._sync(file, container)
        except OSError as error:
            if intent.intent != Action.PUNCH or not cannot_punch(error):
                raise
            done = _done(intent)
            reason = "the filesystem cannot punch holes"
            report.left.append(Left(Action.PUNCH, intent.index, intent.container, reason))
        finally:
            file.close()
        freed_bytes = allocated_bytes(intent.length, intent.holes) - allocated_bytes(done.length, done.holes)
        return _Result(intent, [done], freed_bytes, charged_bytes(intent) - charged_bytes(done))

    def _truncated(self, file: File, intent: ResourceClaim) -> ResourceClaim:
        length = intent.intent_length
        if file.size().length > length:
            file.truncate(length)
        kept = (Run(run.offset, min(run.end, length) - run.offset) for run in unpack_runs(intent.holes))
        return _done(intent, length=length, holes=pack_runs(run for run in map(whole_blocks, kept) if run.length > 0))

    def _punched(self, file: File, intent: ResourceClaim) -> ResourceClaim:
        holes = unpack_runs(intent.intent_holes)
        for hole in holes:
            file.punch(hole.offset, hole.length)
        return _done(intent, holes=pack_runs(merged([*unpack_runs(intent.holes), *holes])))

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
            return _Result(
                intent, self._forgotten(intent), allocated_bytes(intent.length, intent.holes), charged_bytes(intent)
            )
        directories = (os.path.dirname(source), os.path.dirname(target))
        return _Result(intent, [_done(intent, archived_millis=self._clock.now_millis())], 0, 0, directories)

    def _spending_reserve(self, container: Container, change: Callable[[], None]) -> None:
        """A new directory or name may need a block, and a full disk must not keep us from emptying it."""
        try:
            change()
        except OSError as error:
            if not is_disk_full(error) or not Reserve(self._files, container.path).spend():
                raise
            change()

    def _delete(self, intent: ResourceClaim) -> _Result:
        """Unlink a file; of one whose content a rewrite has moved the record stays, for its addresses."""
        container = self._store.container_of(intent)
        path = container.current_path(intent)
        if self._files.exists(path):
            self._files.unlink(path)
        self._store.forget(intent.index)
        is_moved = intent.intent == Action.REWRITE
        operations: list[Operation] = [self._moved(intent)] if is_moved else self._forgotten(intent)
        freed_bytes = allocated_bytes(intent.length, intent.holes)
        directories = self._existing(os.path.dirname(path))
        return _Result(intent, operations, freed_bytes, charged_bytes(intent), directories)

    def _moved(self, intent: ResourceClaim) -> ResourceClaim:
        """What stays of a record whose bytes lie in an output: an address, in the container of the output."""
        with self._ledger.lock:
            entry = self._ledger.entry(intent.index)
            relocation = entry.relocation if entry is not None else None
            output = self._ledger.entry(relocation.output) if relocation is not None else None
        done = _done(intent, length=0)
        return done if output is None else msgspec.structs.replace(done, container=output.claim.container)

    def _forgotten(self, intent: ResourceClaim) -> list[Operation]:
        """The end of a record: with it go those of resource claims whose bytes were moved here, none of them in use."""
        with self._ledger.lock:
            entry = self._ledger.entry(intent.index)
            sources = sorted(entry.sources or ()) if entry is not None else []
        return [*map(ResourceClaimGone, sources), ResourceClaimGone(intent.index)]

    def _existing(self, directory: str) -> tuple[str, ...]:
        return (directory,) if self._files.exists(directory) else ()


def charged_bytes(claim: ResourceClaim) -> int:
    """What a container's quota is charged for a file: its bytes, without holes."""
    return claim.length - total(claim.holes)


def _batches(results: Sequence[_Result]) -> Iterator[list[_Result]]:
    """Results whose operations fit into one transaction together."""
    batch: list[_Result] = []
    count = 0
    for result in results:
        if batch and count + len(result.operations) > BATCH_OPERATIONS:
            yield batch
            batch, count = [], 0
        batch.append(result)
        count += len(result.operations)
    if batch:
        yield batch


def _common(planned: Iterable[Run], dead: Iterable[Run]) -> Iterator[Run]:
    """What is in both."""
    dead = list(dead)
    for run in planned:
        for other in dead:
            start, end = max(run.offset, other.offset), min(run.end, other.end)
            if start < end:
                yield Run(start, end - start)


def _done(
    intent: ResourceClaim,
    *,
    length: int | None = None,
    archived_millis: int | None = None,
    holes: bytes | None = None,
) -> ResourceClaim:
    """The state after the change: no intent, a new generation. A length of 0 has no holes."""
    if length == 0:
        holes = b""
    return msgspec.structs.replace(
        intent,
        intent=Action.NONE,
        intent_length=0,
        intent_holes=b"",
        generation=intent.generation + 1,
        length=intent.length if length is None else length,
        archived_millis=intent.archived_millis if archived_millis is None else archived_millis,
        holes=intent.holes if holes is None else holes,
    )
