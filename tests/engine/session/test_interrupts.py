"""What a signal handler raises in the main thread, between any two lines, fails the call in which it fell alone."""

import contextlib
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.strikes import Alarm, Strike, strikes
from tests.support import Workshop, drain, put_all
from tests.threads import begin
from ullage.engine import uninterrupted as module
from ullage.engine.engine import Engine
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import CommitOutcomeUnknown, DiskFull, RepositoryStopped

SEED = 20261121
STEP = int(os.environ.get("ULLAGE_STRIKES", "3"))
"""Every so many lines one is struck; 1 strikes each, in some minutes."""

TIMES = {KeyboardInterrupt: 1, Alarm: 3, MemoryError: 3}
"""Errors, and how many times as far apart their strikes are, unless each line is struck: they go the same ways."""

ROUND = 25
"""After so many strikes comes a crash, and what was kept goes: each strike checks all that is there."""

SIGNALS = 400
"""Enough that each of the calls of a session is struck many times; some seconds."""


class Struck(BaseException):
    """What the handler of a real signal raises."""


def told(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


def work(repository: Engine, at: int, done: list[int]) -> None:
    """One session that uses most of what there is: it reads, rewrites, ingests, streams, penalizes and commits."""
    with repository.session() as session:
        (record,) = session.get_many("in", 1)
        content = session.read(record).read()
        record = session.put_attribute(session.write(record, content + b", new"), "seen", "yes")
        session.transfer(record, "out")
        session.ingest("out", [b"also %d" % at])
        made = session.create([record])
        with session.writing(made) as stream:
            stream.write(b"stream %d " % at)
            stream.write(bytes(3_000))
        session.transfer(made, "out")
        session.commit()
        done.append(at)


def contents(repository: Engine) -> list[bytes]:
    """What stands in the queues of a trial; taken out."""
    return sorted(content.rstrip(b"\0 ") for name in ("in", "out") for content in drain(repository, name))


def require_whole(repository: Engine, where: str) -> None:
    assert repository.log.is_running, where
    for queue in repository.queues.all():
        assert queue.figures().held == 0, where
    report = repository.check(deep=True)
    assert report.problems == (), (where, report.problems)


def put_thrice(repository: Engine) -> None:
    """What another thread does meanwhile."""
    for _ in range(3):
        put_all(repository, "other", [b"other"])


def outcomes(at: int) -> dict[bool, list[bytes]]:
    old = b"old %d" % at
    return {False: [old], True: sorted([b"also %d" % at, old + b", new", b"stream %d" % at])}


@pytest.mark.parametrize("error", TIMES)
def test_an_interrupt_at_any_line_of_a_session_fails_that_call_alone(
    workshop: Workshop, error: type[BaseException]
) -> None:
    """What the caller is told is so, at once and after a restart; the repository and other threads go on."""
    repository = workshop.make(claims={"large_claim": 2_048})
    kept: list[bytes] = []
    for at, strike in enumerate(strikes(error, STEP * TIMES[error] if STEP > 1 else 1)):
        put_all(repository, "in", [b"old %d" % at])
        other = begin(partial(put_thrice, repository))
        done: list[int] = []
        is_told = True
        try:
            with strike.armed():
                work(repository, at, done)
        except error as interrupt:
            if "commit, which was let come to its end first: it was carried out" in told(interrupt):
                done.append(at)
            # Of the last lines before the return of a call nobody can say more than that it came this far.
            is_told = bool(done) or "uninterrupted.py" not in strike.where
        other.result(60)
        require_whole(repository, strike.where)
        found = contents(repository)
        assert found in ([outcomes(at)[bool(done)]] if is_told else list(outcomes(at).values())), strike.where
        put_all(repository, "kept", found)
        kept += [*found, *[b"other"] * 3]
        if at % ROUND == 0 or not strike.where:
            repository = workshop.crash()
            assert sorted(drain(repository, "kept") + drain(repository, "other")) == sorted(kept), strike.where
            kept.clear()


class ApplyStrike(Strike):
    """Falls while a transaction that has its id is taken into memory."""

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        caller = frame.f_back
        while caller is not None and caller.f_code.co_name != "_write_and_apply":
            caller = caller.f_back
        return super()._enter(frame, event, argument) if caller is not None else None


def struck_work(strike: Strike, repository: Engine, at: int, done: list[int]) -> None:
    with strike.armed():
        work(repository, at, done)


def test_no_memory_while_a_transaction_is_applied_leaves_its_outcome_to_a_reopen(workshop: Workshop) -> None:
    """Half of it may be in memory, and who would take that back needs memory as well: so nothing may follow. The caller
    is told that nobody knows; a reopen in the same process finds all of it or nothing, and everything else.
    """
    repository = workshop.make(claims={"large_claim": 2_048})
    kept: list[bytes] = []
    struck = 0
    for at in itertools.count(STEP, STEP):
        put_all(repository, "in", [b"old %d" % at])
        strike, done = ApplyStrike(at, MemoryError), list[int]()

        trial = begin(partial(struck_work, strike, repository, at, done))
        if isinstance(error := trial.exception(60), CommitOutcomeUnknown):
            struck += 1
            with pytest.raises(RepositoryStopped):
                put_all(repository, "kept", [b"later"])
            workshop.shut()
            repository = workshop.open()
            repository.proof.run()
            assert sorted(drain(repository, "kept")) == sorted(kept), strike.where
            kept.clear()
        else:
            assert error is None, strike.where
        require_whole(repository, strike.where)
        found = contents(repository)
        assert found in ([outcomes(at)[True]] if done else list(outcomes(at).values())), strike.where
        put_all(repository, "kept", found)
        kept += found
        if not strike.where:
            break

    assert struck > 10
    assert sorted(drain(workshop.crash(), "kept")) == sorted(kept)


@contextlib.contextmanager
def signals(chooser: random.Random) -> Iterator[None]:
    """One alarm at a random moment, whose handler raises."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, chooser.uniform(0.00005, 0.004))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# One that falls into a finalizer is told and dropped by Python itself: nobody could catch it there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_at_any_moment_lose_and_double_nothing(workshop: Workshop) -> None:
    """Real alarms fall into sessions: each trial is done or not done, never half, and never both."""
    chooser = random.Random(SEED)
    repository = workshop.make(claims={"large_claim": 2_048})
    struck = 0
    for at in range(SIGNALS):
        put_all(repository, "in", [b"old %d" % at])
        done: list[int] = []
        try:
            with signals(chooser):
                work(repository, at, done)
        except Struck:
            struck += 1
        found = contents(repository)
        assert found in ([outcomes(at)[True]] if done else outcomes(at).values()), f"seed {SEED}, trial {at}"
    require_whole(repository, f"seed {SEED}")
    assert struck > SIGNALS / 10


def test_an_interrupt_at_any_line_of_a_put_of_a_handle_fails_that_call_alone(workshop: Workshop) -> None:
    """The handle is there if the caller is told so, and what is there stays."""
    repository = workshop.make()
    there = 0
    for strike in strikes(Alarm, STEP):
        may = {1}
        try:
            with strike.armed():
                repository.handles.put(b"content", ttl_millis=1_000)
        except Alarm as interrupt:
            may = {1} if "was carried out" in told(interrupt) else {0, 1} if "uninterrupted" in strike.where else {0}
        require_whole(repository, strike.where)
        found = len(repository.handles.page(b"", 10_000))
        assert found - there in may, strike.where
        there = found

    assert len(workshop.crash().handles.page(b"", 10_000)) == there


@uninterrupted
def failing() -> None:
    raise DiskFull("no room")


def test_an_interrupt_says_how_the_call_that_it_fell_into_failed() -> None:
    """Its error would else be lost: the interrupt is what is raised."""
    found = set()
    for strike in strikes(KeyboardInterrupt, 1):
        try:
            with strike.armed():
                failing()
        except DiskFull:
            found.add("itself")
        except KeyboardInterrupt as interrupt:
            found.add(told(interrupt))
    assert any("failing" in note and note.endswith("failed: no room.") for note in found), found


@pytest.fixture
def called() -> Iterator[list[int]]:
    """The numbers of the signals whose handlers were called; that of SIGUSR1 raises."""
    numbers: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        if number == signal.SIGUSR1:
            raise Struck

    before = {number: signal.signal(number, note) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_handler_is_called_once_when_the_work_is_done(called: list[int]) -> None:
    """Not in between, however often its signal came, and also when another one raises; then all are as they were."""
    handlers = [signal.getsignal(number) for number in range(1, 65)]

    @uninterrupted
    def work() -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        assert uninterrupted(lambda: list(called))() == []

    with pytest.raises(Struck) as caught:
        work()
    assert called == [signal.SIGUSR1, signal.SIGUSR2]
    assert "it was carried out" in told(caught.value)
    assert [signal.getsignal(number) for number in range(1, 65)] == handlers


def test_a_call_that_never_ends_is_left_with_its_outcome_unknown(
    called: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks again, long after the first time, gets out of waiting for a disk that hangs."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", -1.0)
    done: list[int] = []

    @uninterrupted
    def work() -> None:
        for at in range(3):
            done.append(at)
            signal.raise_signal(signal.SIGUSR1)

    handler = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(CommitOutcomeUnknown, match=r"work was interrupted \(Struck\(\)\)"):
        work()
    assert done == [0, 1]
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert uninterrupted(lambda: 5)() == 5


def test_a_child_that_another_thread_forks_meanwhile_has_its_handlers(called: list[int]) -> None:
    """The work goes on in the parent alone: in the child nobody would ever call what it notes."""

    def fork() -> int:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGUSR2)
            os._exit(40 + len(called))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert uninterrupted(lambda: begin(fork).result(60))() == 41
    assert called == []
