"""Records that were set aside because they can't be used: which they are, and a person's word about them."""

from collections.abc import Collection

from ullage.engine.committer import ChangingParts
from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.ledger.aside import set_aside
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
        self, parts: ChangingParts, answers: AnswerRuns, serde: SerDe, provenance: ProvenanceRepository
    ) -> None:
        self._parts = parts
        self._answers = answers
        self._serde = serde
        provenance.set_aside_by(self._keep_events)

    def listed(self, limit: int) -> list[SetAside]:
        """Up to `limit`, oldest first; behind them what of the remembered answers cannot be read."""
        with self._parts.ledger.lock:
            found = self._parts.ledger.set_aside.all()
        return [*found, *self._answers.set_aside()][:limit]

    @property
    def count(self) -> int:
        """How many `listed` has without a limit."""
        return len(self._parts.ledger.set_aside) + len(self._answers.set_aside())

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
            elif (run := self._answers.without(id)) is not None:
                self._parts.committer.commit([run], creates=False)
                self._answers.gave_up(id)
                dropped += 1
        return dropped
