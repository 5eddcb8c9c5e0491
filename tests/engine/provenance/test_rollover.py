"""From the log to event files: numbers without a gap, nothing lost and nothing twice, whatever fails in between."""

import errno
import io
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.engine.provenance.history import history, told, types, work
from tests.failing_files import FailingFiles
from tests.support import Workshop, drain, event_store, flip, put_all, put_each, spec_at
from ullage.contract import Duration, OnFull, ProvenanceSettings, Quantity
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles, read_file
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.provenance import store
from ullage.engine.provenance.holds import HOLDS_MAX, Hold, Holds, Retained, expired
from ullage.engine.salvaging import salvage
from ullage.engine.wal.log import WriteAheadLog
from ullage.errors import RepositoryDamaged
from ullage.wire.provenance import EventQuery


def _files(repository: Engine) -> int:
    return len(event_store(repository).manifest.files)


def test_events_are_the_same_in_the_log_and_in_a_file(repository: Engine) -> None:
    """A rollover moves events and changes nothing about them."""
    work(repository)
    before = [told(event) for event in history(repository)]

    assert repository.provenance.drain() == 4

    assert len(event_store(repository).manifest.files) == 1
    assert [told(event) for event in history(repository)] == before
    work(repository)
    assert [event.sequence for event in history(repository)] == list(range(1, 9))


def test_the_sequence_survives_restarts(workshop: Workshop, repository: Engine) -> None:
    """Events have the same numbers after a crash, a clean close, a checkpoint and a rollover."""
    work(repository)
    expected = [told(event) for event in history(repository)]
    for step in (workshop.crash, workshop.reopen, workshop.crash, workshop.crash):
        repository = step()
        assert [told(event) for event in history(repository)] == expected
    repository.log.checkpoint()
    repository = workshop.crash()
    assert [told(event) for event in history(repository)] == expected
    repository.provenance.drain()
    for step in (workshop.crash, workshop.reopen):
        repository = step()
        assert [told(event) for event in history(repository)] == expected


def test_a_snapshot_carries_what_is_not_drained(workshop: Workshop, repository: Engine) -> None:
    """The log goes with the snapshot as ever; events that no event file holds are in the snapshot."""
    logs = workshop.path / "flowfile" / "partition-0"
    work(repository)
    expected = [told(event) for event in history(repository)]

    repository.checkpoint(drains=False)

    assert len(list(logs.iterdir())) == 1
    assert _files(repository) == 0
    for step in (workshop.crash, workshop.reopen):
        assert [told(event) for event in history(step())] == expected


@pytest.mark.parametrize("setting", [{"rollover_time": Duration(5000)}, {"rollover_events": 4}])
def test_a_rollover_is_due_by_time_or_by_count(workshop: Workshop, setting: dict[str, object]) -> None:
    """Maintenance moves events when they are old enough, or many enough."""
    repository = workshop.make(provenance=setting)
    upkeep = MaintenanceRunner(repository)
    work(repository, 2)
    workshop.clock.advance(1)
    upkeep.run_due()
    assert _files(repository) == 0
    work(repository, 2)
    workshop.clock.advance(5)
    upkeep.run_due()

    assert _files(repository) >= 1
    assert upkeep.failures == []


