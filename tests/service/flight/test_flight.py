"""Contents and tables over Arrow Flight, with a plain Flight client."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.service.flight.peer import MB, Peer
from tests.support import Workshop, committing, drain, event_store, put_all
from ullage.contract import MaintenanceOperation, TruncationMode
from ullage.embedded.items import content_batches
from ullage.engine.model import parse_uuid
from ullage.errors import InvalidArgument
from ullage.wire.schemas import SCHEMAS
from ullage.wire.space import RunRequest
from ullage.wire.tickets import ContentTicket, parse_ticket
from ullage_agent.service.limits import Limits
from ullage_agent.service.tokens import TokenFile, line_of, new_token

ONE = {"content": [b"x"]}


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(workshop.make()) as made:
        yield made


def names(uuids: Sequence[bytes]) -> list[str]:
    return [uuid.hex() for uuid in uuids]


def slug_of(error: pytest.ExceptionInfo[flight.FlightError]) -> str:
    told: str = json.loads(error.value.extra_info)["slug"]
    return told


def test_each_batch_is_a_transaction_and_its_handles_come_back(peer: Peer) -> None:
    """Contents and attributes, in order, in one commit a batch."""
    contents = [[os.urandom(number % 700) for number in range(300)] for _ in range(3)]
    attributes = [[("n", str(number))] for number in range(300)]
    peer.put({"content": [b"first"]})  # takes what the first content ever takes beside it
    before = peer.repository.log.last_id

    found = peer.put(*({"content": batch, "attributes": attributes} for batch in contents), ttl_millis=60_000)

    assert peer.repository.log.last_id - before == 3
    for batch, uuids in zip(contents, found, strict=True):
        assert list(peer.get(names(uuids)).values()) == batch
    head = peer.repository.handles.head(found[1][7].hex())
    assert head.attribute_map()["n"] == "7"
    assert head.expires_millis == peer.repository.clock.now_millis() + 60_000


def test_a_content_goes_on_over_rows_and_batches(peer: Peer) -> None:
    """Large ones arrive whole, and their handle comes with the batch in which they end."""
    big = random.Random(1).randbytes(5 * MB)
    found = peer.put(
        {"content": [b"a", big[:MB], big[MB : 2 * MB]], "continues": [False, True, True]},
        {"content": [big[2 * MB : 3 * MB]], "continues": [True]},
        {"content": [big[3 * MB :], b"b", b"", b"c", b"d"], "continues": [False, False, False, True, None]},
        {"content": [b"e"], "continues": [False]},
    )

    assert [len(uuids) for uuids in found] == [1, 0, 4, 1]
    everything = [uuid for uuids in found for uuid in uuids]
    assert list(peer.get(names(everything)).values()) == [b"a", big, b"b", b"", b"cd", b"e"]


def test_a_stream_sent_again_with_its_key_stores_nothing_twice(peer: Peer) -> None:
    """Each transaction has its first answer, those of large contents too."""
    batches: list[dict[str, list[Any]]] = [
        {"content": [b"x", b"y"], "continues": [False, False]},
        {"content": [b"1", b"2", b"z"], "continues": [True, False, False]},
    ]

    first = peer.put(*batches[:1], key="k")
    whole = peer.put(*batches, key="k")

    assert whole[0] == first[0]
    assert peer.put(*batches, key="k") == whole
    assert sum(1 for _ in peer.repository.ledger.flow_files()) == 4
    with pytest.raises(flight.FlightError) as refused:
        peer.put({"content": [b"other"]}, key="k")
    assert slug_of(refused) == "key-reused"


def test_a_stream_that_breaks_off_keeps_what_was_committed(peer: Peer) -> None:
    """Whole batches stay, the content in the middle of which it ended leaves nothing."""
    with pytest.raises(flight.FlightError):
        peer.put({"content": [b"x", b"y"], "continues": [False, True]})

    assert [record.size for record in peer.repository.ledger.flow_files()] == [1]


def test_ranges_and_problems_stand_in_their_rows(peer: Peer) -> None:
    """One handle that is gone, or a range outside, spoils nothing for the others."""
    big = random.Random(2).randbytes(3 * MB)
    ((one, two, three),) = peer.put({"content": [b"one", b"two", big]})
    peer.repository.handles.delete(two.hex())
    handles = [*names([one, two, three]), "nonsense", f"{one.hex()}@there", f"{one.hex()}@here", *names([one])]
    ranges = [[0, 3], [0, 1], [MB - 7, MB + 9], [0, 0], [0, 3], [1, 2], [2, 5]]

    found = peer.get(handles, ranges=ranges)

    assert found == {
        0: b"one",
        1: "handle-deleted",
        2: big[MB - 7 : 2 * MB + 2],
        3: "no-such-handle",
        4: "elsewhere",
        5: b"ne",
        6: "range-not-satisfiable",
    }


@pytest.mark.parametrize("size", [20_000, 300_000, MB, 3 * MB])
def test_what_is_deleted_while_a_reader_takes_its_time_is_not_handed_out(peer: Peer, size: int) -> None:
    """But for what the next batches hold already: many handles are looked up at a time, and read one by one."""
    contents = [random.Random(number).randbytes(size) for number in range(3 + 8 * MB // size)]
    uuids = [uuid for content in contents for uuid in peer.put({"content": [content]})[0]]
    batches = content_batches(peer.embedded, ContentTicket(handles=names(uuids)))

    next(batches)
    for uuid in uuids:
        peer.repository.handles.delete(uuid.hex())
    left = list(batches)

    assert left[-1].batch["problem"].to_pylist()[-1] == "handle-deleted"
    assert sum(len(content) for batch in left for content in batch.contents) <= 3 * MB + size


def test_small_and_large_contents_come_in_the_order_of_their_handles(peer: Peer) -> None:
    """In batches of a MiB or so, whatever lies beside what."""
    sizes = [random.Random(number).choice([0, 10, 5_000, 200_000, 400_000, 3 * MB]) for number in range(60)]
    contents = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    uuids = [uuid for content in contents for uuid in peer.put({"content": [content]})[0]]

    assert list(peer.get(names(uuids)).values()) == contents
    assert list(peer.get([f"{uuid}@here" for uuid in names(uuids)]).values()) == contents


def test_what_is_staged_appears_with_its_commit(peer: Peer) -> None:
    """Large contents too; a stream that is sent again stores nothing twice, and the other attempt leaves nothing."""
    write, one, two = (str(uuid4()) for _ in range(3))
    big = random.Random(3).randbytes(3 * MB)
    batches: list[dict[str, list[Any]]] = [
        {"content": [b"a", b"b"], "continues": [False, False]},
        {"content": [big[:MB], big[MB:], b"c"], "continues": [True, False, False]},
    ]
    begun = peer.act("write-begin", write=write, queue="in")
    first = peer.put(*batches[:1], write=write, attempt=one)
    again = peer.put(*batches, write=write, attempt=one)
    peer.put({"content": [b"lost"]}, write=write, attempt=two)

    assert begun[0]["state"] == "open"
    assert again[0] == first[0]
    assert peer.table("flowfiles").num_rows == peer.table("content").num_rows == 0
    peer.act("write-prepare", write=write, attempts={one: 3})
    assert peer.act("write-commit", write=write, attempts={one: 3}, decision="all")[0]["state"] == "committed"
    found = peer.act("write-abort", write=write)[0]
    assert (found["state"], found["decision"]) == ("committed", "all")
    assert drain(peer.repository, "in") == [b"a", b"b", big, b"c"]


def test_what_is_staged_has_the_lifetime_that_was_asked_for(peer: Peer) -> None:
    """A content that goes on over rows too."""
    write, attempt = str(uuid4()), str(uuid4())
    peer.act("write-begin", write=write)
    batch = {"content": [b"whole", b"goes ", b"on"], "continues": [False, True, False]}

    peer.put(batch, write=write, attempt=attempt, lifetime=1)

    assert peer.table("resource_claims")["lifetime"].unique().to_pylist() == [1]


def test_contents_of_queues_are_read_by_their_claims(peer: Peer) -> None:
    """As the table has them; one that is gone has its problem in its row."""
    put_all(peer.repository, "in", [b"one", b"two"])
    rows = peer.table("flowfiles").to_pylist()
    claims = [
        [*(row[name] for name in ("resource_claim", "claim_offset", "claim_length", "claim_crc32c")), 1, 2]
        for row in sorted(rows, key=lambda row: row["claim_offset"])
    ]
    gone = [claims[0][0], 1 << 20, 5, 0, 0, 5]

    ticket = json.dumps({"kind": "get", "claims": [*claims, gone, [*claims[0][:4], 2, 2]]}).encode()
    found = peer.client.do_get(flight.Ticket(ticket)).read_all().to_pylist()

    assert [row["content"] or row["problem"] for row in found] == [b"ne", b"wo", "claim-gone", "range-not-satisfiable"]
    cut = {"kind": "get", "claims": [claims[0]] * 3, "ranges": [[1, 1], [0, 2], [1, 2]]}
    found = peer.client.do_get(flight.Ticket(json.dumps(cut).encode())).read_all().to_pylist()
    assert [row["content"] or row["problem"] for row in found] == [b"e", b"ne", "range-not-satisfiable"]


def test_what_was_given_back_says_how(workshop: Workshop) -> None:
    """Its file may stand for others that live in it."""
    repository = workshop.make(truncation={"mode": TruncationMode.EAGER})
    with committing(repository) as session:
        session.transfer(session.write(session.create(), b"small"), "kept")
        session.transfer(session.write(session.create(), b"l" * 2 * MB), "in")
    peer = Peer(repository)
    (row,) = (row for row in peer.table("flowfiles").to_pylist() if row["queue"] == "in")
    claim = [*(row[name] for name in ("resource_claim", "claim_offset", "claim_length", "claim_crc32c")), 0, 2 * MB]
    repository.queues.drop(repository.queue("in"))
    repository.reclamation.truncate()

    ticket = json.dumps({"kind": "get", "claims": [claim]}).encode()

    assert peer.client.do_get(flight.Ticket(ticket)).read_all()["problem"].to_pylist() == ["claim-truncated"]
    peer.close()


def test_events_are_read_from_where_the_last_reader_stopped(peer: Peer) -> None:
    """`about` says how far they go."""
    put_all(peer.repository, "in", [b"x"] * 7)
    told = peer.act("about")[0]
    assert (told["first_sequence"], told["last_sequence"], told["node"]) == (1, 7, "here")
    assert told["socket"] is None

    read = [peer.table("provenance", after=after, through=through) for after, through in ((0, 3), (3, 7), (7, 7))]

    assert [table["sequence"].to_pylist() for table in read] == [[1, 2, 3], [4, 5, 6, 7], []]


def test_a_table_of_events_that_cannot_all_be_read_is_refused(peer: Peer, workshop: Workshop) -> None:
    """Who follows it by sequence numbers would never come back for those that it passed over."""
    put_all(peer.repository, "in", [b"x"] * 7)
    peer.repository.provenance.drain()
    put_all(peer.repository, "in", [b"x"] * 2)
    event_store(peer.repository).event_files.close()
    (path,) = (workshop.path / "provenance" / "events").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(flight.FlightError) as caught:
        peer.table("provenance")

    assert slug_of(caught) == "provenance-damaged"
    assert path.name in str(caught.value)
    assert peer.table("provenance", after=7)["sequence"].to_pylist() == [8, 9]
    path.write_bytes(whole)


def test_a_snapshot_is_kept_by_renewing_it(peer: Peer, workshop: Workshop) -> None:
    """Its lease goes with it, as far as spec.leases allows."""
    taken = peer.act("snapshot", ttl_millis=60_000, holds=True)[0]
    workshop.clock.advance(50)
    renewed = peer.act("renew", id=taken["id"], ttl_millis=60_000)[0]
    assert renewed["expires_millis"] == workshop.clock.now_millis() + 60_000
    workshop.clock.advance(50)
    assert peer.table("claims", snapshot=taken["id"]).num_rows == 0
    workshop.clock.advance(11)
    with pytest.raises(flight.FlightError) as over:
        peer.act("renew", id=taken["id"])
    assert slug_of(over) == "not-found"


@pytest.mark.parametrize(
    ("batch", "command", "slug"),
    [
        ({"content": [b"x", None]}, {}, "invalid-argument"),
        ({"content": [b"x"] * 10_001}, {}, "request-too-large"),
        ({"content": [b"x"], "attributes": [[("uuid", "1")]]}, {}, "invalid-argument"),
        (ONE, {"write": str(uuid4()), "attempt": str(uuid4())}, "write-closed"),
        (ONE, {"write": "x", "attempt": str(uuid4())}, "invalid-argument"),
        (ONE, {"write": str(uuid4())}, "invalid-argument"),
        (ONE, {"write": str(uuid4()), "attempt": str(uuid4()), "key": "k"}, "invalid-argument"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    peer: Peer, batch: dict[str, list[Any]], command: dict[str, str], slug: str
) -> None:
    """With the slug that HTTP has; a write that never began takes nothing."""
    with pytest.raises(flight.FlightError) as refused:
        peer.put(batch, **command)
    assert slug_of(refused) == slug
    assert list(peer.repository.ledger.flow_files()) == []


@pytest.mark.parametrize(
    ("ticket", "slug"),
    [
        (b"", "invalid-argument"),
        (b"\xff", "invalid-argument"),
        (b'{"kind":"get"}', "invalid-argument"),
        (b'{"kind":"table","name":"nonesuch"}', "not-found"),
        (b'{"kind":"table","name":"claims","columns":["x"]}', "invalid-argument"),
        (b'{"kind":"table","name":"claims","columns":["offset","length","offset"]}', "invalid-argument"),
        (b'{"kind":"table","name":"claims","part":[2,2]}', "invalid-argument"),
        (b'{"kind":"table","name":"claims","snapshot":"x"}', "not-found"),
        (b'{"kind":"get","handles":["x"],"ranges":[]}', "invalid-argument"),
    ],
)
def test_what_is_no_ticket_is_refused(peer: Peer, ticket: bytes, slug: str) -> None:
    """Before anything is sent."""
    with pytest.raises(flight.FlightError) as refused:
        peer.client.do_get(flight.Ticket(ticket)).read_all()
    assert slug_of(refused) == slug


def test_a_ticket_of_very_many_columns_is_not_looked_into() -> None:
    """What is wrong with each of them would be said."""
    ticket = json.dumps({"kind": "table", "name": "claims", "columns": [f"{n}" for n in range(101)]})
    with pytest.raises(InvalidArgument, match="length <= 100"):
        parse_ticket(ticket.encode())


def test_every_table_has_its_schema_and_its_rows(workshop: Workshop) -> None:
    """What they say agrees with the ledger, swapped FlowFiles included."""
    repository = workshop.make(flow_file={"swap_threshold": 50, "swap_batch": 20})
    put_all(repository, "inbox", [bytes([n]) * 100 for n in range(120)], colour="green")
    repository.handles.put(b"handle", {"a": "b"})
    lease = repository.leases.acquire("reader", 60_000)
    peer = Peer(repository)
    run = peer.embedded.reclamation.begin(RunRequest())
    peer.embedded.reclamation.run(run.id, wait_seconds=30)

    tables = {name: peer.table(name) for name in SCHEMAS}

    assert {name: table.schema for name, table in tables.items()} == SCHEMAS
    (queue,) = tables["queues"].to_pylist()
    assert (queue["queue"], queue["flowfiles"], queue["size"]) == ("inbox", 120, 12_000)
    assert queue["swapped"] > 0
    flow_files = tables["flowfiles"].to_pylist()
    assert len(flow_files) == 121
    assert sum(row["swapped"] for row in flow_files) == queue["swapped"]
    assert {dict(row["attributes"]).get("colour") for row in flow_files if row["queue"]} == {"green"}
    claims = tables["claims"].to_pylist()
    assert sum(row["claimants"] for row in claims) == 121
    assert sum(row["live_bytes"] for row in tables["resource_claims"].to_pylist()) == 12_006
    assert [row["lease"].replace("-", "") for row in tables["leases"].to_pylist()] == [lease.id.hex()]
    assert len(tables["provenance"]) == 121
    assert sorted(row["content"] for row in tables["content"].to_pylist()) == sorted(
        [b"handle", *(bytes([n]) * 100 for n in range(120))]
    )
    assert [(row["run"], row["owner"], row["problem"]) for row in tables["runs"].to_pylist()] == [
        (run.id, "this process", None)
    ]
    assert [row["operation"] for row in tables["windows"].to_pylist()] == list(MaintenanceOperation)
    peer.close()


def test_tables_of_one_snapshot_agree_while_commits_go_on(peer: Peer) -> None:
    """What comes or goes afterwards is in none of them; without a snapshot it is in all."""
    kept = peer.repository.handles.put_many([b"x"] * 10)
    (taken,) = peer.act("snapshot")
    peer.repository.handles.put_many([b"new"] * 5)
    peer.repository.handles.delete(kept[0])

    rows = peer.table("flowfiles", snapshot=taken["id"]).to_pylist()

    assert sorted(row["uuid"] for row in rows) == sorted(kept)
    assert {row["deleted_millis"] for row in rows} == {0}
    assert sum(row["claimants"] for row in peer.table("claims", snapshot=taken["id"]).to_pylist()) == 10
    assert {row["transaction"] <= taken["transaction"] for row in peer.table("provenance").to_pylist()} == {True, False}
    assert all(
        row["transaction"] <= taken["transaction"] for row in peer.table("provenance", snapshot=taken["id"]).to_pylist()
    )
    assert len(peer.table("flowfiles")) == 15
    peer.repository.checkpoint()
    assert len(peer.table("flowfiles", snapshot=taken["id"])) == 10
    peer.act("release", id=taken["id"])
    with pytest.raises(flight.FlightError):
        peer.table("flowfiles", snapshot=taken["id"])


def test_a_snapshot_that_holds_keeps_its_content(peer: Peer) -> None:
    """Its lease does, until it is released."""
    peer.repository.handles.put(b"x")
    (taken,) = peer.act("snapshot", holds=True)

    (lease,) = peer.repository.leases.all()
    assert parse_uuid(taken["lease"]) == lease.id
    assert lease.transaction <= taken["transaction"]
    peer.act("release", id=taken["id"])
    assert peer.repository.leases.all() == []


def test_tokens_and_verbs_are_asked_for(workshop: Workshop, tmp_path: Path) -> None:
    """No token, an unknown one, one without the right: refused before anything is read."""
    token, digest = new_token()
    (tmp_path / "tokens").write_text(line_of("reads", ("records:get",), None, digest))
    peer = Peer(workshop.make(), authenticator=TokenFile(str(tmp_path / "tokens"), workshop.clock))
    ticket = flight.Ticket(b'{"kind":"table","name":"queues"}')

    def options(value: str) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=[(b"authorization", value.encode())])

    for wrong in (None, options("Bearer nonsense"), options("Basic x")):
        with pytest.raises(flight.FlightUnauthenticatedError):
            peer.client.do_get(ticket, wrong).read_all()
    assert len(peer.client.do_get(ticket, options(f"Bearer {token}")).read_all()) == 0
    writer, _ = peer.client.do_put(
        flight.FlightDescriptor.for_command(b"{}"), pa.schema([("content", pa.binary())]), options(f"Bearer {token}")
    )
    with pytest.raises(flight.FlightUnauthorizedError) as refused:
        writer.close()
    assert slug_of(refused) == "forbidden"
    assert all(token not in str(failure) for failure in peer.failures)
    peer.close()


def test_too_many_calls_are_told_to_come_again(workshop: Workshop) -> None:
    """The bound is on what is at work; a stream that waits for its reader counts."""
    peer = Peer(workshop.make(), limits=Limits(flight_calls=1))
    contents = [random.Random(3).randbytes(MB + 1) for _ in range(80)]
    ids = [id for content in contents for id in peer.repository.handles.put_many([content])]
    ticket = flight.Ticket(json.dumps({"kind": "get", "handles": ids}).encode())
    stream = peer.client.do_get(ticket)
    stream.read_chunk()

    with pytest.raises(flight.FlightUnavailableError) as refused:
        peer.table("queues")

    assert slug_of(refused) == "busy"
    stream.cancel()
    peer.close()


def test_readers_of_a_snapshot_find_their_shares(peer: Peer) -> None:
    """A scan lasts as long as its snapshot, and begins once; what it does not know is told."""
    (taken,) = peer.act("snapshot")
    scan = {"snapshot": taken["id"], "scan": "s"}
    homes = {"a": {"shares": 2, "where": "there"}}
    for _ in range(2):
        assert peer.act("scan", **scan, homes=homes) == []
        (found,) = peer.act("bind", **scan, slot=4, near=["a"])
        assert found == {"state": "read", "home": "a", "share": 0, "shares": 2, "where": "there"}
    with pytest.raises(flight.FlightError) as unknown:
        peer.act("bind", **scan | {"scan": "other"}, slot=0)
    assert slug_of(unknown) == "not-found"

    peer.act("release", id=taken["id"])
    with pytest.raises(flight.FlightError) as over:
        peer.act("bind", **scan, slot=4)
    assert slug_of(over) == "not-found"


def test_it_lists_its_tables_and_actions(peer: Peer) -> None:
    """A client that knows nothing finds out."""
    flights = list(peer.client.list_flights())

    assert [info.descriptor.path[0].decode() for info in flights] == list(SCHEMAS)
    assert peer.client.get_schema(flight.FlightDescriptor.for_path("claims")).schema == SCHEMAS["claims"]
    assert len(peer.client.do_get(flights[0].endpoints[0].ticket).read_all()) == 0
    text = (Path(__file__).parents[3] / "docs" / "flight.md").read_text(encoding="utf-8")
    actions = [action.type for action in peer.client.list_actions()]
    assert {"snapshot", "renew", "release", "about", "write-begin", "write-commit"} <= set(actions)
    assert [action for action in actions if f"`{action}`" not in text] == []
