"""How the bench measures: engine and peer take turns in one run, and each round gives one ratio."""

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.table import Row, Target, duration

Timed = Callable[[], float]
"""Does a fixed amount of work and returns how many seconds it took; what it prepares and tidies is its own affair."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of each side, round by round, for `operations` operations each."""

    operations: int
    engine: list[float]
    peer: list[float]

    def row(self, case: str, what: str, peer_name: str, target: Target | None = None) -> Row:
        """The engine's speed as a share of the peer's: 1 is as fast, 0.5 takes twice as long."""
        ratios = tuple(peer / engine for engine, peer in zip(self.engine, self.peer, strict=True))
        engine = duration(statistics.median(self.engine) / self.operations)
        peer = duration(statistics.median(self.peer) / self.operations)
        return Row(case, what, peer_name, ratios, target=target, medians=f"{engine}, peer {peer}")


def take_turns(rounds: int, operations: int, engine: Timed, peer: Timed) -> Rounds:
    """Run both sides `rounds` times, the other one first each time, after one round each that does not count."""
    engine()
    peer()
    result = Rounds(operations, [], [])
    for turn in range(rounds):
        sides = [(engine, result.engine), (peer, result.peer)]
        for run, seconds in sides if turn % 2 == 0 else reversed(sides):
            gc.collect()
            seconds.append(run())
    return result


def rotate(rounds: int, sides: Mapping[str, Timed], *, warm: bool = True) -> dict[str, list[float]]:
    """Run all sides `rounds` times, another one first each time, after one round (`warm`) that does not count."""
    names = list(sides)
    for name in names if warm else ():
        sides[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            seconds[name].append(sides[name]())
    return seconds


def settle() -> None:
    """Let the disk finish what earlier work left behind, so that it burdens nobody's round."""
    os.sync()


def seconds_of(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Seconds until `count` threads that start together have all done their work; the first failure is raised."""
    if count == 1:
        return seconds_of(lambda: work(0))
    gate = threading.Barrier(count + 1)
    failures: list[Exception] = []

    def run(number: int) -> None:
        try:
            gate.wait()
            work(number)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if failures:
        raise failures[0]
    return seconds


def looped(threads: int, each: int, work: Callable[[int], None]) -> Timed:
    """`each` calls of `work`, with the thread's number, in each of so many threads."""

    def loop(number: int) -> None:
        for _ in range(each):
            work(number)

    return lambda: in_threads(threads, loop)
