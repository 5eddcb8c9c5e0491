"""Where metrics come from: files that time what is done to them, hooks of the engine, and a look at the repository.

The repository knows nothing of metrics. It takes any `Files`, and tells whoever asks of each commit and each
reclamation.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import psutil

from ullage import __version__
from ullage.embedded.bulk import FeedLag as FeedLag, stream_lags
from ullage.embedded.repository import File, OsFiles
from ullage.enums import Action, GoalHindrance
from ullage.wire.problems import BY_SLUG
from ullage.wire.queues import QueueStatus
from ullage.wire.service import ReplicationStatus, ServiceStatus
from ullage.wire.space import GoalStatus, RunReport
from ullage_agent.service.host import Host
from ullage_agent.service.metrics import Metrics, Sample

QUEUES_MAX = 200
"""Queues with metrics of their own, by name; what is above it counts in the sums only."""


STREAMS_MAX = 200
"""Streams with metrics of their own: each costs a look at its oldest event."""

STATE_FIGURES = (
    "flow_files",
    "queues",
    "swap_files",
    "leases",
    "remembered_answers",
    "unavailable_contents",
    "unavailable_swap_files",
    "unproved_files",
    "records_set_aside",
)
CONTAINER_FIGURES = (
    "disk_bytes",
    "live_bytes",
    "archived_bytes",
    "tombstone_bytes",
    "orphan_bytes",
    "leased_bytes",
    "resource_claims",
)
"""Metrics that are called as in the documents of the state and of a container."""


class TimedFiles(OsFiles):
    """The disk, with its syncs, reads and content writes measured."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def create(self, path: str) -> File:
        return _TimedFile(super().create(path), self._metrics, is_content=_is_content(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        return _TimedFile(super().open(path, writable=writable), self._metrics, is_content=False)

    def sync_directory(self, path: str) -> None:
        began = time.perf_counter()
        super().sync_directory(path)
        self._metrics.time("sync_seconds", time.perf_counter() - began, "directory")


class _TimedFile:
    """One open file; what is not measured is the file's own."""

    def __init__(self, file: File, metrics: Metrics, *, is_content: bool) -> None:
        self._file = file
        self._metrics = metrics
        self._is_content = is_content
        self.truncate = file.truncate
        self.allocate = file.allocate
        self.start_writeback = file.start_writeback
        self.punch = file.punch
        self.is_cached = file.is_cached
        self.expect_reads = file.expect_reads
        self.drop_cache = file.drop_cache
        self.size = file.size
        self.is_at = file.is_at
        self.close = file.close

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._file.write(data, offset)
        if self._is_content:
            self._metrics.count("content_written_bytes_total", by=len(data))

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._file.write_vector(buffers, offset)
        if self._is_content:
            self._metrics.count("content_written_bytes_total", by=sum(map(len, buffers)))

    def read(self, count: int, offset: int) -> bytes:
        began = time.perf_counter()
        data = self._file.read(count, offset)
        self._metrics.time("read_seconds", time.perf_counter() - began)
        return data

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        began = time.perf_counter()
        count = self._file.read_into(buffers, offset)
        self._metrics.time("read_seconds", time.perf_counter() - began)
        return count

    def sync(self) -> None:
        began = time.perf_counter()
        self._file.sync()
        self._metrics.time("sync_seconds", time.perf_counter() - began, "content" if self._is_content else "other")


class Meter:
    """Fills the metrics of one host: call `attach` when its repository is open."""

    def __init__(self, host: Host, metrics: Metrics, node: str) -> None:
        self._host = host
        self._metrics = metrics
        self._node = node
        self._process = psutil.Process()
        self.sessions: Callable[[], int] = int
        self.requests_under_way: Callable[[], int] = int
        self.requests_held: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.requests_arriving_bytes: Callable[[], int] = lambda: 0
        for action in Action:
            if action is not Action.NONE:
                metrics.expect("reclaim_actions_total", action.name.lower())
        for slug in BY_SLUG:
            metrics.expect("errors_total", slug)
        metrics.look = self._look

    def attach(self) -> None:
        """Have the repository tell of commits and reclamations."""
        repository = self._host.repository
        repository.hear_commits(lambda seconds: self._metrics.time("commit_seconds", seconds))
        repository.reclamation.hear(self._reported)

    def _reported(self, _: str, report: RunReport) -> None:
        for action, count in report.done.items():
            self._metrics.count("reclaim_actions_total", action, by=count)
        self._metrics.count("reclaim_freed_bytes_total", by=max(0, report.freed_bytes))
        self._metrics.count("reclaim_copied_bytes_total", by=report.copied_bytes)
        self._metrics.count("reclaim_problems_total", by=len(report.problems))

    def _look(self) -> Iterator[Sample]:
        yield Sample("build_info", 1, (__version__, self._node))
        yield Sample("ready", self._host.is_ready)
        yield Sample("requests_under_way", self.requests_under_way())
        held, held_bytes = self.requests_held()
        yield Sample("requests_held", held)
        yield Sample("requests_held_bytes", held_bytes)
        yield Sample("requests_arriving_bytes", self.requests_arriving_bytes())
        yield Sample("sessions", self.sessions())
        moved = self._process.io_counters()
        yield Sample("process_io_bytes_total", moved.read_bytes, ("read",))
        yield Sample("process_io_bytes_total", moved.write_bytes, ("write",))
        written = self._metrics.counted("content_written_bytes_total")
        stored = written - self._metrics.counted("reclaim_copied_bytes_total")
        yield Sample("write_amplification_ratio", written / stored if stored > 0 else 1)
        if self._host.is_open:
            repository = self._host.repository
            found = repository.state()
            yield from _space(found, repository.paths(), repository.spec.archive.backpressure_percentage)
            yield from _state(found)
            yield from _queues(repository.queues.all())
            yield from _streams(islice(stream_lags(repository), STREAMS_MAX))
            yield from _goal(repository.reclamation.goal(), found.now_millis)
            for window in found.windows:
                yield Sample("window_open", window.is_allowed, (window.operation,))
                if window.opens_millis is not None:
                    yield Sample("window_opens_timestamp_seconds", window.opens_millis / 1000, (window.operation,))


def _space(found: ServiceStatus, paths: Mapping[str, str], limit: float) -> Iterator[Sample]:
    for each in found.containers:
        name = (each.name,)
        used = each.used_bytes / each.total_bytes if each.total_bytes else 0.0  # of a volume that is away
        middle = max(0, each.dead_bytes - each.dead_tail_bytes - each.unused_bytes)
        for figure in CONTAINER_FIGURES:
            yield Sample(f"container_{figure}", getattr(each, figure), name)
        yield Sample("container_dead_bytes", each.dead_tail_bytes, (each.name, "tail"))
        yield Sample("container_dead_bytes", each.unused_bytes, (each.name, "unused"))
        yield Sample("container_dead_bytes", middle, (each.name, "middle"))
        yield Sample("container_used_ratio", used, name)
        yield Sample("container_back_pressure", used * 100 >= limit, name)
        is_there = each.volume in ("available", "read-only")
        yield Sample("container_away", not is_there, name)
        with suppress(OSError):  # it may have gone away since it was looked at
            if is_there:
                yield Sample("volume_free_bytes", psutil.disk_usage(paths[each.name]).free, name)
        yield Sample("container_poisoned", each.name in found.poisoned, name)


def _goal(goal: GoalStatus, millis: int) -> Iterator[Sample]:
    """What was dead before a goal was set is being given back, and nothing to wake anybody for."""
    oldest = millis if goal.oldest_dead_millis is None else goal.oldest_dead_millis
    yield Sample("goal_oldest_dead_seconds", max(0, millis - oldest) / 1000)
    is_missed = goal.will_miss is not None and goal.hindrance != GoalHindrance.BACKLOG
    yield Sample("goal_missed", is_missed)
    if is_missed and goal.will_miss_millis is not None:
        labels = (str(goal.will_miss), str(goal.hindrance))
        yield Sample("goal_miss_timestamp_seconds", goal.will_miss_millis / 1000, labels)


def _queues(queues: Sequence[QueueStatus]) -> Iterator[Sample]:
    yield Sample("swapped_flow_files", sum(queue.swapped for queue in queues))
    for queue in queues[:QUEUES_MAX]:
        yield Sample("queue_flow_files", queue.flow_files, (queue.name,))
        yield Sample("queue_bytes", queue.size_bytes, (queue.name,))


def _streams(lags: Iterable[FeedLag]) -> Iterator[Sample]:
    for lag in lags:
        labels = (lag.stream, lag.queue)
        yield Sample("stream_backlog", lag.backlog, labels)
        if lag.since_millis is not None:
            yield Sample("stream_oldest_unread_timestamp_seconds", lag.since_millis / 1000, labels)


def _state(found: ServiceStatus) -> Iterator[Sample]:
    for figure in STATE_FIGURES:
        yield Sample(figure, getattr(found, figure))
    yield Sample("erasure_unfinished", int(bool(found.unfinished_erasure)))
    yield Sample("forgotten_total", found.forgotten)
    yield Sample("queues_full", len(found.full_queues))
    yield Sample("log_bytes", found.log.bytes)
    yield Sample("log_syncs_total", found.log.syncs)
    yield Sample("transactions_total", found.log.durable_transaction)
    yield Sample("provenance_waiting_events", found.provenance_waiting)
    yield Sample("provenance_waiting_bytes", found.provenance_waiting_bytes)
    yield from _replication(found.replication)
    yield Sample("clock_offset_seconds", (found.clock.machine_millis - found.clock.believed_millis) / 1000)
    # None is made while nothing happens: that it is old then is nothing to wake anybody for.
    is_behind = found.log.last_transaction > found.log.snapshot_transaction
    age = found.now_millis - found.log.snapshot_millis if is_behind else 0
    yield Sample("checkpoint_age_seconds", max(0, age) / 1000)


def _replication(found: ReplicationStatus | None) -> Iterator[Sample]:
    yield Sample("replication_lag_seconds", 0 if found is None else found.lag_millis / 1000)
    yield Sample("replication_lag_bytes", 0 if found is None else found.lag_bytes)
    yield Sample("replication_max_lag_seconds", 0 if found is None else found.max_lag_millis / 1000)
    yield Sample("replication_fenced", found is not None and found.state == "fenced")
    yield Sample("replication_failing", found is not None and found.state in ("failing", "fenced"))
    yield Sample("replication_lapsed", found is not None and found.has_lapsed)
    yield Sample("replication_shipped_bytes_total", 0 if found is None else found.shipped_bytes)


def _is_content(path: str) -> bool:
    """Whether a file that is made is a content file: they alone have no ending."""
    name = os.path.basename(path)
    return name.replace("-", "").isdecimal()
