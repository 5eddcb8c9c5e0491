"""All commands of `ullage`, by name."""

from typing import Annotated

import typer

from ullage_agent import __version__
from ullage_agent.cli import agent, backup, demo, get, listing, provenance, put, reclaim, serve, spark, upkeep, windows
from ullage_agent.cli.exits import Commands, ExitCode

app = typer.Typer(
    cls=Commands,
    name="ullage",
    help="A content repository that gives the space of dead content back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ullage {__version__}")
        raise typer.Exit(ExitCode.OK)


@app.callback()
def ullage(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A content repository that gives the space of dead content back."""


CONTENT, SPACE, SERVICE, OTHER = "Content", "Space", "Service", "Other"

app.command(rich_help_panel=CONTENT)(upkeep.init)
app.command(rich_help_panel=CONTENT)(put.put)
app.command(rich_help_panel=CONTENT)(get.get)
app.command(rich_help_panel=CONTENT)(listing.ls)
app.command(rich_help_panel=CONTENT)(upkeep.drop)
app.command(rich_help_panel=CONTENT)(upkeep.undelete)
app.command(rich_help_panel=SPACE)(upkeep.survey)
app.command(rich_help_panel=SPACE)(reclaim.plan)
app.command(rich_help_panel=SPACE)(reclaim.reclaim)
app.command(rich_help_panel=SPACE)(upkeep.truncate)
app.command(rich_help_panel=SPACE)(upkeep.clean)
app.command(rich_help_panel=SPACE)(windows.windows)
app.add_typer(spark.app, name="spark", rich_help_panel=OTHER)
app.add_typer(provenance.app, name="provenance", rich_help_panel=OTHER)
app.command(rich_help_panel=SERVICE)(serve.serve)
app.command(rich_help_panel=SERVICE)(agent.agent)
app.command(rich_help_panel=SERVICE)(serve.token)
app.command(rich_help_panel=OTHER)(upkeep.check)
app.command(rich_help_panel=OTHER)(upkeep.checkpoint)
app.command(rich_help_panel=OTHER)(backup.backup)
app.command(rich_help_panel=OTHER)(backup.restore)
app.command(rich_help_panel=OTHER)(demo.demo)
app.command(name=demo.WRITER_COMMAND, hidden=True)(demo.writer)


def main() -> None:
    """Run the command line."""
    app()
