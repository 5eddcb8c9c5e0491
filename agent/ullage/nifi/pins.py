"""Which FlowFiles of a NiFi pin which files, and which have to leave for room: pure computation.

Each FlowFile lies in one file, and a file comes back when the last of its FlowFiles has left. So the fewest FlowFiles
that free so many bytes are a choice of files, each of a size for a number of FlowFiles: a knapsack. It is filled with
the best bytes for each FlowFile first, which also proves how many have to leave at the least.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from ullage.nifi.contents import ClaimFile
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.survey import UNSETTLED_MILLIS, shares

NOTHING, TAIL, WHOLE = range(3)
"""What comes back of a file."""

IN_PLACE: Final = attrgetter("file", "claim_start", "start")


class PinnedFile(msgspec.Struct, gc=False):
    """A file that FlowFiles lie in, or that FlowFiles without bytes hold.

    `begin` and `end`: its FlowFiles in `PinPlan.flowfiles`. `tail`: bytes that NiFi 2.10 and later may cut off once the
    last `tail_flowfiles` of them have left; 0 where that is nothing or all. `is_unsettled`: NiFi may be writing to it.
    """

    file: str
    size: int
    live: int
    dead_middles: int
    dead_tails: int
    is_unsettled: bool
    begin: int
    end: int
    tail: int = 0
    tail_flowfiles: int = 0

    @property
    def flowfiles(self) -> int:
        return self.end - self.begin

    @property
    def dead(self) -> int:
        return self.dead_middles + self.dead_tails

    def leaving(self, level: int) -> tuple[int, int]:
        """The bytes that come back, and the FlowFiles that have to leave for it."""
        if level == TAIL:
            return self.tail, self.tail_flowfiles
        return (self.size, self.flowfiles) if level == WHOLE else (0, 0)


class QueuePin(msgspec.Struct):
    """What comes back once this queue is empty, and all others are as they are.

    `files` that its FlowFiles lie in; of these `whole_files` with `whole` bytes are held by no other queue. `tails`: of
    the others, what NiFi 2.10 and later may cut off.
    """

    identifier: str
    name: str
    flowfiles: int = 0
    files: int = 0
    whole_files: int = 0
    whole: int = 0
    tails: int = 0


class FileLeaving(NamedTuple):
    """A file of which all comes back, or its tail, once these FlowFiles have left."""

    pin: PinnedFile
    is_whole: bool
    freed: int
    flowfiles: int


class FreeingSet(NamedTuple):
    """FlowFiles whose leaving frees `freed` bytes; fewer than `goal` if all that is settled does not reach it.

    No set of fewer than `at_least` FlowFiles does it: where `flowfiles` is as many, this is a smallest one.
    """

    goal: int
    freed: int
    flowfiles: int
    at_least: int
    files: list[FileLeaving]

    @property
    def is_enough(self) -> bool:
        return self.freed >= self.goal

    @property
    def is_smallest(self) -> bool:
        return self.flowfiles == self.at_least


class LeavingStep(NamedTuple):
    """One step more of a file: its tail, what is left behind that, or all at once."""

    size: int
    flowfiles: int
    number: int
    level: int


class PinPlan:
    """All FlowFiles, file after file, and the files that they pin."""

    def __init__(
        self,
        flowfiles: Iterable[NiFiFlowFile],
        files: Mapping[str, ClaimFile],
        now_millis: int,
        truncated_above: int | None = None,
    ) -> None:
        """`truncated_above`: bytes of a last content that NiFi cuts off when it is dead; None: it cuts off none."""
        self.flowfiles: Sequence[NiFiFlowFile] = sorted(flowfiles, key=IN_PLACE)
        self.pins: list[PinnedFile] = []
        self._settled_before = now_millis - UNSETTLED_MILLIS
        self._truncated_above = truncated_above
        begin = 0
        for file, group in groupby(self.flowfiles, attrgetter("file")):
            end = begin + sum(1 for _ in group)
            facts = files.get(file)
            if facts is not None:  # what is not on disk pins nothing
                self.pins.append(self._pinned(facts, begin, end))
            begin = end

    def holders(self, pin: PinnedFile) -> Sequence[NiFiFlowFile]:
        """The FlowFiles that pin a file, in the order in which they lie there."""
        return self.flowfiles[pin.begin : pin.end]

    def leaving(self, leaving: FileLeaving) -> Sequence[NiFiFlowFile]:
        """The FlowFiles that have to leave."""
        return self.flowfiles[leaving.pin.end - leaving.flowfiles : leaving.pin.end]

    def worst(self, count: int) -> list[PinnedFile]:
        """The files with the most dead bytes, most first."""
        return heapq.nsmallest(count, (pin for pin in self.pins if pin.dead), key=lambda pin: (-pin.dead, pin.file))

    def queues(self, names: Mapping[str, str]) -> list[QueuePin]:
        """The one whose emptying brings most first."""
        found: dict[str, QueuePin] = {}
        for flowfile in self.flowfiles:
            identifier = flowfile.queue
            if identifier not in found:
                found[identifier] = QueuePin(identifier, names.get(identifier, identifier))
            found[identifier].flowfiles += 1
        for pin in self.pins:
            queues = {each.queue for each in self.holders(pin)}
            for queue in queues:
                found[queue].files += 1
            if len(queues) == 1:
                only = found[queues.pop()]
                only.whole_files += 1
                only.whole += pin.size
            elif pin.tail:
                last = {each.queue for each in self.flowfiles[pin.end - pin.tail_flowfiles : pin.end]}
                if len(last) == 1:
                    found[last.pop()].tails += pin.tail
        return sorted(found.values(), key=lambda queue: (-queue.whole, -queue.tails, queue.identifier))

    def free(self, goal: int, *, tails: bool) -> FreeingSet:
        """Few FlowFiles whose leaving frees `goal` bytes in whole files, or with `tails` in tails as well."""
        levels, freed, at_least = self._best_first(goal, tails=tails)
        if freed < goal:
            _complete(self.pins, levels, goal - freed, tails=tails)
        freed = sum(self.pins[number].leaving(level)[0] for number, level in levels.items())
        _thin_out(self.pins, levels, freed - goal)
        chosen = []
        for number, level in sorted(levels.items()):
            pin = self.pins[number]
            chosen.append(FileLeaving(pin, level == WHOLE, *pin.leaving(level)))
        chosen.sort(key=lambda each: (-each.freed / each.flowfiles, each.pin.file))
        freed, flowfiles = sum(each.freed for each in chosen), sum(each.flowfiles for each in chosen)
        return FreeingSet(goal, freed, flowfiles, at_least if freed >= goal else flowfiles, chosen)

    def _best_first(self, goal: int, *, tails: bool) -> tuple[dict[int, int], int, int]:
        """How much of which file, up to just before the goal; the bytes; and the least that any set needs.

        If FlowFiles could leave in parts, the best ones first, and of the last one a part, would be the fewest.
        """
        levels: dict[int, int] = {}
        freed = flowfiles = 0
        for step in sorted(_steps(self.pins, tails=tails), key=lambda step: -step.size / step.flowfiles):
            if freed + step.size >= goal:
                return levels, freed, flowfiles - (-(goal - freed) * step.flowfiles // step.size)
            levels[step.number] = step.level
            freed += step.size
            flowfiles += step.flowfiles
        return levels, freed, flowfiles

    def _pinned(self, facts: ClaimFile, begin: int, end: int) -> PinnedFile:
        last = self.flowfiles[end - 1]
        ranges = ((each.start, each.start + each.size) for each in self.flowfiles[begin:end])
        live, middles, tail = shares(facts.size, ranges)
        pin = PinnedFile(
            last.file, facts.size, live, middles, tail, facts.modified_millis > self._settled_before, begin, end
        )
        if self._truncated_above is not None and last.claim_start:
            first = end
            while first > begin and self.flowfiles[first - 1].claim_start == last.claim_start:
                first -= 1
            length = max(each.start + each.size for each in self.flowfiles[first:end]) - last.claim_start
            if first > begin and length > self._truncated_above and facts.size > last.claim_start:
                pin.tail, pin.tail_flowfiles = facts.size - last.claim_start, end - first
        return pin


def _steps(pins: Sequence[PinnedFile], *, tails: bool) -> Iterator[LeavingStep]:
    """In which files come back; of a file, one is never better than the one before it."""
    for number, pin in enumerate(pins):
        if pin.is_unsettled or not pin.size:
            continue
        size, flowfiles = pin.size - pin.tail, pin.flowfiles - pin.tail_flowfiles
        if tails and pin.tail and pin.tail * flowfiles > size * pin.tail_flowfiles:
            yield LeavingStep(pin.tail, pin.tail_flowfiles, number, TAIL)
            yield LeavingStep(size, flowfiles, number, WHOLE)
        else:
            yield LeavingStep(pin.size, pin.flowfiles, number, WHOLE)


def _complete(pins: Sequence[PinnedFile], levels: dict[int, int], lacking: int, *, tails: bool) -> None:
    """Add what brings all that is lacking with the fewest FlowFiles, if one file does."""
    best: tuple[int, int, int, int] | None = None
    for number, pin in enumerate(pins):
        if pin.is_unsettled:
            continue
        has = levels.get(number, NOTHING)
        before = pin.leaving(has)
        for level in range(has + 1, WHOLE + 1) if tails and pin.tail else (WHOLE,):
            after = pin.leaving(level)
            size, flowfiles = after[0] - before[0], after[1] - before[1]
            if size >= lacking and (best is None or (flowfiles, -size) < best[:2]):
                best = (flowfiles, -size, number, level)
    if best is not None:
        levels[best[2]] = best[3]


def _thin_out(pins: Sequence[PinnedFile], levels: dict[int, int], spare: int) -> None:
    """Leave out what the goal is reached without, the most FlowFiles first."""
    for number in sorted(levels, key=lambda number: -pins[number].leaving(levels[number])[1]):
        size = pins[number].leaving(levels[number])[0]
        if size <= spare:
            spare -= size
            del levels[number]
