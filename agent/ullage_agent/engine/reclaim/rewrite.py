"""Rewriting: the survivors of several files go to one output, and their addresses stay.

    copy, verify | sync output, its directory | relocations in one frame, synced | unlink sources, sync | done, synced
                                                ^ commit point

A crash before it leaves an orphan, after it sources that the next start unlinks. The bytes a source's claims were read
from are verified against their checksums on the way: one that does not match keeps its source out of the rewrite, as
it is, for `check` to report.

A rewrite reads only what lives and what lies in small gaps between. It asks the kernel to write back as it goes and to
forget the output's pages afterwards, so that it evicts nobody's; those of the sources go with their files.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.content.reserve import Reserve
from ullage_agent.engine.content.store import ContentRepository, WritableClaim
from ullage_agent.engine.errors import (
    CommitOutcomeUnknown,
    ContentCorrupt,
    ContentMissing,
    DiskFull,
    RepositoryDamaged,
    RepositoryStopped,
)
from ullage_agent.engine.files import Files, is_disk_full
from ullage_agent.engine.flowfile.held import held_by
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.placement import births, is_unused
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action, Operation, Relocation, ResourceClaim, ResourceClaimGone
from ullage_agent.engine.reclaim.anatomy import Anatomist, Anatomy, Survivor, covers
from ullage_agent.engine.reclaim.copying import OutputWriter, Revoked, Source, copy_source
from ullage_agent.engine.reclaim.execute import Executor
from ullage_agent.engine.reclaim.pacing import Ticket, TokenBucket
from ullage_agent.engine.reclaim.plan import Step
from ullage_agent.engine.reclaim.report import Left, Report
from ullage_agent.engine.runs import FS_BLOCK_BYTES, allocated_bytes, pack_moves

MOVES_MAX = 100_000
"""Runs that one transaction relocates: 2.4 MB of its 8, and some ten milliseconds of the ledger's lock."""

BIRTHS_MAX = 4_000
"""Resource claims whose bytes one output takes: less than half of the operations that a transaction may have."""

CommitIf = Callable[[Sequence[Operation], Callable[[], None]], None]
"""One durable transaction, if the check that is made right before its id is taken raises nothing."""


class Overtaken(Exception):
    """What a rewrite was about to commit no longer holds."""


@dataclass(slots=True)
class Rewrite:
    """One group on its way to an output. `taken`: resource claims that nobody else changes until it is over."""

    report: Report
    sources: list[Source] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    output: WritableClaim | None = None
    output_bytes: int = 0


