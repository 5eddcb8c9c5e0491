"""Turns: one principal can't use up what another needs, on any transport, and alone it has everything."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from tests.service.running import Running, document_at, until
from tests.service.secured import known
from tests.support import ManualClock
from ullage.client.flight import FlightClient
from ullage.client.http import HttpClient
from ullage.client.socket import SocketClient
from ullage.contract import AuthMode, TlsMode
from ullage.wire import operations
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.fairness import (
    LITTLE,
    LONG_MAX,
    PAUSE_SECONDS_MAX,
    PAUSE_TIMES,
    RECENT_SECONDS,
    SHARED_SECONDS,
    FairTurns,
    Stint,
)
from ullage_agent.service.limits import Limits

GREEDY: Final = ("greedy", False)
GOOD: Final = ("good", False)
MANY: Final = 8
"""Puts of the greedy one at a time."""

SEVERAL: Final = 4


class Story:
    """Turns under a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shared: list[bool] = []
        limits = Limits(turns_each=1, shared_turns_each=SEVERAL, turn_seconds=2.0)
        self.turns = FairTurns(limits, self.clock, self.shared.append)

    def want(self, queue: tuple[str, bool], count: int = 1) -> list[Stint]:
        """So many pieces of work of one queue."""
        pieces = [Stint(queue) for _ in range(count)]
        for piece in pieces:
            self.turns.want(piece)
        return pieces

    def end(self, *pieces: Stint) -> None:
        for piece in pieces:
            self.turns.give_back(piece)

    def passes(self, seconds: float) -> None:
        self.clock.millis += int(seconds * 1000)


def at_work(pieces: list[Stint]) -> list[bool]:
    """Of each whether it has its turn."""
    return [piece.since is not None for piece in pieces]


def test_alone_all_are_at_work() -> None:
    """Whoever is alone is not held up, and commits of theirs share their syncs."""
    story = Story()

    assert at_work(story.want(GREEDY, 50)) == [True] * 50


def test_whoever_has_much_to_do_has_one_turn_beside_somebody_who_has_little() -> None:
    """The other one never waits for the many of the first, and those go on one after the other."""
    story = Story()
    (good,) = story.want(GOOD)
    greedy = story.want(GREEDY, 5)

    assert at_work([good, *greedy]) == [True, *[True] * LITTLE, False, False, False]
    story.end(greedy[0])
    assert at_work(greedy[LITTLE:]) == [False] * 3
    story.end(greedy[1])
    assert at_work(greedy[LITTLE:]) == [True, False, False]
    story.end(good)
    assert at_work(story.want(GOOD)) == [True]


def test_several_with_much_to_do_have_several_turns() -> None:
    """Commits of each go on sharing their syncs, and none has all of the threads."""
    story = Story()
    pieces = [story.want(queue, 10) for queue in (GREEDY, ("another", False))]
    story.passes(2 * RECENT_SECONDS)
    for queue in (GREEDY, ("another", False)):
        story.want(queue)  # both are known to have much to do

    for greedy in pieces:
        while len(greedy) > SEVERAL:
            story.end(greedy.pop(0))
    later = [story.want(queue, 2) for queue in (GREEDY, ("another", False))]

    assert [at_work(greedy).count(True) for greedy in pieces] == [SEVERAL] * 2
    assert [at_work(greedy) for greedy in later] == [[False, False]] * 2


def test_after_each_piece_of_work_there_is_a_pause() -> None:
    """Of whoever has much to do, for as long as somebody with little is there: so most of the time is left to that."""
    story = Story()
    (good,) = story.want(GOOD)
    greedy = story.want(GREEDY, 9)
    story.passes(0.001)
    story.end(*greedy[:2])
    (creating,) = story.want((GREEDY[0], not GREEDY[1]))

    assert story.turns.pause_of(good) <= 0
    assert story.turns.pause_of(greedy[2]) == pytest.approx(0.001 * PAUSE_TIMES, abs=1e-5)
    assert story.turns.pause_of(creating) == pytest.approx(0.001 * PAUSE_TIMES, abs=1e-5)  # of its work of either kind
    story.passes(1)
    story.want(GOOD)
    story.end(greedy[2])
    assert story.turns.pause_of(greedy[3]) == pytest.approx(PAUSE_SECONDS_MAX)


def test_whoever_is_alone_pauses_for_nobody() -> None:
    """The same work, with nobody else there."""
    story = Story()
    story.end(*story.want(GOOD))
    greedy = story.want(GREEDY, 10)
    story.passes(2 * RECENT_SECONDS)
    story.end(greedy[0])

    assert at_work(greedy[1:]) == [True] * SEVERAL + [False] * (9 - SEVERAL)
    assert story.turns.pause_of(greedy[SEVERAL]) <= 0


def test_what_is_at_work_already_ends_before_others_begin() -> None:
    """Somebody who comes takes no turn away: of the many that are at work none follows until one is left."""
    story = Story()
    greedy = story.want(GREEDY, 3)
    story.want(GOOD)
    (later,) = story.want(GREEDY)

    story.end(*greedy[:2])
    assert later.since is None
    story.end(greedy[2])

    assert later.since is not None


