"""Proving in the background what a start did not read: content after an unclean end, and swap files after each.

    start: files that the log named since the checkpoint are marked, the marks are in the snapshot | serving
    proof: each of their claims in use is read | the file's mark is taken off, in a transaction; a damaged one keeps it

A start used to read all of it before it served anything, and one bad byte kept the node away. Reads are verified as
ever meanwhile, so that nobody gets a wrong byte; a marked file is not reclaimed. A swap file that is damaged or missing
would be found by the poll that needs it, perhaps months from now, when no backup has it any more.
"""

import threading
from collections.abc import Iterator

import msgspec

from ullage.clock import Clock
from ullage.engine.content.availability import Availability
from ullage.engine.content.reader import ContentReader
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import FlowFileQueue, PassedOver
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import Operation, SwapOut
from ullage.engine.reclaim.execute import ReclamationParts
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import RepositoryDamaged

PROOF_BYTES = 64 << 20
"""Bytes read at a step, of which there is one a second: what a slow disk reads in half of that."""

COMMITTED_TOGETHER = 1_000
"""Marks that one transaction takes off."""


class ContentProof:
    """Thread-safe; one step at a time."""

    def __init__(self, parts: ReclamationParts, reader: ContentReader, availability: Availability) -> None:
        self._parts = parts
        self._reader = reader
        self._availability = availability
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        self._under_way: Iterator[int] | None = None
        self._proved: list[int] = []
        self._marked: set[int] = set()
        self._absent: list[int] = []

    @property
    def files_left(self) -> int:
        """How many files are still to be read."""
        return len(self._waiting) + (self._under_way is not None)

    def begin(self) -> None:
        """Prove every marked file, and those with damage, from the next step on: at a start, or when somebody has
        mended some.
        """
        marked = {entry.claim.index for entry in self._parts.ledger.entries() if entry.claim.unproved}
        with self._lock:
            marked |= self._availability.files()
            self._availability.clear(marked)
            self._waiting, self._under_way = sorted(marked, reverse=True), None
            self._marked.clear()
            self._absent = []

    def step(self, bytes_max: int = PROOF_BYTES) -> int:
        """Read up to so many bytes, or a piece more; returns how many. An error of the disk leaves its file for the
        next step, behind all others.
        """
        with self._lock:
            read = 0
            self._waiting += [index for index in self._absent if self._is_there(index)]
            self._absent = [index for index in self._absent if not self._is_there(index)]
            try:
                while read < bytes_max and (self._under_way is not None or self._waiting):
                    if self._under_way is None:
                        self._under_way = self._prove(self._waiting[-1])
                    found = next(self._under_way, None)
                    if found is None:
                        self._waiting.pop()
                        self._under_way = None
                    else:
                        read += found
            except OSError:
                self._waiting.insert(0, self._waiting.pop())
                self._under_way = None
                raise
            finally:
                self._change_marks()
            return read

    def remember(self) -> None:
        """Leave a mark on files in which reads have met damage: what was found is found again by the next start."""
        with self._lock:
            self._change_marks()

    def run(self) -> None:
        """All that is left, at once."""
        while self.files_left:
            self.step()

    def _prove(self, index: int) -> Iterator[int]:
        """Read one file's claims in use; yields bytes. What is damaged the reader notes."""
        liveness = self._parts.scanner.examine_if_known(index)
        if liveness is None:
            return  # gone; or a swap file does not say what lives in it, and its mark stays
        if not self._is_there(index):
            self._absent.append(index)  # proved when its volume is back
            return
        is_whole = True
        for count, damaged in self._reader.proved([claim for _, claim in liveness.survivors]):
            is_whole &= damaged is None
            yield count
        if is_whole:
            self._proved.append(index)
        elif not self._is_there(index):
            self._absent.append(index)  # it went away meanwhile, which proves nothing

    def _is_there(self, index: int) -> bool:
        entry = self._parts.ledger.entry(index)
        return entry is None or entry.claim.container not in self._parts.content.away

    @uninterrupted
    def _change_marks(self) -> None:
        """Durably take off those of proved files, and mark files in which reads have met damage; one that somebody is
        changing just now waits for the next step.
        """
        proved, self._proved = self._proved[:COMMITTED_TOGETHER], self._proved[COMMITTED_TOGETHER:]
        damaged = self._availability.files() - self._marked if self._availability else set()
        operations: list[Operation] = []
        ledger = self._parts.ledger
        taken: set[int] = set()
        try:
            with ledger.lock:
                for index in proved:
                    entry = ledger.entry(index)
                    # Under the same hold of the lock as the copy: an intent that came between would be lost by it.
                    if entry is None or not entry.claim.unproved:
                        continue
                    if ledger.take({index}):
                        taken.add(index)
                        operations.append(msgspec.structs.replace(entry.claim, unproved=False))
                    else:
                        self._proved.append(index)
                for index in damaged:
                    entry = ledger.entry(index)
                    if entry is not None and entry.claim.sealed and ledger.take({index}):
                        taken.add(index)
                        self._marked.add(index)
                        if entry.claim.unproved:
                            continue
                        operations.append(msgspec.structs.replace(entry.claim, unproved=True))
            if operations:
                self._parts.committer.commit(operations, creates=False)
        except BaseException:
            self._proved += proved
            raise
        finally:
            ledger.give_back(taken)


class SwapProof:
    """Reads each swap file that a start found once; polls pass over those that can't be read. Thread-safe; one step at
    a time.
    """

    def __init__(self, queues: QueueManager, swap_files: SwapFiles, clock: Clock) -> None:
        self._queues = queues
        self._swap_files = swap_files
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[FlowFileQueue, SwapOut]] = []

    def begin(self) -> None:
        """All that there are now, from the next step on."""
        with self._lock:
            self._waiting = [(queue, summary) for queue in self._queues.all() for summary in queue.swap_summaries()]

    def step(self, bytes_max: int = PROOF_BYTES) -> None:
        """Read up to so many bytes, or one file more. An error of the disk leaves its file for the next step, behind
        all others.
        """
        with self._lock:
            read = 0
            while read < bytes_max and self._waiting:
                queue, summary = self._waiting.pop()
                try:
                    read += self._swap_files.prove(summary.name)
                except RepositoryDamaged as error:
                    queue.pass_over(PassedOver(summary, error, self._clock.monotonic()))
                except OSError:
                    self._waiting.insert(0, (queue, summary))
                    raise

    def run(self) -> None:
        """All that is left, at once."""
        while self._waiting:
            self.step()
