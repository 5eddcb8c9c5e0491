"""All commands of `kubectl ullage`."""

from typing import Any

import click

from ullage import __version__
from ullage_agent.cli.ends import plain_ends
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import Group
from ullage_agent.kubectl.backup import backup, restore
from ullage_agent.kubectl.bundle import support_bundle
from ullage_agent.kubectl.drain import drain
from ullage_agent.kubectl.logs import logs
from ullage_agent.kubectl.pins import pins
from ullage_agent.kubectl.program import PROGRAM
from ullage_agent.kubectl.reclaim import plan, reclaim
from ullage_agent.kubectl.status import status
from ullage_agent.kubectl.windows import windows

CODES = (
    *(ExitCode.OK, ExitCode.USAGE, ExitCode.NOT_FOUND, ExitCode.CLOSED, ExitCode.UNREACHABLE, ExitCode.DENIED),
    *(ExitCode.INCOMPLETE, ExitCode.INTERRUPTED),
)
MEANINGS = {
    ExitCode.NOT_FOUND: "no such repository, node or run, or the cluster has no Ullage",
    ExitCode.CLOSED: "what was asked for failed, was refused by a node or cannot begin, or a drain saves nothing",
    ExitCode.UNREACHABLE: "the API server, or an agent, does not answer",
    ExitCode.DENIED: "you, or the account of --account, may not do this",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C; what was asked for goes on",
    ExitCode.INCOMPLETE: "the answer, or the backup, lacks what could not be had: it says what",
}
"""Where they mean less, or more, than with `ullage`."""


class PluginCommands(Group):
    """The group of all commands; every error passes here on its way out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:3d}", MEANINGS.get(code, code.meaning)) for code in CODES])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with plain_ends(PROGRAM):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with plain_ends(PROGRAM):
            return super().invoke(ctx)


@click.command(
    cls=PluginCommands,
    name="ullage",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Look after the ContentRepositories of a cluster, with the rights that you have there."""


for each in (status, plan, reclaim, backup, restore, drain, windows, logs, pins, support_bundle):
    app.add_command(each)
