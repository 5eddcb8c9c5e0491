"""Scripted workloads: short, deterministic, and together through every path that changes the disk."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import msgspec

from tests.support import ManualClock
from ullage_agent.contract import (
    Archive,
    Claims,
    Compaction,
    Container,
    ContentRepositorySpec,
    Duration,
    FlowFileSettings,
    HostPath,
    Quantity,
    Storage,
    Truncation,
    TruncationMode,
)
from ullage_agent.engine.errors import UllageError
from ullage_agent.engine.model import FlowFile
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.session import ProcessSession
from ullage_agent.engine.testing import Call, CrashFiles

Step = Callable[[Repository, ManualClock], None]


@dataclass(frozen=True)
class Restart:
    """The repository is opened again, under another spec if there is one; killed first, or closed."""

    is_kill: bool = False
    spec: ContentRepositorySpec | None = None


class Strike:
    """The first call of a kind on a path fails; a late one does its work all the same."""

    def __init__(self, kind: str, path: str, *, error: int = errno.EIO, is_late: bool = False) -> None:
        self.kind = kind
        self.path = path
        self.error = error
        self.is_late = is_late
        self.is_over = False

    def meet(self, call: Call, *, is_late: bool) -> None:
        """Fail if this is the call."""
        if self.is_over or is_late != self.is_late or not fnmatch(call.kind, self.kind):
            return
        if fnmatch(call.path, self.path):
            self.is_over = True
            raise OSError(self.error, os.strerror(self.error), call.path)


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


def adopt(repository: Repository, clock: ManualClock) -> None:
    """Orphans get a record."""
    repository.reclamation.adopt_orphans()


def spoil(queue: str, *sizes: int) -> Step:
    """Write these contents behind what others committed, so that they are on disk, and roll back."""

    def step(repository: Repository, clock: ManualClock) -> None:
        with repository.session() as session:
            for size in sizes:
                _written(session, size)

    return step


def leave(*sizes: int) -> Step:
    """Write these contents in a session that neither ends nor is ended: the process is killed next."""

    def step(repository: Repository, clock: ManualClock) -> None:
        session = repository.session()
        for size in sizes:
            _written(session, size)

    return step


def broken(inner: Step, *strikes: Callable[[], Strike]) -> Step:
    """A step that meets errors: whatever it raises, the repository must go on."""

    def step(repository: Repository, clock: ManualClock) -> None:
        files = repository.files
        assert isinstance(files, CrashFiles)
        before, after = files.before, files.after
        made = [strike() for strike in strikes]

        def meet(call: Call, hook: Callable[[Call], None], *, is_late: bool) -> None:
            hook(call)
            for strike in made:
                strike.meet(call, is_late=is_late)

        files.before = lambda call: meet(call, before, is_late=False)
        files.after = lambda call: meet(call, after, is_late=True)
        try:
            inner(repository, clock)
        except (OSError, UllageError):
            # What the step meant to do failed: that is what it is for. The states that follow tell the rest.
            pass
        finally:
            files.before, files.after = before, after
        assert all(strike.is_over for strike in made), [strike.kind for strike in made if not strike.is_over]

    return step


def fails(kind: str, path: str, *, error: int = errno.EIO, is_late: bool = False) -> Callable[[], Strike]:
    """Each run of a workload makes its strikes anew."""
    return lambda: Strike(kind, path, error=error, is_late=is_late)


def _written(session: ProcessSession, size: int) -> None:
    """Reading back what is not committed puts it on disk."""
    flow_file = session.write(session.create(), _bytes(size))
    assert session.read(flow_file).read() == _bytes(size)


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
    broken(put("a", *[30 + n for n in range(6)]), fails("write", "*.swap"), fails("unlink", "*.swap")),
    checkpoint,
]

LIVES: list[Step] = [handles, expire, checkpoint, handles, clean, truncate]


class Workload:
    """A named script under its settings."""

    def __init__(self, name: str, steps: Sequence[Step | Restart], spec: ContentRepositorySpec = SPEC) -> None:
        self.name = name
        self.spec = spec
        self._steps = steps

    def __iter__(self) -> Iterator[Step | Restart]:
        return iter(self._steps)


def _with(**sections: object) -> ContentRepositorySpec:
    return msgspec.structs.replace(SPEC, **sections)


KEEPING = _with(
    archive=Archive(max_retention_period=Duration(60_000), max_usage_percentage=99, backpressure_percentage=100)
)
THREE_PARTITIONS = _with(flow_file=FlowFileSettings(partitions=3, swap_threshold=4, swap_batch=2))
TWO_CONTAINERS = _with(
    storage=msgspec.structs.replace(
        SPEC.storage,
        containers=(Container(name="c1", sub_path="c1"), Container(name="c2", sub_path="volumes/c2")),
    )
)

GROWTH: list[Step | Restart] = [
    put("a", 300),
    Restart(spec=TWO_CONTAINERS),
    put("a", LARGE),
    put("a", LARGE),
    Restart(is_kill=True),
    put("a", LARGE, 100),
    checkpoint,
    drop("a"),
    clean,
]

TURNS: list[Step | Restart] = [
    put("a", 300),
    Restart(spec=THREE_PARTITIONS),
    put("a", 100),
    put("a", 200),
    put("a", 300),
    checkpoint,
    take("a", 2),
    Restart(is_kill=True, spec=SPEC),
    put("a", 10),
    checkpoint,
    take("a", 1),
    Restart(),
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
        Workload("partitions", [*WRITES[:6], checkpoint, *SWAPS[:5]], THREE_PARTITIONS),
        Workload("seals", SEALS),
        Workload("restarts", RESTARTS),
        Workload("growth", GROWTH),
        Workload("turns", TURNS),
        Workload("errors", ERRORS),
    )
}
