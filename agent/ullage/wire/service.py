"""A node's service and its repository at a glance."""

from typing import Literal

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


class ClockStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the repository goes by."""

    machine_millis: int
    """What the machine's clock says."""

    believed_millis: int
    """What is believed: the same, unless that is implausible."""

    reason: str
    """Why the machine's clock is not believed; empty where it is."""


ReplicationState = Literal["starting", "shipping", "failing", "fenced"]
"""Failing: the last try did not succeed, and the next is to come. Fenced: somebody else writes the share, and this node
nothing more.
"""


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the bucket of spec.replication is behind this node."""

    url: str
    """Where this node's share lies. `ullage restore` takes it."""

    state: ReplicationState

    epoch: int
    """The number of the writer, 0 before it has begun."""

    shipped_transaction: int
    """Up to here the bucket has everything."""

    lag_transactions: int

    lag_bytes: int
    """Of log and content that is known to wait."""

    lag_millis: int
    """How long the oldest transaction waits."""

    log_objects: int
    """Put since the start, as are the next three."""

    packs: int

    bases: int

    shipped_bytes: int

    unreadable_contents: int
    """Contents that could not be read here, and are missing there as well."""

    problem: str
    """Why the last try did not succeed."""

    max_lag_millis: int = 0
    """How long a transaction may wait: `spec.replication.maxLag`."""

    awaits_base: bool = False
    """Whether it is not known what the bucket lacks: the share is not begun yet, or more waited than could be held."""

    adopt_after_millis: int = 0
    """For how long a lease holds: `spec.replication.adoptAfter`, 0 if none is asked for."""

    has_lapsed: bool = False
    """Whether the lease does not hold: nothing is acknowledged, handed out or read."""


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

    drains: bool = False
    """Whether the node is being drained: it takes nothing new, and what it holds can be read, taken out and deleted."""

    now_millis: int
    """The time that is believed."""

    clock: ClockStatus

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

    unavailable_contents: int
    """Damaged contents, and content files that are missing, as far as reads have met them."""

    unavailable_swap_files: int
    """Swap files that are damaged or missing, as far as polls, or the proof after a start, have met them."""

    unproved_files: int
    """Content files that are still to be read after an unclean end."""

    records_set_aside: int
    """Records that can't be used, kept until a person gives them up."""

    unfinished_erasure: str = ""
    """What to say of an erasure that was begun and is not finished, and of how it is, without the subject's values;
    empty if there is none.
    """

    forgotten: int
    """Sessions, puts and content streams that were dropped without an end since the start."""

    provenance_waiting: int
    """Events that are in the log only."""

    provenance_waiting_bytes: int
    """About what these take."""

    counters: dict[str, int]

    windows: list[WindowStatus]

    last_run: RunProgress | None

    last_override: RunProgress | None
    """The last run that passed over the windows."""

    replication: ReplicationStatus | None = None
    """None: spec.replication asks for none."""

    failures: list[str]
    """Tasks of maintenance that fail, with their errors."""
