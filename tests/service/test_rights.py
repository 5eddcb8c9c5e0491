"""Each operation of each transport needs just the rights of the list: refused with every other right, let in with its
own. The list is that of `ullage.wire.needs`, which docs/security.md shows.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.service.secured import Secured
from tests.service.socket.reader import Reader, Refusal
from ullage.contract import Right
from ullage.wire.frames import FrameKind
from ullage.wire.needs import FRAME_RIGHTS, Need, needs
from ullage.wire.schemas import SCHEMAS
from ullage.wire.tickets import ACTIONS, TABLE_RIGHTS

LIST = list(needs())
SOME_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"), socket=True)
    with made.running:
        yield made


def _of(transport: str) -> list[Need]:
    return [each for each in LIST if each.transport == transport and each.rights is not None]


def test_every_right_is_needed_somewhere_and_every_table_has_one() -> None:
    """No word of the vocabulary is idle, and nothing that is served was forgotten."""
    needed = {right for each in LIST for right in (*(each.rights or ()), *(right for right, _ in each.sometimes))}

    assert needed == set(Right)
    assert TABLE_RIGHTS.keys() == SCHEMAS.keys()
    assert FrameKind.HELLO not in FRAME_RIGHTS


@pytest.mark.parametrize("need", _of("HTTP"), ids=lambda each: each.operation)
def test_an_operation_over_http_needs_its_rights(secured: Secured, need: Need) -> None:
    """401 without a token, 403 with all rights but one of its own, something else with its own alone."""
    method, path = need.operation.split(" ")
    path = re.sub(r"{\w+}", SOME_ID, path)

    def status(token: str) -> int:
        with secured.client(token) as client:
            return client.request(method, path).status_code

    assert status("") == status("ullage_nobody") == status("expired") == 401
    assert [status(f"but {right}") for right in need.rights or ()] == [403] * len(need.rights or ())
    assert status(secured.only(need.rights)) not in (401, 403)


def test_metrics_need_their_right_which_opens_nothing_else(secured: Secured) -> None:
    """Prometheus's token reads metrics only."""
    url = f"{secured.url('metrics')}/metrics"
    answers = {}
    for token in (f"but {Right.METRICS}", Right.METRICS):
        with secured.client(token) as client:
            answers[token] = client.get(url).status_code
    assert answers == {f"but {Right.METRICS}": 403, Right.METRICS: 200}

    for need in LIST:
        assert need.operation == "GET /metrics" or Right.METRICS not in (need.rights or ())


def test_what_was_deleted_needs_the_right_to_undelete(secured: Secured) -> None:
    """In addition to that of reading content, for GET and HEAD."""
    with secured.client("all") as client:
        handle = client.post("/v1/handles", content=b"secret").json()["id"]
        client.delete(f"/v1/handles/{handle}")
        assert client.get(f"/v1/handles/{handle}", params={"deleted": "true"}).content == b"secret"
    for token in (f"but {Right.UNDELETE}", f"but {Right.READ}"):
        with secured.client(token) as client:
            for method in ("GET", "HEAD"):
                assert client.request(method, f"/v1/handles/{handle}", params={"deleted": "true"}).status_code == 403


@pytest.mark.parametrize("said", [["deleted=false"], [], ["deleted=false", "deleted=false"]])
def test_whoever_may_only_read_reads_what_is_there(secured: Secured, said: list[str]) -> None:
    """Also if it says that it asks for nothing deleted, as the client does: that alone needs no right to undelete."""
    with secured.client("all") as client:
        handle = client.post("/v1/handles", content=b"open").json()["id"]
    with secured.client(f"but {Right.UNDELETE}") as client:
        assert client.get(f"/v1/handles/{handle}?{'&'.join(said)}").content == b"open"
        for more in ("deleted=true", "deleted=1", "deleted=on", "deleted=", "deleted"):
            assert client.get(f"/v1/handles/{handle}?{'&'.join([*said, more])}").status_code == 403


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"a\xe6": []}', "the body: 'utf-8' codec can't decode byte 0xe6 in position 1: unexpected end of data"),
        (
            b'{"ttlSeconds": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
            "the body: Object contains unknown field `ttlSeconds`",
        ),
    ],
    ids=["a name that is no UTF-8", "nested"],
)
def test_a_body_that_no_parser_reads_is_refused(secured: Secured, body: bytes, detail: str) -> None:
    """As any other body that is not what it should be: it says nothing of the service."""
    with secured.client("all") as client:
        answer = client.request("POST", "/v1/leases", content=body)
        assert (answer.status_code, answer.json()["detail"]) == (400, detail)


