"""Bodies on their way: who sends slowly keeps nobody out."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.service.running import Running, document_at, until
from tests.service.secured import known
from ullage.contract import AuthMode, Right
from ullage.errors import QuotaReached, ServiceBusy
from ullage_agent.service.access import Principal
from ullage_agent.service.http import arrivals as module
from ullage_agent.service.http.arrivals import GRACE_SECONDS, Arrivals
from ullage_agent.service.limits import SMALL_BYTES, Limits

MB = 1_000_000
HOSTILE, OTHER, GOOD = (Principal(name, rights=(Right.READ,)) for name in ("hostile", "other", "good"))
LIMITS = Limits(arriving_bytes=8 * MB, arriving_bytes_each=6 * MB)


class Sent:
    """A body of which so much has come."""

    def __init__(self, received_bytes: int = 0) -> None:
        self.received_bytes = received_bytes
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


class Time:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def arrivals(time: Time) -> Arrivals:
    return Arrivals(LIMITS, time)


def test_the_slowest_of_who_has_most_makes_room(arrivals: Arrivals, time: Time) -> None:
    """Never one of who has less, however slow."""
    slow, slower, few = Sent(100_000), Sent(50_000), Sent()
    for sent in (slow, slower):
        arrivals.begin(HOSTILE, 3 * MB, sent)
    arrivals.begin(OTHER, 2 * MB, few)
    time.now = GRACE_SECONDS

    arrivals.begin(GOOD, MB, Sent())

    assert [each.is_given_up for each in (slow, slower, few)] == [False, True, False]
    assert arrivals.bytes == 6 * MB


def test_who_has_more_has_no_time_of_grace(arrivals: Arrivals) -> None:
    """Else all room could be had by whoever begins anew each second, and nobody else would get any of it."""
    many = [Sent() for _ in range(4)]
    for sent, who in zip(many, (HOSTILE, HOSTILE, OTHER, OTHER), strict=True):
        arrivals.begin(who, 2 * MB, sent)

    for _ in range(3):
        arrivals.begin(GOOD, MB, Sent()).release()
        arrivals.begin(HOSTILE if arrivals._bytes["hostile"] < 4 * MB else OTHER, 2 * MB, Sent())

    assert sum(each.is_given_up for each in many) >= 1
    with pytest.raises(ServiceBusy):
        arrivals.begin(Principal("third", rights=(Right.READ,)), 5 * MB, Sent())


def test_what_began_just_now_and_what_is_complete_stays(arrivals: Arrivals, time: Time) -> None:
    """Of who has no more than others. Whoever comes then is refused, and nothing of it counts."""
    complete, young = Sent(), Sent()
    arrivals.begin(HOSTILE, 4 * MB, complete).is_complete = True
    time.now = GRACE_SECONDS
    arrivals.begin(OTHER, 4 * MB, young)

    with pytest.raises(ServiceBusy, match="arriving_bytes"):
        arrivals.begin(GOOD, 4 * MB, Sent())

    assert not complete.is_given_up
    assert not young.is_given_up
    assert arrivals.bytes == 8 * MB


def test_one_principal_has_its_share_and_makes_room_for_itself(arrivals: Arrivals, time: Time) -> None:
    """The anonymous, who may be anybody, have no share."""
    slow, others = Sent(), Sent()
    arrivals.begin(OTHER, MB, others)
    arrivals.begin(HOSTILE, 5 * MB, slow)
    with pytest.raises(QuotaReached, match="arriving_bytes_each"):
        arrivals.begin(HOSTILE, 2 * MB, Sent())
    time.now = GRACE_SECONDS

    arrivals.begin(HOSTILE, 2 * MB, Sent())

    assert (slow.is_given_up, others.is_given_up) == (True, False)


def test_small_bodies_are_not_counted_and_room_goes_back_once(arrivals: Arrivals) -> None:
    """There are no more of them than requests."""
    for _ in range(1_000):
        arrivals.begin(GOOD, SMALL_BYTES - 1, Sent())
    found = arrivals.begin(GOOD, MB, Sent())
    assert arrivals.bytes == MB
    found.release()
    found.release()
    assert (arrivals.bytes, arrivals._bytes) == (0, {})


class Crowd:
    """A node, and slow clients of two principals that announce more than it takes."""

    def __init__(self, running: Running, tokens: dict[str, str], stack: ExitStack) -> None:
        self.running = running
        self.tokens = tokens
        self.slow = [stack.enter_context(self._announce(who)) for who in ("hostile", "other") for _ in range(6)]

    def _announce(self, who: str) -> socket.socket:
        split = urlsplit(self.running.url)
        found = socket.create_connection((split.hostname, split.port), timeout=30)
        head = f"POST /v1/handles/batch/get HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.tokens[who]}\r\n"
        found.sendall(f"{head}Content-Length: {2 * MB}\r\n\r\n".encode() + b'{"ids": [')
        return found

    @property
    def arriving_bytes(self) -> int:
        """As the metrics tell."""
        text = self.running.server.metrics.text().decode()
        found = re.search(r"^ullage_requests_arriving_bytes (\S+)$", text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def ask(self) -> httpx.Response:
        """A large body of the good one, which comes at once."""
        body = json.dumps({"ids": ["nothing"]}).encode() + b" " * MB
        headers = {"Authorization": f"Bearer {self.tokens['good']}", "Content-Type": "application/json"}
        return httpx.post(f"{self.running.url}/v1/handles/batch/get", content=body, headers=headers, timeout=30)


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)
    tokens = known(tmp_path / "tokens", "hostile", "other", "good")
    document = document_at(tmp_path / "r", auth={"mode": AuthMode.TOKEN_FILE, "token_file": str(tmp_path / "tokens")})
    with Running(document, LIMITS) as running, ExitStack() as stack:
        yield Crowd(running, tokens, stack)


def test_a_body_that_comes_is_taken_beside_many_that_do_not(crowd: Crowd) -> None:
    """They had all the room there was from their first byte on, for a minute each, and whatever came was refused."""
    until(lambda: crowd.arriving_bytes > 6 * MB, "their bodies to be on their way")

    found = [crowd.ask().status_code for _ in range(3)]

    assert found == [200] * 3
    gone = [each for each in crowd.slow if _refused(each)]
    assert gone
    for each in crowd.slow:
        each.close()
    until(lambda: crowd.arriving_bytes == 0, "all room to be given back")


def _refused(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return b"503 " in sock.recv(2_000)
    except TimeoutError:
        return False
