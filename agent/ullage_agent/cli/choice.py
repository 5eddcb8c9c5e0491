"""Which repository a command works on: `--root`, `--config`, or their environment variables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import say, size
from ullage_agent.contract import ContentRepository, ContentRepositorySpec, ContractError, Metadata, load_yaml
from ullage_agent.engine.reclaim.permission import without_windows
from ullage_agent.engine.repository import Repository
from ullage_agent.windows import Calendar

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        "-r",
        metavar="DIR",
        envvar="ULLAGE_ROOT",
        rich_help_panel="Repository",
        help="The repository's directory, with the default settings.",
    ),
]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="ULLAGE_CONFIG",
        rich_help_panel="Repository",
        help="A ContentRepository YAML: where it lies and how it is set (docs/configuration.md).",
    ),
]

Override = Annotated[
    bool, typer.Option("--override", help="Pass over the windows of spec.maintenance; what is paused stays paused.")
]

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; sizes in bytes.")]


def chosen_spec(ctx: typer.Context, root: Path | None, config: Path | None) -> ContentRepositorySpec:
    """The spec of the chosen repository. What the command line says beats the environment; there is no default."""
    return chosen_document(ctx, root, config).spec


def chosen_document(ctx: typer.Context, root: Path | None, config: Path | None) -> ContentRepository:
    """The same with its name."""
    if root is not None and config is not None:
        is_root = is_on_command_line(ctx, "root")
        if is_root == is_on_command_line(ctx, "config"):
            raise typer.BadParameter("--root and --config (or ULLAGE_ROOT and ULLAGE_CONFIG) exclude each other")
        root, config = (root, None) if is_root else (None, config)
    if root is not None:
        return ContentRepository(metadata=Metadata(name="embedded"), spec=ContentRepositorySpec.embedded(root))
    if config is not None:
        try:
            return load_yaml(config.read_text(encoding="utf-8"))
        except (ContractError, UnicodeDecodeError) as error:
            raise ContractError(f"{config}: {error}") from error
    raise typer.BadParameter(
        "which repository? Say --root DIR or --config FILE, or set ULLAGE_ROOT or ULLAGE_CONFIG; for a running "
        "service many commands take --url"
    )


@contextmanager
def opened(
    ctx: typer.Context, root: Path | None, config: Path | None, *, overrides_windows: bool = False
) -> Iterator[Repository]:
    """The chosen repository, open; says so when it had to be recovered. It gives space back as its windows allow."""
    with opened_spec(chosen_spec(ctx, root, config)) as repository:
        if overrides_windows:
            repository.reclamation.permission = without_windows(repository.spec.maintenance)
        report = repository.restored
        if report.transactions and not report.clean:
            say(f"recovered after an unclean end: {recovery_summary(repository)}")
        yield repository


@contextmanager
def opened_spec(spec: ContentRepositorySpec) -> Iterator[Repository]:
    """A repository, open, with Ctrl-C deferred to safe points."""
    repository = Repository.open(spec)
    repository.reclamation.permission = Calendar(spec.maintenance).permission
    with interrupts.deferred(), repository:
        yield repository


def recovery_summary(repository: Repository) -> str:
    """What the start found, in one line."""
    report = repository.restored
    torn = sum(tail.length for tail in report.torn)
    return (
        f"{report.transactions:,} transactions replayed, {size(torn)} of torn log cut off, "
        f"{len(report.discarded):,} unacknowledged transactions discarded"
    )


def is_on_command_line(ctx: typer.Context, name: str) -> bool:
    """Whether the option was written there, rather than in a variable."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
