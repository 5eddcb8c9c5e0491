"""All FlowFiles that a NiFi has at one moment, read from its FlowFile repository while it goes on writing there.

A moment is a transaction of NiFi's. The journals are an order of everything that happened, so whatever prefix of them
is read, with the checkpoint before it, is what NiFi had at some moment. What could spoil that is a checkpoint that
overtakes the reading: it removes journals. NiFi closes a journal before it begins the next one, writes
checkpoint.partial, removes the checkpoint, gives the partial one its name, and only then removes journals and their
overflow files. So checkpoint and journals are opened first and read later, an open file stays readable when its name
is gone, and a checkpoint that changed while journals were being opened begins it anew. So does one that changed by the
time at which something is found missing or damaged: it may be what removed it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ullage.nifi.checkpoint import checkpoint_transaction, read_checkpoint, read_end
from ullage.nifi.flowfiles import Attributes, FlowFileMap, NiFiFlowFile
from ullage.nifi.journal import Journal
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import PieceReader
from ullage.nifi.swapfile import SWAP_NAME, read_swap_file
from ullage.nifi.trouble import NiFiDamage, NotSurveyable, TornFile, Unparsable

CHECKPOINT: Final = "checkpoint"
PARTIAL: Final = "checkpoint.partial"
JOURNALS: Final = "journals"
SWAP: Final = "swap"

JOURNAL_NAME: Final = re.compile(r"\d{1,19}\.journal")

ATTEMPTS: Final = 20
"""To open checkpoint and journals between two checkpoints: milliseconds, and NiFi writes one every 20 seconds."""


class MomentLost(Exception):
    """What happened next is in no journal that can be read: a checkpoint may have taken its place."""


class CheckpointFile(NamedTuple):
    """The checkpoint as it was found, open; None is none.

    `is_partial`: it was alone under the name of a partial one. Then it is whole, and about to get its name, or NiFi's
    very first one, which is still being written, or was when NiFi died.
    """

    descriptor: int
    found: os.stat_result
    is_partial: bool

    def is_same(self, other: "CheckpointFile | None") -> bool:
        # What is partial may be written still. The time is for file systems that make up the numbers of files.
        return (
            other is not None
            and os.path.samestat(self.found, other.found)
            and (self.is_partial or self.found.st_mtime_ns == other.found.st_mtime_ns)
        )

    def pieces(self) -> PieceReader:
        """All that was in it when it was opened."""
        return PieceReader(self.descriptor, self.found.st_size)


class NiFiMoment:
    """The FlowFiles of one moment, which `advance` moves to a later one. Close it."""

    def __init__(self, directory: str, *, attributes: Attributes = False) -> None:
        """`directory`: NiFi's flowfile_repository. NotSurveyable if there is none that can be read here."""
        self._directory = directory
        self._attributes = attributes
        self._journals: list[Journal] = []
        self._swapped: dict[str, list[NiFiFlowFile]] = {}
        self._swap_damages: dict[str, NiFiDamage] = {}
        self._forget()
        self._refuse_old()

    @property
    def transaction(self) -> int:
        """The moment: the last of NiFi's transactions that is in it; -1: nothing has happened yet."""
        return max([self._transaction, *(journal.last for journal in self._journals)])

    @property
    def damages(self) -> list[NiFiDamage]:
        swaps = (self._swap_damages[name] for name in sorted(self._map.swaps & self._swap_damages.keys()))
        return [*self._log_damages(), *swaps]

    @property
    def swap_files(self) -> int:
        return len(self._map.swaps)

    @property
    def map(self) -> FlowFileMap:
        """What checkpoint and journals say."""
        return self._map

    def flowfiles(self) -> Iterator[NiFiFlowFile]:
        """All of them: those of swap files after the others."""
        yield from self._map.flowfiles.values()
        for name in self._map.swaps:
            yield from self._swapped.get(name, ())

    def swapped(self) -> list[tuple[str, list[NiFiFlowFile]]]:
        """The swap files that were read, in the order in which NiFi swaps them in, each with its FlowFiles."""
        return [
            (name, self._swapped[name]) for name in sorted(self._map.swaps, key=_swap_order) if name in self._swapped
        ]

    def in_memory(self) -> Iterable[NiFiFlowFile]:
        """The FlowFiles that are in no swap file."""
        return self._map.flowfiles.values()

    def read(self) -> None:
        """Read everything, to where the last journal ends now."""
        for _ in range(ATTEMPTS):
            self._forget()
            with self._open_checkpoint() as found:
                if self._read_all(found) and (not self._log_damages() or self._is_settled(found)):
                    return
        raise self._too_busy()

    def advance(self) -> bool:
        """Go on to what NiFi has now; whether anything had happened. What could not be followed is read anew."""
        before = self.transaction
        try:
            self._follow()
        except MomentLost:
            self.read()
        return self.transaction != before

    def read_swaps(self) -> bool:
        """Read the swap files that were not read yet; whether all are there.

        One that is missing was swapped in meanwhile, which a later moment shows, or is lost: see `tell_missing`.
        """
        for name in self._swapped.keys() - self._map.swaps:
            del self._swapped[name]
            self._swap_damages.pop(name, None)
        missing = 0
        for name in self._map.swaps - self._swapped.keys():
            flowfiles: list[NiFiFlowFile] = []
            try:
                for flowfile in read_swap_file(self._swap_path(name), attributes=self._attributes):
                    flowfiles.append(flowfile)  # noqa: PERF402 - what was read before the damage is kept
            except FileNotFoundError:
                missing += 1
                continue
            except (TornFile, Unparsable) as error:
                self._swap_damaged(name, read_end(error))
            except OSError as error:
                self._swap_damaged(name, f"it can't be read: {error.strerror}")
            self._swapped[name] = flowfiles
        return not missing

    def tell_missing(self) -> None:
        """Swap files that are missing, and of which no later moment says that they were swapped in, are lost."""
        for name in self._map.swaps - self._swapped.keys():
            self._swap_damaged(name, "it is missing: its FlowFiles are lost to NiFi as well")

    def stray_swaps(self) -> Iterator[NiFiFlowFile]:
        """The FlowFiles of swap files that no journal tells of: NiFi passes over these files, and removes none.

        TornFile, Unparsable, OSError: such a file can't be read.
        """
        for name in sorted(os.listdir(os.path.join(self._directory, SWAP)) if self._has_swaps() else ()):
            if SWAP_NAME.fullmatch(name) and name not in self._map.swaps:
                yield from read_swap_file(self._swap_path(name), attributes=False)

    def close(self) -> None:
        for journal in self._journals:
            journal.close()
        self._journals.clear()

    def _forget(self) -> None:
        """All but the swap files that were read: NiFi never changes one."""
        self.close()
        self._map = FlowFileMap()
        self._transaction = -1
        self._damages: list[NiFiDamage] = []

    def _log_damages(self) -> list[NiFiDamage]:
        """Of checkpoint and journals."""
        return [*self._damages, *(damage for journal in self._journals for damage in journal.damages)]

    def _has_swaps(self) -> bool:
        return os.path.isdir(os.path.join(self._directory, SWAP))

    def _swap_path(self, name: str) -> str:
        return os.path.join(self._directory, SWAP, name)

    def _refuse_old(self) -> None:
        if not os.path.isdir(self._directory):
            raise NotSurveyable(f"{self._directory} is no directory: there is no FlowFile repository")
        if not os.path.isdir(os.path.join(self._directory, JOURNALS)):
            old = os.path.exists(os.path.join(self._directory, "snapshot"))
            what = "of the MinimalLockingWriteAheadLog, which NiFi 2 can't read either" if old else "unknown"
            raise NotSurveyable(f"{self._directory} has no {JOURNALS}: it is {what}")

    def _too_busy(self) -> NotSurveyable:
        return NotSurveyable(f"{self._directory} wrote a checkpoint each of {ATTEMPTS} times it was opened")

    def _read_all(self, found: CheckpointFile | None) -> bool:
        """Open everything, then read it; False: a checkpoint came while it was being opened."""
        try:
            self._open_journals(self._checkpointed(found))
        except FileNotFoundError:
            return False
        if not self._is_current(found):
            return False
        if found is not None:
            self._read_checkpoint(found)
        self._read_journals()
        return True

    @contextmanager
    def _open_checkpoint(self) -> Iterator[CheckpointFile | None]:
        """What NiFi would start with."""
        descriptor, is_partial = self._checkpoint_descriptor()
        try:
            yield CheckpointFile(descriptor, os.fstat(descriptor), is_partial) if descriptor >= 0 else None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _checkpoint_descriptor(self) -> tuple[int, bool]:
        """-1: there is none. Whether it is a partial one that is alone."""
        for _ in range(ATTEMPTS):
            descriptor = self._descriptor(CHECKPOINT)
            if descriptor >= 0:
                return descriptor, False
            descriptor = self._descriptor(PARTIAL)
            # The partial one may have got its name before it was looked for, or this may be the next one already.
            names = os.listdir(self._directory)
            if CHECKPOINT not in names and (descriptor >= 0 or PARTIAL not in names):
                return descriptor, True
            if descriptor >= 0:
                os.close(descriptor)
        raise self._too_busy()

    def _descriptor(self, name: str) -> int:
        path = os.path.join(self._directory, name)
        try:
            with _needed(path):
                return open_regular(path)
        except FileNotFoundError:
            return -1

    def _is_current(self, found: CheckpointFile | None) -> bool:
        """Whether the checkpoint that is open is still the one that NiFi would start with."""
        with self._open_checkpoint() as again:
            return again is None if found is None else found.is_same(again)

    def _is_settled(self, found: CheckpointFile | None) -> bool:
        """Whether nothing has been removed or passed over: then what is missing or damaged really is."""
        known = {journal.name for journal in self._journals}
        newest = max((journal.first for journal in self._journals), default=-1)
        listed = {name for name in journal_names(self._directory) if self._transaction <= first_of(name) <= newest}
        return listed <= known and self._is_current(found)

    def _checkpointed(self, found: CheckpointFile | None) -> int:
        """The last transaction that is in the checkpoint; -1 if none is, or it can't be read: all journals count."""
        try:
            return -1 if found is None or found.is_partial else checkpoint_transaction(found.pieces())
        except (TornFile, Unparsable):
            return -1  # told when it is read

    def _open_journals(self, checkpointed: int) -> None:
        """All whose first transaction is not in the checkpoint, in order, with the ends that they have now."""
        for name in journal_names(self._directory):
            if first_of(name) >= checkpointed:
                self._journals.append(self._journal(name))
        for journal in self._journals:
            journal.reach()

    def _journal(self, name: str) -> Journal:
        directory = os.path.join(self._directory, JOURNALS)
        with _needed(os.path.join(directory, name)):
            return Journal(directory, name, attributes=self._attributes)

    def _read_checkpoint(self, found: CheckpointFile) -> None:
        try:
            self._transaction = read_checkpoint(found.pieces(), self._map, attributes=self._attributes)
        except (TornFile, Unparsable) as error:
            if found.is_partial:  # the first one of all, not whole yet: the journals are there from the beginning on
                self._map = FlowFileMap()
            else:
                self._damaged(CHECKPOINT, read_end(error))
        for journal in [journal for journal in self._journals if journal.first < self._transaction]:
            self._journals.remove(journal)
            journal.close()

    def _read_journals(self, *, is_following: bool = False) -> None:
        expected = self._transaction + 1
        has_told = bool(self._damages)
        for journal in self._journals:
            if journal.first > expected and not journal.position:
                if is_following:
                    raise MomentLost
                if not has_told:
                    self._damaged(JOURNALS, f"transactions {expected:,} to {journal.first - 1:,} are in no file")
            journal.read(self._map)
            # When NiFi fails to write a transaction, it has a number all the same, and the next journal begins behind.
            behind = journal.last + (2 if journal.is_torn else 1)
            expected = max(expected, journal.first + 1, behind)
            has_told = bool(journal.damages)

    def _follow(self) -> None:
        """Read what was written since, in new journals too. MomentLost if one of them, or part of it, has gone by."""
        newest = self._journals[-1].first if self._journals else self._transaction
        before = self._log_damages()
        try:
            for name in journal_names(self._directory):
                if first_of(name) > newest:
                    self._journals.append(self._journal(name))
        except FileNotFoundError as error:
            raise MomentLost from error
        for journal in self._journals:  # all but the last were complete before the next one began
            journal.reach()
        self._read_journals(is_following=True)
        if self._log_damages() != before:
            raise MomentLost

    def _damaged(self, file: str, what: str) -> None:
        self._damages.append(NiFiDamage(file, what, loses_flowfiles=True))

    def _swap_damaged(self, name: str, what: str) -> None:
        self._swap_damages[name] = NiFiDamage(f"{SWAP}/{name}", what, loses_flowfiles=True)


def journal_names(directory: str) -> list[str]:
    """The journals of a FlowFile repository, oldest first."""
    return sorted(filter(JOURNAL_NAME.fullmatch, os.listdir(os.path.join(directory, JOURNALS))), key=first_of)


def first_of(journal: str) -> int:
    """The first transaction of a journal, as its name says."""
    return int(journal.partition(".")[0])


def _swap_order(name: str) -> tuple[int, str]:
    """NiFi sorts by the time in the name alone; of two of one millisecond either may be first."""
    millis = name.partition("-")[0]
    return (int(millis) if millis.isdecimal() else 1 << 63), name


@contextmanager
def _needed(path: str) -> Iterator[None]:
    """Opens what no survey can do without: NotSurveyable names it, unless it is not there at all."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotSurveyable(f"{path} can't be read: {error.strerror}") from error
