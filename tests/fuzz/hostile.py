"""An agent in a process of its own with bounded memory, a good client, and canaries: what no answer may hold.

Canaries are tokens in use and contents of somebody else's, which the process has had in its memory a moment ago.
"""

import contextlib
import os
import random
import resource
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import grpc
import httpx
import psutil

from tests.fuzz.wirebytes import FLIGHT, Call
from tests.service.running import process, until
from ullage.contract import AuthMode, Right, TlsMode
from ullage_agent.service.tokens import line_of, new_token

MEMORY_BYTES: Final = 1 << 30
"""What the agent's address space may grow by: a hostile number of bytes that is believed is seen."""

ANSWER_SECONDS: Final = 30.0

SILENCE_SECONDS: Final = 0.5
"""After which no answer to an HTTP request is waited for any more."""

CANARIES: Final = 64

REFUSED: Final = frozenset(
    {
        *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND),
        *(grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED),
        *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.OUT_OF_RANGE),
        *(grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED),
    }
)
"""How a call of a hostile client may end. INTERNAL and UNKNOWN say that nobody had expected it."""


class Agent:
    """Under attack. `admin` is the good client's token, `token` the hostile one's, which may do all but read."""

    def __init__(
        self, pid: int, url: str, flight: str, path: str, admin: str, token: str, chance: random.Random
    ) -> None:
        self.pid = pid
        self.url = url
        self.path = path
        self.token = token
        self.sent = bytearray()
        self._admin = admin
        self._good = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {admin}"}, timeout=ANSWER_SECONDS, trust_env=False
        )
        self._channel = grpc.insecure_channel(flight)
        self._chance = chance
        self._others: dict[str, bytes] = {}

    def close(self) -> None:
        self._channel.close()
        self._good.close()

    def plant(self) -> None:
        """Another tenant's contents, stored and read, so that the process has had them in its memory."""
        for _ in range(CANARIES):
            content = self._chance.randbytes(32) * 64
            id = self._good.post("/v1/handles", content=content).raise_for_status().json()["id"]
            self._others[id] = content
        for id, content in self._others.items():
            assert self._good.get(f"/v1/handles/{id}").content == content

    def ask_well(self) -> None:
        """A good client goes on working."""
        content = b"good " * 20
        id = self._good.post("/v1/handles", content=content).raise_for_status().json()["id"]
        assert self._good.get(f"/v1/handles/{id}").content == content
        assert self._good.delete(f"/v1/handles/{id}").is_success

    def require_silence(self, answer: bytes) -> None:
        """No canary is in it."""
        assert self._admin.encode() not in answer, "the good client's token came back"
        for content in self._others.values():
            assert content[:32] not in answer, "another tenant's content came back"

    def call(self, call: Call) -> None:
        """Over gRPC, byte for byte."""
        self.sent += b"".join(call.requests)
        headers = (("authorization", f"Bearer {self.token}"),)
        method = self._channel.stream_stream(FLIGHT + call.method, _bytes, _bytes)
        answers = method(iter(call.requests), timeout=ANSWER_SECONDS, metadata=headers)
        with contextlib.suppress(grpc.RpcError):  # its status says how it ended
            for answer in answers:
                self.require_silence(answer)
        told = [str(answers.details()).encode(), *(bytes(value) for _, value in _pairs(answers.trailing_metadata()))]
        self.require_silence(b"\0".join(told))
        assert answers.code() in REFUSED, f"{call.method}: {answers.code()} {answers.details()}"

    def say(self, sent: bytes) -> None:
        """Over HTTP, byte for byte. The server may close without an answer."""
        place = urlsplit(self.url)
        connection = socket.create_connection((str(place.hostname), int(place.port or 0)))
        # It takes the end of what is sent for the client's own, and answers nobody: what is not whole meets silence.
        answer = _exchanged(connection, sent, SILENCE_SECONDS, ends=False)
        self.sent += sent
        self.require_silence(answer)
        assert not answer or answer[:10] in (b"HTTP/1.1 1", b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4"), answer[:500]

    def frame(self, sent: bytes) -> None:
        """Over the socket."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        self.sent += sent
        self.require_silence(_exchanged(connection, sent, ANSWER_SECONDS, ends=True))

    def require_clean(self) -> None:
        """Nothing that is stored holds a canary, nor bytes that nobody sent."""
        found, cursor = [], ""
        while True:
            page = self._good.get("/v1/handles", params={"limit": 1_000, **({"cursor": cursor} if cursor else {})})
            listed = page.raise_for_status().json()
            found += listed["handles"]
            cursor = listed.get("next") or ""
            if not cursor:
                break
        for each in found:
            if each["id"] in self._others or each.get("deleted_millis"):
                continue
            self.require_silence(repr(each).encode())
            found_there = self._good.get(f"/v1/handles/{each['id']}")
            if found_there.status_code == 410:
                continue  # its time to live was short
            content = found_there.raise_for_status().content
            self.require_silence(content)
            assert _was_sent(content, self.sent), f"handle {each['id']} holds what nobody sent: {content[:200]!r}"

    def require_alive(self) -> None:
        assert psutil.pid_exists(self.pid), "the agent died"


@contextlib.contextmanager
def attacked(directory: Path, chance: random.Random) -> Iterator[Agent]:
    """A fresh agent with its canaries, under a limit of its address space."""
    tokens = directory / "tokens"
    admin, digest = new_token()
    own, own_digest = new_token()
    writing = tuple(right for right in Right if right.verb != "get")
    tokens.write_text(line_of("admin", ("*",), None, digest) + line_of("hostile", writing, None, own_digest))
    path = f"/tmp/ullage-{secrets.token_hex(4)}.sock"
    sections = {
        "service": {"flight_port": 0, "socket_path": path},
        "auth": {"mode": AuthMode.TOKEN_FILE, "token_file": str(tokens)},
        "tls": {"mode": TlsMode.NONE},
    }
    with process(directory, **sections) as served:
        url = served.start()
        until(lambda: any('"serving"' in line or "serving" in line for line in served.log), "the log to say where")
        flight = next(part for line in served.log for part in line.replace('"', " ").split() if "grpc://" in part)
        size = psutil.Process(served.pid).memory_info().vms + MEMORY_BYTES
        resource.prlimit(served.pid, resource.RLIMIT_AS, (size, size))
        agent = Agent(served.pid, url, flight.rpartition("grpc://")[2].rstrip("/,"), path, admin, own, chance)
        try:
            agent.plant()
            yield agent
            agent.require_alive()
        finally:
            agent.close()
            with contextlib.suppress(FileNotFoundError):  # the agent took it away
                os.unlink(path)


def _bytes(value: bytes) -> bytes:
    return value


def _pairs(metadata: object) -> list[tuple[str, bytes]]:
    return [(key, value if isinstance(value, bytes) else str(value).encode()) for key, value in metadata or ()]  # type: ignore[attr-defined]


def _exchanged(connection: socket.socket, sent: bytes, seconds: float, *, ends: bool) -> bytes:
    """What comes back until the other side closes, or says nothing any more."""
    answer = b""
    with connection:
        connection.settimeout(seconds)
        with contextlib.suppress(OSError):  # it closes on what it does not want
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                answer += piece
    return answer


def _was_sent(content: bytes, sent: bytearray) -> bool:
    """Whether it is made of runs of what came: of one, or of the pieces of a stream. Bytes of anything else's come as
    hardly more than one at a time.
    """
    at = runs = 0
    while at < len(content):
        found, above = 0, len(content) - at + 1
        while above - found > 1:
            middle = (found + above) // 2
            found, above = (middle, above) if content[at : at + middle] in sent else (found, middle)
        at, runs = at + max(1, found), runs + 1
    return runs <= 2 + len(content) // 16
