"""What handles that rest in runs keep alive of each resource claim, as totals: beside the claims themselves, which are
all in memory still, and compared with the runs by `check`.

    handles leave memory for a run -> more | one comes back, to be changed -> less | runs are merged: the same

They stand for all runs together, since a handle is in one of them. Like all totals they choose and never authorise.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from ullage.engine.model import ContentClaim
from ullage.engine.packs import ClaimRow

SETTLED_AT_ONCE = 1_000
"""Resource claims whose shares are raised while everybody waits: half a millisecond."""


class ColdShare(msgspec.Struct, frozen=True, gc=False):
    """Of one resource claim. `claimed_bytes` are those of all claimants: what several share counts for each. No claim
    reaches beyond `end`, and when the last that did so has left, it stays.
    """

    claimants: int
    claimed_bytes: int
    end: int


NO_SHARE = ColdShare(0, 0, 0)

Tally = dict[int, list[int]]
"""Shares that are being counted: the same fields by resource claim."""


def count_in(tally: Tally, claims: Iterable[ClaimRow | None]) -> None:
    """Count these."""
    for claim in claims:
        if claim is not None:
            resource, offset, length, _ = claim
            share = tally.setdefault(resource, [0, 0, 0])
            share[0] += 1
            share[1] += length
            share[2] = max(share[2], offset + length)


class ColdShares:
    """By resource claim. Changed under the ledger's lock."""

    def __init__(self) -> None:
        self._shares: dict[int, ColdShare] = {}
        self._is_settling = False
        """Whether handles have left memory that are not counted yet."""

    def begin_settling(self) -> None:
        """Handles are about to leave memory one by one; `settle` counts them all."""
        self._is_settling = True

    def settle(self, tally: Tally) -> bool:
        """Count so many of these as may be at once, which are taken out; whether they were the last."""
        for resource in [*islice(tally, SETTLED_AT_ONCE)]:
            claimants, claimed_bytes, end = tally.pop(resource)
            self._raise(resource, claimants, claimed_bytes, end)
        self._is_settling = bool(tally)
        return not tally

    def lower(self, claim: ContentClaim) -> None:
        """One of its claimants rests no more; where it is not counted yet, the share is too low until it is."""
        self._raise(claim.resource, -1, -claim.length, 0)

    def _raise(self, resource: int, claimants: int, claimed_bytes: int, end: int) -> None:
        before = self._shares.get(resource, NO_SHARE)
        share = ColdShare(before.claimants + claimants, before.claimed_bytes + claimed_bytes, max(before.end, end))
        if share.claimants or share.claimed_bytes:
            self._shares[resource] = share
        else:
            self._shares.pop(resource, None)

    def moment(self) -> Mapping[int, ColdShare] | None:
        """All of them as they are now; None: some handles are not counted yet."""
        return None if self._is_settling else dict(self._shares)


def wrong_shares(shares: Mapping[int, ColdShare], found: Tally) -> Iterable[str]:
    """Where they are not what the handles in runs say, as of the same moment."""
    for resource in sorted(shares.keys() | found.keys()):
        share, (claimants, claimed_bytes, end) = shares.get(resource, NO_SHARE), found.get(resource, [0, 0, 0])
        if (share.claimants, share.claimed_bytes) != (claimants, claimed_bytes) or share.end < end:
            yield (
                f"resource claim {resource}: {share.claimants} handles in runs are counted, of {share.claimed_bytes} "
                f"bytes up to {share.end}; there are {claimants}, of {claimed_bytes} bytes up to {end}"
            )
