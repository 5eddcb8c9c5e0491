"""`ullage volumes`: what containers lie on."""

import click
import msgspec

from ullage.wire.volumes import Volume
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import Group, on_repository, option
from ullage_agent.cli.output import many, print_json, print_table, say, size

QUEUES_SHOWN = 3
"""Queues of a volume in one line, fullest first; --json has all."""


@click.group(cls=Group, invoke_without_command=True)
@on_repository
def volumes(where: ChosenRepository, as_json: bool) -> None:
    """Show for each container what its volume can do now, how full it is, and what would be lost with it.

    What lies on a volume that is away or foreign is unavailable until it is back; everything else goes on.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    with where.opened() as repository:
        found = repository.volumes()
    if as_json:
        print_json({"volumes": [msgspec.to_builtins(each) for each in found]})
        return
    columns = ("container", "volume", ">used", ">of", ">claims", ">live", ">FlowFiles", ">handles", "queues")
    print_table(columns, [_row(each) for each in found])
    for each in found:
        if each.reason:
            say(f"{each.container}: {each.reason}")
        if each.unread:
            say(f"{each.container}: not counted, because unreadable: {', '.join(each.unread)}")


@volumes.command()
@click.argument("container", help="The container that lies on it.")
@option(
    "--accept-loss", is_flag=True, help="Accept that all content on the volume is lost, also if the volume comes back."
)
@on_repository
def forget(where: ChosenRepository, container: str, accept_loss: bool, as_json: bool) -> None:
    """Give up a volume that is away, with all content on it. Without --accept-loss it only says what that is.

    The container's name is never used again: give another volume another name.
    """
    with where.opened() as repository:
        if accept_loss:
            lost = repository.forget_volume(container, accept_loss=True)
        else:
            known = {each.container: each for each in repository.volumes()}
            if container not in known:
                raise click.UsageError(f"there is no container {container!r}: {', '.join(sorted(known))}")
            lost = known[container]
    if as_json:
        print_json({"forgotten": accept_loss, "volume": msgspec.to_builtins(lost)})
    else:
        print_table(("queue", ">FlowFiles"), [(name, f"{count:,}") for name, count in sorted(lost.flow_files.items())])
        total = f"{many(sum(lost.flow_files.values()), 'FlowFile')}, {many(lost.handles, 'handle')}"
        say(f"{total} and {size(lost.live_bytes)} {'were' if accept_loss else 'would be'} lost with {container}")
    if not accept_loss:
        raise click.UsageError("nothing was changed: say --accept-loss, if nobody can bring the volume back")


def _row(volume: Volume) -> tuple[str, ...]:
    fullest = sorted(volume.flow_files.items(), key=lambda pair: (-pair[1], pair[0]))
    queues = [f"{name} {count:,}" for name, count in fullest[:QUEUES_SHOWN]]
    if len(fullest) > QUEUES_SHOWN:
        queues.append(f"{len(fullest) - QUEUES_SHOWN} more")
    return (
        volume.container,
        volume.state,
        size(volume.used_bytes) if volume.total_bytes else "-",
        size(volume.total_bytes) if volume.total_bytes else "-",
        f"{volume.resource_claims:,}",
        size(volume.live_bytes),
        f"{sum(volume.flow_files.values()):,}",
        f"{volume.handles:,}",
        ", ".join(queues),
    )
