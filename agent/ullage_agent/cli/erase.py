"""`ullage erase`: everything that a repository has of a subject goes, or is shown."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from ullage.clock import moment_of
from ullage.wire.erasure import ErasureCertificate, ErasureCost, ErasurePlace, ErasureReport, ErasureSurvey
from ullage_agent.cli.choice import ChosenRepository, say_recovery
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import PAIR, command, json_output, on_files, option
from ullage_agent.cli.output import bar, console, many, print_json, print_table, say, size, tell

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

NEW_FILE: Final = click.Path(dir_okay=False, writable=True)
OLD_FILE: Final = click.Path(dir_okay=False, exists=True)


class KeptElsewhere(NamedTuple):
    """Files that an erasure writes elsewhere."""

    certificate: str | None
    register: str | None


@command()
@option("--where", "first", type=PAIR, metavar="ATTRIBUTE=VALUE", help="The subject has this attribute.")
@option("--and", "others", type=PAIR, multiple=True, metavar="ATTRIBUTE=VALUE", help="And this one; may be repeated.")
@option("--dry-run", is_flag=True, help="Only look, and show what there is.")
@option("--yes", is_flag=True, help="Erase without asking.")
@option(
    "--certificate", type=NEW_FILE, metavar="FILE", help="Write a signed certificate of what was done to a new file."
)
@option(
    "--register",
    type=NEW_FILE,
    metavar="FILE",
    help="Add the register to this file, too, for `ullage restore --register`.",
)
@option("--verify", type=OLD_FILE, metavar="CERTIFICATE", help="Check a certificate, and look for its subject again.")
@option("--public-key", is_flag=True, help="Print the public key of the repository's certificates.")
@option("--give-up", is_flag=True, help="Forget an erasure that was begun and can't be finished.")
@json_output
@on_files
def erase(
    where: ChosenRepository,
    first: tuple[str, str] | None,
    others: tuple[tuple[str, str], ...],
    dry_run: bool,
    yes: bool,
    certificate: str | None,
    register: str | None,
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
    each later backup has, and a --register FILE, too, keeps restorations from bringing it back. See docs/erasure.md.

    No service may have the repository open. An erasure that was interrupted is finished by the same command. Exit code
    11 if something remains that may go another time, or could not be read; 1 if --verify finds something of the
    subject, or a certificate that is not this repository's.
    """
    if give_up or verify or public_key:
        if [give_up, bool(verify), public_key].count(True) > 1 or _is_any(
            first, others, dry_run, yes, certificate, register
        ):
            raise click.UsageError("--verify, --public-key and --give-up stand alone: they erase nothing")
        _beside(where, verify, is_given_up=give_up, as_json=as_json)
        return
    if first is None:
        raise click.UsageError("say whom: --where ATTRIBUTE=VALUE")
    subject = _subject((first, *others))
    if not dry_run:
        _erase(where, subject, KeptElsewhere(certificate, register), is_asked=not yes, as_json=as_json)
        return
    survey = _surveyed(where, subject)
    if as_json:
        print_json(msgspec.to_builtins(survey))
    else:
        _print(survey)
        tell("\nNothing was erased: this was a dry run")
    if survey.unread:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _beside(where: ChosenRepository, verify: str | None, *, is_given_up: bool, as_json: bool) -> None:
    if verify:
        _verify(where, verify, as_json=as_json)
    elif is_given_up:
        _give_up(where)
    else:
        from ullage_agent.cli.erasurekey import ErasureKey

        tell(ErasureKey.of(_root_of(where), is_made=False).public)


def _give_up(where: ChosenRepository) -> None:
    from ullage.embedded.erasure import give_up_erasure

    if give_up_erasure(where.document()):
        tell("the erasure that was begun is forgotten: what is gone stays gone, and what is not stays")
    else:
        tell("no erasure was begun: there is nothing to give up")


