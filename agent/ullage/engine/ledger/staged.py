"""Staged writes: what each attempt of each has stored, until the write is settled.

Changed by `Ledger.apply` and, where an end needs no transaction, by `engine/staging.py`; under the ledger's lock.

Of what is settled only so much is remembered, and the owner of most loses its oldest first: one who settles writes
without end drives nobody else's verdicts out.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from ullage.engine.model import Staged, StagedWrite, WriteState, split_uuids

SETTLED_MAX: Final = 100_000
"""Settled writes that are remembered, some 30 MiB: a stream with a batch a second for a day."""

WORDS_BYTES_MAX: Final = 64 << 20
"""Decisions and attempts of settled writes. A verdict is remembered without them too: then whoever repeats the write
learns that it was carried out, but not how to finish it on a node that was down all the while.
"""


class WriteProgress:
    """One write as its last `record` says, and by the ids of its `attempts` what each staged, in that order."""

    __slots__ = ("attempts", "record")

    def __init__(self, record: StagedWrite) -> None:
        self.record = record
        self.attempts: dict[bytes, list[Staged]] = {}

    @property
    def is_closed(self) -> bool:
        return self.record.state in (WriteState.COMMITTED, WriteState.ABORTED)

    def transactions(self, attempt: bytes) -> int:
        """How many transactions an attempt has staged."""
        staged = self.attempts.get(attempt)
        return staged[-1].number + 1 if staged else 0

    def staged(self, attempt: bytes, number: int | None = None) -> bytes:
        """The uuids of an attempt, of one of its transactions or of all, 16 bytes each."""
        found = self.attempts.get(attempt, [])
        return b"".join(each.uuids for each in found if number is None or each.number == number)

    def all_staged(self) -> Iterator[bytes]:
        """The FlowFiles of all attempts."""
        for attempt in self.attempts:
            yield from split_uuids(self.staged(attempt))

    def chosen(self) -> Iterator[bytes]:
        """The FlowFiles of the attempts that count, in the order in which the record names them."""
        for attempt in split_uuids(self.record.attempts):
            yield from split_uuids(self.staged(attempt))

    def others(self) -> Iterator[bytes]:
        """The FlowFiles that go: of all other attempts, or of all if it was aborted."""
        chosen = set() if self.record.state == WriteState.ABORTED else set(split_uuids(self.record.attempts))
        for attempt in [attempt for attempt in self.attempts if attempt not in chosen]:
            yield from split_uuids(self.staged(attempt))


class OwnerShare:
    """The settled writes of one owner, those settled first in front, and the bytes of those that have words."""

    __slots__ = ("ids", "words", "words_bytes")

    def __init__(self) -> None:
        self.ids: dict[bytes, None] = {}
        self.words: dict[bytes, int] = {}
        self.words_bytes = 0

    def add(self, record: StagedWrite) -> None:
        self.ids[record.id] = None
        if size := len(record.decision) + len(record.attempts):
            self.words[record.id] = size
            self.words_bytes += size

    def remove(self, id: bytes) -> None:
        del self.ids[id]
        self.words_bytes -= self.words.pop(id, 0)


class StagedWrites:
    """All that are remembered. `pending` are those of which something is staged, or may be yet."""

    def __init__(self, settled_max: int = SETTLED_MAX, words_bytes_max: int = WORDS_BYTES_MAX) -> None:
        self._settled_max = settled_max
        self._words_bytes_max = words_bytes_max
        self.pending: dict[bytes, WriteProgress] = {}
        self._settled: dict[bytes, WriteProgress] = {}
        self._shares: dict[str, OwnerShare] = {}

    def __len__(self) -> int:
        return len(self.pending) + len(self._settled)

    def find(self, id: bytes) -> WriteProgress | None:
        return self.pending.get(id) or self._settled.get(id)

    def set(self, record: StagedWrite) -> None:
        """A new write, or another state of one that is known."""
        write = self._unsettled(record.id) or self.pending.get(record.id) or WriteProgress(record)
        if write.is_closed and record.state == WriteState.OPEN:
            write.attempts = {}  # it begins anew, which it does only once nothing of it is staged any more
        write.record = record
        self.pending[record.id] = write
        if write.is_closed and not write.attempts:
            self.settle(record.id)

    def add(self, staged: Staged) -> bool:
        """What an attempt has stored; whether the write is known."""
        write = self.find(staged.write)
        if write is None:
            return False
        self._unsettled(staged.write)
        self.pending[staged.write] = write
        write.attempts.setdefault(staged.attempt, []).append(staged)
        return True

    def settle(self, id: bytes) -> None:
        """Nothing of it is staged any more: only its verdict is remembered."""
        write = self.pending.pop(id, None)
        if write is not None:
            write.attempts = {}
            self._settled[id] = write
            self._shares.setdefault(write.record.owner, OwnerShare()).add(write.record)
        while len(self._settled) > self._settled_max:
            most = max(self._shares.values(), key=lambda share: len(share.ids))
            self._unsettled(next(iter(most.ids)))
        while sum(share.words_bytes for share in self._shares.values()) > self._words_bytes_max:
            most = max(self._shares.values(), key=lambda share: share.words_bytes)
            self._silence(next(iter(most.words)), most)

    def _silence(self, id: bytes, share: OwnerShare) -> None:
        """Only the verdict is remembered."""
        write = self._settled[id]
        write.record = msgspec.structs.replace(write.record, decision=b"", attempts=b"")
        share.words_bytes -= share.words.pop(id)

    def _unsettled(self, id: bytes) -> WriteProgress | None:
        """A settled one, which is so no more."""
        write = self._settled.pop(id, None)
        if write is not None:
            share = self._shares[write.record.owner]
            share.remove(id)
            if not share.ids:
                del self._shares[write.record.owner]
        return write

    def forget(self, now_millis: int) -> None:
        """Drop settled ones whose time is over. It changes nothing else, so it needs no transaction."""
        while self._settled:
            id, oldest = next(iter(self._settled.items()))
            if oldest.record.expires_millis > now_millis:
                return
            self._unsettled(id)

    def operations(self) -> list[StagedWrite | Staged]:
        """What a snapshot holds of them: settled ones first, as they come to be again."""
        found: list[StagedWrite | Staged] = [write.record for write in self._settled.values()]
        for write in self.pending.values():
            found.append(write.record)
            for staged in write.attempts.values():
                found += staged
        return found
