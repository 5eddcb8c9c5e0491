"""Large contents and slow readers: the agent's memory does not grow with either. bench/agent_memory.py does 10 GiB."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.service.running import LOCAL, Running, document_at, process, until
from ullage_agent.service.limits import DEFAULTS, PIECE_BYTES, WIDE_BYTES, Limits

MB = 1 << 20
STREAMED = 256
FLAT_MB = 64
READERS = 1_000
REQUEST_BYTES = 64 << 10  # of a request without its content: connection, parser, task, and what malloc rounds up


@contextmanager
def growth(pid: int) -> Iterator[list[float]]:
    """MiB that a process has grown by, sampled while the block runs."""
    watched = psutil.Process(pid)
    before = watched.memory_info().rss
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            samples.append((watched.memory_info().rss - before) / MB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        samples.append((watched.memory_info().rss - before) / MB)


def test_memory_stays_flat_while_a_large_content_goes_in_and_out(tmp_path: Path) -> None:
    """It is several times as large as what the agent may grow by."""
    piece = random.Random(5).randbytes(MB)
    with process(tmp_path) as server, httpx.Client(base_url=server.start(), timeout=60) as client:
        client.post("/v1/handles", content=bytes(10 * MB))  # what every request needs is there by now
        with growth(server.pid) as into:
            answer = client.post("/v1/handles", content=(piece for _ in range(STREAMED)))
        taken = 0
        with growth(server.pid) as out, client.stream("GET", f"/v1/handles/{answer.json()['id']}") as stream:
            for each in stream.iter_raw(MB):
                taken += len(each)

    assert taken == answer.json()["size"] == STREAMED * MB
    assert max(into) < FLAT_MB
    assert max(out) < FLAT_MB


def test_a_thousand_slow_readers_keep_nobody_out(tmp_path: Path) -> None:
    """Each has asked for 8 MiB and takes next to nothing; others are answered, memory keeps to its bound, and when they
    have gone, so have their descriptors. They come from several addresses: one may have half of the requests.
    """
    each = 2 * PIECE_BYTES + REQUEST_BYTES  # one piece in the socket's buffer, the next waiting for its place
    bound = (READERS * each + 3 * DEFAULTS.wide_streams * WIDE_BYTES) / MB + FLAT_MB
    with process(tmp_path) as server, httpx.Client(base_url=server.start(), timeout=60) as client:
        id = client.post("/v1/handles", content=bytes(8 * MB)).json()["id"]
        small = client.post("/v1/handles", content=b"small").json()["id"]
        watched = psutil.Process(server.pid)
        before = watched.num_fds()
        with growth(server.pid) as grown, ExitStack() as readers:
            for number in range(READERS):
                readers.enter_context(slow(server.url, id, f"127.0.0.{2 + number % 3}"))
            assert watched.num_fds() >= before + READERS
            for _ in range(5):
                assert client.get(f"/v1/handles/{small}").content == b"small"
        assert max(grown) < bound
        until(lambda: watched.num_fds() < before + 50, "the readers' descriptors to be closed")
        assert len(client.get(f"/v1/handles/{id}").content) == 8 * MB


def slow(url: str, id: str, source: str) -> socket.socket:
    place = urlsplit(url)
    reader = socket.create_connection((str(place.hostname), int(place.port or 0)), source_address=(source, 0))
    reader.sendall(f"GET /v1/handles/{id} HTTP/1.1\r\nHost: {place.hostname}\r\n\r\n".encode())
    assert reader.recv(15) == b"HTTP/1.1 200 OK"
    return reader


@pytest.mark.parametrize("wide", [0, 1])
def test_more_downloads_than_may_be_wide_get_the_same(tmp_path: Path, wide: int) -> None:
    """How much is read at a time shows in nothing that a client sees."""
    content = random.Random(6).randbytes(5 * MB + 3)
    with Running(document_at(tmp_path / "r", **LOCAL), Limits(wide_streams=wide)) as running:
        path = f"/v1/handles/{running.client.post('/v1/handles', content=content).json()['id']}"
        with running.client.stream("GET", path) as first, running.client.stream("GET", path) as second:
            assert b"".join(first.iter_raw()) == b"".join(second.iter_raw()) == content
        part = running.client.get(path, headers={"range": f"bytes={MB - 1}-{3 * MB}"})
        assert part.content == content[MB - 1 : 3 * MB + 1]
