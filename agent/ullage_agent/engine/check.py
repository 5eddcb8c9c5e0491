"""Verify everything against everything: ledger, counts recounted, files, sizes, checksums, swap files and queues.

Every engine test ends with it. It reports, it never mends; what it reports names the claim, file and offset.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ullage_agent.engine.content.reader import ContentReader
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.errors import (
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    FormatTooNew,
    RepositoryDamaged,
)
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger, SwapContent
from ullage_agent.engine.flowfile.manager import QueueManager
from ullage_agent.engine.flowfile.placement import end_in_use, placement_problems
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.flowfile.swap import SwapFiles, shares_of
from ullage_agent.engine.model import HANDLE_QUEUE, STAGED_QUEUE, Action, ContentClaim, FlowFile, format_uuid
from ullage_agent.engine.provenance.store import ProvenanceStore
from ullage_agent.engine.reclaim.execute import charged_bytes
from ullage_agent.engine.reclaim.orphans import find_orphans
from ullage_agent.engine.runs import unpack_runs

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """`problems` are contradictions; `orphans` are content files that nothing refers to, kept until a later step."""

    problems: tuple[str, ...]
    orphans: tuple[str, ...]
    flow_files: int
    resource_claims: int
    bytes_verified: int


class CheckedRepository(Protocol):
    """The parts that are checked."""

    files: Files
    ledger: Ledger
    content: ContentRepository
    reader: ContentReader
    queues: QueueManager
    swap_files: SwapFiles
    provenance: ProvenanceStore


@dataclass(slots=True)
class _Findings:
    problems: list[str] = field(default_factory=list)
    claims: dict[tuple[int, int], ContentClaim] = field(default_factory=dict)
    swapped: dict[str, SwapContent] = field(default_factory=dict)


def check_repository(
    repository: CheckedRepository, *, deep: bool = False, on_progress: Progress | None = None
) -> CheckReport:
    """Check a repository in which nothing is being committed. `deep` also reads every byte of live content.

    `on_progress` gets bytes verified and bytes to verify.
    """
    findings = _Findings()
    flow_files = _check_swaps(repository, findings)
    flow_files += _check_counts(repository.ledger, findings)
    entries = list(repository.ledger.entries())
    for entry in entries:
        if entry.relocation is None:
            _check_file(repository, entry, findings)
    findings.problems.extend(placement_problems(repository.ledger, findings.swapped.values()))
    _check_staged(repository.ledger, findings)
    _check_queues(repository, findings)
    verified = _check_content(repository, findings, on_progress) if deep else 0
    if deep:
        _check_holes(repository, entries, findings)
    _check_accounts(repository, entries, findings)
    findings.problems.extend(repository.provenance.problems(deep=deep))
    orphans = find_orphans(repository.files, repository.ledger, repository.content)
    return CheckReport(
        tuple(findings.problems), tuple(orphan.path for orphan in orphans), flow_files, len(entries), verified
    )


def _check_counts(ledger: Ledger, findings: _Findings) -> int:
    """Recount claimants from the FlowFiles alone and compare with what the ledger kept up to date."""
    counts: dict[int, dict[int, int]] = {}
    flow_files = 0
    with ledger.lock:
        for shard in ledger.shards:
            for record in shard.values():
                flow_files += 1
                claim = record.claim
                if claim is not None:
                    findings.claims[claim.resource, claim.offset] = claim
                    held = counts.setdefault(claim.resource, {})
                    held[claim.offset] = held.get(claim.offset, 0) + 1
                    if not 0 <= record.start <= record.start + record.size <= claim.length:
                        findings.problems.append(f"FlowFile {record.id}: its slice lies outside its claim")
        for entry in (entry for shard in ledger.resources for entry in shard.values()):
            _compare_counts(entry, counts.pop(entry.claim.index, {}), findings)
    findings.problems.extend(f"resource claim {index} has FlowFiles but no entry" for index in counts)
    if any(index > ledger.index_ceiling for shard in ledger.resources for index in shard):
        findings.problems.append(f"a resource claim's index lies above the ceiling {ledger.index_ceiling}")
    return flow_files


def _compare_counts(entry: ResourceEntry, counted: dict[int, int], findings: _Findings) -> None:
    kept = {offset: (entry.shared or {}).get(offset, 1) for offset in entry.live}
    index = entry.claim.index
    if kept != counted:
        wrong = sorted(offset for offset in kept.keys() | counted.keys() if kept.get(offset) != counted.get(offset))
        findings.problems.append(
            f"resource claim {index}: at offset {wrong[0]} the ledger counts {kept.get(wrong[0], 0)} claimants, "
            f"the FlowFiles say {counted.get(wrong[0], 0)}"
        )
    live_bytes = sum(claim.length for claim in entry.live.values())
    if live_bytes != entry.live_bytes:
        findings.problems.append(f"resource claim {index}: {entry.live_bytes} live bytes kept, {live_bytes} counted")
    end = 0
    for claim in sorted(entry.live.values(), key=lambda claim: (claim.offset, claim.end)):
        if claim.offset < end:
            findings.problems.append(f"resource claim {index}: base claims overlap at offset {claim.offset}")
        end = claim.end


def _check_swaps(repository: CheckedRepository, findings: _Findings) -> int:
    """Swap files hold what their summaries say, and the resource claims know their shares."""
    ledger = repository.ledger
    flow_files = 0
    for name, summary in sorted(ledger.swaps.items()):
        try:
            content = repository.swap_files.read(name)
        except (RepositoryDamaged, FormatTooNew) as error:
            findings.problems.append(str(error))
            continue
        flow_files += len(content.records)
        findings.swapped[name] = content
        shares = shares_of(content.records)
        if set(shares) != set(summary.shares):
            findings.problems.append(f"swap file {name}: its claims are not those of its summary")
        for share in shares:
            entry = ledger.entry(share.resource)
            if entry is None or (entry.swapped or {}).get(name) != share:
                findings.problems.append(f"swap file {name}: resource claim {share.resource} does not know its share")
        findings.problems.extend(
            f"FlowFile {record.id} is both resident and in swap file {name}"
            for record in content.records
            if ledger.find(record.uuid) is not None
        )
    unknown = set(repository.swap_files.names()) - set(ledger.swaps) - set(ledger.retired_swaps)
    findings.problems.extend(f"swap file {name} is in no queue" for name in sorted(unknown))
    return flow_files


def _check_file(repository: CheckedRepository, entry: ResourceEntry, findings: _Findings) -> None:
    claim = entry.claim
    path = repository.content.container_of(claim).current_path(claim)
    if not repository.files.exists(path):
        if claim.intent == Action.DELETE:  # it may be gone already
            return
        findings.problems.append(f"resource claim {claim.index}: {path} is missing")
        return
    length = repository.files.size(path).length
    with repository.ledger.lock:
        end = end_in_use(repository.ledger, entry)
    if length < end:
        findings.problems.append(f"resource claim {claim.index}: {path} has {length} bytes, its claims reach to {end}")
    if claim.sealed and not entry.has_intent and length != claim.length:
        findings.problems.append(
            f"resource claim {claim.index}: {path} has {length} bytes, the ledger says {claim.length}"
        )


def _check_accounts(repository: CheckedRepository, entries: list[ResourceEntry], findings: _Findings) -> None:
    """The bytes that each container is charged for are those of its resource claims, written ones included."""
    lengths = {entry.claim.index: charged_bytes(entry.claim) for entry in entries}
    containers = {entry.claim.index: entry.claim.container for entry in entries}
    lengths.update(repository.content.open_lengths())
    containers.update((claim.index, claim.container) for claim in repository.content.open_claims())
    for name, container in repository.content.containers.items():
        charged = sum(length for index, length in lengths.items() if containers.get(index) == name)
        if container.bytes_used != charged:
            findings.problems.append(
                f"container {name} is charged for {container.bytes_used} bytes, its resource claims have {charged}"
            )


def _check_queues(repository: CheckedRepository, findings: _Findings) -> None:
    """Each queue shows the committed FlowFiles of its number, but for those that sessions hold."""
    by_queue: dict[int, set[bytes]] = {}
    for record in repository.ledger.flow_files():
        if record.queue not in (HANDLE_QUEUE, STAGED_QUEUE):
            by_queue.setdefault(record.queue, set()).add(record.uuid)
    for queue in repository.queues.all():
        shown = [record.uuid for record in queue.records()]
        committed = by_queue.pop(queue.number, set())
        figures = queue.figures()
        if len(shown) != len(set(shown)) or not committed.issuperset(shown):
            findings.problems.append(f"queue {queue.name} shows FlowFiles twice, or ones that do not exist")
        if len(committed) - len(shown) != figures.held:
            findings.problems.append(
                f"queue {queue.name}: {len(committed)} FlowFiles committed, {len(shown)} shown, {figures.held} held"
            )
        if figures.flow_files != len(committed) + figures.swapped:
            findings.problems.append(
                f"queue {queue.name} counts {figures.flow_files} FlowFiles, {len(committed)} are resident and "
                f"{figures.swapped} swapped"
            )
    findings.problems.extend(f"FlowFiles stand in queue number {number}, which is not defined" for number in by_queue)


def _check_staged(ledger: Ledger, findings: _Findings) -> None:
    """What nobody sees belongs to a staged write, and what an open one names is staged."""
    hidden = {record.uuid for record in ledger.flow_files() if record.queue == STAGED_QUEUE}
    with ledger.lock:
        writes = list(ledger.writes.pending.values())
    named: set[bytes] = set()
    for write in writes:
        own = {*write.chosen(), *write.others()}
        if not write.is_closed and not own <= hidden:
            findings.problems.append(f"write {format_uuid(write.record.id)} is open, and some of it is not staged")
        named |= own
    findings.problems.extend(f"FlowFile {format_uuid(each)} is staged by no write" for each in sorted(hidden - named))


def _check_content(repository: CheckedRepository, findings: _Findings, on_progress: Progress | None) -> int:
    """Read every live byte against its checksums."""
    claims = dict(findings.claims)
    crcs: dict[tuple[int, int], bytes] = {}
    for content in findings.swapped.values():
        claims.update({(c.resource, c.offset): c for c in map(_claim_of, content.records) if c is not None})
        crcs.update({(blocks.resource, blocks.offset): blocks.crcs for blocks in content.blocks})
    total = sum(claim.length for claim in claims.values())
    verified = 0
    for key, claim in sorted(claims.items()):
        try:
            repository.reader.verify(claim, crcs.get(key))
        except (ContentMissing, ContentCorrupt, ContentReclaimed) as error:
            findings.problems.append(str(error))
        else:
            verified += claim.length
        if on_progress is not None:
            on_progress(verified, total)
    return verified


def _check_holes(repository: CheckedRepository, entries: list[ResourceEntry], findings: _Findings) -> None:
    """What was reported as given back is given back: holes read as zeros."""
    for entry in entries:
        if not entry.claim.holes or entry.has_intent:
            continue
        path = repository.content.container_of(entry.claim).current_path(entry.claim)
        try:
            with repository.content.reading(entry.claim) as file:
                for hole in unpack_runs(entry.claim.holes):
                    if any(file.read(hole.length, hole.offset)):
                        findings.problems.append(
                            f"resource claim {entry.claim.index} ({path}): {hole.length} bytes at offset "
                            f"{hole.offset} were given back, and are there"
                        )
        except ContentMissing as error:
            findings.problems.append(str(error))


def _claim_of(record: FlowFile) -> ContentClaim | None:
    return record.claim