class Rewriter:
    """Carries out the rewrites of plans, each group of steps into one output. One run a disk at a time."""

    def __init__(
        self,
        files: Files,
        ledger: Ledger,
        store: ContentRepository,
        anatomist: Anatomist,
        executor: Executor,
        commit_if: CommitIf,
        clock: Clock,
        output_bytes: int,
    ) -> None:
        self._output_bytes = output_bytes
        self._files = files
        self._ledger = ledger
        self._store = store
        self._anatomist = anatomist
        self._executor = executor
        self._commit_if = commit_if
        self._clock = clock

    def rewrite(self, group: Sequence[Step], ticket: Ticket, bucket: TokenBucket) -> Report:
        """Make one output of a group. What cannot be rewritten now is left, with the reason, exactly as it was."""
        return self.finish(self.begin(group, ticket, bucket))

    def begin(self, group: Sequence[Step], ticket: Ticket, bucket: TokenBucket) -> Rewrite:
        """The first half: copy the survivors of a group. Nothing refers to the output yet; it is to be finished, or
        given up.
        """
        rewrite = Rewrite(Report())
        refusal = ticket.refusal(Action.REWRITE, self._clock)
        if refusal:
            _left(rewrite.report, group, refusal)
            rewrite.report.refused = len(group) if ticket.is_refused(Action.REWRITE) else 0
            rewrite.report.is_stopped = not ticket.is_refused(Action.REWRITE)
            return rewrite
        try:
            self._choose(group, rewrite)
            if rewrite.sources:
                self._copy_to_output(rewrite, ticket, bucket)
        except BaseException:
            self.give_up(rewrite)
            raise
        return rewrite

    def finish(self, rewrite: Rewrite) -> Report:
        """The second half: make the output durable, commit the relocations, unlink the sources."""
        try:
            intents = self._commit_output(rewrite) if rewrite.sources else []
            if intents:
                self._unlink(intents, rewrite)
        finally:
            self.give_up(rewrite)
        return rewrite.report

    def give_up(self, rewrite: Rewrite) -> None:
        """Close what was not committed, and let others have the sources."""
        output, rewrite.output = rewrite.output, None
        try:
            if output is not None:
                self._store.close_output(output, committed=False)
        finally:
            self._executor.give_back(rewrite.taken)

    def _choose(self, group: Sequence[Step], rewrite: Rewrite) -> None:
        """The steps that still hold, as sources; each is taken, so that nobody else changes it meanwhile."""
        report = rewrite.report
        births = moves = 0
        for step in group:
            try:
                anatomy = self._anatomist.examine(step.resource)
            except RepositoryDamaged as error:
                report.problems.append(str(error))
                _left(report, [step], "a swap file that may refer to it cannot be read")
                continue
            count = _moves_of(anatomy.survivors) if anatomy is not None else 0
            if births + len(anatomy.births if anatomy else ()) > BIRTHS_MAX or moves + count > MOVES_MAX:
                _left(report, [step], "more claims than one transaction can relocate")
                continue
            with self._ledger.lock:
                entry = self._ledger.entry(step.resource)
                if entry is None or anatomy is None or not self._holds(step, entry, anatomy):
                    report.skipped += 1
                    continue
                source = Source(step, entry.claim, anatomy)
                if not self._executor.take(source.indexes):
                    report.skipped += 1
                    continue
                rewrite.taken |= source.indexes
            rewrite.sources.append(source)
            births += len(anatomy.births)
            moves += count

    def _holds(self, step: Step, entry: ResourceEntry, anatomy: Anatomy) -> bool:
        """Whether a file is still as the plan saw it; called under the ledger's lock."""
        claim = entry.claim
        return (
            claim.generation == step.generation
            and claim.sealed
            and not any(birth.has_intent for birth in births(self._ledger, entry))
            and not claim.archived_millis
            and entry.relocation is None
            and not is_unused(self._ledger, entry)
            and not held_by(self._ledger.leases.values(), self._clock.now_millis()).refuses(
                self._ledger, entry, Action.REWRITE
            )
            and covers(self._ledger, entry, anatomy)
        )

    def _copy_to_output(self, rewrite: Rewrite, ticket: Ticket, bucket: TokenBucket) -> None:
        """Leaves in `sources` those that were copied; none where there is no room, or the run is to stop."""
        sources, report = rewrite.sources, rewrite.report
        rewrite.sources = []
        steps = [source.step for source in sources]
        needed = sum(allocated_bytes(source.anatomy.live_bytes) + FS_BLOCK_BYTES for source in sources)
        container = self._store.target_of(self._store.container_of(sources[0].claim), needed)
        if container is None or not self._make_room(container, needed):
            _left(report, steps, f"no room for an output of {needed} bytes")
            return
        created_millis = max(source.claim.created_millis for source in sources)
        try:
            output = self._store.create_output(container, sources[0].claim.lifetime, created_millis)
            rewrite.output = output
            large_claim, batch_bytes = self._store.limits.large_claim, self._output_bytes // 4
            writer = OutputWriter(output, large_claim, batch_bytes, ticket, bucket, report)
            rewrite.sources = self._copy(sources, writer, report)
        except Revoked:
            report.is_stopped = True
            _left(report, steps, "the run was stopped")
        except (DiskFull, OSError) as error:
            if isinstance(error, OSError) and not is_disk_full(error):
                raise
            _left(report, steps, f"no room: {error}")

    def _commit_output(self, rewrite: Rewrite) -> list[ResourceClaim]:
        """The intents of the frame that names the output; none if it was overtaken, or found no room."""
        output, sources = rewrite.output, rewrite.sources
        assert output is not None
        is_kept = is_committing = False
        try:
            self._sync(output)
            is_committing = True
            intents = self._commit(sources, output, rewrite.report)
            is_kept = bool(intents)
        except (DiskFull, OSError) as error:
            if isinstance(error, OSError) and not is_disk_full(error):
                raise
            _left(rewrite.report, [source.step for source in sources], f"no room: {error}")
            return []
        except (CommitOutcomeUnknown, RepositoryStopped):
            is_kept = True
            raise
        except BaseException as error:
            is_kept = is_committing and not isinstance(error, Exception)  # interrupted: nobody can say where
            raise
        finally:
            output.file.drop_cache(0, 0)
            if is_kept:
                rewrite.output = None
                self._store.close_output(output, committed=True)
        rewrite.output_bytes = output.offset
        return intents

    def _unlink(self, intents: list[ResourceClaim], rewrite: Rewrite) -> None:
        """The sources go; what the output takes is no gain."""
        done, report = Report(), rewrite.report
        try:
            self._executor.finish(intents, done)
        finally:
            report.done[Action.REWRITE] = report.done.get(Action.REWRITE, 0) + sum(done.done.values())
            report.freed_bytes += done.freed_bytes - allocated_bytes(rewrite.output_bytes)

    def _make_room(self, container: Container, needed: int) -> bool:
        """Free space for one output is checked first; the reserve is there for it."""
        if self._files.usage(container.path).free_bytes >= needed:
            return True
        Reserve(self._files, container.path).spend()
        return self._files.usage(container.path).free_bytes >= needed

    def _copy(self, sources: list[Source], writer: OutputWriter, report: Report) -> list[Source]:
        """Copy the survivors of each source; those that read back whole, in order."""
        copied: list[Source] = []
        for source in sources:
            start = writer.offset
            path = self._store.container_of(source.claim).current_path(source.claim)
            try:
                file = self._files.open(path)
            except FileNotFoundError:
                report.problems.append(f"resource claim {source.claim.index}: {path} is missing")
                _left(report, [source.step], "its file is missing")
                continue
            try:
                copy_source(source, file, path, writer)
            except (ContentCorrupt, ContentMissing) as error:
                writer.go_back(start)
                file.drop_cache(0, 0)
                report.problems.append(str(error))
                _left(report, [source.step], "it does not read back whole: run check --deep")
                continue
            finally:
                file.close()
            copied.append(source)
        return copied

    def _sync(self, output: WritableClaim) -> None:
        """The output and its name are durable before anything refers to them."""
        try:
            if output.file.size().length > output.offset:  # of a source that did not read back
                output.file.truncate(output.offset)
            output.file.sync()
            self._files.sync_directory(os.path.dirname(output.path))
        except OSError as error:
            if not is_disk_full(error):
                output.container.failure = error
            raise

    def _commit(self, sources: list[Source], output: WritableClaim, report: Report) -> list[ResourceClaim]:
        """The relocations and the intents to unlink, in one frame; the intents, or none if events overtook it."""
        with self._ledger.lock:
            operations, intents = self._operations(sources, output)

        def validate() -> None:
            with self._ledger.lock:
                for source in sources:
                    entry = self._ledger.entry(source.claim.index)
                    if entry is None or not self._holds(source.step, entry, source.anatomy):
                        raise Overtaken

        try:
            self._commit_if(operations, validate)
        except Overtaken:
            report.skipped += len(sources)
            return []
        return intents

    def _operations(self, sources: list[Source], output: WritableClaim) -> tuple[list[Operation], list[ResourceClaim]]:
        claim = output.claim
        made = msgspec.structs.replace(claim, length=output.offset, sealed=True, generation=1)
        operations: list[Operation] = [made]
        intents: list[ResourceClaim] = []
        for source in sources:
            entry = self._ledger.entry(source.claim.index)
            if entry is None:
                raise Overtaken
            for birth in source.anatomy.births:
                moves = source.moves.get(birth)
                if moves:
                    operations.append(Relocation(birth, claim.index, pack_moves(sorted(moves))))
                    operations += self._following(birth, source, claim.container)
                elif birth != source.claim.index and self._ledger.entry(birth) is not None:
                    operations.append(ResourceClaimGone(birth))
            # With claims of its own it stays, as where they were born; an output has none, and goes.
            is_birth = source.claim.index in source.moves
            intent = msgspec.structs.replace(
                entry.claim,
                intent=Action.REWRITE if is_birth else Action.DELETE,
                generation=entry.claim.generation + 1,
                last_death_millis=entry.last_death_millis,
                last_death=entry.last_death,
            )
            intents.append(intent)
        return [*operations, *intents], intents

    def _following(self, birth: int, source: Source, container: str) -> Iterator[Operation]:
        """Records of what was moved before name the container of their bytes, so that one that is emptied is named by
        none. The source's own follows when its file is gone (`Executor._delete`).
        """
        entry = self._ledger.entry(birth)
        if birth != source.claim.index and entry is not None and entry.claim.container != container:
            yield msgspec.structs.replace(entry.claim, container=container, generation=entry.claim.generation + 1)


def _moves_of(survivors: Iterable[Survivor]) -> int:
    """How many moves they make at most."""
    count = 0
    end = -1
    for survivor in survivors:
        count += survivor.offset != end
        end = survivor.offset + survivor.claim.length
    return count


def _left(report: Report, steps: Iterable[Step], reason: str) -> Report:
    report.left.extend(Left(step.action, step.resource, step.container, reason) for step in steps)
    return report
