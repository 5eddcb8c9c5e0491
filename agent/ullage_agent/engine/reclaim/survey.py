"""What the disk holds, live and dead: read from the ledger's totals, without opening a file.

Costs one step a resource claim; exact ends are worked out only where there is enough dead space to matter.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ullage_agent.engine.content.containers import Container, Usage
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action
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
    """One container's totals, in bytes. `disk` is all content that is not archived: live and dead."""

    name: str
    path: str
    resource_claims: int
    disk_bytes: int
    live_bytes: int
    dead_tail_bytes: int
    free_bytes: int
    archived_claims: int
    archived_bytes: int
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
    ledger: Ledger, containers: Iterable[Container], millis: int, lengths: dict[int, int] | None = None
) -> Survey:
    """Survey the ledger. `lengths` gives the present length of resource claims that are still being written."""
    resources = tuple(_figures(ledger, entry, lengths or {}) for entry in ledger.entries())
    by_container: dict[str, list[ResourceFigures]] = {}
    for figures in resources:
        by_container.setdefault(figures.container, []).append(figures)
    return Survey(
        millis,
        resources,
        tuple(_total(container, by_container.get(container.name, [])) for container in containers),
    )


def _figures(ledger: Ledger, entry: ResourceEntry, lengths: dict[int, int]) -> ResourceFigures:
    with ledger.lock:
        claim = entry.claim
        length = claim.length if claim.sealed else max(claim.length, lengths.get(claim.index, 0))
        live_bytes = entry.bytes_live
        # No dead tail can be longer than what is not live, so a full file needs no look at its claims.
        end = length if live_bytes >= length else entry.end_in_use()
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


def _total(container: Container, resources: list[ResourceFigures]) -> ContainerFigures:
    present = [figures for figures in resources if not figures.archived_millis]
    archived = [figures for figures in resources if figures.archived_millis]
    return ContainerFigures(
        container.name,
        container.path,
        len(present),
        sum(figures.length for figures in present),
        sum(figures.live_bytes for figures in present),
        sum(figures.dead_tail_bytes for figures in present if not figures.is_free),
        sum(figures.length for figures in present if figures.is_free),
        len(archived),
        sum(figures.length for figures in archived),
        container.usage(),
    )
