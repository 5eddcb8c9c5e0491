"""What a component says of its FlowFiles beyond what the session sees for itself (seed 002).

    session.provenance.receive(flow_file, "https://example.org/", duration_millis=12)

Events are cached until the session commits and then carry the FlowFile's attributes as of the commit; SEND and
DOWNLOAD carry those of the moment they were reported, because they tell what left. A rollback forgets them. Every
method takes one FlowFile or several, which cost little more than one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ullage_agent.engine.errors import SessionMisuse
from ullage_agent.engine.model import EventRun, EventType, FlowFile

TEXT_BYTES_MAX = 64 << 10
"""Details, addresses and identifiers are for people and searches; more is content."""

REPORTED_MAX = 50_000
"""Events one session may report: five for each FlowFile that a transaction may change."""

Subjects = FlowFile | Sequence[FlowFile]


class Reported(NamedTuple):
    """Like events of some FlowFiles, each as it was then."""

    run: EventRun
    records: list[FlowFile]
    as_emitted: bool


class ProvenanceReporter:
    """One session's reports. `find` gives the session's present record of a FlowFile, or raises."""

    def __init__(self, find: Callable[[FlowFile], FlowFile]) -> None:
        self._find = find
        self._events: list[Reported] = []
        self._count = 0

    def receive(
        self,
        flow_files: Subjects,
        transit_uri: str,
        *,
        details: str = "",
        duration_millis: int = -1,
        alternate_identifier: str = "",
    ) -> None:
        """Data came from outside the flow; takes the place of CREATE. `alternate_identifier`: its name there."""
        self._add(
            EventType.RECEIVE,
            flow_files,
            transit_uri=transit_uri,
            details=details,
            duration_millis=duration_millis,
            alternate_identifier=alternate_identifier,
        )

    def create(self, flow_files: Subjects, *, details: str = "") -> None:
        """The flow itself made the data; without a report every new FlowFile has this event, with no details."""
        self._add(EventType.CREATE, flow_files, details=details)

    def fetch(self, flow_files: Subjects, transit_uri: str, *, details: str = "", duration_millis: int = -1) -> None:
        """The content was replaced by what lies at `transit_uri`; takes the place of CONTENT_MODIFIED."""
        self._add(
            EventType.FETCH, flow_files, transit_uri=transit_uri, details=details, duration_millis=duration_millis
        )

    def send(
        self,
        flow_files: Subjects,
        transit_uri: str,
        *,
        details: str = "",
        duration_millis: int = -1,
        alternate_identifier: str = "",
    ) -> None:
        """Data left the flow, with the attributes and content that the FlowFile has now."""
        self._add(
            EventType.SEND,
            flow_files,
            transit_uri=transit_uri,
            details=details,
            duration_millis=duration_millis,
            alternate_identifier=alternate_identifier,
            as_emitted=True,
        )

    def download(self, flow_files: Subjects, transit_uri: str, *, details: str = "") -> None:
        """A user or a program took a copy of the content as it is now."""
        self._add(EventType.DOWNLOAD, flow_files, transit_uri=transit_uri, details=details, as_emitted=True)

    def modify_content(self, flow_files: Subjects, *, details: str = "", duration_millis: int = -1) -> None:
        """Say how the content was changed; without a report a change has this event with no details."""
        self._add(EventType.CONTENT_MODIFIED, flow_files, details=details, duration_millis=duration_millis)

    def modify_attributes(self, flow_files: Subjects, *, details: str = "") -> None:
        """Say why the attributes were changed."""
        self._add(EventType.ATTRIBUTES_MODIFIED, flow_files, details=details)

    def route(self, flow_files: Subjects, relationship: str, *, details: str = "", duration_millis: int = -1) -> None:
        """Sent along a relationship; `transfer(..., relationship=...)` reports it as well."""
        self._add(
            EventType.ROUTE, flow_files, relationship=relationship, details=details, duration_millis=duration_millis
        )

    def drop(self, flow_files: Subjects, *, details: str) -> None:
        """Say why the FlowFiles are removed; the removal itself is the session's."""
        self._add(EventType.DROP, flow_files, details=details)

    def associate(self, flow_files: Subjects, namespace: str, identifier: str) -> None:
        """The data is known elsewhere as `identifier`; setting the attribute `alternate.identifier` says so too."""
        self._add(EventType.ADDINFO, flow_files, alternate_identifier=f"{namespace}:{identifier}")

    def take(self) -> list[Reported]:
        """Everything reported since the last call, which is forgotten here."""
        events, self._events = self._events, []
        self._count = 0
        return events

    @property
    def pending(self) -> Sequence[Reported]:
        """What was reported and is not committed yet."""
        return self._events

    def _add(
        self,
        type: EventType,
        flow_files: Subjects,
        *,
        relationship: str = "",
        details: str = "",
        transit_uri: str = "",
        alternate_identifier: str = "",
        duration_millis: int = -1,
        as_emitted: bool = False,
    ) -> None:
        for name, text in (
            ("relationship", relationship),
            ("details", details),
            ("transit_uri", transit_uri),
            ("alternate_identifier", alternate_identifier),
        ):
            if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
                raise SessionMisuse(f"{name} of a provenance event has more than {TEXT_BYTES_MAX} bytes")
        if duration_millis < -1:
            raise SessionMisuse(f"a duration of {duration_millis} ms: give what it took, or leave it out")
        records = [self._find(one) for one in ([flow_files] if isinstance(flow_files, FlowFile) else flow_files)]
        if self._count + len(records) > REPORTED_MAX:
            raise SessionMisuse(f"more than {REPORTED_MAX} provenance events in one session: commit in parts")
        self._count += len(records)
        run = EventRun(type, 0, 1, relationship, details, transit_uri, alternate_identifier, duration_millis)
        if records:
            self._events.append(Reported(run, records, as_emitted))
