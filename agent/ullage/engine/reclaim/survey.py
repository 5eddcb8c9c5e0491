"""What the disk holds, live and dead: read from the ledger's totals, without opening a file.

Costs one step a resource claim; exact ends are worked out only where there is enough dead space to matter. Figures are
`gc=False`: the collector would stop all threads to look at hundreds of thousands of them, over and over.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ullage.engine.byteranges import ByteRange, allocated_bytes, pack_ranges, unpack_ranges
from ullage.engine.content.containers import HERE, Container, Usage, VolumeCondition
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births, end_in_use
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, ContentClaim, FlowFileRecord, Lifetime


class ResourceFigures(msgspec.Struct, frozen=True, gc=False):
    """One resource claim's file, with all that lies in it: of an output also what rewrites moved there.

    `end_in_use` is the end of the last live or pinned base claim. `allocated_bytes` is what the file takes on disk: its
    whole blocks without its `holes`. `output` is above 0 where a rewrite has moved everything away: then there is no
    file, and only `is_free` still says something. `dead_runs` are known for files that are worth a look.
    """

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
    allocated_bytes: int = 0
    created_millis: int = 0
    lifetime: int = Lifetime.DEFAULT
    holes: bytes = b""
    output: int = 0
    is_proved: bool = True
    dead_runs: tuple[ByteRange, ...] = ()
    tenant: str = ""

    @property
    def dead_tail_bytes(self) -> int:
        return max(0, self.length - self.end_in_use)

    @property
    def dead_bytes(self) -> int:
        return max(0, self.allocated_bytes - self.live_bytes)

    @property
    def is_changeable(self) -> bool:
        """A file in which something lives, and that nobody writes, has to prove, keeps in the archive or has promised
        to change.
        """
        is_file = self.is_sealed and self.is_proved and not self.archived_millis and not self.output
        return is_file and not self.is_free and not self.has_intent

    def frees_when_cut(self, length: int) -> int:
        """Bytes of disk that truncation to this length gives back."""
        kept = [run for run in unpack_ranges(self.holes) if run.end <= length]
        return self.allocated_bytes - allocated_bytes(length, pack_ranges(kept))


class ContainerFigures(NamedTuple):
    """One container's totals, in bytes. `disk` is blocks of content that is neither archived nor only kept
    for an undelete: live and dead. What tombstones keep (`tombstone_bytes`) stands apart, as the archive does.
    `records` are all resource claims that name it: one that `evacuates` may be taken away when there are none.
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
    evacuates: bool = False
    records: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    condition: VolumeCondition = HERE

    @property
    def dead_bytes(self) -> int:
        return max(0, self.disk_bytes - self.live_bytes)


class SpaceSurvey(NamedTuple):
    """A moment's figures of everything; of orphans those of the last look, since finding them reads directories."""

    millis: int
    resources: tuple[ResourceFigures, ...]
    containers: tuple[ContainerFigures, ...]
    tombstoned: Mapping[int, tuple[int, int]] = {}
    """Of each file that deleted handles keep bytes of: how many, and when the last of them was deleted."""

    @property
    def evacuated(self) -> frozenset[str]:
        """The containers that are to be emptied."""
        return frozenset(container.name for container in self.containers if container.evacuates)


def take_survey(
    ledger: Ledger,
    containers: Iterable[Container],
    millis: int,
    lengths: dict[int, int],
    tombstones: Iterable[FlowFileRecord],
    orphans: Mapping[str, tuple[int, int]],
) -> SpaceSurvey:
    """Survey the ledger. `lengths` gives the present length of resource claims that are still being written,
    `tombstones` the deleted handles whose retention lasts, `orphans` how many files without a record each container
    has, and their bytes.
    """
    kept = _tombstoned(ledger, tombstones)
    resources = tuple(figures_of(ledger, lengths))
    by_container: dict[str, list[ResourceFigures]] = {}
    for figures in resources:
        by_container.setdefault(figures.container, []).append(figures)
    return SpaceSurvey(
        millis,
        resources,
        tuple(
            _total(container, by_container.get(container.name, []), kept, orphans.get(container.name, (0, 0)))
            for container in containers
        ),
        kept,
    )


