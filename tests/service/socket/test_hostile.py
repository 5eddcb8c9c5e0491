"""Peers that are not trusted, and peers that do not keep to the protocol."""

import os
import random
import socket
import struct
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.service.running import terms_of
from tests.service.socket.node import Node
from tests.service.socket.reader import Reader, Refusal
from tests.support import Workshop
from ullage.client.socket import SocketClient
from ullage.embedded.repository import EmbeddedRepository
from ullage.errors import Forbidden, ServiceBusy, UllageError, Unauthenticated
from ullage.wire import frames
from ullage.wire.frames import BadFrame, FrameKind
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.limits import Limits
from ullage_agent.service.socket.peers import peer_of
from ullage_agent.service.socket.server import SocketServer
from ullage_agent.service.tokens import TokenFile, line_of, new_token

GREETING = struct.pack("<IBBH", 16, 1, 0, 0) + b"ULLAGE\0\0" + struct.pack("<HHI", 1, 1, 0)

PARSERS = (
    frames.parse_hello,
    frames.parse_welcome,
    frames.parse_uuids,
    frames.parse_claims,
    frames.parse_files,
    frames.parse_numbers,
    lambda body: list(frames.parse_places(body)),
    lambda body: frames.parse_put(body, has_content=True),
    lambda body: frames.parse_put(body, has_content=False),
    frames.parse_problem,
    frames.parse_read,
    frames.parse_content,
)


def connect(node: Node) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(node.path)
    return connection


def ends(connection: socket.socket) -> bool:
    """Whether the server ends the connection, whatever it says before."""
    try:
        while connection.recv(1 << 16):
            continue
    except ConnectionResetError:
        return True
    return True


@given(body=st.binary(max_size=200))
@settings(max_examples=300)
def test_parsers_take_any_bytes(body: bytes) -> None:
    """Each body is understood, or refused as a bad frame: nothing else is raised."""
    for parse in PARSERS:
        try:
            parse(body)
        except BadFrame:
            continue  # as it should


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_leave_nothing_behind(node: Node, data: st.DataObject) -> None:
    """Frames of any kind with any body, and bytes that are no frames: the node serves on, and holds nothing."""
    kinds = st.sampled_from([*range(1, 11), 128, 129, 133, 134, 255, 0, 77])
    frame = st.builds(
        lambda kind, body, number: struct.pack("<IBBH", len(body), kind, 0, number) + body,
        kinds,
        st.binary(max_size=100),
        st.integers(0, 3),
    )
    sent = data.draw(st.lists(st.one_of(frame, st.binary(max_size=40)), max_size=6))
    connection = connect(node)
    try:
        connection.sendall((GREETING if data.draw(st.booleans()) else b"") + b"".join(sent))
        connection.shutdown(socket.SHUT_WR)
        ends(connection)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the node had enough
    finally:
        connection.close()

    assert node.server.wait_for(0, 20)
    assert node.repository.leases.all() == []
    assert node.failures == []


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<IBBH", 0xFFFFFFFF, 2, 0, 1),
        struct.pack("<IBBH", (4 << 20) + 1, 5, 0, 1),
        struct.pack("<IBBH", 0, 99, 0, 1),
        struct.pack("<IBBH", 0, 2, 1, 1),
        struct.pack("<IBBH", 15, 2, 0, 1) + bytes(15),
        struct.pack("<IBBH", 0, 130, 0, 1),
        struct.pack("<IBBH", 20, 5, 0, 1) + struct.pack("<QIIHBB", 0, 0xFFFFFFFF, 0, 0, 0, 0),
    ],
    ids=["length", "too-long", "kind", "reserved", "half-uuid", "an-answer", "count"],
)
def test_what_is_no_frame_ends_the_connection(node: Node, sent: bytes) -> None:
    """With a PROBLEM that says why; nothing of the announced length is allocated or waited for."""
    reader = Reader(node.path)
    reader.socket.sendall(sent)

    with pytest.raises(Refusal, match="invalid-argument"):
        reader.hear()
    assert ends(reader.socket)
    reader.close()


def test_before_the_greeting_nothing_large_is_taken(node: Node) -> None:
    """A stranger can make the node hold a token's worth of bytes, no more."""
    connection = connect(node)
    connection.sendall(struct.pack("<IBBH", 1 << 20, 1, 0, 0))

    assert ends(connection)
    connection.close()


def test_a_client_of_another_version_is_told(node: Node) -> None:
    """The versions the node speaks stand in the refusal."""
    connection = connect(node)
    connection.sendall(struct.pack("<IBBH", 16, 1, 0, 0) + b"ULLAGE\0\0" + struct.pack("<HHI", 2, 9, 0))

    answer = connection.recv(1 << 16)
    assert answer[4] == FrameKind.PROBLEM
    assert b"invalid-argument" in answer
    connection.close()


def test_a_half_closed_connection_is_over(node: Node) -> None:
    """A client that will ask no more holds no more: its lease ends, and it sees the end of the stream."""
    (uuid,) = node.put(b"content")
    reader = Reader(node.path)
    assert reader.read(uuid) == b"content"

    reader.socket.shutdown(socket.SHUT_WR)

    assert ends(reader.socket)
    assert node.server.wait_for(0, 10)
    assert node.repository.leases.all() == []
    reader.close()


