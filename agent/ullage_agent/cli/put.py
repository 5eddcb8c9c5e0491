"""`ullage put`: files, directory trees and stdin become FlowFiles or handles."""

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer

from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.exits import ExitCode, message_of
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import Bar, bar, console, many, print_json, say, size, visible
from ullage_agent.contract import Duration
from ullage_agent.engine.errors import UllageError
from ullage_agent.engine.repository import Repository

SMALL_BYTES = 256 << 10
"""Files up to this size are gathered in memory; larger ones stream."""

BATCH_FILES = 1_000
BATCH_BYTES = 32 << 20
"""A commit of small files: enough to make its syncs cheap, little enough to hold in memory."""

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


def put(
    ctx: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, directory trees, or - for stdin.", show_default=False)
    ],
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue they go to; made on first use.")] = "inbox",
    handle: Annotated[bool, typer.Option("--handle", help="Store handles, which stand in no queue.")] = False,
    ttl: Annotated[str, typer.Option(help="When a handle expires: 30m, 12h; 0s is never.")] = "0s",
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="For all of them; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Put even though the queue is full.")] = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Store content: each file becomes a FlowFile of a queue, or a handle.

    Many small files share a commit, large ones stream. When this returns, everything is on disk.
    """
    common = parse_attributes(attribute or [])
    ttl_millis = parse_duration(ttl)
    if ttl_millis and not handle:
        raise typer.BadParameter("--ttl is for handles: add --handle")
    started = time.monotonic()
    with opened(ctx, root, config) as repository:
        with interrupts.allowed():
            sources, skipped = gather(paths, repository.root)
        with bar("Putting", sum(source.size for source in sources) or None) as progress:
            target = (
                _Handles(repository, ttl_millis, progress) if handle else _Queue(repository, queue, force, progress)
            )
            _put_all(target, sources, common, skipped)
    _report(target, queue, skipped, as_json, time.monotonic() - started)
    if skipped:
        raise typer.Exit(ExitCode.USAGE)


def parse_attributes(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs."""
    attributes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--attribute")
        if name == "uuid":
            raise typer.BadParameter("uuid is given by the repository", param_hint="--attribute")
        attributes[name] = as_text(value)
    return attributes


def parse_duration(text: str) -> int:
    """Milliseconds."""
    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ttl") from error


def as_text(name: str) -> str:
    """A name from the system as UTF-8: bytes that are none become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def gather(paths: Iterable[str], repository_root: str) -> tuple[list[Source], list[str]]:
    """All files below the paths, without the repository's own; and what was skipped, with the reason."""
    skipped: list[str] = []
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            sources.append(Source(STDIN, 0, {}))
        elif os.path.isdir(path):
            sources.extend(walk(path, repository_root, skipped))
        else:
            try:
                sources.append(_source(path, ""))
            except OSError as error:
                skipped.append(message_of(error))
    return sources, skipped


def walk(top: str, repository_root: str, skipped: list[str]) -> Iterator[Source]:
    """The regular files of a tree in a stable order. Symbolic links and special files are left out."""

    def on_error(error: OSError) -> None:
        skipped.append(message_of(error))

    own = os.path.realpath(repository_root)
    for directory, names, files in os.walk(top, onerror=on_error):
        names[:] = sorted(name for name in names if os.path.realpath(os.path.join(directory, name)) != own)
        if os.path.realpath(directory) == own:
            names.clear()
            continue
        for name in sorted(files):
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield _source(path, os.path.relpath(directory, top))
            except OSError as error:
                on_error(error)


def _source(path: str, below: str) -> Source:
    """The file with the attributes that NiFi's GetFile gives it."""
    absolute = os.path.abspath(path)
    relative = "./" if below in ("", ".") else f"./{below}/"
    attributes = {
        "filename": os.path.basename(absolute),
        "path": relative,
        "absolute.path": os.path.dirname(absolute) + "/",
    }
    return Source(path, os.stat(path).st_size, {name: as_text(value) for name, value in attributes.items()})


class InputFile(io.RawIOBase):
    """A source that can be interrupted, shows how far it is, and tells its own errors from the repository's."""

    def __init__(self, path: str, on_bytes: Callable[[int], None]) -> None:
        self._on_bytes = on_bytes
        try:
            self._file: IO[bytes] = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115 - `close` does
        except OSError as error:
            raise SourceUnreadable(message_of(error)) from error
        self._path = path

    def read(self, count: int = -1) -> bytes:
        try:
            with interrupts.allowed():
                data = self._file.read(count)
        except OSError as error:
            raise SourceUnreadable(f"{self._path}: {error.strerror}") from error
        self._on_bytes(len(data))
        return data

    def close(self) -> None:
        if self._path != STDIN:
            self._file.close()
        super().close()


