"""Repair that loses nothing: what a plan names is done, everything else is left as it is and said.

    open (a start finishes intents, removes what a crash left) | plan | adopt, reseal, forget, remove | check

A repository that does not open is not repaired: each mend of that would be a guess about what was acknowledged. The
caller commits nothing meanwhile.
"""

import enum
import os
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ullage.engine.byteranges import pack_ranges, unpack_ranges
from ullage.engine.check.check import CheckedParts, Progress, check_repository
from ullage.engine.committer import Committer
from ullage.engine.content.containers import IDENTITY
from ullage.engine.files import PARTIAL_SUFFIX
from ullage.engine.ledger.placement import end_in_use
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import ResourceClaim, ResourceClaimGone
from ullage.engine.reclaim.execute import charged_bytes
from ullage.engine.reclaim.liveness import LivenessScanner
from ullage.engine.reclaim.reclamation import Reclaimer
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import ContentMissing, RepositoryDamaged
from ullage.wire.upkeep import CheckReport


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


class Repair:
    """Plans what can be mended in one open repository, and does it."""

    def __init__(
        self, parts: CheckedParts, root: str, scanner: LivenessScanner, reclamation: Reclaimer, committer: Committer
    ) -> None:
        self._parts = parts
        self._scanner = scanner
        self._root = root
        self._reclamation = reclamation
        self._committer = committer

    def plan(self, *, deep: bool = False, on_progress: Progress | None = None) -> RepairPlan:
        """Look, change nothing."""
        parts = self._parts
        report = check_repository(parts, deep=deep, on_progress=on_progress)
        steps = [
            RepairStep(Mend.ADOPT, orphan.path, orphan.claim.index, orphan.length)
            for orphan in parts.content.orphans(parts.ledger.claim)
            if orphan.claim is not None
        ]
        disputed: list[str] = []
        for entry in parts.ledger.entries():
            try:
                step = self._mend_entry(entry)
            except RepositoryDamaged as error:
                disputed.append(str(error))
                continue
            if step is not None:
                steps.append(step)
        others = [each for each in disputed if each not in report.problems]
        report = msgspec.structs.replace(report, problems=(*report.problems, *others))
        known = parts.ledger.swaps.keys() | parts.ledger.retired_swaps.keys()
        unknown = [name for name in parts.swap_files.names() if name not in known]
        # A record that was set aside may be what names it.
        unknown = [name for name in unknown if not parts.ledger.set_aside.may_mean_swap(name)]
        leftovers = [parts.swap_files.path(name) for name in unknown]
        leftovers += self._partials()
        steps += [RepairStep(Mend.REMOVE, path) for path in leftovers]
        return RepairPlan(tuple(steps), report)

    def execute(self, plan: RepairPlan) -> None:
        """Carry a plan out. Each transaction is durable before the next; a crash leaves the rest for another plan."""
        if any(step.mend is Mend.ADOPT for step in plan.steps):
            self._reclamation.adopt_orphans()
        for step in plan.steps:
            if step.mend in (Mend.RESEAL, Mend.FORGET):
                self._commit_entry(step)
        for step in plan.steps:
            if step.mend is Mend.REMOVE:
                # No sync: a leftover that a crash brings back is one to the next plan.
                self._parts.files.unlink(step.path)

    def _mend_entry(self, entry: ResourceEntry) -> RepairStep | None:
        """The mend of one resource claim: only of bytes that no claim names, and only once nobody appends to it.

        RepositoryDamaged where handles in runs say something else of its claims than memory does.
        """
        content, ledger = self._parts.content, self._parts.ledger
        claim = entry.claim
        if not claim.sealed or entry.has_intent or entry.relocation is not None:
            return None
        if ledger.set_aside.may_mean(claim.index):  # then nobody knows what its claims are
            return None
        path, length = content.path_of(claim), content.length_of(claim)
        if length is None:
            if not entry.is_free or entry.sources or self._is_anywhere(claim):
                return None
            self._scanner.require_undisputed(claim.index)
            return RepairStep(Mend.FORGET, path, claim.index)
        with ledger.lock:
            end = end_in_use(ledger, entry)
        if length == claim.length or length < end:
            return None
        # | memory has wrongly forgotten X, behind `end` | sealed without it | the handle that claims X is cut off
        self._scanner.require_undisputed(claim.index)
        return RepairStep(Mend.RESEAL, path, claim.index, length)

    @uninterrupted
    def _commit_entry(self, step: RepairStep) -> None:
        entry = self._parts.ledger.entry(step.resource)
        assert entry is not None, f"resource claim {step.resource} went between plan and repair"
        claim = entry.claim
        container = self._parts.content.container_of(claim)
        if step.mend is Mend.FORGET:
            self._committer.commit([ResourceClaimGone(claim.index)], creates=False)
            container.add_bytes(-charged_bytes(claim))
            return
        sealed = msgspec.structs.replace(
            self._parts.content.seal(claim),
            last_death_millis=entry.last_death_millis,
            holes=pack_ranges(hole for hole in unpack_ranges(claim.holes) if hole.end <= step.length),
        )
        self._committer.commit([sealed], creates=False)
        container.add_bytes(charged_bytes(sealed) - charged_bytes(claim))

    def _is_anywhere(self, claim: ResourceClaim) -> bool:
        """Whether the file is there, be it where the ledger does not look for it."""
        try:
            with self._parts.content.reading(claim):
                return True
        except ContentMissing:
            return False

    def _partials(self) -> list[str]:
        """Identities that were to replace one which is there: their rename never happened."""
        directories = {self._root, *(container.path for container in self._parts.content.containers.values())}
        paths = [os.path.join(directory, IDENTITY + PARTIAL_SUFFIX) for directory in sorted(directories)]
        return [path for path in paths if self._parts.files.exists(path)]
