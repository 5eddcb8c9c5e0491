"""What the disk holds, live and dead: read from the ledger's totals, without opening a file.

Costs one step a resource claim; exact ends are worked out only where there is enough dead space to matter.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ullage_agent.engine.content.containers import Container, Usage
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action, ContentClaim, FlowFile
from ullage_agent.engine.reclaim.orphans import Orphan


class ResourceFigures(NamedTuple):
    """One resource claim. `end_in_use` is the end of its last live or pinned base claim."""

    resource: int
    container: str
    length: int
    live_bytes: int
    end_in_use: int
    claimants: int
    generation: int
    is_sealed: bool
    is_free: bool
    has_intent: bool
    archived_millis: int
    last_death_millis: int

    @property
    def dead_tail_bytes(self) -> int:
        return max(0, self.length - self.end_in_use)


class ContainerFigures(NamedTuple):
    """One container's totals, in bytes. `disk` is content that is neither archived nor only kept for an undelete:
    live and dead. What tombstones keep (`tombstone_bytes`) stands apart, as the archive does.
    """

    name: str
    path: str
    resource_claims: int
    disk_bytes: int
    live_bytes: int
    dead_tail_bytes: int
    free_bytes: int
    archived_claims: int
    archived_bytes: int
    tombstone_bytes: int
    usage: Usage

    @property
    def dead_bytes(self) -> int:
        return max(0, self.disk_bytes - self.live_bytes)


class Survey(NamedTuple):
    """A moment's figures of everything. `orphans` only where they were asked for: finding them reads directories."""

    millis: int
    resources: tuple[ResourceFigures, ...]
    containers: tuple[ContainerFigures, ...]
    orphans: tuple[Orphan, ...] = ()


def take_survey(
    ledger: Ledger,
    containers: Iterable[Container],
    millis: int,
    lengths: dict[int, int] | None = None,
    tombstones: Iterable[FlowFile] = (),
) -> Survey:
    """Survey the ledger. `lengths` gives the present length of resource claims that are still being written,
    `tombstones` the deleted handles whose retention lasts.
    """
    kept = _tombstoned(ledger, tombstones)
    resources = tuple(_figures(ledger, entry, lengths or {}) for entry in ledger.entries())
    by_container: dict[str, list[ResourceFigures]] = {}
    for figures in resources:
        by_container.setdefault(figures.container, []).append(figures)
    return Survey(
        millis,
        resources,
        tuple(_total(container, by_container.get(container.name, []), kept) for container in containers),
    )


def _figures(ledger: Ledger, entry: ResourceEntry, lengths: dict[int, int]) -> ResourceFigures:
    with ledger.lock:
        claim = entry.claim
        length = claim.length if claim.sealed else max(claim.length, lengths.get(claim.index, 0))
        live_bytes = entry.bytes_live
        # No dead tail can be longer than what is not live, so a full file needs no look at its claims.
        # (Bytes that resident and swapped FlowFiles share count twice, so with swap files it tells nothing.)
        end = length if live_bytes >= length and entry.swapped is None else entry.end_in_use()
        return ResourceFigures(
            claim.index,
            claim.container,
            length,
            live_bytes,
            end,
            entry.claimants,
            claim.generation,
            claim.sealed,
            entry.is_free,
            claim.intent != Action.NONE,
            claim.archived_millis,
            entry.last_death_millis,
        )


def _tombstoned(ledger: Ledger, tombstones: Iterable[FlowFile]) -> dict[int, int]:
    """Bytes of base claims that tombstones alone keep, by resource claim."""
    holders: dict[ContentClaim, int] = {}
    for record in tombstones:
        if record.claim is not None:
            holders[record.claim] = holders.get(record.claim, 0) + 1
    kept: dict[int, int] = {}
    with ledger.lock:
        for claim, count in holders.items():
            entry = ledger.entry(claim.resource)
            if entry is not None and claim.offset in entry.live and (entry.shared or {}).get(claim.offset, 1) == count:
                kept[claim.resource] = kept.get(claim.resource, 0) + claim.length
    return kept


def _total(container: Container, resources: list[ResourceFigures], kept: dict[int, int]) -> ContainerFigures:
    present = [figures for figures in resources if not figures.archived_millis]
    archived = [figures for figures in resources if figures.archived_millis]
    tombstone_bytes = sum(kept.get(figures.resource, 0) for figures in present)
    return ContainerFigures(
        container.name,
        container.path,
        len(present),
        sum(figures.length for figures in present) - tombstone_bytes,
        sum(figures.live_bytes for figures in present) - tombstone_bytes,
        sum(figures.dead_tail_bytes for figures in present if not figures.is_free),
        sum(figures.length for figures in present if figures.is_free),
        len(archived),
        sum(figures.length for figures in archived),
        tombstone_bytes,
        container.usage(),
    )
