"""The table `flowfiles` beside the records it is made of: every column, of all kinds of FlowFiles, in any parts."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

from tests.service.flight.peer import Peer
from tests.support import Workshop, committing, drain, put_all
from ullage.embedded.flowfiles import joined
from ullage.embedded.keptcolumns import COLUMN_BYTES, KEPT_SECONDS, KeptColumns, Room, in_type
from ullage.embedded.pace import ALONE, Pace
from ullage.engine.engine import Engine
from ullage.engine.ledger.state import SwapContent
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import HANDLE_QUEUE, FlowFileRecord, format_uuid, unpack_attributes
from ullage.wire.schemas import ALIKE, SCHEMAS
from ullage_agent.service.limits import DEFAULTS, Limits

Row = dict[str, Any]


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(filled(workshop)) as made:
        yield made


def filled(workshop: Workshop) -> Engine:
    """Resident and swapped FlowFiles in two queues, with and without content, parents and attributes; handles."""
    repository = workshop.make(flow_file={"swap_threshold": 40, "swap_batch": 15})
    for queue in ("in", "out"):
        for number in range(9):
            with committing(repository) as session:
                whole = session.write(session.create(attributes={"n": str(number), "to": queue}), bytes([number]) * 700)
                session.transfer(whole, queue)
                fragments = session.split(whole, [100, 0, 300, 250])
                session.transfer_many([*fragments, session.create(fragments)], queue)
                session.transfer(session.create(attributes={}), queue)
                session.ingest(queue, [bytes([number]) * size for size in (0, 1, 9_000)], {"filename": "always"})
            workshop.clock.advance(1)
    kept = repository.handles.put_many([b"a", b"", b"c"], {"x": "1"}, 60_000)
    repository.handles.delete(kept[0])
    return repository


def rows_of(repository: Engine) -> dict[str, Row]:
    """What the table shall say, record by record."""
    moment = repository.snapshot()
    names = {number: queue.name for number, queue in moment.queues.items()}
    swapped = [record for swap in moment.swaps for record in moment.swapped(swap)]
    assert swapped
    assert moment.flow_files
    found = {record.id: _row(record, names, swapped=False) for record in moment.flow_files}
    return found | {record.id: _row(record, names, swapped=True) for record in swapped}


def _row(record: FlowFileRecord, names: dict[int, str], *, swapped: bool) -> Row:
    claim = record.claim
    return {
        "uuid": record.id,
        "queue": None if record.queue == HANDLE_QUEUE else names[record.queue],
        "size": record.size,
        "resource_claim": claim and claim.resource,
        "claim_offset": claim and claim.offset,
        "claim_length": claim and claim.length,
        "claim_crc32c": claim and claim.crc,
        "start": record.start,
        "entry_millis": record.entry_millis,
        "lineage_millis": record.lineage_millis,
        "expires_millis": record.expires_millis,
        "deleted_millis": record.deleted_millis,
        "swapped": swapped,
        "parents": record.parent_ids,
        "attributes": list(unpack_attributes(record.attributes).items()),
        "seal": None,  # these readers may read every queue
    }


def test_each_column_is_what_the_records_say(peer: Peer) -> None:
    """All of them together, and each alone: there is every kind of value in it."""
    expected = rows_of(peer.repository)

    table = peer.table("flowfiles")

    assert table.schema == SCHEMAS["flowfiles"]
    assert {row["uuid"]: row for row in table.to_pylist()} == expected
    assert len(table) == len(expected)
    for name in table.schema.names:
        assert name == "seal" or len({str(value) for value in table[name].to_pylist()}) > 1, name
        alone = peer.table("flowfiles", columns=[*{name: 0, "uuid": 0}])
        assert {row["uuid"]: row[name] for row in alone.to_pylist()} == {id: row[name] for id, row in expected.items()}


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
@pytest.mark.parametrize("is_kept", [True, False])
def test_parts_have_each_flow_file_once(peer: Peer, parts: int, is_kept: bool) -> None:
    """At a snapshot and without one; contents, claims and files too, claims with all their claimants."""
    snapshot = peer.act("snapshot")[0]["id"] if is_kept else None

    def read(name: str) -> list[Row]:
        tables = (peer.table(name, part=[part, parts], snapshot=snapshot) for part in range(parts))
        return [row for table in tables for row in table.to_pylist()]

    expected = rows_of(peer.repository)
    found = read("flowfiles")
    assert {row["uuid"]: row for row in found} == expected
    assert len(found) == len(expected)
    assert Counter(row["uuid"] for row in read("content")) == Counter(
        id for id, row in expected.items() if not row["deleted_millis"]
    )
    claimants = Counter(
        (row["resource_claim"], row["claim_offset"]) for row in expected.values() if row["resource_claim"] is not None
    )
    claims = read("claims")
    assert {(row["resource_claim"], row["offset"]): row["claimants"] for row in claims} == claimants
    assert len(claims) == len(claimants)
    assert len(read("resource_claims")) == peer.table("resource_claims").num_rows


def test_at_a_snapshot_a_swap_file_is_read_for_one_part(peer: Peer) -> None:
    """So many parts cost no more than one; and they are of the same size, give or take a file."""
    (taken,) = peer.act("snapshot")
    moment = peer.repository.snapshot()
    files = [{record.id for record in moment.swapped(swap)} for swap in moment.swaps]

    tables = [peer.table("flowfiles", part=[part, 3], snapshot=taken["id"]) for part in range(3)]

    shares = [{row["uuid"] for row in table.to_pylist() if row["swapped"]} for table in tables]
    dealt = [[number for number, file in enumerate(files) if file & share] for share in shares]
    assert sorted(number for numbers in dealt for number in numbers) == list(range(len(files)))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_who_is_looked_for_by_uuid_is_found_in_its_swap_file(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """And no other is read, once all were: whoever looks first pays for it."""
    snapshot = peer.act("snapshot")[0]["id"] if is_kept else None
    read: list[str] = []
    whole = SwapFiles.read

    def recorded(files: SwapFiles, name: str) -> SwapContent:
        read.append(name)
        return whole(files, name)

    monkeypatch.setattr(SwapFiles, "read", recorded)

    def found(uuid: str) -> list[str]:
        table = peer.table("flowfiles", columns=["uuid"], where=f"uuid = '{uuid}'", snapshot=snapshot)
        return [row["uuid"] for row in table.to_pylist()]

    moment = peer.repository.snapshot()
    sought = [moment.swapped(swap)[0].id for swap in moment.swaps]
    assert found(sought[0]) == [sought[0]]
    for uuid, swap in zip(sought, moment.swaps, strict=True):
        read.clear()
        assert found(uuid) == [uuid]
        assert peer.repository.flow_files.find(uuid).id == uuid
        assert read == [swap.name] * 2
    read.clear()
    assert found(format_uuid(bytes(16))) == []
    assert read == []


def test_what_goes_on_in_between_takes_nothing_from_parts_of_several_moments(peer: Peer) -> None:
    """Without a snapshot, a FlowFile that is there all the time is in a part, though it leaves its swap file."""
    before = rows_of(peer.repository)
    taken = {row["uuid"] for row in peer.table("flowfiles", part=[0, 2]).to_pylist()}
    with committing(peer.repository) as session:
        moved = session.get_many("in", 60)
        session.transfer_many(moved, "out")
    after = rows_of(peer.repository)
    assert any(before[id]["swapped"] and not row["swapped"] for id, row in after.items() if id in before)

    taken |= {row["uuid"] for row in peer.table("flowfiles", part=[1, 2]).to_pylist()}

    assert taken >= before.keys()


@contextmanager
def without_swap_files(repository: Engine) -> Iterator[None]:
    """They are there, and nobody can read them."""
    names = {os.path.join(repository.swap_files.directory, name) for name in repository.swap_files.names()}
    contents = {name: Path(name).read_bytes() for name in names}
    for name in names:
        os.truncate(name, 10)
    yield
    for name, content in contents.items():
        Path(name).write_bytes(content)


def test_columns_of_a_swap_file_are_read_once_for_all_snapshots(workshop: Workshop) -> None:
    """Column by column, in any order; those that nobody has asked for yet are read."""
    with Peer.serving(filled(workshop)) as peer:
        expected = rows_of(peer.repository)
        first = peer.act("snapshot")[0]["id"]
        peer.table("flowfiles", snapshot=first, columns=["uuid", "attributes", "swapped"])
        peer.table("flowfiles", snapshot=first, columns=["queue"])
        second = peer.act("snapshot")[0]["id"]
        peer.act("release", id=first)

        with without_swap_files(peer.repository):
            table = peer.table("flowfiles", snapshot=second, columns=["queue", "uuid", "attributes"])
            assert table.schema.names == ["queue", "uuid", "attributes"]
            queues, uuids, attributes = (column.to_pylist() for column in table.columns)
            found = dict(zip(uuids, zip(queues, attributes, strict=True), strict=True))
            assert found == {id: (row["queue"], row["attributes"]) for id, row in expected.items()}
            for wanted in ({"snapshot": second, "columns": ["size"]}, {}):
                with pytest.raises(flight.FlightError):
                    peer.table("flowfiles", **wanted)


def test_what_is_kept_is_of_its_own_snapshot_where_flow_files_change(workshop: Workshop) -> None:
    """Between two snapshots some are taken out of their queue, from memory and from swap files, and others come."""
    with Peer.serving(filled(workshop)) as peer:
        before = peer.act("snapshot")[0]["id"]
        first = peer.table("flowfiles", snapshot=before).sort_by("uuid")
        taken = sum(len(drain(peer.repository, "in", 20)) for _ in range(3))
        put_all(peer.repository, "in", [b"new"] * 50, n="new")
        expected = rows_of(peer.repository)
        after = peer.act("snapshot")[0]["id"]
        tables = [peer.table("flowfiles", snapshot=id).sort_by("uuid") for id in (after, before, after)]

    assert (taken, len(expected)) == (60, len(first) - 10)
    assert set(tables[0].column("uuid").to_pylist()) == set(expected)
    assert tables == [tables[0], first, tables[0]]


def test_what_is_kept_is_bounded(workshop: Workshop) -> None:
    """Beyond the room all rows come as well, and what only older snapshots have read gives its own."""
    repository = filled(workshop)
    expected = rows_of(repository)
    pieces = 1 + len(repository.snapshot().swaps)
    limits = Limits(columns_bytes=9 * len(expected) + COLUMN_BYTES * pieces)
    with Peer.serving(repository, limits) as peer:
        taken = peer.act("snapshot")[0]["id"]

        def read(column: str, snapshot: str) -> list[int]:
            found: list[int] = peer.table("flowfiles", snapshot=snapshot, columns=[column])[column].to_pylist()
            return sorted(found)

        sizes = sorted(row["size"] for row in expected.values())
        lineages = sorted(row["lineage_millis"] for row in expected.values())
        assert [read("size", taken) for _ in range(2)] == [sizes] * 2
        assert read("lineage_millis", taken) == lineages
        assert len(peer.table("flowfiles", snapshot=taken)) == len(expected)
        with without_swap_files(repository):
            assert read("size", taken) == sizes
            with pytest.raises(flight.FlightError):
                read("uuid", taken)
        later = peer.act("snapshot")[0]["id"]
        assert len(read("uuid", later)) == len(expected)
        with without_swap_files(repository), pytest.raises(flight.FlightError):
            read("size", taken)


def test_columns_that_nobody_reads_are_given_up(workshop: Workshop) -> None:
    """Their swap files may be gone; without a word from anybody."""
    repository = filled(workshop)
    with Peer.serving(repository) as peer:
        peer.table("flowfiles", snapshot=peer.act("snapshot", ttl_millis=1_000)[0]["id"], columns=["size"])
        room = peer.flight._snapshots._room
        assert room.left < DEFAULTS.columns_bytes
        workshop.clock.advance(2)
        peer.flight.look()
        with without_swap_files(repository):
            peer.table("flowfiles", snapshot=peer.act("snapshot", ttl_millis=1_000)[0]["id"], columns=["size"])
        workshop.clock.advance(KEPT_SECONDS)
        peer.flight.look()

        assert room.left == DEFAULTS.columns_bytes


def test_a_reader_that_outlasts_its_snapshot_takes_no_room(workshop: Workshop) -> None:
    """What it still makes is not kept, and the room of others stays what it is."""
    room = Room(100 + 2 * COLUMN_BYTES, workshop.clock)
    column = pa.array(range(8), pa.int64())
    over, other = KeptColumns(room), KeptColumns(room)
    over.keep("a", "size", column, is_swapped=False)
    assert over.find("a", "size", is_swapped=False) is column
    assert other.find("a", "size", is_swapped=False) is None

    over.end()
    over.keep("b", "size", column, is_swapped=False)
    over.keep("b", "size", column, is_swapped=True)

    assert room.left == 100 + 2 * COLUMN_BYTES
    assert other.find("b", "size", is_swapped=True) is None


def test_rows_that_are_alike_take_the_room_of_one(workshop: Workshop) -> None:
    """Numbers, texts, flags and nulls come back as they were."""
    room = Room(10 * (COLUMN_BYTES + 100), workshop.clock)
    columns = [
        pa.array([7] * 5_000 + [8] * 5_000, pa.int64()),
        pa.array(["in"] * 10_000),
        pa.array([True] * 10_000),
        pa.array([None] * 10_000, pa.int64()),
    ]
    kept = KeptColumns(room)
    for number, column in enumerate(columns):
        kept.keep(number, "column", column, is_swapped=True)

    kept.keep("others", "column", pa.array(range(10_000), pa.int64()), is_swapped=True)

    found = [kept.find(number, "column", is_swapped=True) for number in range(4)]
    assert [in_type(each, column.type) for each, column in zip(found, columns, strict=True)] == columns
    assert kept.find("others", "column", is_swapped=True) is None
    assert room.left > 0
    small = KeptColumns(Room(100, workshop.clock))
    small.keep("one", "column", columns[0], is_swapped=True)
    assert small.find("one", "column", is_swapped=True) is None


@pytest.mark.parametrize("sent_bytes_max", [4 << 20, 300])
def test_runs_say_the_same(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, sent_bytes_max: int) -> None:
    """Of columns that are made, kept or chosen, whole and in pieces; other tables have none."""
    monkeypatch.setattr("ullage_agent.service.sending.SENT_BYTES_MAX", sent_bytes_max)
    with Peer.serving(filled(workshop)) as peer:
        taken = peer.act("snapshot")[0]["id"]
        for more in ({"columns": ["swapped", "uuid", "entry_millis"]}, {}, {}, {"where": "size > 100"}):
            plain, runs = (peer.table("flowfiles", snapshot=taken, runs=each, **more) for each in (False, True))
            with_runs = {field.name for field in runs.schema if pa.types.is_run_end_encoded(field.type)}
            assert with_runs == ALIKE & set(plain.schema.names)
            assert [decoded(column) for column in runs.columns] == [decoded(column) for column in plain.columns]
        assert peer.table("queues", runs=True) == peer.table("queues")


def decoded(column: pa.ChunkedArray) -> list[Any]:
    chunks = [pc.run_end_decode(each) if pa.types.is_run_end_encoded(each.type) else each for each in column.chunks]
    return list(chain.from_iterable(chunk.to_pylist() for chunk in chunks))


def test_narrow_batches_go_out_together_up_to_a_bound() -> None:
    """Each row once, in its order; what is alike row after row stays runs."""
    alike = pa.repeat("in", 10_000)
    texts = ["x" * 10] * 8 + ["x" * 100] * 2 + ["x" * 1_000] * 2
    batches = [pa.record_batch([[text] * 10_000, alike], names=["text", "queue"]) for text in texts]
    batches = [batch.set_column(1, "queue", pc.run_end_encode(batch.column(1))) for batch in batches]

    found = list(joined(iter(batches), ALONE))

    assert [batch.num_rows for batch in found] == [30_000] * 3 + [10_000] * 3
    assert pa.Table.from_batches(found).column("text") == pa.Table.from_batches(batches).column("text")
    assert {str(batch.column(1).type) for batch in found} == {"run_end_encoded<run_ends: int32, values: string>"}


class CountedPace(Pace):
    """How often others who wait may have gone first."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


