"""Space beside Apache NiFi: what both give back of resource claims whose contents die in part, and what is replayed."""

import multiprocessing
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.arena import KILOBYTE, MEGABYTE, Arena
from bench.harness import Harness
from bench.reclaim import IN_PLACE, NO_GUARDS
from bench.table import Row, Target, number
from bench.workbench import spec_at
from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec, Duration, Quantity, TruncationMode
from ullage.engine.content.reserve import NAME as RESERVE
from ullage.engine.engine import Engine
from ullage.wire.provenance import EventQuery

SMALLS = 9
LARGE = 10 * MEGABYTE
"""A resource claim of the truncation cases: nine contents of 1 KB, and this one behind them, which dies."""

LEAST, MOST = 4 * KILOBYTE, 40 * KILOBYTE
"""Bytes of a mixed content."""

COMMIT = 5_000
"""FlowFiles that one session of the mixed case lets go: a transaction has a limit."""

APPENDABLE = (("50 KB", 50 * KILOBYTE), ("1 MB", MEGABYTE), ("10 MB", 10 * MEGABYTE))
"""NiFi's words for the size that a resource claim may grow to, and the bytes: as shipped, as it was before, large."""

FREED = Target(1.05, is_ceiling=True)

PATIENCE_SECONDS = 10
"""NiFi's tasks run every second here, instead of every minute."""

RUNS = 2
"""Of reclamation: the first one may cut off a file's tail, and leave the rest of it to the next."""

RETENTION_MILLIS = 3_600_000
EAGER = {"mode": TruncationMode.EAGER}


class Space(NamedTuple):
    """Bytes that content files occupy when a side has given back what it can, and bytes that live in them."""

    disk: int
    live: int

    @property
    def ratio(self) -> float:
        return self.disk / self.live


class _Later(Clock):
    """The system's clock, moved on by as much as it is told."""

    def __init__(self) -> None:
        self.ahead_millis = 0

    def now_millis(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_millis

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_millis / 1_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def tails(arena: Arena) -> Iterator[Row]:
    """Dead large contents behind live small ones, in the five states that a repository can be in when they die."""
    states: dict[str, tuple[Callable[[Arena], Space], Callable[[Arena], Space]]] = {
        "fresh": (_fresh, _nifi_fresh),
        "after a restart with swap files": (_restarted, _nifi_restarted),
        "swapped out before they die": (_swapped, _nifi_swapped),
        "after a crash": (_crashed, _nifi_crashed),
        "archive on, retention passed": (_archived, _nifi_archived),
    }
    for state, (engine, peer) in states.items():
        arena.bench.say(state)
        yield _space_row(f"dead tails of 10 MB, {state}: disk / live", engine(arena), peer(arena))
        _sweep(arena)


def mixed(arena: Arena) -> Iterator[Row]:
    """Contents of 4 to 40 KB, all dead but one in each resource claim."""
    for name, appendable in APPENDABLE:
        arena.bench.say(f"mixed contents, {name} a resource claim")
        engine, peer = _mixed(arena, appendable), _nifi_mixed(arena, name)
        yield _space_row(f"one of the contents of each resource claim of {name} lives: disk / live", engine, peer)
        _sweep(arena)


def replays(arena: Arena) -> Iterator[Row]:
    """Contents that were truncated, replayed: a replay that succeeds has to bring all bytes back."""
    nifi, count = arena.nifi, arena.sizes.tails
    _nifi_tails(arena, nifi)
    _nifi_drop(arena)
    theirs = nifi.ask("replay", "nifi")
    nifi.forget("nifi")
    refusals, short = _replayed(arena)
    against = (
        f"NiFi: {theirs['accessible']} of {theirs['count']} called accessible, "
        f"{theirs['found']:,} of {theirs['promised']:,} bytes come back"
    )
    what = "replays of truncated contents that succeed with bytes missing"
    told = f"{sum(refusals.values())} of {count} refused: {', '.join(refusals)}"
    yield Row("replay", what, against, (float(short),), "", Target(0, is_ceiling=True), told)


def _space_row(what: str, engine: Space, peer: Space) -> Row:
    against = f"NiFi: {number(peer.ratio)}"
    medians = f"{engine.disk:,} bytes for {engine.live:,}, peer {peer.disk:,} for {peer.live:,}"
    return Row("space", what, against, (engine.ratio,), "", FREED, medians)


def occupied(directory: Path) -> int:
    """Bytes that the files below occupy: holes do not count, and of a file's last block only what is used.

    Nor does our reserve for a full disk, whose size has nothing to do with what is stored.
    """
    total = 0
    for path in directory.rglob("*"):
        try:
            found = path.lstat()
        except FileNotFoundError:  # NiFi's last tasks may be removing it just now
            continue
        if stat.S_ISREG(found.st_mode) and path.name != RESERVE:
            total += min(found.st_size, found.st_blocks * 512)
    return total


def _fresh(arena: Arena) -> Space:
    spec = _spec(arena, archive={"enabled": False})
    with Engine.open(spec) as repository:
        _write_tails(repository, arena.sizes.tails)
        _drop(repository)
        return _reclaimed(arena, repository)


def _restarted(arena: Arena) -> Space:
    spec = _spec(arena, archive={"enabled": False}, flow_file={"swap_threshold": 20, "swap_batch": 10})
    with Engine.open(spec) as repository:
        _write_tails(repository, arena.sizes.tails)
        repository.queues.swap_out_all()
        repository.checkpoint()
    with Engine.open(spec) as repository:
        _drop(repository)
        return _reclaimed(arena, repository)


def _swapped(arena: Arena) -> Space:
    spec = _spec(arena, archive={"enabled": False}, flow_file={"swap_threshold": 20, "swap_batch": 10})
    with Engine.open(spec) as repository:
        _write_tails(repository, arena.sizes.tails)
        repository.queues.swap_out_all()
        _drop(repository)
        return _reclaimed(arena, repository)


def _crashed(arena: Arena) -> Space:
    """The process is killed when the drop is durable and nothing of it has been reclaimed."""
    spec = _spec(arena, archive={"enabled": False})
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(spec, arena.sizes.tails))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Engine.open(spec) as repository:
        return _reclaimed(arena, repository)


