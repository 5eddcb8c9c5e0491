"""What a run of reclamation did, and what it left, with reasons."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ullage.engine.model import Action


class UntakenStep(NamedTuple):
    """A step that was not taken, and why."""

    action: Action
    resource: int
    container: str
    reason: str


@dataclass(slots=True)
class ReclamationReport:
    """What an execution did, bytes counted in blocks of the disk.

    `skipped` steps were overtaken by events; a later plan sees them anew. `left` are those that were refused or could
    not be done; `emergency` counts the steps that ran without a ticket, because a container was nearly full.
    `problems` names files that were not there to be changed, or did not read back: `check` reports them too.
    """

    done: dict[Action, int] = field(default_factory=dict)
    freed_bytes: int = 0
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

    @property
    def is_closed(self) -> bool:
        """Whether nothing was done because nothing was permitted."""
        return not self.done and (bool(self.refusal) or self.refused > 0)

    def add(self, action: Action, freed_bytes: int) -> None:
        self.done[action] = self.done.get(action, 0) + 1
        self.freed_bytes += freed_bytes

    def merge(self, other: "ReclamationReport") -> None:
        """Add what another execution did; `seconds` is the caller's to tell."""
        for action, count in other.done.items():
            self.done[action] = self.done.get(action, 0) + count
        self.freed_bytes += other.freed_bytes
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
