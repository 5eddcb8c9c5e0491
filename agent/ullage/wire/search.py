"""What provenance is searched for."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.wire.documents import COUNT_MAX, Count
from ullage.wire.provenance import EventTypeName

MaybeCount = Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None


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

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Events in one page."""

    newest_first: bool = False
