"""Scripted workloads: short, deterministic, and together through every path that changes the disk."""

from collections.abc import Callable, Iterator

import msgspec

from tests.support import ManualClock
from ullage_agent.contract import (
    Archive,
    Claims,
    Compaction,
    ContentRepositorySpec,
    Duration,
    FlowFileSettings,
    HostPath,
    Quantity,
    Storage,
    Truncation,
    TruncationMode,
)
from ullage_agent.engine.model import FlowFile
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.session import ProcessSession

Step = Callable[[Repository, ManualClock], None]

KB = 1024
LARGE = 6 * KB
"""Large enough for an aligned claim under `SPEC`, small enough to be copied a hundred thousand times."""

SPEC = ContentRepositorySpec(
    storage=Storage(host_path=HostPath(path="/r"), sections=2),
    claims=Claims(
        max_appendable_size=Quantity(4 * KB),
        max_flow_files=5,
        max_batch_file=Quantity(16 * KB),
        large_claim=Quantity(5 * KB),
    ),
    archive=Archive(enabled=False),
    flow_file=FlowFileSettings(swap_threshold=4, swap_batch=2),
    truncation=Truncation(mode=TruncationMode.EAGER),
    compaction=Compaction(deleted_retention=Duration(60_000)),
)


def put(queue: str, *sizes: int) -> Step:
    """One commit of contents of these sizes."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            for size in sizes:
                session.transfer(session.write(session.create(attributes={"n": str(size)}), _bytes(size)), queue)
            session.commit()

    return step


def drop(queue: str) -> Step:
    """Remove all of a queue."""

    def step(repository: Repository, clock: ManualClock) -> None:
        repository.queues.drop(repository.queue(queue))

    return step


def change(source: str, target: str, edit: Callable[[ProcessSession, FlowFile], FlowFile]) -> Step:
    """One commit that edits the first FlowFile of a queue and moves it on."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            flow_file = session.get(source)
            if flow_file is not None:
                edit(session, flow_file)
                session.transfer(flow_file, target)
                session.commit()

    return step


def clone(source: str, target: str) -> Step:
    """A clone and a slice of the first FlowFile, and one clone that dies in the same session."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            flow_file = session.get(source)
            if flow_file is None:
                return
            session.transfer(session.clone(flow_file), target)
            session.transfer(session.clone(flow_file, 1, max(0, flow_file.size - 2)), target)
            session.remove(session.clone(flow_file))
            session.transfer(flow_file, source)
            session.commit()

    return step


def merge(source: str, target: str) -> Step:
    """Two FlowFiles become one; the originals go."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            flow_files = session.get_many(source, 2)
            session.transfer(session.merge(flow_files, b"<", b"|", b">"), target)
            session.remove_many(flow_files)
            session.commit()

    return step


def split(source: str, target: str) -> Step:
    """A FlowFile becomes three slices; the original goes."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            flow_file = session.get(source)
            if flow_file is None:
                return
            third = flow_file.size // 3
            for part in session.split(flow_file, [third, third, flow_file.size - 2 * third]):
                session.transfer(part, target)
            session.remove(flow_file)
            session.commit()

    return step


def take(queue: str, count: int) -> Step:
    """Poll and remove; swaps in on the way."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            session.remove_many(session.get_many(queue, count))
            session.commit()

    return step


def rollback(queue: str) -> Step:
    """Write, change and roll back."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            session.write(session.create(), _bytes(LARGE))
            session.get(queue)

    return step


def checkpoint(repository: Repository, clock: ManualClock) -> None:
    """A snapshot."""
    repository.checkpoint()


def truncate(repository: Repository, clock: ManualClock) -> None:
    """Dead tails go."""
    repository.reclamation.truncate()


def clean(repository: Repository, clock: ManualClock) -> None:
    """Free resource claims go to the archive or away; what the archive kept long enough goes."""
    repository.reclamation.clean()


def wait(seconds: float) -> Step:
    """Time passes."""

    def step(repository: Repository, clock: ManualClock) -> None:
        clock.advance(seconds)

    return step


def handles(repository: Repository, clock: ManualClock) -> None:
    """Put, delete, undelete, delete and purge handles."""
    first, second = repository.handles.put_many([_bytes(700), _bytes(LARGE)], {"kind": "handle"})
    repository.handles.delete(first)
    repository.handles.undelete(first)
    repository.handles.delete(second)
    clock.advance(120)
    repository.handles.purge()
    repository.handles.put(b"short lived", ttl_millis=1000)
    clock.advance(2)
    repository.handles.purge()


def expire(repository: Repository, clock: ManualClock) -> None:
    """A queue whose FlowFiles live for a second."""
    repository.queues.define("brief", priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=1000)
    put("brief", 100, 200)(repository, clock)
    clock.advance(2)
    repository.queues.expire()


def _bytes(size: int) -> bytes:
    pattern = f"{size}:".encode()
    return (pattern * (size // len(pattern) + 1))[:size]


WRITES: list[Step] = [
    put("a", 0, 1, 300),
    put("a", 900, LARGE),
    put("a", 300, 300, 300, LARGE, LARGE),
    change("a", "b", lambda s, f: s.put_attributes(f, {"seen": "yes"})),
    change("a", "b", lambda s, f: s.write(f, _bytes(1200))),
    change("a", "b", lambda s, f: s.append(f, b"tail")),
    rollback("b"),
    clone("a", "b"),
    merge("b", "c"),
    split("c", "c"),
    checkpoint,
    put("a", 50),
    drop("c"),
]

SWAPS: list[Step] = [
    put("q", *[40 + n for n in range(5)]),
    put("q", LARGE, 10, 20, 30),
    checkpoint,
    put("q", 60, 70),
    take("q", 4),
    take("q", 3),
    checkpoint,
    take("q", 2),
    put("q", *[50 + n for n in range(6)]),
    drop("q"),
    checkpoint,
]

RECLAIMS: list[Step] = [
    put("small", 100, 200),
    put("mixed", 300, LARGE),
    clone("mixed", "small"),
    put("large", 500, LARGE),
    take("large", 1),
    put("large", 200, LARGE),
    checkpoint,
    drop("large"),
    truncate,
    drop("mixed"),
    clean,
    truncate,
    wait(30),
    clean,
    put("small", 10),
    checkpoint,
    drop("small"),
    clean,
    wait(100),
    clean,
]

LIVES: list[Step] = [handles, expire, checkpoint, handles, clean, truncate]


class Workload:
    """A named script under its settings."""

    def __init__(self, name: str, steps: list[Step], spec: ContentRepositorySpec = SPEC) -> None:
        self.name = name
        self.spec = spec
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)


def _with(**sections: object) -> ContentRepositorySpec:
    return msgspec.structs.replace(SPEC, **sections)


KEEPING = _with(
    archive=Archive(max_retention_period=Duration(60_000), max_usage_percentage=99, backpressure_percentage=100)
)
THREE_PARTITIONS = _with(flow_file=FlowFileSettings(partitions=3, swap_threshold=4, swap_batch=2))

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("writes", WRITES),
        Workload("swaps", SWAPS),
        Workload("reclaims", RECLAIMS),
        Workload("archives", RECLAIMS, KEEPING),
        Workload("lives", LIVES),
        Workload("partitions", [*WRITES[:6], checkpoint, *SWAPS[:5]], THREE_PARTITIONS),
    )
}
