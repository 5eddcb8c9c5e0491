"""spec.auth.queues: who may read, write and delete in which queues, the same over every transport."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import ullage
from tests.service.secured import Secured
from ullage.client.flight import FlightClient
from ullage.contract import QueueAccess, QueueRule, QueueUse, Right
from ullage.errors import Forbidden
from ullage.uuids import parse_uuid
from ullage.wire.tickets import (
    FEED_DONE,
    FEED_TAKE,
    RELEASE,
    SNAPSHOT,
    FeedRequest,
    SnapshotRelease,
    SnapshotRequest,
    TableTicket,
)

EVERYBODY = ("*",)
RULES = (
    QueueRule(prefix="", read=("boss",), write=("boss",), delete=("boss",)),
    QueueRule(prefix="team.", read=("boss", "member", "mate"), write=("boss", "member"), delete=("boss", "member")),
    QueueRule(prefix="team.in", read=("boss", "member"), write=EVERYBODY, delete=("boss", "member")),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"), socket=True, auth={"queues": RULES})
    for name in ("boss", "member", "mate", "stranger"):
        made.admit(name, *(right for right in Right if name == "boss" or right != Right.UNDELETE))
    with made.running:
        yield made


@pytest.fixture
def secured(served: Secured) -> Iterator[Secured]:
    """With a FlowFile in a queue of the member's, and one in another."""
    with served.client("boss") as boss:
        for queue in ("team.work", "secret"):
            assert boss.post(f"/v1/queues/{queue}/flowfiles", content=queue.encode()).status_code == 201
        yield served
        for each in boss.get("/v1/queues").json():
            boss.delete(f"/v1/queues/{each['name']}/flowfiles")
            assert boss.delete(f"/v1/queues/{each['name']}").status_code == 200


def test_the_longest_prefix_decides() -> None:
    """By name, group or for everybody; without a fitting rule, whoever has the right."""
    rules = (QueueRule(prefix="a", read=("group:g",)), QueueRule(prefix="a.b", read=("x", "*"), delete=("x",)))

    member = QueueAccess(rules, "y", ["g"])
    stranger = QueueAccess(rules, "x")

    assert [member.allows(QueueUse.READ, queue) for queue in ("a", "a.b", "b", "")] == [True] * 4
    assert [stranger.allows(QueueUse.READ, queue) for queue in ("a", "a.b", "b", "")] == [False, True, True, True]
    assert not member.allows(QueueUse.DELETE, "a.b")
    assert stranger.allows(QueueUse.DELETE, "stream:s:a.b.c")
    assert not stranger.allows(QueueUse.READ, "stream:s:a")
    assert not stranger.allows_everywhere(QueueUse.READ)
    assert not QueueAccess(rules, "group:g").allows(QueueUse.READ, "a")
    assert QueueAccess((), "x").allows_everywhere(QueueUse.DELETE)


def test_over_http_other_queues_are_forbidden_and_left_out(secured: Secured) -> None:
    """What names a queue is 403, what lists them does not show it; content of its FlowFiles has no other way out."""
    with secured.client("boss") as boss, secured.client("member") as member:
        secret = boss.get("/v1/queues/secret/flowfiles").json()[0]["id"]
        handle = boss.post("/v1/handles", content=b"x").json()["id"]
        session = member.post("/v1/sessions", json={}).json()["session"]
        work = member.post("/v1/queues/team.work/poll", json={}).json()

        def status(method: str, path: str, **more: Any) -> int:
            return member.request(method, f"/v1{path}", **more).status_code

        assert [queue["name"] for queue in member.get("/v1/queues").json()] == ["team.work"]
        assert "secret" not in member.get("/v1/queues/team.nope").text
        assert {
            status("GET", "/queues/secret"),
            status("PUT", "/queues/secret", json={}),
            status("DELETE", "/queues/secret"),
            status("GET", "/queues/secret/flowfiles"),
            status("DELETE", "/queues/secret/flowfiles"),
            status("POST", "/queues/secret/flowfiles", content=b"x"),
            status("POST", "/queues/secret/batch", json={"items": [{"content": ""}]}),
            status("POST", "/queues/secret/poll", json={}),
            status("POST", f"/sessions/{session}/poll", json={"queue": "secret", "count": 1}),
            status("POST", f"/sessions/{session}/import", json={"handle": handle}),
            status("POST", f"/sessions/{session}/ingest?queue=secret", json={"items": [{"content": ""}]}),
            status("POST", f"/sessions/{work['session']}/commit", json={"rest_to": "secret"}),
            status("GET", f"/contents/{secret}"),
            status("GET", "/handles"),
            status("POST", "/handles", content=b"x"),
            status("GET", f"/handles/{handle}"),
            status("GET", f"/handles/{handle}/head"),
            status("DELETE", f"/handles/{handle}"),
            status("PUT", f"/handles/{handle}/ttl?ttl=1s"),
            status("GET", "/provenance/events"),
            status("GET", "/provenance/events/1"),
            status("GET", "/provenance/events/1/content"),
            status("GET", f"/provenance/lineage/{secret}"),
            status("GET", "/unavailable"),
            status("GET", "/set-aside"),
        } == {403}
        assert status("POST", f"/sessions/{work['session']}/commit", json={"rest_to": "team.done"}) == 200
        assert len(boss.get("/v1/queues/secret/flowfiles").json()) == 1


