"""Old files stay readable when the form of a record changes, and newer ones are refused."""

from pathlib import Path

import pytest

from tests.engine.wal.logbook import ForeignSerDe, Logbook, SecondSerDe, note
from tests.support import Workshop, drain, put_all
from ullage.engine import engine
from ullage.engine.files import OsFiles
from ullage.engine.ledger.swap import SwapFiles, summarize
from ullage.engine.model import QueueDefinition
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import FormatTooNew, RepositoryDamaged

BOTH_VERSIONS = "version 2 of SerDe 'ullage-msgpack'; this version of Ullage reads up to 1"


def test_the_second_version_reads_snapshot_and_logs_of_the_first(logbook: Logbook) -> None:
    """A log with a snapshot and traffic after it comes back whole under a newer SerDe."""
    logbook.open(partitions=2)
    logbook.commit_each(1, 4)
    logbook.log.checkpoint()
    logbook.commit_each(5, 7)
    logbook.crash()

    report = logbook.open(partitions=2, serde=SecondSerDe())

    assert (report.snapshot_records, report.transactions) == (4, 3)
    assert logbook.state.numbers == set(range(1, 8))


def test_the_first_version_refuses_a_snapshot_of_the_second(logbook: Logbook) -> None:
    """The refusal names the file and both versions, and changes nothing."""
    logbook.open(serde=SecondSerDe())
    logbook.log.close()
    before = logbook.files()

    with pytest.raises(FormatTooNew, match=f"snapshot was written with {BOTH_VERSIONS}"):
        logbook.open()

    assert logbook.files() == before


def test_the_first_version_refuses_a_log_of_the_second(logbook: Logbook) -> None:
    """A log file of a newer SerDe behind a snapshot of an older one is refused as well."""
    logbook.closed(1)
    logbook.open(serde=SecondSerDe())
    logbook.commit(2)
    logbook.crash()

    with pytest.raises(FormatTooNew, match=f"wal was written with {BOTH_VERSIONS}"):
        logbook.open()


def test_a_lone_partial_of_a_newer_version_is_not_thrown_away(logbook: Logbook) -> None:
    """What this version cannot read it cannot call damaged."""
    logbook.open(serde=SecondSerDe())
    logbook.log.close()
    partial = (logbook.path / "snapshot").rename(logbook.path / "snapshot.partial")

    with pytest.raises(FormatTooNew, match=BOTH_VERSIONS):
        logbook.open()

    assert partial.exists()


def test_another_serde_is_refused(logbook: Logbook) -> None:
    """Bytes of an unknown SerDe are not guessed at; both names are said."""
    logbook.open(serde=ForeignSerDe())
    logbook.log.close()

    with pytest.raises(RepositoryDamaged, match="SerDe \"somebody-else's\"; this repository uses 'ullage-msgpack'"):
        logbook.open()


def test_a_swap_file_outlives_the_version_that_wrote_it(tmp_path: Path) -> None:
    """The second version reads what the first has written; the first refuses the second's, naming both versions."""
    first, second = (SwapFiles(RecordDirectory(OsFiles(), str(tmp_path), "r", s)) for s in (SerDe(), SecondSerDe()))
    records = [note(number) for number in range(1, 2_500)]
    queue = QueueDefinition(1, "q", "FirstInFirstOut", "priority", 0, 0, 0)
    old, new = summarize(records, queue, 0), summarize(records, queue, 0)
    first.write(old, records)
    second.write(new, records)

    assert second.read(old.name).records == records
    with pytest.raises(RepositoryDamaged, match=BOTH_VERSIONS):
        first.read(new.name)


def test_a_whole_repository_moves_to_the_second_version_and_not_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlowFiles and their content survive the change; the older version then refuses the repository."""
    put_all(workshop.make(), "q", [b"one", b"two"])
    workshop.close()

    with monkeypatch.context() as newer:
        newer.setattr(engine, "SerDe", SecondSerDe)
        repository = workshop.open()
    put_all(repository, "q", [b"three"])
    assert drain(repository, "q", 1) == [b"one"]
    workshop.close()

    with pytest.raises(FormatTooNew, match=BOTH_VERSIONS):
        workshop.open()
    monkeypatch.setattr(engine, "SerDe", SecondSerDe)
    assert drain(workshop.open(), "q") == [b"two", b"three"]
