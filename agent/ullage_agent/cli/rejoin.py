"""`ullage rejoin`: what a node has alone whose share another has adopted."""

from contextlib import nullcontext
from pathlib import Path

import click
import msgspec

import ullage
from ullage.interface.buckets import Bucket
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import FILE, command, json_output, on_bucket, option
from ullage_agent.cli.output import many, print_json, say, size, tell


@command()
@click.argument(
    "root", metavar="ROOT", type=FILE, help="The repository of the node that was followed; nobody serves it."
)
@click.argument(
    "source", metavar="SRC", help="Its share: s3://BUCKET/PREFIX, as `ullage status` tells it, or above it."
)
@option(
    "--to",
    metavar="URL",
    help="Bring it over to the node that goes on at this URL. Without this option it is only shown.",
)
@on_bucket
@json_output
def rejoin(root: Path, source: str | Bucket, to: str | None, as_json: bool) -> None:
    """Show what ROOT acknowledged and had not shipped before another took its share, and bring it over.

    FlowFiles come to the end of their queues, and handles get new ids: the other repository may have given theirs to
    nobody, but what was done with them here nobody there knows. What both have stays as the other has it. No record
    in ROOT is changed, and said again it brings nothing twice. With --to ROOT is opened as at each start, which
    finishes what a crash cut short.
    """
    with nullcontext() if to is None else ullage.connect(to) as repository:
        found = ullage.rejoin(root, source, repository)
    for each in found.lost:
        say(f"lost: {each}")
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for name, count in sorted(found.queues.items()):
            tell(f"queue {name}: {many(count, 'FlowFile')} are here alone")
        flow_files = sum(found.queues.values())
        tell(
            f"{many(flow_files, 'FlowFile')} and {many(found.handles, 'handle')}, {size(found.bytes)}, are here alone, "
            f"{found.changed:,} changed and {found.removed:,} removed since; {found.owner} has the share; "
            f"{len(found.brought):,} brought over"
        )
    if found.lost:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
