"""Restoring record by record: what can't be used is set aside, with its bytes and the reason, and all else comes back.

Only after a restore that took everything whole has met such a record: this one looks at each record by itself, which
costs several times as much. The snapshot that follows carries what was set aside, so that the next start is ordinary.

    written by a version that took more than it can read | killed | start: RecordUnusable | start over, carefully
    -> snapshot with `SetAside` records | serving

A record that was set aside must not make others wrong: every FlowFile that it names goes with it, and whatever it may
point at counts as in use (ledger/aside.py). One that is right, and could not be used because a block of handles could
not be read, waits for a start that reads it (`waiting.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from ullage.contract import QueuePriority
from ullage.engine.ledger.aside import named_by, set_aside
from ullage.engine.ledger.coldhandles import Unread
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import end_in_use, lost_by_move
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    Action,
    ContentClaim,
    Delete,
    FlowFileRecord,
    IndexCeiling,
    Operation,
    QueueDefinition,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    SetAside,
    SwapIn,
    SwapOut,
    TransactionEvents,
    Undrained,
    Update,
    format_uuid,
    split_uuids,
)
from ullage.engine.recovery import takes_what_lives
from ullage.engine.repositories import ProvenanceRepository
from ullage.engine.usable import require_usable
from ullage.engine.waiting import WaitingRecords
from ullage.engine.wal.serde import SerDe, Undecodable
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import RepositoryDamaged

CEILING_JUMP = 1 << 32
"""How far indexes of resource claims go on where the record that says how far they went can't be used: farther than a
node comes in its life, so that none is given twice.
"""

_CEILING_TAG = b"\x08"
"""Of `IndexCeiling`, behind the head of its array."""


class CarefulRestore:
    """For one restore. `is_container` says whether a container of this name belongs to the repository."""

    def __init__(
        self, ledger: Ledger, provenance: ProvenanceRepository, serde: SerDe, is_container: Callable[[str], bool]
    ) -> None:
        self._ledger = ledger
        self._provenance = provenance
        self._serde = serde
        self._is_container = is_container
        self._aside: set[bytes] = set()
        self._place = ""
        self._transaction = self._millis = 0

    def take(self, transaction: int, millis: int, found: Sequence[Operation | Undecodable], place: str) -> None:
        """Take in what can be used of a transaction or, as transaction 0, of a block of a snapshot."""
        self._transaction, self._millis = transaction, millis
        usable: list[Operation] = []
        for number, each in enumerate(found):
            self._place = f"record {number} of {place}"
            if isinstance(each, Undecodable):
                self._put_aside(each.data, each.reason)
            elif not isinstance(each, TransactionEvents | Undrained):
                for part in self._parts(each):
                    self._take_one(part)
                usable.append(each)
            else:
                usable.append(each)
        for number, each in enumerate(found):
            if isinstance(each, TransactionEvents | Undrained):
                self._place = f"record {number} of {place}"
                # Events tell of operations by number, so that one that is missing leaves them without a meaning.
                self._tell(each, usable if len(usable) == len(found) or isinstance(each, Undrained) else None)

    def finish(self) -> None:
        """Once everything is taken in: what only shows from the whole."""
        self._place = "the state of all records together"
        numbers = {record.queue for record in self._ledger.flow_files()}
        numbers |= {swap.queue for swap in self._ledger.swaps.values()}
        numbers |= {write.record.queue for write in self._ledger.writes.pending.values()}
        staged = {uuid for write in self._ledger.writes.pending.values() for uuid in write.all_staged()}
        for record in list(self._ledger.flow_files()):
            if record.queue == STAGED_QUEUE and record.uuid not in staged:
                self._put_aside(self._serde.encode_operation(record), "no staged write has stored it")
        for number in sorted(numbers - self._ledger.queues.keys() - {HANDLE_QUEUE, STAGED_QUEUE}):
            self._ledger.apply(0, 0, [self._placeholder(number)])

    def break_promises(self, claims: Iterable[ResourceClaim]) -> None:
        """These promise to take away what lives: the promises are set aside, the files stay as they are."""
        self._place = "the state of all records together"
        for claim in claims:
            data = self._serde.encode_operation(claim)
            self._put_aside(data, "it promises to take away content that is in use", self._lacking(claim))
            kept = msgspec.structs.replace(claim, intent=Action.NONE, intent_length=0, intent_holes=b"")
            self._ledger.apply(0, 0, [kept])

    def retry(self, transaction: int, millis: int) -> bool:
        """See `WaitingRecords.take`; of a restore that is not careful, too."""
        return WaitingRecords(self._ledger, self._serde, self._require_fitting).take(transaction, millis)

    def _parts(self, operation: Operation) -> Iterator[Operation]:
        """The operation, or those of which it consists as far as FlowFiles that are there are concerned."""
        if isinstance(operation, Delete) or (isinstance(operation, SwapOut) and operation.uuids):
            uuids = list(split_uuids(operation.uuids))
            known = dict.fromkeys(uuid for uuid in uuids if self._is_known(uuid))
            if 0 < len(known) < len(uuids):
                yield msgspec.structs.replace(operation, uuids=b"".join(known))
                yield Delete(b"".join(uuid for uuid in uuids if uuid not in known))
                return
        yield operation

    def _find(self, uuid: bytes) -> FlowFileRecord | None:
        with suppress(RepositoryDamaged):  # of a handle that may be in a block that cannot be read nothing is known
            return self._ledger.find_any(uuid)
        return None

    def _is_known(self, uuid: bytes) -> bool:
        return self._find(uuid) is not None

    def _take_one(self, operation: Operation) -> None:
        try:
            require_usable([operation])
            self._require_fitting(operation)
            self._ledger.apply(self._transaction, self._millis, [operation])
            if isinstance(operation, SetAside):
                self._aside.update(split_uuids(operation.uuids))
        except UNUSABLE as error:
            if isinstance(operation, SwapIn) and operation.name in self._ledger.swaps:
                raise  # its file is missing or damaged: of its FlowFiles later records speak, which would all be lost
            self._put_aside(self._serde.encode_operation(operation), str(error), self._lacking(operation))

    def _lacking(self, operation: Operation) -> list[Unread]:
        """What cannot be read, and would say whether an operation can be used."""
        cold = self._ledger.cold
        if isinstance(operation, ResourceClaim | ResourceClaimGone):
            return cold.unread
        if isinstance(operation, Update):
            return cold.unread_with(operation.uuid)
        uuids = set(split_uuids(operation.uuids)) if isinstance(operation, Delete) else ()
        return sorted({each for uuid in uuids for each in cold.unread_with(uuid)}, key=str)

    def _require_fitting(self, operation: Operation) -> None:
        """ValueError for what the ledger takes in, and others can't use."""
        if isinstance(operation, QueueDefinition):
            self._require_own_name(operation)
        elif isinstance(operation, ResourceClaimGone):
            if self._ledger.set_aside.is_holding_unread:
                raise ValueError("handles that cannot be read may name it")
        elif isinstance(operation, ResourceClaim):
            self._require_harmless(operation)
        elif isinstance(operation, FlowFileRecord):
            self._require_inside(operation.claim)
        elif isinstance(operation, Update) and operation.content is not None:
            self._require_inside(operation.content.claim)
        elif isinstance(operation, Relocation):
            lost = lost_by_move(self._ledger, operation.source, operation)
            if lost is not None:
                raise ValueError(f"it leaves content at offset {lost}, which is in use, without a place")

    def _require_own_name(self, queue: QueueDefinition) -> None:
        for other in self._ledger.queues.values():
            if other.name == queue.name and other.number != queue.number:
                raise ValueError(f"queue number {other.number} has the name {queue.name!r} already")

    def _require_harmless(self, resource: ResourceClaim) -> None:
        if not self._is_container(resource.container):
            raise ValueError(f"there is no container {resource.container!r}")
        entry = self._ledger.entry(resource.index)
        if entry is None:
            return
        if entry.relocation is None and resource.sealed:
            self._require_room(resource, end_in_use(self._ledger, entry))
        if takes_what_lives(self._ledger, entry, resource):
            raise ValueError("it promises to take away content that is in use")

    def _require_inside(self, claim: ContentClaim | None) -> None:
        entry = None if claim is None else self._ledger.entry(claim.resource)
        if claim is not None and entry is not None and entry.relocation is None and entry.claim.sealed:
            self._require_room(entry.claim, claim.end)

    def _require_room(self, resource: ResourceClaim, end: int) -> None:
        if end > resource.length:
            raise ValueError(
                f"content at {end} lies beyond the end of resource claim {resource.index}, {resource.length}"
            )

    def _tell(self, events: TransactionEvents | Undrained, operations: list[Operation] | None) -> None:
        try:
            if isinstance(events, Undrained):
                require_usable(events.operations)
                self._provenance.take(events.transaction, events.millis, events.operations)
            elif operations is None:
                self._put_aside(self._serde.encode_operation(events), "it tells of records of which some do not decode")
            else:
                require_usable([events])
                self._provenance.take(self._transaction, self._millis, operations)
        except UNUSABLE as error:
            self._put_aside(self._serde.encode_operation(events), str(error))

    def _put_aside(self, data: bytes, reason: str, unread: Sequence[Unread] = ()) -> None:
        uuids = set(split_uuids(named_by(data).uuids))
        flow_files: list[FlowFileRecord] = []
        for uuid in uuids:
            record = self._find(uuid) if uuid else None
            if record is not None:
                flow_files.append(record)
                self._ledger.apply(self._transaction, self._millis, [Delete(uuid)])
            elif uuid in self._aside:
                reason = f"FlowFile {format_uuid(uuid)}, which it names, was set aside"
        self._aside |= uuids
        ledger = self._ledger
        aside = set_aside(data, reason, self._place, self._millis, ledger.index_ceiling, flow_files, unread)
        operations: list[Operation] = [aside]
        if aside.held_through or data[1:2] == _CEILING_TAG:
            operations.append(IndexCeiling(ledger.index_ceiling + CEILING_JUMP))
        ledger.apply(self._transaction, self._millis, operations)

    def _placeholder(self, number: int) -> QueueDefinition:
        """A queue for FlowFiles whose queue's definition can't be used."""
        names = {queue.name for queue in self._ledger.queues.values()}
        name = f"queue {number}"
        while name in names:
            name += "'"
        return QueueDefinition(number, name, str(QueuePriority.FIRST_IN_FIRST_OUT), "priority", 0, 0, 0)
