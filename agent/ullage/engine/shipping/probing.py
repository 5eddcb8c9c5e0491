"""Whether a bucket keeps the conditions that a share stands on: asked before it is trusted with one."""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ullage.engine.shipping.shareplace import PROBES, SharePlace, Taken
from ullage.errors import BucketRefused

RACERS: Final = 32

WAIT_SECONDS: Final = 60.0
"""How long a racer waits for the others to be ready."""


def probe(place: SharePlace) -> None:
    """Race 32 puts of an object that is not there, and 32 in the place of one: each time one wins, and what lies there
    is the winner's. BucketRefused where two win. BucketUnavailable: nobody knows.
    """
    key = f"{PROBES}/{secrets.token_hex(8)}"
    try:
        _race(place, key, lambda data: place.put_new(key, data), "If-None-Match: *")
        found = place.get(key)
        if found is None:
            raise BucketRefused(f"{place.name}: what was put there can't be read right after")
        _race(place, key, lambda data: place.put_over(key, data, found.tag), "If-Match")
    finally:
        place.delete([key])


def _race(place: SharePlace, key: str, put: Callable[[bytes], None], condition: str) -> None:
    ready = threading.Barrier(RACERS)
    put_by = [secrets.token_bytes(8) for _ in range(RACERS)]

    def has_won(data: bytes) -> bool:
        ready.wait(WAIT_SECONDS)
        try:
            put(data)
        except Taken:
            return False
        return True

    with ThreadPoolExecutor(RACERS, "probe") as pool:
        winners = [data for data, has_won in zip(put_by, pool.map(has_won, put_by), strict=True) if has_won]
    found = place.get(key)
    # The one that won may not have been told so: after an answer that was lost its own put is in its way.
    if len(winners) > 1 or found is None or found.data not in (winners or put_by):
        raise BucketRefused(
            f"the server of {place.name} let {len(winners)} of {RACERS} puts with {condition} win at once: two nodes "
            "could write the same log there, and lose what they acknowledged. Use one that keeps conditions"
        )
