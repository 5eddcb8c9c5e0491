"""Erases a subject from a repository that nobody else uses: an intent, then step by step what it promises.

    intent | records go | events redacted | answers forgotten | contents given back | copies go | look again
           | the register names its digest | no intent

Each step may be done again, whatever a crash left of it: who erases next looks again, adds what has come meanwhile to
the intent, and goes on from it. The repository is to be closed afterwards, and opened anew by whoever wants to use it.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ullage.engine.engine import Engine
from ullage.engine.erasure.answers import names_any
from ullage.engine.erasure.finder import FoundSubject, cost_of, find_subject
from ullage.engine.erasure.forcing import ContentWiper
from ullage.engine.erasure.intent import ErasureIntent, IntentFile
from ullage.engine.erasure.overwriting import OverwritingFiles
from ullage.engine.erasure.redaction import Redaction
from ullage.engine.erasure.remains import remains_of
from ullage.engine.erasure.subject import Subject, digest_of
from ullage.engine.erasure.unpromised import COPIES, FREED
from ullage.engine.erasure.wiping import RecordWiper, wipe_answers, wipe_runs
from ullage.engine.model import ContentClaim, split_uuids
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.registers import KEY_BYTES, RegisteredSubject, read_register, register, register_path
from ullage.wire.erasure import ErasureFinding, ErasureReport


class ErasureSteps(NamedTuple):
    """Whom to tell: of each step as it begins, in words, of records and bytes as they are done, and at the end of what
    was done. Where that raises, the next call does it again, and tells of it again.
    """

    on_phase: Callable[[str], None]
    on_step: Callable[[int], None]
    on_report: Callable[[ErasureReport], None] = lambda _report: None


class Eraser:
    """Used by one thread. What it raises leaves the intent, and the next one goes on."""

    def __init__(self, engine: Engine, steps: ErasureSteps, overwriting: OverwritingFiles | None = None) -> None:
        """`overwriting`: the files with which the engine was opened, if what goes is to be overwritten."""
        self._engine = engine
        self._overwriting = overwriting
        self._steps = steps
        self._place = intent_file(engine)

    def begin(self, found: FoundSubject) -> ErasureIntent:
        """Promise to erase what was found: from here on it goes."""
        intent = self._place.new(
            where=found.survey.where,
            began_millis=self._engine.clock.now_millis(),
            uuids=b"".join(sorted(found.uuids)),
            claims=found.claims,
            transaction=self._engine.log.durable,
            found=found.survey.findings,
            overwrites=self._overwriting is not None,
        )
        self._place.write(intent)
        return intent

    def resume(self, intent: ErasureIntent, found: FoundSubject) -> ErasureIntent:
        """Promise also what was found just now: since the intent was written the repository may have been used, and
        whatever of the subject came then would lose its records, and keep its content and answers.
        """
        if self._overwriting is not None:
            self._overwriting.overwritten.is_resumed = True
        merged = msgspec.structs.replace(
            intent,
            overwrites=self._overwriting is not None,
            uuids=b"".join(sorted(uuids_of(intent) | found.uuids)),
            claims=tuple(sorted({*intent.claims, *found.claims}, key=_place_of)),
            found=tuple(map(_larger, intent.found, found.survey.findings)) or found.survey.findings,
        )
        if merged != intent:
            self._place.write(merged)  # durable before the records go that tell of it
        return merged

    def finish(self, intent: ErasureIntent) -> ErasureReport:
        """Do what an intent promises, and look again. The intent stays where something is left that may go another
        time.
        """
        subject, uuids = Subject(intent.where), uuids_of(intent)
        key = self._register_key()  # a register that can't be read is told before anything goes
        self._steps.on_phase("reading what was not proved since an unclean end")
        self._engine.proof.run()  # a file that may not read back is left alone, as everybody leaves it
        self._steps.on_phase("removing records")
        RecordWiper(self._engine, subject, self._steps.on_step).wipe()
        self._steps.on_phase("redacting provenance events")
        redacted = self._redact(subject, uuids)
        self._steps.on_phase("forgetting answers")
        wipe_answers(self._engine, uuids)
        self._steps.on_phase("giving back content")
        content = ContentWiper(self._engine, intent.claims, self._steps.on_step).wipe()
        self._steps.on_phase("removing further copies: log, snapshot, runs, swap files")
        is_whole = wipe_runs(self._engine)
        self._sync_removals()
        self._steps.on_phase("looking again")
        survey = find_subject(self._engine, intent.where, cost_of(self._engine), self._steps.on_step)
        failures: Sequence[str] = () if self._overwriting is None else self._overwriting.overwritten.failures
        remains, is_finished = remains_of(survey, content, failures, are_runs_whole=is_whole)
        report = self._report(intent, redacted, survey.not_promised, remains, is_finished=is_finished)
        # What is gone here a backup may have still, also where something remains.
        register(self._engine.files, self._engine.root, [_registered(report, key)])
        # Before the intent goes: without it nobody knows any more what was erased, and nothing could be certified.
        self._steps.on_report(report)
        if is_finished:
            self._place.remove()
        return report

    def _register_key(self) -> bytes:
        """That of the last entry, so that nobody is in the register twice."""
        known = read_register(self._engine.files, register_path(self._engine.root))
        return known[-1].key if known else os.urandom(KEY_BYTES)

    def _report(
        self,
        intent: ErasureIntent,
        redacted: int,
        not_promised: Sequence[str],
        remains: tuple[str, ...],
        *,
        is_finished: bool,
    ) -> ErasureReport:
        return ErasureReport(
            where=intent.where,
            repository=intent.repository,
            first_transaction=intent.transaction + 1,
            last_transaction=self._engine.log.durable,
            found=intent.found,
            began_millis=intent.began_millis,
            ended_millis=self._engine.clock.now_millis(),
            uuids=len(uuids_of(intent)),
            event_files=redacted,
            remains=remains,
            not_promised=self._not_promised(not_promised),
            overwritten_bytes=None if self._overwriting is None else self._overwriting.overwritten.bytes,
            is_finished=is_finished,
        )

    def _not_promised(self, found: Sequence[str]) -> tuple[str, ...]:
        left = [each for each in found if each != COPIES]
        if self._overwriting is None:
            return tuple(left)
        return (*(each for each in left if each != FREED), *self._overwriting.overwritten.not_promised())

    def _redact(self, subject: Subject, uuids: frozenset[bytes]) -> int:
        provenance = self._engine.provenance
        if not isinstance(provenance, ProvenanceStore):
            return 0
        # Those that only the log has: in a file they can be redacted, and the log goes with the checkpoint.
        provenance.drain()
        compress = self._engine.spec.provenance.compress_on_rollover
        return provenance.rewrite(Redaction(subject, uuids, provenance.event_files, compress=compress).anew)

    def _sync_removals(self) -> None:
        """Nothing that was unlinked comes back with a crash: others leave that to the next start, which removes it
        again.
        """
        files, swaps = self._engine.files, self._engine.swap_files.directory
        if files.exists(swaps):
            files.sync_directory(swaps)
        self._engine.spaces.sync_names()
        if self._overwriting is not None:
            self._overwriting.settle()


def _larger(before: ErasureFinding, now: ErasureFinding) -> ErasureFinding:
    """Of what was found of a place when an erasure began, and when it went on: some of it both times, perhaps."""
    return msgspec.structs.replace(before, count=max(before.count, now.count), bytes=max(before.bytes, now.bytes))


def unfindable(engine: Engine, intent: ErasureIntent, found: FoundSubject) -> tuple[str, ...]:
    """What is still there of an erasure that was begun, and only its intent knows: in words. `found` is what a look
    without it finds.
    """
    claims = set(intent.claims).difference(found.claims)
    uuids = uuids_of(intent) - found.uuids
    left = list(ContentWiper(engine, sorted(claims, key=_place_of), lambda _size: None).dead())
    named = sum(names_any(each.answer, uuids) for each in engine.spaces.answers.all(lambda _error: None))
    if named:
        left.append(f"remembered answers that name FlowFiles of the subject: {named}")
    if uuids:
        left.append("what log, snapshot, runs and retired swap files have of records that were removed")
    return tuple(left)


def _place_of(claim: ContentClaim) -> tuple[int, int]:
    return claim.resource, claim.offset


def _registered(report: ErasureReport, key: bytes) -> RegisteredSubject:
    return RegisteredSubject(
        attributes=tuple(sorted(report.where)),
        key=key,
        digest=digest_of(report.where, key),
        repository=report.repository,
        ended_millis=report.ended_millis,
        last_transaction=report.last_transaction,
    )


def uuids_of(intent: ErasureIntent) -> frozenset[bytes]:
    """The subject's FlowFiles and handles."""
    return frozenset(split_uuids(intent.uuids))


def intent_file(engine: Engine) -> IntentFile:
    """Where the intent of an open repository lies."""
    return IntentFile(engine.files, engine.root, engine.identity.repository)
