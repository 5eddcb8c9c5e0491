"""What `ullage nifi watch` measures: one table of all there is, and the values of the last survey.

Labels are bounded: uses, ages and sizes are fixed, containers are those of nifi.properties, and of queues only those
that would give most back have series of their own; the others are one together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ullage.nifi.survey import Band, NiFiSurvey

PREFIX: Final = "ullage_nifi_"

OTHERS: Final = "(others)"
"""What stands for all queues that have no series of their own. No connection of NiFi's has this name: each says from
where to where it leads.
"""

OUTCOMES: Final = ("complete", "incomplete", "failed")


class NiFiEntry(NamedTuple):
    """One metric of a NiFi."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_total: bool = False


NIFI_TABLE: Final = (
    NiFiEntry("content_bytes", "Bytes of the content repository, by use: they add up to all its files.", ("use",)),
    NiFiEntry("content_allocated_bytes", "What the filesystem has given to these files."),
    NiFiEntry("content_files", "Files of the content repository."),
    NiFiEntry("flowfiles", "FlowFiles in all queues, swapped ones included."),
    NiFiEntry("swap_files", "Swap files."),
    NiFiEntry("unreadable_flowfiles", "FlowFiles whose content, or the end of it, is not on the disk."),
    NiFiEntry("unreadable_bytes", "What of their content is not there."),
    NiFiEntry("transaction", "The last transaction of the FlowFile repository: the moment of these values."),
    NiFiEntry(
        "waiting_dead_bytes", "Dead bytes, by the age of the FlowFile that waits longest in a file.", ("waiting",)
    ),
    NiFiEntry("size_dead_bytes", "Dead bytes, by the size of the largest FlowFile in a file.", ("size",)),
    NiFiEntry("queue_flowfiles", "FlowFiles of a queue.", ("queue",)),
    NiFiEntry("queue_bytes", "Their content.", ("queue",)),
    NiFiEntry("queue_dead_bytes", "Dead bytes in the files of a queue; others may hold them too.", ("queue",)),
    NiFiEntry("queue_alone_bytes", "What comes back, live and dead, once a queue is empty.", ("queue",)),
    NiFiEntry("queue_oldest_timestamp_seconds", "Since when the first of a queue waits.", ("queue",)),
    NiFiEntry("volume_free_bytes", "What the volume of a container has left.", ("container",)),
    NiFiEntry("volume_size_bytes", "How large it is.", ("container",)),
    NiFiEntry("survey_success", "1 if the last survey came to an end, 0 if it failed."),
    NiFiEntry("survey_complete", "1 if all FlowFiles could be read; else what is called dead may be theirs."),
    NiFiEntry("survey_damages", "Files of NiFi's that could not be read, or not whole."),
    NiFiEntry("survey_duration_seconds", "How long the last survey took, or that which goes on if it takes longer."),
    NiFiEntry("survey_timestamp_seconds", "When the last survey that came to an end was made."),
    NiFiEntry("surveys_total", "Surveys, by how they ended.", ("outcome",), is_total=True),
)
"""Everything that is measured of a NiFi."""


