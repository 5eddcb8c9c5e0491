"""Exactly which bytes of a file are in use: what totals cannot say, worked out only for files that are to be changed.

Resident claims and pins come from the ledger, swapped ones from the claim tables of the swap files that hold shares of
the file, and all of them through the relocations that lead into it. Nothing dead comes back to life, so what is found
here may shrink afterwards but never grow, but for claims that change between memory and swap files: `covers` sees to
those, under the ledger's lock.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ullage.engine.byteranges import ByteRange, find_move, gaps, merged, unpack_ranges, without
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import ContentClaim, Relocation
from ullage.errors import RepositoryDamaged

TABLES_KEPT = 64
"""Claim tables of swap files kept in memory: some 60 MB, and a run over a swapped queue reads each file once."""


class Survivor(NamedTuple):
    """A base claim in use, and where in the file it lies."""

    offset: int
    claim: ContentClaim


class Liveness(NamedTuple):
    """The base claims in use in one file, by offset. `births` are the resource claims that they belong to, with the
    offsets of the claims there; `swaps` the swap files that were read for it.
    """

    survivors: tuple[Survivor, ...]
    births: Mapping[int, set[int]]
    swaps: frozenset[str]

    @property
    def live_bytes(self) -> int:
        return sum([claim.length for _, claim in self.survivors])

    def dead_runs(self, length: int, holes: bytes) -> list[ByteRange]:
        """What nobody needs of a file of this length, without the holes it has."""
        live = merged(ByteRange(survivor.offset, survivor.claim.length) for survivor in self.survivors)
        known = merged(unpack_ranges(holes))
        return [rest for gap in gaps(live, length) for rest in without(gap, known)]


class LivenessScanner:
    """Finds out; keeps the claim tables of the swap files it has read, which never change."""

    def __init__(self, ledger: Ledger, read_swap: Callable[[str], SwapContent]) -> None:
        self._ledger = ledger
        self._read_swap = read_swap
        self._tables: OrderedDict[str, dict[int, list[ContentClaim]]] = OrderedDict()
        self._lock = threading.Lock()

    def examine(self, index: int) -> Liveness | None:
        """The liveness of a resource claim's file; None if there is none any more.

        RepositoryDamaged if a swap file cannot be read: then nobody can say what is dead.
        """
        tables: dict[str, dict[int, list[ContentClaim]]] = {}
        while True:
            claims: dict[int, list[ContentClaim]] = {}
            relocations: dict[int, Relocation | None] = {}
            names: set[str] = set()
            with self._ledger.lock:
                entry = self._ledger.entry(index)
                if entry is None:
                    return None
                for birth in births(self._ledger, entry):
                    claims[birth.claim.index] = _resident(birth)
                    relocations[birth.claim.index] = birth.relocation
                    names.update(birth.swapped or ())
            # Read without the lock, which a system call must not hold; then looked at again, since FlowFiles may have
            # moved.
            unread = names - tables.keys()
            if not unread:
                break
            for name in unread:
                tables[name] = self._table(name)
        for name in names:
            for resource, held in tables[name].items():
                if resource in claims:
                    claims[resource].extend(held)
        ordered = _in_order(claims, relocations)
        offsets: dict[int, set[int]] = {resource: set() for resource in claims}
        for _, claim in ordered:
            offsets[claim.resource].add(claim.offset)
        return Liveness(ordered, offsets, frozenset(names))

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
        and birth.live.keys() <= covered
        and (birth.pins or {}).keys() <= covered
        and liveness.swaps.issuperset(birth.swapped or ())
        for birth in births(ledger, entry)
    )


def _resident(entry: ResourceEntry) -> list[ContentClaim]:
    claims = list(entry.live.values())
    claims.extend(pin.claim for offset, pin in (entry.pins or {}).items() if offset not in entry.live)
    return claims


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
