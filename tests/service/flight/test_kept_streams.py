"""Puts over a stream that stays open: each batch with a command of its own is an operation by itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.service.flight import raw
from tests.service.flight.peer import Peer
from tests.service.running import until
from tests.service.secured import Secured
from tests.support import Workshop
from ullage.client import puts
from ullage.client.flight import FlightClient
from ullage.embedded.acting import LOCAL
from ullage.enums import HolderKind
from ullage.errors import InvalidArgument, NotReachable, UllageError
from ullage.uuids import parse_uuid
from ullage_agent.service.audit import lines_of

CONTENTS = pa.schema([pa.field("content", pa.binary(), nullable=False)])
GOING_ON = pa.schema([*CONTENTS, pa.field("continues", pa.bool_())])

WHOLE = {"content": [b"x"], "continues": [False]}
BEGUN = {"content": [b"x"], "continues": [True]}


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(workshop.make()) as made:
        yield made


@pytest.fixture
def client(peer: Peer) -> Iterator[FlightClient]:
    with FlightClient(peer.server.url) as made:
        yield made


def streams(peer: Peer) -> int:
    return sum(each.kind is HolderKind.UPLOAD for each in peer.embedded.held.all(LOCAL))


def put_all(client: Any, schema: pa.Schema, options: Any, *batches: tuple[dict[str, Any], Any]) -> list[list[bytes]]:
    """The uuids of each batch that came with its command, None for none."""
    writer, told = client.do_put(flight.FlightDescriptor.for_command(b"{}"), schema, options)
    found = []
    with writer:
        for columns, command in batches:
            batch = pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
            if command is None:
                writer.write_batch(batch)
            else:
                body = command if isinstance(command, bytes) else json.dumps(command).encode()
                writer.write_with_metadata(batch, body)
            answer = told.read().to_pybytes()
            found.append([answer[at : at + 16] for at in range(4, len(answer), 16)])
    return found


def test_each_batch_has_the_key_and_the_ttl_of_its_own_command(peer: Peer) -> None:
    """A key that comes again in the same stream answers what it stored; the next batch is the stream's again."""
    one, two, plain = {"content": [b"one"]}, {"content": [b"two"]}, {"content": [b"plain"]}
    found = put_all(
        peer.client,
        CONTENTS,
        flight.FlightCallOptions(),
        (one, {"key": "a", "ttl_millis": 60_000}),
        (two, {"key": "b"}),
        (one, {"key": "a", "ttl_millis": 60_000}),
        (plain, None),
    )

    assert found[0] == found[2]
    assert len({uuid for uuids in found for uuid in uuids}) == 3
    heads = [peer.repository.handles.head(uuids[0].hex()) for uuids in found]
    soon = peer.repository.clock.now_millis() + 60_000
    assert [head.expires_millis for head in heads] == [soon, 0, soon, 0]


@pytest.mark.parametrize(
    "batches",
    [
        [(BEGUN, {"key": "k"})],
        [(BEGUN, None), (WHOLE, {})],
        [(WHOLE, {"write": str(uuid4()), "attempt": str(uuid4())})],
        [(WHOLE, b"\xff")],
        [(WHOLE, {"ttl_millis": -1})],
    ],
)
def test_a_command_that_a_batch_cannot_have_is_refused(peer: Peer, batches: list[tuple[dict[str, Any], Any]]) -> None:
    """Nothing of the batch is stored, nor of a content that it would have ended."""
    with pytest.raises(flight.FlightError) as refused:
        put_all(peer.client, GOING_ON, flight.FlightCallOptions(), *batches)
    assert json.loads(refused.value.extra_info)["slug"] == "invalid-argument"
    assert list(peer.repository.ledger.flow_files()) == []


