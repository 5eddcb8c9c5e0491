"""The demo's input: real files, their SHA-256, and what must therefore be found in the repository."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO

from ullage_agent.cli.sources import Source, walk
from ullage_agent.engine.session import ProcessSession

LARGE_BYTES = 50 << 10
"""From here on a file streams, and lies behind the small ones of its session: what `truncate` can give back alone."""

ENOUGH_FILES = 3_000
"""Some distributions ship a short library; the packages installed beside it then join in."""

FILES_MAX = 10_000

PIECE_BYTES = 1 << 20

NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages"})


@dataclass(slots=True)
class Oracle:
    """What the repository must hold, known from the files alone: SHA-256 and queue by uuid."""

    sha256: dict[str, str] = field(default_factory=dict)
    queue: dict[str, str] = field(default_factory=dict)

    def expect(self, uuid: str, sha256: str, queue: str) -> None:
        self.sha256[uuid] = sha256
        self.queue[uuid] = queue

    def forget(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            del self.sha256[uuid], self.queue[uuid]

    def forget_queue(self, queue: str) -> None:
        self.forget([uuid for uuid, name in self.queue.items() if name == queue])


def library_files() -> list[Source]:
    """The running Python's standard library, several thousand files on most machines."""
    top = sysconfig.get_path("stdlib")
    skipped: list[str] = []
    sources = [
        source
        for source in walk(top, os.devnull, skipped)
        if NOT_THE_LIBRARY.isdisjoint(os.path.relpath(source.path, top).split(os.sep))
    ]
    if len(sources) < ENOUGH_FILES:
        sources.extend(walk(sysconfig.get_path("purelib"), os.devnull, skipped))
    return sources[:FILES_MAX]


def tree_files(top: str) -> list[Source]:
    """The files of a directory tree."""
    return list(walk(top, os.devnull, []))


class HashingFile:
    """A file that is read once: by the repository, and on the way by SHA-256."""

    def __init__(self, file: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._hash.update(data)
        self._on_bytes(len(data))
        return data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def ingest(
    session: ProcessSession, sources: Sequence[Source], queue: str, on_bytes: Callable[[int], None]
) -> dict[str, str]:
    """Put files into a queue as one transaction; uuid and SHA-256 of each, to be believed once this returns.

    Small files go first, so that they and the large ones behind them share resource claims. A file that vanished since
    it was listed, or is not for us to read, is left out.
    """
    found: dict[str, str] = {}
    contents: list[bytes] = []
    attributes: list[dict[str, str]] = []
    hashes: list[str] = []
    for source in (source for source in sources if source.size < LARGE_BYTES):
        file = open_readable(source.path)
        if file is None:
            continue
        with file:
            data = file.read()
        contents.append(data)
        attributes.append(attributes_of(source))
        hashes.append(hashlib.sha256(data).hexdigest())
        on_bytes(len(data))
    if contents:
        records = session.ingest(queue, contents, attributes)
        found.update(zip((record.id for record in records), hashes, strict=True))
    large = [source for source in sources if source.size >= LARGE_BYTES]
    for source in sorted(large, key=lambda source: source.size):
        file = open_readable(source.path)
        if file is None:
            continue
        with file:
            reader = HashingFile(file, on_bytes)
            flow_file = session.create(attributes=attributes_of(source))
            session.write(flow_file, iter(lambda: reader.read(PIECE_BYTES), b""))  # noqa: B023 - read at once
        session.transfer(flow_file, queue)
        found[flow_file.id] = reader.sha256
    session.commit()
    return found


def open_readable(path: str) -> IO[bytes] | None:
    """The file, or None where it cannot be opened."""
    try:
        return open(path, "rb")
    except OSError:
        return None


def attributes_of(source: Source) -> dict[str, str]:
    """What routing looks at beside the file's names."""
    return source.attributes | {"suffix": os.path.splitext(source.path)[1]}


def make_large_file(path: str, size_bytes: int, on_bytes: Callable[[int], None]) -> Source:
    """A file of random bytes."""
    with open(path, "wb") as file:
        left = size_bytes
        while left:
            piece = os.urandom(min(PIECE_BYTES, left))
            file.write(piece)
            on_bytes(len(piece))
            left -= len(piece)
    return Source(path, size_bytes, {"filename": os.path.basename(path), "path": "./"})
