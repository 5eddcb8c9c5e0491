"""What a program says of its FlowFiles beyond what its session sees for itself."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from ullage.enums import EventType
from ullage.interface.checks import checked_note, checked_number

REPORTED_MAX = 50_000
"""Events one session may report: five for each FlowFile that a transaction may change."""

Subjects_contra = TypeVar("Subjects_contra", contravariant=True)
"""What stands for one FlowFile, or for several."""


class Reporter(ABC, Generic[Subjects_contra]):
    """A session's reports; each takes one FlowFile, or several, which cost little more than one.

    Sessions record by themselves what is created, forked, joined, cloned, changed, routed and dropped. Reports wait for
    the commit, and a rollback forgets them. They carry the FlowFile's attributes as of the commit; SEND and DOWNLOAD
    those of the moment of the report, because they tell what left.

    >>> page = session.create()
    >>> session.provenance.receive(page, "https://example.org/", duration_millis=12)
    >>> session.transfer(page, "inbox")
    >>> session.commit()
    >>> [event.type for event in repository.provenance.search(EventQuery(flow_file=page.id)).events]
    ['RECEIVE']

    Texts have at most 64 KiB, and a session reports at most 50,000 events: InvalidArgument and TransactionTooLarge
    beyond that.
    """

    @abstractmethod
    def report(
        self,
        type: EventType,
        flow_files: Subjects_contra,
        *,
        relationship: str = "",
        details: str = "",
        transit_uri: str = "",
        alternate_identifier: str = "",
        duration_millis: int | None = None,
    ) -> None:
        """Any event. The methods below are this one, with the fields that their types use.

        `transit_uri` is where content came from or went to, `alternate_identifier` what it is called there,
        `duration_millis` how long that took (None: not known).

        >>> session.provenance.report(EventType.ADDINFO, session.create(), details="seen")
        """

    def receive(
        self,
        flow_files: Subjects_contra,
        transit_uri: str,
        *,
        details: str = "",
        duration_millis: int | None = None,
        alternate_identifier: str = "",
    ) -> None:
        """Data came from outside the flow. Takes the place of CREATE.

        >>> session.provenance.receive(session.create(), "https://example.org/", duration_millis=12)
        """
        self.report(
            EventType.RECEIVE,
            flow_files,
            transit_uri=transit_uri,
            details=details,
            duration_millis=duration_millis,
            alternate_identifier=alternate_identifier,
        )

    def fetch(
        self, flow_files: Subjects_contra, transit_uri: str, *, details: str = "", duration_millis: int | None = None
    ) -> None:
        """The content was replaced by what lies at `transit_uri`. Takes the place of CONTENT_MODIFIED.

        >>> session.provenance.fetch(session.create(), "https://example.org/", details="HTTP 200")
        """
        self.report(
            EventType.FETCH, flow_files, transit_uri=transit_uri, details=details, duration_millis=duration_millis
        )

    def send(
        self,
        flow_files: Subjects_contra,
        transit_uri: str,
        *,
        details: str = "",
        duration_millis: int | None = None,
        alternate_identifier: str = "",
    ) -> None:
        """Data left the flow, with the attributes and content that it has now.

        >>> session.provenance.send(session.create(), "sftp://example.org/in")
        """
        self.report(
            EventType.SEND,
            flow_files,
            transit_uri=transit_uri,
            details=details,
            duration_millis=duration_millis,
            alternate_identifier=alternate_identifier,
        )

    def download(self, flow_files: Subjects_contra, transit_uri: str, *, details: str = "") -> None:
        """A person or a program took a copy of the content as it is now.

        >>> session.provenance.download(session.create(), "https://example.org/export")
        """
        self.report(EventType.DOWNLOAD, flow_files, transit_uri=transit_uri, details=details)

    def associate(self, flow_files: Subjects_contra, namespace: str, identifier: str) -> None:
        """The data is known elsewhere as `identifier`, in some namespace; leaves an ADDINFO event.

        >>> session.provenance.associate(session.create(), "orders", "4711")
        """
        names = checked_note(namespace, "a namespace"), checked_note(identifier, "an identifier")
        self.report(EventType.ADDINFO, flow_files, alternate_identifier=":".join(names))

    def modify_content(
        self, flow_files: Subjects_contra, *, details: str = "", duration_millis: int | None = None
    ) -> None:
        """Say how the content was changed; without a report a change leaves this event with no details.

        >>> session.provenance.modify_content(session.create(), details="gzip")
        """
        self.report(EventType.CONTENT_MODIFIED, flow_files, details=details, duration_millis=duration_millis)

    def modify_attributes(self, flow_files: Subjects_contra, *, details: str = "") -> None:
        """Say why the attributes were changed.

        >>> session.provenance.modify_attributes(session.create(), details="named after its address")
        """
        self.report(EventType.ATTRIBUTES_MODIFIED, flow_files, details=details)

    def route(
        self, flow_files: Subjects_contra, relationship: str, *, details: str = "", duration_millis: int | None = None
    ) -> None:
        """Sent along a relationship; `transfer` with a relationship reports it as well.

        >>> session.provenance.route(session.create(), "success")
        """
        self.report(
            EventType.ROUTE, flow_files, relationship=relationship, details=details, duration_millis=duration_millis
        )

    def drop(self, flow_files: Subjects_contra, *, details: str) -> None:
        """Say why FlowFiles are removed; the removal itself is `Session.remove`.

        >>> session.provenance.drop(session.create(), details="a duplicate")
        """
        self.report(EventType.DROP, flow_files, details=details)


def checked_report(type: EventType, **said: Any) -> dict[str, Any]:
    """What is said, without what says nothing. InvalidArgument for a text that is too long, and for a duration that
    there cannot be.
    """
    if not isinstance(type, EventType):
        raise TypeError(f"what is reported is an EventType, such as EventType.RECEIVE, not {type!r}")
    duration_millis = said.pop("duration_millis", None)
    # Most are empty, and of many FlowFiles each is asked.
    found: dict[str, Any] = {
        name: checked_note(text, "what a provenance event says") for name, text in said.items() if text != ""
    }
    if duration_millis is not None:
        found["duration_millis"] = checked_number(duration_millis, "duration_millis", 0)
    return found
