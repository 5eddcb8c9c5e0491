"""`ullage set-aside`: a person's word about records that can't be used."""

import click

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import Group, on_repository, option
from ullage_agent.cli.output import many, tell_or_print


@click.group(cls=Group)
def set_aside() -> None:
    """Records that can't be used, and were set aside by a start. `ullage ls --set-aside` lists them."""


@set_aside.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", help="Which to give up.")
@option("--accept-loss", is_flag=True, help="Accept that the FlowFiles that were set aside with the records are lost.")
@on_repository
def drop(where: ChosenRepository, ids: tuple[str, ...], accept_loss: bool, as_json: bool) -> None:
    """Give up records that were set aside, and the FlowFiles that went with them. Their space is given back."""
    if not accept_loss:
        raise click.UsageError("the FlowFiles that were set aside with a record are lost with it: say --accept-loss")
    with where.opened() as repository:
        count = repository.drop_set_aside(ids, accept_loss=True)
    tell_or_print({"dropped": count}, f"{many(count, 'record')} dropped", as_json)
