"""What Flight's commands, tickets and actions hold: JSON, so that any language can write them."""

from typing import Annotated, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta

from ullage_agent.service.errors import BadRequest
from ullage_agent.service.flight.scans import HOMES_MAX, Home, Name

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

PUT_CONTENT: Final = "content"
PUT_ATTRIBUTES: Final = "attributes"
PUT_CONTINUES: Final = "continues"
ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())

PUT_SCHEMA: Final = pa.schema(
    [
        pa.field(PUT_CONTENT, pa.binary(), nullable=False),
        pa.field(PUT_ATTRIBUTES, ATTRIBUTES),
        pa.field(PUT_CONTINUES, pa.bool_()),
    ]
)
"""Of a put; the last two columns may be missing. `continues`: the next row goes on with the same content."""

CONTENT_SCHEMA: Final = pa.schema(
    [
        pa.field("item", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("content", pa.binary()),
        pa.field("problem", pa.string()),
    ]
)
"""Of a get: the item's number in the ticket, where in it this piece begins, the piece, or the slug of the problem. A
content of up to a MiB is one row; a larger one is several, in order.
"""


class Put(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command of a DoPut. With a key, each transaction of the stream is repeated safely: see docs/flight.md.

    With `write` and `attempt` the contents are staged: they become visible when that write is committed.
    """

    ttl_millis: Count = 0
    lifetime: Annotated[int, Meta(ge=1, le=3)] = 2
    key: Annotated[str, Meta(max_length=200)] | None = None
    write: str | None = None
    attempt: str | None = None


class Get(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="get", tag_field="kind"):
    """A ticket for contents. `ranges`, if any, has start and size for each handle.

    `claims` instead of handles: address of the base claim as the tables have it (resource claim, offset, length,
    CRC-32C), then start and size in it. So FlowFiles are read that stand in a queue.
    """

    handles: Annotated[list[str], Meta(max_length=10_000)] | None = None
    claims: Annotated[list[tuple[Count, Count, Count, Count, Count, Count]], Meta(max_length=10_000)] | None = None
    ranges: Annotated[list[tuple[Count, Count]], Meta(max_length=10_000)] | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="table", tag_field="kind"):
    """A ticket for a table. Without a snapshot, one is taken for this call alone.

    `part` k of n: the share of rows whose resource claim (of FlowFiles without content: whose uuid) falls to it.
    `after` and `through` are sequences of `provenance`: the first excluded, the second included. With `stream`, the
    FlowFiles that it has taken of `queue`; then they are places.
    """

    name: str
    snapshot: str | None = None
    columns: list[str] | None = None
    part: tuple[Count, Annotated[int, Meta(ge=1, le=100_000)]] = (0, 1)
    after: Count = 0
    through: Count | None = None
    stream: Name | None = None
    queue: Name | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `snapshot`. With `holds`, a lease keeps all contents readable until it ends."""

    ttl_millis: Annotated[int, Meta(ge=1, le=3_600_000)] = 600_000
    holds: bool = False


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What the action `snapshot` answers."""

    id: str
    transaction: int
    millis: int
    expires_millis: int
    lease: str | None


class Renew(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `renew`: a snapshot lasts so long from now on."""

    id: str
    ttl_millis: Annotated[int, Meta(ge=1, le=3_600_000)] = 600_000


class WriteWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the actions on staged writes. `attempts` of `write-prepare` and `write-commit`: how many transactions
    each has staged; `decision` of the latter: whatever lets another writer finish it elsewhere.
    """

    write: str
    queue: Annotated[str, Meta(max_length=255)] = ""
    ttl_millis: Count = 0
    lasts_millis: Annotated[int, Meta(ge=1_000, le=86_400_000)] = 3_600_000
    attempts: dict[str, Count] = {}
    decision: Annotated[str, Meta(max_length=4 << 20)] = ""


class WriteShown(msgspec.Struct, frozen=True, kw_only=True):
    """A staged write; `state` is `unknown` where there is none."""

    write: str
    state: str
    expires_millis: int = 0
    decision: str = ""


class SocketShown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Unix socket is, and what tells it from that of another node, through whatever folder it is seen."""

    path: str
    inode: int
    changed_nanos: int


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the action `about` answers. Sequences are of provenance events: the oldest one kept, and the newest."""

    node: str
    repository: str
    millis: int
    first_sequence: int
    last_sequence: int
    socket: SocketShown | None


class ScanWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `scan`: shares of which homes are read, under a uuid of the reader's choice. A home whose
    own readers have not asked for `patience_millis` is everybody's.
    """

    snapshot: str
    scan: Annotated[str, Meta(max_length=64)]
    homes: Annotated[dict[Name, Home], Meta(min_length=1, max_length=HOMES_MAX)]
    patience_millis: Annotated[int, Meta(ge=0, le=3_600_000)] = 3_000


class BindWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `bind`: which share this slot of a scan reads, if it can be one of the homes in `near`."""

    snapshot: str
    scan: Annotated[str, Meta(max_length=64)]
    slot: Count
    near: Annotated[list[Name], Meta(max_length=16)] = []


class FeedWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the actions on feeds: see engine/feeds.py."""

    stream: Name
    queue: Name
    after: Count = 0
    through: Count = 0
    count: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    lasts_millis: Annotated[int, Meta(ge=1_000, le=7 * 86_400_000)] = 86_400_000


class HoldWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `hold-events`: those after a sequence stay for so long; 0: not any more."""

    holder: Annotated[str, Meta(min_length=1, max_length=100)]
    after: Count = 0
    lasts_millis: Annotated[int, Meta(ge=0, le=7 * 86_400_000)] = 86_400_000


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `release`."""

    id: str


_ticket = msgspec.json.Decoder(Get | Table)
_put = msgspec.json.Decoder(Put)
_snapshot = msgspec.json.Decoder(Snapshot)
_renew = msgspec.json.Decoder(Renew)
_write = msgspec.json.Decoder(WriteWish)
_release = msgspec.json.Decoder(Release)
_scan = msgspec.json.Decoder(ScanWish)
_bind = msgspec.json.Decoder(BindWish)
_feed = msgspec.json.Decoder(FeedWish)
_hold = msgspec.json.Decoder(HoldWish)


def parse_ticket(raw: bytes) -> Get | Table:
    """BadRequest says what is wrong."""
    found: Get | Table = _decoded(_ticket, raw, "ticket")
    return found


def parse_put(raw: bytes) -> Put:
    """The same for the command of a put."""
    return _decoded(_put, raw or b"{}", "command")


def parse_snapshot(raw: bytes) -> Snapshot:
    """The same for the action."""
    return _decoded(_snapshot, raw or b"{}", "snapshot")


def parse_renew(raw: bytes) -> Renew:
    """The same for the action."""
    return _decoded(_renew, raw, "renew")


def parse_write(raw: bytes) -> WriteWish:
    """The same for the actions on staged writes."""
    return _decoded(_write, raw, "write")


def parse_scan(raw: bytes) -> ScanWish:
    """The same for the action."""
    return _decoded(_scan, raw, "scan")


def parse_bind(raw: bytes) -> BindWish:
    """The same for the action."""
    return _decoded(_bind, raw, "bind")


def parse_feed(raw: bytes) -> FeedWish:
    """The same for the actions on feeds."""
    return _decoded(_feed, raw, "feed")


def parse_hold(raw: bytes) -> HoldWish:
    """The same for the action."""
    return _decoded(_hold, raw, "hold")


def parse_release(raw: bytes) -> Release:
    """The same for the action."""
    return _decoded(_release, raw, "release")


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{what}: {error}") from error
