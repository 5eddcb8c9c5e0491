"""What Arrow Flight carries beside the data: commands of puts, tickets of gets, and actions. docs/flight.md says more.

All of it is JSON, so that any language can write it. Requests are strict; in answers unknown fields are ignored.
"""

import enum
import struct
from collections.abc import Iterable
from typing import Annotated, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Meta

from ullage.contract import Right
from ullage.errors import InvalidArgument, NotFound
from ullage.wire.bounded import JsonBounds, decode_counts
from ullage.wire.documents import Count, Id, Label
from ullage.wire.firstuse import prepare
from ullage.wire.operation import OF_OTHERS, Sometimes
from ullage.wire.where import TEXT_MAX

Q = TypeVar("Q")
A = TypeVar("A")

_STORED: Final = struct.Struct("<I")

HOMES_MAX: Final = 10_000
COLUMNS_MAX: Final = 100
"""No table has as many."""

UUID_BYTES: Final = 16
SEAL_BYTES: Final = 24
"""Of the column `seal`."""

COMMAND: Final = JsonBounds(64 << 10)
"""Of a put, or of an action that names one thing."""

TICKET: Final = JsonBounds(4 << 20, 100_000)
"""10,000 handles or claims, each with its range and seal, or a predicate."""

SCANNED: Final = JsonBounds(8 << 20, 150_000)
"""HOMES_MAX homes, and what their readers are told of each."""

STAGED: Final = JsonBounds(10 << 20, 250_000)
"""70,000 attempts, and a decision of DECISION_MAX letters, in which each quotation mark has a stroke before it."""

HOUR_MILLIS: Final = 3_600_000
DAY_MILLIS: Final = 24 * HOUR_MILLIS

ClaimAddress = tuple[Count, Count, Count, Count, Count, Count]
"""Resource claim, offset, length and CRC-32C of a base claim, as tables have it; start and size of a content in it."""


class PutCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command of a DoPut, or of one batch of it."""

    ttl_millis: Count = 0
    """How long the contents live; 0: until they are deleted."""

    lifetime: Annotated[int, Meta(ge=1, le=3)] = 2
    """How long they are expected to live: 1 short, 2 default, 3 long."""

    key: Annotated[str, Meta(max_length=200)] | None = None
    """The idempotency key: with it each transaction of the stream is carried out once."""

    write: str | None = None
    """With `attempt`, instead of a key: the staged write with whose commit the contents appear."""

    attempt: str | None = None


class ContentTicket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="get", tag_field="kind"):
    """A ticket for contents: of `handles`, or of `claims`."""

    handles: Annotated[list[Id], Meta(max_length=10_000)] | None = None

    claims: Annotated[list[ClaimAddress], Meta(max_length=10_000)] | None = None
    """So FlowFiles are read that stand in a queue."""

    seals: Annotated[list[Annotated[bytes, Meta(max_length=SEAL_BYTES)]], Meta(max_length=10_000)] | None = None
    """Of each claim what the column `seal` of its row holds: for who may not read every queue."""

    ranges: Annotated[list[tuple[Count, Count]], Meta(max_length=10_000)] | None = None
    """Where in each content to begin, and how many bytes of it; None: all of it."""


class TableTicket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="table", tag_field="kind"):
    """A ticket for a table."""

    name: str

    snapshot: str | None = None
    """None: one is taken for this call alone."""

    columns: Annotated[list[str], Meta(max_length=COLUMNS_MAX)] | None = None
    """None: all. Each once."""

    where: Annotated[str, Meta(max_length=TEXT_MAX)] = ""
    """Only rows for which this is true; see `ullage.wire.where`. Empty: all."""

    part: tuple[Count, Annotated[int, Meta(ge=1, le=100_000)]] = (0, 1)
    """The share k of n: the rows whose resource claim (of FlowFiles without content: whose uuid) falls to it."""

    after: Count = 0
    """Of `provenance` the sequence, with `stream` the place, after which rows are wanted."""

    through: Count | None = None
    """The last sequence or place that is wanted."""

    count: Count | None = None
    """So many rows there were from `after` to `through`, whatever `where` says: if some have gone, that is an error,
    EventNotFound or FlowFileNotFound, at the end of those that are there. None: nobody needs to know.
    """

    stream: Label | None = None
    """Of `flowfiles` only what this stream has taken of `queue`."""

    queue: Label | None = None

    runs: bool = False
    """Of `flowfiles` the columns that are mostly alike row after row come run-end encoded: half as many bytes, which
    not every implementation of Arrow reads.
    """


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to take."""

    ttl_millis: Annotated[int, Meta(ge=1, le=HOUR_MILLIS)] = 600_000

    holds: bool = False
    """Whether a lease keeps all contents readable until it ends."""


