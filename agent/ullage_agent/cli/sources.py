"""How it is put: files and stdin are read, and handed to a target piece by piece."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ullage.beneath import opened_folder, walked
from ullage.errors import BackPressure, QueueNotFound
from ullage.streams import PIECE_BYTES
from ullage_agent.cli.filefacts import FileType
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import Bar, console, many, print_json, say, size, visible
from ullage_agent.cli.trees import STDIN, Source, as_text

if TYPE_CHECKING:
    from ullage import Repository
    from ullage.wire.queues import QueueStatus

SMALL_BYTES = 256 << 10
"""Files up to this size are gathered in memory; larger ones stream."""

BATCH_FILES = 1_000
BATCH_BYTES = 8 << 20
"""A commit of small files: enough to make its syncs cheap, little enough for one request to a service."""

LISTED_MAX = 20
"""Up to so many uuids, and reasons why something was skipped, are printed; --json prints all."""


class Stored(NamedTuple):
    """What became of it."""

    uuid: str
    source: str
    size: int


class SourceUnreadable(Exception):
    """The input failed, not the repository."""


def pieces_of_source(source: Source, on_bytes: Callable[[int], None]) -> Generator[bytes]:
    """What is in a source, first as much as tells a small one, which ends there. Its own errors are told from the
    repository's, and reading can be interrupted.
    """
    count = SMALL_BYTES + 1
    path = source.path
    try:
        if source.type is not FileType.FILE:
            if source.type is FileType.LINK:
                with _held(source) as (name, folder):
                    target = os.fsencode(os.readlink(name, dir_fd=folder))
                on_bytes(len(target))
                yield target
            return
        with contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else _opened(source) as file:
            while True:
                with interrupts.allowed():
                    piece = file.read(count)
                if not piece:
                    return
                on_bytes(len(piece))
                yield piece
                count = PIECE_BYTES
    except OSError as error:
        raise SourceUnreadable(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    """The file, as it was found: in a tree where others write, it may be a link to a secret by now, or a pipe, and each
    directory above it a link to elsewhere.
    """
    with _held(source) as (name, folder):
        # Not blocking, as opening a pipe that nobody writes would never end.
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_NOFOLLOW | os.O_NONBLOCK if source.top else 0)
        descriptor = os.open(name, flags, dir_fd=folder)
    with open(descriptor, "rb") as file:
        if source.top and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it was a file, and is none any more", source.path)
        yield file


@contextlib.contextmanager
def _held(source: Source) -> Iterator[tuple[str, int | None]]:
    """What to open it by: its name in the directory that the names from its top on lead to, none of which is a link."""
    if not source.top:
        yield source.path, None
        return
    *above, name = source.path.removeprefix(os.path.join(source.top, "")).split("/")
    with opened_folder(source.top) as top, walked(top, above) as folder:
        yield name, folder


class Target:
    """Where things are put, and what has become of them so far: small ones share transactions."""

    def __init__(
        self, repository: "Repository", queue: str | None, progress: Bar, *, ttl_millis: int, force: bool
    ) -> None:
        """`queue`: which one; None for handles, which alone have a `ttl_millis`."""
        self.queue = queue
        self.progress = progress
        self.stored: list[Stored] = []
        self.commits = 0
        self._queues = repository.queues
        self._force = force
        self._put: Callable[[Iterable[bytes], dict[str, str]], str]
        self._put_many: Callable[[list[bytes], list[dict[str, str]]], list[str]]
        if queue is None:
            self._put = partial(repository.handles.put, ttl_millis=ttl_millis)
            self._put_many = partial(repository.handles.put_many, ttl_millis=ttl_millis)
        else:
            self._put = partial(repository.queues.put, queue, force=force)
            self._put_many = partial(repository.queues.put_many, queue, force=force)
        self._batch: list[tuple[Source, dict[str, str], bytes]] = []
        self._batch_files = 0
        self._batch_bytes = 0

    def require_room(self, sources: Sequence[Source]) -> None:
        """BackPressure if the queue would be full before all of these are in it: told before the work, not amid it."""
        if self.queue is None or self._force or not sources:
            return
        status = self._status(self.queue)
        total = sum(source.size for source in sources)
        room = max(0, status.count_max - status.flow_files)
        if status.count_max and room < len(sources):
            limit = f"room for {many(room, 'FlowFile')} more (spec.flowFile.queueDefaults.maxCount)"
        elif status.bytes_max and status.size_bytes + total - sources[-1].size >= status.bytes_max:
            limit = f"room for {size(max(0, status.bytes_max - status.size_bytes))} more"
        else:
            return
        raise BackPressure(
            f"queue {self.queue} has {limit}, and {many(len(sources), 'FlowFile')} of {size(total)} are to be put: "
            "nothing was put; --force puts them all the same"
        )

    def add(self, source: Source, attributes: dict[str, str], pieces: Iterator[bytes]) -> None:
        """Take one; a small one may wait for `flush`."""
        before = self.progress.done
        head = next(pieces, b"")
        if len(head) > SMALL_BYTES:
            self.flush()
            id = self._put(chain([head], pieces), attributes)
            self._note([Stored(id, source.path, self.progress.done - before)])
            return
        if self._batch_bytes + len(head) > BATCH_BYTES:
            self.flush()
        if not self._batch:
            self._batch_files = self._room()
        self._batch.append((source, attributes, head))
        self._batch_bytes += len(head)
        if len(self._batch) >= self._batch_files:
            self.flush()

    def flush(self) -> None:
        """Commit what was gathered."""
        if not self._batch:
            return
        ids = self._put_many([data for _, _, data in self._batch], [attributes for _, attributes, _ in self._batch])
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self._note([Stored(id, source.path, len(data)) for id, (source, _, data) in zip(ids, batch, strict=True)])

    def _room(self) -> int:
        """How many files the next commit may have. Back-pressure is looked at here alone, so none goes beyond its
        limit.
        """
        if self.queue is None:
            return BATCH_FILES
        status = self._status(self.queue)
        is_bounded = status.count_max and not self._force
        return min(BATCH_FILES, max(1, status.count_max - status.flow_files)) if is_bounded else BATCH_FILES

    def _status(self, queue: str) -> "QueueStatus":
        """Of the queue, which is made on first use."""
        try:
            return self._queues.find(queue)
        except QueueNotFound:
            return self._queues.define(queue)

    def _note(self, stored: list[Stored]) -> None:
        self.stored.extend(stored)
        self.commits += 1
        interrupts.check()


def put_all(target: Target, sources: Iterable[Source], common: dict[str, str], skipped: list[str]) -> None:
    """Everything, with attributes common to all; what cannot be read is skipped, with the reason."""
    try:
        for source in sources:
            try:
                with contextlib.closing(pieces_of_source(source, target.progress.advance)) as pieces:
                    target.add(source, source.attributes | common, pieces)
            except SourceUnreadable as error:
                skipped.append(str(error))
        target.flush()
    except BaseException as error:  # Ctrl-C as well
        if target.stored or isinstance(error, Exception):
            error.add_note(f"{many(len(target.stored), 'file')} had been stored before and stay")
        raise


def report(target: Target, skipped: list[str], unchanged: int | None, as_json: bool, seconds: float) -> None:
    """What became of it, for people or as JSON. `unchanged`: how many were there already; None if nobody looked."""
    total = sum(stored.size for stored in target.stored)
    for reason in skipped[:LISTED_MAX]:
        say(f"skipped: {reason}")
    if len(skipped) > LISTED_MAX:
        say(f"skipped: {len(skipped) - LISTED_MAX:,} more, {len(skipped):,} in all; --json names each")
    if as_json:
        document: dict[str, Any] = {
            "queue": target.queue,
            "count": len(target.stored),
            "bytes": total,
            "commits": target.commits,
            "skipped": skipped,
            **({} if unchanged is None else {"unchanged": unchanged}),
            "items": [stored._asdict() for stored in target.stored],
        }
        print_json(document)
        return
    screen = console()
    if len(target.stored) <= LISTED_MAX:
        for item in target.stored:
            name = "stdin" if item.source == STDIN else Path(item.source).name
            screen.print(f"{item.uuid}  {visible(as_text(name))}", soft_wrap=True)
    what = "as handles" if target.queue is None else f"into queue {target.queue}"
    stored = f"{many(len(target.stored), 'file')}, {size(total)}, {what}"
    before = "" if unchanged is None else f"; {unchanged:,} were there already"
    say(f"{stored} in {many(target.commits, 'commit')}, {seconds:.1f} s{before}")
