"""`ullage put`: files, directory trees and stdin become FlowFiles or handles."""

import time

import click

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import DURATION, PAIR, command, on_repository, option
from ullage_agent.cli.output import bar, many, say
from ullage_agent.cli.sources import Target, put_all, report
from ullage_agent.cli.syncing import compare
from ullage_agent.cli.trees import WantedOfTree, gather


@command()
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(),
    help="Files, directory trees, or - for stdin.",
)
@option(
    "--queue", "-q", metavar="NAME", default="inbox", help="Put the files into this queue, which is made on first use."
)
@option("--handle", is_flag=True, help="Store handles, which stand in no queue.")
@option(
    "--ttl",
    type=DURATION,
    default="0s",
    help="The time until a handle expires, such as 30m or 12h; 0s keeps it for ever.",
)
@option("--attribute", "-a", type=PAIR, multiple=True, help="Give every file this attribute; may be repeated.")
@option("--tree", is_flag=True, help="Keep directories and symbolic links as well, for `ullage get --tree`.")
@option("--follow", is_flag=True, help="Put what symbolic links lead to, instead of the links.")
@option("--sync", is_flag=True, help="Put only what the queue does not have with the same path, size, time and owner.")
@option("--force", is_flag=True, help="Put the files even though the queue is full.")
@on_repository
def put(
    where: ChosenRepository,
    paths: tuple[str, ...],
    queue: str,
    handle: bool,
    ttl: int,
    attribute: tuple[tuple[str, str], ...],
    tree: bool,
    follow: bool,
    sync: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Store content: each file becomes a FlowFile of a queue, or a handle.

    Many small files share a commit, large ones stream. When this returns, everything is on disk. Each FlowFile has its
    file's permissions, time and owner as attributes. What can't be put, such as a pipe, is named, and the exit code
    is 2. A put that was interrupted goes on with --sync.
    """
    common = dict(attribute)
    if "uuid" in common:
        raise click.BadParameter("uuid is given by the repository", param_hint="--attribute")
    if ttl and not handle:
        raise click.UsageError("--ttl is for handles: add --handle")
    if sync and handle:
        raise click.UsageError("--sync compares with a queue: it does not go with --handle")
    started = time.monotonic()
    unchanged = None
    with where.opened() as repository:
        with interrupts.allowed():
            sources, skipped = gather(paths, WantedOfTree(tree, follow), where.root_directory)
            if sync:
                sources, unchanged, changed = compare(repository, queue, sources, common)
                if changed:
                    say(f"{many(changed, 'file')} had changed: what was put of them before stays in the queue, too")
        with bar("Putting", sum(source.size for source in sources) or None) as progress:
            target = Target(repository, None if handle else queue, progress, ttl_millis=ttl, force=force)
            target.require_room(sources)
            put_all(target, sources, common, skipped)
    report(target, skipped, unchanged, as_json, time.monotonic() - started)
    if skipped:
        raise click.exceptions.Exit(ExitCode.USAGE)
