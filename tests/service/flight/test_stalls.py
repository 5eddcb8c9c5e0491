"""Clients that neither send nor take anything: each would keep one of few places as long as its connection stands."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.service.flight import raw
from tests.service.flight.peer import MB, Peer
from tests.service.running import until
from tests.support import Workshop
from ullage_agent.service.limits import Limits

LIMITS = Limits(stall_seconds=5.0, stream_pause_seconds=50.0, flight_calls=1, flight_controls=1)
READING = ("DoPut", "DoGet", "DoAction", "GetFlightInfo", "GetSchema")
ONE = raw.contents_of([b"content"])


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(workshop.make(), limits=LIMITS) as made:
        yield made


class Slow:
    """A call whose messages come when the test says so."""

    def __init__(self, sent: raw.Raw, method: str, *messages: bytes) -> None:
        self.over = threading.Event()
        channel: Any = sent._channel
        stream = channel.stream_stream(raw.SERVICE + method)
        self.call = stream(self._sent(messages), metadata=sent._metadata, timeout=60)

    def _sent(self, messages: tuple[bytes, ...]) -> Iterator[bytes]:
        yield from messages
        self.over.wait(60)

    def status(self) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError):
            list(self.call)
        self.over.set()
        found: grpc.StatusCode = self.call.code()
        return found


def asked(sent: raw.Raw, beside: str) -> raw.Answer:
    """Another call, of the kind that waits for a place beside one of this method."""
    if beside in ("DoPut", "DoGet"):
        return sent.call("DoGet", raw.ticket(b'{"kind": "table", "name": "queues"}'))
    return sent.call("ListFlights")


def waiting(peer: Peer, *, is_sending: bool = False) -> bool:
    """Whether a call is at work, and it is its client's turn."""
    waits = [call._wait for call in tuple(peer.flight._stalls._calls)]
    return any(wait is not None and wait.is_sending == is_sending for wait in waits)


@pytest.mark.parametrize("method", READING)
def test_a_call_without_a_message_is_given_up(peer: Peer, workshop: Workshop, method: str) -> None:
    """After as long as a body over HTTP has; then its place is somebody else's."""
    with raw.raw(peer.server.url) as sent:
        slow = Slow(sent, method)
        until(lambda: waiting(peer), "the call to be at work")
        workshop.clock.advance(4)
        peer.flight.look()
        assert asked(sent, method).slug == "busy"

        workshop.clock.advance(2)
        peer.flight.look()

        assert slow.status() == grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: asked(sent, method).status == grpc.StatusCode.OK, "its place to be free")


def test_a_stream_that_stands_still_is_given_up(peer: Peer, workshop: Workshop) -> None:
    """Later than one that never began: programs work out what they write. What was stored stays."""
    with raw.raw(peer.server.url) as sent:
        first = raw.descriptor(b"{}") + raw.schema_message(ONE.schema)
        slow = Slow(sent, "DoPut", first, raw.batch_message(ONE))
        assert next(slow.call)
        until(lambda: waiting(peer), "the next batch to be waited for")
        workshop.clock.advance(40)
        peer.flight.look()
        assert asked(sent, "DoPut").slug == "busy"

        workshop.clock.advance(20)
        peer.flight.look()

        assert slow.status() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert sum(1 for _ in peer.repository.ledger.flow_files()) == 1


def test_a_reader_that_takes_nothing_is_given_up(peer: Peer, workshop: Workshop) -> None:
    """Nothing can be told to it, as it takes nothing: its call is cancelled."""
    ids = [peer.put({"content": [bytes(4 * MB)]})[0][0].hex() for _ in range(8)]
    wanted = ", ".join(f'"{id}"' for id in ids)
    with raw.raw(peer.server.url) as sent:
        channel: Any = sent._channel
        ticket = raw.ticket(f'{{"kind": "get", "handles": [{wanted}]}}'.encode())
        call = channel.stream_stream(raw.SERVICE + "DoGet")(iter([ticket]), timeout=60)
        until(lambda: waiting(peer, is_sending=True), "the window to be full")

        def given_up() -> bool:
            workshop.clock.advance(60)
            peer.flight.look()
            return not peer.flight._stalls._calls

        until(given_up, "the call to be given up")
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() == grpc.StatusCode.CANCELLED


def test_the_server_looks_by_itself(workshop: Workshop) -> None:
    """Nobody has to ask."""
    peer = Peer(workshop.make(), limits=Limits(stall_seconds=0.0))
    with raw.raw(peer.server.url) as sent:
        assert Slow(sent, "DoPut").status() == grpc.StatusCode.DEADLINE_EXCEEDED
    peer.close()


def test_streams_take_no_place_of_who_asks_how_the_node_is(peer: Peer) -> None:
    """Nor those who ask a place of a stream: each has as many as there are."""
    # The stream has a connection of its own: of one with two calls under way a third would wait at its client.
    with raw.raw(peer.server.url) as sent, raw.raw(peer.server.url) as sending:
        writing = Slow(sending, "DoPut")
        until(lambda: waiting(peer), "the stream to be at work")
        assert asked(sent, "DoPut").slug == "busy"
        assert sent.call("DoAction", raw.action("about", b"{}")).status == grpc.StatusCode.OK

        asking = Slow(sent, "DoAction")
        until(lambda: sent.call("ListFlights").slug == "busy", "the action to be at work")
        writing.over.set()
        until(lambda: asked(sent, "DoGet").status == grpc.StatusCode.OK, "a stream to have the place of the other")
        asking.over.set()
