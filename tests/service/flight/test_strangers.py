"""Connections that show no token: they lose their places to who comes next, and nobody who has made a call does."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.certificates import Authority
from tests.service.flight import raw
from tests.service.flight.test_stalls import Slow
from tests.service.running import terms_of, until
from tests.service.secured import known
from tests.support import Workshop
from ullage.client.retries import Retries
from ullage.embedded.repository import EmbeddedRepository
from ullage_agent.service.addresses import bare
from ullage_agent.service.flight.calls import FlightCall
from ullage_agent.service.flight.listener import FlightListener
from ullage_agent.service.flight.places import LOOK_SECONDS, QUIET_SECONDS, AcceptedSockets, KnownPeers, pause_after
from ullage_agent.service.flight.strangers import FarEnd, Stander, Strangers, crowding
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import TlsFiles
from ullage_agent.service.tokens import TokenFile

PLACES = 64
MANY = 2 * PLACES
NEVER = 3_600.0
LIMITS = Limits(flight_connections=PLACES, handshake_seconds=NEVER)
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""As HTTP/2 has it, with settings that change nothing."""

ONE = raw.contents_of([b"content"])
SOON: Any = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]


class Flooded:
    """A listener that asks for tokens, and a thread that keeps more connections to it than there may be."""

    def __init__(self, workshop: Workshop, path: Path, *, encrypted: bool = False, limits: Limits = LIMITS) -> None:
        self.tokens = known(path / "tokens", "good", "greedy")
        self.gone: list[int] = []
        self.ca, files = None, None
        if encrypted:
            authority = Authority(path / "authority")
            authority.issue(path / "tls")
            self.ca = authority.certificate.read_bytes()
            files = TlsFiles(str(path / "tls" / "tls.crt"), str(path / "tls" / "tls.key"))
        repository = EmbeddedRepository(workshop.make(), node="here")
        authenticator = TokenFile(str(path / "tokens"), workshop.clock)
        terms = terms_of(repository, [], authenticator, limits, tls=files)
        self.listener = FlightListener(terms._replace(on_strangers=self.gone.append))
        self.port = int(self.listener.url.rpartition(":")[2])
        self._greeting = b"" if encrypted else GREETING
        self._over = threading.Event()
        self._flood = threading.Thread(target=self._come_again)

    @contextmanager
    def running(self) -> Iterator["Flooded"]:
        try:
            yield self
        finally:
            self._over.set()
            if self._flood.is_alive():
                self._flood.join()
            self.listener.stop()

    def flood(self) -> None:
        """From now on; returns when the first had to go."""
        self._flood.start()
        until(lambda: sum(self.gone) > PLACES, "strangers to lose their places")

    def stranger(self) -> socket.socket:
        """A connection that says no more than a greeting."""
        found = socket.create_connection(("127.0.0.1", self.port))
        found.sendall(self._greeting)
        found.setblocking(False)
        return found

    def channel(self) -> grpc.Channel:
        """One that nobody else uses, and that connects again at once when it was turned away."""
        options = [*SOON, ("grpc.use_local_subchannel_pool", 1)]
        if self.ca is None:
            return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        return grpc.secure_channel(f"127.0.0.1:{self.port}", grpc.ssl_channel_credentials(self.ca), options=options)

    def asked(self, channel: grpc.Channel, who: str = "good") -> grpc.StatusCode:
        """What the answer to a call is."""
        return raw.Raw(channel, self.tokens[who]).call("ListFlights", wait_for_ready=True).status

    def lets_in(self, channel: grpc.Channel) -> bool:
        """Whether a call is answered within as many tries as a client makes: on a busy machine more strangers may come
        between a connection and its first call than may stand.
        """
        return any(self.asked(channel) == grpc.StatusCode.OK for _ in range(Retries().attempts))

    def _come_again(self) -> None:
        standing = [self.stranger() for _ in range(MANY)]
        while not self._over.wait(0.01):
            for number, each in enumerate(standing):
                with suppress(BlockingIOError):  # it stands, and nothing has come
                    if is_over(each):
                        each.close()
                        standing[number] = self.stranger()
        for each in standing:
            each.close()


def is_over(connection: socket.socket) -> bool:
    """Whether the other side has ended it. BlockingIOError if not, and nothing has come."""
    try:
        return connection.recv(4096) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_who_has_a_token_gets_in_while_strangers_come_again_and_again(
    workshop: Workshop, tmp_path: Path, encrypted: bool
) -> None:
    """Twice as many as there may be, that speak HTTP/2 or begin no handshake, from the client's own address; and those
    who have made a call before keep their connections, also while they stand and long after.
    """
    with Flooded(workshop, tmp_path, encrypted=encrypted).running() as node, node.channel() as early:
        first = raw.descriptor(b"{}") + raw.schema_message(ONE.schema)
        putting = Slow(raw.Raw(early, node.tokens["good"]), "DoPut", first)
        until(lambda: len(node.listener.flight.known.all()) == 1, "the call to be admitted")
        states: list[grpc.ChannelConnectivity] = []
        early.subscribe(states.append)
        (peer,) = node.listener.flight.known.all()
        node.flood()

        for _ in range(5):
            with node.channel() as late:
                assert node.lets_in(late)
        assert peer in node.listener.flight.known.all()
        putting.over.set()
        assert list(putting.call) == []
        assert putting.call.code() == grpc.StatusCode.OK
        assert node.asked(early) == grpc.StatusCode.OK
        assert set(states) <= {grpc.ChannelConnectivity.READY}


