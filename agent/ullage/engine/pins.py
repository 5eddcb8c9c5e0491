"""Pins in a bucket: an object that says that somebody reads what lies beside it, so that nobody removes that.

A reader puts one, and puts it anew while it reads. One that is old, by the server's clock, is a dead reader's.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ullage.errors import BucketRefused, BucketUnavailable

PIN_SECONDS: Final = 3_600
"""A reader that has not told so long that it is there is taken for dead. It tells six times as often."""


@contextmanager
def pin_held(put: Callable[[], None], remove: Callable[[], None]) -> Iterator[None]:
    """While this lasts there is a pin, which `put` puts, each time the same. Credentials that may only read have none:
    then what is removed meanwhile is missing.
    """
    try:
        put()
    except BucketRefused:
        yield
        return
    is_over = threading.Event()
    renewing = threading.Thread(target=_renew, args=(put, is_over), name="pin", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        is_over.set()
        renewing.join()
        with suppress(BucketRefused, BucketUnavailable):  # then it expires
            remove()


def _renew(put: Callable[[], None], is_over: threading.Event) -> None:
    while not is_over.wait(PIN_SECONDS / 6):
        with suppress(BucketRefused, BucketUnavailable):  # the next one may come in time
            put()
