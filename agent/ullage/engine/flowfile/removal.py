"""FlowFiles that go out of queues without a session: which, and what provenance says of them."""

from collections.abc import Callable
from typing import Final, NamedTuple

from ullage.engine.model import EventType, FlowFileRecord


class Told(NamedTuple):
    """What provenance says of FlowFiles that go: `by` whom, if somebody asked for it."""

    type: EventType
    details: str
    by: str = ""


EMPTIED: Final = "the queue was emptied"
EXPIRY: Final = Told(EventType.EXPIRE, "older than its queue allows")
UNREADABLE: Final = "its content could not be read, and its loss was accepted"


class Removal(NamedTuple):
    """Which FlowFiles go out of swap files, and what provenance says of them."""

    is_meant: Callable[[FlowFileRecord], bool]
    told: Told
