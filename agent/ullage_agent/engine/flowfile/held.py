"""What leases hold back from reclamation, worked out once for many files."""

from collections.abc import Collection
from typing import NamedTuple

from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.placement import births
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action, Lease


class Held(NamedTuple):
    """`resources` are leased by name; `since` is the oldest leased snapshot, 0 if there is none; of `passed` somebody
    may still have descriptors.
    """

    resources: frozenset[int]
    since: int
    passed: frozenset[int]

    def refuses(self, ledger: Ledger, entry: ResourceEntry, action: Action) -> bool:
        """Whether a lease forbids this change of a file; called under the ledger's lock.

        A snapshot holds back what died after it; of what was dead before, or born later, it knows nothing.
        """
        if action == Action.ARCHIVE or not (self.resources or self.since or self.passed):
            return False
        indexes = {entry.claim.index, *(birth.claim.index for birth in births(ledger, entry))}
        if not self.resources.isdisjoint(indexes):
            return True
        if action in (Action.TRUNCATE, Action.PUNCH) and not self.passed.isdisjoint(indexes):
            return True
        return bool(self.since) and any(birth.last_death > self.since for birth in births(ledger, entry))


NOTHING_HELD = Held(frozenset(), 0, frozenset())


def held_by(leases: Collection[Lease], now_millis: int) -> Held:
    """What stands now."""
    standing = [lease for lease in leases if lease.expires_millis > now_millis]
    return Held(
        frozenset(index for lease in standing for index in lease.resources),
        min((lease.transaction for lease in standing if not lease.resources), default=0),
        frozenset(index for lease in leases if lease.holds_files for index in lease.resources),
    )
