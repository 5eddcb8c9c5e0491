"""`python -m tests.engine.reclaim.goalfull`: goals under loads for as many simulated days as time allows, or on a disk.

Each case is a day of one load under one goal with one seed, through the real engine on a clock that is moved, looked at
each minute. Which are next the seed says; what has passed is kept in `.proof/` and not done again while engine and
loads are the same. At the end the share is told.

    --disk DIR    one case on the real clock and a real disk instead, for as many minutes, beside writers: how old the
                  oldest dead byte ever was, and how long commits took beside an idle repository's
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import ullage
from tests.engine.reclaim.goalworld import HOUR, KB, LOADS, SIZES, World, settings
from tests.support import Workshop, committing, containers, spec_at
from ullage.contract import Duration, GoalSettings
from ullage.engine.byteranges import whole_blocks
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.reclaim import goalkeeper

ROOT: Final = Path(__file__).parents[3]
KEPT: Final = ROOT / ".proof" / "goal.kept"
SEEDS: Final = 8
HOURS: Final = 24.0
STEP_SECONDS: Final = 60
AGE_HOURS: Final = 3
RATIO: Final = 1.4

DISK_AGE_MILLIS: Final = 600_000
"""How old a dead byte may become on the real clock: the least that can be asked for."""

IDLE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 5.0
PACE_SECONDS: Final = 0.02
"""Between two commits of the writer that is timed."""

P99_MAX: Final = 2.0
"""Of commits under the goal's rewrites, over those of an idle repository."""


class Case(NamedTuple):
    """One simulated day."""

    load: str
    goal: str
    is_busy: bool
    seed: int


def cases() -> list[Case]:
    """All there are."""
    return [
        Case(load, goal, is_busy, seed)
        for seed in range(SEEDS)
        for load in LOADS
        for goal, is_busy in (("age", True), ("age", False), ("ratio", True))
    ]


