"""`ullage erase`: everything that a repository has of a subject goes, or is shown."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from ullage.clock import moment_of
from ullage.errors import InvalidArgument
from ullage.wire.erasure import ErasureCertificate, ErasureCost, ErasurePlace, ErasureReport, ErasureSurvey
from ullage_agent.cli.choice import ChosenRepository, say_recovery
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import PAIR, command, json_output, on_files, option
from ullage_agent.cli.output import bar, console, many, print_json, print_table, say, size, tell

if TYPE_CHECKING:
    from ullage_agent.cli.erasurekey import ErasureKey

WORDS: Final = {
    ErasurePlace.QUEUED: "FlowFiles in queues",
    ErasurePlace.SWAPPED: "FlowFiles in swap files",
    ErasurePlace.HELD: "held by a salvage",
    ErasurePlace.STAGED: "staged, not settled",
    ErasurePlace.SET_ASIDE: "records set aside",
    ErasurePlace.HANDLES: "handles in memory",
    ErasurePlace.RUN_HANDLES: "handles in runs",
    ErasurePlace.TOMBSTONES: "deleted handles",
    ErasurePlace.OWN_CONTENT: "content that only the subject needs",
    ErasurePlace.SHARED_CONTENT: "content that others need, too",
    ErasurePlace.ARCHIVED_CONTENT: "dead content in the archive",
    ErasurePlace.DEAD_CONTENT: "dead content not given back yet",
    ErasurePlace.RELOCATED_CONTENT: "of these contents, moved by rewrites",
    ErasurePlace.EVENTS_BEFORE: "events, attributes before",
    ErasurePlace.EVENTS_AFTER: "events, attributes after",
    ErasurePlace.ANSWERS: "remembered answers",
}

NOTHING: Final = "nothing was found of the subject; it is registered, so that no restoration brings it back"

NEW_FILE: Final = click.Path(dir_okay=False, writable=True)
OLD_FILE: Final = click.Path(dir_okay=False, exists=True)


class KeptElsewhere(NamedTuple):
    """Files that an erasure writes elsewhere."""

    certificate: str | None
    register: str | None


@command()
@option(
    "--where",
    "first",
    type=PAIR,
    multiple=True,
    metavar="ATTRIBUTE=VALUE",
    help="The subject has this attribute.",
)
@option(
    "--and",
    "others",
    type=PAIR,
    multiple=True,
    metavar="ATTRIBUTE=VALUE",
    help="The subject has this attribute as well; may be repeated.",
)
@option("--dry-run", is_flag=True, help="Change nothing, and show what there is of the subject.")
@option("--yes", is_flag=True, help="Erase without asking; with --give-up: whatever is left.")
@option(
    "--certificate", type=NEW_FILE, metavar="FILE", help="Write a signed certificate of what was done to a new file."
)
@option(
    "--register",
    type=NEW_FILE,
    metavar="FILE",
    help="Add the register to this file, too, for `ullage restore --register`.",
)
@option("--overwrite", is_flag=True, help="Overwrite with zeros what goes, before its blocks are given back.")
@option("--verify", type=OLD_FILE, metavar="CERTIFICATE", help="Check a certificate, and look for its subject again.")
@option("--public-key", is_flag=True, help="Print the public key of the repository's certificates.")
@option("--give-up", is_flag=True, help="Forget an erasure that was begun and can't be finished.")
@json_output
@on_files
def erase(
    where: ChosenRepository,
    first: tuple[tuple[str, str], ...],
    others: tuple[tuple[str, str], ...],
    dry_run: bool,
    yes: bool,
    certificate: str | None,
    register: str | None,
    overwrite: bool,
    verify: str | None,
    public_key: bool,
    give_up: bool,
    as_json: bool,
) -> None:
    """Erase everything that a repository has of a subject, for good.

    A subject is whatever has all the attributes that are said. Its FlowFiles and handles go wherever they stand, and
    with them their contents, as far as nobody else needs them, what provenance tells of them, the remembered answers
    that name them, and further copies in log, snapshot, runs and swap files. What there is is shown first, and a
    question asked. What could not be done, and what can't be promised, is said at the end. A register of digests, which
    each later backup has, and a --register FILE, too, keeps restorations from bringing it back, also where nothing was
    found. See docs/erasure.md.

    No service may have the repository open. An erasure that was interrupted is finished by the same command. Exit code
    11 if something remains that may go another time, or could not be read; 1 if --verify finds something of the
    subject, or a certificate that is not this repository's.
    """
    if give_up or verify or public_key:
        is_more = any([first, others, dry_run, certificate, register, overwrite, yes and not give_up])
        if [give_up, bool(verify), public_key].count(True) > 1 or is_more:
            raise click.UsageError("--verify, --public-key and --give-up stand alone: they erase nothing")
        _beside(where, verify, is_given_up=give_up, is_forced=yes, as_json=as_json)
        return
    subject = _subject(first, others)
    if dry_run and (certificate or register or overwrite):
        raise click.UsageError("--dry-run erases nothing that could be overwritten, or told of elsewhere")
    if not dry_run:
        kept = KeptElsewhere(certificate, register)
        _erase(where, subject, kept, overwrites=overwrite, is_asked=not yes, as_json=as_json)
        return
    survey = _surveyed(where, subject)
    if as_json:
        print_json(msgspec.to_builtins(survey))
    else:
        _print(survey)
        tell("")
        tell("Nothing was erased: this was a dry run")
    if survey.unread:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _beside(where: ChosenRepository, verify: str | None, *, is_given_up: bool, is_forced: bool, as_json: bool) -> None:
    if verify:
        _verify(where, verify, as_json=as_json)
    elif is_given_up:
        _give_up(where, is_forced=is_forced)
    else:
        from ullage_agent.cli.erasurekey import ErasureKey

        tell(ErasureKey.of(_root_of(where), is_made=False).public)


def _give_up(where: ChosenRepository, *, is_forced: bool) -> None:
    from ullage.embedded.erasure import give_up_erasure

    left = give_up_erasure(where.document(), is_forced=is_forced)
    if left is None:
        tell("no erasure was begun: there is nothing to give up")
        return
    tell("the erasure that was begun is forgotten: what is gone stays gone, and what is not stays")
    for each in left:
        tell(f"remains, and is found by no erasure any more: {each}")
    if left:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _verify(where: ChosenRepository, path: str, *, as_json: bool) -> None:
    """Exit code 1 if the certificate is not the repository's, or something is there; 11 if more may be there."""
    from ullage.embedded.erasure import look_again
    from ullage_agent.cli.erasurekey import ErasureKey

    certificate = _certificate_at(path)
    key = ErasureKey.of(_root_of(where), is_made=False)
    if not _is_signed(certificate, path, key):
        say(
            f"{path} was changed since it was signed, or the key of another repository signed it: nothing was looked at"
        )
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    with _looking() as (on_cost, on_step):
        survey, unfinished = look_again(
            where.document(), certificate, key.digest_key, on_cost=on_cost, on_step=on_step, on_recovery=say_recovery
        )
    remains = certificate.remains
    if not certificate.is_finished:
        remains += ("when the certificate was signed, its erasure was not finished",)
    if unfinished:
        remains += (unfinished,)
    if as_json:
        print_json(msgspec.to_builtins(survey) | {"remains": remains})
    else:
        _print_verified(certificate, survey, remains)
    if survey.is_found:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    if survey.unread or unfinished or not certificate.is_finished:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _print_verified(certificate: ErasureCertificate, survey: ErasureSurvey, remains: tuple[str, ...]) -> None:
    tell(f"the certificate is this repository's, and unchanged; what it tells of ended at {_moment(certificate)}")
    if not certificate.is_found:
        tell("it says that nothing was found of the subject then")
    screen = console()
    for each in remains:
        screen.print(f"remains: {each}", soft_wrap=True)
    _print(survey)


