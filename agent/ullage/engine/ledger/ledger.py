"""The ledger: which FlowFiles exist, and what they keep alive.

One function, `apply`, gives every operation its meaning: in a running repository, at recovery, and for the blocks of
a snapshot. Claimant counts change nowhere else, which is what NIFI-15732, 15913 and 16098 lacked: there, several
places counted, and clones, arrivals and in-session removals each went through one that did it differently.

A checkpoint copies records a shard at a time (`LedgerView`): a writer that is about to change a shard which the view
has not copied yet copies it first. No pause grows with the repository.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from ullage.engine.batches import require_readable
from ullage.engine.byteranges import end_of_moves
from ullage.engine.ledger.aside import set_aside
from ullage.engine.ledger.coldaccess import ColdAccess
from ullage.engine.ledger.resources import RESOURCE, ResourceEntry, require_runs
from ullage.engine.ledger.state import SHARDS, SwapContent, unknown_record, unknown_swap
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import (
    BLOCK_BYTES,
    HANDLE_QUEUE,
    Action,
    Answer,
    ClaimBlocks,
    ContentClaim,
    Delete,
    FlowFileRecord,
    HandlePack,
    IndexCeiling,
    LeaseEnd,
    LeaseRecord,
    Operation,
    QueueDefinition,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    RestingShares,
    RunFile,
    SetAside,
    SetAsideEnd,
    Staged,
    StagedWrite,
    SwapDrop,
    SwapIn,
    SwapOut,
    SwapShare,
    TransactionEvents,
    Undrained,
    Update,
    format_uuid,
    split_uuids,
)
from ullage.engine.packs import records_of, rows_of
from ullage.engine.updates import updated
from ullage.errors import ClaimGone, FlowFileNotFound, RepositoryDamaged

_REFERRING = frozenset({Update, Delete, SwapOut, SwapIn, SwapDrop})
"""Operations on what exists already."""


class Ledger(ColdAccess):
    """All committed state, and what each operation does to it."""

    def __init__(self, read_swap: Callable[[str], SwapContent]) -> None:
        super().__init__()
        self._read_swap = read_swap
        self._apply: dict[type, Callable[..., None]] = {
            Delete: self._delete,
            QueueDefinition: self._define_queue,
            ResourceClaim: self._set_resource,
            ResourceClaimGone: self._forget_resource,
            ClaimBlocks: self._set_blocks,
            IndexCeiling: self._raise_ceiling,
            Relocation: self._relocate,
            LeaseRecord: self._set_lease,
            LeaseEnd: self._end_lease,
            Answer: self._remember,
            RunFile: self._list_run,
            RestingShares: lambda listed, *_: self.cold.list_shares(listed),
            StagedWrite: self._set_write,
            Staged: self._stage,
            SwapOut: self._swap_out,
            SwapIn: self._swap_in,
            SwapDrop: self._swap_drop,
            SetAside: self._set_aside,
            SetAsideEnd: self._end_set_aside,
            HandlePack: self._put_back,
        }

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        """Take a transaction in. RepositoryDamaged: it refers to something that does not exist."""
        self.end_loading()
        self._take(transaction, millis, operations)

    def _take(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        with self.lock:
            # One hold of the lock for all of it, or readers would see half a transaction. Batches are runs of one
            # kind, which is looked up once.
            for kind, run in groupby(operations, type):
                if kind is FlowFileRecord:
                    self._create(run)  # type: ignore[arg-type]
                elif kind is TransactionEvents or kind is Undrained:
                    continue  # they tell of operations, and change nothing
                elif kind is Update:
                    self._update(run, transaction, millis)  # type: ignore[arg-type]
                else:
                    for operation in run:
                        self._apply[kind](operation, transaction, millis)

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        """FlowFileNotFound if a transaction changes, removes or swaps what does not exist.

        A caller's mistake then fails one commit; written to the log, it would fail every start from then on.
        """
        if _REFERRING.isdisjoint(map(type, operations)):
            return
        with self.lock:
            for operation in operations:
                kind = type(operation)
                if kind is Update:
                    uuid = operation.uuid  # type: ignore[union-attr]
                    if uuid not in self.records:
                        self._require_created(uuid, operations)
                elif kind is Delete or kind is SwapOut:
                    for uuid in split_uuids(operation.uuids):  # type: ignore[union-attr]
                        if uuid not in self.records:
                            self._require_created(uuid, operations)
                elif (kind is SwapIn or kind is SwapDrop) and operation.name not in self.swaps:  # type: ignore[union-attr]
                    raise FlowFileNotFound(f"swap file {operation.name} is in no queue")  # type: ignore[union-attr]

    def _require_created(self, uuid: bytes, operations: Sequence[Operation]) -> None:
        if not any(type(other) is FlowFileRecord and other.uuid == uuid for other in operations):
            raise FlowFileNotFound(f"FlowFile {format_uuid(uuid)} does not exist: nothing was written")

    def load(self, operations: Sequence[Operation]) -> None:
        """Take in one block of a snapshot: the same operations, as of transaction 0."""
        with self._loading():
            self._take(0, 0, operations)
        self.records.note_loaded(sum(type(each) is not HandlePack for each in operations))

    def freeze(self) -> "LedgerView":
        """A stable view of this moment, to be released; costs the same however many records there are."""
        self.end_loading()
        with self.lock:
            assert self._view is None, "two checkpoints at a time"
            self._view = LedgerView(self)
            return self._view

    def release(self) -> None:
        """Drop the view."""
        with self.lock:
            self._view = None
            self.cold.shares.release()

    def pin(self, claims: Iterable[ContentClaim]) -> None:
        """Keep base claims readable until `unpin`. ClaimGone, nothing pinned, if one is neither live nor pinned."""
        claims = list(claims)
        with self.lock:
            self._require_usable(claims)
            for claim in claims:
                entry = self._entry_of(claim)
                self.note_changed(entry)  # first: a signal in between leaves one note too many, not one too few
                entry.pin([claim])

    def unpin(self, claims: Iterable[ContentClaim]) -> None:
        """Give pins back."""
        with self.lock:
            for resource, group in groupby(claims, RESOURCE):
                entry = self.entry(resource)
                if entry is not None:
                    some = list(group)
                    self.note_changed(entry)
                    entry.unpin(some)
                    for claim in entry.not_resident(some):
                        self._drop_blocks(entry, claim)
                        # It died while it was pinned, and that death was noted in vain: nothing else would say that it
                        # is free now.
                        self.released.setdefault(resource, 0)

    def require_usable(self, claims: Iterable[ContentClaim]) -> None:
        """ClaimGone unless every base claim is live or pinned: checked again right before a commit takes its id."""
        with self.lock:
            self._require_usable(claims)

    def _require_usable(self, claims: Iterable[ContentClaim]) -> None:
        for claim in claims:
            entry = self.entry(claim.resource)
            if entry is None or not entry.uses(claim):
                raise ClaimGone(
                    f"content claim at offset {claim.offset} of resource claim {claim.resource} has no claimant left "
                    "and may be reclaimed at any time"
                )

    def _entry_of(self, claim: ContentClaim) -> ResourceEntry:
        entry = self.resources[claim.resource % SHARDS].get(claim.resource)
        if entry is None:
            raise RepositoryDamaged(
                f"a FlowFile names resource claim {claim.resource} (offset {claim.offset}), unknown to the ledger"
            )
        return entry

    def _create(self, records: Iterable[FlowFileRecord]) -> None:
        """New FlowFiles. A batch lies in one resource claim, whose entry is looked up once: this is the hot loop."""
        resident, shards = self.records, self.records.objects
        view = self._view
        resource = -1
        entry: ResourceEntry | None = None
        for record in records:
            uuid = record.uuid
            number = uuid[0]
            if view is not None:
                view.keep_flow_files(number)
            claim = record.claim
            if claim is not None and (entry is None or claim.resource != resource):
                entry = self._entry_of(claim)
                self.note_changed(entry)
                resource = claim.resource
                if record.queue == HANDLE_QUEUE and not self._is_loading:
                    self._unpacked.add(resource)
            # One look-up instead of two. Among packed ones only what comes back is looked for: a uuid that was made
            # just now is none of theirs.
            is_packed = resident.is_starting and resident.is_packed(uuid)
            if is_packed or shards[number].setdefault(uuid, record) is not record:
                raise RepositoryDamaged(f"FlowFile {record.id} is created twice")
            if claim is not None:
                entry.add(claim)  # type: ignore[union-attr]  # looked up above

    def _put_back(self, pack: HandlePack, transaction: int, millis: int) -> None:
        """What `_create` does of each of its handles, of all at once."""
        if not self._is_loading:
            raise RepositoryDamaged(f"transaction {transaction} brings handles in a pack, as only a snapshot does")
        rows = rows_of(pack)
        require_readable(rows.attributes, set(rows.parents))
        if not self.records.put_back(pack, rows):
            self._create(records_of(pack))
        else:
            self._take_claims(rows.claims)

    def _update(self, updates: Iterable[Update], transaction: int, millis: int) -> None:
        view = self._view
        for update in updates:
            uuid = update.uuid
            if view is not None:
                view.keep_flow_files(uuid[0])
            record = self._started_with(uuid)
            if record is None:
                raise unknown_record(uuid, transaction)
            changed = updated(record, update)
            content = update.content
            if content is not None:
                # The new claimant first: content that is set to a slice of itself must not die on the way.
                if content.claim is not None:
                    entry = self._entry_of(content.claim)
                    self.note_changed(entry)
                    entry.add(content.claim)
                if record.claim is not None:
                    self._release_claim(record.claim, transaction, millis)
            elif update.deleted_millis is not None and record.claim is not None:
                self.note_changed(self._entry_of(record.claim))  # what a tombstone keeps stands apart
            self.records.replace(changed)

    def _delete(self, operation: Delete, transaction: int, millis: int) -> None:
        for record in self._take_out(operation.uuids, transaction):
            if record.claim is not None:
                self._release_claim(record.claim, transaction, millis)

    def _take_out(self, uuids: bytes, transaction: int) -> Iterator[FlowFileRecord]:
        """Remove records one by one; what becomes of their claims is the caller's."""
        for uuid in split_uuids(uuids):
            if self._view is not None:
                self._view.keep_flow_files(uuid[0])
            record = self.records.remove(uuid)
            if record is None and self._started_with(uuid) is not None:
                record = self.records.remove(uuid)
            if record is None:
                raise unknown_record(uuid, transaction)
            yield record

    def _release_claim(self, claim: ContentClaim, transaction: int, millis: int) -> None:
        """One claimant less; the last one's end is a death, and the resource claim a candidate for reclamation."""
        entry = self._entry_of(claim)
        self.note_changed(entry)
        if self._view is not None:
            self._view.keep_resources(claim.resource % SHARDS)
        if entry.remove(claim):
            entry.last_death_millis = max(entry.last_death_millis, millis)
            entry.last_death = transaction
            self._drop_blocks(entry, claim)
            self.released[claim.resource] = transaction

    def _drop_blocks(self, entry: ResourceEntry, claim: ContentClaim) -> None:
        """Forget a claim's block CRCs, which went with its last claimant, unless a pin still reads by them.

        What a swap file holds of the resource claim may be this claim too: then they go with the resource claim.
        """
        if claim.length > BLOCK_BYTES and not entry.swapped and not entry.uses(claim):
            self.blocks.delete((claim.resource, claim.offset))

    def _define_queue(self, operation: QueueDefinition, transaction: int, millis: int) -> None:
        self.queues[operation.number] = operation

    def _set_resource(self, operation: ResourceClaim, transaction: int, millis: int) -> None:
        shard = operation.index % SHARDS
        if self._view is not None:
            self._view.keep_resources(shard)
        entry = self.resources[shard].get(operation.index)
        require_runs(operation, transaction)
        if entry is None:
            entry = self.resources[shard][operation.index] = ResourceEntry(operation)
            if self._is_loading:
                entry.begin_loading()
            self.index_ceiling = max(self.index_ceiling, operation.index)
        else:
            if transaction:
                operation = msgspec.structs.replace(operation, changed=transaction)
            entry.claim = operation
            # A seal that was encoded before a death, and applied after it, must not take the death back.
            entry.last_death = max(entry.last_death, operation.last_death)
            entry.last_death_millis = max(entry.last_death_millis, operation.last_death_millis)
        if operation.intent == Action.NONE:
            self.intended.discard(operation.index)
        else:
            self.intended.add(operation.index)
        self.note_changed(entry)

    def _forget_resource(self, operation: ResourceClaimGone, transaction: int, millis: int) -> None:
        shard = operation.index % SHARDS
        if self._view is not None:
            self._view.keep_resources(shard)
        entry = self.entry(operation.index)
        # What lives would lose its address: better no start than one that forgets it.
        if entry is not None and (entry.has_residents or entry.swapped or entry.sources):
            raise RepositoryDamaged(
                f"transaction {transaction} forgets resource claim {operation.index} with {entry.claimants} claimants"
                f" and the content of {len(entry.sources or ())} other resource claims"
            )
        self.resources[shard].pop(operation.index, None)
        self.intended.discard(operation.index)
        if entry is not None:
            self.note_changed(entry)
            if entry.relocation is not None:
                self._leave_output(operation.index, entry.relocation)
        self.released.pop(operation.index, None)

    def _relocate(self, operation: Relocation, transaction: int, millis: int) -> None:
        """From here on reads find the source's claims in the output. One attribute changes: no reader sees half."""
        entry, output = self.entry(operation.source), self.entry(operation.output)
        if entry is None or output is None or entry is output or output.relocation is not None:
            raise RepositoryDamaged(
                f"transaction {transaction} moves resource claim {operation.source} into {operation.output}: one of "
                "the two is not there"
            )
        try:
            relocated_end = end_of_moves(operation.moves)
        except ValueError as error:
            raise RepositoryDamaged(
                f"transaction {transaction} moves resource claim {operation.source}, but {error}"
            ) from error
        if self._view is not None:
            self._view.keep_resources(operation.source % SHARDS)
        before = entry.relocation
        if output.sources is None:
            output.sources = set()
        # Before the line that leads readers there: a run on the output must know whose bytes it holds.
        output.sources.add(operation.source)
        entry.relocated_end = relocated_end
        entry.relocation = msgspec.structs.replace(operation, transaction=transaction) if transaction else operation
        self.note_changed(entry)
        if before is not None and before.output != operation.output:
            self._leave_output(operation.source, before)

    def _set_lease(self, operation: LeaseRecord, transaction: int, millis: int) -> None:
        if not operation.transaction:
            operation = msgspec.structs.replace(operation, transaction=transaction)
        self.leases[operation.id] = operation

    def _end_lease(self, operation: LeaseEnd, transaction: int, millis: int) -> None:
        self.leases.pop(operation.id, None)

    def _remember(self, operation: Answer, transaction: int, millis: int) -> None:
        self.answers.add(operation, transaction)

    def _set_write(self, operation: StagedWrite, transaction: int, millis: int) -> None:
        self.writes.set(operation)

    def _stage(self, operation: Staged, transaction: int, millis: int) -> None:
        if not self.writes.add(operation):
            raise RepositoryDamaged(
                f"transaction {transaction} stages contents of write {format_uuid(operation.write)}, which is unknown"
            )

    def _list_run(self, listed: RunFile, *when: int) -> None:
        # start: reads block, counts X | log, by who could not read it: given up | X is free: deleted | who needs X?
        self._delete(Delete(b"".join(self._read_after_all(listed))), *when)
        self.list_run(listed)

    def _leave_output(self, source: int, relocation: Relocation) -> None:
        output = self.entry(relocation.output)
        if output is not None and output.sources is not None:
            self.note_changed(output)
            output.sources.discard(source)
            if not output.sources:
                output.sources = None

    def _set_blocks(self, operation: ClaimBlocks, transaction: int, millis: int) -> None:
        self.blocks.set((operation.resource, operation.offset), operation.crcs)

    def _raise_ceiling(self, operation: IndexCeiling, transaction: int, millis: int) -> None:
        self.index_ceiling = max(self.index_ceiling, operation.ceiling)

    def _swap_out(self, operation: SwapOut, transaction: int, millis: int) -> None:
        """FlowFiles move from memory to a file: claimants change place, nothing dies."""
        for share in operation.shares:
            if self.entry(share.resource) is None:
                raise RepositoryDamaged(
                    f"swap file {operation.name} names resource claim {share.resource}, which the ledger does not know"
                )
        for record in self._take_out(operation.uuids, transaction):
            if record.claim is not None:
                self._move_out(record.claim)
        for share in operation.shares:
            entry = self.resources[share.resource % SHARDS][share.resource]
            if entry.swapped is None:
                entry.swapped = {}
            entry.swapped[operation.name] = share
            self.note_changed(entry)
        # The file has the uuids; 160 kB of them for each would undo what swapping saves.
        self.swaps[operation.name] = msgspec.structs.replace(operation, uuids=b"")

    def _move_out(self, claim: ContentClaim) -> None:
        """One resident claimant less, which a swap file's share counts from now on."""
        entry = self._entry_of(claim)
        if self._view is not None:
            self._view.keep_resources(claim.resource % SHARDS)
        entry.remove(claim)

    def _swap_in(self, operation: SwapIn, transaction: int, millis: int) -> None:
        if operation.name not in self.swaps:
            raise unknown_swap(operation.name, transaction)
        content = self.swap_contents.pop(operation.name, None)
        if content is None:
            # Only at a restart: a running repository has read the file before its commit (`swapping_in`).
            content = self._read_swap(operation.name)
        self.swapped_in.add(operation.name)
        once = {record.uuid: record for record in content.records}.values()
        usable = [record for record in once if self._can_create(record)]
        self._create(usable)
        for aside in content.set_aside:
            self.set_aside.add(aside)
        for record in content.records if len(usable) < len(content.records) else ():
            # By identity: of two with the same uuid one is there.
            if self.find(record.uuid) is not record:
                reason = "another FlowFile has its uuid, or its resource claim is unknown"
                self.set_aside.add(set_aside(msgspec.msgpack.encode(record), reason, operation.name, millis, 0))
        self._retire_swap(operation.name, transaction)

    def _can_create(self, record: FlowFileRecord) -> bool:
        is_there = record.claim is None or self.entry(record.claim.resource) is not None
        return is_there and self.find(record.uuid) is None

    def _swap_drop(self, operation: SwapDrop, transaction: int, millis: int) -> None:
        for share in self._retire_swap(operation.name, transaction):
            entry = self.entry(share.resource)
            if entry is not None:
                if self._view is not None:
                    self._view.keep_resources(share.resource % SHARDS)
                entry.last_death_millis = max(entry.last_death_millis, millis)
                entry.last_death = transaction
                self.released[share.resource] = transaction

    def _set_aside(self, operation: SetAside, transaction: int, millis: int) -> None:
        self.set_aside.add(operation)

    def _end_set_aside(self, operation: SetAsideEnd, transaction: int, millis: int) -> None:
        ended = self.set_aside.end(operation.id)
        if ended is not None:
            # What died while it was held back was noted in vain.
            self.released |= dict.fromkeys(ended.resources, transaction)
            for shard in self.resources if ended.held_through else ():
                self.released |= dict.fromkeys(shard, transaction)

    def _retire_swap(self, name: str, transaction: int) -> tuple[SwapShare, ...]:
        """The file stands in no queue any more; it is kept until a published snapshot covers this transaction."""
        swap = self.swaps.pop(name, None)
        if swap is None:
            raise unknown_swap(name, transaction)
        for share in swap.shares:
            entry = self.entry(share.resource)
            if entry is not None and entry.swapped is not None:
                del entry.swapped[name]
                if not entry.swapped:
                    entry.swapped = None
                self.note_changed(entry)
        # | snapshot 7, file swapped | SwapIn 8 | file removed | power | restart reads 7, then 8: no file |
        self.retired_swaps[name] = transaction
        return swap.shares