class SnapshotRenewal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to keep for so long from now on."""

    id: str

    ttl_millis: Annotated[int, Meta(ge=1, le=HOUR_MILLIS)] = 600_000


class SnapshotRelease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot that is not needed any more."""

    id: str


class TableSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: tables that are asked for with its id agree with each other."""

    id: str

    transaction: int
    """The last one that it shows."""

    millis: int
    """When it was taken."""

    expires_millis: int

    lease: str | None
    """The lease that keeps its contents; None: none does."""

    live_bytes: int | None = None
    """Of content in use on the node; None for who may not see its space."""


DECISION_MAX: Final = 4 << 20
"""Letters of a decision: nodes keep it as long as the write is remembered. What 70,000 attempts staged can be said."""


Attempts = dict[str, Count]


class StagedWriteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a staged write."""

    write: str
    """A uuid of the client's choice."""

    queue: Label = ""
    """Of `write-begin`: where the contents go; empty: they become handles."""

    ttl_millis: Count = 0
    """Of `write-begin`: how long handles live; 0: until they are deleted."""

    lasts_millis: Annotated[int, Meta(ge=1_000, le=DAY_MILLIS)] = HOUR_MILLIS
    """Of `write-begin`: how long nothing may be staged before it is aborted."""

    attempts: Attempts = {}
    """Of `write-prepare` and `write-commit`: those that count, and how many transactions each has staged."""

    decision: Annotated[str, Meta(max_length=DECISION_MAX)] = ""
    """Of `write-commit`: whatever lets another writer finish it elsewhere."""


class _Step(StagedWriteRequest, frozen=True):
    """As it comes, with attempts that are not decoded yet."""

    attempts: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]


class StagedWriteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A staged write."""

    write: str

    state: str
    """Open, prepared, committed or aborted, in small letters; `unknown`: there is none of this uuid."""

    expires_millis: int = 0

    decision: str = ""


class ScanHome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of which shares are read."""

    shares: Annotated[int, Meta(ge=1, le=100_000)]

    where: Annotated[str, Meta(max_length=4_096)] = ""
    """For whoever reads a share: the scan does not look into it."""


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Readers of a snapshot that find their shares when they ask."""

    snapshot: str

    scan: Annotated[str, Meta(max_length=64)]
    """A uuid of the client's choice."""

    homes: Annotated[dict[Label, ScanHome], Meta(min_length=1, max_length=HOMES_MAX)]

    patience_millis: Annotated[int, Meta(ge=0, le=HOUR_MILLIS)] = 3_000
    """A home whose own readers have not asked for so long is everybody's."""


class SlotRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A slot of a scan that asks for its share."""

    snapshot: str

    scan: Annotated[str, Meta(max_length=64)]

    slot: Count

    near: Annotated[list[Label], Meta(max_length=16)] = []
    """The homes that it would rather read."""


class SlotState(enum.StrEnum):
    """What a slot is to do."""

    READ = "read"
    WAIT = "wait"
    NONE = "none"


class SlotShare(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a slot; with `read` the share: number `share` of the `shares` of its home."""

    state: SlotState

    home: str = ""

    share: int = 0

    shares: int = 0

    where: str = ""


class FeedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FlowFiles of a queue that a stream takes, has read, or gives back."""

    stream: Label

    queue: Label

    after: Count = 0
    """Of `feed-take` and `feed-back`: the place."""

    through: Count = 0
    """Of `feed-done`: the place."""

    count: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Of `feed-take`: how many at most."""

    lasts_millis: Annotated[int, Meta(ge=1_000, le=7 * DAY_MILLIS)] = DAY_MILLIS
    """Of `feed-take`: how long the node keeps them for a stream that says nothing."""


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream has of a queue; of `feed-done` and `feed-back`, `count` is how many it was about."""

    through: int
    """The place up to which FlowFiles stand for it."""

    count: int

    waiting: int
    """How many more could be taken."""

    since_millis: int | None = None
    """Of a `feed-take` of none: since when the first of those that wait does, as far as the node has them in memory."""


class EventHoldRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that a reader wants still."""

    holder: Annotated[str, Meta(min_length=1, max_length=100)]

    after: Count = 0
    """Those after this sequence."""

    lasts_millis: Annotated[int, Meta(ge=0, le=7 * DAY_MILLIS)] = DAY_MILLIS
    """0: not any more."""


class SocketIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Unix socket is, and what tells it from that of another node, through whatever folder it is seen."""

    path: str

    inode: int

    changed_nanos: int


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself."""

    node: str
    """What it calls itself in handles."""

    repository: str
    """The repository's uuid. It changes when another one, or a restored backup, takes its place."""

    millis: int
    """What time it is there."""

    first_sequence: int
    """The oldest provenance event that is kept."""

    last_sequence: int
    """The newest one."""

    socket: SocketIdentity | None
    """None: it does not listen on one."""


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body or an answer that says nothing."""


class SkippedNodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job goes on without."""

    nodes: Annotated[int, Meta(ge=1, le=HOMES_MAX)]
    """How many of the fleet."""


class FlightAction(NamedTuple, Generic[Q, A]):
    """One action: what it is called, its body and answer, the rights that it needs, and what it does."""

    name: str
    request: type[Q]
    answer: type[A]
    rights: tuple[Right, ...]
    """All of these; with none of them a token is enough."""

    effect: str

    sometimes: Sometimes = ()
    """See `Operation.sometimes`."""

    bounds: JsonBounds = COMMAND
    """Of its body."""

    def parse(self, raw: bytes) -> Q:
        """The body of a call. RequestTooLarge, or InvalidArgument, which says what is wrong with it."""
        if self.request is not StagedWriteRequest:
            return self.bounds.decode(raw or b"{}", self.request, self.name)
        step = self.bounds.decode(raw or b"{}", _Step, self.name)
        attempts = decode_counts(bytes(step.attempts), Attempts, f"{self.name}: attempts")
        return cast("Q", msgspec.structs.replace(step, attempts=attempts))


def _feed(name: str, effect: str, sometimes: Sometimes = ()) -> FlightAction[FeedRequest, FeedStatus]:
    return FlightAction(name, FeedRequest, FeedStatus, (Right.DELETE,), effect, sometimes)


def _write(name: str, effect: str, sometimes: Sometimes = ()) -> FlightAction[StagedWriteRequest, StagedWriteStatus]:
    return FlightAction(name, StagedWriteRequest, StagedWriteStatus, (Right.WRITE,), effect, sometimes, STAGED)


