"""Repair that loses nothing: what a plan names is done, everything else is left as it is and said.

    open (a start finishes intents, removes what a crash left) | plan | adopt, reseal, forget, remove | check

A repository that does not open is not repaired: each mend of that would be a guess about what was acknowledged. The
caller commits nothing meanwhile.
"""

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from ullage_agent.engine.check import CheckedRepository, CheckReport, Progress
from ullage_agent.engine.content.containers import IDENTITY
from ullage_agent.engine.files import PARTIAL_SUFFIX, Files
from ullage_agent.engine.flowfile.placement import end_in_use
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Operation, ResourceClaimGone
from ullage_agent.engine.reclaim.execute import charged_bytes
from ullage_agent.engine.reclaim.orphans import find_orphans
from ullage_agent.engine.reclaim.reclamation import Reclamation
from ullage_agent.engine.runs import pack_runs, unpack_runs


class Mend(enum.StrEnum):
    """What a repair may do."""

    ADOPT = "adopt"
    """An orphan of an earlier process becomes a resource claim without claimants, for `clean` to take away."""

    RESEAL = "reseal"
    """A file whose dead tail is longer or shorter than the ledger says: its length is recorded anew, no byte moves."""

    FORGET = "forget"
    """A file that nobody uses is gone: so is its record."""

    REMOVE = "remove"
    """What is left of a file that was to replace another one, and of swap files that no transaction names."""


class RepairStep(NamedTuple):
    """One mend: of which file, for which resource claim (0: none), and its length where that is the point."""

    mend: Mend
    path: str
    resource: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """`report` is what was found; `steps` what can be mended without losing anything."""

    steps: tuple[RepairStep, ...]
    report: CheckReport


class RepairableRepository(CheckedRepository, Protocol):
    """The parts that are mended."""

    root: str
    reclamation: Reclamation

    def check(self, *, deep: bool = False, on_progress: Progress | None = None) -> CheckReport:
        """Verify everything against everything."""
        ...

    def commit(self, operations: Sequence[Operation], *, creates: bool) -> int:
        """One durable transaction."""
        ...


def plan_repair(
    repository: RepairableRepository, *, deep: bool = False, on_progress: Progress | None = None
) -> RepairPlan:
    """Look, change nothing."""
    report = repository.check(deep=deep, on_progress=on_progress)
    steps = [
        RepairStep(Mend.ADOPT, orphan.path, orphan.claim.index, orphan.length)
        for orphan in find_orphans(repository.files, repository.ledger, repository.content)
        if orphan.claim is not None
    ]
    for entry in repository.ledger.entries():
        step = _mend_entry(repository, entry)
        if step is not None:
            steps.append(step)
    known = repository.ledger.swaps.keys() | repository.ledger.retired_swaps.keys()
    leftovers = [repository.swap_files.path(name) for name in repository.swap_files.names() if name not in known]
    leftovers += _partials(repository)
    steps += [RepairStep(Mend.REMOVE, path) for path in leftovers]
    return RepairPlan(tuple(steps), report)


def execute_repair(repository: RepairableRepository, plan: RepairPlan) -> None:
    """Carry a plan out. Each transaction is durable before the next; a crash leaves the rest for another plan."""
    if any(step.mend is Mend.ADOPT for step in plan.steps):
        repository.reclamation.adopt_orphans()
    for step in plan.steps:
        if step.mend in (Mend.RESEAL, Mend.FORGET):
            _commit_entry(repository, step)
    for step in plan.steps:
        if step.mend is Mend.REMOVE:
            repository.files.unlink(step.path)  # no sync: a leftover that a crash brings back is one to the next plan


def _mend_entry(repository: RepairableRepository, entry: ResourceEntry) -> RepairStep | None:
    """The mend of one resource claim: only of bytes that no claim names, and only once nobody appends to it."""
    claim = entry.claim
    if not claim.sealed or entry.has_intent or entry.relocation is not None:
        return None
    container = repository.content.container_of(claim)
    path = container.current_path(claim)
    if not repository.files.exists(path):
        is_free = entry.is_free and not entry.sources
        is_anywhere = any(map(repository.files.exists, (container.live_path(claim), container.archive_path(claim))))
        return RepairStep(Mend.FORGET, path, claim.index) if is_free and not is_anywhere else None
    length = repository.files.size(path).length
    with repository.ledger.lock:
        end = end_in_use(repository.ledger, entry)
    if length == claim.length or length < end:
        return None
    return RepairStep(Mend.RESEAL, path, claim.index, length)


def _commit_entry(repository: RepairableRepository, step: RepairStep) -> None:
    entry = repository.ledger.entry(step.resource)
    assert entry is not None, f"resource claim {step.resource} went between plan and repair"
    claim = entry.claim
    if step.mend is Mend.FORGET:
        repository.commit([ResourceClaimGone(claim.index)], creates=False)
        repository.content.container_of(claim).add_bytes(-charged_bytes(claim))
        return
    _sync(repository.files, step.path)
    sealed = msgspec.structs.replace(
        claim,
        length=step.length,
        generation=claim.generation + 1,
        last_death_millis=entry.last_death_millis,
        holes=pack_runs(hole for hole in unpack_runs(claim.holes) if hole.end <= step.length),
    )
    repository.commit([sealed], creates=False)
    repository.content.container_of(claim).add_bytes(charged_bytes(sealed) - charged_bytes(claim))


def _sync(files: Files, path: str) -> None:
    """Make the length durable before a seal counts on it."""
    file = files.open(path, writable=True)
    try:
        file.sync()
    finally:
        file.close()


def _partials(repository: RepairableRepository) -> list[str]:
    """Identities that were to replace one which is there: their rename never happened."""
    directories = [repository.root, *(container.path for container in repository.content.containers.values())]
    paths = [os.path.join(directory, IDENTITY + PARTIAL_SUFFIX) for directory in directories]
    return [path for path in paths if repository.files.exists(path)]
