"""A certificate that changes while Flight serves: the port changes hands, nobody loses a call."""

import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from pyarrow import flight

from tests.service.certificates import Authority
from tests.service.running import Running, document_at
from ullage_agent.client import Client, Node
from ullage_agent.client.flight import FlightClient
from ullage_agent.contract import AuthMode, TlsMode
from ullage_agent.service.access import Verb
from ullage_agent.service.tokens import line_of, new_token


class Encrypted:
    """A server with TLS, Flight and one token."""

    def __init__(self, path: Path) -> None:
        self.tls = path / "tls"
        self.authority = Authority("ours")
        self.authority.issue(self.tls, "node")
        self.ca_file = str(self.authority.write(path / "ca.crt"))
        self.token, digest = new_token()
        (path / "tokens").write_text(line_of("user", tuple(Verb), 0, digest))
        self.running = Running(
            document_at(
                path / "r",
                service={"flight_port": 0},
                tls={"mode": TlsMode.SECRET, "directory": str(self.tls)},
                auth={"mode": AuthMode.TOKEN_FILE, "token_file": str(path / "tokens")},
            )
        )

    @property
    def node(self) -> Node:
        urls = {name: url.replace("0.0.0.0", "127.0.0.1") for name, url in self.running.server.urls.items()}
        return Node(url=urls["http"], flight=urls["flight"], token=self.token, ca_file=self.ca_file)

    def client(self) -> FlightClient:
        assert self.node.flight is not None
        return FlightClient(self.node.flight, self.token, ca_file=self.ca_file)

    def renew(self) -> int:
        """A new certificate, taken over; its serial number."""
        serial = self.authority.issue(self.tls, "node")
        assert self.running.server.reload_certificate() == ""
        return serial

    def serial(self) -> int:
        """Of the certificate that a new connection gets."""
        assert self.node.flight is not None
        host, port = self.node.flight.removeprefix("grpc+tls://").split(":")
        return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Encrypted]:
    made = Encrypted(tmp_path)
    with made.running:
        yield made


def test_a_new_certificate_is_served_on_the_same_port(encrypted: Encrypted) -> None:
    """Connections from before go on, their snapshots too; a pair that cannot be used changes nothing."""
    before = encrypted.serial()
    with encrypted.client() as client:
        (uuids,) = client.put_many([[b"one"]])
        snapshot = client.snapshot()

        key = (encrypted.tls / "tls.key").read_bytes()
        (encrypted.tls / "tls.key").write_text("half a key")
        assert encrypted.running.server.reload_certificate() != ""
        assert encrypted.serial() == before
        (encrypted.tls / "tls.key").write_bytes(key)

        assert encrypted.renew() == encrypted.serial() != before
        assert list(client.get_many([uuids[0].hex()])) == [(0, b"one")]
        assert client.table("flowfiles", snapshot.id).read_all().num_rows == 1


def test_a_stream_that_began_before_ends_as_it_would_have(encrypted: Encrypted) -> None:
    """The retired server carries on what it had begun, whatever becomes of the port meanwhile."""
    renewed = threading.Event()

    def batches() -> Iterator[list[bytes]]:
        for number in range(40):
            if number == 20:
                encrypted.renew()
                renewed.set()
            yield [b"%d" % number] * 10

    with encrypted.client() as client:
        found = [uuid.hex() for uuids in client.put_many(batches()) for uuid in uuids]
        assert renewed.is_set()
        contents = [content for _, content in client.get_many(found)]

    assert contents == [b"%d" % number for number in range(40) for _ in range(10)]


def test_no_call_is_lost_while_certificates_change(encrypted: Encrypted) -> None:
    """Clients put and get all the while over a dozen changes: every call succeeds, every put is there once."""
    over = threading.Event()
    stored: list[tuple[str, bytes]] = []
    failures: list[Exception] = []
    turns = threading.Semaphore(0)

    def work(number: int) -> None:
        with Client(encrypted.node, name="here") as client:
            turn = 0
            while not over.is_set():
                contents = [f"{number} {turn} {each}".encode() for each in range(20)]
                try:
                    handles = client.put_many(contents)
                    assert client.get_many(handles) == contents
                except Exception as error:  # noqa: BLE001 - the main thread shows it
                    failures.append(error)
                    return
                finally:
                    turns.release()
                stored.extend(zip(handles, contents, strict=True))
                turn += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    serials = set()
    for _ in range(12):
        for _ in range(2 * len(threads)):
            assert turns.acquire(timeout=60), failures
        serials.add(encrypted.renew())
    over.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(serials) == 12
    handles = encrypted.running.repository.ledger.flow_files()
    assert sorted(uuid.UUID(bytes=record.uuid).hex for record in handles) == sorted(
        uuid.UUID(handle.partition("@")[0]).hex for handle, _ in stored
    )


def test_a_client_that_trusts_somebody_else_stays_out(encrypted: Encrypted, tmp_path: Path) -> None:
    """Before a change and after it."""
    theirs = Authority("theirs").write(tmp_path / "theirs.crt").read_bytes()
    assert encrypted.node.flight is not None
    for _ in range(2):
        with flight.connect(encrypted.node.flight, tls_root_certs=theirs) as client, pytest.raises(flight.FlightError):
            list(client.list_flights())
        encrypted.renew()
