"""The block checksums of large claims that are in memory, and which runs hold the others.

    fresh  what changed since the last checkpoint | a checkpoint freezes it | frozen, until it is in a durable run

They follow from the content: what is not found is worked out by a pass over the whole claim. An address is written
once, so that what is found is right however old it is; a deletion only makes room.
"""

from collections.abc import Callable, Mapping, Sequence

from ullage.engine.model import RunFile
from ullage.engine.runs.rows import Key, packed_key

BLOCKS_SPACE = "blocks"
"""How runs of block checksums name what they hold."""

BYTES_LARGE = 32 << 20
"""Memory after which it is time for a checkpoint: some 120,000 claims of 1 MiB."""

RECENT_MAX = 1 << 14
"""Rows that were read from runs lately and are found at once: some 5 MB. Ranges of one content are read one after the
other.
"""

RECENT_BYTES_MAX = 1 << 10
"""A longer value, of more than 64 MiB of content, is looked up each time."""

OVERHEAD_BYTES = 250
"""A row's share of memory beside its value: the key, its numbers, its place in the map."""

DELETED = b""


class BlockRows:
    """Changed under the ledger's lock only. `bytes` is the memory that the rows in it take, about.

    A key is a resource claim and an offset in it, a value the claim's `ClaimBlocks.crcs`.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._fresh: dict[Key, bytes] = {}
        self._frozen: dict[Key, bytes] = {}
        self._frozen_bytes = 0
        self._have_runs = True
        self._recent: dict[Key, bytes] = {}
        self._runs: tuple[RunFile, ...] = ()
        self._last = b""
        """No run has a greater key."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._frozen)

    @property
    def is_large(self) -> bool:
        """Whether it is time that they leave memory."""
        return self._have_runs and self.bytes >= BYTES_LARGE

    @property
    def longest_flush(self) -> int:
        """Bytes: about what the next checkpoint's run may take."""
        return max((run.length for run in self._runs if run.through == run.number), default=0)

    def runs(self) -> tuple[RunFile, ...]:
        """The runs that hold others, oldest first."""
        return self._runs

    def find(self, key: Key) -> bytes | None:
        """What is in memory of a key: its value, or that it is `DELETED`; None: the runs may have it."""
        found = self._recent.get(key) or self._fresh.get(key)
        return found if found is not None else self._frozen.get(key)

    def keep(self, key: Key, crcs: bytes) -> None:
        """What a run has of a key. Whatever is kept may be late: it is right all the same."""
        if len(crcs) <= RECENT_BYTES_MAX:
            if len(self._recent) >= RECENT_MAX:
                self._recent.clear()
            self._recent[key] = crcs

    def set(self, key: Key, crcs: bytes) -> None:
        """A claim's checksums."""
        self._drop(key)
        self._fresh[key] = crcs
        self.bytes += len(crcs) + OVERHEAD_BYTES

    def delete(self, key: Key) -> None:
        """A claim is not in use any more. Nothing is noted of one that no checkpoint has seen, as most short-lived
        ones: resource claims are numbered, and written, upwards.
        """
        self._drop(key)
        if key in self._frozen or packed_key(key) <= self._last:
            self._fresh[key] = DELETED
            self.bytes += OVERHEAD_BYTES

    def all(self, is_known: Callable[[int], bool]) -> list[tuple[Key, bytes]]:
        """Every row, where there are no runs; what lay in resource claims that are gone is forgotten. It is never time
        for a checkpoint from then on, which takes nothing out of memory: it would be due again at once, for ever.
        """
        self._have_runs = False
        self._fresh = {key: crcs for key, crcs in self._fresh.items() if is_known(key[0])}
        self.bytes = _bytes_of(self._fresh)
        return list(self._fresh.items())

    def take_run(self, run: RunFile) -> None:
        """A run counts; one without rows counts no more."""
        others = [each for each in self._runs if each.number != run.number]
        self._set_runs([*others, run] if run.rows else others)

    def freeze(self) -> tuple[dict[Key, bytes], tuple[RunFile, ...]]:
        """The rows that a checkpoint is to write as a run, and the runs that there are. They stay in memory until
        `settle`; if that does not come, the next checkpoint has them with those that are new by then.
        """
        if self._frozen:
            self._frozen = {**self._frozen, **self._fresh}
            self.bytes = _bytes_of(self._frozen)
        else:  # nothing is added up here, where all commits wait
            self._frozen = self._fresh
        self._fresh, self._frozen_bytes = {}, self.bytes
        return self._frozen, self._runs

    def settle(self, run: RunFile | None) -> None:
        """What was frozen is in a durable run, which counts from now on; None: none of it was worth one."""
        if run is not None:
            self.take_run(run)
        self.bytes -= self._frozen_bytes
        self._frozen, self._frozen_bytes = {}, 0

    def replace(self, merged: Sequence[RunFile], by: RunFile | None) -> None:
        """Another run holds all that these hold; None: they hold nothing."""
        numbers = {run.number for run in merged}
        others = [run for run in self._runs if run.number not in numbers]
        self._set_runs(others if by is None else [*others, by])

    def _set_runs(self, runs: list[RunFile]) -> None:
        self._runs = tuple(sorted(runs, key=lambda run: run.through))
        self._last = max((run.last for run in runs), default=b"")

    def _drop(self, key: Key) -> None:
        self._recent.pop(key, None)
        dropped = self._fresh.pop(key, None)
        if dropped is not None:
            self.bytes -= len(dropped) + OVERHEAD_BYTES


def _bytes_of(rows: Mapping[Key, bytes]) -> int:
    return sum(len(crcs) + OVERHEAD_BYTES for crcs in rows.values())
