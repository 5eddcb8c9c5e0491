"""What the ledger knows of one resource claim: its physical state, and what in it is alive."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import NamedTuple

from ullage.engine.byteranges import unpack_ranges
from ullage.engine.ledger.packedclaims import PACKED_MIN, LoadingClaims, PackedClaims, Row, packed, rows_of
from ullage.engine.model import Action, ContentClaim, Relocation, ResourceClaim, SwapShare
from ullage.engine.packs import ClaimRow
from ullage.errors import RepositoryDamaged

RESOURCE = attrgetter("resource")

_OFFSET, _LENGTH = itemgetter(0), itemgetter(1)
"""Of a row."""


@dataclass(slots=True)
class Pin:
    """How often a base claim is pinned."""

    claim: ContentClaim
    count: int = 1


@dataclass(slots=True, eq=False)
class ResourceEntry:
    """One resource claim's counts, kept for base claims (a slice counts for the run it is a slice of).

    Totals are kept by differences, and answer most questions: they choose what is worth a look. `residents` are the
    base claims themselves, and what takes bytes away asks for them. `swapped` is what swap files hold, by file name:
    totals and ends only, so that a swapped FlowFile costs nothing but its share. `pins` maps offsets to pins.

    `relocation` says where the bytes lie once a rewrite has moved them, up to `relocated_end` of that file; `sources`
    of an output are the resource claims whose bytes lie in it.

    Everything here is read and changed under the ledger's lock, but for `residents`. `version` is raised with each
    change: what was found without the lock is true while it is the same.
    """

    claim: ResourceClaim
    swapped: dict[str, SwapShare] | None = None
    pins: dict[int, Pin] | None = None
    live_bytes: int = 0
    """Of base claims with a resident claimant."""

    resident_bound: int = 0
    """No base claim with a resident claimant reaches farther."""

    is_bound_exact: bool = True
    """Whether one reaches so far."""

    version: int = 0
    relocation: Relocation | None = None
    relocated_end: int = 0
    sources: set[int] | None = None
    last_death: int = 0
    last_death_millis: int = 0
    _live: ContentClaim | dict[int, ContentClaim] | PackedClaims | LoadingClaims | None = None
    """The base claims with a resident claimant, by offset. Of a large content's file there is one, and no map."""

    _shared: dict[int, int] | None = None
    """By offset: how many resident claimants there are where it is more than one."""

    _further: int = 0
    """Resident claimants that are not the first of their claim."""

    def __post_init__(self) -> None:
        self.last_death, self.last_death_millis = self.claim.last_death, self.claim.last_death_millis

    def add(self, claim: ContentClaim) -> None:
        """One more resident claimant of a base claim."""
        offset, live = claim.offset, self._live
        if isinstance(live, dict):
            is_new = offset not in live
            if is_new:
                live[offset] = claim
        elif live is None:
            is_new, self._live = True, claim
        elif isinstance(live, LoadingClaims):
            live.take((claim.resource, offset, claim.length, claim.crc))
            return
        elif isinstance(live, PackedClaims):
            is_new = offset not in live
            if is_new:
                self._live = {each.offset: each for each in (*live, claim)}
        else:
            is_new = live.offset != offset
            if is_new:
                self._live = {live.offset: live, offset: claim}
        if is_new:
            length = claim.length
            self.live_bytes += length
            if offset + length > self.resident_bound:
                self.resident_bound, self.is_bound_exact = offset + length, True
        else:
            self._share(offset)

    def _share(self, offset: int) -> None:
        """One more resident claimant of a base claim that has one."""
        self._further += 1
        if self._shared is None:
            self._shared = {offset: 2}
        else:
            self._shared[offset] = self._shared.get(offset, 1) + 1

    def begin_loading(self) -> None:
        """A snapshot's records are about to name its base claims: until `end_loading` nothing is asked."""
        self._live = LoadingClaims()

    @property
    def loading(self) -> LoadingClaims | None:
        """What a snapshot's records have named so far; None: nobody waits for more."""
        return self._live if isinstance(self._live, LoadingClaims) else None

    def taker(self) -> Callable[[ClaimRow], None]:
        """What to call with each base claim that a record of a snapshot names."""
        live = self._live
        return live.take if isinstance(live, LoadingClaims) else lambda row: self.add(ContentClaim(*row))

    def end_loading(self) -> None:
        """All of them have."""
        if not isinstance(self._live, LoadingClaims):
            return
        rows = self._live.rows()
        if len(set(map(_OFFSET, rows))) < len(rows):
            rows = self._once(rows)
        self.live_bytes = sum(map(_LENGTH, rows))
        self.resident_bound = max([offset + length for offset, length, _ in rows], default=0)
        self._set(rows)

    def _once(self, rows: list[Row]) -> list[Row]:
        """Without those that have the offset of the one before, which are further claimants of it."""
        once: list[Row] = []
        for row in rows:
            if once and once[-1][0] == row[0]:
                self._share(row[0])
            else:
                once.append(row)
        return once

    def pack(self) -> bool:
        """Let the base claims take less memory; False: not yet, more are to come."""
        live = self._live
        if isinstance(live, dict):
            if not self.claim.sealed:
                return False
            self._set(rows_of(live.values()))
        return True

    def _set(self, rows: list[Row]) -> None:
        index = self.claim.index
        if len(rows) >= PACKED_MIN:
            self._live = packed(index, rows)
        elif len(rows) > 1:
            self._live = {row[0]: ContentClaim(index, *row) for row in rows}
        else:
            self._live = ContentClaim(index, *rows[0]) if rows else None

    def remove(self, claim: ContentClaim) -> bool:
        """One resident claimant less; whether it was the last one."""
        offset = claim.offset
        if self._shared is not None and (count := self._shared.get(offset, 1)) > 1:
            self._further -= 1
            if count > 2:
                self._shared[offset] = count - 1
            else:
                del self._shared[offset]
                self._shared = self._shared or None
            return False
        live = self._live
        if isinstance(live, dict):
            del live[offset]
        elif isinstance(live, PackedClaims):
            live = self._live = live.without(offset)
        elif not isinstance(live, ContentClaim) or live.offset != offset:
            raise KeyError(offset)
        if isinstance(live, ContentClaim) or not live:
            self._live = None
        self.live_bytes -= claim.length
        if self._live is None:
            self.resident_bound, self.is_bound_exact = 0, True
        elif offset + claim.length == self.resident_bound:
            self.is_bound_exact = False
        return True

    def lower_bound_to(self, end: int) -> None:
        """A look at all residents has found that they reach so far."""
        self.resident_bound, self.is_bound_exact = end, True

    def pin(self, claims: Iterable[ContentClaim]) -> None:
        """Keep base claims' bytes whatever happens to their claimants."""
        pins = self.pins
        if pins is None:
            pins = self.pins = {}
        for claim in claims:
            held = pins.get(claim.offset)
            if held is None:
                pins[claim.offset] = Pin(claim)
            else:
                held.count += 1

    def unpin(self, claims: Iterable[ContentClaim]) -> None:
        pins = self.pins or {}
        for claim in claims:
            held = pins[claim.offset]
            held.count -= 1
            if held.count == 0:
                del pins[claim.offset]
        if not pins:
            self.pins = None

    @property
    def resident_claimants(self) -> int:
        """FlowFiles, handles and tombstones in memory that point here."""
        live = self._live
        assert not isinstance(live, LoadingClaims), "a snapshot is being read"
        return (1 if isinstance(live, ContentClaim) else len(live or ())) + self._further

    @property
    def claimants(self) -> int:
        """FlowFiles, handles and tombstones that point here, swapped ones included."""
        count = self.resident_claimants
        if self.swapped is not None:
            count += sum(share.claimants for share in self.swapped.values())
        return count

    @property
    def bytes_live(self) -> int:
        """Bytes of live base claims. One that resident and swapped FlowFiles share counts once for each side."""
        if self.swapped is None:
            return self.live_bytes
        return self.live_bytes + sum(share.live_bytes for share in self.swapped.values())

    @property
    def is_free(self) -> bool:
        """No claimant and no pin: nothing needs a byte of the file, once it is sealed."""
        return self._live is None and self.swapped is None and self.pins is None

    @property
    def is_overrun(self) -> bool:
        """Whether claims reach beyond the end of the file, which never shrinks below what is in use."""
        length = self.claim.length
        if not self.claim.sealed or self.relocation is not None or self.end_in_use(self.resident_bound) <= length:
            return False
        return self.is_bound_exact or self.end_in_use() > length

    @property
    def has_intent(self) -> bool:
        return self.claim.intent != Action.NONE

    @property
    def has_residents(self) -> bool:
        """Whether any base claim has a resident claimant."""
        return self._live is not None

    def end_in_use(self, resident_end: int | None = None) -> int:
        """The end of the last live or pinned base claim: what truncation may cut to. Exact, also with swap files.

        `resident_end` is how far the resident ones reach, if it is known: else each of them is looked at.
        """
        ends = [self.residents().end if resident_end is None else resident_end]
        if self.swapped is not None:
            ends.extend(share.end for share in self.swapped.values())
        if self.pins is not None:
            ends.extend(held.claim.end for held in self.pins.values())
        return max(ends)

    def is_resident(self, offset: int) -> bool:
        """Whether the base claim at this offset has a resident claimant."""
        return offset in self._offsets()

    def not_resident(self, claims: Iterable[ContentClaim]) -> list[ContentClaim]:
        """Those of these base claims that have no resident claimant."""
        offsets = self._offsets()
        return [claim for claim in claims if claim.offset not in offsets]

    def _offsets(self) -> dict[int, ContentClaim] | PackedClaims | tuple[int, ...]:
        """The offsets of base claims with a resident claimant."""
        live = self._live
        assert not isinstance(live, LoadingClaims), "a snapshot is being read"
        return (live.offset,) if isinstance(live, ContentClaim) else live or ()

    def uses(self, claim: ContentClaim) -> bool:
        """Whether a base claim is known to be live or pinned."""
        return not self.unused([claim])

    def unused(self, claims: Iterable[ContentClaim]) -> list[ContentClaim]:
        """Those of these base claims that are known neither to be live nor to be pinned."""
        found, pins = self.not_resident(claims), self.pins
        return found if pins is None else [claim for claim in found if claim.offset not in pins]

    def is_within(self, offsets: set[int]) -> bool:
        """Whether every base claim that is resident or pinned is among these."""
        return offsets.issuperset([claim.offset for claim in self.residents().claims]) and (
            self.pins is None or self.pins.keys() <= offsets
        )

    def claimants_of(self, offset: int) -> int:
        """How many resident claimants the base claim at this offset has."""
        if not self.is_resident(offset):
            return 0
        return 1 if self._shared is None else self._shared.get(offset, 1)

    def residents(self) -> "Residents":
        """The base claims with a resident claimant, of one moment. It costs what there are, so it is not for the lock,
        which it does not need: whoever changes something on the strength of it compares `version` under the lock.
        """
        live = self._live
        if isinstance(live, dict):
            return Residents(list(live.values()))  # one step of the interpreter, in which no commit can be
        if isinstance(live, PackedClaims):
            return Residents(list(live))  # which nobody changes
        assert not isinstance(live, LoadingClaims), "a snapshot is being read"
        return Residents([] if live is None else [live])


class Residents(NamedTuple):
    """All base claims of a resource claim that have a resident claimant, in no order."""

    claims: list[ContentClaim]

    @property
    def bytes(self) -> int:
        return sum([claim.length for claim in self.claims])

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return max([claim.offset + claim.length for claim in self.claims], default=0)


def require_runs(operation: ResourceClaim, transaction: int) -> None:
    """RepositoryDamaged unless the runs that it carries are whole."""
    try:
        unpack_ranges(operation.holes)
        unpack_ranges(operation.intent_holes)
    except ValueError as error:
        raise RepositoryDamaged(
            f"transaction {transaction} describes resource claim {operation.index}, but {error}"
        ) from error
