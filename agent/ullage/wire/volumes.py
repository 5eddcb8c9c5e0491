"""The volumes that containers lie on."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """The volume that one container lies on, and what is on it."""

    container: str
    """By whose name it goes."""

    path: str
    """Where it is looked for."""

    state: str
    """`available`, `read-only`, `away` or `foreign`; of the last two the content is unavailable until it is back. One
    whose loss was accepted is `forgotten`, as long as anything is left of it.
    """

    reason: str
    """Why it is not available; empty where it is."""

    total_bytes: int
    """Its size, or the container's capacity; 0 while it is away."""

    used_bytes: int
    """How many of them are taken, by whomever, or of a capacity by this repository."""

    resource_claims: int
    """Files of content that lie on it, archived ones included."""

    archived: int
    """How many of these are archived: nothing in them is in use."""

    content_claims: int
    """Contents on it that are in use."""

    live_bytes: int
    """Their length: what would be lost with the volume."""

    flow_files: dict[str, int]
    """How many FlowFiles have their content on it, by queue, swapped ones included."""

    handles: int
    """How many handles have theirs there, deleted ones included."""

    unread: list[str]
    """Swap files that could not be read to count theirs."""


class VolumeForgotten(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which volume is to be given up."""

    container: Annotated[str, Meta(min_length=1, max_length=253)]
    """The name of the container that lies on it."""

    accept_loss: bool = False
    """Must be true: all content on it is lost, also if it comes back."""