def test_a_busy_node_rolls_over_once_in_a_rollover_time(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one drain writes the next events come: they wait as long as the first ones did."""
    repository = workshop.make(provenance={"rollover_time": Duration(5000)})
    # There is always one that came too late for this drain.
    monkeypatch.setattr(WriteAheadLog, "durable", property(lambda log: log._durable - 1))
    for _ in range(20):
        workshop.clock.advance(1)
        put_all(repository, "a", [b"x"])
        repository.provenance.step()

    assert _files(repository) == 3


def test_one_event_file_holds_no_more_than_its_setting(workshop: Workshop) -> None:
    """A backlog becomes several files; a transaction is never divided."""
    repository = workshop.make(provenance={"rollover_events": 5})
    for _ in range(4):
        put_all(repository, "a", [b"x"] * 3)

    repository.provenance.drain()

    assert [file.events for file in event_store(repository).manifest.files] == [6, 6]


def test_a_large_rollover_becomes_several_files(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for one event waits for the footer of its file, so files have a size of their own."""
    monkeypatch.setattr(store, "FILE_EVENTS_MAX", 4)
    repository = workshop.make()
    for _ in range(5):
        put_all(repository, "q", [b"x"] * 2)

    assert repository.provenance.drain() == 10

    assert [file.events for file in event_store(repository).manifest.files] == [4, 4, 2]
    assert [event.sequence for event in history(repository)] == list(range(1, 11))


def test_a_writer_that_nobody_maintains_rolls_over_itself(workshop: Workshop) -> None:
    """The newest events are bounded in memory also where no maintenance runs."""
    repository = workshop.make(provenance={"rollover_events": 5})
    put_each(repository, "a", [b"x"] * 12)

    assert len(event_store(repository).manifest.files) >= 1


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("create", "*.parquet"),
        ("write", "*.parquet"),
        ("sync", "*.parquet"),
        ("sync_directory", "*/events"),
        ("write", "*/manifest.partial"),
        ("sync", "*/manifest.partial"),
        ("rename", "*/manifest*"),
        ("sync_directory", "*/provenance"),
        ("sync_directory again", "*/provenance"),
    ],
)
def test_a_failed_rollover_loses_nothing(workshop: Workshop, kind: str, path: str, files: FailingFiles) -> None:
    """Whatever call fails, the events are still there once, and so they are when it is tried again."""
    repository = workshop.make()
    work(repository)
    expected = [told(event) for event in history(repository)]
    files.fail(kind.removesuffix(" again"), path, at=2 if kind.endswith(" again") else 1)

    with pytest.raises(OSError, match="Input/output error"):
        repository.provenance.drain()

    assert [told(event) for event in history(repository)] == expected
    repository.provenance.drain()
    assert [told(event) for event in history(repository)] == expected
    assert [told(event) for event in history(workshop.crash())] == expected


def test_a_rollover_that_finds_no_room_leaves_that_error(workshop: Workshop, files: FailingFiles) -> None:
    """Also where what was written of it cannot be removed: the next one begins anew."""
    repository = workshop.make()
    work(repository)
    files.fail("write", "*.parquet", error=errno.ENOSPC)
    files.fail("unlink", "*.parquet")

    with pytest.raises(OSError, match="No space left"):
        repository.provenance.drain()

    assert repository.provenance.drain() == 4


def test_a_rollover_that_is_cut_short_after_a_failed_one_loses_nothing(workshop: Workshop, files: FailingFiles) -> None:
    """The disk may have the manifest whose sync failed: the file that it lists is not written anew under it."""
    repository = workshop.make()
    work(repository)
    files.fail("sync_directory", "*/provenance", at=2)  # the first one is for the name of the directory of events
    with pytest.raises(OSError, match="Input/output error"):
        repository.provenance.drain()
    assert repository.check(deep=True).problems == ()
    put_each(repository, "a", [b"later"])
    expected = [told(event) for event in history(repository)]
    files.fail("write", "*.parquet")

    with pytest.raises(OSError, match="Input/output error"):
        repository.provenance.drain()

    again = workshop.crash()
    assert again.check(deep=True).problems == ()
    assert [told(event) for event in history(again)] == expected


