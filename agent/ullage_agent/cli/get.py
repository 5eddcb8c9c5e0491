"""`ullage get`: content of a FlowFile or handle, or the next FlowFiles of a queue."""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ullage.beneath import opened_folder
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.newfiles import NewFiles, TreeFiles, TreeSoFar
from ullage_agent.cli.options import FILE, command, on_repository, option
from ullage_agent.cli.output import Bar, bar, many, print_json, say, size
from ullage_agent.cli.partfiles import PartFile, found_at, own_descriptor, usual_mode
from ullage_agent.cli.writing import STDOUT, writing

if TYPE_CHECKING:
    from ullage import Repository, Session

TO_STDOUT = Path("-")

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
    default=None,
    help="With --queue, take at most this many FlowFiles; 0 takes all. The default is 1, and with --tree all.",
)
@option("--tree", is_flag=True, help="With --queue, bring back the tree that `ullage put --tree` put.")
@option("--hidden", is_flag=True, help="With --queue, keep names that begin with a dot, such as .ssh/config.")
@on_repository
def get(
    where: ChosenRepository,
    uuid: str | None,
    output: Path | None,
    range_: str | None,
    queue: str | None,
    count: int | None,
    tree: bool,
    hidden: bool,
    as_json: bool,
) -> None:
    """Read content. By UUID it goes to stdout and stays where it is; its checksum is verified on the way.

    With --queue, FlowFiles are written to a directory (default: the current one) and leave the queue once they are
    durable there. Their attributes `path` and `filename` say where in it, but no file is replaced, no link followed,
    and a name that is hidden or holds control characters becomes the uuid. --tree makes directories, links, names,
    permissions and times as they were, and owners if root asks: for a queue whose writers you trust as yourself.
    """
    if (uuid is None) == (queue is None):
        raise click.UsageError("say either a UUID or --queue NAME")
    if queue is not None and range_ is not None:
        raise click.UsageError("--range goes with a UUID, not with --queue")
    if uuid is not None and tree:
        raise click.UsageError("--tree goes with --queue, not with a UUID")
    if uuid is not None and as_json:
        raise click.UsageError("--json goes with --queue: by UUID the output is the content itself")
    start, length = parse_range(range_)
    with where.opened() as repository:
        if queue is not None:
            known = TreeSoFar() if tree else None
            limit = (0 if tree else 1) if count is None else count
            _get_from_queue(repository, queue, limit, output or Path(), as_json, hidden=hidden, tree=known)
        elif uuid is not None:
            with interrupts.allowed():
                _get_one(repository, uuid, start, length, output or TO_STDOUT)


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
        if output == TO_STDOUT:
            with writing(STDOUT):
                _copy(content, sys.stdout.buffer, progress)
                sys.stdout.buffer.flush()
        else:
            with writing(str(output)):
                _write_file(output, id, content, progress)


def _get_from_queue(
    repository: Repository,
    queue: str,
    count: int,
    directory: Path,
    as_json: bool,
    *,
    hidden: bool,
    tree: TreeSoFar | None,
) -> None:
    waiting = repository.queues.find(queue).flow_files
    wanted = min(count, waiting) if count else waiting
    with writing(str(directory)):
        if tree is None:
            directory.mkdir(parents=True, exist_ok=True)
        else:
            tree.make_top(str(directory))
    taken: list[dict[str, Any]] = []
    with bar("Getting", wanted, is_bytes=False) as progress:
        while len(taken) < wanted:
            some = min(BATCH_FLOW_FILES, wanted - len(taken))
            batch = _take_batch(repository, queue, some, directory, hidden=hidden, tree=tree)
            if not batch:
                break
            taken.extend(batch)
            progress.advance(len(batch))
            interrupts.check()
    if tree is not None:
        with writing(str(directory)), opened_folder(str(directory)) as folder:
            tree.end(folder)
    left = repository.queues.find(queue).flow_files
    if as_json:
        print_json({"queue": queue, "directory": str(directory), "flow_files": taken, "left": left})
        return
    total = sum(item["size"] for item in taken)
    say(f"{many(len(taken), 'FlowFile')}, {size(total)}, from queue {queue} to {directory}; {left:,} are left")


def _take_batch(
    repository: Repository, queue: str, count: int, directory: Path, *, hidden: bool, tree: TreeSoFar | None
) -> list[dict[str, Any]]:
    """Write the next FlowFiles to the directory, durably, then let them leave the queue."""
    with (
        opened_folder(str(directory)) as folder,
        closing(_files(folder, str(directory), hidden=hidden, tree=tree)) as files,
        repository.session(lease_seconds=60.0) as session,
    ):
        try:
            taken = _write_next(session, queue, count, directory, files)
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
        files.settle()
    return taken


def _files(folder: int, path: str, *, hidden: bool, tree: TreeSoFar | None) -> NewFiles:
    return NewFiles(folder, path, hidden=hidden) if tree is None else TreeFiles(folder, path, tree)


def _write_next(session: Session, queue: str, count: int, directory: Path, files: NewFiles) -> list[dict[str, Any]]:
    taken = []
    for record in session.get_many(queue, count):
        # A content that can't be read has an error of its own, of the repository.
        with interrupts.allowed(), session.read(record) as content, writing(str(directory)):
            place = files.take(record.attributes, record.id, record.size, content)
        path = str(directory.joinpath(*place))
        taken.append({"uuid": record.id, "file": path, "size": record.size, "attributes": record.attributes})
        session.remove(record)
    with writing(str(directory)):
        files.sync_names()
    return taken


def _write_file(path: Path, id: str, content: Iterable[bytes], progress: Bar) -> None:
    """The whole content or no file: it gets its name last.

    But for what is no file: a rename would put one in place of /dev/null, of a pipe somebody reads, or of a link. Nor
    is one put in place of what this process has open, such as /dev/stdout: that is written to, as it stands. A file
    that was there keeps its permissions, and its owner as far as this process may give files away.
    """
    descriptor = own_descriptor(str(path))
    before = found_at(path)
    if descriptor is not None or (before is not None and not stat.S_ISREG(before.st_mode)):
        with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
            _copy(content, file, progress)
        return
    path = path.resolve()

    def finish(written: str) -> None:
        if before is None:
            os.chmod(written, usual_mode())
            return
        with suppress(PermissionError):  # it is somebody else's, and who writes it anew is its owner then
            os.chown(written, before.st_uid, before.st_gid)
        os.chmod(written, before.st_mode & 0o777)  # no setuid: it may have been another program

    try:
        # One FlowFile may be written to two names of one directory at once: each has a part of its own.
        part_id = f"{id}-{zlib.crc32(os.fsencode(path.name)):08x}"
        with opened_folder(str(path.parent)) as folder, PartFile(folder, part_id) as part:
            part.fill(_counted(content, progress), finish)
            part.replace(path.name)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not that of the part, which nobody knows
        raise


def _counted(pieces: Iterable[bytes], progress: Bar) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        progress.advance(len(piece))


def _copy(pieces: Iterable[bytes], file: IO[bytes], progress: Bar) -> None:
    """All of it, in order."""
    for piece in _counted(pieces, progress):
        file.write(piece)
