"""The agent proves who it is before a client tells it a token; whoever stands between learns and holds nothing."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.service.running import until
from tests.service.secured import Secured
from tests.service.socket.false import FalseSocket, Passed, relaying, silent, terminating
from tests.service.socket.node import Node
from tests.service.socket.reader import Reader
from tests.support import Workshop
from ullage.client.proof import Identity, identity_of
from ullage.client.socket import SocketClient
from ullage.contract import Right
from ullage.errors import InvalidArgument, NotReachable, Unauthenticated
from ullage.wire.frames import TOKEN_BYTES_MAX, FrameKind
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import TlsFiles
from ullage_agent.service.tokens import TokenFile, line_of, new_token

NAME = "127.0.0.1"


class Proven(Node):
    """A node with a certificate and a token."""

    def __init__(self, workshop: Workshop, folder: Path, limits: Limits | None = None) -> None:
        self.folder = folder
        self.authority = Authority(folder / "authority")
        self.authority.issue(folder / "tls")
        self.identity = Identity(NAME, str(self.authority.certificate))
        self.token, digest = new_token()
        (folder / "tokens").write_text(line_of("flow", tuple(Right), None, digest))
        tls = TlsFiles(str(folder / "tls" / "tls.crt"), str(folder / "tls" / "tls.key"))
        super().__init__(workshop, folder, limits, TokenFile(str(folder / "tokens"), workshop.clock), tls)

    def client(self, path: str = "", token: str | None = None) -> SocketClient:
        return SocketClient(path or self.path, token or self.token, 10, identity=self.identity)


@pytest.fixture
def proven(workshop: Workshop, short_path: Path) -> Iterator[Proven]:
    made = Proven(workshop, short_path)
    yield made
    made.server.stop()
    assert not [lease for lease in made.repository.leases.all() if lease.holder.startswith("socket")]


def descriptors() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd"))


def heard(connection: socket.socket) -> bytes:
    """What there is to hear on a connection: nothing where it is closed."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def test_a_client_that_was_shown_a_proof_reads_and_puts(proven: Proven) -> None:
    """Through descriptors, as ever; nothing is left of the greeting afterwards."""
    (uuid,) = proven.put(b"content")
    before = descriptors()

    for _ in range(3):
        with proven.client() as client:
            assert client.read_all([uuid]) == [b"content"]
            (other,) = client.put_many([b"more"])
            assert client.read_all([other]) == [b"more"]
            assert client.descriptors
        assert proven.server.wait_for(0, 10)

    assert descriptors() == before
    assert proven.failures == []


def test_a_reader_made_from_the_document_alone_is_served(proven: Proven) -> None:
    """The protocol can be spoken by what docs/protocol.md says."""
    (uuid,) = proven.put(b"content")

    reader = Reader(proven.path, proven.token.encode(), (NAME, str(proven.authority.certificate)))

    assert reader.read(uuid) == b"content"
    reader.close()


def test_a_false_socket_is_told_no_token(proven: Proven) -> None:
    """Neither by one without a proof, nor by one with another authority's, nor with another name's."""
    with FalseSocket(proven.folder / "silent", silent) as false:
        with (
            SocketClient(false.path, proven.token, 0.3, identity=proven.identity) as client,
            pytest.raises(NotReachable),
        ):
            client.put_many([b"secret content"])
        until(lambda: bool(false.seen), "it to see what the client says before it gives up")
        assert proven.token.encode() not in false.seen
        assert b"secret content" not in false.seen

    stranger = Authority(proven.folder / "stranger")
    for identity in (Identity(NAME, str(stranger.certificate)), proven.identity._replace(name="other.example")):
        client = SocketClient(proven.path, proven.token, 10, identity=identity)
        with client, pytest.raises(NotReachable, match="no proof by TLS"):
            client.put_many([b"x"])
    assert proven.server.wait_for(0, 10)


