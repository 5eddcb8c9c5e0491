"""The survey, kept up to date by differences: what changed since the last one is looked at, the rest is known.

The ledger notes each resource claim whose figures a transaction or a pin may have changed. A survey works out the
figures of these anew, takes the old ones out of their container's totals and the new ones in. So it costs what changed,
not what there is, and what may give nothing is in no plan's way. *Totals choose, they never authorise*: what
reclamation does is derived from the ledger again, under its lock, and `problems` finds what is out of date.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ullage.engine.content.containers import Container
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births, settle_bound
from ullage.engine.ledger.state import SHARDS
from ullage.engine.model import ContentClaim, FlowFileRecord, ResourceClaim
from ullage.engine.reclaim.survey import (
    ContainerFigures,
    ContainerTotals,
    ResourceFigures,
    SpaceSurvey,
    Tombstones,
    figures_of,
)

NOTHING = Tombstones(0, 0, 0)
"""What tombstones keep of nearly every file."""

Kept = ResourceFigures | ResourceClaim
"""What is known of a resource claim: its figures, or, where all bytes of its file live, its record, which costs nothing
because the ledger has it.
"""


TombstonesIn = Callable[[int], Iterable[FlowFileRecord]]
"""The deleted handles that keep their bytes, of those whose content was written to a resource claim."""


class Surveyor:
    """What is known of all resource claims of a ledger. Thread-safe; the only one who takes the ledger's notes."""

    def __init__(self, ledger: Ledger, tombstones_in: TombstonesIn) -> None:
        self._ledger = ledger
        self._tombstones_in = tombstones_in
        self._lock = threading.Lock()
        self._kept: list[dict[int, Kept]] = []
        self._giving: dict[int, ResourceFigures] = {}
        self._tombstoned: dict[int, Tombstones] = {}
        self._totals: defaultdict[str, ContainerTotals] = defaultdict(ContainerTotals)
        self._open: frozenset[int] = frozenset()

    def survey(
        self,
        containers: Collection[Container],
        millis: int,
        lengths: Mapping[int, int],
        orphans: Mapping[str, tuple[int, int]],
    ) -> SpaceSurvey:
        """What there is now, each resource claim's figures of a moment of their own. `lengths` gives the present length
        of those that are still being written, `orphans` how many files without a record each container has, and their
        bytes.
        """
        evacuated = {container.name for container in containers if container.evacuates}
        with self._lock:
            self._refresh(lengths)
            resources, tombstoned = tuple(self._giving.values()), dict(self._tombstoned)
            found = tuple(_container_figures(each, self._totals[each.name], orphans) for each in containers)
        if evacuated:
            everything = self.figures(self._ledger.indexes(0), lengths)
            resources = tuple(one for one in everything if one.may_give or one.container in evacuated)
        return SpaceSurvey(millis, resources, found, tombstoned)

    def figures(self, indexes: Iterable[int], lengths: Mapping[int, int]) -> Iterator[ResourceFigures]:
        """The figures of these resource claims, where they are there: each of its own moment, and worked out anew."""
        for index in indexes:
            self._settle_bound(index)
            with self._ledger.lock:
                entry = self._ledger.entry(index)
                found = None if entry is None else figures_of(self._ledger, entry, lengths)
            if found is not None:
                yield found

    def problems(self, lengths: Mapping[int, int]) -> list[str]:
        """Figures and totals that are not what they should be; afterwards they are. For `check`."""
        with self._lock:
            problems = list(self._stale()) if self._kept else []
            self._refresh(lengths)
            totals: defaultdict[str, ContainerTotals] = defaultdict(ContainerTotals)
            for shard in self._kept:
                for index, kept in shard.items():
                    _count(totals, kept, self._tombstoned.get(index, NOTHING), 1)
            problems += [
                f"the totals of container {name} are {self._totals[name]}, and should be {totals[name]}"
                for name in sorted(totals.keys() | self._totals.keys())
                if totals[name] != self._totals[name]
            ]
            if problems:
                self._kept = []  # all anew, the next time
        return problems

    def _stale(self) -> Iterator[str]:
        """What is neither noted as changed nor right. Files that are being written are looked at each time."""
        known = {index for shard in self._kept for index in shard}
        present = set(self._ledger.indexes(0))
        for index in sorted(known | present):
            with self._ledger.lock:
                if self._ledger.is_changed(index) or index in self._open:
                    continue
                now = self._known_of(index, {}), self._tombstones_of(index)
            kept = self._kept[index % SHARDS].get(index), self._tombstoned.get(index, NOTHING)
            if kept != now:
                yield f"of resource claim {index} the survey knows {kept}, and it should know {now}"

    def _refresh(self, lengths: Mapping[int, int]) -> None:
        """Look at what may have changed; called with the lock held."""
        try:
            changed = self._ledger.take_changed()
            if changed is None or not self._kept:
                self._kept = [{} for _ in range(SHARDS)]
                self._giving.clear()
                self._tombstoned.clear()
                self._totals.clear()
                changed = set(self._ledger.indexes(0))
            for index in changed | lengths.keys() | self._open:
                self._look_at(index, lengths)
        except BaseException:
            self._ledger.forget_changed()  # what was noted is taken, and not used
            raise
        self._open = frozenset(lengths)

    def _settle_bound(self, index: int) -> None:
        entry = self._ledger.entry(index)
        if entry is not None:
            settle_bound(self._ledger, entry)

    def _look_at(self, index: int, lengths: Mapping[int, int]) -> None:
        self._settle_bound(index)
        with self._ledger.lock:
            now, tombstoned = self._known_of(index, lengths), self._tombstones_of(index)
        shard = self._kept[index % SHARDS]
        before, tombstoned_before = shard.pop(index, None), self._tombstoned.pop(index, NOTHING)
        self._giving.pop(index, None)
        if before is not None:
            _count(self._totals, before, tombstoned_before, -1)
        if now is not None:
            shard[index] = now
            if tombstoned != NOTHING:
                self._tombstoned[index] = tombstoned
            _count(self._totals, now, tombstoned, 1)
            if isinstance(now, ResourceFigures) and now.may_give:
                self._giving[index] = now

    def _known_of(self, index: int, lengths: Mapping[int, int]) -> Kept | None:
        """What is to be known of a resource claim; called under the ledger's lock."""
        entry = self._ledger.entry(index)
        if entry is None:
            return None
        found = figures_of(self._ledger, entry, lengths)
        is_full = found.length == found.live_bytes == entry.claim.length
        return found if found.may_give or found.output or not is_full else entry.claim

    def _tombstones_of(self, index: int) -> Tombstones:
        """What tombstones alone keep of a file; called under the ledger's lock."""
        entry = self._ledger.entry(index)
        found = NOTHING
        for birth in () if entry is None else births(self._ledger, entry):
            holders: dict[ContentClaim, tuple[int, int]] = {}
            for record in self._tombstones_in(birth.claim.index):
                if record.claim is not None:
                    number, deleted = holders.get(record.claim, (0, 0))
                    holders[record.claim] = number + 1, max(deleted, record.deleted_millis)
            for claim, (number, deleted) in holders.items():
                if birth.claimants_of(claim.offset) == number:
                    first = min(found.first_millis or deleted, deleted)
                    found = Tombstones(found.bytes + claim.length, first, max(found.last_millis, deleted))
        return found


def _count(totals: defaultdict[str, ContainerTotals], kept: Kept, tombstoned: Tombstones, sign: int) -> None:
    found = totals[kept.container]
    if isinstance(kept, ResourceFigures):
        found.count(kept, sign)
    else:
        found.count_full(kept, sign)
    if not kept.archived_millis:
        found.tombstone_bytes += sign * tombstoned.bytes


def _container_figures(
    container: Container, totals: ContainerTotals, orphans: Mapping[str, tuple[int, int]]
) -> ContainerFigures:
    return ContainerFigures(
        container.name,
        container.path,
        totals.present,
        totals.allocated_bytes - totals.tombstone_bytes,
        totals.live_bytes - totals.tombstone_bytes,
        totals.dead_tail_bytes,
        totals.free_bytes,
        totals.archived,
        totals.archived_bytes,
        totals.tombstone_bytes,
        container.usage(),
        container.evacuates,
        totals.records,
        *orphans.get(container.name, (0, 0)),
        container.condition,
    )
