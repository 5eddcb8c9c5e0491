import pytest

from ullage_agent.engine import repository


@pytest.fixture(autouse=True)
def _small_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of test repositories with the default reserves would fill the machine that runs them."""
    monkeypatch.setattr(repository, "LOG_RESERVE_BYTES", 256 << 10)
    monkeypatch.setattr(repository, "CONTENT_RESERVE_BYTES", 256 << 10)
