"""Which running service a command works on instead of a repository's files: `--url`, `--token-file`, `--ca`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from ullage_agent.cli.choice import is_on_command_line
from ullage_agent.cli.exits import ExitCode, ServiceFailed

if TYPE_CHECKING:
    from ullage_agent.client import Client, ClientError

PANEL: Final = "Service"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="ULLAGE_URL",
        rich_help_panel=PANEL,
        help="A running service instead of a repository's files: http://127.0.0.1:8480/",
    ),
]

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="ULLAGE_TOKEN_FILE",
        rich_help_panel=PANEL,
        help="With --url: a file with the token to show, as `ullage token` printed it.",
    ),
]

Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        envvar="ULLAGE_CA",
        rich_help_panel=PANEL,
        help="With --url: the authority that signed the service's certificate; else those of the system.",
    ),
]


class Service(NamedTuple):
    """A service to talk to."""

    url: str
    token: str | None
    ca_file: str | None


def chosen_service(
    ctx: typer.Context,
    root: Path | None,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
) -> Service | None:
    """The service, or None if the command is to open a repository. What the command line says beats the environment."""
    has_files = root is not None or config is not None
    if url is not None and has_files:
        is_url = is_on_command_line(ctx, "url")
        if is_url == (is_on_command_line(ctx, "root") or is_on_command_line(ctx, "config")):
            raise typer.BadParameter(
                "--url excludes --root and --config (so do their variables, ULLAGE_URL and the others)"
            )
        url = url if is_url else None
    if url is None:
        if is_on_command_line(ctx, "token_file") or is_on_command_line(ctx, "ca"):
            raise typer.BadParameter("--token-file and --ca go with --url")
        return None
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} is no URL: write http://127.0.0.1:8480/", param_hint="--url")
    token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    return Service(url, token, None if ca is None else str(ca))


@contextmanager
def connected(service: Service) -> "Iterator[Client]":
    """A client of the service. ServiceFailed for whatever it refuses, and if it does not answer."""
    # A tenth of a second of libraries that commands on files need not pay for.
    from ullage_agent.client import Client, ClientError, Node, Retries  # noqa: PLC0415

    node = Node(url=service.url, token=service.token, ca_file=service.ca_file)
    try:
        with Client(node, retries=Retries(attempts=3, longest_seconds=1.0)) as client:  # a person waits
            yield client
    except ClientError as error:
        text, where = str(error), service.url.rstrip("/")
        failed = ServiceFailed(code_of_refusal(error), text if text.startswith(where) else f"{where}: {text}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from error


def code_of_refusal(error: "ClientError") -> ExitCode:
    """The exit code that the same failure has on files, as far as there is one."""
    from ullage_agent.client import ContentDamaged, LeaseLost, NotReachable, Refused  # noqa: PLC0415

    if isinstance(error, Refused):
        return SLUGS.get(error.slug) or STATUSES.get(error.status, ExitCode.USAGE)
    if isinstance(error, NotReachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, ContentDamaged):
        return ExitCode.REPOSITORY
    return ExitCode.NOT_FOUND if isinstance(error, LeaseLost) else ExitCode.USAGE


SLUGS: Final = {
    "outcome-unknown": ExitCode.UNKNOWN,
    "window-closed": ExitCode.CLOSED,
    "run-under-way": ExitCode.CLOSED,
    "replay-refused": ExitCode.NOT_FOUND,
    "write-failed": ExitCode.NO_ROOM,
}

STATUSES: Final = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    410: ExitCode.NOT_FOUND,
    421: ExitCode.NOT_FOUND,
    429: ExitCode.NO_ROOM,
    500: ExitCode.REPOSITORY,
    502: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
    504: ExitCode.UNREACHABLE,
    507: ExitCode.NO_ROOM,
}
