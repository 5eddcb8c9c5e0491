"""Copies of a repository, and repositories from copies."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ullage_agent.cli.choice import Config, Json, Root, opened, opened_spec
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar, many, print_json, say, size, tell
from ullage_agent.contract import Container, ContentRepositorySpec, HostPath, Storage
from ullage_agent.engine.backupfiles import Manifest, read_manifest
from ullage_agent.engine.files import OsFiles
from ullage_agent.engine.repository import Repository


def backup(
    ctx: typer.Context,
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A directory of its own, best on another disk.")],
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Bring the backup in DEST up to date, or begin one: what it has already is not copied again.

    Interrupted at any point, DEST holds the last whole backup.
    """
    with opened(ctx, root, config) as repository, bar("Copying", None) as progress:

        def on_progress(done: int, total: int) -> None:
            progress.reach(done, total)
            interrupts.check()

        report = repository.backup(str(destination.absolute()), on_progress)
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    tell(
        f"copied {many(report.copied_files, 'file')}, {size(report.copied_bytes)}; had {report.kept_files:,} already, "
        f"{size(report.kept_bytes)}; up to transaction {report.last_id:,}"
    )


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A backup.")],
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Empty, or not there: the repository is made in it.")],
    containers: Annotated[
        list[str] | None,
        typer.Option("--container", metavar="NAME=PATH", help="Another path below ROOT for this container."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a repository from a backup, verified on the way, then check every byte of it as `check --deep` does."""
    manifest = read_manifest(OsFiles(), str(source.absolute()))
    spec = _spec(manifest, root, containers or [])
    with bar("Restoring", None) as progress:
        report = Repository.restore_backup(str(source.absolute()), spec, on_progress=progress.reach)
    with opened_spec(spec) as repository, bar("Checking", None) as progress, interrupts.allowed():
        checked = repository.check(deep=True, on_progress=progress.reach)
    for problem in checked.problems:
        say(f"problem: {problem}")
    if as_json:
        print_json(msgspec.to_builtins(report) | {"problems": checked.problems, "flow_files": checked.flow_files})
    else:
        tell(
            f"restored {many(report.copied_files, 'file')}, {size(report.copied_bytes)}, up to transaction "
            f"{report.last_id:,}: {checked.flow_files:,} FlowFiles and handles, "
            f"{many(len(checked.problems), 'problem')}"
        )
    if checked.problems:
        raise typer.Exit(ExitCode.PROBLEMS)


def _spec(manifest: Manifest, root: Path, mapped: list[str]) -> ContentRepositorySpec:
    paths = dict(manifest.identity.containers)
    for text in mapped:
        name, is_pair, path = text.partition("=")
        if not is_pair or name not in paths:
            raise typer.BadParameter(f"--container {text}: write NAME=PATH, with one of {', '.join(paths)}")
        paths[name] = path
    storage = Storage(
        host_path=HostPath(path=os.path.abspath(root)),
        containers=tuple(Container(name=name, sub_path=path) for name, path in paths.items()),
        sections=manifest.identity.sections,
    )
    return ContentRepositorySpec(storage=storage)
