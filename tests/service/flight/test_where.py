"""Predicates over real Flight: the rows that come are those that a whole read has for which it is true, and no more
bytes than these need.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.service.flight import raw
from tests.service.flight.peer import Peer
from tests.service.flight.test_flow_files_table import filled
from tests.support import ManualClock, Workshop, committing, event_store
from tests.wire.test_where import HOSTILE
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import Moment
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.scan import EventColumns
from ullage.wire.matching import RowFilter
from ullage.wire.provenance import EventQuery
from ullage.wire.schemas import SCHEMAS, is_time
from ullage.wire.tickets import TableTicket

OVERHEAD = 1.2
"""What may be sent for each byte that a result needs."""


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(filled(workshop)) as made:
        yield made


def conditions_of(peer: Peer, table: str, chance: random.Random) -> list[str]:
    """On each column of a table, of values that are there and of others; alone, and some joined."""
    rows = peer.table(table).to_pylist()
    found = []
    for field in SCHEMAS[table]:
        value = chance.choice([row[field.name] for row in rows if row[field.name] not in (None, [])] or [None])
        name = f"`{field.name}`"
        found += [f"{name} IS NULL", f"{name} IS NOT NULL"]
        if isinstance(value, str):
            quoted = value.replace("'", "''")
            prefix = quoted[:3].replace("%", "")
            found += [
                f"{name} = '{quoted}'",
                f"{name} <> '{quoted}'",
                f"{name} LIKE '{prefix}%'",
                f"{name} < '{quoted}'",
            ]
            found += [f"{name} IN ('{quoted}', 'nothing')"]
        elif isinstance(value, bool):
            found += [name, f"NOT {name}"]
        elif isinstance(value, int):
            found += [f"{name} = {value}", f"{name} > {value}", f"{name} BETWEEN {value - 2} AND {value}"]
            if is_time(field):
                found.append(f"{name[:-7]}time` <= TIMESTAMP '2023-11-14 22:13:20.003'")
        elif isinstance(value, list) and value and isinstance(value[0], str):
            found += [f"array_contains({name}, '{value[0]}')"]
        elif isinstance(value, list) and value and isinstance(value[0], tuple):
            key, text = value[0]
            found += [f"{name}['{key}'] = '{text}'", f"{name}['{key}'] LIKE '{text[:1]}%'", f"{name}['none'] IS NULL"]
            found += [f"{name}['{key}'] LIKE '_%'", f"{name}['{key}'] IN ('{text}', 'nothing')"]
    singles = list(found)
    for _ in range(25):
        one, two, three = (chance.choice(singles) for _ in range(3))
        found += [f"{one} AND NOT ({two} OR {three})", f"{one} OR {two}", f"{one} AND {two}"]
    return found


@pytest.mark.parametrize(
    "table", ["flowfiles", "provenance", "claims", "resource_claims", "queues", "windows", "content"]
)
def test_the_rows_that_come_are_those_that_are_meant(peer: Peer, table: str, seed: int) -> None:
    """On every column, joined in any way, through whatever index: beside a read of everything, row by row."""
    chance = random.Random(seed)
    if table == "provenance":
        peer.repository.provenance.drain()
        peer.repository.provenance.index_step()
        with committing(peer.repository) as session:  # and some that only the log has
            session.ingest("in", [b"later"] * 3, {"n": "later"})
    whole = peer.table(table).combine_chunks()
    batch = whole.to_batches()[0]
    chosen = 0
    for text in conditions_of(peer, table, chance):
        mask = RowFilter(table, text).mask(batch.column, batch.num_rows)
        columns = chance.sample(whole.schema.names, chance.randint(1, 3))

        found = peer.table(table, where=text, columns=columns)

        assert found.schema.names == columns
        expected = batch.filter(mask).select(columns).to_pylist()
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected)), text
        chosen += 0 < len(expected) < len(whole)
    assert chosen > 5


def test_at_a_snapshot_what_is_kept_is_filtered_too(peer: Peer) -> None:
    """Parts together are the whole, also once columns are in memory."""
    snapshot = peer.act("snapshot")[0]["id"]
    where = "queue = 'in' AND size > 100"

    def read() -> list[str]:
        parts = (
            peer.table("flowfiles", where=where, snapshot=snapshot, part=[part, 3], columns=["uuid"])
            for part in range(3)
        )
        return sorted(uuid for part in parts for uuid in part["uuid"].to_pylist())

    first = read()
    peer.table("flowfiles", snapshot=snapshot)
    for part in range(3):
        peer.table("flowfiles", snapshot=snapshot, part=[part, 3], columns=["uuid", "queue", "size"])
    rows = peer.table("flowfiles", snapshot=snapshot).to_pylist()

    assert first == read() == sorted(row["uuid"] for row in rows if row["queue"] == "in" and row["size"] > 100)
    assert first


def test_swap_files_of_other_queues_are_not_read(peer: Peer) -> None:
    """They are on the disk, and nobody can read them."""
    moment = peer.repository.snapshot()
    numbers = {queue.name: number for number, queue in moment.queues.items()}
    expected = sum(row["queue"] == "in" for row in peer.table("flowfiles", columns=["queue"]).to_pylist())
    others = [swap.name for swap in moment.swaps if swap.queue == numbers["out"]]
    assert others
    kept = {}
    for name in others:
        path = Path(peer.repository.swap_files.directory, name)
        kept[path] = path.read_bytes()
        os.truncate(path, 10)

    assert peer.table("flowfiles", where="queue = 'in'", columns=["uuid"]).num_rows == expected
    assert peer.table("flowfiles", where="queue IN ('in', 'none') AND size >= 0", columns=["uuid"]).num_rows == expected

    for path, content in kept.items():
        path.write_bytes(content)


def sent_bytes(peer: Peer, **wanted: Any) -> int:
    """All bytes of the answer's messages."""
    with raw.raw(peer.server.url) as client:
        answer = client.call("DoGet", raw.ticket(json.dumps({"kind": "table"} | wanted).encode()))
    assert answer.status == grpc.StatusCode.OK
    return sum(map(len, answer.messages))