class NiFiMeasure(NamedTuple):
    """A value of one series."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class NiFiMetrics(Collector):
    """The values of one NiFi. Thread-safe: a survey goes on while somebody asks."""

    def __init__(self, queues: int, monotonic: Callable[[], float]) -> None:
        """`queues`: how many have series of their own."""
        self._queues = queues
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._values: list[NiFiMeasure] = []
        self._volumes: list[NiFiMeasure] = []
        self._containers: Mapping[str, str] = {}
        self._state: dict[str, float] = {}
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._began: float | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def begin(self) -> None:
        """A survey goes on from now on."""
        with self._lock:
            self._began = self._monotonic()

    def find(self, containers: Mapping[str, str] | None) -> None:
        """What the volumes of these have left, which needs no survey; None: of those that were named last."""
        if containers is not None:
            self._containers = dict(containers)
        volumes = [each for name, path in self._containers.items() for each in _volume(name, path)]
        with self._lock:
            self._volumes = volumes

    def end(self, survey: NiFiSurvey | None) -> float:
        """It has ended, or failed: then there are no values but that. How many seconds it took."""
        values = [] if survey is None else list(values_of(survey, self._queues))
        with self._lock:
            assert self._began is not None
            seconds = self._monotonic() - self._began
            self._began = None
            self._values = values
            self._state["survey_success"] = float(survey is not None)
            self._state["survey_duration_seconds"] = seconds
            if survey is not None:
                self._state["survey_timestamp_seconds"] = survey.millis / 1_000
            outcome = "failed" if survey is None else "complete" if survey.is_complete else "incomplete"
            self._counts[outcome] += 1
        return seconds

    def describe(self) -> Iterable[Metric]:
        """Nothing, or registering would already look."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """As the registry asks for it."""
        with self._lock:
            measured = [*self._values, *self._volumes, *self._told()]
        by_name: dict[str, list[NiFiMeasure]] = {}
        for each in measured:
            by_name.setdefault(each.name, []).append(each)
        for entry in NIFI_TABLE:
            if entry.name in by_name:
                kind = CounterMetricFamily if entry.is_total else GaugeMetricFamily
                family = kind(PREFIX + entry.name, entry.help, labels=entry.labels)
                for each in by_name[entry.name]:
                    family.add_metric(each.labels, each.value)
                yield family

    def _told(self) -> Iterator[NiFiMeasure]:
        """Of the surveys themselves. One that takes longer than the last one is told while it goes on."""
        state = dict(self._state)
        if self._began is not None:
            running = self._monotonic() - self._began
            state["survey_duration_seconds"] = max(running, state.get("survey_duration_seconds", 0.0))
        yield from (NiFiMeasure(name, value) for name, value in state.items())
        yield from (NiFiMeasure("surveys_total", count, (outcome,)) for outcome, count in self._counts.items())


def values_of(survey: NiFiSurvey, queues: int) -> Iterator[NiFiMeasure]:
    """What a survey says."""
    space = survey.space
    for use in ("live", "dead_middles", "dead_tails", "dead_files", "unsettled", "archive", "foreign"):
        yield NiFiMeasure("content_bytes", getattr(space, use), (use,))
    yield NiFiMeasure("content_allocated_bytes", space.allocated)
    yield NiFiMeasure("content_files", space.files)
    yield NiFiMeasure("flowfiles", survey.flowfiles)
    yield NiFiMeasure("swap_files", survey.swap_files)
    yield NiFiMeasure("unreadable_flowfiles", survey.missing)
    yield NiFiMeasure("unreadable_bytes", survey.missing_bytes)
    yield NiFiMeasure("transaction", survey.transaction)
    yield NiFiMeasure("survey_complete", float(survey.is_complete))
    yield NiFiMeasure("survey_damages", len(survey.damages))
    yield from _bands("waiting_dead_bytes", survey.ages)
    yield from _bands("size_dead_bytes", survey.sizes)
    yield from _queues(survey, queues)


def _queues(survey: NiFiSurvey, most: int) -> Iterator[NiFiMeasure]:
    """Those that hold most, which come first; the names of two may be the same, and then they are one."""
    totals: dict[str, list[float]] = {}
    for number, queue in enumerate(survey.queues):
        name = queue.name if number < most else OTHERS
        held = totals.setdefault(name, [0.0, 0.0, 0.0, 0.0, float("inf")])
        held[0] += queue.flowfiles
        held[1] += queue.size
        held[2] = max(held[2], queue.dead)  # files that two queues hold are dead once
        held[3] += queue.alone
        held[4] = min(held[4], queue.oldest_millis / 1_000)
    for name, (flowfiles, size, dead, alone, oldest) in totals.items():
        yield NiFiMeasure("queue_flowfiles", flowfiles, (name,))
        yield NiFiMeasure("queue_bytes", size, (name,))
        if name != OTHERS:
            yield NiFiMeasure("queue_dead_bytes", dead, (name,))
        yield NiFiMeasure("queue_alone_bytes", alone, (name,))
        yield NiFiMeasure("queue_oldest_timestamp_seconds", oldest, (name,))


def _bands(name: str, bands: Iterable[Band]) -> Iterator[NiFiMeasure]:
    for band in bands:
        yield NiFiMeasure(name, band.dead, (band.name,))


def _volume(name: str, path: str) -> Iterator[NiFiMeasure]:
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):  # it is not there: the survey says so
        return
    yield NiFiMeasure("volume_free_bytes", found.f_bavail * found.f_frsize, (name,))
    yield NiFiMeasure("volume_size_bytes", found.f_blocks * found.f_frsize, (name,))
