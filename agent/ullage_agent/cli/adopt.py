"""`ullage adopt`: a repository whose node is gone, and that goes on from its bucket."""

from pathlib import Path

import click
import msgspec

import ullage
from ullage.interface.buckets import Bucket
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import FILE, command, container_paths, json_output, on_bucket, option
from ullage_agent.cli.output import bar, many, print_json, say, size, tell


@command()
@click.argument("source", metavar="SRC", help="A share: s3://BUCKET/PREFIX, as `ullage status` tells it, or above it.")
@click.argument("root", metavar="ROOT", type=FILE, help="Empty, or not there: the repository is made in it.")
@container_paths
@option("--node-is-off", is_flag=True, help="Say that the node that wrote it is off: nobody waits for its lease then.")
@option("--check", is_flag=True, help="Read everything once more before the repository is served, and not while it is.")
@option(
    "--node",
    default="",
    metavar="NAME",
    help="The name under which others are told who adopts it. The default is this machine's name.",
)
@on_bucket
@json_output
def adopt(
    source: str | Bucket,
    root: Path,
    containers: tuple[tuple[str, str], ...],
    node_is_off: bool,
    check: bool,
    node: str,
    as_json: bool,
) -> None:
    """Have a repository go on in ROOT, from what its lost node has shipped to a bucket.

    From here on the node that wrote there is fenced, also if it comes back and starts: it ships nothing any more. All
    that the bucket has is in ROOT then, FlowFiles in their places and handles under their ids, every byte checked
    as it came. Whoever serves it reads it once more, in the background.

    Where it served by a lease (spec.replication.adoptAfter), this waits until that can hold no more; else somebody has
    to say that the node is off. What it acknowledged and had not shipped is left behind.

    Interrupted, nobody writes the share: say it again, and it goes on with what is in ROOT.
    """
    with bar("Adopting", None) as progress:
        made = ullage.adopt(
            source,
            root,
            node_is_off=node_is_off,
            node=node,
            containers=dict(containers),
            check=check,
            on_progress=progress.reach,
        )
    problems = () if made.check is None else made.check.problems
    for problem in problems:
        say(f"problem: {problem}")
    if as_json:
        checked = {} if made.check is None else {"problems": problems, "flow_files": made.check.flow_files}
        print_json(msgspec.to_builtins(made.backup) | checked | {"epoch": made.epoch, "owner": made.owner})
    else:
        found = (
            ""
            if made.check is None
            else f"{made.check.flow_files:,} FlowFiles and handles, {many(len(problems), 'problem')}; "
        )
        tell(
            f"adopted from {made.owner}, {many(made.backup.copied_files, 'file')}, {size(made.backup.copied_bytes)}; "
            f"up to transaction {made.backup.last_id:,}; {found}the share is in epoch {made.epoch:,}"
        )
    if problems:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
