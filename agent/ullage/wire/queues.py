"""Queues, and the FlowFiles that stand in them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.contract import QueuePriority
from ullage.wire.content import ContentItem
from ullage.wire.documents import Count


class FlowFile(msgspec.Struct, frozen=True, kw_only=True):
    """A FlowFile as it was when somebody looked: attributes, and a content that is read apart.

    >>> made = session.write(session.create(attributes={"filename": "a.txt"}), b"content")
    >>> made.attributes["filename"], made.size
    ('a.txt', 7)
    """

    id: str
    """Its uuid."""

    size: int
    """Bytes of content."""

    attributes: dict[str, str]
    """All but those that follow from the other fields."""

    parents: list[str]
    """Uuids of the FlowFiles that it was made from."""

    entry_millis: int
    """When it was made."""

    lineage_millis: int
    """When the oldest of its ancestors was made."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a queue is to be. None leaves it as it is; a new queue has `spec.flowFile.queueDefaults`."""

    priority: QueuePriority | None = None
    """Which FlowFile comes first."""

    priority_attribute: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """The attribute that PriorityAttribute orders by."""

    count_max: Count | None = None
    """FlowFiles from which on the queue is full; 0: no limit."""

    bytes_max: Count | None = None
    """Bytes of content from which on the queue is full; 0: no limit."""

    expiration_millis: Count | None = None
    """How long a FlowFile may stand in it before it is dropped; 0: for ever."""


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings, and what stands in it: FlowFiles that sessions hold or that are swapped out count."""

    name: str

    priority: str
    """Which FlowFile comes first."""

    priority_attribute: str
    """The attribute that PriorityAttribute orders by."""

    count_max: int
    """FlowFiles from which on the queue is full; 0: no limit."""

    bytes_max: int
    """Bytes of content from which on the queue is full; 0: no limit."""

    expiration_millis: int
    """How long a FlowFile may stand in it before it is dropped; 0: for ever."""

    flow_files: int
    """How many stand in it."""

    size_bytes: int
    """Their content."""

    held: int
    """How many of them sessions hold."""

    swapped: int
    """How many of them are in swap files."""

    penalized: int
    """How many of them wait for their penalty to end."""

    unavailable: int
    """How many of them a poll has passed over because their content can't be read. They keep their places."""

    is_full: bool
    """Whether writers are refused with `back-pressure`."""


class FlowFileBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents that become FlowFiles of one queue in one transaction: all of them or none."""

    items: Annotated[list[ContentItem], Meta(min_length=1, max_length=10_000)]


class DropResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a queue's FlowFiles."""

    dropped: int
    """How many ceased to exist."""
