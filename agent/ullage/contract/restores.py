"""Restorations: what an administrator asks for, what the agent of a node is told to bring back, and what came of it.

A node is restored before it has a repository: its agent finds an empty directory, asks its object whether it may make a
repository there, and is told to bring one back instead. Where one lies already nothing is replaced.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from ullage.contract.backups import RepositoryName
from ullage.contract.conditions import CONDITIONS_MAX, Condition
from ullage.contract.settings import API_VERSION, DNS_SUBDOMAIN, Bytes, ClusterRecord, Count, Time
from ullage.contract.tickets import RunPhase, TicketState

PARTS_MAX: Final = 100
"""Queues, and FlowFiles and handles, that one ContentRestore names: the node's object repeats them."""

Queues = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=PARTS_MAX)]
Ids = Annotated[tuple[Annotated[str, Meta(min_length=36, max_length=36)], ...], Meta(max_length=PARTS_MAX)]

ObjectName = Annotated[str, Meta(pattern=f"({DNS_SUBDOMAIN})|^$", max_length=253)]

RESTORE_SECONDS_TOLD: Final = 30
"""How often an agent says how far it is."""


class RestoreTicket(ClusterRecord, frozen=True, kw_only=True):
    """What an agent is to bring back, before it has a repository."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    """The uid of the ContentRestore."""

    place: Annotated[str, Meta(min_length=1, max_length=2048)]
    """Where the backup lies: a URL in one of spec.service.backupBuckets."""

    generation: Count = 0
    """The generation of the ContentRepository that allows the place. The agent waits for its settings."""

    backup_generation: Annotated[int, Meta(ge=1)] | None = None
    """The number of the backup's generation, or of the share's point, that is brought back. Null is the newest."""

    at: Time | None = None
    """The newest generation or point that is not later than this is brought back. Null: whichever is said."""

    queues: Queues = ()
    """The names of the queues that are brought back alone. With `ids` empty too everything is."""

    ids: Ids = ()
    """The FlowFiles and handles that are brought back alone."""


class RestoreTicketReport(ClusterRecord, frozen=True, kw_only=True):
    """How far an agent is with a restoration."""

    id: str
    """The uid of the ContentRestore."""

    state: TicketState
    """How far the agent is. Refused: a repository was there already."""

    started: Time | None = None
    """When the agent began with the restoration."""

    ended: Time | None = None
    """When the agent was done with the restoration."""

    generation: Count = 0
    """The number of the backup's generation that was brought back."""

    bytes_done: Bytes = 0
    """The bytes that were copied, and then checked."""

    bytes: Bytes = 0
    """The bytes that are to be copied, or checked."""

    lost: Count = 0
    """The number of FlowFiles and handles that the backup has without their content."""

    erased: Count = 0
    """The number of FlowFiles and handles that the backup has and that were not brought back, because a register of
    erasures names whom they are of."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why the backup failed, for what it waits, or what it lacks."""


class RestoreSpec(ClusterRecord, frozen=True, kw_only=True):
    """The restoration that is wanted: of what, and where. Immutable."""

    repository: RepositoryName
    """The name of the ContentRepository, in the same namespace; it may be made later than this."""

    node: RepositoryName
    """The node on which it is made. It has no repository yet: nothing is ever replaced."""

    backup: ObjectName = ""
    """The ContentBackup of the same repository whose bucket has it. Either this or `place` is said."""

    from_node: ObjectName = ""
    """With `backup`: the node that wrote it. Empty is `node` itself."""

    place: Annotated[str, Meta(max_length=2048, pattern="^(s3://.*)?$")] = ""
    """Where the backup lies, `s3://BUCKET/PREFIX`, in one of the repository's spec.service.backupBuckets. A share that
    spec.replication has shipped serves as well."""

    generation: Annotated[int, Meta(ge=1)] | None = None
    """The number of the generation that is brought back, of those that `ullage backup list` names, or of a share's
    point, as `ullage backup points` does. Null is the newest. One that is not there fails: nothing else is brought back
    in its place."""

    at: Time | None = None
    """The newest generation or point that is not later than this is brought back. Null is the newest, or
    `generation`."""

    queues: Queues = ()
    """The names of the queues that are brought back, in their order; with `ids` the node gets a new repository of these
    alone, and no other content is fetched. With both empty everything is brought back."""

    ids: Ids = ()
    """The ids of the FlowFiles and handles that are brought back."""

    def __post_init__(self) -> None:
        if self.at is not None and self.generation is not None:
            raise ValueError("at and generation both say of when")


class RestoreStatus(ClusterRecord, frozen=True, kw_only=True):
    """What came of the restoration, written by the operator."""

    observed_generation: Count = 0
    """The generation of the ContentRestore that the operator last read."""

    phase: RunPhase = RunPhase.PENDING
    """How far the restoration is."""

    place: Annotated[str, Meta(max_length=2048)] = ""
    """Where the backup lies."""

    started: Time | None = None
    """When the restoration was first asked of the node's agent."""

    ended: Time | None = None
    """When the restoration ended."""

    generation: Count = 0
    """The number of the backup's generation that was brought back. 0 until then."""

    progress: str = ""
    """How much of the present step is done, as a percentage. A restoration copies, and then reads everything again."""

    lost: Count = 0
    """The number of FlowFiles and handles that the backup has without their content."""

    erased: Count = 0
    """The number of FlowFiles and handles that the backup has and that were not brought back, because a register of
    erasures names whom they are of."""

    message: str = ""
    """Why the restoration waits, or why it failed."""

    conditions: Annotated[tuple[Condition, ...], Meta(max_length=CONDITIONS_MAX)] = ()
    """How the restoration is: docs/conditions.md has all that they can say."""

    def __post_init__(self) -> None:
        if self.phase == RunPhase.RUNNING and not self.place:
            raise ValueError("what is Running has a place")


class ContentRestore(ClusterRecord, frozen=True, kw_only=True):
    """A restoration of one node's repository from a backup in a bucket."""

    spec: RestoreSpec
    status: RestoreStatus = RestoreStatus()
    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentRestore"] = "ContentRestore"
