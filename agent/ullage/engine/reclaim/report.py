"""What a run of reclamation did, and what it left, with reasons."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ullage.engine.model import Action


class UntakenStep(NamedTuple):
    """A resource claim of which a step was not taken, and why."""

    resource: int
    reason: str


@dataclass(slots=True)
class ReclamationReport:
    """What an execution did, bytes counted in blocks of the disk.

    `held_bytes` come back when readers close files that are gone. `skipped` steps were overtaken by events; a later
    plan sees them anew. `left` are those that were refused or could not be done; `emergency` counts the steps that ran
    without a ticket, because a container was nearly full.
    `problems` names files that were not there to be changed, or did not read back: `check` reports them too.
    """

    done: Counter[Action] = field(default_factory=Counter)
    freed_bytes: int = 0
    held_bytes: int = 0
    copied_bytes: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    skipped: int = 0
    refused: int = 0
    refusal: str = ""
    emergency: int = 0
    is_stopped: bool = False
    left: list[UntakenStep] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def leave(self, resources: Iterable[int], reason: str) -> None:
        """What is planned for these is not done: they stay exactly as they were."""
        self.left += [UntakenStep(resource, reason) for resource in resources]

    def merge(self, other: "ReclamationReport") -> None:
        """Add what another execution did; `seconds` is the caller's to tell."""
        self.done.update(other.done)
        self.freed_bytes += other.freed_bytes
        self.held_bytes += other.held_bytes
        self.copied_bytes += other.copied_bytes
        self.read_bytes += other.read_bytes
        self.skipped += other.skipped
        self.refused += other.refused
        self.refusal = self.refusal or other.refusal
        self.emergency += other.emergency
        self.is_stopped |= other.is_stopped
        self.left += other.left
        self.problems += other.problems


OnReport = Callable[[str, ReclamationReport], ReclamationReport]
"""Tells who listens of a run by its name, and returns the report."""
