"""The node's transports: HTTP, Flight and Unix socket beside the engine called directly, nginx and bare reads."""

import http.client
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.rounds import Rounds, rotate, seconds_of, settle
from bench.serving import nginx, nginx_program, node
from bench.table import Row, Target
from bench.workbench import Workbench
from ullage_agent.client import Node
from ullage_agent.client.flight import FlightClient
from ullage_agent.client.http import HttpClient
from ullage_agent.client.socket import SocketClient

KILOBYTE = 1_024
MEGABYTE = 1 << 20
BATCH = 1_000
SLOW_READERS = 1_000
SIZES = ((100 * KILOBYTE, "100 KB"), (10 * MEGABYTE, "10 MB"))


def puts(bench: Workbench) -> Iterator[Row]:
    """Batches of 1,000 contents of 1 KB over each path, beside the engine in this process."""
    contents = [os.urandom(KILOBYTE) for _ in range(BATCH)]
    count = bench.sizes.batches
    with bench.repository("engine", archive={"enabled": False}) as repository, ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, http = _clients(stack, there)

        def over_flight() -> None:
            for _ in flight.put_many(contents for _ in range(count)):
                continue

        sides = {
            "engine": partial(_timed, lambda: [repository.handles.put_many(contents) for _ in range(count)]),
            "Flight": partial(_timed, over_flight),
            "socket": partial(_timed, lambda: [local.put_many(contents) for _ in range(count)]),
            "HTTP": partial(_timed, lambda: [http.put_many(contents, [{}] * BATCH) for _ in range(count)]),
        }
        seconds = rotate(bench.sizes.rounds, sides)
    for name, target in (("Flight", Target(0.6)), ("socket", None), ("HTTP", None)):
        rounds = Rounds(BATCH * count, seconds[name], seconds["engine"])
        yield rounds.row("agent", f"puts of 1 KB in batches of 1,000, {name}", "the engine, called", target)