def needed_bytes(table: pa.Table) -> int:
    """The same rows as one batch of Arrow's."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return len(sink.getvalue())


@pytest.mark.parametrize(
    ("table", "where", "columns"),
    [
        ("flowfiles", "queue = 'rare'", ["uuid", "size"]),
        ("flowfiles", "attributes['n'] LIKE '12%'", ["uuid", "attributes"]),
        ("flowfiles", "size = 1", ["queue"]),
        ("flowfiles", "size > 5", None),
        ("provenance", "sequence BETWEEN 500 AND 700", ["sequence", "type", "uuid"]),
        ("provenance", "attributes['n'] LIKE '7%'", ["uuid", "millis"]),
        ("claims", "length > 5", ["resource_claim", "length"]),
    ],
)
def test_no_more_is_sent_than_the_result_needs(
    workshop: Workshop, table: str, where: str, columns: list[str] | None
) -> None:
    """Few rows of many, a few columns of each, far from each other."""
    repository = workshop.make(flow_file={"swap_threshold": 1_000, "swap_batch": 40})
    for number in range(80):
        with committing(repository) as session:
            session.ingest("many", [b"x" * (1 + at % 7) for at in range(50)], {"n": str(number)})
            session.ingest("rare", [b"y" * 9], {"n": "-"})
    with committing(repository) as session:
        session.transfer_many(session.get_many("many", 300), "rare")
    peer = Peer(repository)
    result = peer.table(table, where=where, columns=columns)
    assert 0 < result.num_rows < peer.table(table).num_rows / 2

    sent = sent_bytes(peer, name=table, where=where, columns=columns)

    assert sent <= OVERHEAD * needed_bytes(result)
    peer.close()


def test_events_of_a_flow_file_are_found_by_the_index(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many event files there are, those are read that have some of them."""
    repository = workshop.make()
    sought = []
    for _ in range(30):
        with committing(repository) as session:
            records = session.ingest("in", [b"x"] * 100, {})
        sought.append(records[50].id)
        repository.provenance.drain()
    while repository.provenance.index_step():
        pass
    peer = Peer(repository)
    read: set[str] = set()
    event_files = event_store(repository).event_files
    whole = event_files.read

    def noted(file: EventFile, *rest: Any) -> pa.Table:
        read.add(file.name)
        return whole(file, *rest)

    monkeypatch.setattr(event_files, "read", noted)

    def files_for(where: str) -> int:
        read.clear()
        assert peer.table("provenance", where=where).num_rows > 0
        return len(read)

    assert files_for(f"uuid = '{sought[7]}'") == 1
    assert files_for(f"uuid IN ('{sought[3]}', '{sought[9]}') AND type = 'CREATE'") == 2
    assert files_for(f"uuid = '{sought[7]}' OR array_contains(parents, '{sought[8]}')") == 2
    assert files_for("sequence > 150 AND sequence <= 350") == 3
    assert files_for("type = 'CREATE'") == 30
    peer.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_beyond_the_bounds_is_refused_and_the_node_goes_on(peer: Peer, name: str) -> None:
    """With gRPC's own status for it, before a row is looked at."""
    text = HOSTILE[name].replace("q ", "queue ").replace("n ", "size ").replace("b", "swapped")
    body = json.dumps({"kind": "table", "name": "flowfiles", "where": text}).encode()
    with raw.raw(peer.server.url) as client:
        answer = client.call("DoGet", raw.ticket(body))

        assert answer.status == (grpc.StatusCode.OK if name == "spaces" else grpc.StatusCode.INVALID_ARGUMENT)
    assert peer.table("queues").num_rows == 2


