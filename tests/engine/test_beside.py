"""Work beside other work ends, whatever becomes of the thread that was to do it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ullage.engine import beside
from ullage.engine.beside import Beside, Work


def dies(_work: Callable[[], None], _arguments: Any) -> int:
    """A thread that found no memory for its first steps."""
    return 0


def is_refused(_work: Callable[[], None], _arguments: Any) -> int:
    """No thread more is to be had."""
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("start", [dies, is_refused])
def test_what_no_thread_does_is_done_by_whoever_waits(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[Callable[[], None], Any], int]
) -> None:
    """With `threading.Thread` a thread that died before its first step was waited for without an end."""
    monkeypatch.setattr(beside, "start_new_thread", start)
    left = [3, 2, 1]
    with Beside[int]() as work:
        for _ in range(3):
            work.begin(left.pop)
        assert work.finish() == 3
        assert work.finish() is None


def test_work_is_done_once_by_another_thread() -> None:
    """While its maker does something else."""
    ran: list[int] = []
    gate = threading.Event()

    def work() -> None:
        ran.append(threading.get_ident())
        gate.set()

    begun = Work(work)
    assert gate.wait(60)
    begun.wait()
    begun.result()
    assert len(ran) == 1
    assert ran[0] != threading.get_ident()


def test_a_failure_is_raised_where_the_next_work_begins_and_nothing_is_left_under_way() -> None:
    """As if it had been done there."""

    def fail() -> None:
        raise ValueError("no")

    left: dict[str, None] = {}

    def fail_and(then: Callable[[Beside[None]], None]) -> None:
        with Beside[None]() as work:
            work.begin(fail)
            then(work)

    with pytest.raises(ValueError, match="no"):
        fail_and(lambda work: work.begin(lambda: pytest.fail("it must not begin")))
    with pytest.raises(ValueError, match="no"):
        fail_and(lambda work: None)
    with pytest.raises(KeyError):
        fail_and(lambda work: left.__getitem__("nothing"))
