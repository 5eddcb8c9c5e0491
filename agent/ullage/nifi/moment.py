"""All FlowFiles that a NiFi has at one moment, read from its FlowFile repository while it goes on writing there.

A moment is a transaction of NiFi's. The journals are an order of everything that happened, so whatever prefix of them
is read, with the checkpoint before it, is what NiFi had at some moment. What could spoil that is a checkpoint that
overtakes the reading: it removes journals. So checkpoint and journals are opened first and read later, an open file
stays readable when its name is gone, and a checkpoint that changed while journals were being opened begins it anew.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ullage.nifi.checkpoint import checkpoint_transaction, read_checkpoint, read_end
from ullage.nifi.flowfiles import FlowFileMap, NiFiFlowFile
from ullage.nifi.journal import Journal
from ullage.nifi.pieces import PieceReader
from ullage.nifi.swapfile import read_swap_file
from ullage.nifi.trouble import NiFiDamage, NotSurveyable, TornFile, Unparsable

CHECKPOINT: Final = "checkpoint"
PARTIAL: Final = "checkpoint.partial"
JOURNALS: Final = "journals"
SWAP: Final = "swap"

JOURNAL_NAME: Final = re.compile(r"\d{1,19}\.journal")

ATTEMPTS: Final = 20
"""To open checkpoint and journals between two checkpoints: milliseconds, and NiFi writes one every 20 seconds."""


class MomentLost(Exception):
    """A checkpoint has removed a journal that was not open yet: what happened in between is only in that checkpoint."""


class NiFiMoment:
    """The FlowFiles of one moment, which `advance` moves to a later one. Close it."""

    def __init__(self, directory: str, *, attributes: bool = False) -> None:
        """`directory`: NiFi's flowfile_repository. NotSurveyable if there is none that can be read here."""
        self._directory = directory
        self._attributes = attributes
        self._journals: list[Journal] = []
        self._swapped: dict[str, list[NiFiFlowFile]] = {}
        self._forget()
        self._refuse_old()

    @property
    def transaction(self) -> int:
        """The moment: the last of NiFi's transactions that is in it; -1: nothing has happened yet."""
        return max([self._transaction, *(journal.last for journal in self._journals)])

    @property
    def damages(self) -> list[NiFiDamage]:
        return [*self._damages.values(), *(damage for journal in self._journals for damage in journal.damages)]

    @property
    def swap_files(self) -> int:
        return len(self._map.swaps)

    def flowfiles(self) -> Iterator[NiFiFlowFile]:
        """All of them: those of swap files after the others."""
        yield from self._map.flowfiles.values()
        for name in self._map.swaps:
            yield from self._swapped.get(name, ())

    def read(self) -> None:
        """Read everything, to where the last journal ends now."""
        self._forget()
        for _ in range(ATTEMPTS):
            descriptor = self._opened()
            if descriptor is not None:
                break
        else:
            raise NotSurveyable(f"{self._directory} wrote a checkpoint each of {ATTEMPTS} times it was opened")
        try:
            self._read_checkpoint(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self._read_journals()

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
        for name in list(self._swapped):
            if name not in self._map.swaps:
                del self._swapped[name]
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
                self._damaged(f"{SWAP}/{name}", read_end(error))
            except OSError as error:
                self._damaged(f"{SWAP}/{name}", f"it can't be read: {error.strerror}")
            self._swapped[name] = flowfiles
        return not missing

    def tell_missing(self) -> None:
        """Swap files that are missing, and of which no later moment says that they were swapped in, are lost."""
        for name in self._map.swaps - self._swapped.keys():
            self._damaged(f"{SWAP}/{name}", "it is missing: its FlowFiles are lost to NiFi as well")

    def close(self) -> None:
        for journal in self._journals:
            journal.close()
        self._journals.clear()

    def _forget(self) -> None:
        """All but the swap files that were read: NiFi never changes one."""
        self.close()
        self._map = FlowFileMap()
        self._transaction = -1
        self._damages: dict[tuple[str, str], NiFiDamage] = {}

    def _swap_path(self, name: str) -> str:
        return os.path.join(self._directory, SWAP, name)

    def _refuse_old(self) -> None:
        if not os.path.isdir(self._directory):
            raise NotSurveyable(f"{self._directory} is no directory: there is no FlowFile repository")
        if not os.path.isdir(os.path.join(self._directory, JOURNALS)):
            old = os.path.exists(os.path.join(self._directory, "snapshot"))
            what = "of the MinimalLockingWriteAheadLog, which NiFi 2 can't read either" if old else "unknown"
            raise NotSurveyable(f"{self._directory} has no {JOURNALS}: it is {what}")

    def _opened(self) -> int | None:
        """Everything is open, and belongs together: the checkpoint's descriptor, or -1; None: a checkpoint came."""
        self.close()
        descriptor = self._open_checkpoint()
        try:
            last = -1
            if descriptor >= 0:
                last = checkpoint_transaction(PieceReader(descriptor, os.fstat(descriptor).st_size))
        except (TornFile, Unparsable):
            last = -1  # told when it is read: then all journals are wanted
        except BaseException:
            os.close(descriptor)
            raise
        try:
            self._open_journals(last)
        except FileNotFoundError:
            is_same = False
        else:
            is_same = self._is_current(descriptor)
        if is_same:
            return descriptor
        if descriptor >= 0:
            os.close(descriptor)
        return None

    def _open_checkpoint(self) -> int:
        for name in (CHECKPOINT, PARTIAL):  # a partial one alone is whole: NiFi was about to give it its name
            with suppress(FileNotFoundError):  # the other one is looked for, and -1 says that there is none
                return os.open(os.path.join(self._directory, name), os.O_RDONLY | os.O_CLOEXEC)
        return -1

    def _is_current(self, descriptor: int) -> bool:
        """Whether the checkpoint that is open is still the one that NiFi would start with."""
        again = self._open_checkpoint()
        if again < 0 or descriptor < 0:
            if again >= 0:
                os.close(again)
            return again == descriptor
        is_same = os.path.sameopenfile(again, descriptor)
        os.close(again)
        return is_same

    def _open_journals(self, checkpointed: int) -> None:
        """All whose first transaction is not in the checkpoint, in order, with the ends that they have now."""
        for name in self._journal_names():
            if int(name.partition(".")[0]) >= checkpointed:
                self._journals.append(self._journal(name))
        for journal in self._journals:
            journal.reach()

    def _journal_names(self) -> list[str]:
        names = filter(JOURNAL_NAME.fullmatch, os.listdir(os.path.join(self._directory, JOURNALS)))
        return sorted(names, key=lambda name: int(name.partition(".")[0]))

    def _journal(self, name: str) -> Journal:
        return Journal(os.path.join(self._directory, JOURNALS), name, attributes=self._attributes)

    def _read_checkpoint(self, descriptor: int) -> None:
        if descriptor < 0:
            return
        pieces = PieceReader(descriptor, os.fstat(descriptor).st_size)
        try:
            self._transaction = read_checkpoint(pieces, self._map, attributes=self._attributes)
        except (TornFile, Unparsable) as error:
            self._damaged(CHECKPOINT, read_end(error))

    def _read_journals(self, *, is_following: bool = False) -> None:
        expected = self._transaction + 1
        for journal in self._journals:
            if journal.first > expected >= 1 and not journal.position:
                if is_following:
                    raise MomentLost
                self._damaged(JOURNALS, f"transactions {expected:,} to {journal.first - 1:,} are in no file")
            journal.read(self._map)
            expected = 0 if journal.damages else max(expected, journal.first + 1, journal.last + 1)

    def _follow(self) -> None:
        """Read what was written since, in new journals too. MomentLost if one of them has gone by."""
        newest = self._journals[-1].first if self._journals else self._transaction
        try:
            for name in self._journal_names():
                if int(name.partition(".")[0]) > newest:
                    self._journals.append(self._journal(name))
        except FileNotFoundError as error:
            raise MomentLost from error
        for journal in self._journals:  # all but the last were complete before the next one began
            journal.reach()
        self._read_journals(is_following=True)

    def _damaged(self, file: str, what: str) -> None:
        self._damages.setdefault((file, what), NiFiDamage(file, what, loses_flowfiles=True))
