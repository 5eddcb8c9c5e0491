"""What a container holds: told of one that is lost, and before one is taken away.

Worked out from the ledger and the swap files alone, so it can be told of a container that is not there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ullage.engine.content.containers import Container
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import HANDLE_QUEUE, ContentClaim, FlowFileRecord
from ullage.errors import ForeignContainer, RepositoryDamaged

QUEUES_NAMED = 10
"""Queues that a message names, fullest first."""


class Holdings(NamedTuple):
    """What lies in one container. `records` are resource claims that name it, `content_claims` and `live_bytes` the
    base claims in use there, `flow_files` those whose content they are, by queue; `unread` are swap files that could
    not be read to count theirs.
    """

    container: str
    records: int
    archived: int
    content_claims: int
    live_bytes: int
    handles: int
    flow_files: dict[str, int]
    unread: tuple[str, ...] = ()

    def __str__(self) -> str:
        total = sum(self.flow_files.values())
        fullest = sorted(self.flow_files.items(), key=lambda pair: (-pair[1], pair[0]))
        queues = ", ".join(f"{name} {count}" for name, count in fullest[:QUEUES_NAMED])
        if len(fullest) > QUEUES_NAMED:
            queues += f" and {len(fullest) - QUEUES_NAMED} more queues"
        listed = f" ({queues})" if queues else ""
        text = (
            f"{self.records} resource claims ({self.archived} archived); in use {self.content_claims} content claims, "
            f"{self.live_bytes} bytes, of {total} FlowFiles{listed} and {self.handles} handles"
        )
        return text + (f"; not counted, because unreadable: {', '.join(self.unread)}" if self.unread else "")


ReadSwap = Callable[[str], SwapContent]


def holdings(ledger: Ledger, read_swap: ReadSwap, container: str) -> Holdings:
    """Everything that needs this container, wherever its address was born."""
    with ledger.lock:
        entries = [entry for shard in ledger.resources for entry in shard.values()]
        files = {
            entry.claim.index: entry.relocation.output if entry.relocation is not None else entry.claim.index
            for entry in entries
        }
        places = {entry.claim.index: entry.claim.container for entry in entries}
        archived = sum(1 for e in entries if e.claim.archived_millis and e.claim.container == container)
    inside = {index for index, file in files.items() if places.get(file) == container}
    claims: set[ContentClaim] = set()
    counts: Counter[int] = Counter()

    def count(records: Iterable[FlowFileRecord]) -> None:
        for record in records:
            if record.claim is not None and record.claim.resource in inside:
                claims.add(record.claim)
                counts[record.queue] += 1

    count(ledger.everything())
    unread = []
    for name, summary in sorted(ledger.swaps.items()):
        if inside.isdisjoint(share.resource for share in summary.shares):
            continue
        try:
            count(read_swap(name).records)
        except RepositoryDamaged:
            unread.append(name)  # told in the result: what is lost here must not hide what is lost there
    return Holdings(
        container,
        sum(1 for place in places.values() if place == container),
        archived,
        len(claims),
        sum(claim.length for claim in claims),
        counts.pop(HANDLE_QUEUE, 0),
        {ledger.queue_name(number) or f"number {number}": standing for number, standing in counts.items()},
        tuple(unread),
    )


def require_any(ledger: Ledger, read_swap: ReadSwap, containers: Collection[Container]) -> None:
    """ForeignContainer if none of the containers is there, or is another one's, with exactly what they held."""
    if not any(container.is_available for container in containers):
        told = "; ".join(
            f"{each.condition.reason}. It held {holdings(ledger, read_swap, each.name)}" for each in containers
        )
        raise ForeignContainer(told)
