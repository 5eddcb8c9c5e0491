"""Which bytes lie in which file: a claim's own, until a rewrite has moved it; and which of them leases hold back.

Addresses are given at birth and never change. A rewrite commits a `Relocation` for each resource claim that it takes
bytes from, and from then on all of that resource claim's bytes lie in one output. Callers hold the ledger's lock, but
for `locate`, which a reader may call at any time.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

from ullage.engine.byteranges import ByteRange, find_move, overlaps, unpack_moves
from ullage.engine.ledger.aside import RecordsAside
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.resources import RESOURCE, ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import Action, ContentClaim, LeaseRecord, Relocation, ResourceClaim
from ullage.errors import ClaimGone, ClaimTruncated, ContentMissing, ContentReclaimed


def lost_by_move(ledger: Ledger, index: int, relocation: Relocation | None = None) -> int | None:
    """The offset of a resident claim of a resource claim that a relocation, by default the one that stands, leaves
    without a place in its output.
    """
    entry = ledger.entry(index)
    relocation = relocation or (None if entry is None else entry.relocation)
    output = None if relocation is None else ledger.entry(relocation.output)
    if entry is None or relocation is None or output is None:
        return None
    end = output.claim.length if output.claim.sealed else None
    for claim in entry.residents().claims:
        move = find_move(relocation.moves, claim.offset)
        if move is None or claim.end > move.end or (end is not None and move.target + move.length > end):
            return claim.offset
    return None


class ClaimLocation(NamedTuple):
    """Where a claim's bytes lie now: at `offset` of `file`."""

    file: ResourceClaim
    offset: int


def births(ledger: Ledger, entry: ResourceEntry) -> Iterator[ResourceEntry]:
    """The resource claims whose bytes lie in this one's file: itself as long as it was not rewritten, and those that
    rewrites moved here.
    """
    if entry.relocation is None:
        yield entry
    for index in entry.sources or ():
        source = ledger.entry(index)
        if source is not None:
            yield source


def is_unused(ledger: Ledger, entry: ResourceEntry) -> bool:
    """No claimant and no pin needs a byte of the file."""
    return all(birth.is_free for birth in births(ledger, entry))


def end_in_use(ledger: Ledger, entry: ResourceEntry, resident_end: int | None = None) -> int:
    """How far claims in use reach in the file; of what was moved here, how far anything reaches of a source in use.

    `resident_end` as in `ResourceEntry.end_in_use`: who does not give it looks at every claim, at a start or a check.
    """
    return max(
        (
            birth.end_in_use(resident_end) if birth is entry else birth.relocated_end
            for birth in births(ledger, entry)
            if not birth.is_free
        ),
        default=0,
    )


def end_bound(ledger: Ledger, entry: ResourceEntry) -> int:
    """No claim in use reaches farther in the file; exact after `settle_bound`."""
    return end_in_use(ledger, entry, entry.resident_bound)


def settle_bound(ledger: Ledger, entry: ResourceEntry) -> None:
    """Find anew how far a resource claim's own claims reach, if the last of them has died: without the ledger's lock,
    as it looks at all of them. It is left for the next time where something changes meanwhile.
    """
    if entry.is_bound_exact:
        return
    with ledger.lock:  # in the middle of a commit its version would be that of what is not there yet
        version = entry.version
    end = entry.residents().end
    with ledger.lock:
        if entry.version == version:
            ledger.note_changed(entry)
            entry.lower_bound_to(end)


def locate(ledger: Ledger, claim: ContentClaim) -> ClaimLocation:
    """Where a base claim's bytes lie.

    ContentReclaimed if they were given back, or are promised to be: whether it has happened yet or not.
    """
    while True:
        entry = ledger.entry(claim.resource)
        if entry is None:
            if claim.resource <= ledger.index_ceiling:
                raise _reclaimed(claim, 0)
            raise ContentMissing(
                f"content claim at offset {claim.offset} names resource claim {claim.resource}, which never was"
            )
        relocation = entry.relocation
        if relocation is None:
            return _place(claim, entry.claim, claim.offset)
        move = find_move(relocation.moves, claim.offset)
        if move is None or claim.end > move.end:
            raise _reclaimed(claim, relocation.transaction)
        output = ledger.entry(relocation.output)
        if output is not None:
            return _place(claim, output.claim, move.target + claim.offset - move.offset)
        # Else another rewrite moved it on between the two look-ups, and its output went: look again.
        if entry.relocation is relocation:
            raise _reclaimed(claim, relocation.transaction)


def pin_bytes(ledger: Ledger, claim: ContentClaim) -> None:
    """Keep a base claim's bytes readable until `Ledger.unpin`, also if it is dead but not given back yet.

    ClaimTruncated or ClaimGone, nothing pinned, if they are given back, durably promised to be, or just being taken:
    decided under the lock under which an executor intends.
    """
    pin_many(ledger, [claim], [])


def pin_many(ledger: Ledger, claims: Iterable[ContentClaim], held: list[ContentClaim]) -> None:
    """The same of many, file by file, up to the first of which one cannot be pinned. What is pinned is in `held`,
    whatever happens.
    """
    with ledger.lock:
        for resource, group in groupby(claims, RESOURCE):
            some, entry = list(group), ledger.entry(resource)
            if entry is None or entry.claim.intent == Action.DELETE:
                raise ClaimGone(f"resource claim {resource} is gone, and the content at {some[0].offset} with it")
            for claim in entry.unused(some):
                _require_there(ledger, claim)
            ledger.note_changed(entry)
            entry.pin(some)
            held += some


