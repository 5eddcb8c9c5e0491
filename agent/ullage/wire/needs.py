"""What each operation of each transport needs: the one list of rights, put together from the tables of operations.

The agent asks for what stands in those tables; docs/security.md shows this list, and a test tries all of it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ullage import errors
from ullage.contract import Right
from ullage.wire.frames import FrameKind
from ullage.wire.operation import OF_DELETED, Sometimes
from ullage.wire.operations import OPERATIONS
from ullage.wire.tickets import ACTIONS, TABLE_RIGHTS

SCRAPING: Final = (Right.METRICS,)
PUTTING: Final = (Right.WRITE,)
GETTING: Final = (Right.READ,)

FRAME_RIGHTS: Final[dict[FrameKind, tuple[Right, ...]]] = {
    FrameKind.RESOLVE_HANDLES: GETTING,
    FrameKind.RESOLVE_CLAIMS: GETTING,
    FrameKind.READ: GETTING,
    FrameKind.GIVE_BACK: (),
    FrameKind.PUT: PUTTING,
    FrameKind.PUT_STREAM: PUTTING,
    FrameKind.TABLE: (),
}
"""Of the requests that the Unix socket takes. For a TABLE what the table needs besides."""


UNAUDITED: Final = frozenset({Right.METRICS, Right.SPACE, Right.RECORDS, Right.PROVENANCE})
"""Who may look, and looks, leaves no line in the audit log: that is of content, changes and administration."""


REFUSALS: Final = (
    errors.Unauthenticated,
    errors.TooManyTokens,
    errors.Forbidden,
    errors.ServiceBusy,
    errors.QuotaReached,
)
"""What nobody may do, or not now because too much goes on: whatever it was about, it leaves a line."""


def is_audited(rights: Iterable[Right]) -> bool:
    """Whether an operation that needs these rights leaves a line in the audit log; whatever is refused leaves one."""
    return not UNAUDITED.issuperset(rights)


class Need(NamedTuple):
    """What one operation needs; see `Operation.rights`."""

    transport: str
    operation: str
    rights: tuple[Right, ...] | None
    sometimes: Sometimes = ()


def needs() -> Iterator[Need]:
    """Of every operation there is."""
    for each in OPERATIONS:
        yield Need("HTTP", f"{each.method} {each.path}", each.rights, each.sometimes)
    yield Need("metrics", "GET /metrics", SCRAPING)
    yield Need("Flight", "DoPut", PUTTING)
    yield Need("Flight", "DoGet of contents", GETTING, OF_DELETED)
    for table, rights in TABLE_RIGHTS.items():
        yield Need("Flight", f"DoGet of the table {table}", rights)
    for action in ACTIONS:
        yield Need("Flight", f"action {action.name}", action.rights, action.sometimes)
    for method in ("ListFlights", "GetFlightInfo", "GetSchema"):
        yield Need("Flight", method, ())
    for frame, rights in FRAME_RIGHTS.items():
        if frame != FrameKind.TABLE:
            yield Need("socket", frame.name, rights)
    for table, rights in TABLE_RIGHTS.items():
        yield Need("socket", f"{FrameKind.TABLE.name} {table}", rights)
