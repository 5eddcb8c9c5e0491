"""What the disk holds, live and dead: read from the ledger's totals, without opening a file.

What is alive is known in sum, and as a bound of how far it reaches; which bytes of a file are, whoever changes it finds
out. Figures are `gc=False`: the collector would
stop all threads to look at hundreds of thousands of them, over and over.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ullage.engine.byteranges import ByteRange, allocated_bytes, pack_ranges, unpack_ranges
from ullage.engine.content.containers import HERE, Usage, VolumeCondition
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births, end_bound
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, Lifetime, ResourceClaim


class ResourceFigures(msgspec.Struct, frozen=True, gc=False):
    """One resource claim's file, with all that lies in it: of an output also what rewrites moved there.

    `end_in_use` is where the last live or pinned base claim ends, or ended when something died while it was looked for.
    `allocated_bytes` is what the file takes on disk: its whole blocks without its `holes`. `output` is above 0 where a
    rewrite has moved everything away: then there is no file, and only `is_free` still says something. `dead_runs` are
    known for files that are worth a look.
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
    def may_give(self) -> bool:
        """Whether a block may come back from it, or it is in the archive: what plans look at. What only the last block
        of a file is rounded up by is dead as well, and nearly every file has some.
        """
        has_dead_block = self.dead_tail_bytes > 0 or self.allocated_bytes > allocated_bytes(self.live_bytes)
        return has_dead_block or self.is_free or self.archived_millis > 0

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
    `records` are all resource claims that name it: one that `evacuates` may be taken away when there are none. `held`
    are files that are gone from their directories and that somebody has open: `disk` too.
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
    held_bytes: int = 0

    @property
    def dead_bytes(self) -> int:
        return max(0, self.disk_bytes - self.live_bytes)


class Tombstones(NamedTuple):
    """Bytes of base claims in a file that deleted handles alone keep, and when the first content of these was let go
    by its last handle, and the last.
    """

    bytes: int
    first_millis: int
    last_millis: int


class SpaceSurvey(NamedTuple):
    """A moment's figures of all containers, and of the `resources` that plans are about: those that `may_give`, and all
    in a container that is to be emptied. Of orphans those of the last look, since finding them reads directories.
    """

    millis: int
    resources: tuple[ResourceFigures, ...]
    containers: tuple[ContainerFigures, ...]
    tombstoned: Mapping[int, Tombstones] = {}
    """What deleted handles keep, by file."""

    @property
    def evacuated(self) -> frozenset[str]:
        """The containers that are to be emptied."""
        return frozenset(container.name for container in self.containers if container.evacuates)


class ContainerTotals(msgspec.Struct):
    """What adds up to a container's figures, without what others know of it. `records` are all resource claims."""

    records: int = 0
    present: int = 0
    allocated_bytes: int = 0
    live_bytes: int = 0
    dead_tail_bytes: int = 0
    free_bytes: int = 0
    archived: int = 0
    archived_bytes: int = 0
    tombstone_bytes: int = 0

    def count_full(self, claim: ResourceClaim, sign: int) -> None:
        """The same of a file all of whose bytes live."""
        self.records += sign
        self.present += sign
        self.allocated_bytes += sign * allocated_bytes(claim.length, claim.holes)
        self.live_bytes += sign * claim.length

    def count(self, figures: ResourceFigures, sign: int) -> None:
        """Take a resource claim in (1), or out as it was taken in (-1)."""
        self.records += sign
        if figures.archived_millis:
            self.archived += sign
            self.archived_bytes += sign * figures.allocated_bytes
        elif not figures.output:
            self.present += sign
            self.allocated_bytes += sign * figures.allocated_bytes
            self.live_bytes += sign * figures.live_bytes
            if figures.is_free:
                self.free_bytes += sign * figures.allocated_bytes
            elif figures.dead_tail_bytes:
                self.dead_tail_bytes += sign * figures.frees_when_cut(figures.end_in_use)


def figures_of(ledger: Ledger, entry: ResourceEntry, lengths: Mapping[int, int]) -> ResourceFigures:
    """The figures of a resource claim; called under the ledger's lock. `lengths` gives the present length of those that
    are still being written.
    """
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
        length if is_full else end_bound(ledger, entry),
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
