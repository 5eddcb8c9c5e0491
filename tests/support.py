"""What engine tests share: a clock they own, small settings, and repositories that are checked when the test ends."""

import gc
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from ullage.clock import Clock
from ullage.contract import ContainerSettings, ContentRepositorySpec, Quantity
from ullage.engine.engine import Engine
from ullage.engine.files import DiskUsage, Files, OsFiles
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import ContentClaim, FlowFileRecord
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.session import ProcessSession
from ullage.engine.wal import serde

OPENS_KEPT = 100
"""The collector counts objects, not bytes: before it comes by itself, the garbage of ten thousand repositories, a
megabyte each, fills the machine."""

CI_SEED = 20261121

_opens = count(1)


def collect_now_and_then() -> None:
    """For tests that open thousands of repositories in one process, before each."""
    if next(_opens) % OPENS_KEPT == 0:
        gc.collect()


@pytest.fixture
def seed() -> int:
    """What a random test draws from: `ULLAGE_SEED`; the same one in each run of CI, where a red run means this change;
    another one everywhere else, where each run looks further. A full target takes its `SEED=`.
    """
    given = os.environ.get("ULLAGE_SEED")
    return int(given) if given else CI_SEED if "CI" in os.environ else secrets.randbits(32)


class ManualClock(Clock):
    """Time that moves only when told to, or when somebody sleeps. `wrong_by` is how far the wall clock is ahead of it,
    in milliseconds.
    """

    def __init__(self, millis: int = 1_700_000_000_000) -> None:
        self.millis = millis
        self.wrong_by = 0

    def now_millis(self) -> int:
        return self.millis + self.wrong_by

    def monotonic(self) -> float:
        return self.millis / 1000

    def boottime(self) -> float:
        return self.millis / 1000

    def sleep(self, seconds: float) -> None:
        self.millis += max(1, round(seconds * 1000))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.millis += round(seconds * 1000)


def spec_at(path: Path | str, **sections: Any) -> ContentRepositorySpec:
    """The embedded defaults at `path`, with fields of sections replaced: `spec_at(p, claims={"max_flow_files": 2})`,
    and fields that stand in no section: `spec_at(p, isolation=Isolation.PER_TENANT)`.

    Without a quota of the test's own, back-pressure starts at 100%: how full the tests' disk is is not their matter.
    """
    spec = ContentRepositorySpec.embedded(str(path))
    if "storage" not in sections:
        sections = {**sections, "archive": {"backpressure_percentage": 100, **sections.get("archive", {})}}
    changed = {
        section: msgspec.structs.replace(getattr(spec, section), **fields) if isinstance(fields, dict) else fields
        for section, fields in sections.items()
    }
    return msgspec.structs.replace(spec, **changed)


def containers(**capacities: int | None) -> dict[str, Any]:
    """Settings of storage with containers of these names, each with its quota in bytes, if any."""
    quotas = {name: None if count is None else Quantity(count) for name, count in capacities.items()}
    return {"containers": tuple(ContainerSettings(name=n, sub_path=n, capacity=quotas[n]) for n in quotas)}


TWO = containers(c1=None, c2=None)