def _flight_calls() -> dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]]:
    """By the operation's name in the list, how a client asks for it."""

    def get(ticket: dict[str, Any]) -> Callable[..., object]:
        return lambda client, options: client.do_get(flight.Ticket(json.dumps(ticket).encode()), options).read_all()

    def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        writer, _ = client.do_put(
            flight.FlightDescriptor.for_command(b"{}"), pa.schema([("content", pa.binary())]), options
        )
        writer.close()

    def act(name: str) -> Callable[..., object]:
        return lambda client, options: list(client.do_action(flight.Action(name, b"{}"), options))

    named = flight.FlightDescriptor.for_path("queues")
    return {
        "DoPut": put,
        "DoGet of contents": get({"kind": "get", "handles": [SOME_ID]}),
        **{f"DoGet of the table {name}": get({"kind": "table", "name": name}) for name in SCHEMAS},
        **{f"action {each.name}": act(each.name) for each in ACTIONS},
        "ListFlights": lambda client, options: list(client.list_flights(b"", options)),
        "GetFlightInfo": lambda client, options: client.get_flight_info(named, options),
        "GetSchema": lambda client, options: client.get_schema(named, options),
    }


@pytest.mark.parametrize("need", _of("Flight"), ids=lambda each: each.operation)
def test_an_operation_over_flight_needs_its_rights(secured: Secured, need: Need) -> None:
    """UNAUTHENTICATED without a token, `forbidden` with all rights but one of its own, not so with its own alone."""
    call = _flight_calls()[need.operation]

    def slug(token: str) -> str:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        try:
            call(client, flight.FlightCallOptions(headers=headers, timeout=30))
        except (flight.FlightError, OSError) as error:  # GetSchema's is one of the latter, with the text alone
            found = re.search(r"(?:message: |^)([a-z-]+): ", str(error))
            return found.group(1) if found else str(error)
        return ""

    with flight.FlightClient(secured.url("flight"), tls_root_certs=Path(secured.ca_file).read_bytes()) as client:
        assert slug("") == slug("ullage_nobody") == "unauthenticated"
        refused = [slug(secured.tokens[f"but {right}"]) for right in need.rights or ()]
        assert refused == ["forbidden"] * len(need.rights or ())
        assert slug(secured.tokens[secured.only(need.rights)]) not in ("forbidden", "unauthenticated")


@pytest.mark.parametrize("need", _of("socket"), ids=lambda each: each.operation)
def test_a_request_over_the_socket_needs_its_rights(secured: Secured, need: Need) -> None:
    """A problem for the greeting without a token that is known; `forbidden` and then as over HTTP."""

    def slug(token: str) -> str:
        """Of the problem that answers the greeting, or else the request, which is empty; "" if none does."""
        try:
            with closing(Reader(secured.socket, token.encode(), ("127.0.0.1", secured.ca_file))) as reader:
                kind, _, table = need.operation.partition(" ")
                reader.tell(FrameKind[kind], 2, json.dumps({"kind": "table", "name": table}).encode() if table else b"")
                reader.hear()
        except Refusal as refusal:
            return str(refusal)
        return ""

    assert slug("ullage_nobody") == "unauthenticated"
    refused = [slug(secured.tokens[f"but {right}"]) for right in need.rights or ()]
    assert refused == ["forbidden"] * len(need.rights or ())
    assert slug(secured.tokens[secured.only(need.rights)]) not in ("forbidden", "unauthenticated")
