"""`ullage serve`: the agent, in the foreground; and `ullage token`: who may use it."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from ullage_agent.cli.choice import Config, Root, chosen_document
from ullage_agent.cli.output import say, tell
from ullage_agent.contract import ContentRepository, ContentRepositorySpec, Metadata
from ullage_agent.service.access import Verb
from ullage_agent.service.tokens import line_of, new_token
from ullage_agent.units import Duration


def serve(
    ctx: typer.Context,
    make: Annotated[
        bool, typer.Option("--init", help="Make the repository if there is none; else that is an error.")
    ] = False,
    node: Annotated[
        str, typer.Option(envvar="ULLAGE_NODE", metavar="NAME", help="This node's name in handles; else the host's.")
    ] = "",
    root: Root = None,
    config: Config = None,
) -> None:
    """Serve a repository over HTTP until Ctrl-C or SIGTERM; SIGHUP reads the configuration again.

    Without --root and --config: a repository of this user, made if need be, for this machine alone.
    """
    # Half a second of libraries that no other command should pay for.
    from ullage_agent.service.log import configure  # noqa: PLC0415
    from ullage_agent.service.server import Server  # noqa: PLC0415

    configure()
    if root is None and config is None:
        own = _own_root()
        make = True
        say(f"no --root and no --config: the repository is {own}")
        document = ContentRepository(metadata=Metadata(name="embedded"), spec=ContentRepositorySpec.embedded(own))
        server = Server(lambda: document, node=node, makes=True, on_ready=_say_where)
    else:
        server = Server(lambda: chosen_document(ctx, root, config), node=node, makes=make, on_ready=_say_where)
    server.run()


def token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="spec.auth.tokenFile; made if there is none.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom the token stands for, as logs show it.")],
    verbs: Annotated[
        list[Verb] | None, typer.Option("--verb", "-v", help="What it allows; several times for several.")
    ] = None,
    expires_in: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it is good, such as 720h; 0s: for ever.")
    ] = "2160h",
) -> None:
    """Make a bearer token: its hash goes into FILE, the token itself is printed once and stored nowhere."""
    try:
        lifetime = int(Duration.parse(expires_in))
        secret, digest = new_token()
        expires = int(time.time() * 1000) + lifetime if lifetime else 0
        line = line_of(name, tuple(verbs or (Verb.GET,)), expires, digest)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as out:
        out.write(line)
    tell(secret)


def _own_root() -> Path:
    """Where this user's data belongs, as the XDG base directories have it."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "ullage"


def _say_where(urls: dict[str, str]) -> None:
    tell(f"serving on {urls['http']}")
