"""`ullage get`: content of a FlowFile or handle, or the next FlowFiles of a queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import click

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import FILE, command, on_repository, option
from ullage_agent.cli.output import Bar, bar, many, print_json, say, size

if TYPE_CHECKING:
    from ullage import Repository, Session

STDOUT = Path("-")

NAME_BYTES_MAX = 200
"""Longer names are replaced by the uuid: a filesystem's limit is 255, and a uuid may have to be added."""

BATCH_FLOW_FILES = 100
"""FlowFiles that one commit takes out of a queue, after all of them are safe in the directory."""


@command()
@click.argument("uuid", required=False, help="The uuid of a FlowFile or handle.")
@option("--output", "-o", type=FILE, metavar="PATH", help="A file, - for stdout; with --queue a directory.")
@option("--range", "range_", metavar="START:LENGTH", help="A part of it; without LENGTH to its end.")
@option("--queue", "-q", metavar="NAME", help="Take the next FlowFiles of this queue.")
@option(
    "--count", "-n", type=click.IntRange(min=0), metavar="N", default=1, help="With --queue: how many; 0 takes all."
)
@on_repository
def get(
    where: ChosenRepository,
    uuid: str | None,
    output: Path | None,
    range_: str | None,
    queue: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Read content. By UUID it goes to stdout and stays where it is; its checksum is verified on the way.

    With --queue, FlowFiles are written to a directory (default: the current one) and leave the queue once they are
    durable there.
    """
    if (uuid is None) == (queue is None):
        raise click.UsageError("say either a UUID or --queue NAME")
    if queue is not None and range_ is not None:
        raise click.UsageError("--range goes with a UUID, not with --queue")
    if uuid is not None and as_json:
        raise click.UsageError("--json goes with --queue: by UUID the output is the content itself")
    start, length = parse_range(range_)
    with where.opened() as repository:
        if queue is not None:
            _get_from_queue(repository, queue, count, output or Path(), as_json)
        elif uuid is not None:
            with interrupts.allowed():
                _get_one(repository, uuid, start, length, output or STDOUT)


def parse_range(text: str | None) -> tuple[int, int | None]:
    """`START:LENGTH` or `START:` in bytes."""
    if text is None:
        return 0, None
    start, colon, length = text.partition(":")
    if not (colon and start.isdecimal() and (length.isdecimal() or not length)):
        raise click.BadParameter(f"{text!r} is not START:LENGTH", param_hint="--range")
    return int(start), int(length) if length else None


def _get_one(repository: Repository, id: str, start: int, length: int | None, output: Path) -> None:
    with repository.content(id, start, length) as content, bar("Getting", content.size) as progress:
        if output == STDOUT:
            _copy(content, sys.stdout.buffer, progress)
            sys.stdout.buffer.flush()
        else:
            _write_file(output, content, progress)


def _get_from_queue(repository: Repository, queue: str, count: int, directory: Path, as_json: bool) -> None:
    waiting = repository.queues.find(queue).flow_files
    wanted = min(count, waiting) if count else waiting
    directory.mkdir(parents=True, exist_ok=True)
    taken: list[dict[str, Any]] = []
    with bar("Getting", wanted, is_bytes=False) as progress:
        while len(taken) < wanted:
            batch = _take_batch(repository, queue, min(BATCH_FLOW_FILES, wanted - len(taken)), directory)
            if not batch:
                break
            taken.extend(batch)
            progress.advance(len(batch))
            interrupts.check()
    left = repository.queues.find(queue).flow_files
    if as_json:
        print_json({"queue": queue, "directory": str(directory), "flow_files": taken, "left": left})
        return
    total = sum(item["size"] for item in taken)
    say(f"{many(len(taken), 'FlowFile')}, {size(total)}, from queue {queue} to {directory}; {left:,} are left")


def _take_batch(repository: Repository, queue: str, count: int, directory: Path) -> list[dict[str, Any]]:
    """Write the next FlowFiles to the directory, durably, then let them leave the queue."""
    written: list[Path] = []
    with repository.session(lease_seconds=60.0) as session:
        try:
            taken = _write_next(session, queue, count, directory, written)
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        try:
            session.commit()
        except Exception as error:
            # They may be all that is left, if only the answer was lost.
            error.add_note(
                f"{many(len(written), 'file')} stay in {directory}; the FlowFiles may be in their queue, too"
            )
            raise
    return taken


def _write_next(session: Session, queue: str, count: int, directory: Path, written: list[Path]) -> list[dict[str, Any]]:
    taken = []
    for record in session.get_many(queue, count):
        path = _free_path(directory, record.attributes, record.id)
        with interrupts.allowed():
            path.parent.mkdir(parents=True, exist_ok=True)
            with session.read(record) as content, path.open("xb") as file:
                written.append(path)
                for piece in content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        taken.append({"uuid": record.id, "file": str(path), "size": record.size, "attributes": record.attributes})
        session.remove(record)
    for folder in sorted({path.parent for path in written}):
        _sync_directory(folder)
    return taken


def _free_path(directory: Path, attributes: Mapping[str, str], id: str) -> Path:
    """Where a FlowFile goes by its attributes `path` and `filename`: below the directory, over no other file."""
    name = PurePosixPath(attributes.get("filename", "")).name
    if name in ("", ".", "..") or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        name = id
    below = PurePosixPath(attributes.get("path", ""))
    if below.is_absolute() or ".." in below.parts or "\0" in str(below):
        below = PurePosixPath()
    path = directory / below / name
    return path.with_name(f"{name}.{id}") if os.path.lexists(path) else path


def _write_file(path: Path, content: Iterable[bytes], progress: Bar) -> None:
    """The whole content or no file: it gets its name last.

    But for what is no file: a rename would put one in place of /dev/null, of a pipe somebody reads, or of a link.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            _copy(content, file, progress)
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            _copy(content, file, progress)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _copy(pieces: Iterable[bytes], file: IO[bytes], progress: Bar) -> None:
    """All of it, in order."""
    for piece in pieces:
        file.write(piece)
        progress.advance(len(piece))


def _sync_directory(path: Path) -> None:
    """Names in it are durable afterwards."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
