"""Where metrics come from: files that time what is done to them, hooks of the engine, and a look at the repository.

The engine knows nothing of metrics. It takes any `Files`, and tells whoever asks of each commit and each reclamation.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from ullage_agent import __version__
from ullage_agent.contract import MaintenanceOperation
from ullage_agent.engine.files import File, OsFiles
from ullage_agent.engine.model import Action
from ullage_agent.engine.opening import FLOWFILE
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.reclaim.survey import Survey
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.wal.snapshot import SNAPSHOT
from ullage_agent.metrics import Metrics, Sample
from ullage_agent.service.host import Host
from ullage_agent.service.problems import SLUGS
from ullage_agent.windows import Calendar

QUEUES_MAX = 200
"""Queues with metrics of their own, by name; what is above it counts in the sums only."""


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
        for action in Action:
            if action is not Action.NONE:
                metrics.expect("reclaim_actions_total", action.name.lower())
        for slug in SLUGS:
            metrics.expect("errors_total", slug)
        metrics.look(self._look)

    def attach(self) -> None:
        """Have the engine tell of commits and reclamations."""
        repository = self._host.repository
        repository.on_commit = lambda seconds: self._metrics.time("commit_seconds", seconds)
        repository.reclamation.on_report = self._reported

    def _reported(self, name: str, report: Report) -> None:
        for action, count in report.done.items():
            self._metrics.count("reclaim_actions_total", action.name.lower(), by=count)
        self._metrics.count("reclaim_freed_bytes_total", by=max(0, report.freed_bytes))
        self._metrics.count("reclaim_copied_bytes_total", by=report.copied_bytes)

    def _look(self) -> Iterator[Sample]:
        yield Sample("build_info", 1, (__version__, self._node))
        yield Sample("ready", self._host.is_ready)
        yield Sample("requests_under_way", self.requests_under_way())
        yield Sample("sessions", self.sessions())
        moved = self._process.io_counters()
        yield Sample("process_io_bytes_total", moved.read_bytes, ("read",))
        yield Sample("process_io_bytes_total", moved.write_bytes, ("write",))
        written = self._metrics.counted("content_written_bytes_total")
        stored = written - self._metrics.counted("reclaim_copied_bytes_total")
        yield Sample("write_amplification_ratio", written / stored if stored > 0 else 1)
        if self._host.is_open:
            repository = self._host.repository
            yield from _space(repository)
            yield from _queues(repository)
            yield from _log(repository)
            yield from self._windows()

    def _windows(self) -> Iterator[Sample]:
        calendar, now = Calendar(self._host.spec.maintenance), self._host.clock.now_millis()
        for operation in MaintenanceOperation:
            verdict = calendar.verdict(operation, now)
            yield Sample("window_open", verdict.is_allowed, (operation,))
            if verdict.opens_millis is not None:
                yield Sample("window_opens_timestamp_seconds", verdict.opens_millis / 1000, (operation,))


def _space(repository: Repository) -> Iterator[Sample]:
    survey = repository.reclamation.survey()
    leased = leased_bytes(repository, survey)
    limit = repository.spec.archive.backpressure_percentage
    for each in survey.containers:
        name = (each.name,)
        middle = max(0, each.dead_bytes - each.dead_tail_bytes - each.free_bytes)
        yield Sample("container_disk_bytes", each.disk_bytes, name)
        yield Sample("container_live_bytes", each.live_bytes, name)
        yield Sample("container_dead_bytes", each.dead_tail_bytes, (each.name, "tail"))
        yield Sample("container_dead_bytes", each.free_bytes, (each.name, "unused"))
        yield Sample("container_dead_bytes", middle, (each.name, "middle"))
        yield Sample("container_archived_bytes", each.archived_bytes, name)
        yield Sample("container_tombstone_bytes", each.tombstone_bytes, name)
        yield Sample("container_leased_bytes", leased.get(each.name, 0), name)
        yield Sample("container_resource_claims", each.resource_claims, name)
        yield Sample("container_used_ratio", each.usage.percentage / 100, name)
        yield Sample("container_back_pressure", each.usage.percentage >= limit, name)
        yield Sample("volume_free_bytes", psutil.disk_usage(each.path).free, name)
    for container in repository.content.containers.values():
        yield Sample("container_poisoned", container.failure is not None, (container.name,))


def leased_bytes(repository: Repository, survey: Survey) -> dict[str, int]:
    """Bytes of files that leases keep from being rewritten, by container."""
    held = repository.reclamation.compactor.leased(survey)
    found: dict[str, int] = {}
    for figures in survey.resources:
        if figures.resource in held:
            found[figures.container] = found.get(figures.container, 0) + figures.allocated_bytes
    return found


def _queues(repository: Repository) -> Iterator[Sample]:
    queues = repository.queues.all()
    figures = [queue.figures() for queue in queues]
    yield Sample("queues", len(queues))
    yield Sample("queues_full", sum(queue.is_full for queue in queues))
    yield Sample("flow_files", sum(each.flow_files for each in figures))
    yield Sample("swap_files", sum(each.swap_files for each in figures))
    yield Sample("swapped_flow_files", sum(each.swapped for each in figures))
    for queue, each in list(zip(queues, figures, strict=True))[:QUEUES_MAX]:
        yield Sample("queue_flow_files", each.flow_files, (queue.name,))
        yield Sample("queue_bytes", each.size_bytes, (queue.name,))


def _log(repository: Repository) -> Iterator[Sample]:
    yield Sample("leases", len(repository.leases.all()))
    yield Sample("remembered_answers", len(repository.ledger.answers))
    yield Sample("log_bytes", repository.log.log_bytes)
    yield Sample("log_syncs_total", repository.log.sync_count)
    yield Sample("transactions_total", repository.log.durable)
    yield Sample("provenance_waiting_events", repository.provenance.tail.events)
    yield Sample("provenance_waiting_bytes", repository.provenance.tail.bytes)
    snapshot = os.path.join(repository.root, FLOWFILE, SNAPSHOT)
    # None is made while nothing happens: that it is old then is nothing to wake anybody for.
    is_behind = repository.log.last_id > repository.log.snapshot_id
    age = time.time() - os.stat(snapshot).st_mtime if is_behind else 0.0
    yield Sample("checkpoint_age_seconds", max(0.0, age))


def _is_content(path: str) -> bool:
    """Whether a file that is made is a content file: they alone have no ending."""
    name = os.path.basename(path)
    return name.replace("-", "").isdecimal()
