"""The ledger as of one moment, without what leaves memory for runs, for a checkpoint that reads it while commits go on.

Records live in 256 shards. The view copies them a shard at a time; a writer that is about to change a shard which the
view has not copied yet copies it first. No pause grows with the repository.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ullage.engine.ledger.resident import KeptRecords
from ullage.engine.ledger.state import SHARDS, LedgerState
from ullage.engine.model import FlowFileRecord, HandlePack, IndexCeiling, Operation, ResourceClaim
from ullage.engine.wal.records import BLOCK_RECORDS


class LedgerView:
    """The ledger as of the moment of `freeze`, read in blocks while commits go on."""

    def __init__(self, ledger: LedgerState) -> None:
        self._ledger = ledger
        self._flow_files: list[Sequence[list[FlowFileRecord] | HandlePack] | None] = [None] * SHARDS
        self._resources: list[list[Operation] | None] = [None] * SHARDS
        self._relocations: list[Operation] = []
        self._small: list[Operation] = [
            IndexCeiling(ledger.index_ceiling),
            *ledger.queues.values(),
            *ledger.leases.values(),
            *ledger.writes.operations(),
            *ledger.set_aside.all(),
        ]
        self._swaps: list[Operation] = list(ledger.swaps.values())
        self.cold = ledger.cold.freeze()
        self.has_shares = ledger.cold.is_whole and ledger.cold.shares.freeze()
        """Whether what cold handles keep alive is counted: `cold.shares.frozen` says it as of this moment."""

        self.unsealed: set[int] = set()
        """Of the resource claims that were handed out, those whose files were written to."""

    def keep_flow_files(self, shard: int) -> None:
        """Copy a shard of records before it changes; called under the ledger's lock."""
        if self._flow_files[shard] is None:
            self._flow_files[shard] = self._ledger.records.keep(shard)

    def keep_resources(self, shard: int) -> None:
        """Copy a shard of resource claims before it changes; called under the ledger's lock."""
        if self._resources[shard] is None:
            resources = self._ledger.resources[shard]
            if not resources:
                self._resources[shard] = []
                return
            kept: list[Operation] = [
                entry.claim
                if entry.last_death == entry.claim.last_death
                else msgspec.structs.replace(
                    entry.claim, last_death_millis=entry.last_death_millis, last_death=entry.last_death
                )
                for entry in resources.values()
            ]
            self._relocations.extend(e.relocation for e in resources.values() if e.relocation is not None)
            self._resources[shard] = kept

    def records(self) -> KeptRecords:
        """FlowFiles and handles, cold ones too, which are among the operations no more then."""
        resident = (part for shard in range(SHARDS) for part in self._take_records(shard))
        return KeptRecords([*resident, *self.cold.parts])

    def __iter__(self) -> Iterator[Sequence[Operation]]:
        """All operations but for cold handles, in an order that can be applied: what is referred to comes first."""
        yield from self.named()
        yield from self.naming()

    def named(self) -> Iterator[Sequence[Operation]]:
        """What is referred to."""
        return _blocked(self._named())

    def naming(self) -> Iterator[Sequence[Operation]]:
        """What refers to it: FlowFiles and handles in memory."""
        return _blocked(self._naming())

    def packs(self) -> Iterator[tuple[int, HandlePack]]:
        """The packs of all shards in the order of their uuids, each with its shard."""
        for shard in range(SHARDS):
            with self._ledger.lock:
                self.keep_flow_files(shard)
            for part in self._flow_files[shard] or ():
                if isinstance(part, HandlePack):
                    yield shard, part

    def keep_only(self, shard: int, pack: HandlePack, rest: HandlePack) -> None:
        """Only this is left of one of the packs."""
        self._flow_files[shard] = [rest if part is pack else part for part in self._flow_files[shard] or ()]

    def _named(self) -> Iterator[Sequence[Operation]]:
        yield self._small
        for shard in range(SHARDS):
            with self._ledger.lock:
                self.keep_resources(shard)
            # Handed out once, then let go: memory falls as the snapshot grows.
            if kept := self._resources[shard]:
                self.unsealed.update(each.index for each in kept if isinstance(each, ResourceClaim) and not each.sealed)
                yield kept
            self._resources[shard] = []
        yield self._relocations
        yield self._swaps

    def _naming(self) -> Iterator[Sequence[Operation]]:
        """Records; packs as they are, in blocks of their own that hold about as many."""
        for shard in range(SHARDS):
            packs: list[HandlePack] = []
            rows = 0
            for part in self._take_records(shard):
                if not isinstance(part, HandlePack):
                    yield part
                    continue
                if not part.size:
                    continue
                if packs and rows + part.size > BLOCK_RECORDS:
                    yield packs
                    packs, rows = [], 0
                packs.append(part)
                rows += part.size
            yield packs

    def _take_records(self, shard: int) -> Sequence[list[FlowFileRecord] | HandlePack]:
        """The records of a shard, handed out once."""
        with self._ledger.lock:
            self.keep_flow_files(shard)
        kept, self._flow_files[shard] = self._flow_files[shard], ()
        return kept or ()


def _blocked(runs: Iterable[Sequence[Operation]]) -> Iterator[Sequence[Operation]]:
    pending: list[Operation] = []
    for run in runs:
        if run and isinstance(run[0], HandlePack):
            yield run
            continue
        pending.extend(run)
        while len(pending) >= BLOCK_RECORDS:
            yield pending[:BLOCK_RECORDS]
            del pending[:BLOCK_RECORDS]
    if pending:
        yield pending
