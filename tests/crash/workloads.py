"""Scripted workloads: short, deterministic, and together through every path that changes the disk."""

import errno
from collections.abc import Iterator, Sequence

import msgspec

from tests.crash.leaving import ANSWERS, BLOCKS
from tests.crash.resting import HANDLE_RUN_ERRORS, HANDLE_RUNS
from tests.crash.specs import (
    DRAINED,
    ISOLATED,
    KEEPING,
    LEAVING,
    ROOMY,
    SPEC,
    THREE_PARTITIONS,
    TWO_CONTAINERS,
    Restart,
    spec_with,
)
from tests.crash.steps import (
    LARGE,
    Step,
    adopt,
    ail,
    ail_swapped,
    answered,
    backup,
    brief,
    broken,
    change,
    checkpoint,
    clean,
    clone,
    compact,
    drop,
    expire,
    fails,
    feed,
    forget,
    give_up,
    handles,
    index,
    lease,
    leave,
    lend,
    maintain,
    merge,
    mounted,
    occupied,
    patterned,
    put,
    put_by,
    refuse,
    replay,
    retain,
    rewrite_events,
    rollback,
    rollover,
    settle,
    snapshot,
    split,
    spoil,
    spread,
    stage,
    take,
    truncate,
    unmounted,
    wait,
)
from tests.support import ManualClock
from ullage.contract import ContentRepositorySpec, HostPath
from ullage.engine.engine import Engine
from ullage.engine.model import Action, EventType
from ullage.engine.salvaging import salvage


