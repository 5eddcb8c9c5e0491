"""Looking for a subject in a repository of this machine that nobody has open, and erasing it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import msgspec

from ullage.clock import moment_of
from ullage.contract import ContentRepository
from ullage.embedded.ownerfiles import write_anew
from ullage.embedded.repository import open_embedded
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import Eraser, ErasureSteps, intent_file, unfindable
from ullage.engine.erasure.finder import cost_of, find_subject, look_for
from ullage.engine.erasure.intent import ErasureIntent, IntentFile, erase_command, told_left_over
from ullage.engine.erasure.overwriting import OverwritingFiles
from ullage.engine.erasure.subject import DigestedSubjects, digest_of
from ullage.engine.files import OsFiles
from ullage.engine.registers import (
    PendingErasure,
    RegisteredSubject,
    SubjectDigest,
    end_erasing,
    merged,
    packed_register,
    read_register,
    register,
    register_path,
)
from ullage.errors import FormatTooNew, InvalidArgument, RepositoryDamaged
from ullage.wire.erasure import ErasureCertificate, ErasureCost, ErasureReport, ErasureSurvey, RestoredErasure
from ullage.wire.upkeep import RecoveryReport


def survey_subject(
    document: ContentRepository,
    where: Mapping[str, str],
    *,
    on_cost: Callable[[ErasureCost], None],
    on_step: Callable[[int], None],
    on_recovery: Callable[[RecoveryReport], None] | None = None,
) -> ErasureSurvey:
    """All that a repository has of a subject: whatever has all these attributes. Opening it does what each start does;
    nothing else is changed.

    `on_cost` is told what will be read before the look begins, and ends it by raising. `on_step` is told how many more
    records were looked at. Errors are those of `ullage.open`.
    """
    _require_some(where)
    with open_embedded(None, document, create=False, maintain=False, on_recovery=on_recovery) as repository:
        cost = cost_of(repository.engine)
        on_cost(cost)
        survey = find_subject(repository.engine, where, cost, on_step)
        intent = intent_file(repository.engine).read()
        if intent is None:
            return survey
        return msgspec.structs.replace(survey, not_promised=(*survey.not_promised, f"{begun(intent)}."))


def erase_subject(
    document: ContentRepository,
    where: Mapping[str, str],
    *,
    on_cost: Callable[[ErasureCost], None],
    on_found: Callable[[ErasureSurvey], bool],
    on_phase: Callable[[str], None],
    on_step: Callable[[int], None],
    on_report: Callable[[ErasureReport], None] = lambda _report: None,
    on_recovery: Callable[[RecoveryReport], None] | None = None,
    may_begin: Callable[[int | None], None] = lambda _began_millis: None,
    overwrites: bool = False,
) -> ErasureReport | None:
    """Erase all that a repository has of a subject; what was done, or None where `on_found`, which is told what there
    is, does not want it. One that was begun and interrupted is finished, and `on_found` is not asked.
    `on_phase` is told of each step as it begins, in words, `on_step` as in `survey_subject`, `on_report` of what was
    done before that is over: where it raises, the next call tells of it again. `may_begin` is told when the one that is
    finished was begun, None if none was, and ends it by raising: nothing was looked at or changed then.

    With `overwrites`, or where the one that was interrupted did that, what goes is overwritten with zeros before its
    blocks are given back, where the filesystem allows for it: `not_promised` says so.

    InvalidArgument if the erasure of another subject was begun and is not finished.
    """
    _require_some(where)
    overwriting = OverwritingFiles(OsFiles()) if overwrites or _overwrote(document) else None
    parts: dict[str, Any] = {} if overwriting is None else {"files": overwriting}
    with (
        nullcontext() if overwriting is None else closing(overwriting),
        open_embedded(None, document, create=False, maintain=False, on_recovery=on_recovery, **parts) as repository,
    ):
        engine = repository.engine
        eraser = Eraser(engine, ErasureSteps(on_phase, on_step, on_report), overwriting)
        intent = intent_file(engine).read()
        if intent is not None and intent.where != dict(where):
            raise InvalidArgument(f"{begun(intent)}. Nothing was looked at or changed")
        may_begin(None if intent is None else intent.began_millis)
        cost = cost_of(engine)
        on_cost(cost)
        found = look_for(engine, where, cost, on_step)
        if intent is not None:
            return eraser.finish(eraser.resume(intent, found))
        if not on_found(found.survey):
            return None
        return eraser.finish(eraser.begin(found))


def look_again(
    document: ContentRepository,
    certificate: ErasureCertificate,
    digest_key: bytes,
    *,
    on_cost: Callable[[ErasureCost], None],
    on_step: Callable[[int], None],
    on_recovery: Callable[[RecoveryReport], None] | None = None,
) -> tuple[ErasureSurvey, str]:
    """What a repository has now of the subject of a certificate, whose values nobody has to know; and what to say of an
    erasure that is not finished, whosoever it is.

    InvalidArgument if the certificate is another repository's.
    """
    digest = SubjectDigest(
        attributes=tuple(sorted(certificate.attributes)), key=digest_key, digest=bytes.fromhex(certificate.subject)
    )
    subject = DigestedSubjects([digest])
    with open_embedded(None, document, create=False, maintain=False, on_recovery=on_recovery) as repository:
        engine = repository.engine
        if engine.identity.repository != certificate.repository:
            raise InvalidArgument(
                f"the certificate is of repository {certificate.repository}, and this one is "
                f"{engine.identity.repository}"
            )
        cost = cost_of(engine)
        on_cost(cost)
        intent = intent_file(engine).read()
        return look_for(engine, {}, cost, on_step, subject).survey, "" if intent is None else begun(intent)


def erase_registered(
    document: ContentRepository, pending: PendingErasure, steps: ErasureSteps, **parts: Any
) -> tuple[RestoredErasure, ...]:
    """Erase from a repository that was restored, and that nobody opens until this is done, whom a register names and
    whom what was restored may have. Their values nobody has to know: what has attributes of these names is digested,
    and compared.

    It may be interrupted, and said again. It ends with the first one of which something remains that may go another
    time. From then on the register is the repository's own. `parts` are the engine's: files and clock.
    """
    done: list[RestoredErasure] = []
    meant = [each for each in pending.subjects if each.is_in(pending.moment)]
    own = {"repository": pending.moment.repository}
    with _being_made(document, parts) as engine:
        # As of now: from here on nobody of them is in it, but who comes anew.
        stamp = {"ended_millis": engine.clock.now_millis(), "last_transaction": engine.log.durable}
        register(engine.files, engine.root, [msgspec.structs.replace(each, **own, **stamp) for each in meant])
        register(engine.files, engine.root, [each for each in pending.subjects if each not in meant])
        for id in list(engine.ledger.leases):  # whoever has one reads from the repository that was backed up, not here
            engine.leases.release(id)
        intent = intent_file(engine).read()
        if intent is not None:
            done.append(_restored_erasure(Eraser(engine, steps).finish(intent)))
    if done and not done[0].is_finished:
        return tuple(done)
    registered = DigestedSubjects(meant)
    if not registered.is_empty:
        with _being_made(document, parts) as engine:
            steps.on_phase("looking for whom the register of erasures names")
            unread = look_for(engine, {}, cost_of(engine), steps.on_step, registered).survey.unread
        for each in unread:
            steps.on_phase(f"could not be read, and may have somebody whom the register names: {each}")
    for pairs in registered.found:
        with _being_made(document, parts) as engine:  # each anew: an open one knows what was before
            eraser = Eraser(engine, steps)
            intent = eraser.begin(look_for(engine, dict(pairs), cost_of(engine), steps.on_step))
            done.append(_restored_erasure(eraser.finish(intent)))
        if not done[-1].is_finished:
            return tuple(done)
    with _being_made(document, parts) as engine:
        end_erasing(engine.files, engine.root)
    return tuple(done)


@contextmanager
def _being_made(document: ContentRepository, parts: Mapping[str, Any]) -> Iterator[Engine]:
    with open_embedded(None, document, create=False, maintain=False, is_salvage=True, **parts) as repository:
        yield repository.engine


def _restored_erasure(report: ErasureReport) -> RestoredErasure:
    return RestoredErasure(
        attributes=tuple(sorted(report.where)),
        uuids=report.uuids,
        event_files=report.event_files,
        remains=report.remains,
        is_finished=report.is_finished,
    )


def keep_register(document: ContentRepository, path: str) -> None:
    """Add the register of a repository to a file elsewhere, durably; it is made where it is not there, for its owner
    only. InvalidArgument: it is damaged, or something else.
    """
    own = read_register(OsFiles(), register_path(document.spec.storage.host_path.path))
    write_anew(path, packed_register(merged(register_at(path), own)), is_replaced=True)


def register_at(path: str) -> tuple[RegisteredSubject, ...]:
    """Whom a register names; nobody where it is not there. InvalidArgument: it is no register, or damaged."""
    try:
        return read_register(OsFiles(), os.path.abspath(path))
    except RepositoryDamaged as error:
        raise InvalidArgument(str(error)) from error


def subject_digest(where: Mapping[str, str], key: bytes) -> bytes:
    """See `digest_of`."""
    return digest_of(where, key)


def give_up_erasure(document: ContentRepository, *, is_forced: bool) -> tuple[str, ...] | None:
    """Forget an erasure that was begun: what is gone stays gone, what is not stays. None if none was begun; else what
    is left that nobody finds any more, in words.

    Unless it is forced, InvalidArgument where there is such, and RepositoryDamaged if what was begun can't be read.
    """
    with open_embedded(None, document, create=False, maintain=False) as repository:
        engine = repository.engine
        place = intent_file(engine)
        try:
            intent = place.read()
        except (RepositoryDamaged, FormatTooNew) as error:
            if not is_forced:
                raise
            place.remove()
            return (f"nobody knows what: {error}",)
        if intent is None:
            return None
        left = unfindable(engine, intent, look_for(engine, intent.where, cost_of(engine), lambda _count: None))
        if left and not is_forced:
            raise InvalidArgument(
                "Something is gone already, and of the rest only the erasure that was begun knows: "
                f"{'; '.join(left)}. Nothing was forgotten: finish it (`{erase_command(intent.where)}`), or say "
                "--give-up --yes, which leaves this where nobody finds it"
            )
        place.remove()
        return left


def unfinished_erasure(root: str) -> str:
    """What to say of an erasure that was begun in the repository at this root and is not finished; empty if there is
    none. It may be open, and nothing is changed. Whose it is stands in it: what others read is `told_unfinished`.
    """
    if not os.path.isdir(root):
        return ""
    try:
        intent = IntentFile(OsFiles(), root, "").peek()
    except (RepositoryDamaged, FormatTooNew) as error:
        return str(error)
    return told_left_over(OsFiles(), root) if intent is None else begun(intent)


def begun(intent: ErasureIntent) -> str:
    """What to say of an erasure that is not finished."""
    return (
        f"An erasure was begun at {moment_of(intent.began_millis)} and is not finished: finish it "
        f"(`{erase_command(intent.where)}`), or give it up (`ullage erase --give-up`)"
    )


def _overwrote(document: ContentRepository) -> bool:
    """Whether an erasure that was begun there overwrites: what its next opening removes goes so, too."""
    try:
        intent = IntentFile(OsFiles(), document.spec.storage.host_path.path, "").peek()
    except (RepositoryDamaged, FormatTooNew):  # whoever opens the repository is told
        return False
    return intent is not None and intent.overwrites


def _require_some(where: Mapping[str, str]) -> None:
    if not where:
        raise InvalidArgument("say at least one attribute: without one everything would be the subject")
