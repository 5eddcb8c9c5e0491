"""Many contents in one stream: handles or claims, or ranges of them, in record batches of a few MiB."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from ullage.contract import QueueUse
from ullage.embedded.content import BLOCK_BYTES, pinned
from ullage.embedded.deleted import Deleted
from ullage.embedded.flowfiles import ROWS
from ullage.embedded.outgoing import CONTENT_BYTES, OutgoingBatch
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import packed
from ullage.engine.engine import Engine
from ullage.engine.handles import parse_handle
from ullage.engine.model import ContentClaim
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
from ullage.wire.problems import problem_of
from ullage.wire.schemas import GET_SCHEMA
from ullage.wire.tickets import ContentTicket

GONE: Final = problem_of(ClaimGone("")).slug
FORBIDDEN: Final = problem_of(Forbidden("")).slug

Row = tuple[int, int, bytes | memoryview | None, str | None]
"""Item, offset, content, and the slug of a problem."""


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

    @property
    def is_small(self) -> bool:
        return not self.is_doubtful and self.claim is not None and self.size == self.claim.length <= BLOCK_BYTES


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
    elif ticket.seals is None:
        repository.acting.require_everywhere(QueueUse.READ, "reading by claims without the column seal of flowfiles")
    groups = _groups(_wanted(repository, ticket))
    rows = chain.from_iterable(_read(repository.engine, group) for group in groups)
    return packed(rows, GET_SCHEMA, GET_SCHEMA.names)


def _wanted(repository: EmbeddedRepository, ticket: ContentTicket) -> Iterator[Wanted]:
    yield from _wanted_claims(repository, ticket)
    for item, handle in enumerate(ticket.handles or ()):
        try:
            record = repository.engine.handles.record(parse_handle(own_id(handle, repository.node)))
            start, size = (0, record.size) if ticket.ranges is None else ticket.ranges[item]
            if start + size > record.size:
                raise RangeNotSatisfiable(f"range {start}+{size} of {record.size} bytes", record.size)
        except UllageError as error:
            yield Wanted(item, problem=problem_of(error).slug)
        else:
            yield Wanted(item, record.claim, record.start + start, size)


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
            yield Wanted(item, problem="range-not-satisfiable")
        elif deleted.hides(claim):
            yield Wanted(item, problem=GONE)
        else:
            entry = ledger.entry(claim.resource)
            yield Wanted(item, claim, start + at, count, is_doubtful=entry is None or not entry.uses(claim))


def _groups(items: Iterator[Wanted]) -> Iterator[list[Wanted]]:
    """Small whole claims together, as many as make a batch; everything else alone."""
    group: list[Wanted] = []
    size = 0
    for item in items:
        if group and (not item.is_small or size >= CONTENT_BYTES or len(group) >= ROWS):
            yield group
            group, size = [], 0
        group.append(item)
        size += item.size if item.is_small else CONTENT_BYTES  # nothing goes along with it
    if group:
        yield group


def _read(engine: Engine, group: Sequence[Wanted]) -> Iterator[Row]:
    claims = [item.claim for item in group if item.claim is not None]
    try:
        with pinned(engine, claims):
            if len(group) == 1:
                yield from _pieces(engine, group[0])
            else:
                contents = engine.reader.read_many(claims)
                yield from ((item.item, 0, content, None) for item, content in zip(group, contents, strict=True))
    except (ClaimGone, ContentCorrupt, ContentMissing) as error:
        if len(group) == 1:
            yield group[0].item, 0, None, problem_of(error).slug
        else:
            yield from chain.from_iterable(_read(engine, [item]) for item in group)


def _pieces(engine: Engine, item: Wanted) -> Iterator[Row]:
    """An address may be of content that is dead, and there as long as somebody's lease lasts."""
    if item.claim is None or item.size == 0:
        yield item.item, 0, None if item.problem else b"", item.problem
        return
    at = 0
    try:
        for piece in engine.reader.stream(item.claim, item.start, item.size):
            yield item.item, at, piece, None
            at += len(piece)
    except (ContentCorrupt, ContentMissing, ContentReclaimed) as error:
        yield item.item, at, None, GONE if item.is_doubtful else problem_of(error).slug
