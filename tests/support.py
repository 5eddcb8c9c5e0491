"""What engine tests share: a clock they own, small settings, and repositories that are checked when the test ends."""

import gc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.files import DiskUsage, Files, OsFiles
from ullage_agent.engine.model import FlowFile
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.wal.serde import SerDe

OPENS_KEPT = 100
"""An open freezes what it loaded, and the collector does not count what was thawed: after ten thousand repositories
their garbage, a megabyte each, fills the machine.
"""

_opens = count(1)


def collect_now_and_then() -> None:
    """For tests that open thousands of repositories in one process, before each."""
    if next(_opens) % OPENS_KEPT == 0:
        gc.unfreeze()
        gc.collect()


class ManualClock:
    """Time that moves only when told to, or when somebody sleeps."""

    def __init__(self, millis: int = 1_700_000_000_000) -> None:
        self.millis = millis

    def now_millis(self) -> int:
        return self.millis

    def monotonic(self) -> float:
        return self.millis / 1000

    def sleep(self, seconds: float) -> None:
        self.millis += max(1, round(seconds * 1000))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.millis += round(seconds * 1000)


def spec_at(path: Path | str, **sections: Any) -> ContentRepositorySpec:
    """The embedded defaults at `path`, with fields of sections replaced: `spec_at(p, claims={"max_flow_files": 2})`.

    Without a quota of the test's own, back-pressure starts at 100%: how full the tests' disk is is not their matter.
    """
    spec = ContentRepositorySpec.embedded(str(path))
    if "storage" not in sections:
        sections = {**sections, "archive": {"backpressure_percentage": 100, **sections.get("archive", {})}}
    changed = {
        section: msgspec.structs.replace(getattr(spec, section), **fields) for section, fields in sections.items()
    }
    return msgspec.structs.replace(spec, **changed)


class RoomyFiles(OsFiles):
    """The real disk, which always says that a tenth of it is used.

    How full the disk under the tests is is not their matter: above 50% the archive would be emptied and pacing lifted.
    A test about usage sets a quota, brings a volume of its own, or says what `usage` answers.
    """

    def usage(self, path: str) -> DiskUsage:
        found = super().usage(path)
        return DiskUsage(found.free_bytes * 10 // 9, found.free_bytes, found.device)


class Workshop:
    """Makes, reopens and finally checks one repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.spec = spec_at(path)
        self.repository: Repository | None = None
        self.expects_problems = False

    def make(
        self,
        files: Files | None = None,
        clock: Clock | None = None,
        serde: SerDe | None = None,
        **sections: Any,
    ) -> Repository:
        """Initialize and open."""
        self.spec = spec_at(self.path, **sections)
        Repository.initialize(self.spec, files or RoomyFiles(), clock or self.clock, serde)
        return self.open(files, clock, serde)

    def open(
        self,
        files: Files | None = None,
        clock: Clock | None = None,
        serde: SerDe | None = None,
        **sections: Any,
    ) -> Repository:
        """Open what is there; with sections, under other settings."""
        if sections:
            self.spec = spec_at(self.path, **sections)
        self.repository = Repository.open(self.spec, files or RoomyFiles(), clock or self.clock, serde)
        return self.repository

    def close(self) -> None:
        """Check deeply, then close cleanly."""
        if self.repository is not None:
            repository, self.repository = self.repository, None
            try:
                if repository.log.is_running and not self.expects_problems:
                    assert repository.check(deep=True).problems == ()
            finally:
                repository.close()

    def leave(self) -> None:
        """Check and close, for a test that then damages what lies on disk."""
        self.close()

    def reopen(self, **sections: Any) -> Repository:
        """Check, close cleanly and open again."""
        self.close()
        return self.open(**sections)

    def crash(self, **sections: Any) -> Repository:
        """Stop as a killed process does (nothing closed, sealed or flushed by us), then open again."""
        if self.repository is not None:
            abandon(self.repository)
            self.repository = None
        return self.open(**sections)


def abandon(repository: Repository) -> None:
    """Drop a repository's descriptors and lock without any of what `close` does to the files."""
    repository.log.abandon()
    repository.close()


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """A workshop in a fresh directory; what it made is checked deeply when the test ends."""
    made = Workshop(tmp_path / "repository")
    try:
        yield made
    except BaseException:
        made.expects_problems = True
        raise
    finally:
        made.close()


def put_all(repository: Repository, queue: str, contents: list[bytes], **attributes: str) -> list[FlowFile]:
    """Ingest contents into a queue in one commit."""
    with repository.session() as session:
        records = session.ingest(queue, contents, attributes or None)
        session.commit()
    return records


def drain(repository: Repository, queue: str, count: int = 10_000) -> list[bytes]:
    """Read and remove up to `count` FlowFiles' contents in one commit."""
    with repository.session() as session:
        records = session.get_many(queue, count)
        contents = [session.read(record).read() for record in records]
        session.remove_many(records)
        session.commit()
    return contents


def content_sizes(path: Path) -> dict[str, int]:
    """Name and size of each content file (archived ones included) below a repository, but for those made ahead."""
    sizes = {
        str(file.relative_to(path)): file.stat().st_size for file in sorted(path.glob("c*/**/*-*")) if file.is_file()
    }
    return {name: size for name, size in sizes.items() if size}
