"""Nodes that are played: they answer the actions of a driver as agents do, and remember nothing of it.

`python -m tests.spark.played COUNT` plays so many in a process of their own until its stdin ends: their addresses.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from pyarrow import flight

THREADS_MAX = 64
"""Of the server: as many nodes answer at the same moment."""

Asked = Callable[[str], None]
"""Called with the name of each action before it is answered."""

ANSWERS: dict[str, dict[str, Any]] = {
    "about": {"node": "", "repository": "r", "millis": 1, "first_sequence": 1, "last_sequence": 0, "socket": None},
    "snapshot": {"id": "s", "transaction": 1, "millis": 1, "expires_millis": 2, "lease": None, "live_bytes": 1},
    "feed-take": {"through": 0, "count": 0, "waiting": 0},
    "feed-done": {"through": 0, "count": 0, "waiting": 0},
}
"""Of a node without a name: a fleet knows it by its address."""

STATES = {"write-find": "unknown", "write-begin": "open", "write-prepare": "prepared", "write-commit": "committed"}
"""What a staged write is after each step."""


class _Plays(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def service(self, handler_call_details: Any) -> Any:
        def answer(message: bytes, context: Any) -> Iterator[bytes]:
            action = flight.Action.deserialize(message)
            self._asked(action.type)
            body = ANSWERS.get(action.type, {})
            if action.type in STATES:
                body = {"write": "w", "state": STATES[action.type]}
            yield flight.Result(json.dumps(body).encode()).serialize()

        return grpc.unary_stream_rpc_method_handler(answer)


@contextmanager
def played_nodes(count: int, asked: Asked = lambda _: None) -> Iterator[list[str]]:
    """Their addresses: one server, at as many of loopback's addresses."""
    with ThreadPoolExecutor(min(count, THREADS_MAX)) as pool:
        server = grpc.server(pool, handlers=[_Plays(asked)], options=[("grpc.so_reuseport", 0)])
        hosts = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(count)]
        port = server.add_insecure_port(f"{hosts[0]}:0")
        for host in hosts[1:]:
            server.add_insecure_port(f"{host}:{port}")
        server.start()
        try:
            yield [f"grpc://{host}:{port}" for host in hosts]
        finally:
            server.stop(None).wait()


@contextmanager
def played_apart(count: int) -> Iterator[list[str]]:
    """The same in a process of their own: what they need is not taken from who asks them."""
    command = [sys.executable, "-m", "tests.spark.played", str(count)]
    # What the server says at its end, a line for each address, is nobody's.
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().split()
        process.stdin.close()


def main() -> None:
    """See the module's text."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with played_nodes(int(sys.argv[1])) as addresses:
        print(*addresses, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
