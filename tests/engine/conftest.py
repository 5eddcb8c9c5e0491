import pytest

from ullage.engine.content import reserve
from ullage.engine.wal import partition


@pytest.fixture(autouse=True)
def _small_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of test repositories with the default reserves would fill the machine that runs them."""
    monkeypatch.setattr(reserve, "LOG_RESERVE_BYTES", 256 << 10)
    monkeypatch.setattr(reserve, "CONTENT_RESERVE_BYTES", 256 << 10)


@pytest.fixture
def _each_frame_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that reserves no blocks ahead asks for them before each frame: where a test can refuse a transaction."""
    monkeypatch.setattr(partition, "PREALLOCATE_BYTES", 1)
    monkeypatch.setattr(partition, "PREALLOCATE_BYTES_MIN", 1)
    monkeypatch.setattr(partition, "ZEROED_FRAME_BYTES_MAX", 0)
