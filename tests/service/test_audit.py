"""The audit log: what leaves a line over each transport, and that none is lost in silence."""

import errno
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from tests.service.running import audited
from tests.service.secured import Secured
from tests.service.socket.reader import Reader, Refusal
from tests.support import ManualClock
from ullage.contract import Quantity
from ullage.errors import Forbidden, Unauthenticated
from ullage.uuids import parse_uuid
from ullage.wire.frames import FrameKind
from ullage_agent.cli.app import app
from ullage_agent.service import audit
from ullage_agent.service.audit import AuditLog, lines_of


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path, socket=True)
    with made.running:
        yield made


def test_over_http_reads_changes_and_refusals_leave_a_line_and_looking_leaves_none(secured: Secured) -> None:
    """With who, from where, which uuid, how many bytes, and why not; and no token."""
    with secured.client("all") as client:
        id = client.post("/v1/handles", content=b"12345").json()["id"]
        client.get(f"/v1/handles/{id}", headers={"range": "bytes=1-2"})
        client.get("/v1/state")
        client.get("/v1/handles")
        client.delete(f"/v1/handles/{id}")
        client.get(f"/v1/handles/{id}")
    with secured.client("records:get") as client:
        client.get(f"/v1/handles/{id}")
        client.get("/v1/state")
    with secured.client("ullage_nobody") as client:
        client.get("/v1/handles")

    put, read, deleted, gone, forbidden, closed, unknown = audited(secured.running, 7)

    assert (put.who, put.via, put.peer, put.operation) == ("all", "HTTP", "127.0.0.1", "POST /v1/handles")
    assert (put.ids, put.bytes, put.allowed) == ([id], 5, True)
    assert (read.about, read.bytes, read.allowed) == (f"/v1/handles/{id}", 2, True)
    assert (deleted.operation, deleted.allowed) == ("DELETE /v1/handles/{id}", True)
    assert (gone.allowed, gone.why.partition(":")[0], gone.bytes) == (False, "handle-deleted", 0)
    assert (forbidden.who, forbidden.allowed) == ("records:get", False)
    assert "content:get" in forbidden.why
    assert closed.operation == "GET /v1/state"
    assert (unknown.who, unknown.why.partition(":")[0]) == ("", "unauthenticated")
    text = b"".join(
        path.read_bytes() for path in Path(secured.running.document.spec.storage.host_path.path).glob("audit/*")
    )
    assert not any(token.encode() in text for token in secured.tokens.values())


def test_over_flight_and_the_socket_the_same_is_told(secured: Secured) -> None:
    """Puts with their uuids, reads with theirs and, where the agent sends them, the bytes; refusals."""
    token = secured.tokens["all"]
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    poor = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secured.tokens['space:get']}".encode())])
    with flight.FlightClient(secured.url("flight"), tls_root_certs=Path(secured.ca_file).read_bytes()) as client:
        schema = pa.schema([("content", pa.binary())])
        writer, told = client.do_put(flight.FlightDescriptor.for_command(b"{}"), schema, options)
        with writer:
            writer.write_batch(pa.record_batch([pa.array([b"12345"])], schema=schema))
            raw = told.read().to_pybytes()[4:]
        ticket = flight.Ticket(json.dumps({"kind": "get", "handles": [raw.hex()]}).encode())
        client.do_get(ticket, options).read_all()
        client.do_get(flight.Ticket(b'{"kind":"table","name":"windows"}'), options).read_all()
        with pytest.raises(flight.FlightUnauthorizedError):
            client.do_get(ticket, poor)
    with secured.local("all") as local:
        local.read_all([raw])
    audited(secured.running, 4)  # the next connections have threads of their own
    with secured.local("space:get") as local, pytest.raises(Forbidden):
        local.resolve([raw])
    with secured.local("ullage_nobody") as local, pytest.raises(Unauthenticated):
        local.resolve([raw])

    put, got, refused, resolved, forbidden, unknown = audited(secured.running, 6)

    assert (put.via, put.operation, put.bytes, [parse_uuid(id) for id in put.ids]) == ("Flight", "DoPut", 5, [raw])
    assert (got.operation, got.allowed, got.ids) == ("DoGet", True, [raw.hex()])
    assert got.bytes > 5
    assert (refused.who, refused.allowed) == ("space:get", False)
    assert (resolved.via, resolved.operation, [parse_uuid(id) for id in resolved.ids]) == (
        "socket",
        "RESOLVE_HANDLES",
        [raw],
    )
    assert (forbidden.who, forbidden.allowed) == ("space:get", False)
    assert (unknown.who, unknown.operation, unknown.allowed) == ("", "HELLO", False)