def test_what_waits_for_room_does_not_stop_what_makes_room() -> None:
    """Work that creates has turns of its own: deletions of the same principal pass by writers on a full disk."""
    story = Story()
    story.want(GOOD)
    writers, others = story.want(("greedy", True), 9), story.want(GREEDY, 2)

    assert at_work(writers) == [True] * LITTLE + [False] * (9 - LITTLE)
    assert at_work(others) == [True, False]


def test_not_everything_that_takes_long_lets_others_begin() -> None:
    """Some that wait for something, and not any number that work on much: else they have every thread in the end."""
    story = Story()
    story.want(GOOD)
    greedy = story.want(GREEDY, 3 * LONG_MAX)
    for _ in greedy:
        story.passes(2.0)
        story.end(*story.want(GOOD))
        story.want(GREEDY)
        story.turns.look()

    assert at_work(greedy).count(True) == LONG_MAX + 1


def test_a_minute_after_the_others_have_gone_one_has_everything() -> None:
    """Somebody who has asked nothing for so long is not there: all that waits begins."""
    story = Story()
    (good,) = story.want(GOOD)
    greedy, creating = story.want(GREEDY, 9), story.want(("greedy", True), 9)
    story.end(good)

    story.passes(SHARED_SECONDS)
    story.end(greedy[0])

    assert at_work(greedy[1:]) == [True] * 8
    assert at_work(creating) == [True] * 9


def test_the_process_is_shared_from_the_second_one_on() -> None:
    """And for a while after they were there together: whoever comes again finds few at work, and threads that change
    often.
    """
    story = Story()
    story.end(*story.want(GREEDY, 3))
    assert story.shared == []

    story.end(*story.want(GOOD))
    story.passes(SHARED_SECONDS / 2)
    assert at_work(story.want(GREEDY, 6)).count(True) == SEVERAL
    assert story.shared == [True]
    story.passes(SHARED_SECONDS)
    story.end(*story.want(GREEDY))

    assert story.shared == [True, False]


def test_somebody_who_works_for_long_is_there_all_the_time() -> None:
    """Though nothing of it begins or ends."""
    story = Story()
    story.want(GOOD)
    story.passes(1)
    greedy = story.want(GREEDY, 5)

    assert at_work(greedy) == [True] * LITTLE + [False] * (5 - LITTLE)


def test_a_turn_has_an_end() -> None:
    """Work that takes for ever, because it waits for something, keeps nobody of its principal waiting as long."""
    story = Story()
    story.want(GOOD)
    greedy = story.want(GREEDY, 6)

    story.passes(2.0)
    story.want(GOOD)
    story.want(GREEDY)
    story.turns.look()

    assert at_work(greedy) == [True] * (LITTLE + 1) + [False] * (5 - LITTLE)


def test_whoever_gives_up_leaves_its_place() -> None:
    """A request whose client goes away while it waits is not waited for."""
    story = Story()
    story.want(GOOD)
    principal = Principal("greedy")
    first, other, second, third = (story.turns.of(principal, creates=False) for _ in range(4))

    async def tell() -> None:
        await first.take_soon()
        await other.take_soon()
        waiting = asyncio.create_task(second.take_soon())
        follower = asyncio.create_task(third.take_soon())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.rest()
        other.rest()
        await follower

    asyncio.run(tell())
    third.rest()

    assert story.turns.counts == {"good": (1, 0), "greedy": (0, 0)}


def test_the_anonymous_wait_for_nobody() -> None:
    """They may be anybody: of them nobody knows who takes what from whom."""
    story = Story()
    story.want(GOOD)
    turns = [story.turns.of(ANONYMOUS, creates=False) for _ in range(9)]

    for turn in turns:
        turn.take()

    assert story.turns.counts == {"good": (1, 0)}


def test_those_who_are_gone_are_forgotten() -> None:
    """A name that nobody comes with any more costs nothing."""
    story = Story()
    for number in range(100):
        story.end(*story.want((f"tenant {number}", False)))
        story.passes(0.02)
    (last,) = story.want(GOOD)

    assert len(story.turns.counts) <= RECENT_SECONDS / 0.02 + 2
    story.end(last)


def test_threads_of_one_are_few_at_work_beside_another() -> None:
    """However they meet, each gets its turn, and nothing is left of them."""
    story = Story()
    story.want(GOOD)
    principal, count, most = Principal("greedy"), 0, 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal count, most
        for _ in range(20):
            turn = story.turns.of(principal, creates=False)
            turn.take()
            with lock:
                count += 1
                most = max(most, count)
            with lock:
                count -= 1
            turn.rest()

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, range(16)))

    assert most <= LITTLE
    assert story.turns.counts == {"good": (1, 0), "greedy": (0, 0)}


