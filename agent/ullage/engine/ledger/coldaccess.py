"""What a ledger does with cold handles: it finds them, and takes one that is about to change back into memory.

Whoever changes a handle says so first (`staying`): its row is read before any lock is taken, and a transaction finds it
in memory. A start, which serves nobody yet, reads it where the log changes it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from heapq import merge
from itertools import compress
from operator import attrgetter

from msgspec.structs import astuple

from ullage.engine.batches import require_readable
from ullage.engine.ledger.coldhandles import HANDLES_SPACE, ColdPart, ColdRun, FoundHandle, behind
from ullage.engine.ledger.coldshares import Tally, count_in, wrong_shares
from ullage.engine.ledger.resident import KeptRecords
from ullage.engine.ledger.runlistings import given_up_blocks
from ullage.engine.ledger.state import LedgerState
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import FlowFileRecord, RunFile, format_uuid
from ullage.engine.packs import PackRows
from ullage.engine.runs.rows import BlockDamaged
from ullage.engine.uninterrupted import uninterrupted

_by_uuid = attrgetter("uuid")


class ColdAccess(LedgerState):
    """Thread-safe. What reads the disk is not for the lock."""

    _view: LedgerView | None = None

    def find_any(self, uuid: bytes) -> FlowFileRecord | None:
        """A FlowFile or handle, in memory or in a run. RepositoryDamaged where what may have it cannot be read."""
        while True:
            moves = self.records.moves
            record = self.records.find(uuid)
            if record is not None or not self.cold.runs:
                return record
            found = self.cold.find(uuid)
            if found is not None:
                return found.record
            if moves == self.records.moves:
                return None
            # It has come back to memory meanwhile.

    @contextmanager
    def staying(self, uuids: Collection[bytes]) -> Iterator[None]:
        """While this lasts these handles are in memory, for a transaction that changes them. Nobody else has said so of
        one of them. RepositoryDamaged as above.
        """
        with self.lock:
            self.cold.held.update(uuids)
        try:
            if self.cold.runs:
                self._warm(uuids)
            yield
        finally:
            with self.lock:
                self.cold.held.difference_update(uuids)

    @uninterrupted
    def _warm(self, uuids: Collection[bytes]) -> None:
        for uuid in uuids:
            while self.records.find(uuid) is None:
                moves, found = self.records.moves, self.cold.find(uuid)
                with self.lock:
                    if found is None and moves == self.records.moves:
                        break
                    if found is not None and uuid not in self.records:
                        self._take_in(found)

    def _take_in(self, found: FoundHandle) -> None:
        """A cold handle is in memory from now on, if it is where it was found; called under the lock."""
        if self.cold.has(found):
            if self._view is not None:
                self._view.keep_flow_files(found.record.uuid[0])
            self.records.warm(found.record)  # first: with its share lowered nobody may need its file
            self.cold.take(found)

    def _started_with(self, uuid: bytes) -> FlowFileRecord | None:
        """A record that the log changes at a start; called under the lock, which nobody else wants then."""
        record = self.records.find(uuid)
        if record is None and self.records.is_starting and self.cold.runs:
            found = self.cold.find(uuid)
            if found is not None:
                self._take_in(found)
                record = found.record
        return record

    def _read_after_all(self, given_up: RunFile) -> Iterator[bytes]:
        """At a start: handles that it has read, and counted, of what the log gives up. They are in memory from now on;
        called under the lock.
        """
        if given_up.space != HANDLES_SPACE or not self.cold.is_replaying:
            return  # each key space numbers its runs: those of answers took handles along that nobody had given up
        run = next((run for run in self.cold.runs if run.listed.number == given_up.number), None)
        if run is None:
            return
        numbers = given_up_blocks(given_up)
        for number in [number for number in run.blocks() if number in numbers or not given_up.rows]:
            try:
                there = compress(run.rows(number).uuids, run.visible(number, run.gone))
                found = [each for each in map(run.find, there) if each is not None]
            except BlockDamaged as error:
                self.cold.pass_over(given_up.number, error)
                continue
            for each in found:
                self._take_in(each)
                yield each.record.uuid

    def loaded_counts(self) -> dict[int, int] | None:
        """At a start: how many claims there are of each resource claim that waits for more. None: one does not."""
        with self.lock:
            entries = [entry for shard in self.resources for entry in shard.values()]
        loading = [entry.loading for entry in entries]
        if None in loading:
            return None
        return {entry.claim.index: len(each) for entry, each in zip(entries, loading, strict=True) if each}

    def tally_since(self, counts: Mapping[int, int]) -> Tally:
        """What came behind these. It costs a tenth of counting each as it comes."""
        with self.lock:
            entries = [entry for shard in self.resources for entry in shard.values()]
        return {
            index: each.totals_behind(before)
            for index, each in ((entry.claim.index, entry.loading) for entry in entries)
            if each is not None and len(each) > (before := counts.get(index, 0))
        }

    def take_cold(self, run: ColdRun, number: int, rows: PackRows, tally: Tally | None) -> None:
        """At a start: count what the handles of a block keep alive, in `tally` too if there is one. One of `UNUSABLE`:
        they cannot be used.
        """
        require_readable(rows.attributes, set(rows.parents))
        visible = run.visible(number, run.gone)
        claims = list(compress(rows.claims, visible))
        with self._loading(), self.lock:
            self._take_claims(claims)
            if tally is not None:
                count_in(tally, claims)
            self.cold.note_queued(rows.queued)
        if any(rows.expires_millis) or any(rows.deleted_millis):  # none is written with an end
            ends = map(any, zip(rows.expires_millis, rows.deleted_millis, strict=True))
            for uuid in compress(rows.uuids, map(all, zip(ends, visible, strict=True))):
                self._warm([uuid])

    def hold_unread(self) -> None:
        """At a start: something cannot be read, and what it keeps alive nobody knows."""
        with self.lock:
            self.set_aside.hold_unread(max(1, self.index_ceiling))

    def release_unread(self) -> None:
        """All that could not be read is given up: what only it may have meant is dead from now on."""
        with self.lock:
            if self.set_aside.is_holding_unread:
                self.set_aside.hold_unread(0)
                for shard in self.resources:
                    self.released |= dict.fromkeys(shard, 0)

    def kept(self) -> KeptRecords:
        """All FlowFiles and handles as they are now; called under the lock, and read without it."""
        return KeptRecords([*self.records.kept().parts, *self.cold.freeze().parts])

    def cold_problems(self) -> Iterator[str]:
        """What contradicts what among handles in memory and in runs."""
        with self.lock:
            parts, shares = self.cold.freeze().parts, self.cold.shares.moment()
        counts: Counter[int] = Counter()
        tally: Tally = {}

        def each(part: ColdPart) -> Iterator[tuple[bytes, int]]:
            number = part.run.listed.number
            for record in part.records(0, None, self.cold.pass_over):
                counts[number] += 1
                if record.claim is not None:
                    count_in(tally, [astuple(record.claim)])
                yield record.uuid, number

        last = b""
        for uuid, number in merge(*map(each, parts)):
            if uuid == last or self.records.find(uuid) is not None:
                yield f"handle {format_uuid(uuid)} is in run {number}, and not only there"
            last = uuid
        for part in parts if self.cold.is_whole else ():
            number, count = part.run.listed.number, part.run.count
            if counts[number] != count:
                yield f"run {number} of handles counts {count} of them, and has {counts[number]}"
        if self.cold.is_whole and shares is not None:
            yield from wrong_shares(shares, tally)

    def everything(self) -> Iterator[FlowFileRecord]:
        """All FlowFiles and handles, in memory and in runs, that can be read. What moves meanwhile may come twice."""
        with self.lock:
            parts = self.cold.freeze().parts
        yield from self.records
        with self.lock:
            now = {part.run: part for part in self.cold.freeze().parts}
        for part in parts:  # what was there, and what has come since
            yield from part.with_those_of(now.pop(part.run, part)).records(0, None, self.cold.pass_over)
        for part in now.values():
            if part.run.is_first:
                yield from part.records(0, None, self.cold.pass_over)

    def handles_behind(self, uuid: bytes) -> Iterator[FlowFileRecord]:
        """Handles in the order of uuids from behind this one on, or all, each once; each shard as it is at a moment.
        Who leaves memory meanwhile may be missed: whoever asks compares `cold.moves` before and after.
        """
        with self.lock:
            parts = self.cold.freeze().parts
        last = b""
        cold = [behind(part, uuid, self.cold.pass_over) for part in parts]
        for record in merge(self.records.handles_behind(uuid), *cold, key=_by_uuid):
            if record.uuid != last:
                yield record
            last = record.uuid
