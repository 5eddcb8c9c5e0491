"""A repository under a load for a simulated day, with a goal, and how old its oldest dead byte ever was.

The engine is the real one, on a real disk; only its clock is the test's. How long a byte has been dead the engine is
not asked: each step looks at which blocks of which files nothing lives in, and remembers since when.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support import Workshop, committing, containers
from ullage.contract import Calendar, Duration, GoalSettings, Quantity, TruncationMode
from ullage.engine.byteranges import FS_BLOCK_BYTES, whole_blocks
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.reclaim.goals import Miss
from ullage.enums import GoalHindrance, Lifetime

KB, MB, HOUR = 1 << 10, 1 << 20, 3_600_000
SIZES = (3 * KB, 12 * KB, 40 * KB, 150 * KB)

EAGER: dict[str, Any] = {
    "storage": containers(c1=1 << 30),
    "archive": {"enabled": False},
    "truncation": {"mode": TruncationMode.EAGER},
}


def settings(goal: GoalSettings, bytes_per_second: int = 64 * KB, **more: Any) -> dict[str, Any]:
    """Thresholds that keep nothing from the goal; everything dead is dead at once."""
    compaction = {
        "goal": goal,
        "min_used_percentage": 0,
        "min_reclaim": 0,
        "max_live_fraction": 0.9999,
        "deleted_retention": Duration(0),
        "bytes_per_second": Quantity(bytes_per_second),
        "output_size": Quantity(4 * MB),
        **more,
    }
    return {**EAGER, "compaction": compaction}


@dataclass
class Seen:
    """What a day was like."""

    oldest_millis: int = 0
    ratios: list[float] = field(default_factory=list)
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    put_bytes: int = 0
    copied_bytes: int = 0

    @property
    def alarms(self) -> list[tuple[int, Miss]]:
        """What was foreseen, but for what was there before."""
        return [each for each in self.misses if each[1].hindrance.kind != GoalHindrance.BACKLOG]


class World:
    """One repository; `load` does what happens in a step of so many seconds."""

    def __init__(self, workshop: Workshop, seed: int, step_seconds: int, **sections: Any) -> None:
        self.workshop = workshop
        self.random = random.Random(seed)
        self.step_seconds = step_seconds
        self.repository: Engine = workshop.make(**sections)
        self.repository.reclamation.permit(Calendar(self.repository.spec.maintenance).permission)
        self.upkeep = MaintenanceRunner(self.repository)
        self.seen = Seen()
        self.began = workshop.clock.now_millis()
        self._dead: dict[tuple[int, int], int] = {}
        self._looked = self.began
        self.repository.report_listeners.append(self._count)

    def _count(self, name: str, report: Any) -> Any:
        self.seen.copied_bytes += report.copied_bytes
        return report

    @property
    def hours(self) -> float:
        """Since the beginning."""
        return (self.workshop.clock.now_millis() - self.began) / HOUR

    def live(self, hours: float, load: Callable[["World", int], None]) -> Seen:
        """Let so much time pass."""
        number = 0
        while self.hours < hours:
            load(self, number)
            number += 1
            end = self.workshop.clock.now_millis() + self.step_seconds * 1000
            while (left := end - self.workshop.clock.now_millis()) > 0:
                self.workshop.clock.advance(min(60_000, left) / 1000)
                self.upkeep.run_due(is_heavy=True)
            self.upkeep.run_due(is_heavy=False)
            self.look()
        assert self.upkeep.failures == []
        return self.seen

    def look(self) -> None:
        """Which blocks are dead, and since when: since the look before the first that found them."""
        now, found = self.workshop.clock.now_millis(), dict.fromkeys(self._dead_blocks(), self._looked)
        self._dead = {block: self._dead.get(block, since) for block, since in found.items()}
        self.seen.oldest_millis = max([self.seen.oldest_millis, *(now - since for since in self._dead.values())])
        self._looked = now
        [container] = self.repository.reclamation.survey().containers
        if container.live_bytes:
            self.seen.ratios.append(container.disk_bytes / container.live_bytes)
        figures = self.repository.compactor.goal.figures
        if figures is not None and figures.decision.miss is not None:
            self.seen.misses.append((now, figures.decision.miss))

    def _dead_blocks(self) -> Iterator[tuple[int, int]]:
        for figures in self.repository.reclamation.figures():
            if figures.output:
                continue
            for run in self.repository.reclamation.dead_runs(figures):
                whole = whole_blocks(run)
                for block in range(whole.offset, whole.offset + whole.length, FS_BLOCK_BYTES):
                    yield figures.resource, block

    def put(self, *queues: str) -> None:
        """A content of any size for each of these queues, through the same files."""
        with committing(self.repository) as session:
            for queue in queues:
                content = self.random.randbytes(self.random.choice(SIZES))
                self.seen.put_bytes += len(content)
                session.ingest(queue, [content])

    def drop(self, queue: str, count: int) -> None:
        """The next so many of a queue die."""
        with committing(self.repository) as session:
            session.remove_many(session.get_many(queue, count))


def steady(world: World, number: int) -> None:
    """As many come as go, two hours later for most, and never for some."""
    world.put("flow", "flow", "flow", "kept", "flow", "flow", "flow")
    if world.hours > 2:
        world.drop("flow", 6)


def bursts(world: World, number: int) -> None:
    """Nothing for hours, then fifty times as much, of which all but a little dies soon."""
    every = max(1, 4 * 3_600 // world.step_seconds)
    if number % every == 0:
        for _ in range(20):
            world.put(*["burst"] * 4, "kept", *["burst"] * 4)
    elif number % every == 1:
        world.drop("burst", 150)


def cliffs(world: World, number: int) -> None:
    """Handles that expire together each sixth hour, between others that stay."""
    left = 6 * HOUR - (world.workshop.clock.now_millis() - world.began) % (6 * HOUR)
    contents = [world.random.randbytes(world.random.choice(SIZES)) for _ in range(5)]
    world.seen.put_bytes += sum(map(len, contents))
    world.repository.handles.put_many(contents[:4], ttl_millis=left, lifetime=Lifetime.DEFAULT)
    world.repository.handles.put_many(contents[4:], lifetime=Lifetime.DEFAULT)


def hot_queue(world: World, number: int) -> None:
    """One queue of which all is gone by the next step, through files in which others stay for a day."""
    world.put(*["hot", "hot", "hot", "cold"] * 8)
    world.drop("hot", 24)


LOADS = {"steady": steady, "bursts": bursts, "TTL cliffs": cliffs, "one hot queue": hot_queue}
