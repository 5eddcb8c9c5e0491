"""Rewriting: the survivors of several files go to one output, and their addresses stay.

    copy, verify | sync output, its directory | relocations in one frame, synced | unlink sources, sync | done, synced
                                                ^ commit point

A crash before it leaves an orphan, after it sources that the next start unlinks. The bytes a source's claims were read
from are verified against their checksums on the way: one that does not match keeps its source out of the rewrite, as
it is, for `check` to report.

A rewrite reads only what lives and what lies in small gaps between. It asks the kernel to write back as it goes and to
forget the output's pages afterwards, so that it evicts nobody's; those of the sources go with their files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ullage.engine.byteranges import FS_BLOCK_BYTES, allocated_bytes, pack_moves
from ullage.engine.content.claims import WritableClaim
from ullage.engine.content.reserve import is_full
from ullage.engine.ledger.placement import births, held_by, is_unused
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, Operation, Relocation, ResourceClaim, ResourceClaimGone
from ullage.engine.reclaim.copying import OutputWriter, Revoked, RewriteSource, copy_source
from ullage.engine.reclaim.execute import UNKNOWN, Executor, ReclamationParts, intent_of
from ullage.engine.reclaim.liveness import Liveness, Survivor, covers
from ullage.engine.reclaim.pacing import RunTicket, TokenBucket
from ullage.engine.reclaim.plan import ReclamationStep
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import (
    CommitOutcomeUnknown,
    ContentCorrupt,
    ContentMissing,
    ContentWriteFailed,
    DiskFull,
    RepositoryDamaged,
    RepositoryStopped,
)

MOVES_MAX = 100_000
"""Runs that one transaction relocates: 2.4 MB of its 8, and some ten milliseconds of the ledger's lock."""

BIRTHS_MAX = 4_000
"""Resource claims whose bytes one output takes: less than half of the operations that a transaction may have."""


class Overtaken(Exception):
    """What a rewrite was about to commit no longer holds."""


@dataclass(slots=True)
class Rewrite:
    """One group on its way to an output. `taken`: resource claims that nobody else changes until it is over."""

    report: ReclamationReport
    sources: list[RewriteSource] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    output: WritableClaim | None = None
    output_bytes: int = 0


LEAVING = DiskFull, ContentWriteFailed, ContentMissing
"""What may only mean that a volume is full, or away."""


