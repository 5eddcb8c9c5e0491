"""What happened to FlowFiles: events, what they are searched for, their lineage, and replay."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.enums import EventType
from ullage.wire.documents import COUNT_MAX, EVENTS_MAX, Count

EventTypeName = Annotated[str, Meta(extra_json_schema={"enum": list(EventType.__members__)})]
MaybeCount = Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None


class ContentLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event's content lies, or lay: a slice of a base claim. Empty content lies nowhere."""

    resource: int | None
    """The resource claim; None for empty content, as the next two."""

    offset: int | None
    """Where in the resource claim the base claim begins."""

    length: int | None
    """Bytes of the base claim."""

    start: int
    """Where in the base claim the content begins."""

    size: int
    """Bytes of content."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one FlowFile. What begins with `previous_` is as before the event, the rest as of its commit."""

    sequence: int
    """Its number: 1, 2, 3 … of a repository, without a gap, in the order of commits."""

    id: str
    """The transaction that caused it, and its place among that transaction's events, like 17.0."""

    type: EventTypeName

    time_millis: int

    flow_file: str
    """The FlowFile's uuid."""

    component: str
    """Who did it; empty, as the next ones, if nobody said."""

    component_type: str

    relationship: str
    """Why the FlowFile went where it went."""

    details: str

    transit_uri: str
    """Where it came from, or went to, outside of the repository."""

    alternate_identifier: str
    """What the FlowFile is called elsewhere."""

    duration_millis: int | None
    """How long it took; None if nobody said."""

    queue: str
    """The queue that it was taken from; empty: none."""

    entry_millis: int

    lineage_millis: int

    size: int
    """Bytes of content."""

    parents: list[str]
    """Uuids of the FlowFiles that this one was made from in this event."""

    children: list[str]
    """Uuids of the FlowFiles that were made from this one in this event."""

    previous_attributes: dict[str, str]

    attributes: dict[str, str]

    previous_content: ContentLocation | None
    """None for a FlowFile that did not exist before."""

    content: ContentLocation | None


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events; all that is given must hold, and what is left out asks nothing.

    >>> id = repository.queues.put("inbox", b"content", {"kind": "note"})
    >>> found = repository.provenance.search(EventQuery(types=["CREATE"], attributes={"kind": "note"}, size_min=1))
    >>> [event.flow_file == id for event in found.events]
    [True]
    """

    types: list[EventTypeName] = []
    """Any of these."""

    flow_file: str = ""
    """The uuid of the FlowFile that the event is about."""

    related: list[str] = []
    """Uuids of FlowFiles, one of which the event is about, or has among its parents or children."""

    component: str = ""

    component_type: str = ""

    relationship: str = ""

    transit_uri: str = ""

    alternate_identifier: str = ""

    filename: str = ""

    attributes: dict[str, str] = {}
    """Values as of the event."""

    since_millis: MaybeCount = None
    """From this moment on."""

    until_millis: MaybeCount = None
    """Before this moment."""

    size_min: MaybeCount = None
    """Bytes of content at least."""

    size_max: MaybeCount = None
    """Bytes of content at most."""

    after: Count = 0
    """Only later sequences."""

    before: MaybeCount = None
    """Only earlier sequences."""

    limit: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 100
    """Events in one page."""

    newest_first: bool = False


class UnreadableEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A run of events that are there and cannot be read now, so that a search has passed them over."""

    first_sequence: int
    events: int

    problem: str
    """Which file they are in, what is wrong with it, and what to do."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the events that a search found, in order."""

    events: list[Event]

    next: int | None
    """What to ask `after` for the next page (newest first: `before`); None: this is the last one."""

    removed_through: int
    """Events up to this sequence are gone: retention has removed them."""

    lost: list[tuple[int, int]]
    """Events that found no room or were set aside: the first sequence and the number of each run of them."""

    unreadable: list[UnreadableEvents]
    """Events that the search has passed over; some of them may be among what was asked for."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What a FlowFile was made from, and what became of it."""

    events: list[Event]

    links: list[tuple[int, int]]
    """Pairs of sequences: the first led to the second."""

    unexpanded: list[str]
    """Uuids, without dashes, of FlowFiles that have more to tell."""

    is_cut: bool
    """Whether a limit has cut it."""

    removed_through: int
    """Events up to this sequence are gone: retention has removed them."""

    unreadable: list[UnreadableEvents]
    """Events that the search has passed over; some of them may belong here."""


class Replayability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an event can be replayed now."""

    is_possible: bool

    reason: str = ""
    """In a word, why not."""

    message: str = ""
    """In a sentence, why not."""


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a replay puts its FlowFile."""

    queue: str = ""
    """Empty: the queue that the event's FlowFile came from."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The FlowFile that a replay put into a queue."""

    event: str
    """The id of the event that was replayed."""

    id: str
    """The new FlowFile's uuid."""

    queue: str

    size: int
    """Bytes of content."""
