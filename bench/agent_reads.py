"""What comes out: reads over the node's transports, beside `pread` of the same files and nginx with the same bytes."""

import http.client
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from crc32c import crc32c

from bench.agent import BATCH, KILOBYTE, MEGABYTE, clients, repeated
from bench.rounds import Rounds, rotate
from bench.serving import nginx, nginx_program, node
from bench.table import Row, Target
from bench.workbench import Workbench
from ullage.client.socket import SocketClient

PASS_BYTES = 20 * MEGABYTE
HTTP_READS = 100
PREAD, CHECKED, NGINX = "pread, thrown away", "pread and the same CRC-32C", "nginx, sendfile"
HTTP = "HTTP, one each"


class Bare(NamedTuple):
    """What a plain loop needs of one content: which bytes of which descriptor, and what they come to."""

    descriptor: int
    length: int
    offset: int
    crc: int


def reads(bench: Workbench) -> Iterator[Row]:
    """Reads of 1 KB, 100 KB and 10 MB over each path, from the page cache."""
    with ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, _ = clients(stack, there)
        peer = _Nginx(stack, bench.path("nginx"))
        ours = _Reader(stack, there.url)
        for size, name in ((KILOBYTE, "1 KB"), (100 * KILOBYTE, "100 KB"), (10 * MEGABYTE, "10 MB")):
            count = min(BATCH, max(4, bench.sizes.reads * KILOBYTE * 50 // size))
            uuids = _stored(local, size, count)
            ids = [uuid.hex() for uuid in uuids]
            places = local.resolve(uuids)
            bare = [Bare(os.dup(_descriptor(local, p.file)), p.length, p.offset, p.crc) for p in places]
            few = min(count, HTTP_READS)
            works: dict[str, Callable[[], Any]] = {
                PREAD: partial(_drain, _pread_each, bare),
                CHECKED: partial(_drain, _pread_and_check, bare),
                "socket, resolved": partial(local.read, places),
                "socket, by handle": partial(local.read_all, uuids),
                "Flight": partial(_drain, flight.get_batches, ids),
                HTTP: partial(ours.get_each, [f"/v1/handles/{id}" for id in ids[:few]]),
            }
            if peer.reader is not None:
                works[NGINX] = partial(peer.reader.get_each, [peer.file(name, os.urandom(size))] * few)
            passes = max(1, PASS_BYTES // (size * count))
            sides = {what: partial(repeated, work, passes) for what, work in works.items()}
            seconds = rotate(bench.sizes.rounds, sides)
            for each in bare:
                os.close(each.descriptor)
            yield from _rows(name, seconds, count * passes, few * passes)


def large(bench: Workbench) -> Iterator[Row]:
    """One content of a GiB, streamed."""
    size = bench.sizes.stream_bytes
    piece = os.urandom(MEGABYTE)
    with ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, _ = clients(stack, there)
        uuid = local.put_stream(piece for _ in range(size // MEGABYTE))
        ours, peer = _Reader(stack, there.url), _Nginx(stack, bench.path("nginx"))
        (place,) = local.resolve([uuid])
        descriptor = os.dup(_descriptor(local, place.file))
        stack.callback(os.close, descriptor)
        crc = crc32c(piece)
        bare = [Bare(descriptor, MEGABYTE, at, crc) for at in range(place.offset, place.offset + size, MEGABYTE)]
        works: dict[str, Callable[[], Any]] = {
            PREAD: partial(_drain, _pread_each, bare),
            CHECKED: partial(_drain, _pread_and_check, bare),
            "socket, stream": lambda: _drain(lambda uuid: local.open(uuid)[1], uuid),
            "Flight": partial(_drain, flight.get_batches, [uuid.hex()]),
            HTTP: lambda: ours.get_each([f"/v1/handles/{uuid.hex()}"]),
        }
        if peer.reader is not None:
            works[NGINX] = partial(peer.reader.get_each, [peer.file("large", piece, size // MEGABYTE)])
        sides = {what: partial(repeated, work, 1) for what, work in works.items()}
        seconds = rotate(bench.sizes.stream_rounds, sides)
    yield from _rows(f"{size // MEGABYTE:,} MiB", seconds, size // MEGABYTE)


def _rows(name: str, seconds: dict[str, list[float]], operations: int, http_operations: int = 0) -> Iterator[Row]:
    """`operations` of a round: contents, or of a large one MiB; over HTTP there may be fewer."""
    compared = [
        ("socket, resolved", PREAD, Target(0.8)),
        ("socket, resolved", CHECKED, Target(0.8)),
        ("socket, stream", PREAD, Target(0.8)),
        ("socket, stream", CHECKED, Target(0.8)),
        ("socket, by handle", PREAD, None),
        ("socket, by handle", CHECKED, None),
        ("Flight", PREAD, None),
        (HTTP, NGINX, None if http_operations else Target(0.6)),
    ]
    for path, peer, target in compared:
        if path in seconds and peer in seconds:
            count = http_operations or operations if path == HTTP else operations
            yield Rounds(count, seconds[path], seconds[peer]).row("agent", f"reads of {name}, {path}", peer, target)


class _Reader:
    """A bare HTTP client on one connection: the same for both sides, into one buffer, in the kernel's portions."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port)
        stack.callback(self._connection.close)
        self._buffer = bytearray(MEGABYTE)

    def get_each(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            assert answer.status == 200, path
            while answer.readinto(self._buffer):
                continue


class _Nginx:
    """It serves what it is given; no `reader` where it is not installed."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self._files = place / "files"
        self.reader: _Reader | None = None
        program = nginx_program()
        if program is None:
            print("nginx is not installed: its rows are left out (Debian: nginx-light)", file=sys.stderr)
            return
        host, port = stack.enter_context(nginx(place, program))
        self.reader = _Reader(stack, f"http://{host}:{port}/")

    def file(self, name: str, content: bytes, times: int = 1) -> str:
        """A file of so many copies of a piece; its path."""
        path = name.replace(" ", "-")
        with open(self._files / path, "wb") as file:
            file.writelines(content for _ in range(times))
        return f"/{path}"


def _pread_each(bare: list[Bare]) -> Iterator[bytes]:
    for descriptor, length, offset, _ in bare:
        yield os.pread(descriptor, length, offset)


def _pread_and_check(bare: list[Bare]) -> Iterator[bytes]:
    for descriptor, length, offset, crc in bare:
        content = os.pread(descriptor, length, offset)
        assert crc32c(content) == crc
        yield content


def _drain(read: Callable[[Any], Iterable[object]], what: object) -> None:
    """One consumer for all: it looks at nothing, and lets go of each when it has the next."""
    for _ in read(what):
        continue


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