class _Target:
    """Where things are put, and what has become of them so far."""

    def __init__(self, repository: Repository, progress: Bar) -> None:
        self.repository = repository
        self.progress = progress
        self.stored: list[Stored] = []
        self.commits = 0

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Commit what was gathered."""


class _Queue(_Target):
    """A queue: small files share commits."""

    def __init__(self, repository: Repository, queue: str, force: bool, progress: Bar) -> None:
        super().__init__(repository, progress)
        self._queue = queue
        self._force = force
        self._batch: list[tuple[Source, dict[str, str], bytes]] = []
        self._bytes = 0
        self._room = self._batch_room()

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        if isinstance(data, bytes):
            self._batch.append((source, attributes, data))
            self._bytes += len(data)
            if len(self._batch) >= self._room or self._bytes >= BATCH_BYTES:
                self.flush()
            return
        self.flush()
        with self.repository.session() as session:
            if not self._force:
                session.require_room(self._queue)
            flow_file = session.import_from(session.create(attributes=attributes), data)
            session.transfer(flow_file, self._queue)
            session.commit()
        self._note([Stored(flow_file.id, source.path, flow_file.size)])

    def flush(self) -> None:
        if not self._batch:
            return
        with self.repository.session() as session:
            if not self._force:
                session.require_room(self._queue)
            records = session.ingest(
                self._queue,
                [data for _, _, data in self._batch],
                [attributes for _, attributes, _ in self._batch],
            )
            session.commit()
        batch, self._batch, self._bytes = self._batch, [], 0
        self._note(
            Stored(record.id, source.path, record.size) for record, (source, _, _) in zip(records, batch, strict=True)
        )

    def _note(self, stored: Iterable[Stored]) -> None:
        self.stored.extend(stored)
        self.commits += 1
        self._room = self._batch_room()
        interrupts.check()

    def _batch_room(self) -> int:
        """How many files the next commit may have: back-pressure is looked at once a commit."""
        queue = self.repository.queue(self._queue)
        limit = queue.definition.count_max
        if self._force or not limit:
            return BATCH_FILES
        return min(BATCH_FILES, max(1, limit - queue.figures().flow_files))


class _Handles(_Target):
    """Handles: each has its own commit."""

    def __init__(self, repository: Repository, ttl_millis: int, progress: Bar) -> None:
        super().__init__(repository, progress)
        self._ttl_millis = ttl_millis

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        uuid = self.repository.handles.put(data, attributes, self._ttl_millis)
        self.stored.append(Stored(uuid, source.path, self.repository.handles.head(uuid).size))
        self.commits += 1
        interrupts.check()


def _put_all(target: _Target, sources: Iterable[Source], common: dict[str, str], skipped: list[str]) -> None:
    try:
        for source in sources:
            try:
                _put_one(target, source, source.attributes | common)
            except SourceUnreadable as error:
                skipped.append(str(error))
        target.flush()
    except (UllageError, OSError) as error:
        error.add_note(f"{many(len(target.stored), 'file')} had been stored before and stay")
        raise


def _put_one(target: _Target, source: Source, attributes: dict[str, str]) -> None:
    with InputFile(source.path, target.progress.advance) as file:
        head = _read_up_to(file, SMALL_BYTES + 1)
        if len(head) <= SMALL_BYTES:
            target.add(source, attributes, head)
        else:
            target.add(source, attributes, _Joined(head, file))  # type: ignore[arg-type]


def _read_up_to(file: InputFile, count: int) -> bytes:
    """Pipes give less than asked for before their end."""
    parts: list[bytes] = []
    while count > 0 and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class _Joined:
    """A file whose head was read already."""

    def __init__(self, head: bytes, rest: InputFile) -> None:
        self._head = head
        self._rest = rest

    def read(self, count: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._rest.read(count)


def _report(target: _Target, queue: str, skipped: list[str], as_json: bool, seconds: float) -> None:
    total = sum(stored.size for stored in target.stored)
    is_queue = isinstance(target, _Queue)
    for reason in skipped:
        say(f"skipped: {reason}")
    if as_json:
        document: dict[str, Any] = {
            "queue": queue if is_queue else None,
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
    what = f"into queue {queue}" if is_queue else "as handles"
    stored = f"{many(len(target.stored), 'file')}, {size(total)}, {what}"
    say(f"{stored} in {many(target.commits, 'commit')}, {seconds:.1f} s")
