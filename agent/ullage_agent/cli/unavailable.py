"""`ullage unavailable`: a person's word about contents that can't be read."""

from typing import Any

import click

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import Group, on_repository, option
from ullage_agent.cli.output import many, tell_or_print


@click.group(cls=Group)
def unavailable() -> None:
    """FlowFiles and handles whose content can't be read: retry or drop. `ullage ls --unavailable` lists them."""


@unavailable.command()
@on_repository
def retry(where: ChosenRepository, as_json: bool) -> None:
    """Read again what could not be read, after its file was put back. What reads back returns to its place."""
    with where.opened() as repository:
        count = repository.retry_unavailable()
        state = repository.state()
    contents, files = state.unavailable_contents, state.unavailable_swap_files
    found: dict[str, Any] = {"flow_files": count, "unavailable_contents": contents, "unavailable_swap_files": files}
    left = f"{many(contents, 'content')} and {many(files, 'swap file')} still unavailable"
    tell_or_print(found, f"{many(count, 'FlowFile')} returned; {left}", as_json)


@unavailable.command()
@click.argument("ids", nargs=-1, required=True, metavar="UUID...", help="Which to give up.")
@option("--accept-loss", is_flag=True, help="Accept that these contents are lost, also if their file is mended later.")
@on_repository
def drop(where: ChosenRepository, ids: tuple[str, ...], accept_loss: bool, as_json: bool) -> None:
    """Give up FlowFiles and handles whose content can't be read. Others are left alone."""
    if not accept_loss:
        raise click.UsageError("what is dropped is lost, also if its file is mended later: say so with --accept-loss")
    with where.opened() as repository:
        if not where.is_served:  # one that was just opened has met nothing yet
            repository.check()
            repository.retry_unavailable()
        count = repository.drop_unavailable(ids, accept_loss=True)
    tell_or_print({"dropped": count}, f"{many(count, 'content')} dropped", as_json)
