"""Where an event stands in its file: in which row group, at which row."""

import io

import pyarrow.parquet
import pytest

from tests.engine.provenance.history import history, work
from tests.support import Workshop, put_all, put_each
from ullage.engine.engine import Engine
from ullage.engine.provenance import eventfiles
from ullage.engine.provenance.columns import ROW_GROUP_BYTES
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery


@pytest.mark.parametrize("indexed", [False, True])
def test_files_with_other_row_groups_are_read(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, *, indexed: bool
) -> None:
    """How many rows a group has is the file's own affair: another version may have written it."""
    repository = workshop.make()
    monkeypatch.setattr(eventfiles, "ROW_GROUP_ROWS", 3)
    work(repository, 7)
    repository.provenance.drain()
    monkeypatch.setattr(eventfiles, "ROW_GROUP_ROWS", 5)
    work(repository, 7)
    repository.provenance.drain()
    monkeypatch.undo()
    if indexed:
        repository.provenance.index_step()

    for event in history(repository):
        assert repository.history.event(event.sequence) == event
        assert event in repository.history.query(EventQuery(flow_file=event.flow_file)).events
    assert [event.sequence for event in history(repository)] == list(range(1, 17))


@pytest.mark.parametrize("indexed", [False, True])
def test_few_events_with_large_attributes_are_read_at_a_time(repository: Engine, *, indexed: bool) -> None:
    """A row group of 2,000 events of 4 MiB each would be 8 GiB in whoever reads it, or makes it."""
    large = "y" * (ROW_GROUP_BYTES // 4)
    put_each(repository, "a", [b"x"] * 10, large=large)
    put_all(repository, "a", [b"x"] * 3_000)

    def runs() -> list[int]:
        return [run.events for run in repository.provenance.columns(EventQuery())]

    assert max(runs()[:3]) <= 4
    repository.provenance.drain()
    if indexed:
        repository.provenance.index_step()

    assert runs() == [3, 3, 3, 2_000, 1_001]
    newest = repository.history.query(EventQuery(newest_first=True, limit=3_005)).events
    assert [event.sequence for event in newest] == list(range(3_010, 5, -1))
    found = list(history(repository))
    assert [event.sequence for event in found] == list(range(1, 3_011))
    for event in (*found[:11], *found[11::700]):
        assert repository.history.event(event.sequence) == event
        assert repository.history.query(EventQuery(flow_file=event.flow_file)).events == (event,)
        assert (len(event.attributes) > len(large)) == (event.sequence <= 10)


def test_a_footer_that_contradicts_the_manifest_is_named(workshop: Workshop, repository: Engine) -> None:
    """Where a row is follows from the size of row groups, and a footer has no checksum: it has to agree."""
    work(repository)
    repository.provenance.drain()
    (path,) = (workshop.path / "provenance" / "events").iterdir()
    table = pyarrow.parquet.read_table(io.BytesIO(path.read_bytes()))
    pyarrow.parquet.write_table(table.slice(1), path)
    workshop.expects_problems = True

    with pytest.raises(ProvenanceDamaged, match=r"row groups have \[3\] rows"):
        repository.history.event(2)


def test_row_groups_that_say_each_others_rows_are_named(workshop: Workshop, repository: Engine) -> None:
    """Their sum is right, and every event would be another one. A column says how many values it has by itself."""
    work(repository)
    repository.provenance.drain()
    (path,) = (workshop.path / "provenance" / "events").iterdir()
    table = pyarrow.parquet.read_table(io.BytesIO(path.read_bytes()))
    with pyarrow.parquet.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 1))
        writer.write_table(table.slice(1))
    path.write_bytes(_with_rows_exchanged(path.read_bytes()))
    workshop.expects_problems = True

    with pytest.raises(ProvenanceDamaged, match=r"row groups have \[3, 1\] rows"):
        repository.history.event(2)


def _with_rows_exchanged(data: bytes) -> bytes:
    """A Parquet file whose two row groups have one and three rows by their columns, and three and one by the footer."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")

    def places(rows: int) -> list[int]:
        """Where a field of 64 bits may have this value: Thrift's compact protocol writes it twofold, behind 0x16."""
        return [at for at in range(footer, len(data)) if data[at - 1 : at + 1] == bytes((0x16, 2 * rows))]

    for one in places(1):
        for three in places(3):
            changed = bytearray(data)
            changed[one], changed[three] = 6, 2
            found = pyarrow.parquet.read_metadata(io.BytesIO(changed))
            groups = [found.row_group(group) for group in range(2)]
            values = [[group.column(at).num_values for at in range(group.num_columns)] for group in groups]
            if [group.num_rows for group in groups] == [3, 1] and {*values[0]} == {1} and {*values[1]} == {3}:
                return bytes(changed)
    raise AssertionError("the footer has no such fields")
