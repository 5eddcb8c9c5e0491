"""Seals: what a row of the table `flowfiles` carries so that its content can be read by its address.

An address says of no queue, and nothing finds the FlowFiles that point there without looking at all of them, those in
swap files too. So whoever may not read every queue is given with each row the proof that they were shown it:

    row shown   the rules let them read its queue    seal = queue, code(key, who, queue, where the content lies)
    read        the code is ours, for them, for just these bytes; the rules let them read that queue now; and
                what is true of every address: a deleted content is gone for all but a lease that has kept it

It shows no bytes that could not have been read when the row was. Content never changes and an address is never given
again, so there is nothing else that it could come to mean. The key is the process's own: a seal ends with it.
"""

import hmac
import os
import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from ullage.contract import NO_QUEUE, QueueUse
from ullage.embedded.acting import Acting
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import HANDLE_QUEUE, FlowFileRecord
from ullage.wire.tickets import SEAL_BYTES, ClaimAddress

_SAID: Final = struct.Struct("<7Q")
_QUEUE: Final = struct.Struct("<Q")

CODE_BYTES: Final = SEAL_BYTES - _QUEUE.size
KEY_BYTES: Final = 32


class Seals:
    """Made and proved with one key. Thread-safe."""

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)

    def of(self, acting: Acting, records: Iterable[FlowFileRecord]) -> list[bytes | None]:
        """For rows that are shown to somebody; None for a content that is empty and so lies nowhere."""
        key = self._key_of(acting)
        return [_sealed(key, record) for record in records]

    def allow(self, acting: Acting, ledger: Ledger, seal: bytes, address: ClaimAddress) -> bool:
        """Whether it is of this content, for these, and they may read its queue still."""
        if len(seal) != SEAL_BYTES:
            return False
        (queue,) = _QUEUE.unpack_from(seal)
        if not hmac.compare_digest(seal[_QUEUE.size :], _code(self._key_of(acting), queue, address)):
            return False
        name = NO_QUEUE if queue == HANDLE_QUEUE else ledger.queue_name(queue)
        return (queue == HANDLE_QUEUE or bool(name)) and acting.queues.allows(QueueUse.READ, name)

    def _key_of(self, acting: Acting) -> bytes:
        return blake2b(acting.owner.encode(), key=self._key, digest_size=KEY_BYTES).digest()


def _sealed(key: bytes, record: FlowFileRecord) -> bytes | None:
    if (claim := record.claim) is None:
        return None
    address = claim.resource, claim.offset, claim.length, claim.crc, record.start, record.size
    return _QUEUE.pack(record.queue) + _code(key, record.queue, address)


def _code(key: bytes, queue: int, address: ClaimAddress) -> bytes:
    return blake2b(_SAID.pack(queue, *address), key=key, digest_size=CODE_BYTES).digest()