def test_puts_one_after_the_other_share_a_stream_that_ends_by_itself(
    peer: Peer, client: FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is kept it is found again, whatever the terms of the puts are; then the node's place is free."""
    monkeypatch.setattr(puts, "KEPT_SECONDS", 600.0)
    stored = [*client.put([b"a", b"b"]), *client.put([b"c"], ttl_millis=60_000), *client.put([b"d"], key="k")]
    assert stored[-1:] == client.put([b"d"], key="k")
    assert streams(peer) == 1
    assert client.get_many([uuid.hex() for uuid in stored]) == [b"a", b"b", b"c", b"d"]

    monkeypatch.setattr(puts, "KEPT_SECONDS", 0.0)
    client.put([b"e"], [{"kind": "e"}])  # with attributes: another stream
    client.put([b"f"])
    until(lambda: streams(peer) == 0, "no stream waits any more")


def test_a_stream_takes_no_put_once_it_is_old(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a token may do is looked at when a stream begins."""
    monkeypatch.setattr(puts, "KEPT_SECONDS", 600.0)
    monkeypatch.setattr(puts, "AGE_SECONDS_MAX", -1.0)
    with FlightClient(peer.server.url) as client:
        for _ in range(3):
            client.put([b"x"])
            until(lambda: streams(peer) == 0, "the stream has ended")


def test_a_put_that_fails_says_why_and_the_next_one_is_stored(client: FlightClient) -> None:
    """The stream of the one that failed takes no other."""
    client.put([b"x"], key="k")
    with pytest.raises(InvalidArgument, match="ttl_millis"):
        client.put([b"x"], ttl_millis=-1)
    with pytest.raises(UllageError, match="idempotency key"):
        client.put([b"something else"], key="k")
    (uuid,) = client.put([b"y"])
    assert client.get_many([uuid.hex()]) == [b"y"]


def test_a_node_that_answers_something_else_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, client: FlightClient
) -> None:
    """Neither is its stream."""
    client.put([b"x"])
    with monkeypatch.context() as patched:
        patched.setattr(puts, "parse_stored", lambda body: [body[:15]])
        with pytest.raises(NotReachable, match="something else than uuids"):
            client.put([b"x"])
    client.put([b"x"])


def test_each_put_leaves_its_own_line_in_the_audit_log(tmp_path: Path) -> None:
    """With its ids, bytes and command, or why it was refused; the stream itself leaves one if it did something too."""
    secured = Secured(tmp_path)
    with secured.running:
        token = secured.tokens["all"]
        with FlightClient(secured.url("flight"), token, ca_file=secured.ca_file) as client:
            one, two = client.put([b"12345"]), client.put([b"123"], key="k")
            with pytest.raises(InvalidArgument):
                client.put([b"1"], ttl_millis=-1)
            three = client.put([b""])
    lines = list(lines_of(secured.running.document.spec.storage.host_path.path))
    found = [(line.allowed, line.bytes, [parse_uuid(id) for id in line.ids]) for line in lines]
    assert found == [(True, 5, one), (True, 3, two), (False, 0, []), (True, 0, three)]
    assert '"key":"k"' in lines[1].about
    assert "ttl_millis" in lines[2].why


def test_hostile_metadata_is_refused_and_stores_nothing(peer: Peer) -> None:
    """Bytes of any kind and length where a batch's own command stands."""
    content = raw.contents_of([b"x"])
    schema, batch = raw.schema_message(content.schema), raw.batch_message(content)
    with raw.raw(peer.server.url) as somebody:
        long = b'{"key":"' + b"k" * 201 + b'"}'
        for body in (b"\x00" * 100_000, b"[" * 100_000, b"null", b'"x"', b"{}{}", b'{"key":1}', long):
            answer = somebody.put(schema, raw.field(3, body) + batch)
            is_long = len(body) > 65_536
            assert (answer.slug, answer.messages) == ("request-too-large" if is_long else "invalid-argument", [])
            assert ("at most 65536" in answer.details) == is_long
    assert list(peer.repository.ledger.flow_files()) == []
