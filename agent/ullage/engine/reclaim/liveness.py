"""Exactly which bytes of a file are in use: what totals cannot say, worked out only for files that are to be changed.

Resident claims and pins come from the ledger, swapped ones from the claim tables of the swap files that hold shares of
the file, and all of them through the relocations that lead into it. Nothing dead comes back to life, so what is found
here may shrink afterwards but never grow, but for claims that change between memory and swap files: `covers` sees to
those, under the ledger's lock.

    lock: versions, totals | claims, swap files | lock: versions | ... | lock: `covers`, the change is promised

Totals have chosen the file, and authorise nothing: where its claims do not add up to them, or runs say something else
of it than memory, nobody can say what is dead, and the file is left as it is.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ullage.engine.byteranges import ByteRange, find_move, gaps, merged, unpack_ranges, without
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births
from ullage.engine.ledger.resources import Residents, ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import ContentClaim, Relocation
from ullage.errors import RepositoryDamaged

TRIES = 3
"""Reads of a file's claims without the ledger's lock, after which it is held for one."""

TABLES_KEPT = 64
"""Claim tables of swap files kept in memory: some 60 MB, and a run over a swapped queue reads each file once."""


class Survivor(NamedTuple):
    """A base claim in use, and where in the file it lies."""

    offset: int
    claim: ContentClaim


class Liveness(NamedTuple):
    """The base claims in use in one file, by offset. `births` are the resource claims that they belong to, with the
    offsets of the claims there; `swaps` the swap files that were read for it. While the entries of the births have
    these `versions`, it is exact.
    """

    survivors: tuple[Survivor, ...]
    births: Mapping[int, set[int]]
    swaps: frozenset[str]
    versions: Mapping[int, int]

    @property
    def live_bytes(self) -> int:
        return sum([claim.length for _, claim in self.survivors])

    def dead_runs(self, length: int, holes: bytes) -> list[ByteRange]:
        """What nobody needs of a file of this length, without the holes it has."""
        live = merged(ByteRange(survivor.offset, survivor.claim.length) for survivor in self.survivors)
        known = merged(unpack_ranges(holes))
        return [rest for gap in gaps(live, length) for rest in without(gap, known)]


class _Look(NamedTuple):
    """A resource claim under the ledger's lock, before its claims are read without it."""

    entry: ResourceEntry
    version: int
    live_bytes: int
    relocation: Relocation | None
    swaps: frozenset[str]
    pinned: tuple[ContentClaim, ...]


class KnownResidents(NamedTuple):
    """Where the last of a resource claim's resident claims ended at a version of its entry."""

    version: int
    end: int


class LivenessScanner:
    """Finds out; keeps the claim tables of the swap files it has read, which never change."""

    def __init__(
        self, ledger: Ledger, read_swap: Callable[[str], SwapContent], difference: Callable[[int], str]
    ) -> None:
        """`difference` says in which way runs say something else of a resource claim than the ledger; empty: none."""
        self._ledger = ledger
        self._read_swap = read_swap
        self._difference = difference
        self._tables: OrderedDict[str, dict[int, list[ContentClaim]]] = OrderedDict()
        self._lock = threading.Lock()

    def examine(self, index: int) -> Liveness | None:
        """The liveness of a resource claim's file; None if there is none any more.

        RepositoryDamaged if a swap file cannot be read, or claims do not add up to what is kept as their total: then
        nobody can say what is dead.
        """
        tables: dict[str, dict[int, list[ContentClaim]]] = {}
        tries = 0
        while True:
            with self._ledger.lock:
                looks = self._looks(index)
                if looks is None:
                    return None
                # Where commits do not let up, the copy costs them a moment.
                held = [each.entry.residents() for each in looks] if tries == TRIES else None
            names = frozenset(name for each in looks for name in each.swaps)
            # Read without the lock, which a system call must not hold; then looked at again, since FlowFiles may have
            # moved.
            if unread := names - tables.keys():
                tables |= {name: self._table(name) for name in unread}
                continue
            if held is None:
                held = [each.entry.residents() for each in looks]
                with self._ledger.lock:
                    is_same = looks == self._looks(index)
                if not is_same:
                    tries += 1
                    continue
            return _liveness(looks, held, {name: tables[name] for name in names})

    def require_undisputed(self, index: int) -> None:
        """RepositoryDamaged if handles in runs claim something else of a resource claim's file than memory knows: what
        gives some of it back asks this first, whatever it then finds to be dead.
        """
        with self._ledger.lock:
            entry = self._ledger.entry(index)
            found = () if entry is None else births(self._ledger, entry)
            indexes = {index, *(birth.claim.index for birth in found)}
        for each in sorted(indexes):
            if said := self._difference(each):
                raise RepositoryDamaged(said)

    def residents(self, index: int) -> KnownResidents | None:
        """What lives in memory of a resource claim's own claims, in whatever file they lie; None if there is none.

        RepositoryDamaged where they do not add up to their total.
        """
        entry = self._ledger.entry(index)
        if entry is None:
            return None
        with self._ledger.lock:
            look = _look(entry)
        found = entry.residents()
        with self._ledger.lock:
            if look.version != entry.version:
                look, found = _look(entry), entry.residents()
        _require_total(look, found)
        return KnownResidents(look.version, found.end)

    def _looks(self, index: int) -> list[_Look] | None:
        """Called under the ledger's lock."""
        entry = self._ledger.entry(index)
        return None if entry is None else [_look(birth) for birth in births(self._ledger, entry)]

    def examine_if_known(self, index: int) -> Liveness | None:
        """The same; None too where a swap file cannot be read, which a rewrite reports and `check` finds."""
        try:
            return self.examine(index)
        except RepositoryDamaged:
            return None

    def _table(self, name: str) -> dict[int, list[ContentClaim]]:
        with self._lock:
            table = self._tables.get(name)
        if table is None:
            try:
                content = self._read_swap(name)
                if content.set_aside:
                    raise RepositoryDamaged(f"{len(content.set_aside)} records of swap file {name} can't be used")
                records = content.records
            except Exception:
                with self._ledger.lock:
                    if name in self._ledger.swaps:
                        raise
                return {}  # swapped in, and its file gone, since we looked: its claims are resident now
            table = {}
            for claim in {record.claim for record in records if record.claim is not None}:
                table.setdefault(claim.resource, []).append(claim)
            with self._lock:
                self._tables[name] = table
                if len(self._tables) > TABLES_KEPT:
                    self._tables.popitem(last=False)
        return table