def test_who_goes_before_the_answer_has_come_leaves_a_line_too(secured: Secured) -> None:
    """Over the socket: what was read as far as it was taken, what was stored, and what was given up on the way."""
    with secured.local("all") as local:
        (large,) = local.put_many([bytes(1 << 20)])
    audited(secured.running, 1)  # as above
    proof = ("127.0.0.1", secured.ca_file)
    wanted = {
        "READ": [(10, large + struct.pack("<QQ", 0, 1 << 20))],
        "RESOLVE_HANDLES": [(2, large * 10_000)],
        "PUT": [(5, struct.pack("<QIIHBBI", 0, 1, 0, 0, 2, 0, 3) + b"abc")],
        "PUT_STREAM": [(6, struct.pack("<QIIHBB", 0, 0, 0, 0, 2, 0)), (7, b"abc")],
    }
    for frames in wanted.values():
        reader = Reader(secured.socket, secured.tokens["all"].encode(), proof)
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for kind, body in frames:
            reader.tell(kind, 1, body)
        if frames[0][0] in (10, 2):
            assert reader.socket.recv(100)  # some of the answer
        reader.close()

    lines = {line.operation: line for line in audited(secured.running, 1 + len(wanted))[1:]}

    assert {name: line.allowed for name, line in lines.items()} == {name: name != "PUT_STREAM" for name in wanted}
    assert [parse_uuid(id) for id in lines["READ"].ids] == [large]
    assert {parse_uuid(id) for id in lines["RESOLVE_HANDLES"].ids} == {large}
    assert (len(lines["PUT"].ids), lines["PUT"].bytes > 0) == (1, True)
    assert "request-incomplete" in lines["PUT_STREAM"].why


def test_descriptors_that_went_out_before_a_failure_leave_a_line_that_says_so(tmp_path: Path) -> None:
    """64 of them go in one frame. The file of the next one is away, so that the client gets a problem after them."""
    secured = Secured(tmp_path, socket=True, claims={"max_appendable_size": Quantity(1)})
    with secured.running:
        with secured.local("all") as local:
            uuids = [local.put_many([b"x" * 4096])[0] for _ in range(65)]
        reader = Reader(secured.socket, secured.tokens["all"].encode(), ("127.0.0.1", secured.ca_file))
        files = [file for file in (tmp_path / "r").glob("c*/*/*") if file.stat().st_size]
        last = max(files, key=lambda file: int(file.name.rpartition("-")[2]))
        last.rename(tmp_path / "away")
        reader.tell(2, 1, b"".join(uuids))
        assert reader.hear()[0] == FrameKind.FILES
        with pytest.raises(Refusal, match="content-missing"):
            reader.hear()
        reader.close()
        (tmp_path / "away").rename(last)

        (line,) = [line for line in audited(secured.running, 66) if line.operation == "RESOLVE_HANDLES"]

    assert line.allowed
    assert len(line.ids) == 65


def test_refused_scrapes_leave_a_line(secured: Secured) -> None:
    """Of whoever has no token and of whoever has another right; what is answered leaves none."""
    context = ssl.create_default_context(cafile=secured.ca_file)
    with httpx.Client(base_url=secured.url("metrics"), verify=context) as client:
        for token, status in (("metrics:get", 200), ("space:get", 403), ("ullage_nobody", 401), ("", 401)):
            headers = {"authorization": f"Bearer {secured.tokens.get(token, token)}"} if token else {}
            assert client.get("/metrics", headers=headers).status_code == status

    lines = audited(secured.running, 3)

    assert [(line.who, line.why.partition(":")[0]) for line in lines] == [
        ("space:get", "forbidden"),
        ("", "unauthenticated"),
        ("", "unauthenticated"),
    ]
    assert {(line.via, line.operation, line.peer, line.allowed) for line in lines} == {
        ("metrics", "GET /metrics", "127.0.0.1", False)
    }


def test_a_flood_of_refusals_does_not_drive_the_others_out(tmp_path: Path) -> None:
    """Of one that asks so many a second are written, and how many more there were; nobody else's are left out."""
    clock = ManualClock()
    log = AuditLog(str(tmp_path), 1 << 20, 3, clock)
    for number in range(audit.REFUSED_MAX + 30):
        log.note(who="", via="HTTP", peer="10.0.0.1", operation="a", allowed=False)
        if number % 10 == 0:
            log.note(who="ann", via="HTTP", peer="10.0.0.1", operation="b", allowed=False)
            log.note(who="", via="HTTP", peer="10.0.0.1", operation="c", allowed=True)
    clock.advance(1)
    log.note(who="", via="HTTP", peer="10.0.0.1", operation="d", allowed=False)
    for _ in range(audit.REFUSED_MAX):
        log.note(who="", via="HTTP", peer="10.0.0.1", operation="e", allowed=False)
    log.close()

    found = [(line.operation, line.why) for line in lines_of(str(tmp_path))]
    counts = Counter(operation for operation, _ in found)
    assert (counts["a"], counts["b"], counts["c"], counts["d"]) == (audit.REFUSED_MAX, 5, 5, 1)
    assert [why for operation, why in found if operation == "refusals"] == [
        "30 more in this second",
        "1 more in this second",
    ]


