"""A certificate that changes while Flight serves: the port changes hands, nobody loses a call."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

import ullage
from tests.certificates import Authority
from tests.service.secured import Secured
from ullage.client.flight import FlightClient
from ullage.wire.tickets import SNAPSHOT, SnapshotRequest, TableTicket


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    with made.running:
        yield made


def flight_client(secured: Secured) -> FlightClient:
    return FlightClient(secured.url("flight"), secured.tokens["all"], ca_file=secured.ca_file)


def test_a_new_certificate_is_served_on_the_same_port(encrypted: Secured) -> None:
    """Connections from before go on, their snapshots too; a pair that cannot be used changes nothing."""
    before = encrypted.serial("flight")
    with flight_client(encrypted) as client:
        (uuids,) = client.put_many([[b"one"]])
        snapshot = client.act(SNAPSHOT, SnapshotRequest())

        key = (encrypted.tls / "tls.key").read_bytes()
        (encrypted.tls / "tls.key").write_text("half a key")
        assert encrypted.refuses()
        assert encrypted.serial("flight") == before
        (encrypted.tls / "tls.key").write_bytes(key)

        assert encrypted.renew() == encrypted.serial("flight") != before
        assert client.get_many([uuids[0].hex()]) == [b"one"]
        assert client.table(TableTicket(name="flowfiles", snapshot=snapshot.id)).read_all().num_rows == 1


def test_a_stream_that_began_before_ends_as_it_would_have(encrypted: Secured) -> None:
    """The retired server carries on what it had begun, whatever becomes of the port meanwhile."""
    renewed = threading.Event()

    def batches() -> Iterator[list[bytes]]:
        for number in range(40):
            if number == 20:
                encrypted.renew()
                renewed.set()
            yield [b"%d" % number] * 10

    with flight_client(encrypted) as client:
        found = [uuid.hex() for uuids in client.put_many(batches()) for uuid in uuids]
        assert renewed.is_set()
        contents = client.get_many(found)

    assert contents == [b"%d" % number for number in range(40) for _ in range(10)]


def test_no_call_is_lost_while_certificates_change(encrypted: Secured) -> None:
    """Clients put and get all the while over a dozen changes: every call succeeds, every put is there once."""
    over = threading.Event()
    stored: list[tuple[str, bytes]] = []
    failures: list[Exception] = []
    turns = threading.Semaphore(0)

    def work(number: int) -> None:
        there = encrypted.node()
        with ullage.connect(there.url, token=there.token, ca_file=there.ca_file, flight=there.flight) as repository:
            handles = repository.handles
            turn = 0
            while not over.is_set():
                contents = [f"{number} {turn} {each}".encode() for each in range(20)]
                try:
                    ids = handles.put_many(contents)
                    assert handles.get_many(ids) == contents
                except Exception as error:  # noqa: BLE001 - the main thread shows it
                    failures.append(error)
                    return
                finally:
                    turns.release()
                stored.extend(zip(ids, contents, strict=True))
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


def test_a_client_that_trusts_somebody_else_stays_out(encrypted: Secured, tmp_path: Path) -> None:
    """Before a change and after it."""
    theirs = Authority(tmp_path / "theirs").certificate.read_bytes()
    for _ in range(2):
        with (
            flight.connect(encrypted.url("flight"), tls_root_certs=theirs) as client,
            pytest.raises(flight.FlightError),
        ):
            list(client.list_flights())
        encrypted.renew()
