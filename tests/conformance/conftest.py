"""A repository behind each of its implementations; what a test leaves is checked deeply."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ullage
import ullage.testing
from tests.service.running import Running, document_at
from tests.service.socket.conftest import short_path as short_path
from ullage import Repository

SECTIONS: dict[str, Any] = {
    "compaction": {"min_used_percentage": 0, "min_reclaim": 0},
    "archive": {"enabled": False},
}
"""Whatever is dead is worth giving back, at once."""


@contextmanager
def opened(way: str, path: Path, sockets: Path, **sections: Any) -> Iterator[Repository]:
    """Opened here, on disk or in memory, or served by a service in this process and reached over HTTP, or over
    everything there is. `sections` are settings beside SECTIONS.
    """
    sections = SECTIONS | sections
    if way in ("embedded", "memory"):
        document = document_at(path, **sections)
        is_kept = way == "embedded"
        with (
            ullage.open(config=document, create=True, maintain=False)
            if is_kept
            else ullage.testing.open(config=document)
        ) as repository:
            yield repository
        assert is_kept == path.exists()
        return
    ways = {} if way == "http" else {"flight_port": 0, "socket_path": str(sockets / "socket")}
    with Running(document_at(path, service=ways | {"backup_directory": str(path.parent)}, **sections)) as running:
        urls = running.server.urls
        with ullage.connect(urls["http"], flight=urls.get("flight"), socket=urls.get("socket")) as repository:
            yield repository


@pytest.fixture(params=["embedded", "memory", "http"])
def archiving(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[Repository]:
    """One that keeps dead content for replays."""
    with opened(request.param, tmp_path / "repository", short_path, archive={"enabled": True}) as repository:
        yield repository


@pytest.fixture(params=["embedded", "memory", "http", "all transports"])
def repository(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[Repository]:
    """Each in turn."""
    with opened(request.param, tmp_path / "repository", short_path) as repository:
        yield repository
        assert repository.check(deep=True).problems == ()
