"""Numbers of the wire format that have names."""

from enum import IntEnum, StrEnum


class Lifetime(IntEnum):
    """How long a writer expects content to live; classes never share a resource claim, so that files die whole.

    >>> handle = repository.handles.put(b"for a moment", ttl_millis=60_000, lifetime=ullage.Lifetime.SHORT)
    """

    SHORT = 1
    DEFAULT = 2
    LONG = 3


class Action(IntEnum):
    """A physical change that is promised (durable intent) but not yet known to be done."""

    NONE = 0
    TRUNCATE = 1
    DELETE = 2
    ARCHIVE = 3
    PUNCH = 4
    REWRITE = 5


class SpaceUse(StrEnum):
    """What bytes of a repository's disk are there for.

    >>> {share.use for share in repository.reclamation.explain().shares} <= set(ullage.SpaceUse)
    True
    """

    LIVE = "Live"
    """FlowFiles and handles point at it."""

    ROUNDING = "Rounding"
    """The rest of filesystem blocks of which something lives."""

    WRITING = "Writing"
    """Dead bytes of files that are still appended to; what has no transaction yet is among them."""

    TOMBSTONE = "Tombstone"
    """Deleted handles keep it until they can't be undeleted any more."""

    ARCHIVE = "Archive"
    """Dead, and kept for replays."""

    PINNED = "Pinned"
    """Dead, and a session or a reader uses it still."""

    LEASE = "Lease"
    """Dead, and a lease keeps its file as it is."""

    SET_ASIDE = "SetAside"
    """Dead as far as is known, and a record that was set aside may point at it."""

    WINDOW = "Window"
    """Dead, and the windows of spec.maintenance permit no run now."""

    UNPROVED = "Unproved"
    """Dead, in files that are still to be read after an unclean end, or that did not read back."""

    INTENT = "Intent"
    """Dead, and being given back."""

    DUE = "Due"
    """Dead, and the next run that begins by itself gives it back."""

    THRESHOLD = "Threshold"
    """Dead, and by the settings not worth giving back."""

    ORPHAN = "Orphan"
    """Content files of transactions that never came."""

    OVERHEAD = "Overhead"
    """What the filesystem allocates beyond the end of a file, and for its own lists of a file's blocks."""

    RESERVE = "Reserve"
    """Room that only what makes room may use."""

    LOG = "Log"
    """The write-ahead log."""

    SNAPSHOT = "Snapshot"

    SWAP = "Swap"
    """FlowFiles of long queues."""

    PROVENANCE = "Provenance"
    """Event files."""

    INDEX = "Index"
    """What finds provenance events."""

    DIRECTORY = "Directory"
    """Directories themselves."""

    OTHER = "Other"
    """Identity files, the lock, and files that are not of this repository."""


class GivenBack(StrEnum):
    """When dead bytes come back.

    >>> {coming.when for coming in repository.reclamation.forecast().coming} <= set(ullage.GivenBack)
    True
    """

    NOW = "Now"
    """A run that gives them back is due."""

    NEXT_RUN = "NextRun"
    """With the next run of the task that does it."""

    WINDOW_OPENS = "WindowOpens"
    """When spec.maintenance permits it again."""

    RETENTION_ENDS = "RetentionEnds"
    """When they need not be kept any longer: for replays, or for an undelete."""

    HOLDER_LETS_GO = "HolderLetsGo"
    """When a reader, a writer, a session or a lease does."""

    NOT_BY_ITSELF = "NotByItself"
    """Only when somebody asks for it, or a setting changes."""


class GoalDecider(StrEnum):
    """What decided which files compaction takes, where spec.compaction has a goal.

    >>> str(repository.reclamation.goal().decided_by)
    'Nobody'
    """

    NOBODY = "Nobody"
    """Nothing has to be done."""

    GOAL = "Goal"

    THRESHOLDS = "Thresholds"
    """They keep the goal from the files that it asks for."""


class GoalHindrance(StrEnum):
    """What keeps a goal of compaction from being held.

    >>> repository.reclamation.goal().hindrance is None
    True
    """

    BACKLOG = "Backlog"
    """What was dead before the goal was set, which is being given back."""

    WINDOW = "Window"
    """Windows permit too little time."""

    HOLDER = "Holder"
    """A lease, a writer, or a file that is to be read first."""

    LIMIT = "Limit"
    """A limit or a threshold of the spec."""

    DISK = "Disk"
    """More dies than the disk copies."""


class HolderKind(StrEnum):
    """What somebody holds, so that it does not go.

    >>> ullage.HolderKind("Lease").name
    'LEASE'
    """

    LEASE = "Lease"
    """Resource claims, or all that lived at one time: they are not reclaimed."""

    STAGED_WRITE = "StagedWrite"
    """Contents that are not committed yet."""

    SESSION = "Session"
    """FlowFiles that a session took, or made: nobody else has them until it ends."""

    SNAPSHOT = "Snapshot"
    """Tables as of one moment, in memory; a lease may stand beside it."""

    STREAM = "Stream"
    """FlowFiles that were taken out of a queue for a stream that has not read them yet."""

    EVENTS = "Events"
    """Provenance events that a reader has not got to yet."""

    UPLOAD = "Upload"
    """Content that is on its way in."""


class WriteState(IntEnum):
    """How far a staged write is. What is committed or aborted takes no more contents."""

    OPEN = 1
    PREPARED = 2
    COMMITTED = 3
    ABORTED = 4


class EventType(IntEnum):
    """What happened to a FlowFile; the words are NiFi's. Documents of events have the names.

    >>> EventType["RECEIVE"].name
    'RECEIVE'
    """

    RECEIVE = 1
    CREATE = 2
    FETCH = 3
    FORK = 4
    JOIN = 5
    CLONE = 6
    CONTENT_MODIFIED = 7
    ATTRIBUTES_MODIFIED = 8
    ROUTE = 9
    SEND = 10
    DROP = 11
    EXPIRE = 12
    REPLAY = 13
    DOWNLOAD = 14
    ADDINFO = 15


class LineageDirection(StrEnum):
    """Whether to look for what a FlowFile came from, for what came of it, or for both."""

    BOTH = "both"
    PARENTS = "parents"
    CHILDREN = "children"
