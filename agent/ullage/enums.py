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
