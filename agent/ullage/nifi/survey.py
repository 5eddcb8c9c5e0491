"""What holds the disk of a NiFi: pure computation from its FlowFiles and its files."""

import heapq
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from ullage.nifi.contents import ClaimFile, FileTotals
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.trouble import NiFiDamage

UNSETTLED_MILLIS: Final = 10 * 60 * 1000
"""A file that was written to so lately may hold what a session of NiFi has written and not committed yet."""

HOUR: Final = 3_600_000
AGES: Final = (
    ("under an hour", HOUR),
    ("under a day", 24 * HOUR),
    ("under a week", 168 * HOUR),
    ("a week or more", None),
)
SIZES: Final = (("empty", 1), ("under 1 KiB", 1 << 10), ("under 1 MiB", 1 << 20), ("1 MiB or more", None))


class NiFiSpace(msgspec.Struct):
    """Bytes of the content repository: the uses add up to `size`.

    `live`: some FlowFile's content, counted once where several share it. In files that hold live content, or that
    FlowFiles without bytes hold: `dead_middles` has live bytes behind it, `dead_tails` has none. `dead_files`: whole
    files that no FlowFile refers to, which NiFi has not removed. `unsettled`: tails and whole files that were written
    to so lately that a session may still be at work in them. `archive`: kept for replays. `foreign`: not NiFi's.
    `allocated`: what the file system has given to all these files.
    """

    files: int = 0
    size: int = 0
    allocated: int = 0
    live: int = 0
    dead_middles: int = 0
    dead_tails: int = 0
    dead_files: int = 0
    unsettled: int = 0
    archive: int = 0
    foreign: int = 0

    @property
    def ratio(self) -> float | None:
        """Allocated bytes for each live one; None: nothing is live."""
        return self.allocated / self.live if self.live else None


class QueueHold(msgspec.Struct):
    """What one queue holds. `size`: of its FlowFiles. `files`: in which they lie.

    `dead`: bytes in those files, some of which other queues may hold as well. `alone`: what comes back, live and dead,
    once this queue is empty: the files that no other queue holds.
    """

    identifier: str
    name: str
    flowfiles: int = 0
    size: int = 0
    files: int = 0
    dead: int = 0
    alone: int = 0
    oldest_millis: int = 0


class Band(msgspec.Struct):
    """FlowFiles of an age, or of a size, and the files whose oldest, or largest, FlowFile is one of them."""

    name: str
    flowfiles: int = 0
    size: int = 0
    files: int = 0
    dead: int = 0


class FileHold(msgspec.Struct):
    """One file with dead bytes, and who holds it. `largest`: bytes of the largest FlowFile in it."""

    file: str
    size: int
    live: int
    dead_middles: int
    dead_tails: int
    flowfiles: int
    largest: int
    oldest_millis: int
    queues: list[str]


class NiFiSurvey(msgspec.Struct):
    """What a NiFi had at a moment. Times in milliseconds since 1970, sizes in bytes.

    `is_complete`: all FlowFiles could be read, else what looks dead may be theirs; and all folders of contents, else
    what lies there looks as if it were not on the disk: `damages` says which. `is_in_use`: NiFi went on while it
    was read. `missing`: FlowFiles whose content, or the end of it, is not there; `missing_bytes` of it.
    """

    millis: int
    transaction: int
    is_complete: bool
    is_in_use: bool
    flowfiles: int
    swap_files: int
    missing: int
    missing_bytes: int
    space: NiFiSpace
    queues: list[QueueHold]
    ages: list[Band]
    sizes: list[Band]
    files: list[FileHold]
    damages: list[NiFiDamage]


