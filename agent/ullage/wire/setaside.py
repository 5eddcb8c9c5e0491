"""Records that can't be used and were set aside, and a person's word about them."""

from typing import Annotated

import msgspec
from msgspec import Meta

FLOW_FILES_SHOWN = 100
"""FlowFiles of one record in a list."""

DATA_SHOWN = 4_096
"""Bytes of one record in a list: enough to see what it was; few have more."""


class RecordSetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the log, the snapshot or a swap file that can't be used."""

    id: str
    """What it is dropped by."""

    place: str
    """Where it was found."""

    reason: str
    """Why it can't be used."""

    size: int
    """Its length in bytes."""

    data: bytes
    """Its first bytes, at most 4,096: a msgpack array whose first element says what kind of record it is."""

    flow_files: list[str]
    """The uuids of FlowFiles and handles that were set aside with it, at most 100."""

    flow_file_count: int
    """How many there are."""

    holds_all: bool
    """Its bytes do not tell what it points at, so that nothing that was there before is given back."""


class SetAsideDrop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be given up."""

    ids: Annotated[list[str], Meta(max_length=10_000)]
    """The ids of records."""

    accept_loss: bool = False
    """Must be true: the FlowFiles that were set aside with them are lost."""


class SetAsideResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    records: int
    """How many were dropped."""