def _certificate_at(path: str) -> ErasureCertificate:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ErasureCertificate)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is no certificate of an erasure: {error}") from error


def _is_signed(certificate: ErasureCertificate, path: str, key: "ErasureKey") -> bool:
    """Whether a file is as this key has signed it, byte by byte."""
    from ullage_agent.cli.erasurekey import certificate_bytes, is_unchanged

    is_canonical = Path(path).read_bytes() == certificate_bytes(certificate)
    return is_canonical and is_unchanged(certificate) and certificate.public_key == key.public


def _moment(certificate: ErasureCertificate) -> str:
    return moment_of(certificate.ended_millis).isoformat(" ", "seconds")


def _root_of(where: ChosenRepository) -> str:
    return where.document().spec.storage.host_path.path


def _erase(
    where: ChosenRepository,
    subject: dict[str, str],
    kept: KeptElsewhere,
    *,
    overwrites: bool,
    is_asked: bool,
    as_json: bool,
) -> None:
    from ullage.embedded.erasure import register_at

    for path in filter(None, kept):
        _require_place(path)
    if kept.register is not None:
        register_at(kept.register)  # what is no register is told before anything goes
    if is_asked and (as_json or not _is_terminal()):
        raise click.UsageError(
            "this erases for good what --dry-run shows, and there is nobody to ask: say --yes. Nothing was "
            "looked at or changed"
        )
    on_found = partial(_is_wanted, is_asked=is_asked, is_shown=not as_json)
    report = _erased(where, subject, kept, on_found, overwrites=overwrites)
    if as_json:
        print_json(msgspec.to_builtins(report))
    if report is None:
        say("nothing was erased")
        return
    if not as_json:
        _print_report(report)
    if not report.is_finished:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _require_place(path: str) -> None:
    """Before anything is looked at: an erasure that can't be told of there does not end."""
    directory = Path(path).parent
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise click.UsageError(f"{directory} is no directory that may be written. Nothing was changed")


