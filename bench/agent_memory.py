"""What the node's memory does: while 10 GiB stream through it, and while 1,000 readers take next to nothing."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import psutil

from bench.agent import KILOBYTE, MEGABYTE, clients, put
from bench.rounds import Rounds, seconds_of
from bench.serving import node
from bench.table import Row, Target
from bench.workbench import Workbench
from ullage.client.http import HttpClient
from ullage.client.node import Node
from ullage.wire import operations

SAMPLE_SECONDS = 0.02
FLAT_MEBIBYTES = 64
"""What streaming may take, whatever the content's size."""

SMALL_READS = 50


def streaming(bench: Workbench) -> Iterator[Row]:
    """One content of 10 GiB in and out over each path: the most that the node grew, sampled fifty times a second."""
    size = bench.sizes.streamed_bytes
    piece = os.urandom(MEGABYTE)
    label = f"{size // MEGABYTE:,} MiB"
    with ExitStack() as stack:
        there, process = stack.enter_context(node(bench.path("node")))
        flight, local, http = clients(stack, there)
        warm = put(http, bytes(10 * MEGABYTE))
        for _ in _streamed(http, warm):
            continue
        for _ in flight.get_batches([warm]):
            continue
        with _growth(process) as into:
            id = put(http, (piece for _ in range(size // MEGABYTE)))
        yield _grown(f"memory of the node while {label} come in over HTTP", into)
        for path, pieces in (("HTTP", _streamed(http, id)), ("Flight", flight.get_batches([id]))):
            with _growth(process) as out:
                for _ in pieces:
                    continue
            yield _grown(f"memory of the node while {label} go out over {path}", out)
        http.ask(operations.DELETE_HANDLE, f"/v1/handles/{id}")
        with _growth(process) as into:
            local.put_stream(piece for _ in range(size // MEGABYTE))
        yield _grown(f"memory of the node while {label} come in through the socket", into)


def _streamed(http: HttpClient, id: str) -> Iterator[bytes]:
    yield from http.open(f"/v1/handles/{id}", 0, None)[1] or ()


def slow_readers(bench: Workbench) -> Iterator[Row]:
    """Readers that have asked for 10 MB over HTTP and take next to nothing: what that costs, and whom."""
    with ExitStack() as stack:
        there, process = stack.enter_context(node(bench.path("node")))
        _, local, http = clients(stack, there)
        uuid = local.put_stream([os.urandom(MEGABYTE)] * 10)
        (small,) = local.put_many([b"x" * KILOBYTE])

        def small_reads() -> float:
            return seconds_of(lambda: [http.content(f"/v1/handles/{small.hex()}") for _ in range(SMALL_READS)])

        count = bench.sizes.slow_readers
        small_reads()
        alone = [small_reads() for _ in range(bench.sizes.rounds)]
        before = psutil.Process(process).memory_info().rss
        for _ in range(count):
            stack.enter_context(_slow(there, uuid.hex()))
        crowded = [small_reads() for _ in range(bench.sizes.rounds)]
        grown = (psutil.Process(process).memory_info().rss - before) / MEGABYTE
    yield Row("agent", f"memory of the node for {count:,} slow readers of 10 MB", "", (grown,), "MiB")
    what = f"reads of 1 KB over HTTP amid {count:,} slow readers"
    yield Rounds(SMALL_READS, crowded, alone).row("agent", what, "without them")


def _slow(there: Node, id: str) -> socket.socket:
    place = urlsplit(there.url)
    reader = socket.create_connection((str(place.hostname), int(place.port or 0)))
    reader.sendall(f"GET /v1/handles/{id} HTTP/1.1\r\nHost: {place.hostname}\r\n\r\n".encode())
    assert reader.recv(15) == b"HTTP/1.1 200 OK"
    return reader


@contextmanager
def _growth(process: int) -> Iterator[list[float]]:
    """MiB that a process has grown by, sampled while the block runs; a list that is complete afterwards."""
    watched = psutil.Process(process)
    before = watched.memory_info().rss
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            samples.append((watched.memory_info().rss - before) / MEGABYTE)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        samples.append((watched.memory_info().rss - before) / MEGABYTE)


def _grown(what: str, samples: list[float]) -> Row:
    return Row("agent", what, "", (max(samples),), "MiB", Target(FLAT_MEBIBYTES, True))
