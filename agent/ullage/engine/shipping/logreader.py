"""Reading the log of a share: which of its objects count, in their order."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ullage.engine.shipping.logobject import LOG_OBJECT_BYTES_MAX, LogObject, decode_log_object
from ullage.engine.shipping.sharedocs import ListedBase
from ullage.engine.shipping.shareplace import LOG, SharedObject, SharePlace, log_name, log_number
from ullage.engine.wal.serde import SerDe
from ullage.errors import RepositoryDamaged

AHEAD_BYTES: Final = 64 << 20
"""Of objects that were asked for before their turn came, at most; a larger one comes alone."""


def newest_log(place: SharePlace) -> int:
    """The number of the newest log object that is listed; 0 if none is."""
    numbers = (log_number(name) for name in place.lengths(LOG))
    return max((number for number in numbers if number is not None), default=0)


def read_log(
    place: SharePlace,
    share: str,
    serde: SerDe,
    base: ListedBase | None = None,
    before: int | None = None,
    *,
    ahead: int = 1,
) -> Iterator[LogObject]:
    """The objects behind a base that count, fences included; all there are without one, or of these exactly those with
    lower numbers than `before`. An object counts unless one of a higher epoch stands before it; up to `ahead` are
    asked for at a time. RepositoryDamaged: one is missing, or its transactions do not follow.
    """
    first, epoch, last = (1, 0, 0) if base is None else (base.next_log, base.writer.epoch, base.transaction)
    numbers = range(first, newest_log(place) + 1 if before is None else before)
    for number, found in _fetched(place, numbers, ahead):
        path = f"{place.name}/{log_name(number)}"
        if found is None:
            raise RepositoryDamaged(f"{path} is missing, and others stand behind it: restore to a point before it")
        log_object = decode_log_object(found.data, share, number, path, serde)
        header = log_object.header
        if header.epoch < epoch:
            continue
        epoch = header.epoch
        if not header.is_fence:
            if header.first != last + 1:
                raise RepositoryDamaged(f"{path} begins with transaction {header.first}, behind {last}")
            last = header.last
        yield log_object


def _fetched(place: SharePlace, numbers: range, ahead: int) -> Iterator[tuple[int, SharedObject | None]]:
    """Those objects, in their order; many small ones at a time, for what one costs is the wait for an answer."""
    if ahead == 1 or len(numbers) <= 1:
        for number in numbers:
            yield number, place.get(log_name(number))
        return
    lengths = place.lengths(LOG)
    with ThreadPoolExecutor(ahead, "log") as pool:
        coming: deque[tuple[int, int, Future[SharedObject | None]]] = deque()
        held = 0
        try:
            for number in numbers:
                length = lengths.get(log_name(number), LOG_OBJECT_BYTES_MAX)
                while coming and (len(coming) == ahead or held + length > AHEAD_BYTES):
                    first, size, fetched = coming.popleft()
                    yield first, fetched.result()
                    held -= size
                coming.append((number, length, pool.submit(place.get, log_name(number))))
                held += length
            while coming:
                first, _, fetched = coming.popleft()
                yield first, fetched.result()
        finally:
            for _, _, fetched in coming:
                fetched.cancel()
