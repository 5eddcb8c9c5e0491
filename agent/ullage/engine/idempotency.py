"""Idempotency: a request that is repeated with its key is not carried out again, and gets its first answer.

    request, key K | transaction: the change and Answer(K) | answer lost | repeat with K: the answer is in the ledger
                   | crash before it: neither is there     |             | repeat with K: carried out, the first time

The answer stands in the transaction of the change, so there is nothing between the two that a crash could separate.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ullage.clock import Clock
from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import Answer, Operation
from ullage.engine.repositories import FlowFileRepository
from ullage.errors import KeyInUse, KeyReused


class IdempotentRequest(NamedTuple):
    """One request: its first answer, if it was carried out before, and the way to make this one remembered."""

    first: bytes | None
    remember: Callable[[bytes], Sequence[Operation]]
    """The operations that remember an answer, for the transaction of the change; none without a key."""

    transaction: int = 0
    """The one that the first answer stands in, 0 without one: what an answer could not know of itself."""


class IdempotencyKeys:
    """All idempotency keys of a repository. Thread-safe."""

    def __init__(self, ledger: Ledger, answers: AnswerRuns, log: FlowFileRepository, clock: Clock) -> None:
        self._ledger = ledger
        self._answers = answers
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: set[bytes] = set()

    @contextmanager
    def once(self, key: bytes | None, request: bytes) -> Iterator[IdempotentRequest]:
        """Carry a request out at most once while its key is good; without a key nothing is remembered.

        KeyInUse while the same key is under way; KeyReused if it came with another request; AnswerUnknown if damage may
        hold its answer; RepositoryStopped if its first outcome is not known.
        """
        if key is None:
            yield IdempotentRequest(None, lambda _: ())
            return
        with self._lock:
            if key in self._under_way:
                raise KeyInUse("a request with this idempotency key is under way: ask again for its answer")
            self._under_way.add(key)
        try:
            found = self._found(key, request)
            first, transaction = (None, 0) if found is None else (found.answer, found.transaction)
            yield IdempotentRequest(first, lambda answer: self._remembered(key, request, answer), transaction)
        finally:
            with self._lock:
                self._under_way.discard(key)

    def first(self, key: bytes, request: bytes) -> bytes | None:
        """The durable answer to this request, if it was given. KeyReused if it was another request; AnswerUnknown."""
        found = self._found(key, request)
        return None if found is None else found.answer

    def _found(self, key: bytes, request: bytes) -> Answer | None:
        found = self._answers.find(key, self._clock.now_millis())
        if found is None:
            return None
        if found.request != request:
            raise KeyReused("this idempotency key came with another request before: use a new key for each request")
        self._log.wait_durable(found.transaction)
        return found

    def forget(self) -> None:
        """Drop answers whose time is over."""
        self._ledger.forget_over(self._clock.now_millis())

    def _remembered(self, key: bytes, request: bytes, answer: bytes) -> Sequence[Operation]:
        return (Answer(key, request, answer, self._clock.now_millis()),)