class Rewriter:
    """Carries out the rewrites of plans, each group of steps into one output. One run a disk at a time."""

    def __init__(self, parts: ReclamationParts, executor: Executor, output_bytes: int) -> None:
        self._parts = parts
        self._executor = executor
        self._output_bytes = output_bytes

    def begin(self, group: Sequence[ReclamationStep], ticket: RunTicket, bucket: TokenBucket) -> Rewrite:
        """The first half: copy the survivors of a group. Nothing refers to the output yet; it is to be finished, or
        given up.
        """
        rewrite = Rewrite(ReclamationReport())
        refusal = ticket.refusal(Action.REWRITE, self._parts.clock)
        if refusal:
            rewrite.report.leave([step.resource for step in group], refusal)
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

    @uninterrupted
    def finish(self, rewrite: Rewrite) -> ReclamationReport:
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
                self._parts.content.close_output(output, committed=False)
        finally:
            self._parts.ledger.give_back(rewrite.taken)

    def _choose(self, group: Sequence[ReclamationStep], rewrite: Rewrite) -> None:
        """The steps that still hold, as sources; each is taken, so that nobody else changes it meanwhile."""
        report = rewrite.report
        births = moves = 0
        for step in group:
            try:
                self._parts.scanner.require_undisputed(step.resource)
                liveness = self._parts.scanner.examine(step.resource)
            except RepositoryDamaged as error:
                report.problems.append(str(error))
                report.leave([step.resource], UNKNOWN)
                continue
            count = _moves_of(liveness.survivors) if liveness is not None else 0
            # What does not fit stays a source of its own: a later plan takes it with others.
            if births + len(liveness.births if liveness else ()) > BIRTHS_MAX or moves + count > MOVES_MAX:
                report.leave([step.resource], "more claims than one transaction can relocate")
                continue
            with self._parts.ledger.lock:
                entry = self._parts.ledger.entry(step.resource)
                is_one = entry is not None and all(entry.claim.tenant == each.claim.tenant for each in rewrite.sources)
                # Plans do not mix tenants either; but a plan may come from elsewhere, and descriptors rely on this.
                if entry is None or liveness is None or not is_one or not self._holds(step, entry, liveness):
                    report.skipped += 1
                    continue
                source = RewriteSource(step, entry.claim, liveness)
                if not self._parts.ledger.take(source.indexes):
                    report.skipped += 1
                    continue
                rewrite.taken |= source.indexes
            rewrite.sources.append(source)
            births += len(liveness.births)
            moves += count

    def _holds(self, step: ReclamationStep, entry: ResourceEntry, liveness: Liveness) -> bool:
        """Whether a file is still as the plan saw it; called under the ledger's lock."""
        claim = entry.claim
        return (
            claim.generation == step.generation
            and claim.sealed
            and not any(birth.has_intent for birth in births(self._parts.ledger, entry))
            and not claim.archived_millis
            and not claim.unproved
            and entry.relocation is None
            and not is_unused(self._parts.ledger, entry)
            and not held_by(self._parts.ledger, self._parts.clock.now_millis()).refuses(
                self._parts.ledger, entry, Action.REWRITE
            )
            and covers(self._parts.ledger, entry, liveness)
        )

    def _copy_to_output(self, rewrite: Rewrite, ticket: RunTicket, bucket: TokenBucket) -> None:
        """Leaves in `sources` those that were copied; none where there is no room, or the run is to stop."""
        sources, report = rewrite.sources, rewrite.report
        rewrite.sources = []
        resources = [source.claim.index for source in sources]
        needed = sum(allocated_bytes(source.liveness.live_bytes) + FS_BLOCK_BYTES for source in sources)
        # As young as its youngest survivor: policies weigh by age, and would take an output for old, and copy it at
        # once.
        created_millis = max(source.claim.created_millis for source in sources)
        try:
            output = self._parts.content.begin_output(sources[0].claim, needed, created_millis)
            if output is None:
                report.leave(resources, f"no room for an output of {needed} bytes")
                return
            rewrite.output = output
            large_claim, batch_bytes = self._parts.content.limits.large_claim, self._output_bytes // 4
            writer = OutputWriter(output, large_claim, batch_bytes, ticket, bucket, report)
            rewrite.sources = self._copy(sources, writer, report)
        except Revoked:
            report.is_stopped = True
            report.leave(resources, "the run was stopped")
        except (*LEAVING, OSError) as error:
            if not (reason := self._reason(error, rewrite.output, sources)):
                raise
            report.leave(resources, reason)

    def _commit_output(self, rewrite: Rewrite) -> list[ResourceClaim]:
        """The intents of the frame that names the output; none if it was overtaken, or found no room."""
        output, sources = rewrite.output, rewrite.sources
        assert output is not None
        is_kept = is_committing = False
        try:
            self._parts.content.sync_output(output)  # durable, its name too, before anything refers to it
            # From here on the frame may be in the log whatever happens, and the output must stay.
            is_committing = True
            intents = self._commit(sources, output, rewrite.report)
            is_kept = bool(intents)
        except (*LEAVING, OSError) as error:
            if not (reason := self._reason(error, output, sources)):
                raise
            rewrite.report.leave([source.claim.index for source in rewrite.sources], reason)
            return []
        except (CommitOutcomeUnknown, RepositoryStopped):
            is_kept = True  # the log may name it: a restart tells, and finds the output whole
            raise
        except BaseException as error:
            is_kept = is_committing and not isinstance(error, Exception)  # interrupted: nobody can say where
            raise
        finally:
            output.file.drop_cache(0, 0)
            if is_kept:
                rewrite.output = None
                self._parts.content.close_output(output, committed=True)
        rewrite.output_bytes = output.offset
        return intents

    def _reason(self, error: Exception, output: WritableClaim | None, sources: Sequence[RewriteSource]) -> str:
        """Why a group is left, if its error says nothing about other volumes: they go on."""
        if is_full(error):
            return f"no room: {error}"
        claims = [source.claim for source in sources]
        for claim in claims if output is None else [output.claim, *claims]:
            if not self._parts.content.is_there(claim):
                return self._parts.content.container_of(claim).condition.reason
        return ""

    def _unlink(self, intents: list[ResourceClaim], rewrite: Rewrite) -> None:
        """The sources go; what the output takes is no gain."""
        done, report = ReclamationReport(), rewrite.report
        try:
            self._executor.finish(intents, done)
        finally:
            report.done[Action.REWRITE] += done.done.total()
            gain = done.freed_bytes + done.held_bytes - allocated_bytes(rewrite.output_bytes)
            held = max(0, min(gain, done.held_bytes))  # until readers let go the output is what there is more
            report.freed_bytes += gain - held
            report.held_bytes += held

    def _copy(
        self, sources: list[RewriteSource], writer: OutputWriter, report: ReclamationReport
    ) -> list[RewriteSource]:
        """Copy the survivors of each source; those that read back whole, in order."""
        copied: list[RewriteSource] = []
        for source in sources:
            start = writer.offset
            path = self._parts.content.path_of(source.claim)
            if self._parts.content.length_of(source.claim) is None:
                if not self._parts.content.is_there(source.claim):
                    report.leave([source.claim.index], self._parts.content.container_of(source.claim).condition.reason)
                    continue
                report.problems.append(f"resource claim {source.claim.index}: {path} is missing")
                report.leave([source.claim.index], "its file is missing")
                continue
            with self._parts.content.reading(source.claim) as file:
                try:
                    copy_source(source, file, path, writer)
                except (ContentCorrupt, ContentMissing) as error:
                    writer.go_back(start)
                    file.drop_cache(0, 0)
                    report.problems.append(str(error))
                    report.leave([source.claim.index], "it does not read back whole: run check --deep")
                    continue
            copied.append(source)
        return copied

    def _commit(
        self, sources: list[RewriteSource], output: WritableClaim, report: ReclamationReport
    ) -> list[ResourceClaim]:
        """The relocations and the intents to unlink, in one frame; the intents, or none if events overtook it."""
        with self._parts.ledger.lock:
            # Also what the record says of generation and deaths, so under the lock and as late as can be.
            operations, intents = self._operations(sources, output)

        # Again right before the id is taken: a lease, a pin or a death may have come while the output was synced.
        def validate() -> None:
            with self._parts.ledger.lock:
                for source in sources:
                    entry = self._parts.ledger.entry(source.claim.index)
                    if entry is None or not self._holds(source.step, entry, source.liveness):
                        raise Overtaken

        try:
            self._parts.committer.commit(operations, creates=False, validate=validate)
        except Overtaken:
            report.skipped += len(sources)
            return []
        return intents

    def _operations(
        self, sources: list[RewriteSource], output: WritableClaim
    ) -> tuple[list[Operation], list[ResourceClaim]]:
        claim = output.claim
        made = msgspec.structs.replace(claim, length=output.offset, sealed=True, generation=1)
        operations: list[Operation] = [made]
        intents: list[ResourceClaim] = []
        for source in sources:
            entry = self._parts.ledger.entry(source.claim.index)
            if entry is None:
                raise Overtaken
            for birth in source.liveness.births:
                moves = source.moves.get(birth)
                if moves:
                    operations.append(Relocation(birth, claim.index, pack_moves(sorted(moves))))
                    operations += self._following(birth, source, claim.container)
                elif birth != source.claim.index and self._parts.ledger.entry(birth) is not None:
                    operations.append(ResourceClaimGone(birth))
            # With claims of its own it stays, as where they were born; an output has none, and goes.
            action = Action.REWRITE if source.claim.index in source.moves else Action.DELETE
            intents.append(intent_of(entry, action, generation=entry.claim.generation + 1))
        return [*operations, *intents], intents

    def _following(self, birth: int, source: RewriteSource, container: str) -> Iterator[Operation]:
        """Records of what was moved before name the container of their bytes, so that one that is emptied is named by
        none. The source's own follows when its file is gone (`Executor._delete`).
        """
        entry = self._parts.ledger.entry(birth)
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
