"""Block checksums on disk: a checkpoint writes what has changed as a run, and runs are merged as they become many.

    runs 1 2 3 4 | merge: 5 written, synced, its name too | the ledger knows 5 in their place | snapshot that lists 5
                                                       ... synced | rename | 1 2 3 4 unlinked
    a crash before the rename: 5 is a leftover; after it: 1 2 3 4 are

Nothing here can be lost: what cannot be read, or is not there, is worked out from the claim as a whole.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from ullage.engine.ledger.blockrows import BlockRows
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.runfiles import NewRun, RunFiles
from ullage.engine.model import ClaimBlocks, ContentClaim, Operation, RunFile
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.mergedrows import merged_rows
from ullage.engine.runs.rows import BlockDamaged, Key, RowBlock, RunRow, packed_key
from ullage.engine.runs.tiers import mergeable

CACHE_BYTES = 8 << 20
"""Blocks that are kept in memory: the checksums of some 180,000 claims of 1 MiB."""

STEP_BYTES = 1 << 20
"""What one step of a merge takes from its runs, at most: the interpreter is busy with it for some hundredths of a
second.
"""

_ROW_BYTES = 20


class BlockRuns:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, files: RunFiles) -> None:
        self.files = files
        self._ledger = ledger
        self._rows: BlockRows = ledger.blocks
        self._cache: BlockCache[RowBlock] = BlockCache(CACHE_BYTES)
        self._step_lock = threading.Lock()
        self._merge: RunMerge | None = None
        self._tried: tuple[RunFile, ...] = ()
        """What is being merged, or was when that failed."""

        self._is_closed = False

    def find(self, claim: ContentClaim) -> bytes | None:
        """The block checksums of a claim; None: they are not known, or cannot be read. It may read the disk."""
        key = claim.resource, claim.offset
        while True:
            with self._ledger.lock:
                found, runs = self._rows.find(key), self._rows.runs()
            if found is not None:
                return found or None
            is_damaged, found = self._find_in(runs, key)
            if found:
                with self._ledger.lock:
                    self._rows.keep(key, found)
                return found
            if not is_damaged or found is not None or runs == self._rows.runs():
                return None
            # Merged meanwhile, and their files are gone.

    def learn(self, claim: ContentClaim, crcs: bytes) -> None:
        """What was not found was worked out: while the claim lives, it is looked up from now on."""
        with self._ledger.lock:
            entry = self._ledger.entry(claim.resource)
            if entry is not None and entry.is_resident(claim.offset):
                self._rows.set((claim.resource, claim.offset), crcs)

    def freeze(self) -> Iterator[list[Operation]]:
        """The runs of this moment, as a snapshot lists them; the one of what is in memory is written when the first
        block is asked for.
        """
        with self._ledger.lock:
            rows, runs = self._rows.freeze()
        return self._write(rows, runs)

    def all(self) -> list[Operation]:
        """Every one in memory, where there are no runs."""
        with self._ledger.lock:
            rows = self._rows.all(self._is_known)
        return [ClaimBlocks(*key, crcs) for key, crcs in rows]

    def problems(self, *, deep: bool) -> Iterator[str]:
        """What `check` has to say; `deep`: reads every block."""
        for run in self._ledger.runs_of(self.files.space):
            for damage in self.files.damages(run, deep=deep):
                yield f"{damage}; contents whose block checksums it may hold are read and verified as a whole"
        yield from self.files.leftovers()

    def merge_step(self, bytes_max: int = STEP_BYTES) -> bool:
        """Go on merging runs for a while; whether something was done. The next checkpoint lists what a merge has made.

        A merge that fails is given up, and not begun again before there are other runs.
        """
        with self._step_lock:
            if self._is_closed or (self._merge is None and not self._begin()):
                return False
            merge = self._merge
            assert merge is not None, "just begun"
            try:
                if merge.step(min(bytes_max, STEP_BYTES)):
                    merge.finish()
                    self._tried = ()
                    self._give_up()
            except BaseException:
                self._give_up()
                raise
            return True

    def close(self) -> None:
        """Give up what is being merged, and close the files."""
        with self._step_lock:
            self._is_closed = True
            self._give_up()
        self.files.close()

    def _begin(self) -> bool:
        runs = self._ledger.runs_of(self.files.space)
        part = mergeable([run.length for run in runs])
        if part is None or runs[part] == self._tried:
            return False
        if not self.files.has_room(sum(run.length for run in runs[part])):
            return False
        self._tried = runs[part]
        self._merge = RunMerge(self._ledger, self.files, runs[part], has_oldest=part.start == 0)
        return True

    def _give_up(self) -> None:
        merge, self._merge = self._merge, None
        if merge is not None:
            merge.close()

    def _write(self, rows: dict[Key, bytes], runs: tuple[RunFile, ...]) -> Iterator[list[Operation]]:
        # A resource claim that is gone does not come back, and a deletion hides something only in older runs.
        kept = sorted((key, crcs) for key, crcs in rows.items() if (crcs or runs) and self._is_known(key[0]))
        if kept:
            with closing(self.files.begin()) as new:
                for key, crcs in kept:
                    new.add(RunRow(key, crcs))
                run = new.finish()
                with self._ledger.lock:  # durable, and listed by this snapshot or, where that fails, by the next
                    self._rows.settle(run)
            runs = (*runs, run)
        else:
            with self._ledger.lock:
                self._rows.settle(None)
        self.files.list(runs)
        if runs:
            yield [*runs]

    def _find_in(self, runs: Sequence[RunFile], key: Key) -> tuple[bool, bytes | None]:
        """Whether something could not be read, and what was found, `DELETED` too. What an older run has is as right."""
        packed = packed_key(key)
        is_damaged = False
        for run in reversed(runs):
            if run.first <= packed <= run.last:
                try:
                    found = self._find_in_one(run, key)
                except BlockDamaged:
                    is_damaged = True
                    continue
                if found is not None:
                    return is_damaged, found
        return is_damaged, None

    def _find_in_one(self, run: RunFile, key: Key) -> bytes | None:
        opened = self.files.run(run)
        number = opened.block_of(key)
        if number is None:
            return None
        return self._cache.get((run.number, "", number), partial(opened.block, number)).find(key)

    def _is_known(self, resource: int) -> bool:
        return self._ledger.entry(resource) is not None


class RunMerge:
    """Runs becoming one, oldest first. Used by one thread at a time."""

    def __init__(self, ledger: Ledger, files: RunFiles, runs: tuple[RunFile, ...], *, has_oldest: bool) -> None:
        self.runs = runs
        self._ledger = ledger
        self._files = files
        self._new: NewRun = files.begin()
        self._rows = merged_rows([self._rows_of(run) for run in runs], has_oldest=has_oldest)

    def step(self, bytes_max: int) -> bool:
        """Merge so many bytes; whether it was the last of them."""
        done = 0
        for row in self._rows:
            # A resource claim that is gone does not come back: its rows go, deletions too, wherever they are.
            if self._ledger.entry(row.key[0]) is not None:
                self._new.add(row)
            done += _ROW_BYTES + len(row.value)
            if done >= bytes_max:
                return False
        return True

    def finish(self) -> None:
        """Make it durable, and the ledger know it; readers go on with the runs that they hold."""
        run = self._new.finish(through=self.runs[-1].through) if self._new.rows else None
        with self._ledger.lock:
            self._ledger.blocks.replace(self.runs, run)

    def close(self) -> None:
        """What is not finished is as if it had not begun."""
        self._new.close()

    def _rows_of(self, run: RunFile) -> Iterator[RunRow]:
        for block in self._files.blocks(run):
            if not isinstance(block, BlockDamaged):  # what it held is worked out again, and with that the damage goes
                yield from block
