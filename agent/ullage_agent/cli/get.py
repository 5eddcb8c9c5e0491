"""`ullage get`: content of a FlowFile or handle, or the next FlowFiles of a queue."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ullage.beneath import NO_NAMES, LeadsOut, opened_folder, sync_folder, walk
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import FILE, command, on_repository, option
from ullage_agent.cli.output import Bar, bar, many, print_json, say, size

if TYPE_CHECKING:
    from ullage import Repository, Session

STDOUT = Path("-")

NAME_BYTES_MAX = 200
"""Longer names are replaced by the uuid: a filesystem's limit is 255, and a uuid may have to be added."""

FOLDERS_MAX = 32
"""Folders that an attribute `path` may make below the directory: each one takes an inode, and a long path could make as
many as the volume has.
"""

BATCH_FLOW_FILES = 100
"""FlowFiles that one commit takes out of a queue, after all of them are safe in the directory."""


@command()
@click.argument("uuid", required=False, help="The uuid of a FlowFile or handle.")
@option(
    "--output",
    "-o",
    type=FILE,
    metavar="PATH",
    help="Write to this file, or with --queue into this directory; - is stdout.",
)
@option(
    "--range",
    "range_",
    metavar="START:LENGTH",
    help="Read only this part of the content; without LENGTH it ends with the content.",
)
@option("--queue", "-q", metavar="NAME", help="Take the next FlowFiles of this queue.")
@option(
    "--count",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    default=1,
    help="With --queue, take at most this many FlowFiles; 0 takes all.",
)
@option("--hidden", is_flag=True, help="With --queue, keep names that begin with a dot, such as .ssh/config.")
@on_repository
def get(
    where: ChosenRepository,
    uuid: str | None,
    output: Path | None,
    range_: str | None,
    queue: str | None,
    count: int,
    hidden: bool,
    as_json: bool,
) -> None:
    """Read content. By UUID it goes to stdout and stays where it is; its checksum is verified on the way.

    With --queue, FlowFiles are written to a directory (default: the current one) and leave the queue once they are
    durable there. Their attributes `path` and `filename` say where in it, but no file is replaced, no link followed,
    and a name that is hidden or holds control characters becomes the uuid.
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
            _get_from_queue(repository, queue, count, output or Path(), as_json, hidden=hidden)
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


def _get_from_queue(
    repository: Repository, queue: str, count: int, directory: Path, as_json: bool, *, hidden: bool
) -> None:
    waiting = repository.queues.find(queue).flow_files
    wanted = min(count, waiting) if count else waiting
    directory.mkdir(parents=True, exist_ok=True)
    taken: list[dict[str, Any]] = []
    with bar("Getting", wanted, is_bytes=False) as progress:
        while len(taken) < wanted:
            batch = _take_batch(repository, queue, min(BATCH_FLOW_FILES, wanted - len(taken)), directory, hidden=hidden)
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


def _take_batch(
    repository: Repository, queue: str, count: int, directory: Path, *, hidden: bool
) -> list[dict[str, Any]]:
    """Write the next FlowFiles to the directory, durably, then let them leave the queue."""
    with (
        opened_folder(str(directory)) as folder,
        closing(_NewFiles(folder)) as files,
        repository.session(lease_seconds=60.0) as session,
    ):
        try:
            taken = _write_next(session, queue, count, directory, files, hidden=hidden)
        except BaseException:
            files.remove()
            raise
        try:
            session.commit()
        except Exception as error:
            # They may be all that is left, if only the answer was lost.
            error.add_note(
                f"{many(len(files.written), 'file')} stay in {directory}; the FlowFiles may be in their queue, too"
            )
            raise
    return taken


def _write_next(
    session: Session, queue: str, count: int, directory: Path, files: _NewFiles, *, hidden: bool
) -> list[dict[str, Any]]:
    taken = []
    for record in session.get_many(queue, count):
        below, name = place_of(record.attributes, record.id, hidden=hidden)
        with interrupts.allowed(), session.read(record) as content:
            place = files.write(below, name, record.id, content)
        path = str(directory.joinpath(*place))
        taken.append({"uuid": record.id, "file": path, "size": record.size, "attributes": record.attributes})
        session.remove(record)
    files.sync_names()
    return taken


def place_of(attributes: Mapping[str, str], id: str, *, hidden: bool) -> tuple[tuple[str, ...], str]:
    """Where a FlowFile goes by its attributes `path` and `filename`: the folders below the directory, and its name.

    Whoever wrote the FlowFile chose these. What could lead out of the directory, surprise a terminal, or (without
    `hidden`) be taken for a program's settings is left: for the directory itself, and for the uuid as a name.
    """
    name = attributes.get("filename", "").rpartition("/")[2]
    if not _is_plain(name, hidden=hidden):
        name = id
    path = attributes.get("path", "")
    below = tuple(part for part in path.split("/") if part not in ("", "."))
    is_plain = len(below) <= FOLDERS_MAX and all(_is_plain(part, hidden=hidden) for part in below)
    return (() if path.startswith("/") or not is_plain else below), name


def _is_plain(name: str, *, hidden: bool) -> bool:
    if name in NO_NAMES or (name.startswith(".") and not hidden):
        return False
    # Control characters, those that turn the direction of writing, halves of surrogate pairs, ends of lines.
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in name):
        return False
    return len(name.encode()) <= NAME_BYTES_MAX


class _NewFiles:
    """Files that one batch writes below a folder: each is new, and none lies behind a link."""

    def __init__(self, folder: int) -> None:
        self.written: list[tuple[int, str]] = []
        self._folders: dict[tuple[str, ...], int] = {(): folder}

    def close(self) -> None:
        """Give back the descriptors of folders."""
        for names, folder in self._folders.items():
            if names:
                os.close(folder)

    def write(self, below: tuple[str, ...], name: str, id: str, content: Iterable[bytes]) -> tuple[str, ...]:
        """Write a synced file; the names that lead to it. With the uuid behind its name where that is taken."""
        below, folder = self._folder(below)
        for each in (name, f"{name}.{id}"):
            try:
                # O_EXCL follows no link: it finds the name taken.
                descriptor = os.open(each, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
            except FileExistsError:
                continue  # under the other name, then
            with open(descriptor, "wb") as file:
                self.written.append((folder, each))
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            return (*below, each)
        raise FileExistsError(
            errno.EEXIST, "it is there, with and without the uuid behind it", "/".join((*below, name))
        )

    def remove(self) -> None:
        """Take back all that was written."""
        for folder, name in self.written:
            with suppress(FileNotFoundError):  # somebody took it away already
                os.unlink(name, dir_fd=folder)

    def sync_names(self) -> None:
        """They are durable afterwards."""
        for folder in {folder for folder, _ in self.written}:
            sync_folder(folder)

    def _folder(self, below: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        if below not in self._folders:
            try:
                self._folders[below] = walk(self._folders[()], below, make=True)
            except (LeadsOut, PermissionError):
                # A link, a file or a locked folder has this name: what others left there must not stop a queue.
                return (), self._folders[()]
        return below, self._folders[below]


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
    partial.unlink(missing_ok=True)
    try:
        # Never through a link that somebody put there.
        with partial.open("xb") as file:
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
