"""The answers to requests with an idempotency key, oldest first, in bounded memory.

A key is good for `KEPT_MILLIS`, or until newer answers have filled `BYTES_MAX`. Forgetting changes nothing else, so it
needs no transaction: whoever reads the log again forgets the same by the same rule.
"""

import msgspec

from ullage.engine.model import Answer

KEPT_MILLIS = 3_600_000
"""How long a request can be repeated: an hour outlasts any sensible retry, a restart included."""

BYTES_MAX = 64 << 20
"""Memory of all answers: some 200,000 of single writes, or 400 of batches of 10,000."""

OVERHEAD_BYTES = 250
"""An answer's share beside its bytes: the record, its digests, its place in the map."""


class RememberedAnswers:
    """Changed under the ledger's lock only. `bytes` is the memory that all of them take, about."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._answers: dict[bytes, Answer] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def all(self) -> list[Answer]:
        """Every answer, oldest first."""
        return list(self._answers.values())

    def find(self, key: bytes, now_millis: int) -> Answer | None:
        """The answer, while the key is good."""
        found = self._answers.get(key)
        return None if found is None or _is_over(found, now_millis) else found

    def add(self, answer: Answer, transaction: int) -> None:
        """Remember; the oldest make room."""
        self._drop(answer.key)
        if not answer.transaction:
            answer = msgspec.structs.replace(answer, transaction=transaction)
        self._answers[answer.key] = answer
        self.bytes += _size(answer)
        while self.bytes > self._bytes_max and len(self._answers) > 1:
            self._drop(next(iter(self._answers)))

    def forget(self, now_millis: int) -> None:
        """Drop those whose time is over. A clock that jumped back keeps some longer."""
        while self._answers:
            key, oldest = next(iter(self._answers.items()))
            if not _is_over(oldest, now_millis):
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        dropped = self._answers.pop(key, None)
        if dropped is not None:
            self.bytes -= _size(dropped)


def _is_over(answer: Answer, now_millis: int) -> bool:
    return answer.millis + KEPT_MILLIS <= now_millis


def _size(answer: Answer) -> int:
    return len(answer.answer) + OVERHEAD_BYTES
