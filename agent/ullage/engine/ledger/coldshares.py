"""What handles that rest in runs keep alive of each resource claim, as totals: beside the claims themselves, which are
all in memory still, and compared with the runs by `check`.

    handles are about to leave memory for a run -> more | one comes back, to be changed, or stays -> less
    runs are merged -> the same

They stand for all runs together, since a handle is in one of them. Like all totals they choose and never authorise.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from ullage.engine.model import ContentClaim, RestingShares
from ullage.engine.packs import ClaimRow

SETTLED_AT_ONCE = 1_000
"""Resource claims whose shares are raised while everybody waits: half a millisecond."""

SHARE_SHARDS = 256
"""A checkpoint copies one of them at a time under the ledger's lock: of a million resource claims four thousand."""

SHARES_IN_RECORD = 1_000
"""Of a snapshot: 32 KB, so that no record is large beside the others."""

WRONG_MAX = 10
"""Wrong totals that are named."""

SHARE = struct.Struct("<QQQQ")
"""One in a snapshot: the resource claim and the fields of its share."""

RUN_NUMBER = struct.Struct("<Q")
"""One of those whose handles were counted."""


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

    def __init__(self, changed: Callable[[int], object]) -> None:
        """`changed` is told of each resource claim whose share is another one now."""
        self._changed = changed
        self._shards: list[dict[int, ColdShare]] = [{} for _ in range(SHARE_SHARDS)]
        self._is_settling = False
        """Whether handles are counted that may be in memory still."""

        self._before: list[dict[int, ColdShare]] | None = None
        """Since a checkpoint began: what has changed, as it was."""

    def begin_settling(self) -> None:
        """Handles are about to leave memory one by one, and `settle` to count them all."""
        self._is_settling = True

    def end_settling(self) -> None:
        """They have."""
        self._is_settling = False

    def settle(self, tally: Tally) -> bool:
        """Count so many of these as may be at once, which are taken out; whether they were the last."""
        for resource in [*islice(tally, SETTLED_AT_ONCE)]:
            claimants, claimed_bytes, end = tally.pop(resource)
            self._raise(resource, claimants, claimed_bytes, end)
        return not tally

    def lower(self, claim: ContentClaim) -> None:
        """One of its claimants rests no more, or was to and does not."""
        self._raise(claim.resource, -1, -claim.length, 0)

    def of(self, resource: int) -> ColdShare:
        """That of one resource claim."""
        return self._shards[resource % SHARE_SHARDS].get(resource, NO_SHARE)

    def _raise(self, resource: int, claimants: int, claimed_bytes: int, end: int) -> None:
        shard, before = self._shards[resource % SHARE_SHARDS], self.of(resource)
        if self._before is not None:
            self._before[resource % SHARE_SHARDS].setdefault(resource, before)
        share = ColdShare(before.claimants + claimants, before.claimed_bytes + claimed_bytes, max(before.end, end))
        if share.claimants or share.claimed_bytes:
            shard[resource] = share
        else:
            shard.pop(resource, None)
        self._changed(resource)

    @property
    def is_settled(self) -> bool:
        """Whether all that are counted have left memory."""
        return not self._is_settling

    def moment(self) -> Mapping[int, ColdShare] | None:
        """All of them as they are now; None: some handles that are counted may be in memory still."""
        return None if self._is_settling else {key: share for shard in self._shards for key, share in shard.items()}

    def freeze(self) -> bool:
        """Keep all as they are now for `frozen`, until `release`; False: as `moment` says it with None."""
        # A copy of each that changes, and not of all: a million at once is a tenth of a second, in which commits wait.
        self._before = [{} for _ in range(SHARE_SHARDS)]
        return not self._is_settling

    def frozen(self, shard: int) -> dict[int, ColdShare]:
        """One shard as it was at `freeze`."""
        assert self._before is not None, "nobody has asked for them to be kept"
        return {**self._shards[shard], **self._before[shard]}

    def release(self) -> None:
        """Nobody asks for what was any more."""
        self._before = None