def single_puts(bench: Workbench) -> Iterator[Row]:
    """One content a put, of 100 KB and of 10 MB, over each path, beside the engine."""
    with bench.repository("engine", archive={"enabled": False}) as repository, ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        _, local, http = _clients(stack, there)
        for size, name in SIZES:
            content = os.urandom(size)
            count = max(2, bench.sizes.reads * KILOBYTE * 20 // size)
            sides = {
                "engine": partial(_timed, partial(_put_directly, repository, content, count)),
                "socket": partial(_repeated, partial(local.put_stream, [content]), count),
                "HTTP": partial(_repeated, partial(http.put, content), count),
            }
            seconds = rotate(bench.sizes.rounds, sides)
            for path in ("socket", "HTTP"):
                rounds = Rounds(count, seconds[path], seconds["engine"])
                yield rounds.row("agent", f"puts of {name}, one each, {path}", "the engine, called")


def reads(bench: Workbench) -> Iterator[Row]:
    """Reads of 1 KB, 100 KB and 10 MB over each path; the socket's beside bare `pread` of the same descriptors."""
    with ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, http = _clients(stack, there)
        for size, name in ((KILOBYTE, "1 KB"), *SIZES):
            count = min(BATCH, max(4, bench.sizes.reads * KILOBYTE * 50 // size))
            uuids = _stored(local, size, count)
            ids = [uuid.hex() for uuid in uuids]
            places = local.resolve(uuids)
            bare = [(os.dup(_descriptor(local, place.file)), place.length, place.offset) for place in places]
            passes = max(1, 20 * MEGABYTE // (size * count))

            def pread(bare: list[tuple[int, int, int]] = bare) -> None:
                for descriptor, length, offset in bare:
                    os.pread(descriptor, length, offset)

            works: dict[str, Callable[[], Any]] = {
                "pread": pread,
                "socket, resolved": partial(local.read, places),
                "socket, by handle": partial(local.read_all, uuids),
                "Flight": partial(_flight_reads, flight, ids),
                "HTTP, one each": partial(_http_reads, http, ids[:100]),
            }
            sides = {what: partial(_repeated, work, passes) for what, work in works.items()}
            seconds = rotate(bench.sizes.rounds, sides)
            for descriptor, _, _ in bare:
                os.close(descriptor)
            share = min(1.0, 100 / count)
            for what in list(works)[1:]:
                part = share if what == "HTTP, one each" else 1.0
                peer = [each * part for each in seconds["pread"]]
                target = Target(0.8) if what == "socket, resolved" else None
                rounds = Rounds(round(count * passes * part), seconds[what], peer)
                yield rounds.row("agent", f"reads of {name}, {what}", "pread, unverified", target)


def large(bench: Workbench) -> Iterator[Row]:
    """One large content over HTTP beside nginx with sendfile, and from the socket beside pread; memory meanwhile."""
    size = bench.sizes.stream_bytes
    with ExitStack() as stack:
        there, process = stack.enter_context(node(bench.path("node")))
        _, local, http = _clients(stack, there)
        piece = os.urandom(MEGABYTE)
        before = psutil.Process(process).memory_info().rss
        uuid = local.put_stream(piece for _ in range(size // MEGABYTE))
        for _ in http.stream(uuid.hex()):
            continue
        grown = (psutil.Process(process).memory_info().rss - before) / MEGABYTE
        label = f"{size // MEGABYTE:,} MiB"
        yield Row("agent", f"memory of the node while {label} go in and out", "", (grown,), "MiB", Target(64, True))
        sides = {
            "HTTP": partial(_timed, lambda: _http_get(there, f"/v1/handles/{uuid.hex()}")),
            "socket": partial(_timed, lambda: [None for _ in local.stream(uuid)]),
        }
        program = nginx_program()
        if program is None:
            print("nginx is not installed: its row is left out (Debian: nginx-light)", file=sys.stderr)
        else:
            place = bench.path("nginx")
            path = stack.enter_context(nginx(place, program))
            with open(place / "files" / "content", "wb") as file:
                for _ in range(size // MEGABYTE):
                    file.write(piece)
            sides["nginx"] = partial(_timed, lambda: _drain(_unix(path), "/content"))
        (place_of,) = local.resolve([uuid])
        descriptor = os.dup(_descriptor(local, place_of.file))
        stack.callback(os.close, descriptor)
        sides["pread"] = partial(_timed, lambda: _pread_all(descriptor, place_of.offset, size))
        seconds = rotate(bench.sizes.stream_rounds, sides)
    count = size // MEGABYTE
    if "nginx" in seconds:
        rounds = Rounds(count, seconds["HTTP"], seconds["nginx"])
        yield rounds.row("agent", f"{label} over HTTP, verified, a MiB", "nginx, sendfile", Target(0.6))
    rounds = Rounds(count, seconds["socket"], seconds["pread"])
    yield rounds.row("agent", f"{label} through the socket, verified, a MiB", "pread, unverified", Target(0.8))


def slow_readers(bench: Workbench) -> Iterator[Row]:
    """Readers that have asked for 10 MB over HTTP and take next to nothing: what they cost, and others notice."""
    with ExitStack() as stack:
        there, process = stack.enter_context(node(bench.path("node")))
        _, local, http = _clients(stack, there)
        uuid = local.put_stream([os.urandom(MEGABYTE)] * 10)
        (small,) = local.put_many([b"x" * KILOBYTE])
        count = min(SLOW_READERS, bench.sizes.reads)
        alone = [seconds_of(lambda: [http.get(small.hex()) for _ in range(50)]) for _ in range(bench.sizes.rounds)]
        before = psutil.Process(process).memory_info().rss
        readers = [_slow(there, uuid.hex()) for _ in range(count)]
        crowded = [seconds_of(lambda: [http.get(small.hex()) for _ in range(50)]) for _ in range(bench.sizes.rounds)]
        grown = (psutil.Process(process).memory_info().rss - before) / MEGABYTE
        for reader in readers:
            reader.close()
    yield Row("agent", f"memory of the node for {count:,} slow readers of 10 MB", "", (grown,), "MiB")
    yield Rounds(50, crowded, alone).row("agent", f"small reads over HTTP amid {count:,} slow readers", "without them")


def _clients(stack: ExitStack, there: Node) -> tuple[FlightClient, SocketClient, HttpClient]:
    assert there.flight is not None
    assert there.socket is not None
    flight = stack.enter_context(FlightClient(there.flight))
    local = stack.enter_context(SocketClient(there.socket))
    return flight, local, stack.enter_context(HttpClient(there.url))


def _put_directly(repository: Any, content: bytes, count: int) -> None:
    for _ in range(count):
        put = repository.handles.begin()
        put.write(content)
        put.commit()


def _flight_reads(flight: FlightClient, ids: list[str]) -> None:
    for _ in flight.get_batches(ids):
        continue


def _http_reads(http: HttpClient, ids: list[str]) -> None:
    for id in ids:
        http.get(id)


def _stored(local: SocketClient, size: int, count: int) -> list[bytes]:
    if size > MEGABYTE:
        return [local.put_stream([os.urandom(size)]) for _ in range(count)]
    each = max(1, 3 * MEGABYTE // size)
    uuids: list[bytes] = []
    while len(uuids) < count:
        uuids += local.put_many([os.urandom(size) for _ in range(min(each, count - len(uuids)))])
    return uuids


def _descriptor(local: SocketClient, file: int) -> int:
    return local._descriptors[file]  # noqa: SLF001 - the peer reads the very same file


def _timed(work: Callable[[], Any]) -> float:
    settle()
    return seconds_of(work)


def _repeated(work: Callable[[], Any], passes: int) -> float:
    settle()
    return seconds_of(lambda: [work() for _ in range(passes)])


def _http_get(there: Node, path: str) -> None:
    host, _, port = there.url.partition("//")[2].rstrip("/").partition(":")
    _drain(http.client.HTTPConnection(host, int(port)), path)


def _unix(path: Path) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    return connection


def _drain(connection: http.client.HTTPConnection, path: str) -> None:
    """The same reader for both: into one buffer, in the kernel's portions."""
    buffer = bytearray(MEGABYTE)
    connection.request("GET", path)
    answer = connection.getresponse()
    while answer.readinto(buffer):
        continue
    connection.close()


def _pread_all(descriptor: int, offset: int, size: int) -> None:
    for at in range(0, size, MEGABYTE):
        os.pread(descriptor, MEGABYTE, offset + at)


def _slow(there: Node, id: str) -> socket.socket:
    host, _, port = there.url.partition("//")[2].rstrip("/").partition(":")
    reader = socket.create_connection((host, int(port)))
    reader.sendall(f"GET /v1/handles/{id} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    reader.recv(16)
    return reader
