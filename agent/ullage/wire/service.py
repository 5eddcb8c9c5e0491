"""A node's service and its repository at a glance."""

import msgspec

from ullage.contract import WindowStatus
from ullage.wire.space import ContainerUsage, RunProgress


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The write-ahead log."""

    last_transaction: int

    durable_transaction: int
    """Up to this one all are on the disk."""

    snapshot_transaction: int
    """Up to this one all are in the snapshot, so that a start reads only later ones from the log."""

    snapshot_millis: int
    """When that one was written."""

    bytes: int

    syncs: int
    """Since the start."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node's service and its repository."""

    version: str
    """Of Ullage."""

    node: str
    """What the node calls itself in handles."""

    name: str
    """Namespace and name of the ContentRepository."""

    repository: str
    """The repository's uuid. It changes when another one, or a restored backup, takes its place."""

    is_ready: bool
    """Whether commits can succeed."""

    is_stopping: bool

    now_millis: int

    log: LogStatus

    containers: list[ContainerUsage]

    poisoned: list[str]
    """Containers that take no more writes until a restart."""

    flow_files: int
    """In all queues."""

    queues: int

    full_queues: list[str]

    swap_files: int

    sessions: int

    leases: int

    remembered_answers: int
    """Answers to requests with an idempotency key."""

    provenance_waiting: int
    """Events that are in the log only."""

    provenance_waiting_bytes: int
    """About what these take."""

    counters: dict[str, int]

    windows: list[WindowStatus]

    last_run: RunProgress | None

    last_override: RunProgress | None
    """The last run that passed over the windows."""

    failures: list[str]
    """Tasks of maintenance that fail, with their errors."""