def _die(spec: ContentRepositorySpec, count: int) -> None:
    repository = Engine.open(spec)
    _write_tails(repository, count)
    _drop(repository)
    os.kill(os.getpid(), signal.SIGKILL)


def _archived(arena: Arena) -> Space:
    """The archive covers dead tails too, and its time has passed."""
    clock = _Later()
    retention = {"enabled": True, "partial": True, "max_retention_period": Duration(RETENTION_MILLIS)}
    spec = _spec(arena, archive=retention, truncation={})
    with Engine.open(spec, None, clock) as repository:
        _write_tails(repository, arena.sizes.tails)
        _drop(repository)
        clock.ahead_millis = 2 * RETENTION_MILLIS
        return _reclaimed(arena, repository)


def _spec(arena: Arena, **sections: Any) -> ContentRepositorySpec:
    """A fresh repository whose dead tails are cut without waiting for the disk to fill up."""
    spec = spec_at(arena.bench.path("ullage"), **{"compaction": NO_GUARDS, "truncation": EAGER, **sections})
    Engine.initialize(spec)
    return spec


def _write_tails(repository: Engine, count: int) -> None:
    """As NiFi's: one session a resource claim."""
    for _ in range(count):
        with repository.session() as session:
            session.ingest("small", [os.urandom(KILOBYTE) for _ in range(SMALLS)])
            session.ingest("large", [os.urandom(LARGE)])
            session.commit()
    repository.content.retire_idle()


def _drop(repository: Engine) -> None:
    repository.queues.drop(repository.queue("large"))
    repository.checkpoint()


def _reclaimed(arena: Arena, repository: Engine) -> Space:
    """Only what copies nothing, as NiFi's truncation."""
    repository.reclamation.clean()
    repository.reclamation.truncate()
    compactor = repository.compactor
    compactor.execute(compactor.plan(policy="CompactAll", actions=IN_PLACE))
    return _space(arena, repository)


def _space(arena: Arena, repository: Engine) -> Space:
    live = repository.reclamation.survey().containers[0].live_bytes
    return Space(occupied(arena.bench.directory / "ullage" / "c1"), live)


def _nifi_fresh(arena: Arena) -> Space:
    _nifi_tails(arena, arena.nifi)
    return _nifi_drop(arena)


def _nifi_restarted(arena: Arena) -> Space:
    """The swap files hold other FlowFiles."""
    nifi = arena.nifi
    _nifi_open(nifi)
    nifi.ask("fill", "nifi", count=arena.sizes.tails)
    nifi.ask("swap_out", "nifi", size=arena.sizes.tails)
    _nifi_write(arena, nifi)
    nifi.ask("close", "nifi")
    _nifi_open(nifi)
    return _nifi_drop(arena)


def _nifi_swapped(arena: Arena) -> Space:
    _nifi_tails(arena, arena.nifi)
    arena.nifi.ask("swap_out", "nifi", size=arena.sizes.tails)
    arena.nifi.ask("swap_in", "nifi")
    return _nifi_drop(arena)


