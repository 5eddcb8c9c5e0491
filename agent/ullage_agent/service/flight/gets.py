"""DoGet of contents: many handles or ranges of them in one stream, in batches of a few MiB."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from ullage_agent.engine.content.checksum import BLOCK_BYTES
from ullage_agent.engine.errors import ClaimGone, ContentCorrupt, ContentMissing, ContentReclaimed, UllageError
from ullage_agent.engine.flowfile.placement import pin_bytes
from ullage_agent.engine.handles import parse_handle
from ullage_agent.engine.model import ContentClaim, FlowFile
from ullage_agent.engine.repository import Repository
from ullage_agent.service.errors import BadRequest, Elsewhere, ServiceError
from ullage_agent.service.flight.forms import CONTENT_SCHEMA, Get
from ullage_agent.service.problems import problem_of

BATCH_BYTES: Final = 4 << 20
"""Content of a batch: between 1 and 10 MiB all speeds are alike, and a slow reader holds two of them."""

BATCH_ROWS: Final = 10_000
PIECE_BYTES: Final = 1 << 20
"""Of a large content, a row."""


class Batch:
    """Rows on their way into a record batch."""

    def __init__(self) -> None:
        self._rows: tuple[list[int], list[int], list[bytes | None], list[str | None]] = ([], [], [], [])
        self._bytes = 0

    def add(self, item: int, offset: int, content: bytes | None, problem: str | None = None) -> None:
        for column, value in zip(self._rows, (item, offset, content, problem), strict=True):
            column.append(value)  # type: ignore[attr-defined]
        self._bytes += len(content or b"")

    @property
    def is_full(self) -> bool:
        return self._bytes >= BATCH_BYTES or len(self._rows[0]) >= BATCH_ROWS

    def take(self) -> Iterator[pa.RecordBatch]:
        """What there is, if anything; empty afterwards."""
        if self._rows[0]:
            arrays = [pa.array(column, field.type) for column, field in zip(self._rows, CONTENT_SCHEMA, strict=True)]
            self.__init__()  # type: ignore[misc]
            yield pa.record_batch(arrays, schema=CONTENT_SCHEMA)


class Wanted:
    """One item of a ticket: which bytes of which claim, or why not. `is_doubtful`: the claim does not live, and was
    perhaps never there.
    """

    __slots__ = ("claim", "is_doubtful", "item", "problem", "size", "start")

    def __init__(
        self,
        item: int,
        claim: ContentClaim | None,
        start: int,
        size: int,
        problem: str | None,
        *,
        is_doubtful: bool = False,
    ) -> None:
        self.item = item
        self.claim = claim
        self.start = start
        self.size = size
        self.problem = problem
        self.is_doubtful = is_doubtful

    @property
    def is_small(self) -> bool:
        return not self.is_doubtful and self.claim is not None and self.size == self.claim.length <= BLOCK_BYTES


def require_possible(get: Get) -> None:
    """BadRequest for a ticket that contradicts itself."""
    if (get.claims is None) == (get.handles is None):
        raise BadRequest("a ticket for contents has handles, or claims")
    if get.ranges is not None and len(get.ranges) != len(get.handles or ()):
        raise BadRequest(f"{len(get.handles or ())} handles came with {len(get.ranges)} ranges")


def read_items(repository: Repository, get: Get, node: str) -> Iterator[pa.RecordBatch]:
    """The contents in the order of the ticket. An item that cannot be read has its problem in its row."""
    require_possible(get)
    batch = Batch()
    for group in _groups(_wanted(repository, get, node)):
        for item, offset, content, problem in _read(repository, group):
            batch.add(item, offset, content, problem)
            if batch.is_full:
                yield from batch.take()
    yield from batch.take()


def _wanted(repository: Repository, get: Get, node: str) -> Iterator[Wanted]:
    for item, (*address, start, size) in enumerate(get.claims or ()):
        claim = ContentClaim(*address)
        if start + size > claim.length:
            yield Wanted(item, None, start, size, "bad-request")
            continue
        entry = repository.ledger.entry(claim.resource)
        lives = entry is not None and entry.uses(claim)
        yield Wanted(item, claim, start, size, None, is_doubtful=not lives)
    for item, name in enumerate(get.handles or ()):
        try:
            record = _record(repository, name, node)
            start, size = (0, record.size) if get.ranges is None else get.ranges[item]
            if start + size > record.size:
                raise BadRequest(f"range {start}+{size} of {record.size} bytes")
        except (UllageError, ServiceError) as error:
            yield Wanted(item, None, 0, 0, problem_of(error).slug)
        else:
            yield Wanted(item, record.claim, record.start + start, size, None)


def _record(repository: Repository, name: str, node: str) -> FlowFile:
    uuid, _, home = name.partition("@")
    if home and node and home != node:
        raise Elsewhere(f"handle {uuid} lives on node {home}; this is {node}")
    return repository.handles.record(parse_handle(uuid))


def _groups(items: Iterator[Wanted]) -> Iterator[list[Wanted]]:
    """Small whole claims together, as many as make a batch; everything else alone."""
    group: list[Wanted] = []
    size = 0
    for item in items:
        if item.is_small and (not group or group[-1].is_small):
            group.append(item)
            size += item.size
            if size < BATCH_BYTES and len(group) < BATCH_ROWS:
                continue
        elif group:
            yield group
            group = [item]
        else:
            group = [item]
        if not group[-1].is_small or size >= BATCH_BYTES or len(group) >= BATCH_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _pin(repository: Repository, claims: Sequence[ContentClaim]) -> None:
    """Keep them readable. An address may be of content that is dead, and there as long as somebody's lease lasts."""
    pinned: list[ContentClaim] = []
    try:
        for claim in claims:
            pin_bytes(repository.ledger, claim)
            pinned.append(claim)
    except ClaimGone:
        repository.ledger.unpin(pinned)
        raise


def _read(repository: Repository, group: Sequence[Wanted]) -> Iterator[tuple[int, int, bytes | None, str | None]]:
    claims = [item.claim for item in group if item.claim is not None]
    try:
        _pin(repository, claims)
    except ClaimGone as error:
        if len(group) == 1:
            yield group[0].item, 0, None, problem_of(error).slug
            return
        for item in group:
            yield from _read(repository, [item])
        return
    try:
        if len(group) > 1:
            contents = repository.reader.read_many(claims)
            yield from ((item.item, 0, content, None) for item, content in zip(group, contents, strict=True))
        else:
            yield from _pieces(repository, group[0])
    finally:
        repository.ledger.unpin(claims)


def _pieces(repository: Repository, item: Wanted) -> Iterator[tuple[int, int, bytes | None, str | None]]:
    if item.claim is None or item.size == 0:
        yield item.item, 0, None if item.problem else b"", item.problem
        return
    at = 0
    try:
        for piece in repository.reader.stream(item.claim, item.start, item.size):
            yield item.item, at, piece, None
            at += len(piece)
    except (ContentCorrupt, ContentMissing, ContentReclaimed) as error:
        if not item.is_doubtful:
            raise
        yield item.item, at, None, problem_of(ClaimGone(str(error))).slug
