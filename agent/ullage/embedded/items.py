"""Many contents in one stream: handles or claims, or ranges of them, in record batches of a few MiB."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeGuard

import pyarrow as pa

from ullage.contract import QueueUse
from ullage.embedded.content import BLOCK_BYTES, pinned
from ullage.embedded.deleted import Deleted
from ullage.embedded.flowfiles import ROWS
from ullage.embedded.outgoing import CONTENT_BYTES, OutgoingBatch, absent
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage.engine.model import ContentClaim, FlowFileRecord
from ullage.errors import (
    ClaimGone,
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    Forbidden,
    InvalidArgument,
    RangeNotSatisfiable,
    UllageError,
)
from ullage.interface.checks import own_id
from ullage.uuids import parse_handle, parse_uuids
from ullage.wire.problems import problem_of
from ullage.wire.schemas import GET_SCHEMA
from ullage.wire.tickets import ContentTicket

GONE: Final = problem_of(ClaimGone("")).slug
FORBIDDEN: Final = problem_of(Forbidden("")).slug
UNSATISFIABLE: Final = problem_of(RangeNotSatisfiable("", 0)).slug

LOOKED_UP_MAX: Final = 256
"""Handles that are looked up at a time."""


class Wanted(NamedTuple):
    """One item of a ticket: which bytes of which claim, or why not. `is_doubtful`: the claim does not live, and was
    perhaps never there.
    """

    item: int
    claim: ContentClaim | None = None
    start: int = 0
    size: int = 0
    problem: str | None = None
    is_doubtful: bool = False


class WantedWhole:
    """Items that want all of a claim of at most a block each. They are read together; of none an object is made: a
    `Wanted` for each was a fifth of what a read of 1 KB over Flight takes of the node's processor.
    """

    __slots__ = ("claims", "items", "size")

    def __init__(self) -> None:
        self.items: list[int] = []
        self.claims: list[ContentClaim] = []
        self.size = 0
        """Of all contents, in bytes."""

    def add(self, item: int, claim: ContentClaim) -> None:
        """`claim` is small."""
        self.items.append(item)
        self.claims.append(claim)
        self.size += claim.length

    @property
    def is_full(self) -> bool:
        """Whether a batch holds no more."""
        return self.size >= CONTENT_BYTES or len(self.items) >= ROWS

    def apart(self) -> Iterator[Wanted]:
        """Each alone."""
        for item, claim in zip(self.items, self.claims, strict=True):
            yield Wanted(item, claim, 0, claim.length)


Group = WantedWhole | Wanted
"""What is read at a time."""


def content_batches(repository: EmbeddedRepository, ticket: ContentTicket) -> Iterator[OutgoingBatch]:
    """The contents in the order of the ticket. An item that cannot be read has its problem in its row.

    InvalidArgument, at once, for a ticket that contradicts itself.
    """
    if (ticket.claims is None) == (ticket.handles is None):
        raise InvalidArgument("a ticket for contents has handles, or claims")
    count = len(ticket.handles or ticket.claims or ())
    if ticket.ranges is not None and len(ticket.ranges) != count:
        raise InvalidArgument(f"{count} handles or claims came with {len(ticket.ranges)} ranges")
    if ticket.seals is not None and len(ticket.seals) != len(ticket.claims or ()):
        raise InvalidArgument(f"{len(ticket.claims or ())} claims came with {len(ticket.seals)} seals")
    if ticket.claims is None:
        repository.acting.require(QueueUse.READ)
        return _batches(repository.engine, _wanted_handles(repository, ticket.handles or [], ticket.ranges))
    if ticket.seals is None:
        repository.acting.require_everywhere(QueueUse.READ, "reading by claims without the column seal of flowfiles")
    return _batches(repository.engine, _grouped(_wanted_claims(repository, ticket)))


class _Rows:
    """What a batch will hold, by column: of many small contents no object is made but what is sent of them."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._items: list[int] = []
        self._offsets: list[int] = []
        self._contents: list[bytes | memoryview | None] = []
        self._problems: list[str | None] = []
        self._has_problem = False
        self._size = 0

    def add_whole(self, items: Sequence[int], contents: Sequence[bytes | memoryview], size: int) -> None:
        """Whole contents, so many bytes together."""
        self._items += items
        self._offsets += [0] * len(items)
        self._contents += contents
        self._problems += [None] * len(items)
        self._size += size

    def add(self, item: int, offset: int, content: bytes | memoryview | None, problem: str | None) -> None:
        """A piece, or the slug of what is wrong."""
        self._items.append(item)
        self._offsets.append(offset)
        self._contents.append(content)
        self._problems.append(problem)
        self._has_problem |= problem is not None
        self._size += len(content or b"")

    def has_room(self, size: int) -> bool:
        """For so many bytes more; always while nothing is there."""
        return not self._items or (self._size + size <= CONTENT_BYTES and len(self._items) < ROWS)

    def taken(self) -> Iterator[OutgoingBatch]:
        """The batch, if there is something for it; then nothing is left."""
        if not self._items:
            return
        fields = {field.name: field.type for field in GET_SCHEMA}
        problems = self._problems if self._has_problem else pa.nulls(len(self._items))
        arrays = [
            pa.array(self._items, fields["item"]),
            pa.array(self._offsets, fields["offset"]),
            absent(self._contents, fields["content"]),
            pa.array(problems, fields["problem"]),
        ]
        contents = [content for content in self._contents if content]
        self._clear()
        yield OutgoingBatch(pa.record_batch(arrays, schema=GET_SCHEMA), contents)


