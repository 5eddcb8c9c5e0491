"""What the cases share: sizes, a place to work, repositories, and bare peers."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.files import File, Files, OsFiles

BATCH = 5_000
"""FlowFiles one commit of a filling takes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work each case does."""

    rounds: int
    batches: int
    warm_files: int
    stream_bytes: int
    stream_rounds: int
    reads: int
    commits: int
    slow_commits: int
    recovery: tuple[int, int]
    resident: int
    dropped: int
    pause_rounds: int
    pause_baseline: int
    memory: int
    events: tuple[int, ...] = (100_000, 10_000_000)
    queries: int = 500
    streamed_bytes: int = 10 << 30
    slow_readers: int = 1_000
    hostile_batches: int = 4
    fair_rounds: int = 5
    fair_calls: int = 1_000
    fair_part: int = 1


FULL = Sizes(9, 20, 1_024, 1 << 30, 5, 2_000, 2_000, 64, (100_000, 1_000_000), 1_000_000, 300_000, 3, 2_000, 1_000_000)
QUICK = replace(
    Sizes(5, 20, 1_024, 128 << 20, 5, 500, 640, 32, (10_000, 100_000), 100_000, 30_000, 3, 500, 100_000),
    events=(20_000, 100_000),
    queries=200,
    streamed_bytes=1 << 30,
    slow_readers=200,
    fair_rounds=3,
    fair_calls=200,
)
TINY = replace(
    Sizes(3, 2, 4, 4 << 20, 3, 20, 32, 2, (200, 2_000), 2_000, 500, 1, 20, 2_000),
    events=(2_000,),
    queries=20,
    streamed_bytes=4 << 20,
    slow_readers=5,
    hostile_batches=1,
    fair_rounds=1,
    fair_calls=5,
    fair_part=12,
)


@dataclass(frozen=True, slots=True)
class Workbench:
    """Where a case works, how much, and whom it tells how far it has come."""

    directory: Path
    sizes: Sizes
    say: Callable[[str], None]

    def path(self, name: str) -> Path:
        """A fresh directory."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    @contextmanager
    def repository(self, name: str, files: Files | None = None, **sections: Any) -> Iterator[Engine]:
        """A new repository, removed afterwards; `sections` replace fields: `claims={"max_flow_files": 2}`."""
        path = self.path(name)
        spec = spec_at(path, **sections)
        Engine.initialize(spec)
        try:
            with Engine.open(spec, files) as repository:
                yield repository
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def peer_file(self, name: str) -> Iterator[int]:
        """A bare descriptor, removed afterwards."""
        path = self.directory / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            path.unlink()


def spec_at(path: Path, **sections: Any) -> ContentRepositorySpec:
    """The defaults at `path`, with fields of sections replaced, and no back-pressure: full disks are not measured."""
    spec = ContentRepositorySpec.embedded(path)
    sections = {**sections, "archive": {"backpressure_percentage": 100, **sections.get("archive", {})}}
    changed = {
        section: msgspec.structs.replace(getattr(spec, section), **fields) if isinstance(fields, dict) else fields
        for section, fields in sections.items()
    }
    return msgspec.structs.replace(spec, **changed)


def attributes_of(number: int) -> dict[str, str]:
    """Five attributes such as a flow gives its FlowFiles."""
    return {
        "filename": f"reading-{number:09d}.json",
        "path": f"/sensors/{number % 1_000:03d}/",
        "mime.type": "application/json",
        "source.host": f"gateway-{number % 97:02d}.example",
        "record.count": str(number % 5_000),
    }


def fill(
    repository: Engine,
    queue: str,
    count: int,
    *,
    content: bytes = b"x",
    with_attributes: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Put `count` FlowFiles into a queue, in the largest commits there are; `content` is each one's own claim."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        attributes: Sequence[dict[str, str]] | None = None
        if with_attributes:
            attributes = [attributes_of(number) for number in numbers]
        with repository.session() as session:
            session.ingest(queue, [content] * len(numbers), attributes)
            session.commit()
        say(f"{numbers.stop:,} of {count:,} FlowFiles")


def make_sections(repository: Engine, files: int) -> None:
    """Touch every section once: a repository that is in use has all of its directories."""
    content = bytes(int(repository.spec.claims.max_appendable_size))
    for _ in range(files):
        repository.handles.put(content)


def empty(repository: Engine, queue: str) -> None:
    """Drop what a round has put in, give its space back and start a fresh log."""
    repository.queues.drop(repository.queue(queue))
    repository.checkpoint()
    repository.reclamation.clean()


class SlowDisk(OsFiles):
    """The operating system's files on a disk whose sync takes `seconds` longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def create(self, path: str) -> File:
        return SlowFile(super().create(path), self.seconds)

    def open(self, path: str, *, writable: bool = False) -> File:
        return SlowFile(super().open(path, writable=writable), self.seconds)


class UnsyncedDisk(OsFiles):
    """The operating system's files, none of them ever synced: to prepare in a hurry what is measured later."""

    def create(self, path: str) -> File:
        return _unsynced(super().create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        return _unsynced(super().open(path, writable=writable))

    def sync_directory(self, path: str) -> None:
        """Not done."""


def _unsynced(file: File) -> File:
    unsynced = SlowFile(file, 0)
    unsynced.sync = lambda: None  # type: ignore[method-assign]
    return unsynced


class SlowFile:
    """One file of a `SlowDisk`."""

    def __init__(self, file: File, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self.write = file.write
        self.write_vector = file.write_vector
        self.read = file.read
        self.read_into = file.read_into
        self.truncate = file.truncate
        self.allocate = file.allocate
        self.start_writeback = file.start_writeback
        self.punch = file.punch
        self.is_cached = file.is_cached
        self.expect_reads = file.expect_reads
        self.drop_cache = file.drop_cache
        self.size = file.size
        self.is_at = file.is_at
        self.close = file.close

    def sync(self) -> None:
        self._file.sync()
        time.sleep(self._seconds)


class SharedLog:
    """The least that group commit can be: append under a lock, and whoever gets to sync does it for all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._written = 0
        self._synced = 0

    def commit(self, data: bytes) -> None:
        """Append, and return when it is durable."""
        with self._append_lock:
            os.write(self._descriptor, data)
            self._written += 1
            mine = self._written
        with self._sync_lock:
            if self._synced >= mine:
                return
            covered = self._written
            os.fdatasync(self._descriptor)
            self._synced = covered