def _may_begin(where: ChosenRepository, certificate: str | None, began_millis: int | None) -> None:
    """A certificate replaces nothing but what the same erasure has written there, when it did not come to its end."""
    from ullage_agent.cli.erasurekey import ErasureKey

    # A link that leads nowhere is something, too: the certificate would not take its place.
    if certificate is None or not os.path.lexists(certificate):
        return
    with suppress(click.UsageError, InvalidArgument, OSError):  # what can't be read as one is somebody else's
        found, key = _certificate_at(certificate), ErasureKey.of(_root_of(where), is_made=False)
        if found.began_millis == began_millis and _is_signed(found, certificate, key):
            return
    raise click.UsageError(f"{certificate} is there already: a certificate replaces nothing. Nothing was changed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _is_wanted(survey: ErasureSurvey, *, is_asked: bool, is_shown: bool) -> bool:
    if is_shown:
        _print(survey)
    if not is_asked:
        return True
    question = "Erase all of this for good?"
    if not (survey.is_found or survey.unread):  # but a backup of before may have the subject
        question = "Register the subject, so that no restoration brings it back?"
    with interrupts.allowed():
        return click.confirm(question)


def _erased(
    where: ChosenRepository,
    subject: dict[str, str],
    kept: KeptElsewhere,
    on_found: Callable[[ErasureSurvey], bool],
    *,
    overwrites: bool,
) -> ErasureReport | None:
    from ullage.embedded.erasure import erase_subject, keep_register

    def on_cost(cost: ErasureCost) -> None:
        say(_cost(cost))
        interrupts.check()

    def on_report(report: ErasureReport) -> None:
        if kept.register is not None:
            keep_register(where.document(), kept.register)
            say(f"register kept in {kept.register}")
        if kept.certificate is not None:  # last: it says that all else is done
            _certify(where, report, kept.certificate)

    def on_phase(words: str) -> None:
        say(words)
        interrupts.check()

    def on_step(_count: int) -> None:
        interrupts.check()  # wherever it ends, the same command goes on

    with interrupts.deferred():
        return erase_subject(
            where.document(),
            subject,
            on_cost=on_cost,
            on_found=on_found,
            on_phase=on_phase,
            on_step=on_step,
            on_report=on_report,
            on_recovery=say_recovery,
            may_begin=partial(_may_begin, where, kept.certificate),
            overwrites=overwrites,
        )


def _certify(where: ChosenRepository, report: ErasureReport, path: str) -> None:
    from ullage.embedded.ownerfiles import write_anew
    from ullage_agent.cli.erasurekey import ErasureKey, certificate_bytes

    key = ErasureKey.of(_root_of(where), is_made=True)
    # What is there by now is of the same erasure, which wrote it and did not come to its end; or somebody put it there
    # since, and it stays.
    _may_begin(where, path, report.began_millis)
    write_anew(path, certificate_bytes(key.certificate(report)), is_replaced=os.path.lexists(path))
    say(f"certificate written to {path}")


def _print_report(report: ErasureReport) -> None:
    screen = console()
    words = (
        f"erased: {many(report.uuids, 'FlowFile')} (handles included), with their contents; "
        f"{many(report.event_files, 'file')} of provenance events were written anew"
    )
    screen.print(words if report.is_found else NOTHING, soft_wrap=True)
    for each in report.remains:
        screen.print(f"remains: {each}", soft_wrap=True)
    if not report.is_finished:
        screen.print("The erasure is not finished: repeat the command once that may be done, or give it up.")
    _print_not_promised(report.not_promised)


def _subject(first: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> dict[str, str]:
    if not first:
        raise click.UsageError("say whom: --where ATTRIBUTE=VALUE")
    if len(first) > 1:
        # Elsewhere the last of an option's values counts: so the subject would be wider than whoever typed it meant.
        raise click.UsageError("--where is said more than once: say --and for what the subject has besides")
    found: dict[str, str] = {}
    for name, value in (*first, *others):
        if name in found:
            raise click.UsageError(f"{name!r} is said twice; of two values nothing has both")
        if not value:
            # Of `customer=$ID` with a variable that is not set nobody would want to erase what has an empty value.
            raise click.UsageError(f"{name!r} has an empty value, and a subject has none: is a variable not set?")
        found[name] = value
    return found


def _surveyed(where: ChosenRepository, subject: dict[str, str]) -> ErasureSurvey:
    from ullage.embedded.erasure import survey_subject

    with _looking() as (on_cost, on_step):
        return survey_subject(where.document(), subject, on_cost=on_cost, on_step=on_step, on_recovery=say_recovery)


@contextmanager
def _looking() -> Iterator[tuple[Callable[[ErasureCost], None], Callable[[int], None]]]:
    """Says what will be read, and shows how far that is; Ctrl-C ends it."""

    def on_cost(cost: ErasureCost) -> None:
        say(_cost(cost))
        interrupts.check()

    def on_step(count: int) -> None:
        progress.advance(count)
        interrupts.check()

    with bar("Looking", None, is_bytes=False) as progress, interrupts.deferred():
        yield on_cost, on_step


def _cost(cost: ErasureCost) -> str:
    return (
        f"this reads {many(cost.records, 'record')} (FlowFiles and handles) twice, "
        f"{many(cost.swap_files, 'swap file')}, {size(cost.run_bytes)} of runs, and "
        f"{many(cost.events, 'event')} in {size(cost.event_bytes)} of event files"
    )


def _print(survey: ErasureSurvey) -> None:
    rows = [(WORDS[each.place], f"{each.count:,}", size(each.bytes)) for each in survey.findings if each.count]
    if rows:
        print_table(("place", ">count", ">bytes"), rows)
    else:
        tell("nothing was found of the subject")
    screen = console()
    for each in survey.unread:
        screen.print(f"could not be read: {each}", soft_wrap=True)
    _print_not_promised(survey.not_promised)


def _print_not_promised(sentences: tuple[str, ...]) -> None:
    screen = console()
    screen.print()
    screen.print("What this does not tell:", soft_wrap=True)
    for sentence in sentences:
        screen.print(f"- {sentence}", soft_wrap=True)