def _batches(engine: Engine, groups: Iterator[Group]) -> Iterator[OutgoingBatch]:
    rows = _Rows()
    for group in groups:
        if not rows.has_room(group.size):
            yield from rows.taken()
        for _ in _read(engine, group, rows):
            if not rows.has_room(1):
                yield from rows.taken()
    yield from rows.taken()


def _wanted_handles(
    repository: EmbeddedRepository, handles: Sequence[str], ranges: Sequence[tuple[int, int]] | None
) -> Iterator[Group]:
    item, count, whole = 0, LOOKED_UP_MAX, WantedWhole()
    while item < len(handles):
        begin, size = item, 0
        for found in _records(repository, handles[begin : begin + count]):
            # What was looked up waits for its reader, who may be slow, as long as what comes before it: no longer than
            # for a batch, or contents would be handed out that were deleted minutes ago.
            if size >= CONTENT_BYTES:
                break
            if ranges is None and isinstance(found, FlowFileRecord) and _is_small_whole(found.claim, found.size):
                size += found.size
                whole.add(item, found.claim)
                item += 1
                if whole.is_full:
                    yield whole
                    whole = WantedWhole()
                continue
            wanted = _wanted_handle(item, found, None if ranges is None else ranges[item])
            size += wanted.size
            item += 1
            if whole.items:
                yield whole
                whole = WantedWhole()
            yield wanted
        count = min(LOOKED_UP_MAX, 2 * (item - begin))
    if whole.items:
        yield whole


def _is_small_whole(claim: ContentClaim | None, size: int) -> TypeGuard[ContentClaim]:
    """Whether so many bytes are all of a claim that is read at once."""
    return claim is not None and size == claim.length <= BLOCK_BYTES


def _wanted_handle(item: int, found: FlowFileRecord | UllageError, range: tuple[int, int] | None) -> Wanted:
    if isinstance(found, UllageError):
        return Wanted(item, problem=problem_of(found).slug)
    start, size = range or (0, found.size)
    if start + size > found.size:
        return Wanted(item, problem=UNSATISFIABLE)
    return Wanted(item, found.claim, found.start + start, size)


def _records(repository: EmbeddedRepository, handles: Sequence[str]) -> Sequence[FlowFileRecord | UllageError]:
    """Of each its record, or why there is none."""
    store = repository.engine.handles
    if (uuids := parse_uuids(handles)) is not None:
        return store.records(uuids)
    found: list[FlowFileRecord | UllageError] = []
    for handle in handles:
        try:
            found.append(store.record(parse_handle(own_id(handle, repository.node))))
        except UllageError as error:
            found.append(error)
    return found


def _wanted_claims(repository: EmbeddedRepository, ticket: ContentTicket) -> Iterator[Wanted]:
    ledger, acting = repository.engine.ledger, repository.acting
    deleted, reads_all = Deleted(repository.engine, acting), acting.queues.allows_everywhere(QueueUse.READ)
    seals = ticket.seals
    for item, address in enumerate(ticket.claims or ()):
        claim, start, size = ContentClaim(*address[:4]), *address[4:]
        at, count = (0, size) if ticket.ranges is None else ticket.ranges[item]
        if not reads_all and (seals is None or not repository.seals.allow(acting, ledger, seals[item], address)):
            yield Wanted(item, problem=FORBIDDEN)
        elif start + size > claim.length or at + count > size:
            yield Wanted(item, problem=UNSATISFIABLE)
        elif deleted.hides(claim):
            yield Wanted(item, problem=GONE)
        else:
            entry = ledger.entry(claim.resource)
            yield Wanted(item, claim, start + at, count, is_doubtful=entry is None or not entry.uses(claim))


def _grouped(items: Iterator[Wanted]) -> Iterator[Group]:
    """Small whole claims together, as many as make a batch; everything else alone."""
    whole = WantedWhole()
    for item in items:
        if not item.is_doubtful and _is_small_whole(item.claim, item.size):
            whole.add(item.item, item.claim)
            if whole.is_full:
                yield whole
                whole = WantedWhole()
            continue
        if whole.items:
            yield whole
            whole = WantedWhole()
        yield item
    if whole.items:
        yield whole


def _read(engine: Engine, group: Group, rows: _Rows) -> Iterator[None]:
    """Add what was read; yields whenever something was."""
    claims = group.claims if isinstance(group, WantedWhole) else [] if group.claim is None else [group.claim]
    try:
        with pinned(engine, claims):
            if isinstance(group, WantedWhole):
                rows.add_whole(group.items, engine.reader.read_many(claims), group.size)
                yield
            else:
                yield from _pieces(engine, group, rows)
    except (ClaimGone, ContentCorrupt, ContentMissing) as error:
        if isinstance(group, WantedWhole):
            for item in group.apart():
                yield from _read(engine, item, rows)
        else:
            rows.add(group.item, 0, None, problem_of(error).slug)
            yield


def _pieces(engine: Engine, item: Wanted, rows: _Rows) -> Iterator[None]:
    """An address may be of content that is dead, and there as long as somebody's lease lasts."""
    if item.claim is None or item.size == 0:
        rows.add(item.item, 0, None if item.problem else b"", item.problem)
        yield
        return
    at = 0
    try:
        for piece in engine.reader.stream(item.claim, item.start, item.size):
            rows.add(item.item, at, piece, None)
            at += len(piece)
            yield
    except (ContentCorrupt, ContentMissing, ContentReclaimed) as error:
        rows.add(item.item, at, None, GONE if item.is_doubtful else problem_of(error).slug)
        yield