def test_who_may_only_write_puts_and_sees_nothing(secured: Secured) -> None:
    """Everybody may write into the inbox of the rules, and nobody else read it."""
    with secured.client("all") as other:
        assert other.post("/v1/queues/team.in/flowfiles", content=b"x").status_code == 201
        assert other.get("/v1/queues/team.in/flowfiles").status_code == 403
        assert other.post("/v1/queues/team.in/poll", json={}).status_code == 403
        assert other.get("/v1/queues").json() == []


def test_over_flight_rows_of_other_queues_are_left_out(secured: Secured) -> None:
    """Of tables, also at a snapshot; addresses of content, which say of no queue, and feeds are refused."""
    headers = [(b"authorization", f"Bearer {secured.tokens['member']}".encode())]
    options = flight.FlightCallOptions(headers=headers)
    with flight.FlightClient(secured.url("flight"), tls_root_certs=Path(secured.ca_file).read_bytes()) as client:

        def table(name: str, **more: Any) -> pa.Table:
            ticket = json.dumps({"kind": "table", "name": name, **more}).encode()
            return client.do_get(flight.Ticket(ticket), options).read_all()

        def act(name: str, **body: Any) -> Any:
            (answer,) = client.do_action(flight.Action(name, json.dumps(body).encode()), options)
            return json.loads(answer.body.to_pybytes())

        snapshot = act("snapshot")["id"]
        for more in ({}, {"snapshot": snapshot}):
            assert table("flowfiles", **more)["queue"].to_pylist() == ["team.work"]
            for where in (
                "queue = 'secret'",
                "queue LIKE '%'",
                "NOT queue = 'team.work' OR size > 0",
                "uuid IS NOT NULL",
            ):
                assert {*table("flowfiles", where=where, **more)["queue"].to_pylist()} <= {"team.work"}
            assert table("queues", where="queue = 'secret'", **more).num_rows == 0
            assert table("queues", **more)["queue"].to_pylist() == ["team.work"]
            assert table("content", **more)["content"].to_pylist() == [b"team.work"]
        row = table("flowfiles").to_pylist()[0]
        claim = [
            row[name] for name in ("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start", "size")
        ]
        for ticket in (
            {"kind": "get", "claims": [claim]},
            {"kind": "get", "handles": [row["uuid"]]},
            {"kind": "table", "name": "provenance"},
            {"kind": "table", "name": "provenance", "where": "FALSE"},
            {"kind": "table", "name": "flowfiles", "stream": "s", "queue": "secret"},
        ):
            with pytest.raises(flight.FlightUnauthorizedError):
                client.do_get(flight.Ticket(json.dumps(ticket).encode()), options).read_all()
        for action, body in (
            ("feed-take", {"stream": "s", "queue": "secret", "count": 1}),
            ("write-begin", {"write": "0" * 32, "queue": "secret"}),
            ("write-begin", {"write": "0" * 32}),
        ):
            with pytest.raises(flight.FlightUnauthorizedError):
                act(action, **body)
        assert act("feed-take", stream="s", queue="team.work", count=1)["count"] == 1


ADDRESS = ("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start", "size")


def _flight(secured: Secured, name: str) -> FlightClient:
    return FlightClient(secured.url("flight"), secured.tokens[name], ca_file=secured.ca_file)