class RoomyFiles(OsFiles):
    """The real disk, which always says that a tenth of it is used.

    How full the disk under the tests is is not their matter: above 50% the archive would be emptied and pacing lifted.
    A test about usage sets a quota, brings a volume of its own, or says what `usage` answers.
    """

    def usage(self, path: str) -> DiskUsage:
        found = super().usage(path)
        return DiskUsage(found.free_bytes * 10 // 9, found.free_bytes, found.is_read_only)


class Workshop:
    """Makes, ends, reopens and finally checks one repository."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """What it makes lies on `files`; what it opens again on the real disk, where nothing fails."""
        self.path = path
        self.files = files or RoomyFiles()
        self.clock = ManualClock()
        self.spec = spec_at(path)
        self.expects_problems = False
        self._repository: Engine | None = None

    @property
    def repository(self) -> Engine:
        """What is open."""
        assert self._repository is not None, "nothing is open"
        return self._repository

    @property
    def is_open(self) -> bool:
        return self._repository is not None

    def make(self, files: Files | None = None, clock: Clock | None = None, **sections: Any) -> Engine:
        """Initialize and open."""
        self.spec = spec_at(self.path, **sections)
        Engine.initialize(self.spec, files or self.files, clock or self.clock)
        return self.open(files or self.files, clock)

    def open(self, files: Files | None = None, clock: Clock | None = None, **sections: Any) -> Engine:
        """Open what is there; with sections, under other settings."""
        if sections:
            self.spec = spec_at(self.path, **sections)
        self._repository = Engine.open(self.spec, files or RoomyFiles(), clock or self.clock)
        return self._repository

    def close(self) -> None:
        """Check deeply, then close cleanly."""
        if self._repository is not None:
            try:
                if self._repository.log.is_running and not self.expects_problems:
                    assert self._repository.check(deep=True).problems == ()
            finally:
                self.shut()

    def shut(self) -> None:
        """Close cleanly, unchecked."""
        repository, self._repository = self.repository, None
        repository.close()

    def kill(self) -> None:
        """End as a killed process does: nothing closed, sealed or flushed by us."""
        if self._repository is not None:
            repository, self._repository = self._repository, None
            abandon(repository)

    def reopen(self, **sections: Any) -> Engine:
        """Check, close cleanly and open again."""
        self.close()
        return self.open(**sections)

    def crash(self, **sections: Any) -> Engine:
        """Kill, then open again and prove what the process that was killed had written."""
        self.kill()
        repository = self.open(**sections)
        repository.proof.run()
        return repository

    def restart(self, how: str) -> Engine:
        """The repository after no restart ("none"), a "clean" one, a "crash", or one behind a "checkpoint"."""
        if how == "checkpoint":
            self.repository.checkpoint()
        return {"none": lambda: self.repository, "clean": self.reopen}.get(how, self.crash)()

    def forget(self, handle: str) -> None:
        """Delete a handle and purge it, once its retention has passed."""
        self.repository.handles.delete(handle)
        self.clock.advance(8 * 24 * 3600)
        self.repository.handles.purge()

    def content_file(self, resource: int) -> Path:
        """A resource claim's file, wherever it lies."""
        (name,) = (name for name in content_sizes(self.path) if name.endswith(f"-{resource}"))
        return self.path / name


def event_store(repository: Engine) -> ProvenanceStore:
    """The provenance repository that is ours, for what is to be seen of its files."""
    assert isinstance(repository.provenance, ProvenanceStore)
    return repository.provenance


def abandon(repository: Engine) -> None:
    """Drop a repository's descriptors and lock without any of what `close` does to the files."""
    repository.log.abandon()
    repository.close()


def let_go(error: BaseException | None) -> None:
    """Forget the frames of an error and of what led to it. They keep the runs open that the failed step had in its
    hands: for as long as somebody knows the error, or until a collection comes by.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


@pytest.fixture
def workshop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """A workshop in a fresh directory, on the test's failing `files` where it asks for them; what it made is checked
    deeply when the test ends.
    """
    files = request.getfixturevalue("files") if "files" in request.fixturenames else None
    made = Workshop(tmp_path / "repository", files)
    try:
        yield made
    except BaseException:
        made.expects_problems = True
        raise
    finally:
        made.close()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    """A repository with the small settings of tests, made by the test's workshop."""
    return workshop.make()


def careless() -> AbstractContextManager[object]:
    """A log that does not look whether what it writes can be read again, as none did once."""
    return mock.patch.object(serde, "require_readable", return_value=None)


@pytest.fixture
def careless_log() -> Iterator[None]:
    """The same for a whole test."""
    with careless():
        yield


@contextmanager
def committing(repository: Engine) -> Iterator[ProcessSession]:
    """A session whose work is committed at the end, unless an error ends it."""
    with repository.session() as session:
        yield session
        session.commit()


def put_all(repository: Engine, queue: str, contents: list[bytes], **attributes: str) -> list[FlowFileRecord]:
    """Ingest contents into a queue in one commit."""
    with committing(repository) as session:
        return session.ingest(queue, contents, attributes or None)


def put_each(repository: Engine, queue: str, contents: Iterable[bytes], **attributes: str) -> list[FlowFileRecord]:
    """Ingest contents in a commit each."""
    return [put_all(repository, queue, [content], **attributes)[0] for content in contents]


def claim_of(record: FlowFileRecord) -> ContentClaim:
    """The claim of a FlowFile that has content."""
    assert record.claim is not None
    return record.claim


def entry_of(repository: Engine, record: FlowFileRecord) -> ResourceEntry:
    """What the ledger knows of the file that a FlowFile's content lies in."""
    entry = repository.ledger.entry(claim_of(record).resource)
    assert entry is not None
    return entry


def drain(repository: Engine, queue: str, count: int = 10_000) -> list[bytes]:
    """Read and remove up to `count` FlowFiles' contents in one commit."""
    with committing(repository) as session:
        records = session.get_many(queue, count)
        contents = [session.read(record).read() for record in records]
        session.remove_many(records)
    return contents


def content_sizes(path: Path) -> dict[str, int]:
    """Name and size of each content file (archived ones included) below a repository, but for those made ahead."""
    sizes = {
        str(file.relative_to(path)): file.stat().st_size for file in sorted(path.glob("c*/**/*-*")) if file.is_file()
    }
    return {name: size for name, size in sizes.items() if size}


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file over."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def cut(path: Path, length: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(length)


def open_descriptors(path: Path) -> set[str]:
    """The files below `path` that this process holds open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add(str(link.readlink()))
    return {target for target in found if target.startswith(str(path))}