def test_a_connection_without_a_call_is_ended_after_a_while(workshop: Workshop, tmp_path: Path) -> None:
    """A call with a wrong token is none; one that was admitted lets the connection stand as long as gRPC does."""
    limits = Limits(flight_call_seconds=30.0)
    with (
        Flooded(workshop, tmp_path, limits=limits).running() as node,
        node.channel() as theirs,
        node.channel() as ours,
        closing(node.stranger()) as silent,
    ):
        states: list[grpc.ChannelConnectivity] = []
        assert raw.Raw(theirs, "wrong").call("ListFlights").status == grpc.StatusCode.UNAUTHENTICATED
        assert node.asked(ours) == grpc.StatusCode.OK
        ours.subscribe(states.append)
        places = node.listener._places
        until(lambda: len(places._strangers._standing) == 3, "all three to be seen")
        workshop.clock.advance(29)
        assert not node.gone
        workshop.clock.advance(2)

        silent.settimeout(60)
        while silent.recv(4096):
            pass
        until(lambda: sum(node.gone) == 2, "the two strangers to go")
        assert node.asked(ours) == grpc.StatusCode.OK
        assert set(states) <= {grpc.ChannelConnectivity.READY}

        def ending() -> bool:
            return any(each.is_ending for each in tuple(places._strangers._standing.values()))

        until(lambda: not ending(), "gRPC to close them")


def test_a_peer_that_is_gone_is_forgotten(workshop: Workshop, tmp_path: Path) -> None:
    """Or each call of a new connection would take memory for ever."""
    with Flooded(workshop, tmp_path).running() as node:
        for _ in range(3):
            with node.channel() as channel:
                assert node.asked(channel) == grpc.StatusCode.OK
        until(lambda: not _moved_on(workshop, node).all(), "them to be forgotten")


def test_one_principal_cannot_have_all_connections(workshop: Workshop, tmp_path: Path) -> None:
    """Whoever has as many as one may is refused on the next one, which then is a stranger's; others are not."""
    limits = Limits(flight_connections=PLACES, flight_connections_each=3)
    with Flooded(workshop, tmp_path, limits=limits).running() as node, ExitStack() as stack:
        greedy = [stack.enter_context(node.channel()) for _ in range(4)]
        ours = stack.enter_context(node.channel())

        assert [node.asked(each, "greedy") for each in greedy[:3]] == [grpc.StatusCode.OK] * 3
        refused = raw.Raw(greedy[3], node.tokens["greedy"]).call("ListFlights")
        assert (refused.status, refused.slug) == (grpc.StatusCode.UNAVAILABLE, "quota-reached")
        assert "flight_connections_each" in refused.details
        assert node.asked(ours) == grpc.StatusCode.OK
        assert [node.asked(each, "greedy") for each in greedy[:3]] == [grpc.StatusCode.OK] * 3
        assert node.asked(greedy[3]) == grpc.StatusCode.OK  # a connection is whose call was admitted first
        assert node.asked(greedy[3], "greedy") == grpc.StatusCode.OK
        for each in greedy[:2]:  # of what two others leave it may have less than three
            each.close()
        until(lambda: len(_moved_on(workshop, node).all()) == 3, "they to be forgotten")
        assert node.asked(stack.enter_context(node.channel()), "greedy") == grpc.StatusCode.OK


def _moved_on(workshop: Workshop, node: Flooded) -> KnownPeers:
    workshop.clock.advance(1)
    return node.listener.flight.known


def standers(address: str, *since: float, first: int = 0) -> list[Stander]:
    return [Stander(first + at, FarEnd(address, str(first + at)), when) for at, when in enumerate(since)]


def test_those_of_the_client_with_most_go_its_first_one_before_the_others() -> None:
    """Down to an eighth of the room; all addresses of an IPv6 network are one client."""
    few = standers("10.0.0.1", 0.0, 0.0)
    many = [Stander(100 + at, FarEnd(f"2001:db8::{at:x}", "1"), 5.0 + at % 7) for at in range(20)]
    shuffled = [*few, *many]
    random.Random(1).shuffle(shuffled)

    assert crowding(shuffled, 8 * 22) == []
    going = crowding(shuffled, 8 * 5)

    assert going == sorted(many, key=lambda each: (each.since, each.descriptor))[:17]
    assert crowding(shuffled, 8 * 3)[-1] is few[0]
    assert len(crowding(shuffled, -5)) == 22


