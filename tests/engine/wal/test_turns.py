"""Who leads a sync, and that nobody is forgotten."""

import threading
from functools import partial

from tests.threads import begin, together
from ullage.engine.wal.turns import Turns


def test_the_first_leads_and_the_others_follow() -> None:
    """A follower whose transaction became durable is woken; so is the first of the others, to lead."""
    turns = Turns()
    assert turns.lead_or_wait(1)
    answers: dict[int, bool] = {}

    def follow(id: int) -> int:
        answers[id] = turns.lead_or_wait(id)
        return id

    followers = [begin(partial(follow, id)) for id in (2, 3, 4)]
    while len(turns._followers) < 3:
        assert not any(follower.done() for follower in followers)
    turns.done(2)
    followers[0].result(60)
    while sum(follower.done() for follower in followers) < 2:
        pass

    assert len(turns._followers) == 1
    assert turns.lead_or_wait(5)
    turns.done(5)
    assert [follower.result(60) for follower in followers] == [2, 3, 4]
    assert not any(answers.values())


def test_sixteen_threads_are_never_left_without_a_leader() -> None:
    """Whoever wants to be durable gets there, however leads and waits interleave."""
    turns = Turns()
    durable = [0]
    appended = [0]
    lock = threading.Lock()

    def commit_some(_: int) -> None:
        for _ in range(200):
            with lock:
                appended[0] += 1
                id = appended[0]
            while durable[0] < id:
                if turns.lead_or_wait(id):
                    durable[0] = max(durable[0], appended[0])
                    turns.done(durable[0])

    together(*(partial(commit_some, thread) for thread in range(16)))

    assert durable[0] == 16 * 200
