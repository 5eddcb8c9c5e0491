"""Pages of records and events, which end early where these are large: an answer is made as a whole, and stays in memory
until its client has taken it.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from ullage.engine.model import FlowFileRecord

PAGE_BYTES: Final = 16 << 20
"""What the records or events of a page come to, packed; one alone may have more. As JSON they take twice to six times
that.
"""

Row = TypeVar("Row")


def page(rows: Iterable[Row], limit: int, bytes_of: Callable[[Row], int]) -> tuple[list[Row], bool]:
    """The first rows, one at least, and whether there are more; no more are asked for than the page takes and one."""
    found: list[Row] = []
    size = 0
    for row in rows:
        size += bytes_of(row)
        if len(found) == limit or (found and size > PAGE_BYTES):
            return found, True
        found.append(row)
    return found, False


def record_bytes(record: FlowFileRecord) -> int:
    """What a FlowFile or handle has that may be large."""
    return len(record.attributes) + len(record.parents)
