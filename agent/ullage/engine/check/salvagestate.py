"""What the proved records of a damaged repository come to: its FlowFiles, and which of them are held, and why.

The ledger refuses what contradicts itself, because it counts what keeps content alive. Here nothing is counted, and
what refers to something lost is named and passed over, so that all else comes through.

    proved, nothing lost behind it        it keeps its queue, or stays a handle
    something lost may have changed it    held: a person decides
    a proved transaction behind a gap     taken in, but it deletes nothing: what it was to leave in exchange may be lost
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ullage.contract import QueuePriority
from ullage.engine.ledger.aside import named_by
from ullage.engine.ledger.remembered import RememberedAnswers
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    Answer,
    Delete,
    FlowFileRecord,
    IndexCeiling,
    Operation,
    QueueDefinition,
    Relocation,
    SetAside,
    SetAsideEnd,
    SwapDrop,
    SwapIn,
    SwapOut,
    Update,
    format_uuid,
    split_uuids,
)
from ullage.engine.updates import updated
from ullage.engine.usable import require_usable
from ullage.engine.wal.serde import SerDe, Undecodable
from ullage.engine.wal.state import UNUSABLE


class UnusableRecord(NamedTuple):
    """A record that checksums prove and that can't be used."""

    place: str
    reason: str


class SalvagedState:
    """`swapped` are the FlowFiles that are proved of each swap file. `erased` is how many records were left out because
    a register of erasures names whom they are of.
    """

    def __init__(self, swapped: Mapping[str, Sequence[FlowFileRecord]], serde: SerDe) -> None:
        self.records: dict[bytes, FlowFileRecord] = {}
        self.queues: dict[int, QueueDefinition] = {}
        self.moves: dict[int, Relocation] = {}
        self.held: dict[bytes, str] = {}
        self.unusable: list[UnusableRecord] = []
        self.index_ceiling = 0
        self.erased = 0
        self.answers = RememberedAnswers()
        self._swapped: Mapping[str, Sequence[FlowFileRecord]] = swapped
        self._serde = serde
        self._swaps: dict[str, SwapOut] = {}
        self._ended_swaps: set[str] = set()
        self._asides: dict[bytes, SetAside] = {}
        self._place = self._doubt = ""
        self._id = 0
        self._take: dict[type, Callable[[Any], None]] = {
            FlowFileRecord: self._create,
            Update: self._update,
            Delete: lambda each: self._delete(each.uuids),
            QueueDefinition: self._define,
            Relocation: self._relocate,
            IndexCeiling: self._raise_ceiling,
            Answer: lambda each: self.answers.add(each, self._id),
            SwapOut: self._swap_out,
            SwapIn: self._swap_in,
            SwapDrop: self._swap_drop,
            SetAside: self._set_aside,
            SetAsideEnd: self._end_set_aside,
        }

    def take(self, found: Sequence[Operation | Undecodable], place: str, doubt: str = "", id: int = 0) -> None:
        """Take in a block of the snapshot, or a transaction. With a `doubt` it is behind a gap, which that describes.

        What was answered stays answered in any case: a repeat would store anew what is there, or held.
        """
        self._doubt, self._id = doubt, id
        for number, each in enumerate(found):
            self._place = f"record {number} of {place}"
            if isinstance(each, Undecodable):
                self._pass_over(each.data, each.reason)
            elif type(each) in self._take:
                try:
                    require_usable([each])
                    self._take[type(each)](each)
                except UNUSABLE as error:
                    self._pass_over(self._serde.encode_operation(each), str(error))

    def take_once(self, found: Sequence[Operation | Undecodable], place: str, doubt: str) -> None:
        """Take in handles of a run, but for those that are there already: one run may take the place of others."""
        new = [each for each in found if not isinstance(each, FlowFileRecord) or each.uuid not in self.records]
        self.take(new, place, doubt)

    def finish(self, doubt: str, *, is_snapshot_whole: bool) -> None:
        """Once all is taken in. `doubt` says what was lost that may have changed anything; empty: nothing."""
        if doubt or not is_snapshot_whole:
            self._take_unnamed_swaps()
        for name in sorted(self._swaps.keys() - self._ended_swaps):
            self._name_lost_of(self._swaps[name])
        for uuid, record in list(self.records.items()):
            claim = record.claim
            if record.start + record.size > (claim.length if claim else 0):
                del self.records[uuid]
                self._say(f"FlowFile {record.id}", "its slice lies outside its content")
            elif record.queue == STAGED_QUEUE:
                self._hold(uuid, "it was staged by a write that was not settled")
            elif doubt:
                self._hold(uuid, doubt)
        known = {HANDLE_QUEUE, STAGED_QUEUE, *self.queues}
        for number in sorted({record.queue for record in self.records.values()} - known):
            made = self.queues[number] = self.made_queue(number, f"queue {number}")
            self._say(f"queue number {number}", f"its name and settings are lost; its FlowFiles are in {made.name!r}")
        self._swapped = {}  # those that the log has as well are there twice

    def _take_unnamed_swaps(self) -> None:
        """Without any loss such a file is a leftover, whose FlowFiles are elsewhere or gone."""
        for name in sorted(self._swapped.keys() - self._swaps.keys() - self._ended_swaps):
            for record in self._swapped[name]:
                if self.records.setdefault(record.uuid, record) is record:
                    self._hold(record.uuid, f"it stands in swap file {name}, which no record names")

    def _name_lost_of(self, swap: SwapOut) -> None:
        found = len(self._swapped.get(swap.name, ()))
        # Those whose records the log still has come back without the file.
        found = max(found, sum(uuid in self.records for uuid in split_uuids(swap.uuids)))
        if found < swap.count:
            self._say(f"swap file {swap.name}", f"{found} of its {swap.count} FlowFiles could be read")

    def made_queue(self, number: int, name: str) -> QueueDefinition:
        """A queue with the default settings; its name is made another one as long as a queue has it."""
        while any(queue.name == name for queue in self.queues.values()):
            name += "'"
        return QueueDefinition(number, name, str(QueuePriority.FIRST_IN_FIRST_OUT), "priority", 0, 0, 0)

    def _create(self, record: FlowFileRecord) -> None:
        if self.records.setdefault(record.uuid, record) is not record:
            raise ValueError(f"FlowFile {record.id} is created twice")
        if self._doubt:
            self._hold(record.uuid, self._doubt)

    def _update(self, update: Update) -> None:
        record = self.records.get(update.uuid)
        if record is None:
            raise ValueError(f"it changes FlowFile {format_uuid(update.uuid)}, of which nothing else is left")
        self.records[update.uuid] = updated(record, update)
        if self._doubt:
            self._hold(update.uuid, self._doubt)

    def _delete(self, uuids: bytes) -> None:
        for uuid in split_uuids(uuids):
            if self._doubt:
                self._hold(uuid, f"it was deleted, but {self._doubt}")
            else:
                self.records.pop(uuid, None)
                self.held.pop(uuid, None)

    def _define(self, queue: QueueDefinition) -> None:
        for other in self.queues.values():
            if other.name == queue.name and other.number != queue.number:
                raise ValueError(f"queue number {other.number} has the name {queue.name!r} already")
        self.queues[queue.number] = queue

    def _relocate(self, relocation: Relocation) -> None:
        self.moves[relocation.source] = relocation

    def _raise_ceiling(self, each: IndexCeiling) -> None:
        self.index_ceiling = max(self.index_ceiling, each.ceiling)

    def _swap_out(self, swap: SwapOut) -> None:
        # Records that are here already stay: the file may be damaged.
        self._swaps[swap.name] = swap
        for record in self._swapped.get(swap.name, ()):
            if self.records.setdefault(record.uuid, record) is record and self._doubt:
                self._hold(record.uuid, self._doubt)

    def _swap_in(self, back: SwapIn) -> None:
        # As long as no snapshot covers it the file is all that says which FlowFiles came back.
        if back.name in self._swaps:
            self._name_lost_of(self._swaps[back.name])
        self._ended_swaps.add(back.name)

    def _swap_drop(self, drop: SwapDrop) -> None:
        swap = self._swaps.get(drop.name)
        self._ended_swaps.add(drop.name)
        self._delete(b"".join(record.uuid for record in self._swapped.get(drop.name, ())))
        self._delete(swap.uuids if swap is not None else b"")

    def _set_aside(self, aside: SetAside) -> None:
        self._asides[aside.id] = aside
        self._say(aside.place, aside.reason)
        for record in aside.flow_files:
            self.records.setdefault(record.uuid, record)
            self._hold(record.uuid, f"a record that names it was set aside: {aside.reason}")

    def _end_set_aside(self, end: SetAsideEnd) -> None:
        aside = self._asides.pop(end.id, None)
        self._delete(b"".join(record.uuid for record in aside.flow_files) if aside is not None else b"")

    def _pass_over(self, data: bytes, reason: str) -> None:
        self._say(self._place, reason)
        for uuid in split_uuids(named_by(data).uuids):
            self._hold(uuid, f"a record that names it can't be used: {reason}")

    def _hold(self, uuid: bytes, reason: str) -> None:
        if uuid in self.records:
            self.held.setdefault(uuid, reason)

    def _say(self, place: str, reason: str) -> None:
        self.unusable.append(UnusableRecord(place, reason))