def test_a_failed_compression_loses_nothing(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside the Parquet writer leaves the events in the log."""
    work(repository)
    expected = [told(event) for event in history(repository)]

    def fail(*_: object, **__: object) -> None:
        raise pyarrow.ArrowInvalid("zstd failed")

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet.ParquetWriter, "write_batch", fail)
        with pytest.raises(pyarrow.ArrowInvalid):
            repository.provenance.drain()

    assert [told(event) for event in history(repository)] == expected
    assert repository.provenance.drain() == 4


@pytest.mark.parametrize("on_full", OnFull)
def test_events_that_find_no_room_block_or_go_as_told(workshop: Workshop, on_full: OnFull, files: FailingFiles) -> None:
    """Block refuses new content; Drop gives events up, and says which. Removing passes in any case."""
    repository = workshop.make(provenance={"on_full": on_full, "rollover_events": 50})
    files.fail("create", "*.parquet", times=1_000_000, error=errno.ENOSPC)
    refused = 0
    for _ in range(60):
        try:
            put_all(repository, "q", [b"x"] * 5)
        except OSError:
            refused += 1
    repository.queues.drop(repository.queue("q"))

    lost = sum(gap.events for gap in event_store(repository).manifest.lost)
    assert (refused > 0, lost > 0) == (on_full == OnFull.BLOCK, on_full == OnFull.DROP)
    sequences = [event.sequence for event in history(repository)]
    assert sequences == list(range(lost + 1, lost + len(sequences) + 1))
    repository = workshop.crash()
    assert [event.sequence for event in history(repository)] == sequences


def test_retention_removes_whole_files_oldest_first(workshop: Workshop) -> None:
    """By age and by bytes; events that only the log holds stay, and what went is known."""
    repository = workshop.make(provenance={"max_storage_time": Duration(60_000)})
    for _ in range(3):
        work(repository)
        repository.provenance.drain()
        workshop.clock.advance(25)
    work(repository)

    workshop.clock.advance(5)
    repository.provenance.retain()

    manifest = event_store(repository).manifest
    assert manifest.removed_through == 4
    assert [event.sequence for event in history(repository)] == list(range(5, 17))
    assert len(list((workshop.path / "provenance" / "events").iterdir())) == 2
    workshop.clock.advance(1000)
    assert repository.provenance.retain() == 2
    assert repository.provenance.retain() == 0
    assert [event.sequence for event in history(repository)] == list(range(13, 17))
    assert [event.sequence for event in history(workshop.reopen())] == list(range(13, 17))


def test_retention_by_bytes_ends_when_nothing_can_go(workshop: Workshop) -> None:
    """A limit below one file removes what there is, once, and keeps the newest events."""
    repository = workshop.make(provenance={"max_storage_size": Quantity(1)})
    work(repository)
    repository.provenance.drain()
    work(repository)

    repository.provenance.step()
    repository.provenance.step()

    assert [event.sequence for event in history(repository)] == [5, 6, 7, 8]


def test_files_are_striped_over_the_directories(workshop: Workshop) -> None:
    """Each directory takes its turn, and all of them are read."""
    repository = workshop.make(storage={"provenance_directories": ("disk1/p", "disk2/p")})
    for _ in range(3):
        work(repository)
        repository.provenance.drain()

    assert len(list((workshop.path / "disk1" / "p").iterdir())) == 2
    assert len(list((workshop.path / "disk2" / "p").iterdir())) == 1
    assert len(history(workshop.reopen())) == 12


@pytest.mark.parametrize(("compresses", "codec"), [(True, "ZSTD"), (False, "UNCOMPRESSED")])
def test_anybody_can_read_an_event_file(workshop: Workshop, *, compresses: bool, codec: str) -> None:
    """It is Parquet with the documented columns, with or without compression."""
    repository = workshop.make(provenance={"compress_on_rollover": compresses})
    work(repository)
    repository.provenance.drain()
    (path,) = (workshop.path / "provenance" / "events").iterdir()

    file = pyarrow.parquet.ParquetFile(io.BytesIO(read_file(OsFiles(), str(path))))
    rows = file.read().to_pylist(maps_as_pydicts="strict")

    assert file.metadata.row_group(0).column(0).compression == codec
    assert [row["type"] for row in rows] == types(history(repository))
    assert rows[3]["attributes_before"] == {"n": "0"}
    assert rows[3]["attributes_updated"] == {"seen": "yes"}
    assert rows[3]["queue"] == "a"


def test_a_damaged_or_missing_event_file_is_named(workshop: Workshop, repository: Engine) -> None:
    """`check` and reading say which file; everything else goes on, a start included."""
    work(repository)
    repository.provenance.drain()
    (path,) = (workshop.path / "provenance" / "events").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    workshop.expects_problems = True

    assert any(str(path) in problem for problem in repository.check(deep=True).problems)
    path.unlink()
    repository = workshop.crash()
    assert any("missing" in problem for problem in repository.check().problems)
    (unreadable,) = repository.history.query(EventQuery()).unreadable
    assert "events 1 to 4" in unreadable.problem
    put_all(repository, "q", [b"x"])


@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_lost_manifest_stops_the_start(workshop: Workshop, repository: Engine, tmp_path: Path, how: str) -> None:
    """It says which of the log's events are in event files, and which numbers events have had. A start that began
    another would give numbers twice, over which readers that follow the history would pass, and remove every event
    file as one that nobody lists. Nothing is removed: put back, all is there; a salvage has everything but the history.
    """
    flow_files = list(put_each(repository, "kept", [b"1", b"2"]))
    work(repository)
    repository.provenance.drain()
    before = history(repository)
    workshop.close()
    manifest = workshop.path / "provenance" / "manifest"
    kept = manifest.read_bytes()
    if how == "gone":
        manifest.unlink()
    else:
        flip(manifest, len(kept) - 5)

    with pytest.raises(RepositoryDamaged, match=str(manifest)) as caught:
        workshop.open()
    assert "ullage salvage" in str(caught.value)

    assert len(list((workshop.path / "provenance" / "events").iterdir())) == 1
    salvage(str(workshop.path), spec_at(tmp_path / "salvaged"))
    with Engine.open(spec_at(tmp_path / "salvaged")) as salvaged:
        assert [record.id for record in salvaged.queue("kept").records()] == [record.id for record in flow_files]
        assert drain(salvaged, "kept") == [b"1", b"2"]
    manifest.write_bytes(kept)
    assert history(workshop.open()) == before


def test_history_may_be_switched_off_and_on(workshop: Workshop, repository: Engine) -> None:
    """While it is off nothing is recorded; what was recorded stays, and the numbers go on without a gap."""
    work(repository)
    repository = workshop.reopen(provenance={"enabled": False})
    work(repository)
    repository.checkpoint()
    assert len(history(repository)) == 4
    repository = workshop.reopen(provenance={"enabled": True})
    work(repository)

    assert [event.sequence for event in history(repository)] == list(range(1, 9))


def test_events_that_a_reader_wants_stay_as_long_as_it_is_there(workshop: Workshop) -> None:
    """Beyond their time and their bytes, but not beyond twice these; then retention goes on where it was."""
    repository = workshop.make(provenance={"max_storage_time": Duration(60_000)})
    holds = repository.provenance.holds
    for _ in range(4):
        work(repository)
        repository.provenance.drain()
    now = workshop.clock.now_millis()
    assert holds.set("reader", Hold(5, now + 600_000), now)
    workshop.clock.advance(300)

    assert repository.provenance.retain() == 1
    assert history(repository)[0].sequence == 5
    now = workshop.clock.now_millis()
    assert holds.set("reader", Hold(8, now + 600_000), now)
    assert repository.provenance.retain() == 1
    workshop.clock.advance(601)
    assert repository.provenance.retain() == 2


def test_a_hold_does_not_fill_the_disk() -> None:
    """Pure: what is held goes once all files are twice as many bytes as the settings allow."""
    kept = [Retained(0, 100, last) for last in (10, 20, 30, 40, 50)]
    for bytes_max, wanted_after, count in ((200, None, 5), (200, 0, 1), (1_000, 0, 0), (1_000, 20, 2), (1_000, 19, 1)):
        settings = ProvenanceSettings(max_storage_time=Duration(1), max_storage_size=Quantity(bytes_max))
        assert expired(kept, 500, settings, 1_000, wanted_after) == count


def test_holds_are_few_and_end(workshop: Workshop) -> None:
    """One that is not renewed is forgotten, and makes room."""
    holds = Holds()
    for number in range(HOLDS_MAX):
        assert holds.set(str(number), Hold(number, 1_000), 0)
    assert not holds.set("more", Hold(0, 1_000), 0)
    assert holds.wanted_after(0) == 0
    holds.end("0")
    assert holds.wanted_after(0) == 1
    assert holds.wanted_after(1_000) is None
    assert holds.set("more", Hold(0, 2_000), 1_000)