class Gate:
    """Commits of requests end when they are let."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: list[threading.Event] = []
        self.is_open = False

    def commit(self, _: float) -> None:
        """What the engine calls at the end of each."""
        if not threading.current_thread().name.startswith(("ullage-create", "flight", "ullage-socket")):
            return
        with self._lock:
            if self.is_open:
                return
            passed = threading.Event()
            self.waiting.append(passed)
        passed.wait()

    def let(self, place: int) -> None:
        """End the one at a place: 0 came first."""
        with self._lock:
            passed = self.waiting.pop(place)
        passed.set()

    def open(self) -> None:
        """From now on nobody waits."""
        with self._lock:
            self.is_open = True
            for passed in self.waiting:
                passed.set()


class Shared:
    """A node with two principals, whose commits stand at a gate."""

    def __init__(self, running: Running, tokens: dict[str, str]) -> None:
        self.running = running
        self.gate = Gate()
        self.tokens = tokens
        self._threads = ThreadPoolExecutor(MANY + 2)

    @property
    def waiting(self) -> int:
        """How much waits for its turn."""
        return sum(waiting for _, waiting in self.running.server.turns.counts.values())

    def put(self, who: str, via: str) -> None:
        """One content, over a connection of its own."""
        urls, token = self.running.server.urls, self.tokens[who]
        if via == "HTTP":
            with closing(HttpClient(urls["http"], token)) as http:
                http.ask(operations.PUT_HANDLE, operations.PUT_HANDLE.path, b"x")
        elif via == "Flight":
            with FlightClient(urls["flight"], token) as flight:
                list(flight.put_many([[b"x"]]))
        else:
            with self.local(who) as local:
                local.put_many([b"x"])

    def local(self, who: str) -> SocketClient:
        return SocketClient(self.running.server.urls["socket"], self.tokens[who], 5.0)

    def begin(self, work: Callable[..., None], *arguments: str) -> "Future[None]":
        return self._threads.submit(work, *arguments)

    def end(self) -> None:
        self.gate.open()
        self._threads.shutdown()


@contextmanager
def shared(tmp_path: Path, **limits: int) -> Iterator[Shared]:
    """See the class; a token of each is known already."""
    file = tmp_path / "tokens"
    tokens = known(file, "good", "greedy")
    document = document_at(
        tmp_path / "r",
        service={"flight_port": 0, "socket_path": f"{tempfile.mkdtemp(prefix='u-')}/s"},
        tls={"mode": TlsMode.NONE},
        auth={"mode": AuthMode.TOKEN_FILE, "token_file": str(file)},
    )
    # Its own look, every two seconds, gives turns to whoever has begun nothing for a moment: it must not matter when.
    with (
        Running(document, Limits(turn_seconds=600.0, **limits)) as running,
        mock.patch.object(running.server.turns, "look"),
    ):
        found = Shared(running, tokens)
        for name in tokens:
            found.put(name, "HTTP")  # the first one reserves numbers of files, which is a transaction of its own
        running.repository.committer.listeners.append(found.gate.commit)
        try:
            yield found
        finally:
            found.end()


@pytest.mark.parametrize("via", ["HTTP", "Flight", "socket"])
def test_a_put_waits_for_few_of_anothers_many(tmp_path: Path, via: str) -> None:
    """Beside eight of somebody else a second put waits for no more of them than are at work."""
    with shared(tmp_path) as both:
        gate = both.gate
        first = both.begin(both.put, "good", via)
        until(lambda: len(gate.waiting) == 1, "the first put")
        greedy = [both.begin(both.put, "greedy", via) for _ in range(MANY)]
        until(lambda: len(gate.waiting) >= 2 and both.waiting == MANY - LITTLE, "few of the greedy one's to be at work")
        second = both.begin(both.put, "good", via)
        turns = both.running.server.turns
        until(lambda: sum(turns.counts["good"]) == 2, "the second put")

        let = 0
        while not second.done():
            until(lambda: second.done() or len(gate.waiting) >= 2, "both to be at work")
            if not second.done():
                gate.let(-1)
                let += 1

        assert let <= 4
        assert not first.done()
        assert sum(each.done() for each in greedy) <= LITTLE + 1
        gate.open()
        for each in (first, second, *greedy):
            each.result()


def test_a_stream_has_no_turn_while_its_client_takes_its_time(tmp_path: Path) -> None:
    """In the middle of a content, beside somebody else who is at work, other puts of the same principal go on."""
    with shared(tmp_path) as both:
        other = both.begin(both.put, "greedy", "HTTP")
        until(lambda: len(both.gate.waiting) == 1, "somebody else to be at work")

        def pieces() -> Iterator[bytes]:
            yield b"begin"
            for via in ("HTTP", "Flight", "socket"):
                put = both.begin(both.put, "good", via)
                until(lambda: len(both.gate.waiting) == 2, f"a put over {via} to be at work")
                both.gate.let(-1)
                put.result(30)
            both.gate.open()
            yield b"end"

        with both.local("good") as local:
            assert local.put_stream(pieces())
        other.result()