def test_others_go_first_between_the_batches_that_are_joined() -> None:
    """Each may have taken long to make."""
    pace = CountedPace()
    batch = pa.record_batch([["x"]], names=["text"])

    for number, _ in enumerate(joined(iter([batch] * 20), pace)):
        assert number == 0

    assert pace.steps == 20


def test_large_flow_files_come_in_batches_of_their_own(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is made as a whole, and a piece of the table has up to 10,000 rows."""
    monkeypatch.setattr("ullage.embedded.flowfiles.BATCH_BYTES", 25_000)
    monkeypatch.setattr("ullage.embedded.flowfiles.JOINED_BYTES", 25_000)
    repository = workshop.make()
    sizes = [10_000, 10_000, 10_000, 60_000, 10, 10]
    with committing(repository) as session:
        session.ingest("in", [b""] * 6, [{"text": "t" * size} for size in sizes])
    with Peer.serving(repository) as peer:
        snapshot = peer.act("snapshot")[0]["id"]
        tables = [peer.table("flowfiles", snapshot=snapshot, **more) for more in ({}, {}, {"where": "queue = 'in'"})]
        small = peer.table("flowfiles", columns=["uuid"], snapshot=snapshot)

    assert sorted(len(dict(row["attributes"])["text"]) for row in tables[0].to_pylist()) == sorted(sizes)
    assert tables[0] == tables[1] == tables[2]
    assert tables[0].column("uuid").to_pylist() == small.column("uuid").to_pylist()
    assert max(batch.nbytes for batch in tables[0].to_batches()) < 62_000
    assert (len(tables[0].to_batches()) > 2, len(small.to_batches())) == (True, 1)
