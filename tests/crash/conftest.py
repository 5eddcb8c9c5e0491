import pytest

from ullage.engine.wal import partition


@pytest.fixture(autouse=True)
def _small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that reserve little ahead do so in every workload, and make images that are quick to compare."""
    monkeypatch.setattr(partition, "PREALLOCATE_BYTES_MIN", 2 << 10)
    monkeypatch.setattr(partition, "ZEROED_BYTES", 2 << 10)
    monkeypatch.setattr(partition, "ZEROED_FRAME_BYTES_MAX", 1 << 10)