def test_whoever_passes_everything_on_sees_and_holds_nothing(proven: Proven) -> None:
    """A false socket in front of the true one sees TLS, and then nothing: no token, no frame, no file."""
    (uuid,) = proven.put(b"stored content")
    between = FalseSocket(proven.folder / "between", relaying(proven.path))
    with between as false, proven.client(false.path) as client:
        assert client.read_all([uuid]) == [b"stored content"]
        client.put_many([b"sent content"])

        for secret in (proven.token.encode(), b"stored content", b"sent content", uuid):
            assert secret not in false.seen
        # All that it was passed is an end of the client's pair, which hears nothing of what is said to the other one.
        assert len(false.passed) == 1
        assert not heard(false.passed[0])


def test_another_pair_in_the_place_of_the_clients_is_refused(proven: Proven) -> None:
    """Whoever puts its own in hears nothing, and the refusal is told to the log."""
    ours, theirs = socket.socketpair()

    def swap(passed: Passed) -> Passed:
        return [theirs] if passed else []

    with ours, theirs, FalseSocket(proven.folder / "between", relaying(proven.path, swap)) as false:
        with proven.client(false.path) as client, pytest.raises(Unauthenticated, match="somebody stands between"):
            client.put_many([b"x"])
        assert not heard(ours)

    assert any("somebody stands between" in str(error) for _, error in proven.failures)


def test_another_connection_in_the_place_of_the_agents_is_left(proven: Proven) -> None:
    """Whoever slips the client a connection of its own is found out before anything goes over it."""
    ours, theirs = socket.socketpair()

    def slip(passed: Passed) -> Passed:
        for each in passed:
            socket.send_fds(each, [b"\0"], [theirs.fileno()])
        return passed

    with ours, theirs, FalseSocket(proven.folder / "between", relaying(proven.path, slip)) as false:
        with proven.client(false.path) as client, pytest.raises(NotReachable, match="somebody stands between"):
            client.put_many([b"x"])
        assert not heard(ours)


def test_the_proof_of_another_listener_is_none(tmp_path: Path, short_path: Path) -> None:
    """HTTPS has the same certificate, and does not speak this protocol: the client says nothing to it."""
    secured = Secured(tmp_path)
    identity = Identity(NAME, secured.ca_file)
    with secured.running:
        host, port = secured.url().rpartition("//")[2].split(":")
        with FalseSocket(short_path / "https", terminating((host, int(port)))) as false:
            client = SocketClient(false.path, secured.tokens["all"], 5, identity=identity)
            with client, pytest.raises(NotReachable, match="does not speak"):
                client.put_many([b"x"])


def test_a_greeting_in_the_clear_is_refused_where_a_proof_can_be_had(proven: Proven) -> None:
    """A client that would tell its token to anybody is told that it just did."""
    hello = b"ULLAGE\0\0" + struct.pack("<HHI", 1, 1, len(proven.token)) + proven.token.encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(proven.path)
        connection.sendall(struct.pack("<IBBH", len(hello), FrameKind.HELLO, 0, 0) + hello)
        answer = connection.recv(1 << 16)

    assert answer[4] == FrameKind.PROBLEM
    assert b"unauthenticated" in answer

    assert proven.failures
    assert all(proven.token not in str(failure) for failure in proven.failures)


def test_a_renewed_certificate_proves_the_next_connections(proven: Proven) -> None:
    """Those that stand go on."""
    (uuid,) = proven.put(b"content")
    with proven.client() as before:
        assert before.read_all([uuid]) == [b"content"]
        new = Authority(proven.folder / "new")
        new.issue(proven.folder / "tls")

        proven.server.renew()

        with SocketClient(proven.path, proven.token, 10, identity=Identity(NAME, str(new.certificate))) as after:
            assert after.read_all([uuid]) == [b"content"]
        assert before.read_all([uuid]) == [b"content"]


