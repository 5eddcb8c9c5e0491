"""What a component says of its FlowFiles beyond what the session sees for itself (NiFi: `ProvenanceReporter`).

    session.provenance.receive(flow_file, "https://example.org/", duration_millis=12)

Events are cached until the session commits and then carry the FlowFile's attributes as of the commit; SEND and
DOWNLOAD carry those of the moment they were reported, because they tell what left. A rollback forgets them. Every
method takes one FlowFile or several, which cost little more than one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

from ullage.engine.model import EventRun, EventType, FlowFileRecord
from ullage.engine.provenance.eventruns import template
from ullage.errors import SessionMisuse, TransactionTooLarge
from ullage.interface.reporter import REPORTED_MAX, Reporter, checked_report
from ullage.sessionroom import NOTE_BYTES, text_bytes

AS_EMITTED = frozenset({EventType.SEND, EventType.DOWNLOAD})
"""They tell what left, so they keep the attributes and content of the moment."""

REPORTED_BYTES: Final = 16
"""What a FlowFile of a report takes in memory, as long as nobody changes it."""

Subjects = FlowFileRecord | Sequence[FlowFileRecord]


class Reported(NamedTuple):
    """Like events of some FlowFiles, each as it was then."""

    run: EventRun
    records: list[FlowFileRecord]
    as_emitted: bool


class Reporting(Protocol):
    """A session, as its reporter knows it."""

    def reportable(self, flow_file: FlowFileRecord) -> FlowFileRecord:
        """The session's present record of a FlowFile; FlowFileNotFound."""
        ...

    def keep_report(self, records: Sequence[FlowFileRecord], size: int) -> None:
        """A report is going to be kept, of so many bytes: raises if there is no room for it."""
        ...


class ProvenanceReporter(Reporter[Subjects]):
    """One session's reports. It does not keep the session: one that is dropped is collected at once."""

    def __init__(self, session: ref[Reporting]) -> None:
        self._session = session
        self._events: list[Reported] = []
        self._count = 0

    def take(self) -> list[Reported]:
        """Everything reported since the last call, which is forgotten here."""
        events, self._events = self._events, []
        self._count = 0
        return events

    def forget_from(self, count: int) -> None:
        """Only the first `count` of what is pending were reported."""
        del self._events[count:]
        self._count = sum(len(event.records) for event in self._events)

    @property
    def pending(self) -> Sequence[Reported]:
        """What was reported and is not committed yet."""
        return self._events

    def report(self, type: EventType, flow_files: Subjects, **said: Any) -> None:
        found = checked_report(type, **said)
        session = self._session()
        if session is None:
            raise SessionMisuse("the session of this reporter is gone")
        records = [
            session.reportable(one) for one in ([flow_files] if isinstance(flow_files, FlowFileRecord) else flow_files)
        ]
        if self._count + len(records) > REPORTED_MAX:
            raise TransactionTooLarge(f"more than {REPORTED_MAX} provenance events in one session: commit in parts")
        if records:
            texts = sum(text_bytes(text) for text in found.values() if isinstance(text, str))
            session.keep_report(records, NOTE_BYTES + len(records) * REPORTED_BYTES + texts)
            self._count += len(records)
            run = template(type, **found)
            self._events.append(Reported(run, records, type in AS_EMITTED))
