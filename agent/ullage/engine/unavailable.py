"""FlowFiles and handles whose content can't be read: which they are, and a person's two ways on.

Consumers pass over them, their time stands still, and nothing drops them but a person's word. *Retry* reads their files
again, after somebody has mended them, and brings them back to their places; *drop* gives them up.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from ullage.engine.content.availability import Availability, Damage
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import PassedOver
from ullage.engine.handles import HandleStore
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import HANDLE_QUEUE, STAGED_QUEUE, FlowFileRecord, format_uuid
from ullage.engine.proof import ContentProof, SwapProof
from ullage.errors import HandleDeleted, RepositoryDamaged, VolumeAway


class Unavailable(NamedTuple):
    """A FlowFile or handle, and why its content can't be read."""

    record: FlowFileRecord
    damage: Damage


class UnavailableContents:
    """Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        availability: Availability,
        swap_files: SwapFiles,
        proof: ContentProof,
        swap_proof: SwapProof,
        queues: QueueManager,
        handles: HandleStore,
    ) -> None:
        self._ledger = ledger
        self._availability = availability
        self._swap_files = swap_files
        self._proof = proof
        self._swap_proof = swap_proof
        self._queues = queues
        self._handles = handles

    def listed(self, limit: int) -> list[Unavailable]:
        """Up to `limit` of those that are known, by queue and place: what a read, a check or the proof after an unclean
        end has met. As long as everything can be read it looks at nothing, else at every record.
        """
        found = islice(self._all(), limit) if self._availability else ()
        return sorted(found, key=lambda each: (each.record.queue, each.record.queued))

    def passed_over(self, limit: int) -> list[tuple[PassedOver, str]]:
        """Up to `limit` swap files that a poll, a retry or the proof after a start could not read, with their paths."""
        found = [each for queue in self._queues.all() for each in queue.passed_over()]
        return [(each, self._swap_files.path(each.summary.name)) for each in found[:limit]]

    def having(self, damages: Mapping[tuple[int, int], Damage], limit: int) -> list[Unavailable]:
        """Up to `limit` FlowFiles and handles that have one of these claims, by resource claim and offset."""
        if not damages:
            return []
        files = {damage.file for damage in damages.values()}
        found = (
            Unavailable(record, damage)
            for record in self._records(files)
            if record.claim is not None
            and (damage := damages.get((record.claim.resource, record.claim.offset))) is not None
        )
        return sorted(islice(found, limit), key=lambda each: (each.record.queue, each.record.queued))

    def retry(self) -> int:
        """Read again what could not be read, and let what reads back return to its place; how many FlowFiles did."""
        self._proof.begin()
        self._proof.run()
        returned = sum(queue.put_back() for queue in self._queues.all()) + self._queues.retry_passed_over()
        self._swap_proof.run()
        return returned

    def drop(self, uuids: Collection[bytes], by: str = "") -> int:
        """Give up those of these that are unavailable and that nobody holds, each with a DROP event that names `by`
        whom; how many.

        VolumeAway, with nothing dropped, where nothing is wrong with one of them but that its volume is away.
        """
        handles: list[FlowFileRecord] = []
        resources: set[int] = set()
        for record, damage in self._all():
            if record.uuid not in uuids:
                continue
            if damage.is_away:
                raise VolumeAway(
                    f"{format_uuid(record.uuid)} is not lost, it is back when its volume is: {damage.reason}"
                )
            if record.claim is not None:
                resources.add(record.claim.resource)
            if record.queue == HANDLE_QUEUE:
                handles.append(record)
        dropped = 0
        for record in handles:
            if not record.deleted_millis:
                with suppress(HandleDeleted):  # somebody else was faster, or its time was over before
                    self._handles.delete(record.id, by=by)
                    dropped += 1
        return dropped + self._queues.drop_unavailable(uuids, resources, by=by)

    def give_up(self, container: str, details: str, by: str = "") -> int:
        """Give up all that has its content in this container and that nobody holds, each with a DROP event; how many.
        For a container that is forgotten.
        """
        handles: list[bytes] = []
        uuids: set[bytes] = set()
        resources: set[int] = set()
        for record, damage in self._all():
            entry = self._ledger.entry(damage.file)
            if record.claim is None or entry is None or entry.claim.container != container:
                continue
            if record.queue == HANDLE_QUEUE:
                handles.append(record.uuid)
            else:
                uuids.add(record.uuid)
                resources.add(record.claim.resource)
        dropped = self._handles.forget(handles, details, by)
        return dropped + (self._queues.drop_unavailable(uuids, resources, details, by) if uuids else 0)

    def _all(self) -> Iterator[Unavailable]:
        for record in self._records(self._availability.files()):
            damage = self._availability.damage(record.claim)
            if damage is not None and record.queue != STAGED_QUEUE:
                yield Unavailable(record, damage)

    def _records(self, files: Collection[int]) -> Iterator[FlowFileRecord]:
        """All that may be meant: resident ones, and those of swap files that point into these files."""
        yield from self._ledger.everything()
        names: set[str] = set()
        files = self._availability.files() | self._availability.files_away()
        with self._ledger.lock:
            for index in files:
                entry = self._ledger.entry(index)
                births = [entry, *map(self._ledger.entry, (entry.sources or ()))] if entry is not None else []
                names.update(name for birth in births if birth is not None for name in birth.swapped or ())
        for name in sorted(names & self._ledger.swaps.keys()):
            # One that can't be read itself is listed for that (`passed_over`), and `check` names it.
            with suppress(RepositoryDamaged):
                yield from self._swap_files.read(name).records
