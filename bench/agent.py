"""What goes in: puts over the node's transports, beside the engine called directly and a socket that only receives."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import msgspec

from bench.rounds import Rounds, rotate, seconds_of, settle
from bench.serving import node, receiver, send_whole
from bench.table import OURSELVES, Row, Target
from bench.workbench import Workbench
from ullage.client.flight import FlightClient
from ullage.client.http import HttpClient, items_of
from ullage.client.node import Node
from ullage.client.socket import SocketClient
from ullage.engine.engine import Engine
from ullage.wire import operations
from ullage.wire.content import HandleBatch, StoredBatch

KILOBYTE = 1_024
MEGABYTE = 1 << 20
BATCH = 1_000
ROUND_BYTES = 40 * MEGABYTE
"""What one side puts in a round, but for contents that are larger."""

RECEIVER = "a socket that only receives"


def puts(bench: Workbench) -> Iterator[Row]:
    """Batches of 1,000 contents of 1 KB over each path, beside the engine in this process."""
    contents = [os.urandom(KILOBYTE) for _ in range(BATCH)]
    count = bench.sizes.batches
    with bench.repository("engine", archive={"enabled": False}) as repository, ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, http = clients(stack, there)
        bare = stack.enter_context(receiver())

        def to_receiver() -> None:
            for _ in range(count):
                send_whole(bare, contents, BATCH * KILOBYTE)

        def over_flight() -> None:
            for _ in flight.put_many(contents for _ in range(count)):
                continue

        sides = {
            "engine": partial(_timed, lambda: [repository.handles.put_many(contents) for _ in range(count)]),
            "receiver": partial(_timed, to_receiver),
            "Flight": partial(_timed, over_flight),
            "socket": partial(_timed, lambda: [local.put_many(contents) for _ in range(count)]),
            "HTTP": partial(_timed, lambda: [_put_batch(http, contents) for _ in range(count)]),
        }
        seconds = rotate(bench.sizes.rounds, sides)
    for name, target in (("Flight", Target(0.6)), ("socket", None), ("HTTP", None)):
        for peer, against, wanted in (("engine", OURSELVES, target), ("receiver", RECEIVER, None)):
            rounds = Rounds(BATCH * count, seconds[name], seconds[peer])
            yield rounds.row("agent", f"puts of 1 KB in batches of 1,000, {name}", against, wanted)


def single_puts(bench: Workbench) -> Iterator[Row]:
    """One content a put, of 1 KB, 100 KB and 10 MB, over each path."""
    bytes_max = min(ROUND_BYTES, bench.sizes.reads * 20 * KILOBYTE)
    for size, name in ((KILOBYTE, "1 KB"), (100 * KILOBYTE, "100 KB"), (10 * MEGABYTE, "10 MB")):
        count = max(2, min(bytes_max // size, bench.sizes.reads // 10))
        content = os.urandom(size)
        pieces = [content[at : at + MEGABYTE] for at in range(0, size, MEGABYTE)]
        yield from _single(bench, name, pieces, count, bench.sizes.rounds, content)


def large_puts(bench: Workbench) -> Iterator[Row]:
    """One content of a GiB a put: it streams on every path."""
    size = bench.sizes.stream_bytes
    piece = os.urandom(MEGABYTE)
    label = f"{size // MEGABYTE:,} MiB"
    yield from _single(bench, label, [piece] * (size // MEGABYTE), 1, min(3, bench.sizes.stream_rounds))


def _single(
    bench: Workbench, name: str, pieces: list[bytes], count: int, rounds: int, content: bytes | None = None
) -> Iterator[Row]:
    """`content`: as a whole, for the paths that take one."""
    size = sum(map(len, pieces))
    with bench.repository("engine", archive={"enabled": False}) as repository, ExitStack() as stack:
        there, _ = stack.enter_context(node(bench.path("node")))
        flight, local, http = clients(stack, there)
        bare = stack.enter_context(receiver())
        works: dict[str, Callable[[], Any]] = {
            "engine": partial(_put_directly, repository, pieces),
            "receiver": partial(send_whole, bare, pieces, size),
            "socket": partial(local.put_stream, pieces),
            "HTTP": lambda: put(http, iter(pieces) if content is None else content),
        }
        if content is not None:
            works["Flight"] = lambda: flight.put([content])
        seconds = rotate(rounds, {what: partial(repeated, work, count) for what, work in works.items()})
    for path in ("Flight", "socket", "HTTP"):
        for peer, against in (("engine", OURSELVES), ("receiver", RECEIVER)):
            if path in seconds:
                compared = Rounds(count, seconds[path], seconds[peer])
                yield compared.row("agent", f"puts of {name}, one each, {path}", against)


def clients(stack: ExitStack, there: Node) -> tuple[FlightClient, SocketClient, HttpClient]:
    """One of each, closed with the stack."""
    assert there.flight is not None
    assert there.socket is not None
    flight = stack.enter_context(FlightClient(there.flight))
    local = stack.enter_context(SocketClient(there.socket))
    return flight, local, stack.enter_context(closing(HttpClient(there.url)))


def put(http: HttpClient, content: bytes | Iterable[bytes]) -> str:
    """One content over HTTP, without a key, as over the other paths; its id."""
    return http.ask(operations.PUT_HANDLE, operations.PUT_HANDLE.path, content).id


def _put_batch(http: HttpClient, contents: Sequence[bytes]) -> StoredBatch:
    batch = HandleBatch(items=items_of(contents, [{}] * len(contents)))
    return http.ask(operations.PUT_HANDLES, operations.PUT_HANDLES.path, msgspec.json.encode(batch))


def repeated(work: Callable[[], Any], passes: int) -> float:
    """Seconds of so many calls."""
    settle()
    return seconds_of(lambda: [work() for _ in range(passes)])


def _timed(work: Callable[[], Any]) -> float:
    return repeated(work, 1)


def _put_directly(repository: Engine, pieces: Iterable[bytes]) -> None:
    put = repository.handles.begin()
    for piece in pieces:
        put.write(piece)
    put.commit()