SNAPSHOT: Final = FlightAction("snapshot", SnapshotRequest, TableSnapshot, (Right.LEASE,), "take a snapshot")
RENEW: Final = FlightAction("renew", SnapshotRenewal, TableSnapshot, (Right.LEASE,), "keep a snapshot for longer")
RELEASE: Final = FlightAction("release", SnapshotRelease, Nothing, (Right.LEASE,), "release a snapshot")
SCAN: Final = FlightAction(
    "scan", ScanRequest, Nothing, (Right.LEASE,), "let readers of a snapshot find their shares", bounds=SCANNED
)
BIND: Final = FlightAction("bind", SlotRequest, SlotShare, (Right.LEASE,), "the share that a slot of a scan reads")
HOLD_EVENTS: Final = FlightAction(
    "hold-events", EventHoldRequest, Nothing, (Right.LEASE,), "keep provenance events that are not read yet"
)
ABOUT: Final = FlightAction("about", Nothing, NodeIdentity, (), "what the node says of itself")
SKIPPED: Final = FlightAction("skipped", SkippedNodes, Nothing, (), "count nodes of the fleet that a job goes without")
FEED_TAKE: Final = _feed("feed-take", "let a stream have FlowFiles of a queue, after a place")
FEED_DONE: Final = _feed("feed-done", "remove what a stream has read, through a place")
FEED_BACK: Final = _feed("feed-back", "give back what a stream has taken, after a place", OF_OTHERS)
WRITE_FIND: Final = _write("write-find", "the state of a staged write")
WRITE_BEGIN: Final = _write("write-begin", "begin a staged write, or find it as it is")
WRITE_PREPARE: Final = _write("write-prepare", "promise to commit these attempts")
WRITE_COMMIT: Final = _write("write-commit", "show what was prepared, and forget the rest")
WRITE_ABORT: Final = _write("write-abort", "forget it all, unless it is committed", OF_OTHERS)

FEEDS: Final = (FEED_TAKE, FEED_DONE, FEED_BACK)
WRITES: Final = (WRITE_FIND, WRITE_BEGIN, WRITE_PREPARE, WRITE_COMMIT, WRITE_ABORT)
ACTIONS: Final = (SNAPSHOT, RENEW, RELEASE, SCAN, BIND, HOLD_EVENTS, ABOUT, SKIPPED, *FEEDS, *WRITES)
"""All there are."""

prepare(
    ContentTicket | TableTicket, PutCommand, _Step, *(kind for each in ACTIONS for kind in (each.request, each.answer))
)

TABLE_RIGHTS: Final[dict[str, tuple[Right, ...]]] = {
    "flowfiles": (Right.RECORDS,),
    "queues": (Right.RECORDS,),
    "claims": (Right.SPACE,),
    "resource_claims": (Right.SPACE,),
    "leases": (Right.SPACE,),
    "runs": (Right.SPACE,),
    "windows": (Right.SPACE,),
    "provenance": (Right.PROVENANCE,),
    "content": (Right.READ,),
}
"""What whoever reads a table must have."""


BODY_BYTES_MAX: Final = max(each.bounds.bytes_max for each in ACTIONS)
"""Of whichever action."""


def rights_of(wanted: TableTicket) -> tuple[Right, ...]:
    """What reading this table needs; NotFound if there is none of the name."""
    if wanted.name not in TABLE_RIGHTS:
        raise NotFound(f"there is no table {wanted.name}: {', '.join(TABLE_RIGHTS)}")
    return TABLE_RIGHTS[wanted.name]


def parse_ticket(raw: bytes) -> ContentTicket | TableTicket:
    """What a DoGet asks for. RequestTooLarge, or InvalidArgument, which says what is wrong with it."""
    found: ContentTicket | TableTicket = TICKET.decode(raw, ContentTicket | TableTicket, "ticket")  # type: ignore[arg-type]
    columns = found.columns or () if isinstance(found, TableTicket) else ()
    if len(set(columns)) < len(columns):
        raise InvalidArgument("ticket: it names a column twice")
    return found


def parse_table_ticket(raw: bytes) -> TableTicket:
    """The same where only a table can be asked for."""
    found = parse_ticket(raw)
    if not isinstance(found, TableTicket):
        raise InvalidArgument("ticket: it is of contents, and here one of a table is asked for")
    return found


def parse_command(raw: bytes) -> PutCommand:
    """What a DoPut says first, or one of its batches of itself. RequestTooLarge, or InvalidArgument, which says what is
    wrong with it.
    """
    return COMMAND.decode(raw or b"{}", PutCommand, "command")


def pack_stored(number: int, uuids: Iterable[bytes]) -> bytes:
    """The metadata of a batch of a DoPut: its number from 0, then the uuids of the contents that ended in it."""
    return b"".join((_STORED.pack(number), *uuids))


def parse_stored(body: bytes) -> list[bytes]:
    """The uuids."""
    return [body[at : at + UUID_BYTES] for at in range(_STORED.size, len(body), UUID_BYTES)]
