"""What hostile clients make of a node's memory: `python -m bench agent-hostile agent-hostile-writers`.

Somebody without a token sends as much as a server lets them, over each transport. Somebody with one puts the largest
batches, as many at a time as they may.

The former is written here, byte by byte, because a client library keeps to what is proper: it stops when it is refused.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from pyarrow import flight

from bench.rounds import in_threads
from bench.serving import node
from bench.table import Row, Target
from bench.workbench import Workbench
from ullage.wire.frames import FRAME_BYTES_MAX, FrameKind
from ullage.wire.schemas import ATTRIBUTES
from ullage.wire.tickets import BODY_BYTES_MAX
from ullage_agent.service.limits import DEFAULTS, MIB, Limits
from ullage_agent.service.tokens import line_of, new_token

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_HEADERS, ACK = 4, 1
WINDOW = 65_535
FRAME_BYTES = 16_384
QUIET_SECONDS = 0.02
"""A server that has said nothing for so long waits for us."""

KEPT_BY_ALLOCATORS = 1.25
"""Of gRPC, Arrow and Python: what they have freed, and still hold."""

HEADER_BYTES = 7_000
"""Of every other call: little less than a node takes."""

STREAMS = 64
PUSHING = 64
"""Connections that send at a time."""

CONNECTION_KIBIBYTES = 384
"""What one connection may cost a node, whatever it sends before anybody knows whose it is: docs/flight.md has it."""

FLIGHT_BASE_MEBIBYTES = 128
"""What a node takes over Flight once: for its threads, and for the calls of PUSHING connections, STREAMS of each, with
a frame of FRAME_BYTES each, that are refused while others come.
"""

PLAIN_CONNECTION_KIBIBYTES = 128
"""The same over HTTP: its headers, and what is read of a connection at a time; and to the Unix socket: its greeting."""

HTTP_BEGINNINGS: Final = (
    (b"GET /v1/state HTTP/1.1\r\nhost: x\r\nx-a: ", DEFAULTS.header_bytes - 1_024),  # it waits for more
    (b"POST /v1/handles HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n", 8 * MIB),
    (
        b"POST /v1/handles HTTP/1.1\r\nhost: x\r\nauthorization: Bearer made-up\r\ncontent-length: 9999999\r\n\r\n",
        8 * MIB,
    ),
)
"""How connections over HTTP begin, in turn, and how many bytes then follow at the most."""

SOCKET_BEGINNINGS: Final = (
    (struct.pack("<IBBH", 4_096, FrameKind.HELLO, 0, 0), 4_095),  # it waits for the last byte
    (struct.pack("<IBBH", FRAME_BYTES_MAX, FrameKind.PROVE, 0, 0), 8 * MIB),
)
"""The same of the Unix socket."""

BASE_MEBIBYTES = 32
"""What a node takes once, for the first connections of all: threads and their stacks."""


class HostileConnection:
    """One connection with as many calls as are allowed, each of a method that takes one message, of a GiB."""

    def __init__(self, host: str, port: int) -> None:
        self._sock = socket.create_connection((host, port), timeout=10)
        self._room = {0: WINDOW}
        self._left = b""
        self._sock.sendall(PREFACE + _frame(SETTINGS, 0, 0, b""))

    def close(self) -> None:
        """Go away without a word."""
        self._sock.close()

    def push(self, bytes_max: int) -> int:
        """Open calls and send of each as much as there is room for; how many bytes went."""
        sent = 0
        try:
            for stream in range(1, 2 * STREAMS, 2):
                self._room[stream] = WINDOW
                filler = HEADER_BYTES if stream % 4 == 1 else 0
                self._sock.sendall(_frame(HEADERS, END_HEADERS, stream, _head(filler)))
                sent += self._fill(stream, struct.pack(">BI", 0, 1 << 30))
            self._listen()
            while sent < bytes_max and (more := sum(self._fill(each) for each in list(self._room) if each)):
                sent += more
                self._listen()
        except OSError:  # it has hung up, which costs it nothing
            return sent
        return sent

    def _fill(self, stream: int, start: bytes = b"") -> int:
        """Send of one call as much as its window and the connection's allow."""
        sent = 0
        while size := min(self._room[0], self._room[stream], FRAME_BYTES):
            piece = start.ljust(size, b"x")[:size]
            start = b""
            self._sock.sendall(_frame(DATA, 0, stream, piece))
            self._room[0] -= size
            self._room[stream] -= size
            sent += size
        return sent

    def _listen(self) -> None:
        """Take what the server says of windows, and answer its settings."""
        self._sock.settimeout(QUIET_SECONDS)
        try:
            while piece := self._sock.recv(1 << 16):
                self._left += piece
                while len(self._left) >= 9:
                    size = int.from_bytes(self._left[:3], "big")
                    if len(self._left) < 9 + size:
                        break
                    kind, flags, stream = struct.unpack_from(">BBI", self._left, 3)
                    self._heard(kind, flags, stream, self._left[9 : 9 + size])
                    self._left = self._left[9 + size :]
        except TimeoutError:
            return
        finally:
            self._sock.settimeout(10)

    def _heard(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW_UPDATE and stream in self._room:
            self._room[stream] += int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & ACK:
            self._sock.sendall(_frame(SETTINGS, ACK, 0, b""))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + body


def _head(filler: int) -> bytes:
    """Headers of a call, none of them compressed, with so many bytes of no use."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/arrow.flight.protocol.FlightService/DoAction",
        ":authority": "node",
        "te": "trailers",
        "content-type": "application/grpc",
        "x-filler": "x" * filler,
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    """As RFC 7541 has it: seven bits of its length at a time, but for what fits into the first ones."""
    length, head = len(text), bytearray([min(len(text), 127)])
    if length >= 127:
        length -= 127
        while length >= 128:
            head.append(length % 128 + 128)
            length //= 128
        head.append(length)
    return bytes(head) + text.encode()


def grown(url: str, pid: int, count: int, bytes_each: int) -> tuple[float, int]:
    """By how many MiB a server has grown at most, under so many connections; and how many bytes it let them send.

    They come in threads, because each mostly waits for windows, and ends without a call that is admitted in
    `flight_call_seconds`: one after the other they would not be there together.
    """
    place = urlsplit(url)
    watched = psutil.Process(pid)
    before = watched.memory_info().rss
    sizes: list[int] = []
    sent: list[int] = []
    with ExitStack() as stack:

        def push(_: int) -> None:
            hostile = HostileConnection(str(place.hostname), int(place.port or 0))
            stack.callback(hostile.close)
            sent.append(hostile.push(bytes_each))
            sizes.append(watched.memory_info().rss)

        for first in range(0, count, PUSHING):
            in_threads(min(PUSHING, count - first), push)
    return (max(sizes) - before) / MIB, sum(sent)


def pushed(connect: Callable[[], socket.socket], beginning: bytes, bytes_max: int) -> tuple[socket.socket, int]:
    """A connection to which so many bytes were sent, or as many as it takes; and how many that were."""
    sock, sent = connect(), 0
    sock.settimeout(QUIET_SECONDS)
    with suppress(OSError):  # it takes no more, or has ended the connection
        sock.sendall(beginning)
        while sent < bytes_max:
            sent += sock.send(bytes(min(FRAME_BYTES, bytes_max - sent)))
    return sock, sent


def flooded(
    connect: Callable[[], socket.socket], beginnings: tuple[tuple[bytes, int], ...], pid: int, count: int
) -> float:
    """By how many MiB a server has grown at most, under so many connections that say more than they should."""
    watched = psutil.Process(pid)
    before = most = watched.memory_info().rss
    with ExitStack() as stack:
        for number in range(count):
            sock, _ = pushed(connect, *beginnings[number % len(beginnings)])
            stack.callback(sock.close)
            most = max(most, watched.memory_info().rss)
    return (most - before) / MIB


def connected_to(path: str) -> socket.socket:
    """To a Unix socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


TINY_LIMITS: Final = Limits(batch=2, batch_attributes=20, put_batch_bytes=MIB)
"""For a first batch, with which a node loads what it needs for them."""


def largest_batch(limits: Limits) -> pa.RecordBatch:
    """As many attributes as one may have, and content for the rest of its bytes. Its last content has an attribute
    twice, so that all of it is decoded, and nothing is stored: what is stored takes memory of its own.
    """
    rows, each = limits.batch, limits.batch_attributes // limits.batch
    pairs = [(f"{number:06d}", "v") for number in range(each)]
    attributes = pa.array([pairs] * (rows - 1) + [[*pairs[1:], pairs[1]]], ATTRIBUTES)
    size = (limits.put_batch_bytes - attributes.nbytes) // rows - 8
    return pa.record_batch([pa.array([bytes(size)] * rows, pa.binary()), attributes], names=["content", "attributes"])


def refused(url: str, token: str, batch: pa.RecordBatch, writers: int, times: int) -> None:
    """Put a batch that is refused so often by so many writers, all at a time."""
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    def write(_: int) -> None:
        with flight.connect(url) as client:
            for _ in range(times):
                writer, told = client.do_put(flight.FlightDescriptor.for_command(b"{}"), batch.schema, options)
                try:
                    writer.write_batch(batch)
                    told.read()
                    writer.close()
                except (pa.ArrowInvalid, flight.FlightError) as error:
                    assert "names an attribute of one content twice" in str(error)  # noqa: PT017 - no test

    in_threads(writers, write)


def peak_mebibytes(pid: int) -> float:
    """The most that a process has ever had in memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1_024 for line in file if line.startswith("VmHWM:"))


def bound_mebibytes(limits: Limits) -> float:
    """What writers with a token make a node grow by at the most: docs/flight.md has it."""
    found = limits.flight_calls * limits.flight_message_bytes + limits.arriving_bytes + limits.decoded_bytes
    found += limits.flight_controls * BODY_BYTES_MAX
    return BASE_MEBIBYTES + found / MIB * KEPT_BY_ALLOCATORS


def hostile_writers(bench: Workbench) -> Iterator[Row]:
    """What a node grows by while one principal puts the largest batches, as many at a time as it may."""
    tokens = bench.path("access") / "tokens"
    token, digest = new_token()
    tokens.write_text(line_of("hostile", ("*",), None, digest), encoding="utf-8")
    os.chmod(tokens, 0o600)
    with node(bench.path("node"), auth={"mode": "TokenFile", "token_file": str(tokens)}) as (there, pid):
        assert there.flight is not None
        refused(there.flight, token, largest_batch(TINY_LIMITS), 1, 1)
        before = peak_mebibytes(pid)
        refused(there.flight, token, largest_batch(DEFAULTS), DEFAULTS.flight_calls_each, bench.sizes.hostile_batches)
        found = peak_mebibytes(pid) - before
    what = f"memory of the node under {DEFAULTS.flight_calls_each} writers over Flight of the largest batches"
    yield Row("agent", what, "", (found,), "MiB", Target(bound_mebibytes(DEFAULTS), True))


def hostile(bench: Workbench) -> Iterator[Row]:
    """What a node grows by while connections without a token send it all that it takes."""
    tokens = bench.path("access") / "tokens"
    tokens.write_bytes(b"")
    os.chmod(tokens, 0o600)
    count = bench.sizes.slow_readers
    with node(bench.path("node"), auth={"mode": "TokenFile", "token_file": str(tokens)}) as (there, pid):
        assert there.flight is not None
        grown(there.flight, pid, 4, 1 << 20)  # what a node ever takes for its first calls
        found = {"over Flight": grown(there.flight, pid, count, 8 << 20)[0]}
        place = urlsplit(there.url)
        plain: dict[str, tuple[Callable[[], socket.socket], tuple[tuple[bytes, int], ...]]] = {
            "over HTTP": (partial(socket.create_connection, (place.hostname, place.port)), HTTP_BEGINNINGS),
            "to the socket": (partial(connected_to, str(there.socket)), SOCKET_BEGINNINGS),
        }
        for name, (connect, beginnings) in plain.items():
            flooded(connect, beginnings, pid, 4)
            found[name] = flooded(connect, beginnings, pid, count)
    for name, grew in found.items():
        base, each = BASE_MEBIBYTES, PLAIN_CONNECTION_KIBIBYTES
        if name == "over Flight":
            base, each = FLIGHT_BASE_MEBIBYTES, CONNECTION_KIBIBYTES
        what = f"memory of the node under {count:,} connections {name} without a token"
        yield Row("agent", what, "", (grew,), "MiB", Target(base + count * each / 1_024, True))