def _nifi_crashed(arena: Arena) -> Space:
    """In a process of its own, whose tasks would run after a minute, as shipped."""
    with Harness.start(arena.bench.directory) as doomed:
        doomed.ask("open", "nifi", sync=True)
        _nifi_write(arena, doomed)
        live = doomed.ask("drop_larger", "nifi", size=KILOBYTE)["live"]
        doomed.kill()
    _nifi_open(arena.nifi)
    return _nifi_space(arena, live)


def _nifi_archived(arena: Arena) -> Space:
    """With a retention of a second."""
    _nifi_open(arena.nifi, archive=True)
    _nifi_write(arena, arena.nifi)
    return _nifi_drop(arena)


def _nifi_tails(arena: Arena, nifi: Harness) -> None:
    _nifi_open(nifi)
    _nifi_write(arena, nifi)


def _nifi_open(nifi: Harness, **settings: str | bool) -> None:
    nifi.ask("open", "nifi", sync=True, cleanup="1 sec", **settings)


def _nifi_write(arena: Arena, nifi: Harness) -> None:
    nifi.ask("write_tails", "nifi", count=arena.sizes.tails, smalls=SMALLS, small=KILOBYTE, size=LARGE)


def _nifi_drop(arena: Arena) -> Space:
    live = arena.nifi.ask("drop_larger", "nifi", size=KILOBYTE)["live"]
    return _nifi_space(arena, live)


def _nifi_space(arena: Arena, live: int) -> Space:
    """When its tasks have had their time, or all is free."""
    content = arena.bench.directory / "nifi" / "content"
    deadline = time.monotonic() + PATIENCE_SECONDS
    space = Space(occupied(content), live)
    while space.ratio > FREED.value and time.monotonic() < deadline:
        time.sleep(0.2)
        arena.nifi.ask("checkpoint", "nifi")
        space = Space(occupied(content), live)
    return space


def _mixed(arena: Arena, appendable: int) -> Space:
    chooser = random.Random(appendable)
    claims = {"max_appendable_size": Quantity(appendable), "max_batch_file": Quantity(appendable)}
    spec = _spec(arena, archive={"enabled": False}, claims=claims)
    with Engine.open(spec) as repository:
        written = 0
        while written < arena.sizes.mixed_bytes:
            contents = [chooser.randbytes(chooser.randint(LEAST, MOST)) for _ in range(100)]
            with repository.session() as session:
                session.ingest("mixed", contents)
                session.commit()
            written += sum(map(len, contents))
        repository.content.retire_idle()
        _keep_one_each(repository, chooser)
        repository.reclamation.clean()
        compactor = repository.compactor
        for _ in range(RUNS):
            compactor.execute(compactor.plan(policy="CompactAll"))
        return _space(arena, repository)


def _keep_one_each(repository: Engine, chooser: random.Random) -> None:
    sharing: dict[int, list[bytes]] = {}
    with repository.session() as session:
        for flow_file in session.get_many("mixed", 1 << 30):
            assert flow_file.claim is not None
            sharing.setdefault(flow_file.claim.resource, []).append(flow_file.uuid)
        session.rollback()
    kept = {chooser.choice(together) for together in sharing.values()}
    while True:
        with repository.session() as session:
            flow_files = session.get_many("mixed", COMMIT)
            session.transfer_many([flow_file for flow_file in flow_files if flow_file.uuid in kept], "kept")
            session.remove_many([flow_file for flow_file in flow_files if flow_file.uuid not in kept])
            session.commit()
        if not flow_files:
            break
    repository.checkpoint()


def _nifi_mixed(arena: Arena, appendable: str) -> Space:
    nifi = arena.nifi
    _nifi_open(nifi, appendable=appendable)
    size = arena.sizes.mixed_bytes
    nifi.ask("write_mixed", "nifi", size=size, least=LEAST, most=MOST, seed=1)
    live = nifi.ask("drop_all_but_one", "nifi", seed=2)["live"]
    return _nifi_space(arena, live)


def _replayed(arena: Arena) -> tuple[dict[str, int], int]:
    """How often each refusal was given, and how many replays lacked bytes."""
    refusals: dict[str, int] = {}
    short = 0
    with Engine.open(_spec(arena, archive={"enabled": False})) as repository:
        _write_tails(repository, arena.sizes.tails)
        _drop(repository)
        _reclaimed(arena, repository)
        for event in repository.history.query(EventQuery(types=["DROP"], limit=1_000)).events:
            refusal = repository.history.refusal(event)
            if refusal is not None:
                refusals[str(refusal.reason)] = refusals.get(str(refusal.reason), 0) + 1
                continue
            record = repository.history.replay(event)
            assert record.claim is not None
            short += len(repository.reader.read(record.claim, 0, record.claim.length)) < LARGE
    return refusals, short


def _sweep(arena: Arena) -> None:
    arena.nifi.forget("nifi")
    shutil.rmtree(arena.bench.directory / "ullage")
