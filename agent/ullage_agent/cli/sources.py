"""What is put: files, directory trees and stdin, gathered, read and handed to a target piece by piece."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.errors import QueueNotFound
from ullage.streams import PIECE_BYTES
from ullage_agent.cli.failures import message_of
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import Bar, console, many, print_json, say, size, visible

if TYPE_CHECKING:
    from ullage import Repository

SMALL_BYTES = 256 << 10
"""Files up to this size are gathered in memory; larger ones stream."""

BATCH_FILES = 1_000
BATCH_BYTES = 8 << 20
"""A commit of small files: enough to make its syncs cheap, little enough for one request to a service."""

LISTED_MAX = 20
"""Up to so many uuids are printed; --json prints all."""

STDIN = "-"


class Source(NamedTuple):
    """Something to put: a file, or stdin."""

    path: str
    size: int
    attributes: dict[str, str]


class Stored(NamedTuple):
    """What became of it."""

    uuid: str
    source: str
    size: int


class SourceUnreadable(Exception):
    """The input failed, not the repository."""


def as_text(name: str) -> str:
    """A name from the system as UTF-8: bytes that are none become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def gather(paths: Iterable[str], repository_root: str = "") -> tuple[list[Source], list[str]]:
    """All files below the paths, without those of a repository here; and what was skipped, with the reason."""
    skipped: list[str] = []
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            sources.append(Source(STDIN, 0, {}))
        elif os.path.isdir(path):
            sources.extend(walk(path, repository_root, skipped))
        else:
            try:
                sources.append(source_of(path, ""))
            except OSError as error:
                skipped.append(message_of(error))
    return sources, skipped


def walk(top: str, repository_root: str, skipped: list[str]) -> Iterator[Source]:
    """The regular files of a tree in a stable order. Symbolic links and special files are left out."""

    def on_error(error: OSError) -> None:
        skipped.append(message_of(error))

    own = os.path.realpath(repository_root) if repository_root else ""
    for directory, names, files in os.walk(top, onerror=on_error):
        names[:] = sorted(name for name in names if os.path.realpath(os.path.join(directory, name)) != own)
        if os.path.realpath(directory) == own:
            names.clear()
            continue
        for name in sorted(files):
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield source_of(path, os.path.relpath(directory, top))
            except OSError as error:
                on_error(error)


def source_of(path: str, below: str) -> Source:
    """The file with the attributes that NiFi's GetFile gives it."""
    absolute = os.path.abspath(path)
    relative = "./" if below in ("", ".") else f"./{below}/"
    attributes = {
        "filename": os.path.basename(absolute),
        "path": relative,
        "absolute.path": os.path.dirname(absolute) + "/",
    }
    return Source(path, os.stat(path).st_size, {name: as_text(value) for name, value in attributes.items()})


def pieces_of_source(path: str, on_bytes: Callable[[int], None]) -> Generator[bytes]:
    """What is in a source, first as much as tells a small one, which ends there. Its own errors are told from the
    repository's, and reading can be interrupted.
    """
    count = SMALL_BYTES + 1
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
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
        limit; a queue is made on first use.
        """
        if self.queue is None:
            return BATCH_FILES
        try:
            status = self._queues.find(self.queue)
        except QueueNotFound:
            status = self._queues.define(self.queue)
        is_bounded = status.count_max and not self._force
        return min(BATCH_FILES, max(1, status.count_max - status.flow_files)) if is_bounded else BATCH_FILES

    def _note(self, stored: list[Stored]) -> None:
        self.stored.extend(stored)
        self.commits += 1
        interrupts.check()


def put_all(target: Target, sources: Iterable[Source], common: dict[str, str], skipped: list[str]) -> None:
    """Everything, with attributes common to all; what cannot be read is skipped, with the reason."""
    try:
        for source in sources:
            try:
                with contextlib.closing(pieces_of_source(source.path, target.progress.advance)) as pieces:
                    target.add(source, source.attributes | common, pieces)
            except SourceUnreadable as error:
                skipped.append(str(error))
        target.flush()
    except Exception as error:
        error.add_note(f"{many(len(target.stored), 'file')} had been stored before and stay")
        raise


def report(target: Target, skipped: list[str], as_json: bool, seconds: float) -> None:
    """What became of it, for people or as JSON."""
    total = sum(stored.size for stored in target.stored)
    for reason in skipped:
        say(f"skipped: {reason}")
    if as_json:
        document: dict[str, Any] = {
            "queue": target.queue,
            "count": len(target.stored),
            "bytes": total,
            "commits": target.commits,
            "skipped": skipped,
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
    say(f"{stored} in {many(target.commits, 'commit')}, {seconds:.1f} s")
