"""`ullage clock`: whether the machine's clock is believed, and a person's word that it is right."""

import click
import msgspec

from ullage.wire.service import ClockStatus
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import Group, on_repository
from ullage_agent.cli.output import moment, print_json, tell


@click.group(cls=Group, invoke_without_command=True)
@on_repository
def clock(where: ChosenRepository, as_json: bool) -> None:
    """Show the time by which things live and die: the machine's, unless that is implausible."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    with where.opened() as repository:
        _show(repository.state().clock, as_json)


@clock.command()
@on_repository
def accept(where: ChosenRepository, as_json: bool) -> None:
    """Believe the machine's clock as it is. What is due by it expires, for good: look at `ullage clock` first."""
    with where.opened() as repository:
        _show(repository.accept_clock(), as_json)


def _show(found: ClockStatus, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif found.reason:
        tell(f"clock not believed: {found.reason}")
    else:
        tell(f"the machine's clock is believed: {moment(found.machine_millis)} UTC")
