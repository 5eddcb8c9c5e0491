"""Verify everything against everything: ledger, counts recounted, files, sizes, checksums, swap files and queues.

Every engine test ends with it. It reports, it never mends; what it reports names the claim, file and offset.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from ullage.engine.believed import BelievedClock
from ullage.engine.byteranges import unpack_ranges
from ullage.engine.content.availability import Damage
from ullage.engine.content.protocol import ContentStore
from ullage.engine.content.reader import ContentReader
from ullage.engine.files import Files
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import end_in_use, placement_problems
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.ledger.swap import SwapFiles, shares_of
from ullage.engine.model import HANDLE_QUEUE, STAGED_QUEUE, Action, ContentClaim, format_uuid
from ullage.engine.reclaim.execute import charged_bytes
from ullage.engine.repositories import FlowFileRepository, ProvenanceRepository
from ullage.errors import (
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    RepositoryDamaged,
)
from ullage.wire.upkeep import CheckReport

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckedParts:
    """The parts of a repository that are checked: all that keep something."""

    files: Files
    ledger: Ledger
    spaces: KeySpaces
    content: ContentStore
    reader: ContentReader
    queues: QueueManager
    swap_files: SwapFiles
    flow_file: FlowFileRepository
    provenance: ProvenanceRepository
    clock: BelievedClock
    identity_problems: Callable[[], Iterable[str]]
    survey_problems: Callable[[], Iterable[str]]


def check_repository(parts: CheckedParts, *, deep: bool = False, on_progress: Progress | None = None) -> CheckReport:
    """Check a repository in which nothing is being committed. `deep` also reads every byte of live content, and of what
    memory holds already the files that the next start will read.

    `on_progress` gets bytes verified and bytes to verify.
    """
    parts.content.look_at_volumes()
    check = _Check(parts)
    return CheckReport(
        problems=tuple(check.problems(on_progress, deep=deep)),
        orphans=tuple(orphan.path for orphan in parts.content.orphans(parts.ledger.claim)),
        set_aside=tuple(f"{format_uuid(each.id)}: {each.place}: {each.reason}" for each in check.set_aside),
        clock=parts.clock.look().reason,
        flow_files=check.flow_files,
        resource_claims=len(check.entries),
        bytes_verified=check.verified,
    )


class _Check:
    """One look at everything. Each part yields what is wrong, and keeps what the others need of what it has seen."""

    def __init__(self, parts: CheckedParts) -> None:
        self.flow_files = 0
        self.verified = 0
        self.set_aside = parts.ledger.set_aside.all()
        self.entries: list[ResourceEntry] = []
        self._parts = parts
        self._ledger = parts.ledger
        self._content = parts.content
        self._claims: dict[tuple[int, int], ContentClaim] = {}
        self._swapped: dict[str, SwapContent] = {}

    def problems(self, on_progress: Progress | None, *, deep: bool) -> Iterator[str]:
        yield from self._swaps()
        yield from self._counts()
        yield from self._parts.survey_problems()
        self.entries = list(self._ledger.entries())
        yield from self._volumes()
        for entry in self.entries:
            if entry.relocation is None:
                yield from self._file(entry)
        yield from placement_problems(self._ledger, self._swapped.values())
        yield from self._staged()
        yield from self._queues()
        yield from self._parts.spaces.problems(deep=deep)
        if deep:
            yield from self._named(dict(self._bytes(on_progress)))
            yield from self._holes()
            yield from self._on_disk()
        elif self._parts.reader.availability:
            known = self._parts.reader.availability
            claims = {
                key: damage.reason for key, claim in self._all_claims().items() if (damage := known.damage(claim))
            }
            yield from self._named(claims)
        yield from self._accounts()
        yield from self._parts.provenance.problems(deep=deep)

    def _counts(self) -> Iterator[str]:
        """Recount claimants from the FlowFiles alone and compare with what the ledger kept up to date."""
        counts: dict[int, dict[int, int]] = {}
        with self._ledger.lock:
            kept = self._ledger.kept()
        for record in kept.readable(self._ledger.cold.pass_over):
            self.flow_files += 1
            claim = record.claim
            if claim is not None:
                self._claims[claim.resource, claim.offset] = claim
                held = counts.setdefault(claim.resource, {})
                held[claim.offset] = held.get(claim.offset, 0) + 1
                if not 0 <= record.start <= record.start + record.size <= claim.length:
                    yield f"FlowFile {record.id}: its slice lies outside its claim"
        entries = list(self._ledger.entries())
        if self._ledger.cold.is_whole:  # else what cannot be read is named, and nobody knows what it counts for
            for entry in entries:
                yield from _wrong_counts(entry, counts.pop(entry.claim.index, {}))
            yield from (f"resource claim {index} has FlowFiles but no entry" for index in counts)
        with self._ledger.lock:
            yield from list(self._ledger.records.problems())
        yield from self._ledger.cold_problems()
        if self._ledger.intended != {entry.claim.index for entry in entries if entry.has_intent}:
            yield f"the resource claims with an intent are not {sorted(self._ledger.intended)}"
        if any(index > self._ledger.index_ceiling for shard in self._ledger.resources for index in shard):
            yield f"a resource claim's index lies above the ceiling {self._ledger.index_ceiling}"

    def _swaps(self) -> Iterator[str]:
        """Swap files hold what their summaries say, and the resource claims know their shares."""
        ledger, files = self._ledger, self._parts.swap_files
        for name, summary in sorted(ledger.swaps.items()):
            try:
                content = self._swapped[name] = files.read(name)
            except RepositoryDamaged as error:
                yield str(error)
                continue
            self.flow_files += len(content.records)
            self.set_aside += content.set_aside
            if content.set_aside:
                continue  # what the summary counts is not all here; they are set aside for good once it is swapped in
            shares = shares_of(content.records)
            if set(shares) != set(summary.shares):
                yield f"swap file {name}: its claims are not those of its summary"
            for share in shares:
                entry = ledger.entry(share.resource)
                if entry is None or (entry.swapped or {}).get(name) != share:
                    yield f"swap file {name}: resource claim {share.resource} does not know its share"
            for record in content.records:
                if ledger.find(record.uuid) is not None:
                    yield f"FlowFile {record.id} is both resident and in swap file {name}"
        unknown = set(files.names()) - set(ledger.swaps) - set(ledger.retired_swaps)
        unknown = {name for name in unknown if not ledger.set_aside.may_mean_swap(name)}
        yield from (f"swap file {name} is in no queue" for name in sorted(unknown))

    def _volumes(self) -> Iterator[str]:
        """Those that are not there; which FlowFiles and handles that concerns is named below."""
        for name in sorted(self._content.away):
            count = sum(entry.claim.container == name for entry in self.entries)
            reason = self._content.containers[name].condition.reason
            yield f"container {name} is away, and {count} resource claims with it: {reason}"

    def _file(self, entry: ResourceEntry) -> Iterator[str]:
        claim = entry.claim
        path, length = self._content.path_of(claim), self._content.length_of(claim)
        if length is None:
            if not self._content.is_there(claim):
                return  # said once, of the volume
            if claim.intent != Action.DELETE:  # by which it may be gone already
                damage = Damage(claim.index, path, f"resource claim {claim.index}: {path} is missing")
                self._parts.reader.availability.note_file(damage)  # what points at it is named below
                yield damage.reason
            return
        with self._ledger.lock:
            end = end_in_use(self._ledger, entry)
        if length < end:
            yield f"resource claim {claim.index}: {path} has {length} bytes, its claims reach to {end}"
        if claim.sealed and not entry.has_intent and length != claim.length:
            yield f"resource claim {claim.index}: {path} has {length} bytes, the ledger says {claim.length}"

    def _accounts(self) -> Iterator[str]:
        """The bytes that each container is charged for are those of its resource claims, written ones included."""
        lengths = {entry.claim.index: charged_bytes(entry.claim) for entry in self.entries}
        containers = {entry.claim.index: entry.claim.container for entry in self.entries}
        lengths.update(self._content.open_lengths())
        containers.update((claim.index, claim.container) for claim in self._content.open_claims())
        for name, container in self._content.containers.items():
            charged = sum(length for index, length in lengths.items() if containers.get(index) == name)
            if container.bytes_used != charged:
                used = container.bytes_used
                yield f"container {name} is charged for {used} bytes, its resource claims have {charged}"

    def _queues(self) -> Iterator[str]:
        """Each queue shows the committed FlowFiles of its number, but for those that sessions hold."""
        by_queue: dict[int, set[bytes]] = {}
        for record in self._ledger.flow_files():
            if record.queue not in (HANDLE_QUEUE, STAGED_QUEUE):
                by_queue.setdefault(record.queue, set()).add(record.uuid)
        for queue in self._parts.queues.all():
            shown = [record.uuid for record in queue.records()]
            committed = by_queue.pop(queue.number, set())
            figures = queue.figures()
            resident = len(committed)
            if len(shown) != len(set(shown)) or not committed.issuperset(shown):
                yield f"queue {queue.name} shows FlowFiles twice, or ones that do not exist"
            if resident - len(shown) != figures.held:
                shows = f"{len(shown)} shown, {figures.held} held"
                yield f"queue {queue.name}: {resident} FlowFiles committed, {shows}"
            if figures.flow_files != resident + figures.swapped:
                has = f"{resident} are resident and {figures.swapped} swapped"
                yield f"queue {queue.name} counts {figures.flow_files} FlowFiles, {has}"
        yield from (f"FlowFiles stand in queue number {number}, which is not defined" for number in by_queue)

    def _staged(self) -> Iterator[str]:
        """What nobody sees belongs to a staged write, and what an open one names is staged."""
        hidden = {record.uuid for record in self._ledger.flow_files() if record.queue == STAGED_QUEUE}
        with self._ledger.lock:
            writes = list(self._ledger.writes.pending.values())
        named: set[bytes] = set()
        for write in writes:
            own = {*write.chosen(), *write.others()}
            if not write.is_closed and not own <= hidden:
                yield f"write {format_uuid(write.record.id)} is open, and some of it is not staged"
            named |= own
        yield from (f"FlowFile {format_uuid(each)} is staged by no write" for each in sorted(hidden - named))

    def _all_claims(self) -> dict[tuple[int, int], ContentClaim]:
        claims = dict(self._claims)
        for content in self._swapped.values():
            claims.update(
                {(c.resource, c.offset): c for c in (each.claim for each in content.records) if c is not None}
            )
        return claims

    def _named(self, damaged: dict[tuple[int, int], str]) -> Iterator[str]:
        """Which FlowFiles and handles point at claims that can't be read."""
        if not damaged:
            return
        swapped = (record for content in self._swapped.values() for record in content.records)
        for record in chain(self._ledger.everything(), swapped):
            claim = record.claim
            if claim is not None and (claim.resource, claim.offset) in damaged:
                reason = damaged[claim.resource, claim.offset]
                yield f"{self._parts.reader.described(record)} is unavailable: {reason}"

    def _bytes(self, on_progress: Progress | None) -> Iterator[tuple[tuple[int, int], str]]:
        """Read every live byte against its checksums; claims that fail, and why."""
        claims = self._all_claims()
        total = sum(claim.length for claim in claims.values())
        for key, claim in sorted(claims.items()):  # in the order of the files, which is that of the disk
            try:
                self._parts.reader.verify(claim)
            except (ContentMissing, ContentCorrupt, ContentReclaimed) as error:
                yield key, str(error)
            else:
                self.verified += claim.length
            if on_progress is not None:
                on_progress(self.verified, total)

    def _on_disk(self) -> Iterator[str]:
        """What memory holds as well, read from the files that the next start will read."""
        yield from self._parts.flow_file.problems()
        yield from self._parts.identity_problems()
        for name in sorted(self._ledger.swapped_in):
            # Until a checkpoint covers its SwapIn a start reads it again; one that did so just now has removed it.
            try:
                self._parts.swap_files.read(name)
            except RepositoryDamaged as error:
                if name in self._ledger.swapped_in:
                    yield f"{error}; `ullage checkpoint` makes it unnecessary, before the repository is closed"

    def _holes(self) -> Iterator[str]:
        """What was reported as given back is given back: holes read as zeros."""
        for entry in self.entries:
            if not entry.claim.holes or entry.has_intent:
                continue
            name = f"resource claim {entry.claim.index} ({self._content.path_of(entry.claim)})"
            try:
                with self._content.reading(entry.claim) as file:
                    for hole in unpack_ranges(entry.claim.holes):
                        if any(file.read(hole.length, hole.offset)):
                            yield f"{name}: {hole.length} bytes at offset {hole.offset} were given back, and are there"
            except ContentMissing as error:
                yield str(error)