@pytest.mark.parametrize("what", ["nothing", "a file", "garbage", "a greeting", "a flood"])
def test_what_is_no_proof_ends_the_connection(proven: Proven, what: str) -> None:
    """With a PROBLEM, and nothing is kept."""
    before = descriptors()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(proven.path)
    one, other = socket.socketpair()
    garbage = os.urandom(200)
    frame = struct.pack("<IBBH", len(garbage), FrameKind.PROVE, 0, 0) + garbage
    with connection, one, other, (proven.folder / "tokens").open() as file:
        passed = {"nothing": [], "a file": [file.fileno()]}.get(what, [one.fileno()])
        if what == "a greeting":
            frame = struct.pack("<IBBH", 16, FrameKind.HELLO, 0, 0) + b"ULLAGE\0\0" + struct.pack("<HHI", 1, 1, 0)
        if what == "a flood":
            frame = struct.pack("<IBBH", 1 << 20, FrameKind.PROVE, 0, 0)
        socket.send_fds(connection, [frame], passed)

        kinds = b""
        while data := connection.recv(1 << 16):
            kinds += data[4:5]
        assert kinds[0] in (FrameKind.PROBLEM, FrameKind.PROOF)  # an alert of TLS may come before

    assert proven.server.wait_for(0, 10)
    assert descriptors() == before


def _repeat(node: Node, work: Callable[[], None]) -> None:
    for _ in range(200):
        work()
        node.server.wait_for(0, 0.05)


def test_a_greeting_that_never_ends_is_given_up(workshop: Workshop, short_path: Path) -> None:
    """However often a frame without anything in it comes."""
    node = Proven(workshop, short_path, Limits(stall_seconds=1.0))
    one, other = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, one, other:
        connection.connect(node.path)
        connection.settimeout(20)
        empty = struct.pack("<IBBH", 0, FrameKind.PROVE, 0, 0)
        socket.send_fds(connection, [empty], [one.fileno()])
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            _repeat(node, lambda: connection.sendall(empty))

    assert node.server.wait_for(0, 10)
    node.server.stop()


def test_a_token_that_is_too_long_is_refused(proven: Proven) -> None:
    """Inside TLS as outside."""
    with proven.client(token="x" * (TOKEN_BYTES_MAX + 1)) as client, pytest.raises(InvalidArgument, match="token"):
        client.put_many([b"x"])


def test_an_agent_without_a_certificate_cannot_prove_anything(node: Node) -> None:
    """A client that was told to expect a proof sends nothing else to it."""
    client = SocketClient(node.path, "secret", 10, identity=Identity(NAME))
    with client, pytest.raises(InvalidArgument, match="nothing that it could prove"):
        client.put_many([b"x"])


def test_without_a_proof_the_folder_decides(node: Node, short_path: Path) -> None:
    """A token goes only to where root and the client's own user alone can have put the socket."""
    (uuid,) = node.put(b"content")

    with SocketClient(node.path, "token") as client:
        assert client.read_all([uuid]) == [b"content"]
    for mode in (0o770, 0o707, 0o1777):
        short_path.chmod(mode)
        with SocketClient(node.path, "token") as client, pytest.raises(InvalidArgument, match="no token is sent"):
            client.read_all([uuid])
        with SocketClient(node.path) as client:  # without a token there is nothing to lose
            assert client.read_all([uuid]) == [b"content"]
    short_path.chmod(0o700)


def test_a_folder_of_another_user_is_not_believed(
    node: Node, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one below such a folder."""
    if os.geteuid() == 0:
        os.chown(short_path, 1, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1)

    with SocketClient(node.path, "token") as client, pytest.raises(InvalidArgument, match="no token is sent"):
        client.put_many([b"x"])

    if os.geteuid() == 0:
        os.chown(short_path, 0, -1)


def test_only_an_encrypted_address_says_who_must_answer() -> None:
    """By the name in it, over HTTP as over Flight."""
    assert identity_of("https://node-1:8480/x", "ca") == Identity("node-1", "ca")
    assert identity_of("grpc+tls://[::1]:8481", None) == Identity("::1", None)
    assert identity_of("http://node-1:8480", "ca") is None
    assert identity_of("grpc://node-1:8481", "ca") is None
