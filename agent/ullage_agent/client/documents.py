"""The documents that a node answers over HTTP, as far as the client reads them; unknown fields are ignored."""

import msgspec


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A handle or FlowFile that was stored; only a handle has a `handle`, which also names its node."""

    id: str
    size: int
    handle: str = ""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Handles or FlowFiles that were stored, in order."""

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
    """What a node is called, and the repository that it serves."""

    node: str
    repository: str


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings and what is in it; held and swapped FlowFiles count. 0: no limit, and for expiration never."""

    name: str
    priority: str
    priority_attribute: str
    count_max: int
    bytes_max: int
    expiration_millis: int
    flow_files: int
    size_bytes: int
    held: int
    swapped: int
    is_full: bool


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A FlowFile as it is."""

    id: str
    size: int
    attributes: dict[str, str]
    parents: list[str]
    entry_millis: int
    lineage_millis: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A session and the FlowFiles that it holds."""

    session: str
    visibility_seconds: float
    flow_files: list[Record]


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """How many FlowFiles ceased to exist."""

    dropped: int


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event's content lies, or lay: a slice of a claim. All None and 0 for empty content."""

    resource: int | None
    offset: int | None
    length: int | None
    start: int
    size: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one FlowFile. `previous_...` are as before it, the others as of its commit."""

    sequence: int
    id: str
    type: str
    time_millis: int
    flow_file: str
    component: str
    component_type: str
    relationship: str
    details: str
    transit_uri: str
    alternate_identifier: str
    duration_millis: int | None
    queue: str
    entry_millis: int
    lineage_millis: int
    size: int
    parents: list[str]
    children: list[str]
    previous_attributes: dict[str, str]
    attributes: dict[str, str]
    previous_content: Place | None
    content: Place | None


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events. `next` is to be asked `after` (newest first: `before`); `lost` are sequences and how many."""

    events: list[Event]
    next: int | None
    removed_through: int
    lost: list[tuple[int, int]]


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What led to what, as pairs of sequences. `unexpanded` FlowFiles have more to tell."""

    events: list[Event]
    links: list[tuple[int, int]]
    unexpanded: list[str]
    is_cut: bool
    removed_through: int


class Replayability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an event can be replayed now; if not, why."""

    is_possible: bool
    reason: str = ""
    message: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The FlowFile that a replay put into a queue."""

    event: str
    id: str
    queue: str
    size: int


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


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource claim's file."""

    resource: int
    container: str
    length: int
    live_bytes: int
    dead_tail_bytes: int
    claimants: int
    is_sealed: bool
    is_free: bool
    is_archived: bool
    output: int


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """A page of resource claims by index; `next` is to be asked `after`."""

    resources: list[Resource]
    next: int | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the windows allow an operation now, why, until when, and when they open next."""

    operation: str
    is_allowed: bool
    may_start: bool
    closes_millis: int | None
    overrun: str
    opens_millis: int | None
    reason: str


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
    read_bytes: int
    seconds: float
    skipped: int
    emergency: int
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
    plan: Plan | None
    steps_done: int
    freed_bytes: int
    report: Report | None
    problem: str | None


class RunWish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that is asked for. `bytes_per_second` None: as the node's settings say; `override` ignores the windows.
    `resources`: only these resource claims, each with the generation for which it was planned.
    """

    policy: str | None = None
    bytes_per_second: int | None = None
    respects_guards: bool = False
    override: bool = False
    resources: list[tuple[int, int]] | None = None


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457, as far as it is needed."""

    status: int
    slug: str
    detail: str = ""
    retry_after_seconds: int | None = None
