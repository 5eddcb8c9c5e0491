"""Several things at a time, within bounds of how many they are and how many bytes they hold in memory."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_lanes(
    jobs: Iterable[Job],
    work: Callable[[Job], Result],
    bytes_of: Callable[[Job], int],
    lanes: int,
    bytes_max: int,
    *,
    is_ordered: bool = False,
) -> Iterator[tuple[Job, Result]]:
    """What `work` makes of each job, as they are done, or `is_ordered`: at most `lanes` at a time, of at most
    `bytes_max` altogether; one that has more has all lanes for itself. With one lane it is done here, one after the
    other.

    An error of one, or of whoever takes the results, ends it once those are done that are under way.
    """
    if lanes == 1:
        for job in jobs:
            yield job, work(job)
        return
    with ThreadPoolExecutor(lanes, "lane") as pool:
        under_way: dict[Future[Result], Job] = {}
        for job in jobs:
            while under_way and (
                len(under_way) == lanes or bytes_of(job) + sum(map(bytes_of, under_way.values())) > bytes_max
            ):
                yield from _done(under_way, is_ordered)
            under_way[pool.submit(work, job)] = job
        while under_way:
            yield from _done(under_way, is_ordered)


def _done(under_way: dict[Future[Result], Job], is_ordered: bool) -> Iterator[tuple[Job, Result]]:
    done = [next(iter(under_way))] if is_ordered else wait(under_way, return_when=FIRST_COMPLETED).done
    for each in done:
        yield under_way.pop(each), each.result()