def _require_there(ledger: Ledger, claim: ContentClaim) -> None:
    """What nobody uses."""
    try:
        place = locate(ledger, claim)
    except (ContentReclaimed, ContentMissing) as error:
        raise ClaimTruncated(str(error)) from error
    # A run has derived that these bytes are dead and is about to intend: a pin now would come too late.
    if not ledger.taken.isdisjoint((claim.resource, place.file.index)):
        raise ClaimTruncated(f"resource claim {place.file.index} is just being reclaimed: {claim.offset}")


class FileHolds(NamedTuple):
    """What keeps files from being changed. `resources` are leased by name, without descriptors of their files, since
    the transaction that is given; `since` is the oldest leased snapshot, 0 if there is none; of `passed` somebody may
    still have descriptors; `aside` are records that may point anywhere.
    """

    resources: Mapping[int, int] = {}
    since: int = 0
    passed: frozenset[int] = frozenset()
    aside: RecordsAside | None = None

    def __bool__(self) -> bool:
        return bool(self.resources or self.since or self.passed or self.aside)

    def refuses(self, ledger: Ledger, entry: ResourceEntry, action: Action) -> bool:
        """Whether this change of a file is forbidden; called under the ledger's lock.

        A lease holds back what died after it, of the resource claims that it names or of all; of what was dead before,
        or born later, a snapshot knows nothing. What lives moves on with its address, and whoever has a descriptor
        reads the file that it is of: so neither keeps a file from being rewritten, or deleted when nothing lives in it.
        """
        if action == Action.ARCHIVE or not self:
            return False
        # Also of one that was moved away itself: with its record its address would go, and what the output knows of it.
        found = {each.claim.index: each.last_death for each in (entry, *births(ledger, entry))}
        indexes = found.keys()
        if self.aside and any(map(self.aside.may_mean, indexes)):
            return True
        if action in (Action.TRUNCATE, Action.PUNCH) and not self.passed.union(self.resources).isdisjoint(indexes):
            return True
        if any(last > self.resources.get(index, last) for index, last in found.items()):
            return True
        return bool(self.since) and any(last > self.since for last in found.values())


def leased_by(leases: Iterable[LeaseRecord], now_millis: int) -> FileHolds:
    """What these leases hold now."""
    leases = list(leases)
    standing = [lease for lease in leases if lease.expires_millis > now_millis]
    resources: dict[int, int] = {}
    for lease in standing:
        for index in () if lease.holds_files else lease.resources:
            resources[index] = min(lease.transaction, resources.get(index, lease.transaction))
    return FileHolds(
        resources,
        min((lease.transaction for lease in standing if not lease.resources), default=0),
        frozenset(index for lease in leases if lease.holds_files for index in lease.resources),
    )


def held_by(ledger: Ledger, now_millis: int) -> FileHolds:
    """What leases, records that were set aside, and shipping hold now."""
    leased = leased_by(ledger.leases.values(), now_millis)
    since = min(filter(None, (leased.since, ledger.shipping_since)), default=0)
    return leased._replace(since=since, aside=ledger.set_aside)


def placement_problems(ledger: Ledger, swapped: Iterable[SwapContent]) -> list[str]:
    """What contradicts what among relocations, holes and the claims that live: everything against everything."""
    problems: list[str] = []
    claims: dict[int, list[ContentClaim]] = {}
    for content in swapped:
        for claim in {record.claim for record in content.records if record.claim is not None}:
            claims.setdefault(claim.resource, []).append(claim)
    entries = list(ledger.entries())
    taken: dict[int, list[ByteRange]] = {}
    for entry in entries:
        index, relocation = entry.claim.index, entry.relocation
        with ledger.lock:
            if relocation is not None:
                output = ledger.entry(relocation.output)
                if output is None or index not in (output.sources or ()):
                    problems.append(f"resource claim {index} was moved to {relocation.output}, which does not know it")
                moves = unpack_moves(relocation.moves)
                taken.setdefault(relocation.output, []).extend(ByteRange(move.target, move.length) for move in moves)
            problems.extend(
                f"resource claim {index} says that {source} was moved to it, which says otherwise"
                for source in entry.sources or ()
                if (found := ledger.entry(source)) is None
                or found.relocation is None
                or found.relocation.output != index
            )
        for claim in (*entry.residents().claims, *claims.get(index, ())):
            try:
                locate(ledger, claim)
            except (ContentMissing, ContentReclaimed) as error:
                problems.append(f"in use, but: {error}")
    for index, runs in taken.items():
        if any(run.end > other.offset for run, other in pairwise(sorted(runs))):
            problems.append(f"resource claim {index}: what was moved to it overlaps")
    return problems


def _place(claim: ContentClaim, file: ResourceClaim, offset: int) -> ClaimLocation:
    """ContentReclaimed if an intent or an earlier change took these bytes away."""
    # From the intent on, not from the change: a crash in between is finished by the next start, whoever has read
    # meanwhile.
    is_cut = file.intent == Action.TRUNCATE and offset + claim.length > file.intent_length
    is_punched = (file.holes or file.intent_holes) and (
        overlaps(file.holes, offset, claim.length) or overlaps(file.intent_holes, offset, claim.length)
    )
    if is_cut or is_punched or file.intent == Action.DELETE or (file.sealed and offset + claim.length > file.length):
        raise _reclaimed(claim, file.changed)
    return ClaimLocation(file, offset)


def _reclaimed(claim: ContentClaim, transaction: int) -> ContentReclaimed:
    when = f" by transaction {transaction}" if transaction else ""
    return ContentReclaimed(
        f"content claim at offset {claim.offset} of resource claim {claim.resource} was reclaimed{when}", transaction
    )
