"""Idempotency keys: a request that is repeated with its key is not carried out again, and gets its first answer.

The answer stands in the transaction of the change: methods that take `also` put what it gives there.
"""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ullage.engine.idempotency import IdempotencyKeys, IdempotentRequest as IdempotentRequest
from ullage.engine.model import Operation
from ullage.interface.checks import checked_key

Operations = Sequence[Operation]
"""What stands in a transaction beside the change: what `IdempotentRequest.remember` gives."""

AlsoIds = Callable[[list[str]], Operations]
"""Operations from the ids of what is stored."""

AlsoUuids = Callable[[list[bytes]], Operations]
"""The same from the uuids."""


def nothing_else(_: object) -> Operations:
    """No other operations."""
    return ()


class Keys:
    """The keys of one owner: two owners' keys never meet."""

    def __init__(self, keys: IdempotencyKeys, owner: str = "") -> None:
        self._keys = keys
        self._owner = owner

    def once(
        self, key: str | None, *about: object, contents: Sequence[bytes] = ()
    ) -> AbstractContextManager[IdempotentRequest]:
        """Carry out at most once what `about` describes. KeyInUse; KeyReused if the key came with something else."""
        found = checked_key(key)
        if found is None:  # of thousands of attributes the digest would cost as much as storing them
            return self._keys.once(None, b"")
        sums = [f"{len(content)}:{zlib.crc32(content)}" for content in contents]
        return self._keys.once(_digest(self._owner, found), _digest(*map(repr, about), *sums))


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
