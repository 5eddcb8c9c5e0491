"""Contents that can't be read now, and a person's word about them."""

from typing import Annotated

import msgspec
from msgspec import Meta

LISTED_MAX = 10_000
"""Of one answer."""


class UnavailableContent(msgspec.Struct, frozen=True, kw_only=True):
    """A FlowFile or handle whose content can't be read; or all FlowFiles of a swap file that can't be."""

    id: str
    """Its uuid; empty for a swap file, which would say which FlowFiles are in it."""

    filename: str
    """Its attribute of this name; for a swap file the file's."""

    queue: str
    """Where the FlowFile keeps its place; empty for a handle."""

    size: int
    """Bytes of its content."""

    path: str
    """The file on the node in which its content lies, or should lie."""

    resource: int
    """The resource claim of that file; 0 for a swap file."""

    reason: str
    """What is wrong with it."""


class AcceptedLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be given up."""

    ids: Annotated[list[str], Meta(max_length=10_000)]
    """The uuids of FlowFiles and handles; those whose content can be read are left alone."""

    accept_loss: bool = False
    """Must be true: what is dropped can't be brought back by mending its file later."""


class UnavailableResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a word about unavailable contents."""

    flow_files: int
    """How many FlowFiles returned to their places, or FlowFiles and handles were dropped."""
