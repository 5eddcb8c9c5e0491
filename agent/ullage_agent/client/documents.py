"""The documents that a node answers over HTTP, as far as the client reads them; unknown fields are ignored."""

import msgspec


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A handle that was stored."""

    id: str
    size: int
    handle: str


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Handles that were stored, in order."""

    ids: list[str]
    node: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a handle without its content."""

    id: str
    handle: str
    size: int
    attributes: dict[str, str]
    entry_millis: int
    expires_millis: int
    deleted_millis: int


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """A page of handles; `next` is to be asked `after`."""

    handles: list[Head]
    next: str | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One content of a batch, or the slug of the problem."""

    id: str
    content: bytes | None = None
    problem: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Of a node's state only its name."""

    node: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container's figures."""

    name: str
    resource_claims: int
    disk_bytes: int
    live_bytes: int
    dead_bytes: int
    dead_tail_bytes: int
    unused_bytes: int
    archived_claims: int
    archived_bytes: int
    tombstone_bytes: int
    leased_bytes: int
    total_bytes: int
    used_bytes: int
    used_percentage: float


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """All containers at one moment."""

    millis: int
    containers: list[Container]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a plan."""

    action: str
    resource: int
    container: str
    frees_bytes: int
    copies_bytes: int
    holes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do; `steps` are the first of `step_count`."""

    steps: list[Step]
    step_count: int
    frees_bytes: int
    copies_bytes: int
    reason: str
    notes: list[str]


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that were not taken, by reason."""

    reason: str
    steps: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    done: dict[str, int]
    freed_bytes: int
    copied_bytes: int
    skipped: int
    is_stopped: bool
    left: list[Left]
    problems: list[str]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of reclamation, under way or over."""

    id: str
    owner: str
    reason: str
    began_millis: int
    ended_millis: int | None
    steps_done: int
    freed_bytes: int
    report: Report | None
    problem: str | None


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457, as far as it is needed."""

    status: int
    slug: str
    detail: str = ""
    retry_after_seconds: int | None = None
