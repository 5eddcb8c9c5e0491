"""The answers to requests with an idempotency key: those that are in memory, and which runs hold the others.

    fresh  answers since the last checkpoint | a checkpoint freezes them | frozen, until they are in a durable run

A key is good for `KEPT_MILLIS`, or until newer answers have filled what there is room for. Forgetting changes nothing
else, so it needs no transaction: whoever reads the log again forgets the same by the same rule. Runs go whole, with
their newest answer.
"""

from collections.abc import Sequence

import msgspec

from ullage.engine.model import Answer, RunFile

KEPT_MILLIS = 3_600_000
"""How long a request can be repeated: an hour outlasts any sensible retry, a restart included."""

BYTES_MAX = 128 << 20
"""Memory of answers that are in no run: some 400,000 of single writes, or 300 of batches of 10,000 over HTTP. A
checkpoint is due at a quarter of it: what comes while that is written must not drive out what it has not written yet.
"""

RUN_BYTES_MAX = 1 << 30
"""Disk of the runs of answers: some five million single writes an hour."""

OVERHEAD_BYTES = 250
"""An answer's share of memory beside its bytes: the record, its digests, its place in the map."""

ANSWERS_SPACE = "answers"
"""How runs of answers name what they hold."""


class RememberedAnswers:
    """Changed under the ledger's lock only. `bytes` is the memory that those in it take, about."""

    def __init__(self, bytes_max: int = BYTES_MAX, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._run_bytes_max = run_bytes_max
        self._fresh: dict[bytes, Answer] = {}
        self._frozen: dict[bytes, Answer] = {}
        self._runs: dict[int, RunFile] = {}
        self.bytes = 0

    def __len__(self) -> int:
        """Of all answers, and once more for each that a repeat after its hour replaced."""
        return len(self._fresh) + len(self._frozen) + sum(run.rows for run in self._runs.values())

    @property
    def is_large(self) -> bool:
        """Whether it is time that answers leave memory."""
        return self.bytes >= self._bytes_max // 4

    @property
    def longest_run(self) -> int:
        """Bytes: about what the next one may take."""
        return max((run.length for run in self._runs.values()), default=0)

    def all(self) -> list[Answer]:
        """Every answer in memory, oldest first."""
        return [*self._frozen.values(), *self._fresh.values()]

    def runs(self) -> tuple[RunFile, ...]:
        """The runs that hold others, oldest first."""
        return tuple(self._runs[number] for number in sorted(self._runs))

    def find(self, key: bytes, now_millis: int) -> Answer | None:
        """The answer, while the key is good, if it is in memory."""
        found = self._fresh.get(key) or self._frozen.get(key)
        return None if found is None or is_over(found.millis, now_millis) else found

    def add(self, answer: Answer, transaction: int) -> None:
        """Remember; the oldest make room."""
        self._drop(answer.key)
        if not answer.transaction:
            answer = msgspec.structs.replace(answer, transaction=transaction)
        self._fresh[answer.key] = answer
        self.bytes += _size(answer)
        while self.bytes > self._bytes_max and len(self._fresh) + len(self._frozen) > 1:
            self._drop(next(iter(self._frozen or self._fresh)))

    def take_run(self, run: RunFile) -> None:
        """A run counts, or something of it was given up; one without rows counts no more."""
        if run.rows:
            self._runs[run.number] = run
        else:
            self._runs.pop(run.number, None)

    def freeze(self) -> tuple[list[Answer], tuple[RunFile, ...]]:
        """The answers that a checkpoint is to write as a run, and the runs that there are. They stay in memory until
        `settle`; if that does not come, the next checkpoint has them with those that are new by then.
        """
        self._frozen = {**self._frozen, **self._fresh} if self._frozen else self._fresh
        self._fresh = {}
        return list(self._frozen.values()), self.runs()

    def settle(self, run: RunFile, others: Sequence[Answer]) -> None:
        """What was frozen is in a durable run, which counts from now on, but for these others."""
        kept = {answer.key: answer for answer in others if answer.key in self._frozen}
        self.bytes -= sum(_size(answer) for key, answer in self._frozen.items() if key not in kept)
        self._frozen = kept
        self.take_run(run)

    def forget(self, now_millis: int) -> None:
        """Drop those whose time is over. A clock that jumped back keeps some longer."""
        for answers in (self._frozen, self._fresh):
            while answers:
                key, oldest = next(iter(answers.items()))
                if not is_over(oldest.millis, now_millis):
                    break
                self._drop(key)
        self.forget_runs(now_millis)

    def forget_runs(self, now_millis: int) -> None:
        """The same of runs alone."""
        kept = 0
        for run in reversed(self.runs()):
            kept += run.length
            if is_over(run.newest_millis, now_millis) or kept > self._run_bytes_max:
                del self._runs[run.number]

    def _drop(self, key: bytes) -> None:
        for answers in (self._frozen, self._fresh):
            dropped = answers.pop(key, None)
            if dropped is not None:
                self.bytes -= _size(dropped)


def is_over(millis: int, now_millis: int) -> bool:
    """Whether an answer of this time is good no more."""
    return millis + KEPT_MILLIS <= now_millis


def _size(answer: Answer) -> int:
    return len(answer.answer) + OVERHEAD_BYTES
