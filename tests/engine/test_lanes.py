"""Several things at a time: as many as there are lanes, of as many bytes as memory has for them."""

import threading

import pytest

from ullage.engine.lanes import in_lanes


def test_as_many_are_under_way_as_there_are_lanes() -> None:
    """None is done before four are at work, and each comes out once, with what was made of it."""
    together = threading.Barrier(4)

    def work(job: int) -> int:
        together.wait(10)
        return job * job

    assert sorted(in_lanes(range(12), work, lambda _: 1, 4, 1_000)) == [(n, n * n) for n in range(12)]


def test_no_more_bytes_are_under_way_than_memory_has_for_them() -> None:
    """A job that is larger than all of it is at work alone."""
    lock, under_way, most = threading.Lock(), list[int](), list[int]()

    def work(job: int) -> None:
        with lock:
            under_way.append(job)
            most.append(sum(under_way) if len(under_way) > 1 else 0)
        threading.Event().wait(0.001)  # so that others have the time to come in, if they may
        with lock:
            under_way.remove(job)

    done = [job for job, _ in in_lanes([30, 40, 500, 50, 20, 30, 90, 10] * 5, work, lambda job: job, 4, 100)]

    assert len(done) == 40
    assert 0 < max(most) <= 100


def test_an_error_ends_it_when_what_is_under_way_is_done() -> None:
    """Nothing is at work any more when it comes out, and nothing was begun after it."""
    begun, ended = list[int](), list[int]()

    def work(job: int) -> None:
        begun.append(job)
        if job == 5:
            raise OSError(5, "Input/output error")
        ended.append(job)

    with pytest.raises(OSError, match="Input/output"):
        list(in_lanes(range(1_000), work, lambda _: 1, 4, 100))

    assert sorted(ended) == sorted({*begun} - {5})
    assert len(begun) < 20


def test_with_one_lane_all_happens_in_the_thread_of_the_caller() -> None:
    """One after the other, in order."""
    assert list(in_lanes("abc", lambda _: threading.get_ident(), len, 1, 1)) == [
        (each, threading.get_ident()) for each in "abc"
    ]