def _verify(where: ChosenRepository, path: str, *, as_json: bool) -> None:
    """Exit code 1 if the certificate is not the repository's, or something is there."""
    from ullage.embedded.erasure import look_again
    from ullage_agent.cli.erasurekey import ErasureKey, is_unchanged

    try:
        certificate = msgspec.json.decode(Path(path).read_bytes(), type=ErasureCertificate)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is no certificate of an erasure: {error}") from error
    key = ErasureKey.of(_root_of(where), is_made=False)
    is_signed = is_unchanged(certificate) and certificate.public_key == key.public
    if not is_signed:
        say(
            f"{path} was changed since it was signed, or the key of another repository signed it: nothing was looked at"
        )
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    with _looking() as (on_cost, on_step):
        survey = look_again(
            where.document(), certificate, key.digest_key, on_cost=on_cost, on_step=on_step, on_recovery=say_recovery
        )
    if as_json:
        print_json(msgspec.to_builtins(survey))
    else:
        tell(f"the certificate is this repository's, and unchanged; the erasure ended at {_moment(certificate)}")
        _print(survey)
    if survey.is_found:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    if survey.unread:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _moment(certificate: ErasureCertificate) -> str:
    return moment_of(certificate.ended_millis).isoformat(" ", "seconds")


def _root_of(where: ChosenRepository) -> str:
    return where.document().spec.storage.host_path.path


def _is_any(*said: object) -> bool:
    return any(said)


def _erase(
    where: ChosenRepository, subject: dict[str, str], kept: KeptElsewhere, *, is_asked: bool, as_json: bool
) -> None:
    from ullage.embedded.erasure import register_at

    if kept.certificate is not None and Path(kept.certificate).exists():
        raise click.UsageError(
            f"{kept.certificate} is there already: a certificate replaces nothing. Nothing was changed"
        )
    if kept.register is not None:
        register_at(kept.register)  # what is no register is told before anything goes
    if is_asked and (as_json or not _is_terminal()):
        raise click.UsageError(
            "this erases for good what --dry-run shows, and there is nobody to ask: say --yes. Nothing was "
            "looked at or changed"
        )
    report = _erased(where, subject, kept, partial(_is_wanted, is_asked=is_asked, is_shown=not as_json))
    if as_json:
        print_json(msgspec.to_builtins(report))
    if report is None:
        say("nothing was erased")
        return
    if not as_json:
        _print_report(report)
    if not report.is_finished:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _is_wanted(survey: ErasureSurvey, *, is_asked: bool, is_shown: bool) -> bool:
    if is_shown:
        _print(survey)
    if not (survey.is_found or survey.unread):
        return False
    if not is_asked:
        return True
    with interrupts.allowed():
        return click.confirm("Erase all of this for good?")


def _erased(
    where: ChosenRepository,
    subject: dict[str, str],
    kept: KeptElsewhere,
    on_found: Callable[[ErasureSurvey], bool],
) -> ErasureReport | None:
    from ullage.embedded.erasure import erase_subject, keep_register

    def on_cost(cost: ErasureCost) -> None:
        say(_cost(cost))
        interrupts.check()

    def on_report(report: ErasureReport) -> None:
        if kept.register is not None:
            keep_register(where.document(), kept.register)
            say(f"register kept in {kept.register}")
        if kept.certificate is not None:  # last: a next call would refuse to write it once more
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
        )


def _certify(where: ChosenRepository, report: ErasureReport, path: str) -> None:
    from ullage_agent.cli.erasurekey import ErasureKey, write_anew

    key = ErasureKey.of(_root_of(where), is_made=True)
    text = msgspec.json.format(msgspec.json.encode(key.certificate(report)), indent=2)
    write_anew(path, text + b"\n")
    say(f"certificate written to {path}")


def _print_report(report: ErasureReport) -> None:
    screen = console()
    screen.print(
        f"erased: {many(report.uuids, 'FlowFile')} (handles included), with their contents; "
        f"{many(report.event_files, 'file')} of provenance events were written anew",
        soft_wrap=True,
    )
    for each in report.remains:
        screen.print(f"remains: {each}", soft_wrap=True)
    if not report.is_finished:
        screen.print("The erasure is not finished: repeat the command once that may be done, or give it up.")
    _print_not_promised(report.not_promised)


def _subject(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    found = dict(pairs)
    if len(found) < len(set(pairs)):
        raise click.UsageError("an attribute is said with two values, which nothing has")
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
    screen.print("\nWhat this does not tell:", soft_wrap=True)
    for sentence in sentences:
        screen.print(f"- {sentence}", soft_wrap=True)
