"""What a repository has of one subject, as `ullage erase --dry-run` tells it, and what an erasure has done."""

import enum
from typing import Literal

import msgspec


class ErasurePlace(enum.StrEnum):
    """Where something of a subject was found."""

    QUEUED = "queued"
    """FlowFiles in memory that stand in a queue."""

    SWAPPED = "swapped"
    """FlowFiles in swap files."""

    HELD = "held"
    """FlowFiles and handles that a salvage held, in queue `salvaged`."""

    STAGED = "staged"
    """FlowFiles of staged writes that are not settled."""

    SET_ASIDE = "setAside"
    """Records that can't be used and name the subject, or that FlowFiles of it went with."""

    HANDLES = "handles"
    """Handles in memory."""

    RUN_HANDLES = "runHandles"
    """Handles that rest in files of `flowfile/runs`."""

    TOMBSTONES = "tombstones"
    """Handles that are deleted, and can still be brought back."""

    OWN_CONTENT = "ownContent"
    """Bytes that only FlowFiles and handles of the subject need."""

    SHARED_CONTENT = "sharedContent"
    """Bytes of the subject that others need, too."""

    ARCHIVED_CONTENT = "archivedContent"
    """Bytes that nobody needs any more, kept in the archive."""

    DEAD_CONTENT = "deadContent"
    """Bytes that nobody needs any more, and that are not given back yet."""

    RELOCATED_CONTENT = "relocatedContent"
    """Of the four before, bytes that a rewrite has moved into another file."""

    EVENTS_BEFORE = "eventsBefore"
    """Provenance events with attributes of the subject from before the event."""

    EVENTS_AFTER = "eventsAfter"
    """Provenance events with attributes of the subject from after the event."""

    ANSWERS = "answers"
    """Remembered answers to requests that name FlowFiles or handles of the subject."""


class ErasureFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What one place has of the subject."""

    place: ErasurePlace

    count: int
    """Records, events or answers; of content, claims."""

    bytes: int
    """Of content; of events the texts of those attributes, of answers and records that were set aside themselves."""


class ErasureCost(msgspec.Struct, frozen=True, kw_only=True):
    """What is going to be read to find a subject."""

    records: int
    """FlowFiles and handles, each of which is looked at twice."""

    swap_files: int

    run_bytes: int
    """Of runs of handles and answers."""

    events: int
    """Provenance events in event files."""

    event_bytes: int
    """Of those files, compressed."""


class ErasureSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found of a subject, and what that does not tell. Nothing was changed."""

    where: dict[str, str]
    """The attributes that make the subject."""

    cost: ErasureCost

    findings: tuple[ErasureFinding, ...]
    """Each place, those where nothing was found included."""

    unread: tuple[str, ...]
    """What could not be read: there may be more of the subject."""

    not_promised: tuple[str, ...]
    """Where more of the subject may be, that no look into this repository finds."""

    @property
    def is_found(self) -> bool:
        """Whether there is anything of the subject."""
        return any(finding.count for finding in self.findings)


class DoneErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure has done, without saying of whom: all of the subject is gone, but for what `remains` says."""

    repository: str
    """Its uuid."""

    began_millis: int
    """When it was promised; one that was interrupted began then."""

    ended_millis: int

    first_transaction: int
    """All that it committed came behind this one."""

    last_transaction: int

    found: tuple[ErasureFinding, ...]
    """What there was before it began; each place. Of one that was interrupted the larger of what the looks found."""

    uuids: int
    """FlowFiles and handles that are or were the subject's."""

    event_files: int
    """Files of provenance events that were written anew without what they told of it, by the last call."""

    remains: tuple[str, ...]
    """What could not be done, in words; empty: nothing that a look finds is left."""

    not_promised: tuple[str, ...]
    """Where more of the subject may be, that no look into this repository finds."""

    is_finished: bool
    """Whether nothing is left that another call may do. Else the erasure is still begun, and the next one goes on."""

    overwritten_bytes: int | None = None
    """Bytes that the last call has overwritten with zeros before their blocks were given back; None: that was not
    asked for.
    """

    @property
    def is_found(self) -> bool:
        """Whether there was anything of the subject, or may have been, as something could not be read."""
        return bool(self.uuids or self.remains) or any(finding.count for finding in self.found)


class ErasureReport(DoneErasure, frozen=True, kw_only=True):
    """What an erasure has done, and of whom."""

    where: dict[str, str]
    """The attributes that make the subject."""


class RestoredErasure(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that a register names, and that was erased from what was restored. Fields as in `DoneErasure`."""

    attributes: tuple[str, ...]
    """The names of the attributes that make the subject."""

    uuids: int
    event_files: int
    remains: tuple[str, ...]
    is_finished: bool


class ErasureCertificate(DoneErasure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an erasure has done, signed, and without the subject's values."""

    kind: Literal["ErasureCertificate"] = "ErasureCertificate"
    version: Literal[1] = 1
    product: str

    attributes: tuple[str, ...]
    """The names of the attributes that make the subject."""

    subject: str
    """A digest of their values, keyed with a secret of the repository."""

    public_key: str
    """Of the repository, Ed25519."""

    signature: str = ""
    """Of all other fields, as JSON with sorted names and no space, this one empty."""
