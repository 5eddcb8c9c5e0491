"""Sessions: FlowFiles that are held, changed, and settled in one transaction."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.wire.documents import (
    ATTRIBUTES_MAX,
    CONDITIONS_MAX,
    COUNT_MAX,
    COUNTERS_MAX,
    Count,
    Id,
    Label,
    Name,
    Text,
)
from ullage.wire.provenance import EventTypeName
from ullage.wire.queues import FlowFile

VisibilitySeconds = Annotated[float, Meta(gt=0, le=86_400)]
PollCount = Annotated[int, Meta(ge=1, le=10_000)]
Ids = Annotated[list[Id], Meta(max_length=10_000)]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to open."""

    visibility_seconds: VisibilitySeconds = 30.0
    """How long it lasts without a heartbeat. Then it is rolled back."""

    component: Label = ""
    """Who works in it, as provenance events name it."""

    component_type: Label = ""
    """What kind of component that is."""


class ExtendRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to keep alive."""

    visibility_seconds: VisibilitySeconds | None = None
    """How long it lasts from now on without a heartbeat; None: as long as before."""


class PollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FlowFiles to take out of a queue, into a new session."""

    count: PollCount = 1
    """How many at most."""

    visibility_seconds: VisibilitySeconds = 30.0
    """How long the session lasts without a heartbeat. Then it is rolled back."""


class SessionPollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FlowFiles to take out of a queue, into a session that is open."""

    queue: Name

    count: PollCount = 1
    """How many at most."""

    attributes: Annotated[dict[str, str], Meta(max_length=CONDITIONS_MAX)] | None = None
    """Only those that have all of these values, of the ones that are in memory."""


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new FlowFile without content."""

    parents: Ids = []
    """Uuids of FlowFiles of the session."""

    attributes: dict[str, str] = {}


class CloneRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slice of a FlowFile's content that its clone has."""

    start: Count = 0

    size: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    """Bytes; None: all that there are from `start` on."""


class SplitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a FlowFile is split."""

    sizes: Annotated[list[Count], Meta(max_length=10_000)]
    """Bytes of each part, in order."""


class MergeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FlowFiles whose contents become one, in order. Bytes are base64 in JSON."""

    ids: Ids

    header: bytes = b""

    demarcator: bytes = b""
    """Between two contents."""

    footer: bytes = b""


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A handle whose content a new FlowFile gets."""

    handle: str

    attributes: dict[str, str] = {}
    """Beside the handle's own."""


class ProvenanceReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a component says of FlowFiles beyond what the session sees."""

    type: EventTypeName

    relationship: Text = ""

    details: Text = ""

    transit_uri: Text = ""

    alternate_identifier: Text = ""

    duration_millis: Count | None = None


class FlowFileChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of FlowFiles, in the order of these fields."""

    ids: Ids
    """Their uuids."""

    set_attributes: dict[str, str] = {}

    remove_attributes: Annotated[list[str], Meta(max_length=ATTRIBUTES_MAX)] = []

    report: ProvenanceReport | None = None

    to: Name | None = None
    """The queue that they go to."""

    relationship: Text = ""
    """Why they go there, for provenance."""

    penalty_millis: Count | None = None
    """How long no poll gets them."""

    removed: bool = False
    """Whether they cease to exist."""


class ChangesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of what a session holds, in order; nobody sees them before its commit. All are made, or none is."""

    changes: Annotated[list[FlowFileChange], Meta(max_length=10_000)] = []

    counters: Annotated[
        dict[Name, Annotated[int, Meta(ge=-COUNT_MAX, le=COUNT_MAX)]], Meta(max_length=COUNTERS_MAX)
    ] = {}
    """What is added to the repository's counters."""


class CommitRequest(ChangesRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last changes, and what becomes of FlowFiles of which nothing was said. Without that they are refused."""

    rest_to: Name | None = None
    """The queue that these go to."""

    removes_rest: bool = False
    """Whether these cease to exist."""


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session's FlowFiles go back."""

    penalize: bool = False
    """Whether no poll gets them for a while."""


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A session and the FlowFiles that it holds."""

    session: str
    """Its uuid."""

    visibility_seconds: float
    """How long it lasts without a heartbeat."""

    flow_files: list[FlowFile]