def _wrong_counts(entry: ResourceEntry, counted: dict[int, int]) -> Iterator[str]:
    residents = entry.residents()
    kept = {claim.offset: entry.claimants_of(claim.offset) for claim in residents.claims}
    index = entry.claim.index
    if kept != counted:
        wrong = min(offset for offset in kept.keys() | counted.keys() if kept.get(offset) != counted.get(offset))
        says = f"the ledger counts {kept.get(wrong, 0)} claimants, the FlowFiles say {counted.get(wrong, 0)}"
        yield f"resource claim {index}: at offset {wrong} {says}"
    kept_totals, counted_totals = (entry.resident_claimants, entry.live_bytes), (sum(counted.values()), residents.bytes)
    if kept_totals != counted_totals:
        totals = "{} claimants and {} live bytes"
        yield f"resource claim {index}: {totals.format(*kept_totals)} kept, {totals.format(*counted_totals)} counted"
    bound, is_exact = entry.resident_bound, entry.is_bound_exact
    if residents.end > bound or (is_exact and residents.end != bound):
        yield f"resource claim {index}: its claims reach to {residents.end}, and to {bound} is what is kept"
    end = 0
    for claim in sorted(residents.claims, key=lambda claim: (claim.offset, claim.end)):
        if claim.offset < end:
            yield f"resource claim {index}: base claims overlap at offset {claim.offset}"
        end = claim.end
