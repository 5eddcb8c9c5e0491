"""Metrics: one table of all there are, and the registry that holds their values.

Names as Prometheus has them: a prefix, a base unit, `_total` for what only grows. Labels have few values: containers,
actions, routes; never a claim, a FlowFile or a token. Queues are somebody's choice, so only so many get a label.
"""

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX: Final = "ullage_"

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of latencies: from a page cache to a disk that is in trouble."""


class MetricKind(enum.Enum):
    """How a value comes to be: noted when something happens, or looked up when somebody asks."""

    COUNTED = "counter, when it happens"
    TIMED = "histogram of seconds, when it happens"
    GAUGE = "gauge, looked up"
    TOTAL = "counter, looked up"


COUNTED, TIMED, GAUGE, TOTAL = MetricKind


class Entry(NamedTuple):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


TABLE: Final = (
    Entry("build_info", GAUGE, "1; what serves.", ("version", "node")),
    Entry("ready", GAUGE, "1 if commits can succeed."),
    Entry("container_disk_bytes", GAUGE, "Blocks of content files, without archive and tombstones.", ("container",)),
    Entry("container_live_bytes", GAUGE, "Content in use.", ("container",)),
    Entry("container_dead_bytes", GAUGE, "Dead content: tail, unused, middle.", ("container", "kind")),
    Entry("container_archived_bytes", GAUGE, "Content kept for replay.", ("container",)),
    Entry("container_tombstone_bytes", GAUGE, "Content kept for an undelete.", ("container",)),
    Entry("container_orphan_bytes", GAUGE, "Content files of transactions that never came.", ("container",)),
    Entry("container_leased_bytes", GAUGE, "Content files that leases keep from being rewritten.", ("container",)),
    Entry("container_resource_claims", GAUGE, "Content files.", ("container",)),
    Entry("container_used_ratio", GAUGE, "Used share of the capacity, or of the volume.", ("container",)),
    Entry("container_back_pressure", GAUGE, "1 if writers are asked to wait.", ("container",)),
    Entry("container_away", GAUGE, "1 while its volume is not there, and its content unavailable.", ("container",)),
    Entry("container_poisoned", GAUGE, "1 after a failed sync: no more writes until a restart.", ("container",)),
    Entry("volume_free_bytes", GAUGE, "What the container's volume has left.", ("container",)),
    Entry("flow_files", GAUGE, "FlowFiles in queues."),
    Entry("queues", GAUGE, "Queues."),
    Entry("queues_full", GAUGE, "Queues that have reached their limits."),
    Entry("queue_flow_files", GAUGE, "FlowFiles, held and swapped ones included.", ("queue",)),
    Entry("queue_bytes", GAUGE, "Their content.", ("queue",)),
    Entry("stream_backlog", GAUGE, "FlowFiles, or events, that are not read yet.", ("stream", "queue")),
    Entry("stream_oldest_unread_timestamp_seconds", GAUGE, "When the first of them came.", ("stream", "queue")),
    Entry("swap_files", GAUGE, "Swap files."),
    Entry("unavailable_contents", GAUGE, "Damaged contents, and missing content files, that reads have met."),
    Entry("unavailable_swap_files", GAUGE, "Swap files that are damaged or missing: their FlowFiles can't be read."),
    Entry("unproved_files", GAUGE, "Content files still to be read after an unclean end."),
    Entry("records_set_aside", GAUGE, "Records that can't be used, kept until a person gives them up."),
    Entry("erasure_unfinished", GAUGE, "1 while an erasure was begun and is not finished."),
    Entry("clock_offset_seconds", GAUGE, "How far the machine's clock is from the time believed, 0 if plausible."),
    Entry("forgotten_total", TOTAL, "Sessions, puts and content streams that were dropped without an end."),
    Entry("swapped_flow_files", GAUGE, "FlowFiles in swap files."),
    Entry("sessions", GAUGE, "Remote sessions."),
    Entry("leases", GAUGE, "Leases that stand."),
    Entry("remembered_answers", GAUGE, "Answers kept for their idempotency keys."),
    Entry("log_bytes", GAUGE, "Size of the write-ahead log."),
    Entry("checkpoint_age_seconds", GAUGE, "Time since the last checkpoint, 0 if nothing was committed since."),
    Entry("log_syncs_total", TOTAL, "Syncs of the log."),
    Entry("transactions_total", TOTAL, "Transactions, durable ones, since the repository was made."),
    Entry("provenance_waiting_events", GAUGE, "Events that are in no event file yet."),
    Entry("provenance_waiting_bytes", GAUGE, "About what these take."),
    Entry("replication_lag_seconds", GAUGE, "How long the oldest transaction waits to be shipped, 0 if none does."),
    Entry("replication_lag_bytes", GAUGE, "Log and content that is known to wait to be shipped."),
    Entry("replication_max_lag_seconds", GAUGE, "How long it may wait: spec.replication.maxLag, 0 without a bucket."),
    Entry(
        "replication_fenced",
        GAUGE,
        "1 once somebody else writes the share: this node ships nothing any more, and is read-only.",
    ),
    Entry("replication_failing", GAUGE, "1 while nothing is shipped: the bucket refuses, or somebody else writes."),
    Entry(
        "replication_lapsed",
        GAUGE,
        "1 while the lease of spec.replication.adoptAfter does not hold: nothing is served.",
    ),
    Entry("replication_shipped_bytes_total", TOTAL, "Bytes put into the bucket since the start."),
    Entry("window_open", GAUGE, "1 if the operation is allowed now.", ("operation",)),
    Entry("window_opens_timestamp_seconds", GAUGE, "When the operation is allowed next.", ("operation",)),
    Entry("goal_oldest_dead_seconds", GAUGE, "How long the oldest dead byte has been dead, 0 without a goal."),
    Entry("goal_missed", GAUGE, "1 if the goal of compaction is not held, or is foreseen not to be."),
    Entry("goal_miss_timestamp_seconds", GAUGE, "From when on it is not held.", ("bound", "hindrance")),
    Entry("process_io_bytes_total", TOTAL, "Bytes this process moved to and from disks.", ("direction",)),
    Entry("requests_under_way", GAUGE, "HTTP requests."),
    Entry("requests_held", GAUGE, "HTTP requests that are not begun: enough others of their principals are."),
    Entry("requests_held_bytes", GAUGE, "What has come of the bodies of HTTP requests that are not begun."),
    Entry("requests_arriving_bytes", GAUGE, "Bodies of JSON on their way, of 64 KiB and more, as they were announced."),
    Entry("commit_seconds", TIMED, "A commit, from its encoding to its sync."),
    Entry("sync_seconds", TIMED, "One sync of a file or directory.", ("what",)),
    Entry("read_seconds", TIMED, "One read of a file."),
    Entry("request_seconds", TIMED, "A request, until its answer was handed over.", ("method", "route")),
    Entry("requests_total", COUNTED, "Requests by status.", ("method", "route", "status")),
    Entry("errors_total", COUNTED, "Refusals and failures by their slug.", ("slug",)),
    Entry("audit_failures_total", COUNTED, "Tries to write the audit log that failed: its disk may be full."),
    Entry("audit_lost_lines_total", COUNTED, "Lines of the audit log that were lost."),
    Entry("maintenance_failures_total", COUNTED, "Tasks that failed.", ("task",)),
    Entry("content_written_bytes_total", COUNTED, "Bytes written to content files, rewrites included."),
    Entry("reclaim_actions_total", COUNTED, "Resource claims that were changed.", ("action",)),
    Entry("reclaim_freed_bytes_total", COUNTED, "Blocks given back."),
    Entry("reclaim_copied_bytes_total", COUNTED, "Bytes that rewrites copied."),
    Entry("reclaim_problems_total", COUNTED, "Files that were left: missing, damaged, or of unknown content."),
    Entry("write_amplification_ratio", GAUGE, "Content written to content stored, since the start."),
    Entry("runs_total", COUNTED, "Runs of reclamation that were asked for.", ("outcome",)),
    Entry("window_overrides_total", COUNTED, "Runs that ignored the windows."),
    Entry("skipped_nodes_total", COUNTED, "Nodes of the fleet that jobs went on without, as they told this one."),
    Entry("flight_strangers_total", COUNTED, "Connections over Flight that had to go, as they had made no call."),
)
"""Everything that is measured."""


class Sample(NamedTuple):
    """A value that was looked up."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class Metrics(Collector):
    """The values of one process's metrics. Thread-safe."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each that nobody asks for
        self._registry = CollectorRegistry()
        self._entries = {entry.name: entry for entry in TABLE}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self.look: Callable[[], Iterable[Sample]] = tuple
        """Where looked-up values come from, each time somebody asks."""

        for entry in TABLE:
            name = PREFIX + entry.name
            if entry.kind is COUNTED:
                self._counters[entry.name] = Counter(name, entry.help, entry.labels, registry=self._registry)
            elif entry.kind is TIMED:
                self._histograms[entry.name] = Histogram(
                    name, entry.help, entry.labels, buckets=SECONDS, registry=self._registry
                )
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def expect(self, name: str, *labels: str) -> None:
        """A series that is there, at zero, before anything happened: the first time would else look like none."""
        self._counters[name].labels(*labels)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Something happened, so many times."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Something took so long."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def counted(self, name: str) -> float:
        """The present value of a counter without labels."""
        return sum(s.value for m in self._counters[name].collect() for s in m.samples if s.name.endswith("_total"))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing, or registering would already look."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What is looked up, as the registry asks for it."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self.look():
            if sample.name not in families:
                entry = self._entries[sample.name]
                kind = GaugeMetricFamily if entry.kind is GAUGE else CounterMetricFamily
                families[sample.name] = kind(PREFIX + sample.name, entry.help, labels=entry.labels)
            families[sample.name].add_metric(sample.labels, sample.value)
        return families.values()
