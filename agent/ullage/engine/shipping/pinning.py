"""Pins: what somebody reads of a share, nobody removes.

A reader pins first and then looks whether the base counts still; a writer looks for pins after others count. So one of
the two sees the other.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ullage.engine.pins import pin_held
from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.sharedocs import ListedBase, SharePin, encode_document
from ullage.engine.shipping.shareplace import PINS, SharePlace
from ullage.errors import NotABackup


@contextmanager
def pinned(place: SharePlace, share: str, base: ListedBase, last_log: int) -> Iterator[None]:
    """While this lasts nothing is removed that begins with a base. NotABackup: it counts no more."""
    nonce = secrets.token_hex(8)
    key = f"{PINS}/{nonce}"
    pin = encode_document(SharePin(share=share, epoch=base.writer.epoch, nonce=nonce, base=base, last_log=last_log))
    with pin_held(lambda: place.put_pieces(key, [pin], len(pin)), lambda: place.delete([key])):
        if base not in listed_bases(place, share):
            raise NotABackup(f"{place.name}: base {base.name} was dropped just now: choose a later point")
        yield
