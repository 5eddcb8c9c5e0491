"""The documents that several resources take and give. Names as in the engine, sizes in bytes, times in milliseconds."""

from typing import Annotated

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta

from ullage_agent.engine.model import FlowFile

Count = Annotated[int, Meta(ge=0, le=(1 << 62))]
Limit = Annotated[int, QueryParameter(ge=1, le=1_000)]
Text = Annotated[str, Meta(max_length=4_096)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One content of a batch: base64 in JSON, bytes in MessagePack."""

    content: bytes
    attributes: dict[str, str] = {}


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What a put answers. `handle` also names the node."""

    id: str
    size: int
    handle: str = ""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Ids in the order of the contents."""

    ids: list[str]
    node: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A FlowFile as it is."""

    id: str
    size: int
    attributes: dict[str, str]
    parents: list[str]
    entry_millis: int
    lineage_millis: int


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an action on one thing answers."""

    id: str
    state: str


def record_of(flow_file: FlowFile) -> Record:
    """A FlowFile as a document."""
    return Record(
        id=flow_file.id,
        size=flow_file.size,
        attributes=flow_file.attribute_map(),
        parents=flow_file.parent_ids,
        entry_millis=flow_file.entry_millis,
        lineage_millis=flow_file.lineage_millis,
    )
