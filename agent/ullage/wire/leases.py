"""Leases: promises that what is read is not reclaimed meanwhile."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.wire.documents import COUNT_MAX, Label, Millis


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lease to take."""

    duration_millis: Millis
    """How long it lasts unless it is renewed; `spec.leases.maxDuration` bounds it."""

    resources: Annotated[list[Annotated[int, Meta(ge=1, le=COUNT_MAX)]], Meta(max_length=10_000)] = []
    """The resource claims that it keeps; none: all that live now."""

    purpose: Label = ""
    """For people who look at leases."""


class LeaseRenewal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heartbeat of a lease."""

    duration_millis: Millis
    """How long it lasts from now on."""


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that stands."""

    id: str
    """Its uuid."""

    owner: str
    """The principal whose it is: they alone may renew and release it, and who may end what others hold."""

    holder: str
    """The same, and the purpose."""

    resources: list[int]
    """The resource claims that it keeps, the first thousand; none: all that lived when it was taken."""

    transaction: int
    """The last transaction when it was taken."""

    created_millis: int

    expires_millis: int
    """When it ends unless it is renewed."""

    holds_files: bool
    """Whether a connection of the Unix socket holds descriptors under it."""
