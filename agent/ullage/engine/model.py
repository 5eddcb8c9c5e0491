"""The words of the engine as frozen records, and the operations that a transaction is made of.

Every record here is also a wire format: msgpack arrays whose first element is the operation's tag. A snapshot is
the same operations as the log, so that one decoder reads both and one function (`Ledger.apply`) gives them meaning.
Fields may only be appended, each with a default; anything else needs a new SerDe version (wal/serde.py).

All records are immutable and acyclic, hence `gc=False`: a million of them cost the collector nothing.
"""

from typing import Annotated

import msgspec

from ullage.enums import Action as Action, EventType as EventType, Lifetime as Lifetime, WriteState as WriteState
from ullage.uuids import (
    UUID_BYTES as UUID_BYTES,
    format_uuid as format_uuid,
    new_uuids as new_uuids,
    parse_uuid as parse_uuid,
    split_uuids as split_uuids,
)

HANDLE_QUEUE = 0
"""The queue number of FlowFiles that stand in no queue: handles."""

STAGED_QUEUE = (1 << 63) - 1
"""The queue number of FlowFiles of a staged write that is not settled: nobody sees them."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Every number in a record. The decoder refuses others, which no writer wrote; making a record costs nothing more."""

BLOCK_BYTES = 256 << 10
"""A claim that is larger has a checksum for each block of this length."""

Uuid = Annotated[bytes, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]

PackedRanges = bytes
"""Packed runs of bytes (byteranges.py)."""

_pack = msgspec.msgpack.Encoder().encode
unpack_attributes = msgspec.msgpack.Decoder(dict[str, str]).decode
"""The stored attributes of a packed map, without the derived core ones."""

NO_ATTRIBUTES = _pack({})

CORE = ("uuid", "filename", "path")  # what a FlowFile has of itself, unless it was set
NOT_INHERITED = ("alternate.identifier", "discard.reason")  # what says something of one FlowFile only


class ContentClaim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A base claim: an immutable run of bytes in a resource claim, as it was written.

    `resource` is the resource claim's index, `crc` the CRC-32C of all `length` bytes.
    """

    resource: Whole
    offset: Whole
    length: Whole
    crc: Whole

    @property
    def end(self) -> int:
        return self.offset + self.length


class FlowFileRecord(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A record: uuid, queue, a pointer to content, dates and attributes. As an operation: create, in full.

    `start` and `size` are the slice of `claim` this FlowFile's content is (a split copies nothing).
    `queued` is its place in the queue: microseconds, strictly increasing within a repository.
    `attributes` is a packed msgpack map: most records are never asked for it, and packed it costs a fifth. Of a name
    that stands in it more than once the last value counts.
    `parents` is 16 bytes a parent. A handle has queue 0; `deleted_millis` > 0 makes it a tombstone.
    """

    uuid: Uuid
    queue: Whole
    claim: ContentClaim | None
    start: Whole
    size: Whole
    entry_millis: Whole
    lineage_millis: Whole
    queued: Whole
    attributes: bytes
    parents: bytes = b""
    expires_millis: Whole = 0
    deleted_millis: Whole = 0

    @property
    def id(self) -> str:
        """The uuid in its usual notation."""
        return format_uuid(self.uuid)

    @property
    def parent_ids(self) -> list[str]:
        """The FlowFiles this one was made from."""
        return [format_uuid(uuid) for uuid in split_uuids(self.parents)]

    def attribute_map(self) -> dict[str, str]:
        """All attributes, the three core ones included: `uuid`, and `filename` and `path` unless they were set."""
        core = {"uuid": self.id, "filename": self.id, "path": "./"}
        return core | unpack_attributes(self.attributes)


