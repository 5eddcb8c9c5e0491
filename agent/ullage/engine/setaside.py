"""Records that were set aside because they can't be used: which they are, and a person's word about them."""

from collections.abc import Collection, Sequence

from ullage.engine.committer import ChangingParts
from ullage.engine.ledger.aside import set_aside
from ullage.engine.ledger.rundamages import RunDamages
from ullage.engine.model import EventType, Operation, SetAside, SetAsideEnd
from ullage.engine.provenance.eventruns import of_existing
from ullage.engine.provenance.events import RecordedTransaction, undrained
from ullage.engine.repositories import ProvenanceRepository
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.wal.format import PAYLOAD_BYTES_MAX
from ullage.engine.wal.serde import SerDe

GIVEN_UP = "a record that names it could not be used, and its loss was accepted"


class SetAsideRecords:
    """Thread-safe."""

    def __init__(
        self, parts: ChangingParts, damages: Sequence[RunDamages], serde: SerDe, provenance: ProvenanceRepository
    ) -> None:
        """`damages` are those of each key space of which somebody relies on every row."""
        self._parts = parts
        self._damages = damages
        self._serde = serde
        provenance.set_aside_by(self._keep_events)

    def listed(self, limit: int) -> list[SetAside]:
        """Up to `limit`, oldest first; behind them what of runs cannot be read."""
        with self._parts.ledger.lock:
            found = self._parts.ledger.set_aside.all()
        return [*found, *self._unread()][:limit]

    @property
    def count(self) -> int:
        """How many `listed` has without a limit."""
        return len(self._parts.ledger.set_aside) + len(self._unread())

    def _unread(self) -> list[SetAside]:
        return [aside for damages in self._damages for aside in damages.set_aside()]

    @uninterrupted
    def _keep_events(self, told: RecordedTransaction, reason: str) -> None:
        """Set aside what the events of a transaction are worked out from. Its FlowFiles stay as they are."""
        data = self._serde.encode_operation(undrained(told))
        if len(data) > PAYLOAD_BYTES_MAX // 2:
            # In a transaction of its own it might find no room; what it did to FlowFiles the ledger knows.
            data = self._serde.encode_operation(told.operations[-1])
        place = f"the events of transaction {told.transaction}"
        aside = set_aside(data, reason, place, self._parts.clock.now_millis(), 0)
        self._parts.committer.commit([aside], creates=False)

    @uninterrupted
    def drop(self, ids: Collection[bytes], by: str = "") -> int:
        """Give up those of these that there are, each with a DROP event for the FlowFiles that went with it; how many.
        The events name who did it.

        What only they may have meant is dead from then on.
        """
        dropped = 0
        for id in ids:
            record = self._parts.ledger.set_aside.find(id)
            if record is not None:
                told: list[Operation] = []
                if record.flow_files and self._parts.records_provenance:
                    told = of_existing(EventType.DROP, record.flow_files, GIVEN_UP, by=by)
                self._parts.committer.commit([SetAsideEnd(id), *told], creates=False)
                dropped += 1
            else:
                dropped += sum(self._is_done_without(damages, id) for damages in self._damages)
        return dropped

    @uninterrupted
    def _is_done_without(self, damages: RunDamages, id: bytes) -> bool:
        """Give up what of a run cannot be read, if this is it; whether it was. It waits for a checkpoint."""
        while damages.has_aside(id):
            # snapshot frozen: run 3 is in run 4 | a block of run 3 given up | renamed | start: who lists run 3?
            with self._parts.committer.between_checkpoints(), damages.giving_up(id) as run:
                if run is not None:
                    self._parts.committer.commit([run], creates=False)
                    damages.gave_up(id)
                    return True
            if damages.has_aside(id):
                # A rename failed, and may have come to pass: the next one says which runs there are.
                self._parts.committer.checkpoint()
        return False
