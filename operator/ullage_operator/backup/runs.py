"""What runs that every node has a part in have in common, backups and verifications: when one is due, who is waited
for, and when the last one is too long ago. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from ullage.contract import ENDED, BackupTicketReport, RunPhase, TicketState, Timetable, VerificationReport, millis_of

Report = TypeVar("Report", bound=BackupTicketReport | VerificationReport)

FINAL: Final = (RunPhase.COMPLETED, RunPhase.FAILED)

LATE_MILLIS: Final = 3_600_000
"""A run that could not be begun for so long is left out: the operator was away, or another one took its time."""

AGAIN_MILLIS: Final = 1_000
"""How soon after the end of a run it is looked whether another one waits."""

COUNT_MAX: Final = 2**63 - 1
"""Of what the API server takes for a number."""

WORDS_MAX: Final = 256
"""Characters that a status repeats of what a node said."""


class NodeTally(NamedTuple):
    """Who is done, who is waited for, and who has failed, each in order."""

    done: list[str]
    waiting: list[str]
    failed: list[str]

    @classmethod
    def of(cls, hosts: Collection[str], reports: Mapping[str, Report]) -> "NodeTally":
        """Of what the nodes have reported of one run."""
        done = sorted(node for node in hosts if node in reports and reports[node].state in ENDED)
        failed = [node for node in done if reports[node].state != TicketState.COMPLETED]
        return cls(done, sorted(set(hosts) - set(done)), failed)


def due_at(timetable: Timetable, created: int, told: int | None, now_millis: int) -> int | None:
    """The time of the schedule for which a run should have begun by now; None if there is none, or it is too long ago.
    `told`: for which the last one was due. One of years to come is no reason to back nothing up until then: a clock
    was wrong, or a hand.
    """
    due = None if timetable.problem else timetable.last(now_millis)
    if due is None or due <= created or now_millis - due >= LATE_MILLIS:
        return None
    return None if told is not None and due <= told <= now_millis + LATE_MILLIS else due


def is_to_come(phase: RunPhase, started: str | None, now_millis: int) -> bool:
    """Whether what is under way has not begun, by a clock that was wrong, or a hand."""
    return phase == RunPhase.RUNNING and started is not None and millis_of(started) > now_millis + LATE_MILLIS


def is_old(timetable: Timetable, created: int, success: int | None, now_millis: int) -> bool:
    """Whether two times have passed without a success: a run that is under way has until the next."""
    last = None if timetable.problem else timetable.last(now_millis)
    before = None if last is None else timetable.last(last - 1)
    if before is None:
        return False
    return before >= created if success is None else success < before


def total(counts: Iterable[int]) -> int:
    """Their sum, as far as an object has room for it: who counts wrongly must not keep all from being told."""
    return min(sum(counts), COUNT_MAX)


def some(nodes: list[str]) -> str:
    """The first of them, in words."""
    return f"{nodes[0]} and {len(nodes) - 1} more" if len(nodes) > 1 else nodes[0]
