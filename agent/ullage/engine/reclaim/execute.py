"""Carry out a plan: intents, the change itself, and what was done, each durable before the next.

    plan | intents in one frame, synced | rename, truncate, unlink; sync | results in one frame, synced
           ^ from here on the bytes are gone for readers, and a restart finishes what a crash cut short

Each step is derived again under the ledger's lock: another generation, a new pin or a shorter dead tail than planned
makes it smaller or skips it. Work is done in slices, so that no commit waits behind a mass deletion.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ullage.clock import Clock
from ullage.engine.byteranges import ByteRange, allocated_bytes, merged, pack_ranges, total, unpack_ranges, whole_blocks
from ullage.engine.committer import Committer
from ullage.engine.content.protocol import ContentStore, IntentOutcome
from ullage.engine.forgotten import Forgotten
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births, end_in_use, held_by, is_unused
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, Operation, ResourceClaim, ResourceClaimGone
from ullage.engine.passed import PassedFiles
from ullage.engine.reclaim.liveness import KnownResidents, Liveness, LivenessScanner, covers
from ullage.engine.reclaim.pacing import ENDED, RunTicket
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import RepositoryDamaged

SLICE_STEPS = 200
"""Steps between two transactions: some milliseconds of file operations, and a bound on what a crash repeats."""

UNKNOWN = "which of its bytes are in use cannot be told: `ullage check` says why"
"""Why a file is left that is to be changed."""

_Alive = Liveness | KnownResidents | None

BATCH_OPERATIONS = 5_000
"""Operations of one transaction that says what was done: half of what a transaction may have."""


@dataclass(slots=True)
class _Result:
    """One change that has happened: what to commit, and what to report then.

    `freed_bytes` are blocks of the disk, `credited_bytes` what the container is no longer charged for.
    """

    intent: ResourceClaim
    operations: list[Operation]
    freed_bytes: int
    credited_bytes: int

    @property
    def is_removal(self) -> bool:
        """Whether a file is gone."""
        return self.intent.intent in (Action.DELETE, Action.REWRITE)


CUTTING: Final = (Action.TRUNCATE, Action.PUNCH)
"""What takes bytes out of a file that stays."""


@dataclass(frozen=True, slots=True)
class ReclamationParts:
    """The parts of a repository that giving space back works with."""

    ledger: Ledger
    content: ContentStore
    scanner: LivenessScanner
    committer: Committer
    clock: Clock
    forgotten: Forgotten
    passed: PassedFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passed", PassedFiles(self.content, self.clock))


class Executor:
    """Executes plans on one repository; one execution at a time (the repository sees to that)."""

    def __init__(self, parts: ReclamationParts) -> None:
        self._parts = parts

    def execute(
        self,
        plan: ReclamationPlan,
        ticket: RunTicket,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ReclamationReport:
        """Take the steps of a plan that move no bytes, once. Stops between slices when the ticket is taken back; an
        error leaves intents that the next run finishes.
        """
        report = ReclamationReport()
        light = [step for step in plan.steps if step.action != Action.REWRITE]
        for first in range(0, len(light), SLICE_STEPS):
            if ticket.is_revoked():
                report.is_stopped = True
                report.leave((step.resource for step in light[first:]), ENDED)
                break
            steps = self._allowed(light[first : first + SLICE_STEPS], ticket, report)
            self._take_steps(steps, report)
            if on_progress is not None:
                on_progress(first + len(steps), report.freed_bytes)
        return report

    @uninterrupted
    def _take_steps(self, steps: Sequence[ReclamationStep], report: ReclamationReport) -> None:
        intents = self._intend(steps, report)
        try:
            # Durable before a byte goes: | death of X, intent | unlink | power | X lives, and its file is gone |
            if intents:
                self._parts.committer.commit(intents, creates=False)
                self.finish(intents, report)
        finally:
            self._parts.ledger.give_back({intent.index for intent in intents})
            self._parts.passed.end_change(intent.index for intent in intents)

    @uninterrupted
    def finish(self, intents: Sequence[ResourceClaim], report: ReclamationReport) -> None:
        """Do what durable intents promise, and commit that it is done. Safe to repeat after any crash.

        An intent that fails does not keep the others from being finished; the first failure is raised at the end. What
        is not committed as done is charged to its container until it is: by the next run, or after the next start.
        """
        results: list[_Result] = []
        failures: list[OSError] = []
        for intent, outcome in zip(intents, self._parts.content.carry_out(intents), strict=True):
            if outcome is IntentOutcome.LATER:
                report.leave([intent.index], f"the volume of {intent.container} is away or read-only")
            elif isinstance(outcome, IntentOutcome):
                results.append(self._result(intent, outcome, report))
            else:
                failures.append(outcome)
        # Only what is synced: reported as freed means freed, also after a crash; what is not said to be done is done
        # again.
        for batch in _batches(results):
            self._parts.committer.commit(
                [operation for result in batch for operation in result.operations], creates=False
            )
        for result in results:
            report.done[Action(result.intent.intent)] += 1
            if result.is_removal and self._parts.passed.keeps(result.intent, result.freed_bytes, result.credited_bytes):
                report.held_bytes += result.freed_bytes
                continue
            # After the commit: until it the start would charge the container for these bytes, and writers must not
            # count on them.
            self._parts.content.container_of(result.intent).add_bytes(-result.credited_bytes)
            report.freed_bytes += result.freed_bytes
        if failures:
            raise failures[0]

    def finish_pending(self, report: ReclamationReport) -> None:
        """What an earlier failure left unfinished, but for files that somebody has got a descriptor of since then."""
        intents = [each for each in self.pending() if each.intent not in CUTTING or self._takes_up(each, report)]
        try:
            self.finish(intents, report)
        finally:
            self._parts.passed.end_change(intent.index for intent in intents)

    def _takes_up(self, intent: ResourceClaim, report: ReclamationReport) -> bool:
        is_free = self._parts.passed.begin_change(intent.index)
        if not is_free:
            report.leave([intent.index], "somebody reads it through a descriptor")
        return is_free

    def pending(self) -> list[ResourceClaim]:
        """Durable intents that an earlier failure left unfinished, but for those where only a restart can tell."""
        ledger = self._parts.ledger
        with ledger.lock:
            # Somebody is at what is taken, in this process: its intent may be about to be finished.
            found = [ledger.claim(index) for index in sorted(ledger.intended - ledger.taken)]
        return [claim for claim in found if claim is not None and self._parts.content.container_of(claim).is_writable]

    def _allowed(
        self, steps: Sequence[ReclamationStep], ticket: RunTicket, report: ReclamationReport
    ) -> list[ReclamationStep]:
        """The steps that may be taken now: with the ticket, or without it because their container is nearly full."""
        allowed: list[ReclamationStep] = []
        refusals = {action: ticket.refusal(action, self._parts.clock) for action in {step.action for step in steps}}
        free = {
            name: self._parts.content.containers[name].usage().free_percentage for name in {s.container for s in steps}
        }
        for step in steps:
            container = self._parts.content.containers[step.container]
            if not container.is_available:
                report.leave([step.resource], container.condition.reason)
                continue
            refusal = refusals[step.action]
            if refusal and ticket.is_emergency(step.action, free[step.container]):
                report.emergency += 1
            elif refusal:
                report.refused += ticket.is_refused(step.action)
                report.is_stopped |= not ticket.is_refused(step.action)
                report.leave([step.resource], refusal)
                continue
            allowed.append(step)
        return allowed

    def _intend(self, steps: Sequence[ReclamationStep], report: ReclamationReport) -> list[ResourceClaim]:
        """The steps that still hold, as intents; at most what the plan named. Their resource claims are taken."""
        found: dict[int, _Alive] = {}
        for step in steps:
            try:
                # | wrongly forgotten in memory: X | intent | unlink | the handle in a run that claims X is cut off |
                self._parts.scanner.require_undisputed(step.resource)
                found[step.resource] = self._alive(step)
            except RepositoryDamaged as error:
                report.problems.append(str(error))
                report.leave([step.resource], UNKNOWN)
        steps = [step for step in steps if step.resource in found]
        intents: list[ResourceClaim] = []
        with self._parts.ledger.lock:
            held = held_by(self._parts.ledger, self._parts.clock.now_millis())
            for step in steps:
                entry = self._parts.ledger.entry(step.resource)
                # The file was changed since the plan was made: its offsets and lengths are those of another file.
                if entry is None or entry.claim.generation != step.generation:
                    continue
                # A writer may still append behind what would be cut, and of two intents the second would forget the
                # first.
                if entry.claim.unproved and step.action in CUTTING:
                    continue  # what lives in it may not read back: whoever mends it wants the file as it was
                if not entry.claim.sealed or entry.has_intent or held.refuses(self._parts.ledger, entry, step.action):
                    continue
                intent = self._derive(step, entry, found[step.resource])
                # Under the same hold of the lock: from here on no pin of dead bytes, and no other run, comes between.
                if intent is not None and self._takes(intent):
                    intents.append(intent)
        report.skipped += len(steps) - len(intents)
        return intents

    def _takes(self, intent: ResourceClaim) -> bool:
        """Whether a file is this run's to change; called under the ledger's lock."""
        if intent.intent in CUTTING and not self._parts.passed.begin_change(intent.index):
            return False
        is_taken = self._parts.ledger.take({intent.index})
        if not is_taken:
            self._parts.passed.end_change([intent.index])
        return is_taken

    def _alive(self, step: ReclamationStep) -> _Alive:
        """What is in use of a file that is to be changed in place: its claims, for no total authorises that.

        RepositoryDamaged where nobody can say.
        """
        if step.action == Action.PUNCH:
            return self._parts.scanner.examine(step.resource)
        return self._parts.scanner.residents(step.resource) if step.action == Action.TRUNCATE else None

    def _derive(self, step: ReclamationStep, entry: ResourceEntry, alive: _Alive) -> ResourceClaim | None:
        """The intent of one step by what is in use now; None if nothing is left of it."""
        ledger, length, holes = self._parts.ledger, entry.claim.length, b""
        is_free = entry.is_free if entry.relocation is not None else is_unused(ledger, entry)
        if step.action == Action.TRUNCATE:
            # At most what was planned, and never below what lives now: a replay may have pinned a dead claim
            # meanwhile.
            known = alive if isinstance(alive, KnownResidents) and alive.version == entry.version else None
            end = end_in_use(ledger, entry, None if known is None else known.end)
            length = max(step.length, end)
            if length >= entry.claim.length or is_free:
                return None
        elif step.action == Action.PUNCH:
            # Swap files were read without the lock, and a claim may have come back from one of them since then.
            if not isinstance(alive, Liveness) or is_free or not covers(ledger, entry, alive):
                return None
            dead = alive.dead_runs(entry.claim.length, entry.claim.holes)
            # Blocks only: of a part of one the filesystem gives nothing back, and zeroes it all the same.
            holes = pack_ranges(hole for hole in map(whole_blocks, _common(step.holes, dead)) if hole.length)
            if not holes:
                return None
        elif not is_free or any(each.has_intent or self._rests(each) for each in {entry, *births(ledger, entry)}):
            return None
        return intent_of(entry, step.action, intent_length=length, intent_holes=holes)

    def _rests(self, entry: ResourceEntry) -> bool:
        """Whether handles in runs are counted for a resource claim that nobody seems to need: then the next run, which
        compares them, says so.
        """
        return self._parts.ledger.cold.shares.of(entry.claim.index).claimants > 0

    def _result(self, intent: ResourceClaim, outcome: IntentOutcome, report: ReclamationReport) -> _Result:
        """What is to be committed for one intent that the content store has carried out."""
        if intent.intent in CUTTING:
            done = self._changed(intent, outcome, report)
            freed_bytes = allocated_bytes(intent.length, intent.holes) - allocated_bytes(done.length, done.holes)
            return _Result(intent, [done], freed_bytes, charged_bytes(intent) - charged_bytes(done))
        if intent.intent == Action.ARCHIVE and outcome is IntentOutcome.DONE:
            return _Result(intent, [_done(intent, archived_millis=self._parts.clock.now_millis())], 0, 0)
        # Of a file whose content a rewrite has moved the record stays, for its addresses.
        is_moved = intent.intent == Action.REWRITE
        operations: list[Operation] = [self._moved(intent)] if is_moved else self._forgotten(intent)
        return _Result(intent, operations, allocated_bytes(intent.length, intent.holes), charged_bytes(intent))

    def _changed(self, intent: ResourceClaim, outcome: IntentOutcome, report: ReclamationReport) -> ResourceClaim:
        """What is left of a file that was changed in place, or should have been."""
        if outcome is IntentOutcome.MISSING:
            # Its live content was lost before, which reads and `check` report. An intent kept for it would be tried
            # for ever, and would stop the next start.
            report.problems.append(f"resource claim {intent.index}: {self._parts.content.path_of(intent)} is missing")
            return _done(intent)
        if outcome is IntentOutcome.IMPOSSIBLE:
            report.leave([intent.index], "the filesystem cannot punch holes")
            return _done(intent)
        holes = unpack_ranges(intent.holes)
        if intent.intent == Action.PUNCH:
            return _done(intent, holes=pack_ranges(merged([*holes, *unpack_ranges(intent.intent_holes)])))
        length = intent.intent_length
        kept = (ByteRange(run.offset, min(run.end, length) - run.offset) for run in holes)
        return _done(intent, length=length, holes=pack_ranges(run for run in map(whole_blocks, kept) if run.length > 0))

    def _moved(self, intent: ResourceClaim) -> ResourceClaim:
        """What stays of a record whose bytes lie in an output: an address, in the container of the output."""
        with self._parts.ledger.lock:
            entry = self._parts.ledger.entry(intent.index)
            relocation = entry.relocation if entry is not None else None
            output = self._parts.ledger.entry(relocation.output) if relocation is not None else None
        done = _done(intent, length=0, holes=b"")
        return done if output is None else msgspec.structs.replace(done, container=output.claim.container)

    def _forgotten(self, intent: ResourceClaim) -> list[Operation]:
        """The end of a record: with it go those of resource claims whose bytes were moved here, none of them in use."""
        with self._parts.ledger.lock:
            entry = self._parts.ledger.entry(intent.index)
            sources = sorted(entry.sources or ()) if entry is not None else []
        return [*map(ResourceClaimGone, sources), ResourceClaimGone(intent.index)]


def intent_of(entry: ResourceEntry, action: Action, **more: Any) -> ResourceClaim:
    """The promise of a change, with when the last of its claims died: once it is made nothing else tells that."""
    dates = {"last_death_millis": entry.last_death_millis, "last_death": entry.last_death}
    return msgspec.structs.replace(entry.claim, intent=action, **dates, **more)


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


def _common(planned: Iterable[ByteRange], dead: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """What is in both."""
    dead = list(dead)
    for run in planned:
        for other in dead:
            start, end = max(run.offset, other.offset), min(run.end, other.end)
            if start < end:
                yield ByteRange(start, end - start)


def _done(intent: ResourceClaim, **changed: Any) -> ResourceClaim:
    """The state after the change: no intent, a new generation."""
    kept = {"intent": Action.NONE, "intent_length": 0, "intent_holes": b"", "generation": intent.generation + 1}
    return msgspec.structs.replace(intent, **kept, **changed)
