"""How a node holds the goal of compaction, as its object says it; `ullage status` has the rest."""

from typing import Final, NamedTuple

from ullage.contract import time_of
from ullage.enums import GoalHindrance
from ullage.wire.space import GoalStatus

WORDS_MAX: Final = 1024
"""Characters of a message."""


class NodeGoal(NamedTuple):
    """What is told of it. Times are as the API server has them; None: there is none.

    The figures in a message change with each look: they are told anew when something else does.
    """

    reason: str = "NoGoal"
    message: str = ""
    key: tuple[object, ...] = ()
    disk_to_live: float | None = None
    oldest_dead: str | None = None
    missed: str | None = None


def node_goal(goal: GoalStatus, before: NodeGoal, now_millis: int) -> NodeGoal:
    """Of now; `before`: what was told last."""
    if goal.disk_to_live is None and goal.max_dead_age_millis is None:
        return NodeGoal()
    reason = "Held"
    if goal.hindrance == GoalHindrance.BACKLOG:
        reason = "Backlog"
    elif goal.will_miss_millis is not None:
        reason = "Missed" if goal.will_miss_millis <= now_millis else "WillBeMissed"
    key = reason, goal.will_miss, goal.hindrance
    words = "" if goal.will_miss is None else f"{goal.will_miss}: {goal.reason}; what helps: {goal.helps}"
    return NodeGoal(
        reason,
        before.message if before.key == key else words[:WORDS_MAX],
        key,
        None if goal.disk_to_live_now is None else round(goal.disk_to_live_now, 2),
        None if goal.oldest_dead_millis is None else time_of(goal.oldest_dead_millis),
        None if goal.will_miss_millis is None or reason == "Backlog" else time_of(goal.will_miss_millis),
    )