class SurveyTally:
    """Adds up FlowFiles, a file after the other."""

    def __init__(self, now_millis: int, names: Mapping[str, str], listed: int) -> None:
        """`listed`: how many of the files with the most dead bytes are told."""
        self.space = NiFiSpace()
        self.flowfiles = 0
        self.missing = 0
        self.missing_bytes = 0
        self.ages = [Band(name) for name, _ in AGES]
        self.sizes = [Band(name) for name, _ in SIZES]
        self._now = now_millis
        self._names = names
        self._listed = listed
        self._queues: dict[str, QueueHold] = {}
        self._worst: list[tuple[int, int, FileHold]] = []
        self._held = 0

    def add(self, flowfiles: Iterable[NiFiFlowFile], files: Mapping[str, ClaimFile]) -> None:
        """All FlowFiles, and what is known of the files in which they lie."""
        for file, group in groupby(sorted(flowfiles, key=attrgetter("file", "start")), attrgetter("file")):
            together = list(group)
            for flowfile in together:
                self._count(flowfile)
            if not file:
                continue
            facts = files.get(file)
            self._add_file(file, facts or ClaimFile(0, 0, 0), together)

    def add_unused(self, files: Iterable[ClaimFile]) -> None:
        """The files that no FlowFile refers to."""
        for facts in files:
            self._add_size(facts)
            if self._is_unsettled(facts):
                self.space.unsettled += facts.size
            else:
                self.space.dead_files += facts.size

    def add_others(self, archive: FileTotals, foreign: FileTotals) -> None:
        """What is in the archive, and what is not NiFi's."""
        for totals in (archive, foreign):
            self.space.files += totals.files
            self.space.size += totals.size
            self.space.allocated += totals.allocated
        self.space.archive += archive.size
        self.space.foreign += foreign.size

    def queues(self) -> list[QueueHold]:
        """The one whose emptying would bring most back first."""
        return sorted(self._queues.values(), key=lambda queue: (-queue.alone, -queue.dead, queue.identifier))

    def worst(self) -> list[FileHold]:
        """The files with the most dead bytes, most first."""
        return [hold for _, _, hold in sorted(self._worst, key=lambda each: (-each[0], each[2].file))]

    def _count(self, flowfile: NiFiFlowFile) -> None:
        self.flowfiles += 1
        age = self.ages[_band(AGES, self._now - flowfile.queued_millis)]
        size = self.sizes[_band(SIZES, flowfile.size)]
        queue = self._queue(flowfile.queue)
        for each in (age, size, queue):
            each.flowfiles += 1
            each.size += flowfile.size
        queue.oldest_millis = min(queue.oldest_millis or flowfile.queued_millis, flowfile.queued_millis)

    def _add_file(self, file: str, facts: ClaimFile, flowfiles: list[NiFiFlowFile]) -> None:
        self._add_size(facts)
        self._add_missing(facts.size, flowfiles)
        live, middles, tail = shares(facts.size, ((each.start, each.start + each.size) for each in flowfiles))
        self.space.live += live
        self.space.dead_middles += middles
        if self._is_unsettled(facts):
            self.space.unsettled += tail
            tail = 0
        self.space.dead_tails += tail
        dead = middles + tail
        oldest = min(each.queued_millis for each in flowfiles)
        largest = max(each.size for each in flowfiles)
        queues = {each.queue for each in flowfiles}
        holders: tuple[Band | QueueHold, ...] = (
            self.ages[_band(AGES, self._now - oldest)],
            self.sizes[_band(SIZES, largest)],
            *map(self._queue, queues),
        )
        for holder in holders:
            holder.files += 1
            holder.dead += dead
        if len(queues) == 1:
            self._queue(flowfiles[0].queue).alone += facts.size
        self._held += 1
        if dead and self._listed and (len(self._worst) < self._listed or dead > self._worst[0][0]):
            named = sorted(self._queue(queue).name for queue in queues)
            hold = FileHold(file, facts.size, live, middles, tail, len(flowfiles), largest, oldest, named)
            (heapq.heappush if len(self._worst) < self._listed else heapq.heapreplace)(
                self._worst, (dead, self._held, hold)
            )

    def _add_size(self, facts: ClaimFile) -> None:
        self.space.files += 1
        self.space.size += facts.size
        self.space.allocated += facts.allocated

    def _add_missing(self, size: int, flowfiles: list[NiFiFlowFile]) -> None:
        for flowfile in flowfiles:
            lacking = min(flowfile.size, flowfile.start + flowfile.size - size)
            if lacking > 0:
                self.missing += 1
                self.missing_bytes += lacking

    def _is_unsettled(self, facts: ClaimFile) -> bool:
        return facts.modified_millis > self._now - UNSETTLED_MILLIS

    def _queue(self, identifier: str) -> QueueHold:
        found = self._queues.get(identifier)
        if found is None:
            name = self._names.get(identifier, identifier)
            found = self._queues[identifier] = QueueHold(identifier, name)
        return found


def shares(size: int, ranges: Iterable[tuple[int, int]]) -> tuple[int, int, int]:
    """How much of a file is live, is dead with live bytes behind it, and is dead behind all.

    >>> shares(100, [(10, 30), (20, 40), (60, 70)])
    (40, 30, 30)
    """
    live = end = 0
    for start, stop in sorted(ranges):
        stop = min(stop, size)  # noqa: PLW2901 - what is not there is not live
        if stop > max(start, end):
            live += stop - max(start, end)
            end = stop
    return live, end - live, size - end


def _band(bands: tuple[tuple[str, int | None], ...], value: int) -> int:
    """The first that the value is below."""
    return next(number for number, (_, limit) in enumerate(bands) if limit is None or value < limit)