def test_of_clients_with_one_each_those_that_came_first_go() -> None:
    """Whoever comes from many addresses wins nothing by it."""
    each = [Stander(at, FarEnd(f"10.0.{at}.1", "1"), float(9 - at)) for at in range(8)]
    assert [found.since for found in crowding(each, 16)] == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_strangers_have_no_more_than_an_eighth_of_what_the_others_leave() -> None:
    """Who is known never goes, however long ago its call was; nor is one told twice to go."""
    found = {at: FarEnd("10.0.0.1", str(at)) for at in range(40)}
    members = set(list(found.values())[:20])
    strangers = Strangers(100, 30.0)

    first = strangers.leaving(found, members, 0.0)
    assert [each.descriptor for each in first.crowded] == list(range(20, 30))
    for each in first.crowded:
        each.is_ending = True
    assert strangers.leaving(found, members, 29.0) == ([], [], 0)
    later = strangers.leaving(found, members, 30.0)
    assert [each.descriptor for each in later.overdue] == list(range(30, 40))
    assert strangers.leaving(dict(list(found.items())[:20]), members, 1e9) == ([], [], 0)


def test_a_descriptor_that_is_used_again_is_another_connection() -> None:
    """Its time begins anew."""
    strangers = Strangers(8, 30.0)
    strangers.leaving({7: FarEnd("10.0.0.1", "1")}, set(), 0.0)
    assert strangers.leaving({7: FarEnd("10.0.0.1", "2")}, set(), 40.0) == ([], [], 1)
    assert [each.peer.port for each in strangers.leaving({7: FarEnd("10.0.0.1", "2")}, set(), 70.0).overdue] == ["2"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, None], ids=["IPv4", "IPv6", "IPv4 as IPv6"])
def test_only_the_connection_that_was_seen_is_ended(family: socket.AddressFamily | None, tmp_path: Path) -> None:
    """By then its descriptor may be closed, a file's, or another connection's, of this port or of another one."""
    one, other = listening(family), listening(family)
    accepted = AcceptedSockets(one.getsockname()[1])
    with one, other, dialled(one, family) as first, dialled(one, family) as second, dialled(other, family) as elsewhere:
        (seen, _), (again, _), (apart, _) = one.accept(), one.accept(), other.accept()
        seen_peer, again_peer = (
            FarEnd(bare(each.getsockname()[0]), str(each.getsockname()[1])) for each in (first, second)
        )
        descriptors = [each.fileno() for each in (one, other, first, second, seen, again, apart)]
        assert accepted.look([*descriptors, 1_000_000]) == {seen.fileno(): seen_peer, again.fileno(): again_peer}

        number = seen.fileno()
        for wrong in (again, apart):
            os.dup2(wrong.fileno(), number)
            assert not accepted.end(number, seen_peer)
        assert accepted.look([number]) == {}
        with (tmp_path / "file").open("wb") as file:
            os.dup2(file.fileno(), number)
            assert not accepted.end(number, seen_peer)
        seen.close()
        assert not accepted.end(number, seen_peer)
        assert not accepted.end(
            apart.fileno(), FarEnd(bare(elsewhere.getsockname()[0]), str(elsewhere.getsockname()[1]))
        )
        for sender, receiver in ((second, again), (elsewhere, apart)):
            sender.sendall(b"x")
            assert receiver.recv(1) == b"x"

        assert accepted.end(again.fileno(), again_peer)
        assert second.recv(1) == b""
        for each in (again, apart):
            each.close()


def listening(family: socket.AddressFamily | None) -> socket.socket:
    if family is None:
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)


def dialled(server: socket.socket, family: socket.AddressFamily | None) -> socket.socket:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    return socket.create_connection((host, server.getsockname()[1]))


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("ipv4:10.0.0.7:40312", FarEnd("10.0.0.7", "40312")),
        ("ipv6:%5B2001:db8::7%5D:40312", FarEnd("2001:db8::7", "40312")),
        ("ipv6:%5B::ffff:10.0.0.7%5D:40312", FarEnd("10.0.0.7", "40312")),
        ("ipv6:%5Bfe80::1%25eth0%5D:40312", FarEnd("fe80::1", "40312")),
    ],
)
def test_a_call_has_the_peer_of_its_connection(told: str, found: FarEnd) -> None:
    """As the kernel names it."""

    class Context:
        def peer(self) -> str:
            return told

    context: Any = Context()
    assert FlightCall(context, iter(()), lambda _: None).far_end == found


def test_looking_takes_little_of_the_processor_but_what_a_rush_needs() -> None:
    """A fiftieth; a quarter at most where the places would be taken otherwise."""
    assert pause_after(0.1, 0.0001, 0.0) == QUIET_SECONDS
    assert pause_after(0.1, 0.01, 0.0) == pytest.approx(0.5)
    assert pause_after(0.5, 0.01, 1.0) == pytest.approx(0.25)
    assert pause_after(0.5, 0.1, 100.0) == pytest.approx(0.4)
    assert pause_after(0.5, 0.01, 100.0) == LOOK_SECONDS
