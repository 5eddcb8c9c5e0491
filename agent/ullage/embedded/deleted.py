"""What was deleted, and is hidden although its bytes are there: they stay for an undelete, for a lease, or until space
is given back.

Who may undelete sees it. Everybody else sees of an address only what somebody may still read by name, or what a lease
of their own has kept since it could be read: a lease promises just that.
"""

from collections import Counter
from functools import cached_property

from ullage.contract import Right
from ullage.embedded.acting import Acting
from ullage.engine.engine import Engine
from ullage.engine.handles import COMPONENT
from ullage.engine.model import HANDLE_QUEUE, ContentClaim
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.errors import HandleDeleted, HandleNotFound
from ullage.wire.provenance import EventQuery


class Deleted:
    """What is hidden from one principal, while one request of theirs is answered."""

    def __init__(self, engine: Engine, acting: Acting) -> None:
        self._engine = engine
        self._acting = acting

    @cached_property
    def _sees_all(self) -> bool:
        return self._acting.may(Right.UNDELETE)

    @cached_property
    def _tombstones(self) -> tuple[Counter[tuple[int, int]], dict[tuple[int, int], int]]:
        """Of each address how many deleted handles point there, and when the last was deleted."""
        counts: Counter[tuple[int, int]] = Counter()
        last: dict[tuple[int, int], int] = {}
        for record in self._engine.handles.unreadable():
            if record.claim is not None:
                address = record.claim.resource, record.claim.offset
                counts[address] += 1
                last[address] = max(last.get(address, 0), record.deleted_millis or record.expires_millis)
        return counts, last

    def hides(self, claim: ContentClaim) -> bool:
        """Whether nobody may read this base claim by the name of a handle or FlowFile, nor has a lease kept it."""
        if self._sees_all:
            return False
        ledger, address = self._engine.ledger, (claim.resource, claim.offset)
        entry = ledger.entry(claim.resource)
        if entry is None:
            return False  # there is nothing to hide: reading it says what became of it
        with ledger.lock:
            in_swap_files = entry.swapped is not None
            standing = 0 if claim.offset not in entry.live else (entry.shared or {}).get(claim.offset, 1)
            last_death = entry.last_death_millis
        counts, deleted = self._tombstones
        # What stands in swap files is known in sum only: a dead address of such a file may be one of theirs.
        if standing > counts[address] or (in_swap_files and not standing):
            return False
        died = deleted.get(address, last_death)
        return not self._was_kept(claim.resource, died)

    def _was_kept(self, resource: int, died_millis: int) -> bool:
        """Whether a lease of this principal is older than the death, and has held the resource claim since."""
        mine = (lease for lease in self._engine.leases.all() if lease.owner == self._acting.owner)
        return any(
            lease.created_millis <= died_millis and resource in (lease.resources or (resource,)) for lease in mine
        )

    def require_seen(self, event: ProvenanceEvent) -> None:
        """HandleDeleted for an event of a handle that nobody can read any more."""
        record = self._engine.ledger.find(event.uuid)
        is_of_handle = self._was_handle(event) if record is None else record.queue == HANDLE_QUEUE
        if not is_of_handle or self._sees_all:
            return
        try:
            self._engine.handles.record(event.uuid)
        except (HandleDeleted, HandleNotFound) as error:
            raise HandleDeleted(
                f"event {event.id} is of handle {event.flow_file}, which was deleted: its content is for who has the "
                f"right {Right.UNDELETE}"
            ) from error

    def _was_handle(self, event: ProvenanceEvent) -> bool:
        """By its events, for nothing else is left of it."""
        told = EventQuery(flow_file=event.flow_file, component=COMPONENT, limit=1)
        return event.component == COMPONENT or bool(self._engine.history.query(told).events)
