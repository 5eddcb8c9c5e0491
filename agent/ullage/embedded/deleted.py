"""What was deleted, and is hidden although its bytes are there: they stay for an undelete, for a lease, or until space
is given back.

Who may undelete sees it. Everybody else sees of an address only what somebody may still read by name, or what a lease
of their own has kept since it could be read: a lease promises just that.
"""

from collections import Counter
from collections.abc import Mapping
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
        self._ends: dict[int, Mapping[int, int]] = {}

    @cached_property
    def _sees_all(self) -> bool:
        return self._acting.may(Right.UNDELETE)

    def hides(self, claim: ContentClaim) -> bool:
        """Whether nobody may read this base claim by the name of a handle or FlowFile, nor has a lease kept it."""
        if self._sees_all:
            return False
        ledger = self._engine.ledger
        with ledger.lock:
            entry = ledger.entry(claim.resource)
            if entry is None:
                return False  # there is nothing to hide: reading it says what became of it
            died = self._ends_in(claim.resource).get(claim.offset)
            if died is None:
                # What stands in swap files is known in sum only: a dead address of such a file may be one of theirs.
                if entry.is_resident(claim.offset) or entry.swapped is not None:
                    return False
                died = entry.last_death_millis
        return not self._was_kept(claim.resource, died)

    def _ends_in(self, resource: int) -> Mapping[int, int]:
        """The addresses in a resource claim to which nothing points but handles that nobody may read, and when the last
        of these ended. With the ledger's lock held: a handle that is purged meanwhile would count as nothing here, and
        still as a claimant there.

        It is made once a request and resource claim: whoever asks for all contents of a file looks at its tombstones
        once, and nobody at those of other files.
        """
        if (found := self._ends.get(resource)) is not None:
            return found
        counts: Counter[int] = Counter()
        ends: dict[int, int] = {}
        for record in self._engine.handles.unreadable_in(resource):
            if record.claim is not None:
                offset = record.claim.offset
                counts[offset] += 1
                ends[offset] = max(ends.get(offset, 0), record.deleted_millis or record.expires_millis)
        entry = self._engine.ledger.entry(resource)
        found = {
            offset: end for offset, end in ends.items() if entry is None or entry.claimants_of(offset) <= counts[offset]
        }
        self._ends[resource] = found
        return found

    def _was_kept(self, resource: int, died_millis: int) -> bool:
        """Whether a lease of this principal is older than the death, and has held the resource claim since."""
        mine = (lease for lease in self._engine.leases.all() if lease.owner == self._acting.owner)
        return any(
            lease.created_millis <= died_millis and resource in (lease.resources or (resource,)) for lease in mine
        )

    def require_seen(self, event: ProvenanceEvent) -> None:
        """HandleDeleted for an event of a handle that nobody can read any more."""
        record = self._engine.ledger.find_any(event.uuid)
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
