"""All commands of `ullage`, by name. The module of a command is imported when that command is asked for, so that each
TAB and each --help costs what it shows.
"""

import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from ullage import __version__
from ullage_agent.cli.ends import plain_ends
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.writing import STDOUT, writing

CONTENT, SPACE, SERVICE, OTHER, HIDDEN = "Content", "Space", "Service", "Other", ""
SERVICE_OPTIONS: Final = ("--url", "--token-file", "--ca")


class Listed(NamedTuple):
    """Where a command is listed, the module of this package in which it is, and what it does in a line."""

    section: str
    module: str
    summary: str


COMMANDS: Final = {
    "init": Listed(CONTENT, "upkeep", "Make an empty repository."),
    "put": Listed(CONTENT, "put", "Store content: each file becomes a FlowFile of a queue, or a handle."),
    "get": Listed(CONTENT, "get", "Read the content of FlowFiles and handles."),
    "ls": Listed(CONTENT, "listing", "List queues, FlowFiles, resource claims or handles."),
    "drop": Listed(CONTENT, "upkeep", "Remove all FlowFiles of a queue, or delete a handle."),
    "undelete": Listed(CONTENT, "upkeep", "Bring a deleted handle back."),
    "status": Listed(SPACE, "status", "Show a repository on one screen, and when its dead bytes come back."),
    "survey": Listed(SPACE, "space", "Show what the disk holds: live and dead content, and what can be given back."),
    "plan": Listed(SPACE, "space", "Show what `reclaim` would do, and when dead bytes come back by themselves."),
    "reclaim": Listed(SPACE, "space", "Give dead bytes back at the lowest cost."),
    "truncate": Listed(SPACE, "space", "Cut dead tails off resource claims that are still in use."),
    "clean": Listed(SPACE, "space", "Give back what nobody refers to any more."),
    "windows": Listed(SPACE, "windows", "Show whether each operation may run now, until when, and why."),
    "serve": Listed(SERVICE, "serve", "Serve a repository over HTTP until Ctrl-C or SIGTERM."),
    "agent": Listed(SERVICE, "agent", "Serve a repository as one node of a cluster."),
    "token": Listed(SERVICE, "serve", "Make a bearer token for a service."),
    "provenance": Listed(OTHER, "provenance", "Tell what happened to FlowFiles: query, show, lineage, replay."),
    "spark": Listed(OTHER, "spark", "Ask and plan over a whole fleet, with Spark."),
    "unavailable": Listed(OTHER, "unavailable", "Retry or drop contents that can't be read."),
    "set-aside": Listed(OTHER, "set_aside", "Drop records that can't be used."),
    "held": Listed(OTHER, "held", "Put back what a salvage held."),
    "erase": Listed(OTHER, "erase", "Erase everything of a subject, for good."),
    "volumes": Listed(OTHER, "volumes", "Show the volumes that containers lie on, and what is on them."),
    "audit": Listed(OTHER, "audit", "Show who read, changed or deleted what, and who was refused."),
    "clock": Listed(OTHER, "clock", "Show whether the machine's clock is believed, and accept it."),
    "check": Listed(OTHER, "upkeep", "Verify everything against everything."),
    "checkpoint": Listed(OTHER, "upkeep", "Write a snapshot, so that the next start is quick."),
    "backup": Listed(OTHER, "backup", "Bring a backup up to date, or begin one; list its generations, verify it."),
    "restore": Listed(OTHER, "backup", "Make a repository from a backup, every byte checked."),
    "adopt": Listed(OTHER, "adopt", "Have a repository go on from its bucket, without its node."),
    "rejoin": Listed(OTHER, "rejoin", "Bring over what a node has alone that was followed by another."),
    "salvage": Listed(OTHER, "upkeep", "Make a repository of what a damaged one still proves."),
    "nifi": Listed(OTHER, "nifi", "Show what holds the disk of an Apache NiFi, as it is."),
    "demo": Listed(OTHER, "demo", "Ingest real files, drop, reclaim, get killed, recover, and verify every byte."),
    "demo-writer": Listed(HIDDEN, "demo", "The process that the demo kills."),
}


class Commands(click.Group):
    """The group of all commands; every error passes here on its way out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"ullage_agent.cli.{entry.module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(name, help=entry.summary)
            for name, entry in COMMANDS.items()
            if entry.section and name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in (CONTENT, SPACE, SERVICE, OTHER):
            with formatter.section(section):
                formatter.write_dl([(name, each.summary) for name, each in COMMANDS.items() if each.section == section])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:3d}", code.meaning) for code in ExitCode])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with plain_ends(), writing(STDOUT):  # help is printed here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with plain_ends():
            try:
                result = super().invoke(ctx)
            except click.NoSuchOption as error:
                if error.option_name not in SERVICE_OPTIONS:
                    raise
                raise click.UsageError(
                    "this command works on a repository's files: run it where they are, with --root or --config",
                    error.ctx,
                ) from error
            with writing(STDOUT):
                sys.stdout.flush()
            return result


@click.command(
    cls=Commands,
    name="ullage",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """A content repository that gives the space of dead content back."""
