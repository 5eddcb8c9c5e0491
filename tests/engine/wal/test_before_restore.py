"""Step 1 of seed 003's writing: no update before the records have been restored."""

import pytest

from tests.engine.wal.logbook import Logbook
from ullage_agent.engine.errors import NotRestored


def test_an_update_before_the_restore_is_refused(logbook: Logbook) -> None:
    """It raises NotRestored, and neither memory nor disk has changed."""
    logbook.new()

    with pytest.raises(NotRestored, match="call restore"):
        logbook.append(1)

    assert logbook.state.numbers == set()
    assert logbook.files() == []


def test_a_checkpoint_before_the_restore_is_refused(logbook: Logbook) -> None:
    """An empty snapshot over a full repository is the worst thing that it could write."""
    logbook.new()

    with pytest.raises(NotRestored):
        logbook.log.checkpoint()

    assert logbook.files() == []


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
