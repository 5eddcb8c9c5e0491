from collections.abc import Iterator

import pytest

from tests.faults import failing_disk, volumes
from ullage.engine.content import reserve


@pytest.fixture(autouse=True)
def _small_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes of megabytes, reserves of kilobytes."""
    monkeypatch.setattr(reserve, "LOG_RESERVE_BYTES", 256 << 10)
    monkeypatch.setattr(reserve, "CONTENT_RESERVE_BYTES", 256 << 10)


@pytest.fixture(params=volumes.fillable())
def volume(request: pytest.FixtureRequest) -> Iterator[volumes.Volume]:
    """A small volume of each filesystem that can be had here."""
    with volumes.volume(request.param) as made:
        yield made


@pytest.fixture(params=[] if failing_disk.missing() else volumes.filesystems())
def disk(request: pytest.FixtureRequest) -> Iterator[failing_disk.FailingDisk]:
    """A disk that fails when told to, under each filesystem that can be had here."""
    with failing_disk.failing_disk(request.param) as made:
        yield made


@pytest.fixture(params=[name for name in volumes.filesystems() if name in volumes.CAN_SHUT_DOWN])
def cuttable(request: pytest.FixtureRequest) -> Iterator[volumes.Volume]:
    """A small volume of each filesystem that can lose what was not synced."""
    with volumes.volume(request.param) as made:
        yield made
