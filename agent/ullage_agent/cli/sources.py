"""What is put: files, directory trees and stdin, gathered, read and handed to a target piece by piece."""

import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ullage_agent.cli.exits import message_of
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import Bar, console, many, print_json, say, size, visible

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
                sources.append(_source(path, ""))
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


class Target:
    """Where things are put, and what has become of them so far. `queue`: which one, None for handles."""

    def __init__(self, queue: str | None, progress: Bar) -> None:
        self.queue = queue
        self.progress = progress
        self.stored: list[Stored] = []
        self.commits = 0

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        """Take one; a small one as bytes, which may wait for `flush`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Commit what was gathered."""


def put_all(target: Target, sources: Iterable[Source], common: dict[str, str], skipped: list[str]) -> None:
    """Everything, with attributes common to all; what cannot be read is skipped, with the reason."""
    try:
        for source in sources:
            try:
                _put_one(target, source, source.attributes | common)
            except SourceUnreadable as error:
                skipped.append(str(error))
        target.flush()
    except Exception as error:
        error.add_note(f"{many(len(target.stored), 'file')} had been stored before and stay")
        raise


def _put_one(target: Target, source: Source, attributes: dict[str, str]) -> None:
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
