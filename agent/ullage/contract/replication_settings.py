"""The contract's section `replication`: what a node has commits shipped to, so that they outlive it."""

import enum
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.settings import DNS_LABEL, Settings
from ullage.contract.units import Duration, Quantity


class ReplicationMode(enum.StrEnum):
    """What a commit promises beyond its node."""

    NONE = "None"
    ASYNC = "Async"


ADOPT_AFTER_MILLIS_MIN: Final = 10_000
"""A lease that is shorter lapses with a server that is slow for a moment."""

MILLIS_A_DAY: Final = 86_400_000


class ReplicationSettings(Settings, frozen=True, kw_only=True):
    """Commits and content shipped to a bucket while the repository is written."""

    mode: ReplicationMode = ReplicationMode.NONE
    """With Async, a commit is answered once it is on this node's disk, and shipped a moment later: what was answered
    and not shipped is lost with the node. With None nothing is shipped."""

    url: Annotated[str, Meta(max_length=1024)] = ""
    """`s3://BUCKET/PREFIX`. Each node's share lies below it, under the uuid of its repository. The server must keep the
    conditions of puts (If-Match, If-None-Match), which is tried out at first."""

    endpoint: Annotated[str, Meta(max_length=1024)] = ""
    """The URL of a server that is not Amazon's."""

    region: Annotated[str, Meta(max_length=64)] = ""
    """The bucket's region. Empty takes what the agent's environment says."""

    ca_file: Annotated[str, Meta(max_length=1024)] = ""
    """The absolute path of a file with certificates of further authorities that are believed, as PEM. Empty takes the
    file `ca.crt` beside credentialsFile, if there is one."""

    credentials_file: Annotated[str, Meta(max_length=1024)] = ""
    """The absolute path of a file with credentials as Amazon's tools keep them. It is read again while it is used, so
    it may be rotated. Empty takes those of the agent's environment, or its identity."""

    credentials_secret: Annotated[str, Meta(pattern=f"({DNS_LABEL})|^$", max_length=40)] = ""
    """In a cluster, which Secret of the repository has such a file as its key `credentials`, and perhaps the
    authorities of the bucket's server as its key `ca.crt`: the one beside the repository that is called
    REPOSITORY-ullage-bucket-THIS. Agents get both keys mounted, and read what they are rotated to."""

    interval: Duration = Duration(1_000)
    """How long commits are gathered before they are shipped together. It is the least that is lost with a node, and
    what a bucket's price of a put is paid for."""

    max_lag: Duration = Duration(60_000)
    """How long a commit may wait to be shipped before the condition Replicated says that the bucket is behind, and an
    alert fires. Nothing else comes of it."""

    max_held: Quantity = Quantity(1024**3)
    """How many bytes of log and content may wait for a bucket that does not answer. Beyond that they wait no more, dead
    content is given back again, and once the bucket answers it gets a new base."""

    adopt_after: Duration | None = None
    """For how long a node may go on without an answer of the bucket: from 10s on, one minute is a good choice. Beyond
    that it acknowledges, hands out and reads nothing, and another may adopt its share without anybody saying that the
    node is off. Null: it serves whatever the bucket does, and an adoption needs a person's word."""

    retention: Duration = Duration(86_400_000)
    """How long the bucket can be restored to a point in the past. What dies stays there so long."""

    guard: bool = False
    """In a cluster, whether nodes with content are kept from autoscalers and from `kubectl drain` until they are
    drained: each gets a pod that may not be evicted, in any mode. A node whose condition Drained is True has none."""


def replication_problems(settings: ReplicationSettings) -> Iterator[str]:
    """What contradicts what."""
    if settings.adopt_after is not None and not ADOPT_AFTER_MILLIS_MIN <= settings.adopt_after <= MILLIS_A_DAY:
        yield f"spec.replication.adoptAfter: {settings.adopt_after} is not between 10s and 1d"
    if settings.mode != ReplicationMode.NONE and not settings.url.startswith("s3://"):
        yield f"spec.replication.url: {settings.url!r} does not begin with s3://"
    if settings.endpoint and not settings.endpoint.startswith(("http://", "https://")):
        yield f"spec.replication.endpoint: {settings.endpoint!r} does not begin with https://"
    if settings.credentials_secret and settings.credentials_file:
        yield "spec.replication has both a credentialsFile and a credentialsSecret"
    for name, path in (("caFile", settings.ca_file), ("credentialsFile", settings.credentials_file)):
        if path and not path.startswith("/"):
            yield f"spec.replication.{name}: {path!r} is no absolute path"
