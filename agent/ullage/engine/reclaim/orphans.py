"""Orphans: content files of transactions that never came, found and given back while the repository is open.

    killed during a put | start, serving | first look: counted | an hour after the start: adopted | archive | deleted

A killed process leaves what it had written and not committed; before this module only a person's command found it, and
two kills kept 151 MiB for good. Finding them reads every directory, so it is done once after a start, and again only
when this process itself could not remove a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ullage.engine.content.protocol import Orphan
from ullage.engine.model import ResourceClaim
from ullage.engine.reclaim.execute import ReclamationParts, charged_bytes
from ullage.engine.uninterrupted import uninterrupted

LOOK_AFTER_SECONDS = 60.0
"""How long after the start the directories are read: not while everything else begins."""

GRACE_SECONDS = 3_600.0
"""How long after the start orphans are adopted. Whoever comes to a node that crashed finds them as they were; a person
who cannot wait says `ullage clean --orphans`.
"""

ADOPTION_SLICE = 1_000
"""Orphans one transaction adopts."""


class OrphanFigures(NamedTuple):
    """The orphans of one container, as of the last look."""

    files: int
    bytes: int


class Orphans:
    """Finds and adopts; one adoption at a time (the reclaimer sees to that)."""

    def __init__(self, parts: ReclamationParts) -> None:
        self._parts = parts
        self._opened = parts.clock.monotonic()
        self._figures: dict[str, OrphanFigures] = {}
        self._seen = self._adopted = -1  # what `left_behind` said at the last look, and the last adoption

    @property
    def figures(self) -> Mapping[str, OrphanFigures]:
        """What the last look found, by container; nothing before the first one."""
        return self._figures

    @property
    def are_known(self) -> bool:
        """Whether there are no others than the last look found, as far as this process can tell."""
        return self._seen >= self._parts.content.left_behind

    @property
    def is_look_due(self) -> bool:
        """Whether there may be orphans that no look has seen."""
        is_time = self._parts.clock.monotonic() >= self._opened + LOOK_AFTER_SECONDS
        return is_time and self._seen < self._parts.content.left_behind

    @property
    def is_adoption_due(self) -> bool:
        """Whether a look has found some since the last adoption, and they have been left alone for long enough."""
        is_time = self._parts.clock.monotonic() >= self._opened + GRACE_SECONDS
        return is_time and bool(self._figures) and self._adopted < self._seen

    @property
    def adoption_millis(self) -> int:
        """When what a look has found is taken up: in milliseconds since 1970, as the clock stands now."""
        clock = self._parts.clock
        return clock.now_millis() + round((self._opened + GRACE_SECONDS - clock.monotonic()) * 1000)

    def look(self) -> list[Orphan]:
        """All that there are, for which it reads every directory."""
        left_behind = self._parts.content.left_behind  # first: one that is left behind meanwhile may not be seen
        found = self._parts.content.orphans(self._parts.ledger.claim)
        self._figures, self._seen = _figures_of(found), left_behind
        return found

    def adopt(self) -> int:
        """Take up those that are ours for certain, as sealed resource claims without claimants; how many."""
        millis = self._parts.clock.now_millis()
        found = self.look()
        aside = self._parts.ledger.set_aside
        orphans = [
            orphan
            for orphan in found
            # A record that was set aside may be what would have named it.
            if orphan.is_adoptable and not (orphan.claim is not None and aside.may_mean(orphan.claim.index))
        ]
        self._parts.content.make_durable(orphans)
        adopted = [
            msgspec.structs.replace(
                orphan.claim,
                length=orphan.length,
                sealed=True,
                generation=1,
                archived_millis=millis if orphan.is_archived else 0,
                last_death_millis=millis,
            )
            for orphan in orphans
            if orphan.claim is not None
        ]
        for first in range(0, len(adopted), ADOPTION_SLICE):
            self._take_up(adopted[first : first + ADOPTION_SLICE])
        # Those that are nobody's for certain stay, and are not looked for again: nothing would have changed.
        self._adopted = self._seen
        self._figures = _figures_of(orphan for orphan in found if not orphan.is_adoptable)
        return len(adopted)

    @uninterrupted
    def _take_up(self, claims: Sequence[ResourceClaim]) -> None:
        self._parts.committer.commit(claims, creates=False)
        for claim in claims:
            self._parts.content.container_of(claim).add_bytes(charged_bytes(claim))


def _figures_of(orphans: Iterable[Orphan]) -> dict[str, OrphanFigures]:
    figures: dict[str, OrphanFigures] = {}
    for orphan in orphans:
        files, count = figures.get(orphan.container, OrphanFigures(0, 0))
        figures[orphan.container] = OrphanFigures(files + 1, count + orphan.allocated_bytes)
    return figures
