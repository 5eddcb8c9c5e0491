"""Handles and their content."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.wire.documents import Id, LifetimeName


class ContentItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One content of a batch."""

    content: bytes
    """Base64 in JSON, bytes in MessagePack."""

    attributes: dict[str, str] = {}
    """What is kept beside the content; `uuid` cannot be set."""


class HandleBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents that become handles in one transaction: all of them or none."""

    items: Annotated[list[ContentItem], Meta(min_length=1, max_length=10_000)]

    lifetime: LifetimeName = "default"

    ttl: str = "0s"
    """How long they live, such as 12h; 0s: until they are deleted."""


class HandleIds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Handles to read."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=10_000)]
    """Uuids, each with or without `@` and its node's name."""


class StoredHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A content that is durable, as a handle."""

    id: str
    """Its uuid."""

    size: int
    """Bytes of content."""

    handle: str
    """The uuid, `@`, and the name of the node that has it: what to keep, and to read it by."""


class StoredFlowFile(msgspec.Struct, frozen=True, kw_only=True):
    """A content that is durable, as a FlowFile of a queue."""

    id: str
    """Its uuid."""

    size: int
    """Bytes of content."""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Contents that are durable, as handles or as FlowFiles."""

    ids: list[str]
    """Their uuids, in the order of the contents."""

    node: str
    """The node that has them; a handle is a uuid, `@`, and this name."""


class HandleContent(msgspec.Struct, frozen=True, kw_only=True):
    """One handle of a batch that was read: its content, or why not."""

    id: str
    """Its uuid."""

    content: bytes | None = None
    """Base64 in JSON, bytes in MessagePack; None if there is a problem."""

    problem: str | None = None
    """The slug of the problem."""


class HandleHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a handle without its content."""

    id: str
    """Its uuid."""

    handle: str
    """The uuid, `@`, and the name of the node that has it."""

    size: int
    """Bytes of content."""

    attributes: dict[str, str]
    """What its writer kept beside the content."""

    entry_millis: int
    """When it was stored."""

    expires_millis: int
    """When it ends by itself; 0: it does not."""

    deleted_millis: int
    """When it was deleted; 0: it was not. Until its retention ends it can be undeleted."""


class HandlePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a node's handles, by id."""

    handles: list[HandleHead]

    next: str | None
    """What to ask `after` for the next page; None: this is the last one."""