def test_a_frame_that_never_ends_is_given_up(workshop: Workshop, short_path: Path) -> None:
    """Whoever stalls inside a frame, or before the greeting, loses the connection."""
    node = Node(workshop, short_path, Limits(stall_seconds=1.0))
    silent, stalling = connect(node), connect(node)
    stalling.sendall(GREETING + struct.pack("<IBBH", 16, 2, 0, 1) + bytes(3))

    assert ends(silent)
    assert ends(stalling)
    silent.close()
    stalling.close()
    node.server.stop()


def test_one_connection_too_many_is_turned_away(workshop: Workshop, short_path: Path) -> None:
    """With a refusal that says to come again; when one has left there is room."""
    node = Node(workshop, short_path, Limits(socket_connections=2, stall_seconds=5))
    (uuid,) = node.put(b"content")
    first, second = Reader(node.path), Reader(node.path)

    with SocketClient(node.path) as client:
        with pytest.raises(ServiceBusy) as refused:
            client.read_all([uuid])
        assert refused.value.retry_after_seconds
        first.close()
        assert node.server.wait_for(1, 10)
        assert client.read_all([uuid]) == [b"content"]
    second.close()
    node.server.stop()


def test_strangers_who_say_nothing_keep_nobody_out(workshop: Workshop, short_path: Path) -> None:
    """The one that is silent longest gives its place to who has something to say; who was greeted keeps theirs."""
    node = Node(workshop, short_path, Limits(socket_connections=3))
    (uuid,) = node.put(b"content")
    greeted = Reader(node.path)
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connect(node))) for _ in range(6)]

        with SocketClient(node.path) as client:
            assert client.read_all([uuid]) == [b"content"]
            assert all(ends(connection) for connection in silent[:5])
            assert greeted.read(uuid) == b"content"
    greeted.close()
    node.server.stop()


def test_every_user_needs_a_token_and_its_rights(workshop: Workshop, short_path: Path) -> None:
    """No token, an unknown one, one with the other right: refused, to the agent's user too; the right one served."""
    tokens = {}
    with open(short_path / "tokens", "w", encoding="utf-8") as file:
        for name, right in (("reads", "content:get"), ("writes", "content:create")):
            tokens[name], digest = new_token()
            file.write(line_of(name, (right,), None, digest))
    node = Node(workshop, short_path, None, TokenFile(str(short_path / "tokens"), workshop.clock))
    (uuid,) = node.put(b"content")

    for token, error in ((None, Unauthenticated), ("nonsense", Unauthenticated), (tokens["writes"], Forbidden)):
        with SocketClient(node.path, token) as client, pytest.raises(error):
            client.read_all([uuid])
    with SocketClient(node.path, tokens["reads"]) as client:
        assert client.read_all([uuid]) == [b"content"]
        with pytest.raises(Forbidden):
            client.put_many([b"x"])
        with pytest.raises(Forbidden):
            client.put_stream([b"x"])
        assert client.read_all([uuid]) == [b"content"]
    assert all(token not in str(failure) for failure in node.failures for token in tokens.values())
    node.server.stop()


def test_the_kernel_says_who_the_peer_is() -> None:
    """Process and user come from the kernel."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        peer = peer_of(one)

    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.geteuid(), os.getegid())


def test_a_path_that_is_taken_is_not_taken_over(node: Node, short_path: Path, workshop: Workshop) -> None:
    """A file stays a file, a living server keeps its socket; what a killed one left is replaced."""
    file = short_path / "file"
    file.write_text("precious")

    def start(path: str) -> SocketServer:
        return SocketServer(terms_of(EmbeddedRepository(node.repository), node.failures, socket_path=path))

    with pytest.raises(CannotListen, match="no socket"):
        start(str(file))
    with pytest.raises(CannotListen, match="another process"):
        start(node.path)
    with pytest.raises(CannotListen, match="longer"):
        start(str(short_path / ("x" * 120)))
    path = str(short_path / "left")
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(path)
    left.close()
    server = start(path)
    with SocketClient(path) as client:
        assert client.resolve([bytes(16)])[0].slug == "no-such-handle"
    server.stop()

    assert file.read_text() == "precious"


def test_a_server_that_speaks_nonsense_is_left(short_path: Path) -> None:
    """The client discards what is no frame, and any descriptors that came with it."""
    chooser = random.Random(5)
    path = str(short_path / "fake")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        client = SocketClient(path, timeout_seconds=5)
        nonsense = chooser.randbytes(chooser.randint(0, 60))
        welcome = struct.pack("<IBBH8sHHIIII", 28, 128, 0, 0, b"ULLAGE\0\0", 1, 0, 1 << 22, 10, 10, 10)
        answer = welcome + nonsense if chooser.random() < 0.5 else nonsense

        def serve(answer: bytes = answer) -> None:
            accepted, _ = listener.accept()
            accepted.recv(1 << 16)
            socket.send_fds(accepted, [answer or b"x"], [0, 0])
            accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UllageError):
            client.resolve([bytes(16)])
        client.close()
        thread.join()
    listener.close()

    assert len(os.listdir("/proc/self/fd")) <= before