class SaidShares(NamedTuple):
    """What a snapshot says of the handles in its runs: how far their places in queues reach at most, and their shares
    by resource claim.
    """

    queued_max: int
    shares: Iterator[tuple[int, ColdShare]]


def shares_of(listed: Collection[RestingShares], runs: Collection[int]) -> SaidShares | None:
    """What a snapshot says that lists these runs; None: some of it, or all, is not there, or it says so of others."""
    said = sum(len(each.shares) // SHARE.size for each in listed)
    lasts = [each for each in listed if each.runs]
    # A record that lists a run may have been set aside: then they stand for handles that this start does not know.
    if len(lasts) != 1 or lasts[0].count != said or lasts[0].runs != packed_numbers(runs):
        return None
    shares = (
        (resource, ColdShare(claimants, claimed_bytes, end))
        for each in listed
        for resource, claimants, claimed_bytes, end in SHARE.iter_unpack(each.shares)
    )
    return SaidShares(lasts[0].queued, shares)


def packed_numbers(runs: Collection[int]) -> bytes:
    """Which runs there are, for a record of a snapshot."""
    return b"".join(map(RUN_NUMBER.pack, sorted(runs)))


def packed_shares(shares: Mapping[int, ColdShare]) -> list[bytes]:
    """Shares for records of a snapshot, so many in each as it may hold."""
    found = [SHARE.pack(resource, *astuple(share)) for resource, share in sorted(shares.items()) if share != NO_SHARE]
    return [b"".join(found[at : at + SHARES_IN_RECORD]) for at in range(0, len(found), SHARES_IN_RECORD)]


def listed_shares(
    shares: ColdShares, tally: Tally, lock: AbstractContextManager[Any], last: RestingShares
) -> Iterator[list[RestingShares]]:
    """What all handles keep alive that a snapshot lists in runs: those of its moment, at which `freeze` was called
    and whose changes `lock` guards, and those of the tally, which it moves there. The `last` record says how many, too.
    """
    coming: list[Tally] = [{} for _ in range(SHARE_SHARDS)]
    for resource, share in tally.items():
        coming[resource % SHARE_SHARDS][resource] = share
    count = 0
    for number, more in enumerate(coming):
        with lock:
            found = shares.frozen(number)
        for resource, (claimants, claimed_bytes, end) in more.items():
            before = found.get(resource, NO_SHARE)
            both = before.claimants + claimants, before.claimed_bytes + claimed_bytes
            found[resource] = ColdShare(*both, max(before.end, end))
        for packed in packed_shares(found):
            count += len(packed) // SHARE.size
            yield [RestingShares(0, packed)]
    yield [msgspec.structs.replace(last, count=count)]


def wrong_said(said: Iterable[tuple[int, ColdShare]], counted: ColdShares) -> list[str]:
    """Where a snapshot says others than were counted; no more than a few are named."""
    wrong: list[str] = []
    count = 0
    for resource, share in said:
        count += 1
        found = counted.of(resource)
        if len(wrong) < WRONG_MAX:
            wrong += wrong_shares({resource: share}, {resource: [found.claimants, found.claimed_bytes, found.end]})
    there = len(counted.moment() or ())
    if count < there:
        wrong.append(f"handles in runs keep {there} resource claims alive, and {count} are said to be")
    return wrong


def wrong_shares(shares: Mapping[int, ColdShare], found: Tally) -> Iterable[str]:
    """Where they are not what the handles in runs say, as of the same moment."""
    for resource in sorted(shares.keys() | found.keys()):
        share, (claimants, claimed_bytes, end) = shares.get(resource, NO_SHARE), found.get(resource, [0, 0, 0])
        if (share.claimants, share.claimed_bytes) != (claimants, claimed_bytes) or share.end < end:
            yield (
                f"resource claim {resource}: {share.claimants} handles in runs are counted, of {share.claimed_bytes} "
                f"bytes up to {share.end}; there are {claimants}, of {claimed_bytes} bytes up to {end}"
            )
