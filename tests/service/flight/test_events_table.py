"""The table `provenance` beside the events that it is made of: every column, in event files and where only the log has
them.
"""

from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.engine.provenance.history import history
from tests.service.flight.peer import Peer
from tests.support import Workshop, committing, event_store
from ullage.engine.engine import Engine
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.wire.schemas import SCHEMAS

Row = dict[str, Any]


def row_of(event: ProvenanceEvent) -> Row:
    """What the table shall say of an event."""
    return {
        "sequence": event.sequence,
        "transaction": event.transaction,
        "ordinal": event.ordinal,
        "millis": event.millis,
        "type": event.type.name,
        "uuid": event.flow_file,
        "component": event.component,
        "component_type": event.component_type,
        "relationship": event.relationship,
        "details": event.details,
        "transit_uri": event.transit_uri,
        "alternate_identifier": event.alternate_identifier,
        "duration_millis": event.duration_millis,
        "queue": event.queue,
        "entry_millis": event.entry_millis,
        "lineage_millis": event.lineage_millis,
        "size": event.size,
        "parents": event.parent_ids,
        "children": event.child_ids,
        "attributes_before": event.previous_attributes(),
        "attributes": event.attribute_map(),
    }


def lived(workshop: Workshop) -> Engine:
    """FlowFiles that were split, merged, changed, robbed of attributes, and removed; half of it in an event file."""
    repository = workshop.make()
    for number in range(2):
        with committing(repository) as session:
            whole = session.write(session.create(attributes={"kind": "a", "n": str(number)}), b"abcdef")
            parts = session.split(whole, [2, 2, 2])
            session.transfer_many([whole, *parts, session.merge(parts[:2])], "in")
            session.ingest("in", [b"x"] * 5, {"same": "for all"})
        workshop.clock.advance(5)
        with committing(repository) as session:
            first, second, *others = session.get_many("in", 9)
            first = session.put_attributes(first, {"kind": "b", "new": "é"})
            robbed = [session.remove_attributes(each, ["kind", "same"]) for each in (second, *others[:-1])]
            session.transfer_many([first, *robbed], "out")
            session.remove(others[-1])
        if not number:
            repository.provenance.drain()
    return repository


def test_each_column_is_what_the_events_say(workshop: Workshop) -> None:
    """All of them together, and each alone: there is every kind of value in it."""
    repository = lived(workshop)
    peer = Peer(repository)
    expected = list(map(row_of, history(repository)))

    table = peer.table("provenance")

    assert table.schema == SCHEMAS["provenance"]
    found = [row | {name: dict(row[name]) for name in ("attributes", "attributes_before")} for row in table.to_pylist()]
    assert found == expected
    for name in table.schema.names:
        alone = peer.table("provenance", columns=[name])[name].to_pylist()
        assert [dict(value) if "attributes" in name else value for value in alone] == [row[name] for row in expected]
    for row in expected:  # each alone, or what is the same for all of a run would not be seen
        (alone,) = peer.table("provenance", where=f"sequence = {row['sequence']}", columns=["attributes"]).to_pylist()
        assert dict(alone["attributes"]) == row["attributes"]
    changes = [(row["attributes_before"].keys(), row["attributes"].keys()) for row in expected]
    assert any(before - after for before, after in changes)
    assert any(after - before for before, after in changes if before)
    peer.close()


def test_columns_that_nobody_asks_for_are_not_read(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of events that are left out not even those that are sent of others."""
    repository = lived(workshop)
    repository.provenance.drain()
    peer = Peer(repository)
    read: list[str] = []
    event_files = event_store(repository).event_files
    whole = event_files.read

    def noted(file: Any, group: int, columns: Any = None) -> pa.Table:
        read.extend(columns)
        return whole(file, group, columns)

    monkeypatch.setattr(event_files, "read", noted)

    def columns_for(**wanted: Any) -> set[str]:
        read.clear()
        peer.table("provenance", **wanted)
        return set(read)

    always = {"sequence", "transaction"}
    assert columns_for(columns=["size", "type"]) == {*always, "size", "type"}
    assert columns_for(columns=["uuid"], where="component = 'nobody'") == {*always, "component"}
    assert columns_for(columns=["attributes"], where="size >= 0") == {
        *always,
        *("size", "attributes_before", "attributes_updated"),
    }
    peer.close()


def test_events_that_cannot_be_read_end_the_table(workshop: Workshop) -> None:
    """Whoever follows it by sequence would never come back for them."""
    repository = lived(workshop)
    repository.provenance.drain()
    workshop.expects_problems = True
    peer = Peer(repository)
    store = event_store(repository)
    path = store.event_files.path(store.manifest.files[0])
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 200)

    with pytest.raises(flight.FlightError, match="cannot be read"):
        peer.table("provenance")
    peer.close()
