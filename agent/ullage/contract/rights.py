"""Rights: what a principal may be allowed, each by one word, the same for Kubernetes, token files and every transport.

A right is SUBRESOURCE:VERB. In Kubernetes it is that verb on that subresource of `contentrepositories`, which RBAC
knows; in a token file it stands as it is, and the subresource alone means all verbs of it.
"""

import enum
from collections.abc import Iterable
from typing import Final

from ullage.contract.settings import GROUP


class Right(enum.StrEnum):
    """One right; what stands below it is what it allows."""

    METRICS = "metrics:get"
    """Read `/metrics`, and nothing else."""

    SPACE = "space:get"
    """See what is where and how it is: state, volumes, survey, plans, windows, runs, leases, resource claims."""

    HOLDERS = "holders:get"
    """See who holds what, by name: leases, sessions, staged writes, snapshots, streams, holds of events, uploads."""

    RECORDS = "records:get"
    """See queues, FlowFiles and handles with their attributes, without content."""

    READ = "content:get"
    """Read content."""

    WRITE = "content:create"
    """Store content: handles, FlowFiles, staged writes."""

    DELETE = "content:delete"
    """Delete handles, shorten their lives, and take FlowFiles out of queues: by sessions, by streams, by dropping."""

    UNDELETE = "content:undelete"
    """Bring a deleted handle back, and read what was deleted while its bytes are there."""

    QUEUES = "queues:update"
    """Make, set and remove queues. A queue's settings can keep writers out, and let FlowFiles expire."""

    PROVENANCE = "provenance:get"
    """See events and lineage, with attributes. Content at an event needs the right to content, too."""

    LEASE = "leases:create"
    """Take leases, snapshots and holds of events, which keep space from coming back; renew and release one's own."""

    REVOKE = "leases:delete"
    """End what somebody else holds."""

    RECLAIM = "reclaim:create"
    """Have space given back, also outside of the windows."""

    ADMIN = "admin:update"
    """Check, checkpoint and back up the repository; give up what is lost; believe the clock."""

    @property
    def subresource(self) -> str:
        """Of `contentrepositories`."""
        return self.value.partition(":")[0]

    @property
    def verb(self) -> str:
        """On the subresource."""
        return self.value.partition(":")[2]


EVERY: Final = "*"
"""All rights, those that a later version adds too."""

_READER: Final = (Right.SPACE, Right.RECORDS, Right.READ, Right.PROVENANCE, Right.LEASE)

ROLES: Final[dict[str, tuple[Right, ...]]] = {
    "scraper": (Right.METRICS,),
    "inspector": (Right.SPACE, Right.HOLDERS),
    "reader": _READER,
    "writer": (*_READER, Right.WRITE, Right.DELETE, Right.QUEUES),
    "admin": tuple(Right),
}
"""What belongs together: ClusterRoles `ullage-NAME` in a cluster, and words that a token's line may have."""


def rights_named(name: str) -> tuple[Right, ...]:
    """What a word of a token file means: a right, a subresource, a role, or `*`. ValueError for another word."""
    if name == EVERY:
        return tuple(Right)
    found = ROLES.get(name) or tuple(right for right in Right if name in {right.value, right.subresource})
    if not found:
        words = ", ".join([EVERY, *ROLES, *dict.fromkeys(right.subresource for right in Right), *Right])
        raise ValueError(f"{name!r} is no right: {words}")
    return found


def parse_rights(text: str) -> tuple[Right, ...]:
    """The rights of such words between commas, in the order of `Right`."""
    found = {right for name in text.split(",") for right in rights_named(name)}
    return tuple(right for right in Right if right in found)


def rules_of(rights: Iterable[Right], names: Iterable[str] = ()) -> list[dict[str, list[str]]]:
    """The rules of RBAC that give these rights, on the repositories of these names, or on all of the role's reach."""
    verbs: dict[str, list[str]] = {}
    for right in rights:
        verbs.setdefault(right.subresource, []).append(right.verb)
    chosen = {"resourceNames": list(names)} if names else {}
    return [
        {"apiGroups": [GROUP], "resources": [f"contentrepositories/{subresource}"], "verbs": found, **chosen}
        for subresource, found in verbs.items()
    ]