def covers(ledger: Ledger, entry: ResourceEntry, liveness: Liveness) -> bool:
    """Whether the liveness still names every base claim in use; called under the ledger's lock."""
    return all(
        (covered := liveness.births.get(birth.claim.index)) is not None
        and (
            liveness.versions[birth.claim.index] == birth.version
            or (birth.is_within(covered) and liveness.swaps.issuperset(birth.swapped or ()))
        )
        for birth in births(ledger, entry)
    )


def _look(entry: ResourceEntry) -> _Look:
    pinned = tuple([pin.claim for pin in (entry.pins or {}).values()])
    return _Look(entry, entry.version, entry.live_bytes, entry.relocation, frozenset(entry.swapped or ()), pinned)


def _require_total(look: _Look, found: Residents) -> None:
    if found.bytes != look.live_bytes:
        raise RepositoryDamaged(
            f"resource claim {look.entry.claim.index}: claims of {found.bytes} bytes are known to be in use, and "
            f"{look.live_bytes} is what is kept as their total: `ullage check` tells more"
        )


def _liveness(
    looks: Sequence[_Look], held: Sequence[Residents], tables: Mapping[str, Mapping[int, list[ContentClaim]]]
) -> Liveness:
    claims: dict[int, list[ContentClaim]] = {}
    for look, found in zip(looks, held, strict=True):
        _require_total(look, found)
        index = look.entry.claim.index
        claims[index] = [*found.claims, *look.pinned]
        for table in tables.values():
            claims[index] += table.get(index, ())
    ordered = _in_order(claims, {look.entry.claim.index: look.relocation for look in looks})
    offsets: dict[int, set[int]] = {index: set() for index in claims}
    for _, claim in ordered:
        offsets[claim.resource].add(claim.offset)
    for look, found in zip(looks, held, strict=True):
        index = look.entry.claim.index
        if lost := {claim.offset for claim in (*found.claims, *look.pinned)} - offsets[index]:
            raise RepositoryDamaged(f"resource claim {index} was moved, and its content at offset {min(lost)} was not")
    versions = {look.entry.claim.index: look.version for look in looks}
    return Liveness(ordered, offsets, frozenset(tables), versions)


def _in_order(
    claims: Mapping[int, Iterable[ContentClaim]], relocations: Mapping[int, Relocation | None]
) -> tuple[Survivor, ...]:
    placed: dict[int, ContentClaim] = {}
    for resource, held in claims.items():
        placed.update(_placed(held, relocations[resource]))
    return tuple([Survivor(offset, placed[offset]) for offset in sorted(placed)])


def _placed(claims: Iterable[ContentClaim], relocation: Relocation | None) -> dict[int, ContentClaim]:
    """Where in the file they lie."""
    if relocation is None:
        return {claim.offset: claim for claim in claims}
    found = ((find_move(relocation.moves, claim.offset), claim) for claim in claims)
    # Of a swap file's claims some may have died before the rewrite.
    return {move.target + claim.offset - move.offset: claim for move, claim in found if move is not None}
