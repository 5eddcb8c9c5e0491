"""Step 1 of a write in NiFi's notes: no update before the records have been restored."""

import pytest

from tests.engine.wal.logbook import Logbook
from ullage.errors import NotRestored


def test_updates_and_checkpoints_before_the_restore_are_refused(logbook: Logbook) -> None:
    """Nothing changes in memory or on disk: an empty snapshot over a full repository would be the worst of all."""
    logbook.new()

    with pytest.raises(NotRestored, match="the repository is closed"):
        logbook.append(1)
    with pytest.raises(NotRestored, match="the repository is closed"):
        logbook.log.checkpoint()

    assert (logbook.state.numbers, logbook.files()) == (set(), ["snapshot"])


def test_after_the_close_nothing_is_accepted(logbook: Logbook) -> None:
    """A closed log belongs to whoever opens it next."""
    logbook.open()
    logbook.log.close()
    before = logbook.files()

    with pytest.raises(NotRestored):
        logbook.append(1)
    with pytest.raises(NotRestored):
        logbook.log.checkpoint()
    assert logbook.files() == before


def test_closing_twice_or_unopened_is_fine(logbook: Logbook) -> None:
    """Close releases what there is to release."""
    logbook.new().close()
    logbook.open()
    logbook.log.close()
    logbook.log.close()