def trouble(case: Case, folder: Path) -> str:
    """What was not held on that day; empty: all was."""
    is_age = case.goal == "age"
    goal = GoalSettings(max_dead_age=Duration(AGE_HOURS * HOUR)) if is_age else GoalSettings(disk_to_live=RATIO)
    goalkeeper_idle = goalkeeper.IDLE_TRANSACTIONS
    setattr(goalkeeper, "IDLE_TRANSACTIONS", 0.0 if case.is_busy else goalkeeper_idle)  # noqa: B010 - it is Final
    workshop = Workshop(folder)
    try:
        made = settings(goal) if is_age else settings(goal, bytes_per_second=256 * KB)
        seen = World(workshop, case.seed, STEP_SECONDS, **made).live(HOURS, LOADS[case.load])
        workshop.close()
    finally:
        setattr(goalkeeper, "IDLE_TRANSACTIONS", goalkeeper_idle)  # noqa: B010 - as above
    copied = f"copied {seen.copied_bytes / seen.put_bytes:.2f} of put"
    if is_age:
        print(f"{case}: oldest {seen.oldest_millis / HOUR:.2f} h, {copied}", flush=True)
        if not 0 < seen.oldest_millis <= AGE_HOURS * HOUR:
            return f"the oldest dead byte was {seen.oldest_millis / HOUR:.2f} hours old"
        return f"foreseen, and did not come: {seen.alarms[0]}" if seen.alarms else ""
    settled = seen.ratios[len(seen.ratios) // 3 :]
    over = sum(ratio > RATIO for ratio in settled)
    print(f"{case}: at most {max(settled):.2f}, over {over} of {len(settled)} looks, {copied}", flush=True)
    return f"{over} of {len(settled)} looks were over {RATIO}" if over > len(settled) / 12 else ""


def days(seed: int, minutes: float) -> int:
    """As many as there is time for; 1 if one of them failed."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(ullage.__file__).parent.rglob("*.py")), *sorted(Path(__file__).parent.glob("goal*.py"))):
        digest.update(path.read_bytes())
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    passed: list[list[object]] = kept["passed"] if kept.get("version") == digest.hexdigest() else []
    end, wanted, failed = time.monotonic() + minutes * 60, cases(), 0
    left = [case for case in wanted if list(case) not in passed]
    random.Random(seed).shuffle(left)
    for case in left:
        if time.monotonic() >= end:
            break
        with tempfile.TemporaryDirectory(prefix="ullage-goal-") as folder:
            said = trouble(case, Path(folder) / "repository")
        if said:
            failed += 1
            print(f"FAILED {case}: {said}", flush=True)
            continue
        passed.append(list(case))
        KEPT.parent.mkdir(exist_ok=True)
        partial = KEPT.with_suffix(".partial")
        partial.write_text(json.dumps({"version": digest.hexdigest(), "passed": passed}, indent=1), encoding="utf-8")
        partial.replace(KEPT)
    share = f"{len(passed)} of {len(wanted)} days, {100 * len(passed) // len(wanted)} %"
    print(f"held: {share} (this run and earlier ones of this engine); failed: {failed}; seed {seed}")
    return 1 if failed else 0


class Writers:
    """One who commits at a pace and is timed, and drops what is old; a third of it stays."""

    def __init__(self, repository: Engine, seed: int) -> None:
        self.seconds: list[float] = []
        self._repository = repository
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._over.wait(PACE_SECONDS):
            number += 1
            content = self._random.randbytes(self._random.choice(SIZES))
            began = time.perf_counter()
            with committing(self._repository) as session:
                session.ingest("kept" if number % 3 == 0 else "flow", [content])
            self.seconds.append(time.perf_counter() - began)
            if number % 50 == 0 and number > 500:
                with committing(self._repository) as session:
                    session.remove_many(session.get_many("flow", 33))
            if number % 500 == 0 and number > 5_000:
                with committing(self._repository) as session:
                    session.remove_many(session.get_many("kept", 166))


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _dead_blocks(repository: Engine) -> Iterator[tuple[int, int, int]]:
    for figures in repository.reclamation.figures():
        if not figures.output and figures.is_sealed:
            for run in repository.reclamation.dead_runs(figures):
                whole = whole_blocks(run)
                if whole.length:
                    yield figures.resource, whole.offset, whole.length


def on_disk(folder: Path, seed: int, minutes: float) -> int:
    """The real clock and a real disk: 1 if a byte was dead for too long, or commits waited too long."""
    goal = GoalSettings(max_dead_age=Duration(DISK_AGE_MILLIS))
    sections = settings(goal, bytes_per_second=8 << 20) | {"storage": containers(c1=4 << 30)}
    spec = spec_at(folder, **sections)
    Engine.initialize(spec)
    repository = Engine.open(spec)
    real = threading.Event()  # never set: what is waited for is the time of a real disk
    try:
        idle = Writers(repository, seed)
        real.wait(IDLE_SECONDS)
        idle.stop()
        upkeep = MaintenanceRunner(repository)
        upkeep.start()
        busy = Writers(repository, seed + 1)
        oldest, ratios = 0.0, list[float]()
        since: dict[tuple[int, int, int], float] = {}
        began = looked = time.monotonic()
        try:
            while time.monotonic() - began < minutes * 60:
                real.wait(LOOK_SECONDS)
                now, found = time.monotonic(), set(_dead_blocks(repository))
                since = {block: since.get(block, looked) for block in found}
                oldest, looked = max([oldest, *(now - when for when in since.values())]), now
                [container] = repository.reclamation.survey().containers
                ratios.append(container.disk_bytes / max(1, container.live_bytes))
        finally:
            busy.stop()
            upkeep.stop()
        failures = [str(error) for _, error in upkeep.failures]
        problems = repository.check(deep=True).problems
    finally:
        repository.close()
    times = _p99(busy.seconds) / _p99(idle.seconds)
    print(
        f"{minutes:g} minutes on {folder}: oldest dead byte {oldest:.0f} s (goal {DISK_AGE_MILLIS // 1000} s), disk / "
        f"live {statistics.median(ratios[len(ratios) // 2 :]):.2f}, {len(busy.seconds)} commits, p99 "
        f"{1000 * _p99(busy.seconds):.1f} ms, {times:.2f} times idle ({1000 * _p99(idle.seconds):.1f} ms); seed {seed}"
    )
    for each in (*failures, *problems):
        print(f"problem: {each}")
    is_held = 0 < oldest <= DISK_AGE_MILLIS / 1000 and times <= P99_MAX
    return 0 if is_held and not failures and not problems else 1


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description="Goals of compaction, for as long as there is time.")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("ULLAGE_GOAL_MINUTES", "40")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ULLAGE_SEED", "1")))
    parser.add_argument("--disk", help="a directory on the disk to be used")
    asked = parser.parse_args()
    if asked.disk is None:
        return days(asked.seed, asked.minutes)
    with tempfile.TemporaryDirectory(prefix="ullage-goal-", dir=asked.disk) as folder:
        return on_disk(Path(folder) / "repository", asked.seed, asked.minutes)


if __name__ == "__main__":
    sys.exit(main())
