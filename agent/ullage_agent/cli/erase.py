"""`ullage erase`: what a repository has of a subject. So far it only looks."""

from typing import Final

import click
import msgspec

from ullage.wire.erasure import ErasureCost, ErasurePlace, ErasureSurvey
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


@command()
@option("--where", "first", type=PAIR, required=True, metavar="ATTRIBUTE=VALUE", help="The subject has this attribute.")
@option("--and", "others", type=PAIR, multiple=True, metavar="ATTRIBUTE=VALUE", help="And this one; may be repeated.")
@option("--dry-run", is_flag=True, help="Only look. It has to be said, because nothing can be erased yet.")
@json_output
@on_files
def erase(
    where: ChosenRepository, first: tuple[str, str], others: tuple[tuple[str, str], ...], dry_run: bool, as_json: bool
) -> None:
    """Show everything that a repository has of a subject. So far it only looks, and erases nothing.

    A subject is whatever has all the attributes that are said. Its FlowFiles and handles are counted wherever they
    stand, and with them their contents, their provenance events and the remembered answers that name them. What others
    need as well is told apart. What will be read is said before it is read; Ctrl-C ends it.

    No service may have the repository open. Opening it does what every start does; nothing else is changed. Exit code
    11 if something could not be read, so that there may be more.
    """
    subject = _subject((first, *others))
    if not dry_run:
        raise click.UsageError(
            "`erase` only looks so far, and can't erase anything: say --dry-run to see what there is. Nothing was "
            "looked at or changed"
        )
    survey = _surveyed(where, subject)
    if as_json:
        print_json(msgspec.to_builtins(survey))
    else:
        _print(survey)
    if survey.unread:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _subject(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    found = dict(pairs)
    if len(found) < len(set(pairs)):
        raise click.UsageError("an attribute is said with two values, which nothing has")
    return found


def _surveyed(where: ChosenRepository, subject: dict[str, str]) -> ErasureSurvey:
    from ullage.embedded.erasure import survey_subject

    def on_cost(cost: ErasureCost) -> None:
        say(_cost(cost))
        interrupts.check()

    def on_step(count: int) -> None:
        progress.advance(count)
        interrupts.check()

    with bar("Looking", None, is_bytes=False) as progress, interrupts.deferred():
        return survey_subject(where.document(), subject, on_cost=on_cost, on_step=on_step, on_recovery=say_recovery)


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
    screen.print("\nWhat this does not tell:", soft_wrap=True)
    for sentence in survey.not_promised:
        screen.print(f"- {sentence}", soft_wrap=True)
    screen.print("\nNothing was erased: so far `ullage erase` only looks.", soft_wrap=True)
