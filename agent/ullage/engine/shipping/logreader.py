"""Reading the log of a share: which of its objects count, in their order."""

from collections.abc import Iterator, Mapping
from typing import Final

from ullage.engine.lanes import in_lanes
from ullage.engine.shipping.logobject import (
    LOG_OBJECT_BYTES_MAX,
    LogObject,
    LogObjectHeader,
    decode_log_header,
    decode_log_object,
)
from ullage.engine.shipping.sharedocs import ListedBase
from ullage.engine.shipping.shareplace import LOG, SharedObject, SharePlace, log_name, log_number
from ullage.engine.wal.serde import SerDe
from ullage.errors import RepositoryDamaged

AHEAD_BYTES: Final = 64 << 20
"""Of objects that were asked for before their turn came, at most; a larger one comes alone."""

FENCE_BYTES_MAX: Final = 2 << 10
"""A fence is no longer than that; what is longer is none, and need not be read."""


def newest_log(place: SharePlace) -> int:
    """The number of the newest log object that is listed; 0 if none is."""
    numbers = (log_number(name) for name in place.lengths(LOG))
    return max((number for number in numbers if number is not None), default=0)


def log_headers(
    place: SharePlace, share: str, lengths: Mapping[str, int], *, ahead: int = 1
) -> Iterator[tuple[int, LogObjectHeader | None]]:
    """Of these objects each that is still there, in their order, void ones too: its number, and what it says of itself,
    None for one that is too long for a fence. RepositoryDamaged.
    """
    known = {number: length for name, length in lengths.items() if (number := log_number(name)) is not None}

    def fetched(number: int) -> tuple[bool, SharedObject | None]:
        if known[number] > FENCE_BYTES_MAX:
            return True, None
        found = place.get(log_name(number))
        return found is not None, found

    def bytes_of(_: int) -> int:
        return FENCE_BYTES_MAX

    for number, (is_there, found) in in_lanes(sorted(known), fetched, bytes_of, ahead, AHEAD_BYTES, is_ordered=True):
        if found is not None:
            path = f"{place.name}/{log_name(number)}"
            yield number, decode_log_header(found.data, share, number, path)[0]
        elif is_there:
            yield number, None


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
    lengths = place.lengths(LOG) if ahead > 1 and len(numbers) > 1 else {}

    def length_of(number: int) -> int:
        return lengths.get(log_name(number), LOG_OBJECT_BYTES_MAX)

    def fetched(number: int) -> SharedObject | None:
        return place.get(log_name(number))

    yield from in_lanes(numbers, fetched, length_of, ahead if lengths else 1, AHEAD_BYTES, is_ordered=True)