def test_no_text_of_a_line_is_as_long_as_a_client_likes(tmp_path: Path) -> None:
    """Paths and reasons, and what an action is called that there is not."""
    log = AuditLog(str(tmp_path), 1 << 20, 3, ManualClock())
    long = "x" * 100_000
    log.note(who="ann", via="Flight", peer="10.0.0.1", operation=long, about=long, why=long, allowed=False)
    log.close()

    (line,) = lines_of(str(tmp_path))
    assert {len(line.operation), len(line.about), len(line.why)} == {audit.TEXT_MAX}


def test_the_command_line_finds_lines_in_earlier_files_too(tmp_path: Path) -> None:
    """By who, what and since when; as JSON and as a table."""
    clock = ManualClock(int(time.time() * 1000) - 7_200_000)
    log = AuditLog(str(tmp_path), 1, 10, clock)
    for number in range(3):
        log.note(
            who="ann" if number else "bob", via="HTTP", operation="GET", about=f"/v1/handles/{number}", allowed=True
        )
        log.settle()
        clock.advance(3_000)
    log.close()

    def found(*options: str) -> list[str]:
        result = CliRunner().invoke(app, ["audit", "--root", str(tmp_path), "--json", *options])
        assert result.exit_code == 0, result.output
        return [line["about"][-1] for line in json.loads(result.stdout)]

    assert len(list(tmp_path.glob("audit/audit-*.jsonl"))) == 3
    assert found() == ["0", "1", "2"]
    assert found("--who", "ann") == ["1", "2"]
    assert found("--what", "handles/1") == ["1"]
    assert found("--since", "7198s") == ["1", "2"]
    assert "/v1/handles/2" in CliRunner().invoke(app, ["audit", "--root", str(tmp_path)]).stdout


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    """The oldest goes first."""
    log = AuditLog(str(tmp_path), 200, 3, ManualClock())
    for number in range(20):
        log.note(who="x", via="HTTP", operation=str(number), allowed=True)
        log.settle()
    log.close()

    files = list(tmp_path.glob("audit/*"))
    assert len(files) <= 3
    assert all(path.stat().st_size < 400 for path in files)
    assert [line.operation for line in lines_of(str(tmp_path))][-1] == "19"


def test_strangers_drive_nobody_elses_lines_out(tmp_path: Path) -> None:
    """Theirs are in files of their own; read together, lines come in the order of their times."""
    clock = ManualClock()
    log = AuditLog(str(tmp_path), 200, 3, clock)
    log.note(who="ann", via="HTTP", operation="first", allowed=True)
    for number in range(20):
        clock.advance(1_000)
        log.note(who="", via="HTTP", peer="10.0.0.1", operation=str(number), allowed=False)
        log.settle()
    clock.advance(1_000)
    log.note(who="ann", via="HTTP", operation="last", allowed=True)
    log.close()

    assert len(list(tmp_path.glob("audit/*"))) <= 3 + audit.UNKNOWN_FILES_MAX
    assert [line.operation for line in lines_of(str(tmp_path))] == ["first", "18", "19", "last"]


def test_a_full_disk_is_told_and_what_waits_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing twice, nothing torn; what was too much to wait is counted, told, and said in the log."""
    told: list[tuple[int, Exception | None]] = []
    full = threading.Event()
    write = os.write

    def write_half(descriptor: int, text: Any) -> int:
        if not full.is_set():
            return write(descriptor, text)
        if len(text) > 1:
            return write(descriptor, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", write_half)
    monkeypatch.setattr(audit, "WAITING_MAX", 5)
    monkeypatch.setattr(audit, "RETRY_SECONDS", 0.01)
    log = AuditLog(str(tmp_path), 1 << 20, 3, ManualClock(), lambda lost, error: told.append((lost, error)))
    full.set()
    for number in range(7):
        log.note(who="x", via="HTTP", operation=str(number), allowed=True)
    log.settle()
    assert isinstance(told[0][1], OSError)
    full.clear()
    log.settle()
    log.close()

    assert [line.operation for line in lines_of(str(tmp_path))] == ["0", "1", "2", "3", "4", "audit"]
    assert list(lines_of(str(tmp_path)))[-1].why == "2 lines were lost"
    assert sum(lost for lost, _ in told) == 2


def test_a_line_that_a_crash_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """The next one begins anew."""
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.jsonl").write_text('{"time": "20')
    log = AuditLog(str(tmp_path), 1 << 20, 3, ManualClock())
    log.note(who="x", via="HTTP", operation="after", allowed=True)
    log.close()

    assert [line.operation for line in lines_of(str(tmp_path))] == ["after"]


def test_a_server_counts_what_it_could_not_write(secured: Secured) -> None:
    """In metrics and in its own log."""
    server = secured.running.server

    server.audit_failed(0, OSError(errno.ENOSPC, "full"))
    server.audit_failed(3, None)

    assert server.metrics.counted("audit_failures_total") == 1
    assert server.metrics.counted("audit_lost_lines_total") == 3