def restore(repository: Engine, clock: ManualClock) -> None:
    """Make another repository of the backup."""
    spec = spec_with(storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/copy")))
    Engine.restore_backup("/b", spec, repository._files)


def salvaged(repository: Engine, clock: ManualClock) -> None:
    """Make another repository of what the restored one proves."""
    spec = spec_with(storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/salvaged")))
    salvage("/copy", spec, repository._files, clock)


WRITES: list[Step] = [
    put("a", 0, 1, 300),
    put("a", 900, LARGE),
    put("a", 300, 300, 300, LARGE, LARGE),
    change("a", "b", lambda s, f: s.put_attributes(f, {"seen": "yes"})),
    change("a", "b", lambda s, f: s.write(f, patterned(1200))),
    change("a", "b", lambda s, f: s.append(f, b"tail")),
    *[rollback("b"), clone("a", "b"), merge("b", "c"), split("c", "c"), checkpoint, put("a", 50), drop("c")],
]

SWAPS: list[Step] = [
    put("q", *[40 + n for n in range(5)]),
    put("q", LARGE, 10, 20, 30),
    *[checkpoint, put("q", 60, 70), take("q", 4), take("q", 3), checkpoint, take("q", 2)],
    *[put("q", *[50 + n for n in range(6)]), drop("q"), checkpoint],
]

RECLAIMS: list[Step] = [
    *[put("small", 100, 200), put("mixed", 300, LARGE), clone("mixed", "small"), put("large", 500, LARGE)],
    *[take("large", 1), put("large", 200, LARGE), checkpoint, drop("large"), truncate, drop("mixed"), clean],
    *[truncate, wait(30), clean, put("small", 10), checkpoint, drop("small"), clean, wait(100), clean],
]

SEALS: list[Step | Restart] = [
    spoil("a", LARGE),
    put("a", 300),
    spoil("a", 1500, 1500, 1500),
    put("a", 400),
    spoil("a", 900),
    clean,
    put("a", 200, 200),
    spoil("a", 2000, 2000),
    take("a", 1),
    truncate,
]

RESTARTS: list[Step | Restart] = [
    put("a", 300, LARGE),
    Restart(),
    put("a", 100, LARGE),
    leave(700, LARGE),
    Restart(is_kill=True),
    put("a", 150, LARGE),
    take("a", 1),
    adopt,
    clean,
    leave(300),
    Restart(is_kill=True),
    adopt,
    Restart(is_kill=True),
    drop("a"),
    clean,
    Restart(),
    truncate,
]

ERRORS: list[Step | Restart] = [
    put("a", 300, 100, 200, 400, 500),
    broken(take("a", 1), fails("write", "*.wal")),
    Restart(is_kill=True),
    put("a", 150),
    broken(take("a", 1), fails("write", "*.wal", error=errno.ENOSPC)),
    broken(put("a", 10), fails("*", "*/ballast", error=errno.ENOSPC)),
    broken(put("a", 700, LARGE), fails("write", "*/c1/?/*-*", error=errno.ENOSPC)),
    put("a", 150),
    broken(checkpoint, fails("sync_directory", "*/partition-?")),
    broken(checkpoint, fails("write", "*.wal")),
    broken(checkpoint, fails("write", "*/snapshot.partial")),
    broken(checkpoint, fails("write", "*/snapshot.partial"), fails("unlink", "*/snapshot.partial")),
    answered(1),
    broken(checkpoint, fails("write", "*.run")),
    broken(checkpoint, fails("sync", "*.run"), fails("unlink", "*.run")),
    broken(checkpoint, fails("sync_directory", "*/runs/*")),
    broken(checkpoint, fails("write", "*/snapshot.partial")),
    answered(4),
    broken(put("a", *[30 + n for n in range(6)]), fails("write", "*.swap"), fails("unlink", "*.swap")),
    put("a", 5),
    broken(rollover, fails("write", "*.parquet")),
    broken(rollover, fails("sync", "*.parquet"), fails("unlink", "*.parquet")),
    Restart(is_kill=True),  # this start removes what the rollover left
    broken(rollover, fails("rename", "*/manifest*")),
    checkpoint,
]

UPKEEP: list[Step | Restart] = [
    brief("brief", 30),
    put("kept", 100),
    put("brief", LARGE),
    put("q", 500, LARGE),
    put("q", *[30 + n for n in range(6)]),
    Restart(spec=KEEPING),
    lend(30),
    take("q", 2),
    maintain(60),
    put("q", 300, LARGE),
    maintain(120),
    Restart(is_kill=True),
    drop("q"),
    maintain(120),
    maintain(60),
]

DRAINS: list[Step | Restart] = [
    put("a", 100, 200),
    put("a", 300),
    *[rollover, index],
    change("a", "b", lambda s, f: s.put_attributes(f, {"seen": "yes"})),
    snapshot,
    drop("b"),
    Restart(is_kill=True),
    split("a", "c"),
    snapshot,
    wait(20),
    *[rollover, index],
    merge("c", "d"),
    Restart(),
    put("a", 10),
    drop("d"),
    checkpoint,
    put("a", 20),
    Restart(is_kill=True),
    *[wait(50), retain],
    take("a", 1),
    *[rollover, index],
    *[rewrite_events, index, rewrite_events],
    *[wait(100), retain, index],
    put("a", 30),
]

STAGES: list[Step | Restart] = [
    *[stage(1, 1, 0, 30, LARGE), stage(1, 2, 0, 40), stage(1, 1, 1, 50)],
    checkpoint,
    *[settle(1, a1=2), stage(2, 3, 0, 60, 70), stage(3, 4, 0, 80)],
    Restart(is_kill=True),
    *[settle(2, a3=1), stage(3, 5, 0, 90), settle(3), stage(3, 6, 0, 100, LARGE), settle(3, a6=1), stage(5, 7, 0, 110)],
    checkpoint,
    Restart(),
    *[drop("staged"), maintain(4_000)],
]
"""Two attempts of which one counts, handles, a write that is aborted and begun anew, one whose driver died."""

FEEDS: list[Step | Restart] = [  # a stream takes, reads and gives back; the last that it took goes back by itself
    *[put("q", 100, 200, LARGE, 300), feed("q", 3), checkpoint, put("q", 400, LARGE), feed("q", 2)],
    Restart(is_kill=True),
    *[feed("q", 2), refuse("q"), feed("q", 1), maintain(60), drop("q"), clean],
]

REPLAYS: list[Step | Restart] = [
    put("mixed", 300, LARGE),
    put("kept", 100, LARGE),
    take("kept", 1),
    drop("mixed"),
    replay(EventType.DROP),
    rollover,
    drop("mixed"),
    truncate,
    replay(EventType.DROP),
    Restart(is_kill=True),
    drop("kept"),
    replay(EventType.DROP),
    truncate,
    clean,
    replay(EventType.CREATE, "mixed"),
    checkpoint,
    drop("kept"),
    Restart(),
    replay(EventType.DROP),
    clean,
    truncate,
]

PUNCHES: list[Step | Restart] = [
    spread(("keep", 300), ("drop", 5000), ("drop", 4900), ("keep", 310), ("drop", 5010), ("keep", 320)),
    drop("drop"),
    compact("CompactAll", Action.PUNCH),
    checkpoint,
    take("keep", 2),
    compact("CompactAll", Action.PUNCH),
    put("other", 40),
    compact("CompactAll", Action.PUNCH, Action.TRUNCATE),
    clean,
]

REWRITES: list[Step | Restart] = [
    spread(("keep", 300), ("drop", 700), ("q", 310), ("drop", 900), ("keep", LARGE)),
    spread(("keep", 320), ("drop", 710), ("q", 330), ("drop", 910), ("keep", 340)),
    clone("keep", "q"),
    put("q", 41, 42, 43),
    drop("drop"),
    compact("CompactAll"),
    checkpoint,
    spread(("keep", 350), ("drop", 720), ("drop", 5000), ("keep", 360)),
    drop("drop"),
    take("keep", 2),
    compact("CompactAll"),
    lease(600),
    compact("CompactAll"),
    clean,
    Restart(is_kill=True),
    take("q", 20),
    compact("StatsBased"),
    drop("keep"),
    clean,
    wait(100),
    clean,
]

AHEAD: list[Step | Restart] = [
    *[put("a", LARGE) for _ in range(5)],
    put("a", LARGE, LARGE),
    drop("a"),
    clean,
    Restart(),
    *[put("a", LARGE) for _ in range(4)],
    broken(put("a", LARGE), fails("create", "*/c1/?/*-*", error=errno.ENOSPC)),
    broken(put("a", LARGE, LARGE, LARGE, LARGE, LARGE), fails("sync_directory", "*/c1/?")),
    Restart(is_kill=True),
    adopt,
    clean,
    put("a", LARGE),
]
"""A file each session, so that the next ones are made ahead: used, removed by a close, left by a crash."""

REWRITE_ERRORS: list[Step | Restart] = [
    spread(("keep", 300), ("drop", 700), ("keep", 310), ("drop", 900), ("keep", LARGE)),
    spread(("keep", 320), ("drop", 710), ("keep", 340)),
    drop("drop"),
    broken(compact("CompactAll", Action.REWRITE), fails("write", "*/c1/?/*-513", error=errno.ENOSPC)),
    broken(compact("CompactAll", Action.REWRITE), fails("write", "*/c1/?/*-769")),
    broken(compact("CompactAll", Action.REWRITE), fails("unlink", "*/c1/?/*-1")),
    clean,
    put("keep", 10),
]

LIVES: list[Step] = [handles, expire, checkpoint, handles, clean, truncate]


AILS: list[Step | Restart] = [
    *[put("a", 300, LARGE), put("kept", 150, 250, LARGE), spread(("a", 700), ("kept", 310), ("drop", 900))],
    ail("a"),
    Restart(is_kill=True),
    *[put("a", 400), drop("drop"), rollover, ail("kept"), checkpoint],
    Restart(is_kill=True),
    *[drop("a"), clean, truncate, compact("CompactAll"), ail_swapped("kept")],
    Restart(is_kill=True),
    *[take("kept", 9), rollover, checkpoint, clean, compact("CompactAll"), give_up],
    Restart(),
    *[give_up, give_up, clean, put("a", 50)],
]
"""Records that no start can use, in the log, in a snapshot and in a swap file; in the end a person gives them up."""


VOLUMES: list[Step | Restart] = [
    *[put("a", 300), put("b", LARGE), put("a", 200, LARGE), put("b", 400)],
    *[unmounted, put("b", LARGE, 100), drop("a"), clean, truncate, checkpoint],
    Restart(is_kill=True),
    *[put("b", 50), mounted, clean, take("b", 1)],
    Restart(),
    *[put("c", LARGE), put("c", 60), put("c", LARGE), unmounted],
    Restart(is_kill=True),
    *[put("c", 70), forget, clean, put("c", 80)],
    Restart(is_kill=True),
    *[drop("c"), clean],
]
"""One of two goes away, is back, goes again and is given up."""


TENANTS: list[Step | Restart] = [
    *[put_by("t1", "a", 300, LARGE), put_by("t2", "b", 310), put_by("t1", "drop", 700), put_by("t2", "drop", 900, 710)],
    *[put_by("t1", "a", 320), put("a", 330), put_by("t2", "b", 340, LARGE)],
    Restart(is_kill=True),
    *[put_by("t2", "b", 350), put_by("t1", "drop", LARGE), checkpoint, drop("drop"), clean, truncate],
    *[compact("CompactAll", Action.REWRITE), put_by("t1", "a", 360), put_by("t2", "b", 370)],
    Restart(),
    *[compact("CompactAll"), clean, take("b", 2)],
]
"""Each tenant's contents in files of their own, beside those of nobody."""


class Workload:
    """A named script under its settings."""

    def __init__(self, name: str, steps: Sequence[Step | Restart], spec: ContentRepositorySpec = SPEC) -> None:
        self.name = name
        self.spec = spec
        self._steps = steps

    def __iter__(self) -> Iterator[Step | Restart]:
        return iter(self._steps)


GROWTH: list[Step | Restart] = [
    put("a", 300),
    Restart(spec=TWO_CONTAINERS),
    *[put("a", LARGE), put("a", LARGE)],
    Restart(is_kill=True),
    *[put("a", LARGE, 100), checkpoint, drop("a"), clean],
]

LATE_GROWTH: list[Step | Restart] = [
    *[put("a", 300), occupied],
    Restart(spec=TWO_CONTAINERS),
    *[put("a", LARGE), mounted, put("a", LARGE), put("a", LARGE)],
    Restart(is_kill=True),
    *[put("a", LARGE, 100), drop("a"), clean],
]
"""A container that could not be made at the start is made while the repository is open."""

EVACUATION: list[Step | Restart] = [
    spread(("keep", 1300), ("drop", 2200), ("keep", 900)),
    spread(("keep", 1400), ("drop", 2300), ("keep", 800)),
    *[drop("drop"), compact("CompactAll"), put("other", 40)],
    Restart(spec=LEAVING),
    *[compact("StatsBased", Action.REWRITE), put("other", 50)],
    Restart(is_kill=True),
    *[compact("StatsBased"), clean],
    Restart(spec=SPEC),
    take("keep", 2),
]
"""One container is emptied, outputs included, and taken away."""

TURNS: list[Step | Restart] = [
    put("a", 300),
    Restart(spec=THREE_PARTITIONS),
    *[put("a", 100), put("a", 200), put("a", 300), checkpoint, take("a", 2)],
    Restart(is_kill=True, spec=SPEC),
    put("a", 10),
    checkpoint,
    take("a", 1),
    Restart(),
]

CONTENT_FILES = "/r/c1/[0-9]*"

BACKUPS: list[Step] = [
    put("a", 300, LARGE),
    put("c", 20, 21, 22, 23, 24, 25),
    backup,
    drop("a"),
    clean,
    put("b", 40),
    broken(backup, fails("rename", "/b/*")),
    backup,
    put("d", LARGE),
    put("d", 30, 31, 32),
    broken(backup, fails("read", CONTENT_FILES, times=100)),
    # Neighbours are read together, then each alone and once more, and so again for its reason: six is one of two.
    broken(backup, fails("read", CONTENT_FILES, times=6), fails("rename", "/b/backup*")),
    broken(backup, fails("read", CONTENT_FILES, times=6)),
    backup,
    broken(restore, fails("write", "/copy/c1/[0-9]*", error=errno.ENOSPC)),
    broken(restore, fails("sync", "/copy/c1/[0-9]*")),
    broken(restore, fails("rename", "/copy/ullage.json*")),
    restore,
    salvaged,
    put("b", 50),
]

INIT = "init"
"""The workload whose crashes during the init itself are explored."""

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(INIT, []),
        Workload("writes", WRITES),
        Workload("swaps", SWAPS),
        Workload("reclaims", RECLAIMS),
        Workload("archives", RECLAIMS, KEEPING),
        Workload("lives", LIVES),
        Workload("upkeep", UPKEEP, ROOMY),
        Workload("partitions", [*WRITES[:6], checkpoint, *SWAPS[:5]], THREE_PARTITIONS),
        Workload("seals", SEALS),
        Workload("restarts", RESTARTS),
        Workload("growth", GROWTH),
        Workload("late growth", LATE_GROWTH),
        Workload("evacuation", EVACUATION, TWO_CONTAINERS),
        Workload("turns", TURNS),
        Workload("tenants", TENANTS, ISOLATED),
        Workload("punches", PUNCHES),
        Workload("rewrites", REWRITES),
        Workload("archived outputs", REWRITES, KEEPING),
        Workload("files made ahead", AHEAD),
        Workload("rewrite errors", REWRITE_ERRORS),
        Workload("errors", ERRORS),
        Workload("backups", BACKUPS),
        Workload("set-aside records", AILS),
        Workload("volumes", VOLUMES, TWO_CONTAINERS),
        Workload("answers", ANSWERS),
        Workload("blocks", BLOCKS),
        Workload("handle runs", HANDLE_RUNS),
        Workload("handle run errors", HANDLE_RUN_ERRORS),
        Workload("stages", STAGES),
        Workload("feeds", FEEDS),
        Workload("drains", DRAINS, DRAINED),
        Workload("replays", REPLAYS),
        Workload("replays, archived", REPLAYS, KEEPING),
    )
}