def figures_of(ledger: Ledger, lengths: dict[int, int]) -> Iterator[ResourceFigures]:
    """The figures of every resource claim, each of its own moment."""
    return (_figures(ledger, entry, lengths) for entry in ledger.entries())


def _figures(ledger: Ledger, entry: ResourceEntry, lengths: dict[int, int]) -> ResourceFigures:
    with ledger.lock:
        claim = entry.claim
        is_moved = entry.relocation is not None
        found = list(births(ledger, entry)) if entry.sources else [] if is_moved else [entry]
        length = claim.length if claim.sealed else max(claim.length, lengths.get(claim.index, 0))
        live_bytes = sum(birth.bytes_live for birth in found)
        # No dead tail can be longer than what is not live, so a full file needs no look at its claims.
        # (Bytes that resident and swapped FlowFiles share count twice, so with swap files it tells nothing.)
        is_full = live_bytes >= length and not any(birth.swapped for birth in found)
        return ResourceFigures(
            claim.index,
            claim.container,
            length,
            live_bytes,
            length if is_full else end_in_use(ledger, entry),
            sum(birth.claimants for birth in found),
            claim.generation,
            claim.sealed,
            entry.is_free if is_moved else all(birth.is_free for birth in found),
            claim.intent != Action.NONE,
            claim.archived_millis,
            max((birth.last_death_millis for birth in found), default=entry.last_death_millis),
            allocated_bytes(length, claim.holes),
            claim.created_millis,
            claim.lifetime,
            claim.holes,
            entry.relocation.output if entry.relocation is not None else 0,
            not claim.unproved,
            tenant=claim.tenant,
        )


def _tombstoned(ledger: Ledger, tombstones: Iterable[FlowFileRecord]) -> dict[int, tuple[int, int]]:
    """Bytes of base claims that tombstones alone keep, and when the last was deleted, by resource claim."""
    holders: dict[ContentClaim, tuple[int, int]] = {}
    for record in tombstones:
        if record.claim is not None:
            count, deleted = holders.get(record.claim, (0, 0))
            holders[record.claim] = count + 1, max(deleted, record.deleted_millis)
    kept: dict[int, tuple[int, int]] = {}
    with ledger.lock:
        for claim, (count, deleted) in holders.items():
            entry = ledger.entry(claim.resource)
            if entry is not None and claim.offset in entry.live and (entry.shared or {}).get(claim.offset, 1) == count:
                file = entry.relocation.output if entry.relocation is not None else claim.resource
                before, last = kept.get(file, (0, 0))
                kept[file] = before + claim.length, max(last, deleted)
    return kept


def _total(
    container: Container,
    resources: list[ResourceFigures],
    kept: Mapping[int, tuple[int, int]],
    orphans: tuple[int, int],
) -> ContainerFigures:
    present = [figures for figures in resources if not figures.archived_millis and not figures.output]
    archived = [figures for figures in resources if figures.archived_millis]
    tombstone_bytes = sum(kept.get(figures.resource, (0, 0))[0] for figures in present)
    return ContainerFigures(
        container.name,
        container.path,
        len(present),
        sum(figures.allocated_bytes for figures in present) - tombstone_bytes,
        sum(figures.live_bytes for figures in present) - tombstone_bytes,
        sum(
            figures.frees_when_cut(figures.end_in_use)
            for figures in present
            if figures.dead_tail_bytes and not figures.is_free
        ),
        sum(figures.allocated_bytes for figures in present if figures.is_free),
        len(archived),
        sum(figures.allocated_bytes for figures in archived),
        tombstone_bytes,
        container.usage(),
        container.evacuates,
        len(resources),
        *orphans,
        container.condition,
    )
