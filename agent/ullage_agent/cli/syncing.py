"""What a queue has of a tree already: `put --sync` puts only what is new or has changed."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from ullage.errors import QueueNotFound
from ullage_agent.cli.filefacts import ENCODED, GROUP, MODIFIED, OWNER, PERMISSIONS, TYPE
from ullage_agent.cli.trees import STDIN, Source

if TYPE_CHECKING:
    from ullage import Repository

PLACE = ("absolute.path", "path", "filename", ENCODED)
STATE = (TYPE, PERMISSIONS, MODIFIED, OWNER, GROUP)
DIGEST_BYTES = 16


class Compared(NamedTuple):
    """Sources that are to be put, how many are in the queue as they are now, and how many were another time."""

    left: list[Source]
    unchanged: int
    changed: int


def compare(repository: "Repository", queue: str, sources: Iterable[Source], common: Mapping[str, str]) -> Compared:
    """Each file is known by where it lies and where it comes back, and unchanged if its size, type, time, permissions
    and owner are: its content is not read. `common`: attributes that each gets instead of its own. Stdin is always put.
    Some 200 bytes of memory for each FlowFile of the queue.
    """
    known: dict[bytes, bytes] = {}  # the newest version of each: get brings that back
    try:
        for record in repository.queues.all_flow_files(queue):
            known[_digest(record.attributes, PLACE)] = _state(record.attributes, record.size)
    except QueueNotFound:
        return Compared(list(sources), 0, 0)
    left, unchanged, changed = [], 0, 0
    for source in sources:
        attributes = {**source.attributes, **common}
        found = None if source.path == STDIN else known.get(_digest(attributes, PLACE))
        if found is not None and _state(attributes, source.size) == found:
            unchanged += 1
        else:
            left.append(source)
            changed += found is not None
    return Compared(left, unchanged, changed)


def _state(attributes: Mapping[str, str], size: int) -> bytes:
    return _digest({**attributes, "size": str(size)}, (*STATE, "size"))


def _digest(attributes: Mapping[str, str], names: Iterable[str]) -> bytes:
    # A zero byte is in no path, and so ends each part.
    return blake2b("\0".join(attributes.get(name, "") for name in names).encode(), digest_size=DIGEST_BYTES).digest()