class Content(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content pointer an update sets: a slice of a base claim, or nothing (`claim` None, size 0)."""

    claim: ContentClaim | None
    start: Whole
    size: Whole


NO_CONTENT = Content(None, 0, 0)
"""Empty content has no claim: a claim of no bytes would share its offset with the next one."""


class Update(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """What changed on one FlowFile; None leaves a field alone. Only changed attributes are carried."""

    uuid: Uuid
    queue: Whole | None = None
    queued: Whole | None = None
    content: Content | None = None
    set_attributes: bytes | None = None
    remove_attributes: tuple[str, ...] = ()
    expires_millis: Whole | None = None
    deleted_millis: Whole | None = None


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """FlowFiles that cease to exist: their uuids, 16 bytes each."""

    uuids: bytes


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A queue's number, name and settings; a later definition of the same number replaces it. `is_removed`: nobody sees
    it as long as nothing stands in it. The number stays its own: events tell of it. `owner`: who made it.
    """

    number: Whole
    name: str
    priority: str
    priority_attribute: str
    count_max: Whole
    bytes_max: Whole
    expiration_millis: Whole
    is_removed: bool = False
    owner: str = ""


class ResourceClaim(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """One append-only content file and its physical state; each physical change raises `generation`.

    `length` is the committed length (exact once sealed). `archived_millis` > 0: it lies in `archive/`.
    `intent` with `intent_length` or `intent_holes` is the change that was promised durably and may or may not have
    happened yet; `holes` (packed runs) are those punched for good. `changed` is the transaction of the last change.
    `last_death_millis` is when one of its claims last died: the conservative start of any retention, and
    `last_death` that transaction. Once a `Relocation` stands, the file is gone and `length` is 0. `unproved`: it was
    written before an unclean end and was not read back since, or did not read back: it is not reclaimed. `tenant`:
    whose alone all its content is; empty where it may be anybody's.
    """

    index: Whole
    container: str
    created_millis: Whole
    lifetime: Whole = Lifetime.DEFAULT
    length: Whole = 0
    sealed: bool = False
    generation: Whole = 0
    archived_millis: Whole = 0
    intent: Annotated[int, msgspec.Meta(ge=0, le=5)] = Action.NONE
    intent_length: Whole = 0
    last_death_millis: Whole = 0
    intent_holes: PackedRanges = b""
    holes: PackedRanges = b""
    changed: Whole = 0
    last_death: Whole = 0
    unproved: bool = False
    tenant: str = ""

    @property
    def name(self) -> str:
        """The file's name, in NiFi's notation."""
        return f"{self.created_millis}-{self.index}"


class ResourceClaimGone(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The file was unlinked and its directory synced; the index is never used again."""

    index: Whole


class ClaimBlocks(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """CRC-32C of each 256 KiB block of one base claim, 4 bytes little-endian each; stored once a claim."""

    resource: Whole
    offset: Whole
    crcs: bytes


class IndexCeiling(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """No resource claim index above this was ever handed out; a start continues after it."""

    ceiling: Whole


class SwapShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one swap file holds of one resource claim: claimants, distinct base claim bytes, and their end."""

    resource: Whole
    claimants: Whole
    live_bytes: Whole
    end: Whole


class SwapFirst(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What orders the first FlowFile of a swap file: the same fields as in its record, but of the attributes only the
    one that its queue's priority names.
    """

    size: Whole
    lineage_millis: Whole
    queued: Whole
    attributes: bytes


class SwapOut(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """FlowFiles that moved from memory to a synced swap file, with the file's summary.

    `first` is the one that came first in its queue's order: by it the files of a queue come back. `uuids` (16 bytes
    each) is empty in a snapshot, whose records no longer hold them.
    """

    name: str
    queue: Whole
    count: Whole
    size_bytes: Whole
    entry_millis_min: Whole
    queued_min: Whole
    queued_max: Whole
    shares: tuple[SwapShare, ...]
    first: SwapFirst
    uuids: bytes = b""


class SwapIn(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """All FlowFiles of a swap file came back to memory; the file is retired until a snapshot covers this."""

    name: str


class SwapDrop(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """All FlowFiles of a swap file ceased to exist without coming back to memory."""

    name: str


class EventRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One provenance event, or `count` like ones of consecutive subjects: what a batch does costs one run.

    Subjects are numbered: first the FlowFile operations of the transaction in their order, then
    `TransactionEvents.before`. `attributes` and `content` are those at the time of emission, where they differ from
    those at the commit. `children` and `parents` are 16 bytes a FlowFile. `duration_millis` -1: not known.
    """

    type: EventType
    first: Whole
    count: Whole = 1
    relationship: str = ""
    details: str = ""
    transit_uri: str = ""
    alternate_identifier: str = ""
    duration_millis: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)] = -1
    parents: bytes = b""
    children: bytes = b""
    attributes: bytes | None = None
    content: Content | None = None


class TransactionEvents(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The provenance events of this transaction, by the component that committed it.

    Only what the other operations do not say: `before` are the FlowFiles as they were, since an `Update` or `Delete`
    does not tell; what they became is worked out from the operations. `is_abridged`: their attributes were too large
    for one transaction and are left out.
    """

    component: str
    component_type: str
    runs: tuple[EventRun, ...]
    before: tuple[FlowFileRecord, ...] = ()
    is_abridged: bool = False


class Undrained(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """In a snapshot: what one transaction has to tell, whose events are in no event file yet."""

    transaction: Whole
    millis: Whole
    operations: tuple[FlowFileRecord | Update | TransactionEvents, ...]


class Relocation(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """Where the survivors of resource claim `source` lie: `moves` (packed, sorted) lead into the file of `output`.

    Addresses never change, reads resolve them; a later relocation of the same source replaces this one, so that there
    is never a second hop. `transaction` is filled in when it is applied.
    """

    source: Whole
    output: Whole
    moves: bytes
    transaction: Whole = 0


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """A reader's hold, until `expires_millis`; a later one of the same id replaces it.

    `resources` are indexes of resource claims; none means the snapshot as of `transaction`, which is filled in when it
    is applied. `holds_files`: descriptors were handed out, and the record stays until they are given back. `owner` is
    the principal whose it is.
    """

    id: Uuid
    holder: str
    resources: tuple[Whole, ...]
    transaction: Whole
    created_millis: Whole
    expires_millis: Whole
    holds_files: bool = False
    owner: str = ""


class LeaseEnd(msgspec.Struct, frozen=True, array_like=True, tag=24, gc=False):
    """A lease that was released or revoked, or that expired."""

    id: Uuid


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=25, gc=False):
    """What a request that came with an idempotency key was answered, so that its repeat gets the same answer.

    `key` and `request` are digests: of who asked with which key, and of what was asked. `transaction` is filled in when
    it is applied.
    """

    key: Annotated[bytes, msgspec.Meta(max_length=64)]
    request: Annotated[bytes, msgspec.Meta(max_length=64)]
    answer: bytes
    millis: Whole
    transaction: Whole = 0


class StagedWrite(msgspec.Struct, frozen=True, array_like=True, tag=26, gc=False):
    """A write by many attempts, of which some count: their contents appear together, everything else of it goes.

    A later one of the same id replaces it. `queue` and `ttl_millis` are what its FlowFiles get when they appear.
    `attempts` are the ids (16 bytes each) of those that count, once it is prepared. `decision` is the writer's affair:
    it lets somebody else finish the write on other nodes. At `expires_millis` an open or prepared one is aborted, a
    closed one forgotten; `renewed_millis` is when that time began. `by` is the principal whom events name.
    """

    id: Uuid
    state: Annotated[int, msgspec.Meta(ge=1, le=4)]
    owner: str
    queue: Whole
    ttl_millis: Whole
    renewed_millis: Whole
    expires_millis: Whole
    attempts: bytes = b""
    decision: bytes = b""
    by: str = ""


class Staged(msgspec.Struct, frozen=True, array_like=True, tag=27, gc=False):
    """FlowFiles that an attempt of a staged write has stored, 16 bytes each, in the transaction that creates them.

    `number` counts the transactions of the attempt from 0, so that one that is sent again is known.
    """

    write: Uuid
    attempt: Uuid
    number: Whole
    uuids: bytes


class SetAside(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """A record that can't be used, kept for a person to decide: its bytes as they were found, where, and why not.

    `id` is a digest of place and bytes, so that a start that meets them again comes to the same one. `uuids` are the
    FlowFiles that it names, `flow_files` those of them that there were: they stand nowhere any more. Whatever it may
    point at counts as in use: `resources` and `swap_file`, or, where its bytes do not tell, every resource claim up to
    `held_through` and every swap file. `unread` are the runs of handles by number, and of each the block (None: all),
    without which nobody could use it: the first start that reads them does.
    """

    id: Uuid
    place: str
    reason: str
    data: bytes
    millis: Whole
    uuids: bytes = b""
    flow_files: tuple[FlowFileRecord, ...] = ()
    resources: tuple[Whole, ...] = ()
    swap_file: str = ""
    held_through: Whole = 0
    unread: tuple[tuple[Whole, Whole | None], ...] = ()


class SetAsideEnd(msgspec.Struct, frozen=True, array_like=True, tag=29, gc=False):
    """A person has given up a record that was set aside, or a start could use it after all."""

    id: Uuid


class RunFile(msgspec.Struct, frozen=True, array_like=True, tag=30, gc=False):
    """A sorted run of a key space (runs/rows.py) that counts; in the log one of which something was given up.
    `length`, and `crc`, of its head, tell it from any other file of that number. `first` and `last` are its keys'
    bounds; `newest_millis` is when its newest row was made, where that matters. Of a key the run counts whose
    `through` is greatest: its own number or, if it was merged, the greatest of theirs. `given_up` are the numbers
    (u32) of blocks that could not be read, and that a person does without; a run of no rows is given up whole. `gone`
    has a bit for each row of a run of handles, the lowest of a byte first: those that left it. A run of claims has
    the number of its handles.
    """

    number: Whole
    space: str
    rows: Whole
    length: Whole
    crc: Whole
    first: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    last: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    newest_millis: Whole
    through: Whole
    given_up: bytes = b""
    gone: bytes = b""


class HandlePack(msgspec.Struct, frozen=True, array_like=True, tag=31, gc=False):
    """In a snapshot: handles, as if each were created (packs.py). All uuids share a byte and `bits` bits behind it."""

    uuids: bytes = b""
    ends: bytes = b""
    rows: bytes = b""
    bits: Whole = 0

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.uuids) // UUID_BYTES


class RestingShares(msgspec.Struct, frozen=True, array_like=True, tag=32, gc=False):
    """In a snapshot: what handles in its runs keep alive (ledger/coldshares.py). The last record has all the rest."""

    count: Whole = 0
    shares: bytes = b""
    queued: Whole = 0
    runs: bytes = b""


Operation = (
    FlowFileRecord
    | Update
    | Delete
    | QueueDefinition
    | ResourceClaim
    | ResourceClaimGone
    | ClaimBlocks
    | IndexCeiling
    | SwapOut
    | SwapIn
    | SwapDrop
    | TransactionEvents
    | Undrained
    | Relocation
    | LeaseRecord
    | LeaseEnd
    | Answer
    | StagedWrite
    | Staged
    | SetAside
    | SetAsideEnd
    | RunFile
    | HandlePack
    | RestingShares
)


def pack_attributes(attributes: dict[str, str]) -> bytes:
    """A FlowFile's attributes as stored; `uuid` is the record's own and never stored."""
    if not attributes:
        return NO_ATTRIBUTES
    if "uuid" in attributes:
        attributes = {name: value for name, value in attributes.items() if name != "uuid"}
    return _pack(attributes)
