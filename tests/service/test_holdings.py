"""What clients hold is theirs, and bounded: a hostile principal at its quotas leaves room for a good one."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.service.running import Running, audited, document_at, until
from tests.service.secured import Secured
from ullage.client.socket import SocketClient
from ullage.errors import QuotaReached, ServiceBusy
from ullage.uuids import format_uuid, new_uuids, parse_uuid
from ullage.wire.frames import ClaimKey
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.limits import Limits
from ullage_agent.service.snapshots import SNAPSHOT_BYTES

SMALL = Limits(
    requests=8,
    requests_per_peer=2,  # whoever is known is counted by name alone
    requests_each=2,
    sessions=4,
    sessions_each=2,
    socket_connections=4,
    socket_connections_each=2,
    flight_calls=4,
    flight_calls_each=2,
    flight_controls=4,
    flight_controls_each=2,
    snapshot_bytes=5 * SNAPSHOT_BYTES,
    snapshot_bytes_each=3 * SNAPSHOT_BYTES - 1,
    leases_each=2,
    holds_each=2,
    writes_each=2,
    streams_each=2,
    queues_each=2,
    counters_each=2,
    session_bytes=5 << 20,
    session_bytes_each=3 << 20,
    decoded_seconds=1.0,
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"), socket=True, limits=SMALL)
    for name in ("hostile", "good", "maker"):
        made.admit(name, "writer")
    made.admit("warden", "leases:delete,leases:create,content:create")
    with made.running:
        yield made


class Flight:
    """A client over Flight, of one principal."""

    def __init__(self, secured: Secured, name: str) -> None:
        self.options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secured.tokens[name]}".encode())])
        self.client = flight.FlightClient(secured.url("flight"), tls_root_certs=Path(secured.ca_file).read_bytes())

    def act(self, name: str, **body: Any) -> Any:
        found = list(self.client.do_action(flight.Action(name, json.dumps(body).encode()), self.options))
        return json.loads(found[0].body.to_pybytes()) if found else None

    def read(self) -> Any:
        ticket = flight.Ticket(b'{"kind": "table", "name": "queues"}')
        return self.client.do_get(ticket, self.options).read_all()

    def slug(self, call: Callable[[], object]) -> str:
        """Of what refuses a call, with its text; "" if nothing does."""
        try:
            call()
        except flight.FlightError as error:
            return f"{json.loads(error.extra_info)['slug']}: {error}"
        return ""


@pytest.mark.parametrize(
    ("quota", "path", "body", "slug"),
    [
        ("sessions_each", "/v1/sessions", {}, "quota-reached"),
        ("leases_each", "/v1/leases", {"duration_millis": 60_000}, "lease-refused"),
    ],
)
def test_over_http_one_at_its_quota_leaves_room(
    secured: Secured, quota: str, path: str, body: dict[str, Any], slug: str
) -> None:
    """429 that names the quota; the other one goes on, and so does the first when something has ended."""
    with secured.client("hostile") as hostile, secured.client("good") as good:
        answers = [hostile.post(path, json=body) for _ in range(3)]

        assert [answer.status_code for answer in answers] == [201, 201, 429]
        assert answers[2].json()["slug"] == slug
        assert quota in answers[2].json()["detail"]
        assert "retry-after" in answers[2].headers
        other = good.post(path, json=body).json()
        for owner, answer in ((hostile, answers[0].json()), (hostile, answers[1].json()), (good, other)):
            if "session" in answer:
                owner.post(f"{path}/{answer['session']}/rollback", json={})
            else:
                owner.delete(f"{path}/{answer['id']}")
        assert hostile.post(path, json=body).status_code == 201


@pytest.mark.parametrize(
    ("quota", "name", "body"),
    [
        ("snapshot_bytes_each", "snapshot", lambda _: {}),
        ("holds_each", "hold-events", lambda number: {"holder": f"h{number}"}),
        ("writes_each", "write-begin", lambda number: {"write": f"{number:032x}"}),
    ],
)
def test_over_flight_one_at_its_quota_leaves_room(
    secured: Secured, quota: str, name: str, body: Callable[[int], dict[str, Any]]
) -> None:
    """The same for what is held over Flight."""
    hostile, good = Flight(secured, "hostile"), Flight(secured, "good")
    for number in (1, 2):
        hostile.act(name, **body(number))

    refused = hostile.slug(lambda: hostile.act(name, **body(3)))

    assert refused.startswith("quota-reached")
    assert quota in refused
    assert good.slug(lambda: good.act(name, **body(4))) == ""


def test_who_has_made_many_queues_makes_no_more(secured: Secured) -> None:
    """Over each way to make one; those that there are take more, and one that is removed leaves room."""
    flights = Flight(secured, "maker")
    with secured.client("maker") as maker, secured.client("good") as good, secured.client("all") as admin:

        def put(name: str) -> httpx.Response:
            return maker.post(f"/v1/queues/{name}/flowfiles", content=b"x")

        def put_batch(name: str) -> httpx.Response:
            return maker.post(f"/v1/queues/{name}/batch", json={"items": [{"content": "eA=="}]})

        def define(name: str) -> httpx.Response:
            return maker.put(f"/v1/queues/{name}", json={})

        def transfer(name: str) -> httpx.Response:
            session = f"/v1/sessions/{maker.post('/v1/sessions', json={}).json()['session']}"
            assert maker.post(f"{session}/create", json={}).status_code == 201
            answer = maker.post(f"{session}/commit", json={"rest_to": name})
            maker.post(f"{session}/rollback", json={})
            return answer

        def ingest(name: str) -> httpx.Response:
            session = f"/v1/sessions/{maker.post('/v1/sessions', json={}).json()['session']}"
            body = {"items": [{"content": "eA=="}]}
            answer = maker.post(f"{session}/ingest", params={"queue": name}, json=body)
            maker.post(f"{session}/commit" if answer.is_success else f"{session}/rollback", json={})
            return answer

        ways = (put, put_batch, define, transfer, ingest)
        for way in ways:
            assert way("own-0").is_success
            assert way("own-1").is_success
            for other in ways:
                refused = other("own-2")
                assert (refused.status_code, "queues_each" in refused.json()["detail"]) == (429, True)
            said = flights.slug(lambda: flights.act("write-begin", write=f"{9:032x}", queue="own-2"))
            assert said.startswith("quota-reached")
            assert put("own-1").is_success
            assert maker.post("/v1/handles", content=b"x").is_success
            assert good.post("/v1/queues/theirs/flowfiles", content=b"x").is_success
            assert "own-2" not in {queue["name"] for queue in admin.get("/v1/queues").json()}
            for name in ("own-0", "own-1", "theirs"):
                admin.delete(f"/v1/queues/{name}/flowfiles")
                assert admin.delete(f"/v1/queues/{name}").is_success


def test_who_has_named_many_counters_names_no_more(secured: Secured) -> None:
    """Those that there are count on, for everybody."""

    def count(client: httpx.Client, *names: str) -> httpx.Response:
        session = f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['session']}"
        answer = client.post(f"{session}/commit", json={"counters": dict.fromkeys(names, 1)})
        client.post(f"{session}/rollback", json={})
        return answer

    with secured.client("maker") as maker, secured.client("good") as good, secured.client("all") as admin:
        assert count(maker, "a", "b").is_success
        refused = count(maker, "a", "c")
        assert (refused.status_code, "counters_each" in refused.json()["detail"]) == (429, True)
        assert count(maker, "b").is_success
        assert count(good, "b", "d").is_success
        found = admin.get("/v1/state").json()["counters"]
        assert {name: found.get(name, 0) for name in "abcd"} == {"a": 1, "b": 3, "c": 0, "d": 1}


def test_what_sessions_of_one_hold_leaves_room(secured: Secured) -> None:
    """By the bytes that they hold, of one and of all; what is rolled back is room again."""
    large = {"attributes": {"a": "v" * 500_000}}

    def filled(client: httpx.Client) -> tuple[str, httpx.Response]:
        session = f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['session']}"
        answers = [client.post(f"{session}/create", json=large) for _ in range(10)]
        assert answers[0].is_success
        return session, answers[-1]

    with secured.client("maker") as maker, secured.client("good") as good:
        for _ in range(2):
            session, refused = filled(maker)
            assert (refused.status_code, "session_bytes_each" in refused.json()["detail"]) == (429, True)
            other, busy = filled(good)
            assert (busy.status_code, busy.json()["slug"]) == (503, "busy")
            for client, open_one in ((maker, session), (good, other)):
                assert client.post(f"{open_one}/rollback", json={}).is_success


def test_answers_that_a_session_remembers_take_next_to_nothing(secured: Secured) -> None:
    """Which FlowFile it was is remembered, and not all of it as it was sent: what was emptied again takes no room."""
    large = {"attributes": {"a": "v" * 900_000}}
    with secured.client("maker") as maker:
        session = f"/v1/sessions/{maker.post('/v1/sessions', json={}).json()['session']}"
        for number in range(6):
            asks = [
                maker.post(f"{session}/create", json=large, headers={"idempotency-key": f"k{number}"}) for _ in "12"
            ]
            assert [answer.status_code for answer in asks] == [201, 201]
            assert asks[0].json() == asks[1].json()
            change = {"ids": [asks[0].json()["id"]], "remove_attributes": ["a"]}
            assert maker.post(f"{session}/changes", json={"changes": [change]}).is_success
        assert len(maker.get(session).json()["flow_files"]) == 6
        assert maker.post(f"{session}/rollback", json={}).is_success


def test_what_a_session_holds_is_shown_when_there_is_room_to_make_it_an_answer(secured: Secured) -> None:
    """Before any of it is made."""
    budget = secured.running.server.budget
    with secured.client("maker") as maker:
        session = f"/v1/sessions/{maker.post('/v1/sessions', json={}).json()['session']}"
        made = maker.post(f"{session}/create", json={"attributes": {"a": "v" * 200_000}}).json()
        with budget.count(ANONYMOUS, SMALL.decoded_bytes - 150_000):
            busy = maker.get(session)
        assert (busy.status_code, busy.json()["slug"]) == (503, "busy")
        assert maker.get(session).json()["flow_files"] == [made]
        assert maker.post(f"{session}/rollback", json={}).is_success


def test_streams_and_connections_of_one_leave_room(secured: Secured) -> None:
    """Uploads that never end, over each transport: the other principal's next request is answered. Each refusal leaves
    a line, also of what leaves none otherwise.
    """
    hostile, good = Flight(secured, "hostile"), Flight(secured, "good")
    schema, go = pa.schema([("content", pa.binary())]), threading.Event()

    def stalled() -> Iterator[bytes]:
        yield b"x"
        go.wait(60)

    def upload() -> int:
        with secured.client("hostile") as client:
            return client.post("/v1/handles", content=stalled()).status_code

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            stack.enter_context(secured.local("hostile")).resolve([bytes(16)])
        with pytest.raises(QuotaReached, match="socket_connections_each"), _socket(secured, "hostile") as more:
            more.resolve([bytes(16)])
        with _socket(secured, "good") as local:
            local.resolve([bytes(16)])

        descriptor = flight.FlightDescriptor.for_command(b"{}")
        writers = [hostile.client.do_put(descriptor, schema, hostile.options) for _ in range(2)]
        for writer, told in writers:
            writer.write_batch(pa.record_batch([pa.array([b"x"], pa.binary())], schema))
            assert told.read() is not None  # it is at work
        assert "flight_calls_each" in hostile.slug(hostile.read)
        second = good.client.do_put(descriptor, schema, good.options)
        second[0].write_batch(pa.record_batch([pa.array([b"x"], pa.binary())], schema))
        assert second[1].read() is not None
        assert "flight_calls_each" in good.slug(good.read)  # two that stall have not all there is
        assert Flight(secured, "maker").slug(Flight(secured, "maker").read) == ""
        second[0].close()
        assert [flights.act("about")["node"] for flights in (hostile, good)] == ["here", "here"]
        for writer, _ in writers:
            writer.close()

        uploads = [pool.submit(upload) for _ in range(2)]
        with secured.client("hostile") as client, secured.client("good") as other:
            # Not by asking as the same principal: that would take the place of the second one.
            metrics = secured.running.server.metrics
            until(lambda: b"ullage_requests_under_way 2.0\n" in metrics.text(), "both uploads to be under way")
            refused = client.get("/v1/queues")
            assert (refused.status_code, "requests_each" in refused.json()["detail"]) == (429, True)
            assert other.get("/v1/queues").status_code == 200
        go.set()
        assert [each.result() for each in uploads] == [201, 201]
    for name in ("hostile", "hostile", "good", "maker"):  # that is all there are
        stack.enter_context(secured.local(name)).resolve([bytes(16)])
    with stack, pytest.raises(ServiceBusy), secured.local("warden") as more:
        more.resolve([bytes(16)])

    assert {
        ("hostile", "socket", "HELLO", "quota-reached"),
        ("hostile", "Flight", "DoGet", "quota-reached"),
        ("hostile", "HTTP", "GET /v1/queues", "quota-reached"),
        ("", "socket", "HELLO", "busy"),
    } <= {
        (line.who, line.via, line.operation, line.why.partition(":")[0])
        for line in audited(secured.running, 4)
        if not line.allowed
    }


def _socket(secured: Secured, name: str) -> SocketClient:
    return secured.local(name)


def test_the_anonymous_are_bounded_together(tmp_path: Path) -> None:
    """They may be anybody: where nobody is asked for a token, the bound of all is the only one, of everything."""
    limits = Limits(**dict.fromkeys(("requests_each", "flight_calls_each", "sessions_each", "snapshot_bytes_each"), 0))
    limits = msgspec.structs.replace(limits, sessions=2, snapshot_bytes=3 * SNAPSHOT_BYTES - 1)
    with Running(document_at(tmp_path / "r", service={"flight_port": 0}), limits) as running:
        sessions = [running.client.post("/v1/sessions", json={}) for _ in range(3)]
        with flight.connect(running.server.urls["flight"]) as client:
            for _ in range(2):
                list(client.do_action(flight.Action("snapshot", b"{}")))
            with pytest.raises(flight.FlightError, match="2 snapshots are kept already"):
                list(client.do_action(flight.Action("snapshot", b"{}")))

    assert [answer.status_code for answer in sessions] == [201, 201, 503]


def test_what_somebody_holds_is_theirs(secured: Secured) -> None:
    """Nobody else renews, releases or ends it, but who has the right to."""
    hostile, good, warden = (Flight(secured, name) for name in ("hostile", "good", "warden"))
    write = format_uuid(new_uuids(1)[0])
    good.act("write-begin", write=write)
    snapshot = good.act("snapshot", holds=True)
    with secured.client("hostile") as other, secured.client("good") as owner, secured.client("warden") as ender:
        lease = snapshot["lease"]
        found = owner.get(f"/v1/leases/{lease}").json()

        assert found["owner"] == "good"
        assert other.post(f"/v1/leases/{lease}/renew", json={"duration_millis": 1_000}).status_code == 403
        assert other.delete(f"/v1/leases/{lease}").status_code == 403
        assert other.post(f"/v1/leases/{lease}/revoke").status_code == 403
        assert hostile.slug(lambda: hostile.act("renew", id=snapshot["id"])).startswith("not-found")
        assert hostile.slug(lambda: hostile.act("release", id=snapshot["id"])) == ""
        assert hostile.slug(lambda: hostile.act("write-abort", write=write)).startswith("forbidden")
        assert owner.get(f"/v1/leases/{lease}").status_code == 200
        assert good.act("renew", id=snapshot["id"])["lease"] == lease
        assert good.act("write-find", write=write)["state"] == "open"

        assert warden.act("write-abort", write=write)["state"] == "aborted"
        assert ender.delete(f"/v1/leases/{lease}").status_code == 200
        assert owner.get(f"/v1/leases/{lease}").status_code == 410
    good.act("release", id=snapshot["id"])


def test_what_was_deleted_is_gone_by_whatever_name(secured: Secured) -> None:
    """Its event, its replay and its address, over HTTP, Flight and the socket; but for who may undelete, or had a lease
    before, and for nobody once it is purged.
    """
    reader, holder, all_of_it = (Flight(secured, name) for name in ("good", "hostile", "all"))
    with secured.client("good") as client, secured.client("all") as admin, secured.client("hostile") as keeper:
        handle = client.post("/v1/handles", content=b"secret").json()["id"]
        row = _row_of(all_of_it, handle)
        claim = [row[n] for n in ("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start", "size")]
        event = client.get("/v1/provenance/events", params={"flow_file": handle}).json()["events"][0]["id"]
        for lease in keeper.get("/v1/leases").json():
            keeper.delete(f"/v1/leases/{lease['id']}")
        keeper.post("/v1/leases", json={"duration_millis": 60_000})
        assert _contents(reader, claim) == (b"secret", None)
        client.delete(f"/v1/handles/{handle}")

        assert _contents(reader, claim) == (None, "claim-gone")
        assert _contents(all_of_it, claim) == (b"secret", None)
        assert _contents(holder, claim) == (b"secret", None)
        with _socket(secured, "good") as local:
            (place,) = local.resolve_claims([ClaimKey(*claim[:4])])
            assert place.slug == "claim-gone"
        with _socket(secured, "all") as local:
            (place,) = local.resolve_claims([ClaimKey(*claim[:4])])
            assert not place.slug
        # The last of all: a replay that is allowed is a FlowFile over the same bytes.
        assert [_statuses(each, event) for each in (client, admin)] == [[410, 410, 410], [200, 200, 201]]


def _row_of(client: Flight, handle: str) -> dict[str, Any]:
    ticket = flight.Ticket(b'{"kind":"table","name":"flowfiles"}')
    rows = client.client.do_get(ticket, client.options).read_all().to_pylist()
    return next(row for row in rows if parse_uuid(row["uuid"]) == parse_uuid(handle))


def _contents(client: Flight, claim: list[int]) -> tuple[bytes | None, str | None]:
    ticket = flight.Ticket(json.dumps({"kind": "get", "claims": [claim]}).encode())
    (row,) = client.client.do_get(ticket, client.options).read_all().to_pylist()
    return row["content"], row["problem"]


def _statuses(client: httpx.Client, event: str) -> list[int]:
    """Of the content at an event, whether it may be replayed, and its replay."""
    path = f"/v1/provenance/events/{event}"
    client.put("/v1/queues/again", json={})
    return [
        client.get(f"{path}/content").status_code,
        client.get(f"{path}/replay", params={"queue": "again"}).status_code,
        client.post(f"{path}/replay", json={"queue": "again"}).status_code,
    ]


def test_events_name_the_principal(secured: Secured) -> None:
    """Where no processor says what it is: of handles and of what is put into queues."""
    with secured.client("all") as client:
        handle = client.post("/v1/handles", content=b"x").json()["id"]
        client.delete(f"/v1/handles/{handle}")
        client.post(f"/v1/handles/{handle}/undelete")
        queued = client.post("/v1/queues/q/flowfiles", content=b"x").json()["id"]

        def told(id: str) -> list[tuple[str, str, str]]:
            events = client.get("/v1/provenance/events", params={"flow_file": id}).json()["events"]
            return [(event["type"], event["component"], event["component_type"]) for event in events]

        assert told(handle) == [(type, "handles", "all") for type in ("CREATE", "DROP", "ADDINFO")]
        assert told(queued) == [("CREATE", "queues", "all")]
        client.delete("/v1/queues/q/flowfiles")
        assert told(queued)[1:] == [("DROP", "", "all")]


def test_events_of_a_staged_write_name_whose_it_is(secured: Secured) -> None:
    """Of FlowFiles that appear with its commit, which is no put of theirs."""
    all_of_it = Flight(secured, "all")
    write, attempt = (format_uuid(uuid) for uuid in new_uuids(2))
    all_of_it.act("write-begin", write=write, queue="q")
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"write": write, "attempt": attempt}).encode())
    schema = pa.schema([("content", pa.binary())])
    writer, told = all_of_it.client.do_put(descriptor, schema, all_of_it.options)
    with writer:
        writer.write_batch(pa.record_batch([pa.array([b"x"])], schema=schema))
        uuid = told.read().to_pybytes()[4:]
    for step in ("write-prepare", "write-commit"):
        all_of_it.act(step, write=write, attempts={attempt: 1})

    with secured.client("all") as client:
        found = client.get("/v1/provenance/events", params={"flow_file": format_uuid(uuid)}).json()["events"]
        assert [(event["type"], event["component_type"]) for event in found] == [("CREATE", "all")]
        client.delete("/v1/queues/q/flowfiles")


def test_what_waits_for_a_stream_is_its_owners(secured: Secured) -> None:
    """Nobody else takes it, removes it, gives it back, polls it or drops it; who may end what others hold gives it
    back, and then the stream is anybody's. One principal has so many streams.
    """
    good, hostile, all_of_it = (Flight(secured, name) for name in ("good", "hostile", "all"))
    with secured.client("good") as client, secured.client("hostile") as other, secured.client("all") as admin:
        for content in (b"1", b"2", b"3"):
            client.post("/v1/queues/in/flowfiles", content=content)

        def asked(peer: Flight, action: str, **more: int) -> str:
            return peer.slug(lambda: peer.act(action, stream="s", queue="in", **more)).partition(":")[0]

        assert good.act("feed-take", stream="s", queue="in", count=2)["count"] == 2
        for action, more in (
            ("feed-take", {"count": 1}),
            ("feed-take", {}),
            ("feed-done", {"through": 1 << 62}),
            ("feed-back", {}),
        ):
            assert asked(hostile, action, **more) == "forbidden"
        for each in (client, other):  # the owner changes it as a stream only, too
            # More often than one may have sessions: of a poll that is refused none is left.
            assert {each.post("/v1/queues/stream:s:in/poll", json={}).status_code for _ in range(4)} == {403}
            assert each.post("/v1/queues/stream:s:in/flowfiles", content=b"x").status_code == 403
            assert each.delete("/v1/queues/stream:s:in/flowfiles").status_code == 403
            assert each.put("/v1/queues/stream:s:in", json={"count_max": 1}).status_code == 403
        assert asked(all_of_it, "feed-done", through=1 << 62) == "forbidden"
        assert asked(good, "feed-take", count=2) == ""
        assert asked(all_of_it, "feed-back") == ""
        assert hostile.act("feed-take", stream="s", queue="in", count=1)["count"] == 1
        assert asked(good, "feed-take", count=1) == "forbidden"
        assert hostile.act("feed-done", stream="s", queue="in", through=1 << 62)["count"] == 1

        for stream in ("s", "t"):
            assert hostile.act("feed-take", stream=stream, queue="in", count=1)["count"] == 1
        client.post("/v1/queues/in/flowfiles", content=b"4")
        refused = hostile.slug(lambda: hostile.act("feed-take", stream="u", queue="in", count=1))
        assert refused.startswith("quota-reached")
        assert "streams_each" in refused
        assert good.act("feed-take", stream="u", queue="in", count=1)["count"] == 1
        for queue in ("in", "stream:s:in", "stream:t:in", "stream:u:in"):
            admin.delete(f"/v1/queues/{queue}/flowfiles")