@pytest.mark.parametrize(
    "where", ["size = 'a'", "nothing = 1", "queue = 'in", "\x00", "attributes['x']['y'] = 'z'", "queue LIKE 'a\\'"]
)
def test_what_is_wrong_is_refused_as_the_callers_mistake(peer: Peer, where: str) -> None:
    """Also on a node without a row to look at."""
    body = json.dumps({"kind": "table", "name": "flowfiles", "where": where}).encode()
    with raw.raw(peer.server.url) as client:
        answer = client.call("DoGet", raw.ticket(body))

    assert answer.status == grpc.StatusCode.INVALID_ARGUMENT
    assert "where: " in answer.details


def test_a_pattern_takes_no_more_time_than_its_length(peer: Peer) -> None:
    """Patterns that other matchers go back and forth in: each text is looked at once."""
    with committing(peer.repository) as session:
        session.transfer(session.create(attributes={"long": "a" * 60_000}), "in")

    found = peer.table("flowfiles", where=f"attributes['long'] LIKE '{'%a' * 16}b'")

    assert found.num_rows == 0


def test_a_stream_that_finds_nothing_gives_signs_of_life(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without rows now and then, and none in between."""
    clock = ManualClock()
    repository = workshop.make(clock=clock)
    for _ in range(10):
        with committing(repository) as session:
            session.ingest("in", [b"x"], {})
        repository.provenance.drain()
    runs = repository.provenance.columns

    def slow(query: EventQuery) -> Iterator[EventColumns]:
        for run in runs(query):
            clock.advance(3.4)
            yield run

    monkeypatch.setattr(repository.provenance, "columns", slow)
    peer = Peer(repository)
    body = json.dumps({"kind": "table", "name": "provenance", "where": "component = 'nobody'"}).encode()
    with raw.raw(peer.server.url) as client:
        answer = client.call("DoGet", raw.ticket(body))

    assert answer.status == grpc.StatusCode.OK
    assert len(answer.messages) == 1 + 3  # the schema, and one for every three of ten runs
    peer.close()


def test_contents_of_which_none_is_wanted_are_read_bit_by_bit(workshop: Workshop) -> None:
    """Others have their turn in between, and whoever waits hears of it."""
    repository = workshop.make()
    with committing(repository) as session:
        session.ingest("in", [b"x" * 700_000] * 6, {})
    moment = Moment(EmbeddedRepository(repository, node="here"))

    batches = list(moment.batches(TableTicket(name="content", where="problem IS NOT NULL")))

    assert [each.batch.num_rows for each in batches] == [0, 0, 0]


def test_an_older_snapshot_shows_no_later_events(peer: Peer) -> None:
    """Also where they are looked through bit by bit."""
    snapshot = peer.act("snapshot")[0]["id"]
    before = peer.table("provenance", snapshot=snapshot).num_rows
    with committing(peer.repository) as session:
        session.ingest("in", [b"later"], {})

    assert peer.table("provenance", snapshot=snapshot, where="size >= 0").num_rows == before
    assert peer.table("provenance", where="size >= 0").num_rows > before
