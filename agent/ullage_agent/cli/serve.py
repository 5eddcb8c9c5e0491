"""`ullage serve`: the agent, in the foreground; and `ullage token`: who may use it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import DURATION, FILE, command, from_environment, on_files, option
from ullage_agent.cli.output import say, tell

if TYPE_CHECKING:
    from ullage.contract import ContentRepository


@command()
@option(
    "--init", "make", is_flag=True, help="Make the repository if there is none. Without this option that is an error."
)
@from_environment(
    "NAME", "--node", default="", help="The name of this node, which its handles carry. The default is the host's."
)
@option(
    "--disk-to-live",
    type=click.FloatRange(1, 100, min_open=True),
    help="Give space back so that content takes at most this many times what lives: spec.compaction.goal.diskToLive.",
)
@option(
    "--max-dead-age",
    type=DURATION,
    help="Give space back so that no byte is dead for longer than this: spec.compaction.goal.maxDeadAge.",
)
@option(
    "--replicate-to",
    metavar="URL",
    help="Ship what is committed to s3://BUCKET/PREFIX, a moment later: spec.replication.url, with mode Async.",
)
@option(
    "--take-share",
    "takes",
    is_flag=True,
    help="Take the share in the bucket from whoever writes it, unless it was adopted: of two copies this one goes on.",
)
@on_files
def serve(
    where: ChosenRepository,
    make: bool,
    node: str,
    disk_to_live: float | None,
    max_dead_age: int | None,
    replicate_to: str | None,
    takes: bool,
) -> None:
    """Serve a repository over HTTP until Ctrl-C or SIGTERM. SIGHUP reads the configuration again.

    Without --root and --config: a repository of this user, made if need be, for this machine alone.
    """
    from ullage_agent.service.log import configure
    from ullage_agent.service.server import Server

    configure()
    if where.root is None and where.config is None:
        own = _own_root()
        make = True
        say(f"no --root and no --config: the repository is {own}")
        where = replace(where, root=own)

    def document() -> ContentRepository:
        return with_replication(with_goal(where.document(), disk_to_live, max_dead_age), replicate_to)

    if takes:
        from ullage.embedded.replication import take_share

        take_share(document().spec.storage.host_path.path)
    Server(document, node=node, makes=make, on_ready=_say_where).run()


@command()
@click.argument("file", type=FILE, help="spec.auth.tokenFile; made if there is none.")
@click.argument("name", help="Whom the token stands for, as logs show it.")
@option(
    "--right",
    "-r",
    "rights",
    multiple=True,
    required=True,
    help="What it allows: a right such as content:get, content for all of its verbs, a role, or *; repeatable.",
)
@option(
    "--for",
    "expires_in",
    type=DURATION,
    default="2160h",
    help="How long the token is good; 0s makes one that is good for ever.",
)
def token(file: Path, name: str, rights: tuple[str, ...], expires_in: int) -> None:
    """Make a bearer token for a service. Its hash goes into FILE; the token itself is printed, and stored nowhere."""
    from ullage_agent.service.tokens import add_line, line_of, new_token

    try:
        secret, digest = new_token()
        expires = int(time.time() * 1000) + expires_in if expires_in else None
        add_line(str(file), line_of(name, rights, expires, digest))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    tell(secret)


def with_goal(
    document: ContentRepository, disk_to_live: float | None, max_dead_age_millis: int | None
) -> ContentRepository:
    """The description with a goal of compaction in it; what is None stays as it says. ContractError for one that there
    is not.
    """
    from ullage.contract import Duration

    changed = msgspec.structs.replace
    goal = document.spec.compaction.goal
    if disk_to_live is not None:
        goal = changed(goal, disk_to_live=disk_to_live)
    if max_dead_age_millis is not None:
        goal = changed(goal, max_dead_age=Duration(max_dead_age_millis))
    compaction = changed(document.spec.compaction, goal=goal)
    return changed(document, spec=changed(document.spec, compaction=compaction))


def with_replication(document: ContentRepository, url: str | None) -> ContentRepository:
    """The description with a bucket that is shipped to; as it says where that is None. How the bucket is reached the
    rest of spec.replication says, or the environment. ContractError for one that there is not.
    """
    from ullage.contract import ReplicationMode

    if url is None:
        return document
    changed = msgspec.structs.replace
    replication = changed(document.spec.replication, mode=ReplicationMode.ASYNC, url=url)
    return changed(document, spec=changed(document.spec, replication=replication))


def _own_root() -> Path:
    """Where this user's data belongs, as the XDG base directories have it."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "ullage"


def _say_where(urls: dict[str, str]) -> None:
    tell(f"serving on {urls['http']}")
