"""Who asks who holds what is told of everything, whichever way it came to be held, with whose it is and until when."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import ullage
from tests.service.running import until
from tests.service.secured import Secured
from tests.service.test_holdings import Flight
from ullage import HolderKind
from ullage.contract import QueueRule
from ullage.uuids import format_uuid, new_uuids
from ullage.wire.holders import HolderStatus

MINUTE = 60_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    rules = (QueueRule(prefix="secret", read=("alice",), write=("alice",), delete=("alice",)),)
    made = Secured(tmp_path_factory.mktemp("secured"), auth={"queues": rules})
    for name in ("alice", "bob"):
        made.admit(name, "writer")
    made.admit("inspector", "inspector")
    with made.running:
        yield made


@contextmanager
def puts(client: Flight, content: bytes, **command: Any) -> Iterator[None]:
    """Meanwhile a stream of contents goes on, with one stored."""
    schema = pa.schema([("content", pa.binary())])
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, metadata = client.client.do_put(descriptor, schema, client.options)
    writer.write_batch(pa.record_batch([pa.array([content], pa.binary())], schema=schema))
    assert metadata.read() is not None
    yield
    writer.close()


def held_by(secured: Secured, token: str = "inspector") -> dict[tuple[str, str], list[HolderStatus]]:
    """What an inspector sees, by principal and kind."""
    with ullage.connect(secured.url(), token=secured.tokens[token], ca_file=secured.ca_file) as repository:
        holders = repository.holders()
    found: dict[tuple[str, str], list[HolderStatus]] = {}
    for each in holders:
        found.setdefault((each.principal, each.kind), []).append(each)
    return found


def one(secured: Secured, principal: str, kind: HolderKind) -> HolderStatus:
    [found] = held_by(secured)[principal, kind]
    now = time.time() * 1000
    assert found.since_millis is not None
    assert now - MINUTE < found.since_millis <= now
    if kind != HolderKind.UPLOAD:
        assert found.until_millis is not None
        assert found.until_millis > now
    return found


def test_a_lease_names_its_owner_its_purpose_and_its_bytes(secured: Secured) -> None:
    """Of named resource claims; on all that lives there are none to be told."""
    with ullage.connect(secured.url(), token=secured.tokens["alice"], ca_file=secured.ca_file) as repository:
        repository.handles.put(b"x" * 5_000)
        everything = repository.leases.acquire(MINUTE, purpose="nightly copy")
        found = one(secured, "alice", HolderKind.LEASE)
        assert (found.id, found.about, found.bytes) == (everything.id, "nightly copy", None)
        repository.leases.release(everything.id)
        resource = next(iter(repository.reclamation.resources()))
        some = repository.leases.acquire(MINUTE, [resource.resource])
        found = one(secured, "alice", HolderKind.LEASE)
        assert (found.id, found.bytes) == (some.id, 5_000)
        repository.leases.release(some.id)
    assert ("alice", "Lease") not in held_by(secured)


def test_a_session_tells_what_it_took(secured: Secured) -> None:
    """The FlowFiles with their bytes, until its visibility time is over; nothing once it has ended."""
    with ullage.connect(secured.url(), token=secured.tokens["bob"], ca_file=secured.ca_file) as repository:
        repository.queues.put_many("in", [b"12345", b"678"])
        with repository.session("pump") as session:
            session.get_many("in")
            found = one(secured, "bob", HolderKind.SESSION)
            assert (found.about, found.flow_files, found.bytes) == ("pump", 2, 8)
    assert ("bob", "Session") not in held_by(secured)


def test_staged_writes_streams_snapshots_and_events_tell_whose_they_are(secured: Secured) -> None:
    """All that is taken over Flight. A queue is named to who may read it."""
    alice = Flight(secured, "alice")
    write, attempt = (format_uuid(each) for each in new_uuids(2))
    alice.act("write-begin", write=write, queue="secret", lasts_millis=MINUTE)
    with puts(alice, b"7 bytes", write=write, attempt=attempt):
        found = one(secured, "alice", HolderKind.UPLOAD)
        assert (found.about, found.until_millis) == ("DoPut", None)
        assert found.bytes is not None
        assert found.bytes >= 7
    until(lambda: ("alice", "Upload") not in held_by(secured), "the end of the stream")
    found = one(secured, "alice", HolderKind.STAGED_WRITE)
    assert (found.id, found.flow_files, found.bytes, found.about) == (write, 1, 7, "open, for a queue")

    with ullage.connect(secured.url(), token=secured.tokens["alice"], ca_file=secured.ca_file) as repository:
        repository.queues.put_many("orders", [b"123", b"4567"])
    alice.act("feed-take", stream="nightly", queue="orders", after=0, count=2, lasts_millis=MINUTE)
    found = one(secured, "alice", HolderKind.STREAM)
    assert (found.id, found.flow_files, found.bytes, found.about) == ("nightly", 2, 7, "taken of queue orders")

    taken = alice.act("snapshot", ttl_millis=MINUTE)
    assert one(secured, "alice", HolderKind.SNAPSHOT).id == taken["id"]

    alice.act("hold-events", holder="follower", after=3, lasts_millis=MINUTE)
    began = one(secured, "alice", HolderKind.EVENTS).since_millis
    alice.act("hold-events", holder="follower", after=5, lasts_millis=2 * MINUTE)
    found = one(secured, "alice", HolderKind.EVENTS)
    assert (found.id, found.about, found.since_millis) == ("follower", "events after 5", began)

    alice.act("write-abort", write=write)
    alice.act("release", id=taken["id"])
    alice.act("hold-events", holder="follower", after=5, lasts_millis=0)
    alice.act("feed-done", stream="nightly", queue="orders", through=1 << 60)
    assert not [kind for principal, kind in held_by(secured) if principal == "alice"]


def test_an_upload_that_is_under_way_is_told_with_what_has_come(secured: Secured) -> None:
    """Until the request ends, however it does."""
    context = ssl.create_default_context(cafile=secured.ca_file)
    address = secured.url().removeprefix("https://").split(":")
    head = f"POST /v1/handles HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secured.tokens['bob']}\r\n"
    with (
        socket.create_connection((address[0], int(address[1]))) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as sending,
    ):
        sending.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b"x" * 10)
        until(lambda: [each.bytes for each in held_by(secured).get(("bob", "Upload"), [])] == [10], "the upload")
        assert one(secured, "bob", HolderKind.UPLOAD).about == "putHandle"
    until(lambda: ("bob", "Upload") not in held_by(secured), "the end of the upload")


def test_it_is_told_to_nobody_without_the_right(secured: Secured) -> None:
    """Who reads and writes content need not know who else does."""
    with secured.client("bob") as client:
        assert client.get("/v1/holders").status_code == 403
    with secured.client("inspector") as client:
        assert client.get("/v1/holders").status_code == 200
        assert client.get("/v1/handles").status_code == 403
        assert msgspec.json.decode(client.get("/v1/holders").content, type=list[HolderStatus]) is not None
