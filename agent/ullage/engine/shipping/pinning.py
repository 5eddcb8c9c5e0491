"""Pins: what somebody reads of a share, nobody removes.

A reader pins first and then looks whether the base counts still; a writer looks for pins after others count. So one of
the two sees the other.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.publishing import PIN_SECONDS
from ullage.engine.shipping.sharedocs import ListedBase, SharePin, encode_document
from ullage.engine.shipping.shareplace import PINS, SharePlace
from ullage.errors import BucketRefused, BucketUnavailable, NotABackup


@contextmanager
def pinned(place: SharePlace, share: str, base: ListedBase, last_log: int) -> Iterator[None]:
    """While this lasts nothing is removed that begins with a base. NotABackup: it counts no more. Credentials that may
    only read hold nothing: then what is removed meanwhile is missing.
    """
    nonce = secrets.token_hex(8)
    key = f"{PINS}/{nonce}"
    pin = encode_document(SharePin(share=share, epoch=base.writer.epoch, nonce=nonce, base=base, last_log=last_log))
    is_over = threading.Event()
    try:
        place.put_new(key, pin)
    except BucketRefused:
        yield
        return
    renewing = threading.Thread(target=_renew, args=(place, key, pin, is_over), name="share-pin", daemon=True)
    renewing.start()
    try:
        if base not in listed_bases(place, share):
            raise NotABackup(f"{place.name}: base {base.name} was dropped just now: choose a later point")
        yield
    finally:
        is_over.set()
        renewing.join()
        with suppress(BucketRefused, BucketUnavailable):  # then it expires
            place.delete([key])


def _renew(place: SharePlace, key: str, pin: bytes, is_over: threading.Event) -> None:
    while not is_over.wait(PIN_SECONDS / 6):
        with suppress(BucketRefused, BucketUnavailable):  # the next one may come in time
            place.put_pieces(key, [pin], len(pin))