def _rows(client: FlightClient, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.table(TableTicket(name="flowfiles", **wanted)).read_all().to_pylist()
    return found


def _read(
    client: FlightClient, row: dict[str, Any], seal: bytes | None, **other: int
) -> tuple[bytes | None, str | None]:
    """The content of a row under a seal, or the problem; `other` is what is asked for instead of where it lies."""
    address: Any = tuple(other.get(name, row[name]) for name in ADDRESS)
    ((_, content, problem),) = client.get_rows(claims=[address], seals=None if seal is None else [seal])
    return content, problem


def test_a_seal_opens_the_content_of_its_own_row_and_nothing_else(secured: Secured) -> None:
    """For whom the row was shown: not other bytes of the claim, another queue's, or for somebody else."""
    with secured.client("boss") as boss, _flight(secured, "member") as member:
        boss.post("/v1/queues/team.in/flowfiles", content=b"other")
        handle = boss.post("/v1/handles", content=b"a handle").json()["id"]
        with _flight(secured, "boss") as all_of_it:
            rows = {row["queue"]: row for row in _rows(all_of_it)}
            assert {row["seal"] for row in rows.values()} == {None}  # who reads everything needs none
            assert _read(all_of_it, rows["secret"], None) == (b"secret", None)
        work, other = sorted(_rows(member), key=lambda row: row["queue"], reverse=True)
        seal = work["seal"]

        assert [(row["queue"], len(row["seal"])) for row in (work, other)] == [("team.work", 24), ("team.in", 24)]
        assert _read(member, work, seal) == (b"team.work", None)
        with pytest.raises(Forbidden, match="seal"):
            _read(member, work, None)
        for row, asked in (
            (rows["secret"], {}),
            (rows[None], {}),
            (other, {}),
            (work, {"size": 1}),
            (work, {"start": 1, "size": 8}),
            (work, {"claim_length": 100}),
        ):
            assert _read(member, row, seal, **asked) == (None, "forbidden")
        for forged in (b"", b"x", bytes(24), bytes(8) + seal[8:], seal[:8] + bytes(16), seal[:-1]):
            assert _read(member, work, forged) == (None, "forbidden")
        with _flight(secured, "stranger") as stranger:
            assert _rows(stranger) == []
            assert _read(stranger, work, seal) == (None, "forbidden")
        with _flight(secured, "mate") as mate:  # whose own row it is, too: but this seal is the member's
            assert _read(mate, work, seal) == (None, "forbidden")
        boss.delete(f"/v1/handles/{handle}")


def test_a_seal_reads_at_a_snapshot_and_of_a_stream(secured: Secured) -> None:
    """What has been consumed since, as long as the snapshot holds it; and what waits for a stream."""
    with secured.client("member") as client, _flight(secured, "member") as member:
        snapshot = member.act(SNAPSHOT, SnapshotRequest(holds=True)).id
        (row,) = _rows(member, snapshot=snapshot)
        client.delete("/v1/queues/team.work/flowfiles")
        assert _rows(member) == []
        assert _read(member, row, row["seal"]) == (b"team.work", None)
        member.act(RELEASE, SnapshotRelease(id=snapshot))
        assert _read(member, row, row["seal"]) == (None, "claim-gone")

        client.post("/v1/queues/team.work/flowfiles", content=b"taken")
        member.act(FEED_TAKE, FeedRequest(stream="s", queue="team.work", count=1))
        (taken,) = _rows(member, stream="s", queue="team.work")
        assert _read(member, taken, taken["seal"]) == (b"taken", None)
        member.act(FEED_DONE, FeedRequest(stream="s", queue="team.work", through=1 << 40))


def test_changed_rules_hold_for_seals_and_kept_snapshots(secured: Secured) -> None:
    """Whoever may not read the queue any more reads nothing of it, whatever they were given before."""
    rules = (QueueRule(prefix="", read=("boss",), write=("boss",), delete=("boss",)),)
    with _flight(secured, "member") as member:
        snapshot = member.act(SNAPSHOT, SnapshotRequest()).id
        (row,) = _rows(member, snapshot=snapshot)
        document = secured.running.document
        auth = msgspec.structs.replace(document.spec.auth, queues=rules)
        spec = msgspec.structs.replace(document.spec, auth=auth)
        secured.running.server.host.reload(msgspec.structs.replace(document, spec=spec))
        try:
            assert _read(member, row, row["seal"]) == (None, "forbidden")
            assert _rows(member, snapshot=snapshot) == []
        finally:
            secured.running.server.host.reload(document)
        assert _read(member, row, row["seal"]) == (b"team.work", None)
        member.act(RELEASE, SnapshotRelease(id=snapshot))


def test_over_the_socket_descriptors_are_for_who_may_read_every_queue(secured: Secured) -> None:
    """A file shows contents of all queues."""
    with secured.client("boss") as boss:
        handle = parse_uuid(boss.post("/v1/handles", content=b"x").json()["id"])
    with secured.local("member") as member, pytest.raises(Forbidden):
        member.resolve([handle])


def test_rules_are_taken_over_while_the_agent_runs(secured: Secured) -> None:
    """From the next request on, without a restart."""
    with secured.client("member") as member:
        assert member.get("/v1/queues/secret").status_code == 403
        document = secured.running.document
        spec = msgspec.structs.replace(document.spec, auth=msgspec.structs.replace(document.spec.auth, queues=()))
        secured.running.server.host.reload(msgspec.structs.replace(document, spec=spec))
        assert member.get("/v1/queues/secret").status_code == 200
        secured.running.server.host.reload(document)
        assert member.get("/v1/queues/secret").status_code == 403


def test_the_command_line_follows_the_rules(secured: Secured) -> None:
    """As any client: what it lists and what it may not."""
    with ullage.connect(secured.url(), token=secured.tokens["member"], ca_file=secured.ca_file) as repository:
        assert [queue.name for queue in repository.queues.all()] == ["team.work"]
        with pytest.raises(Forbidden, match="may not write queue secret"):
            repository.queues.put("secret", b"x")
