"""What a workload's script is made of: one small deed each, to a repository and its clock."""

import errno
import os
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Concatenate, ParamSpec
from weakref import WeakKeyDictionary

from tests.crash.ailing import commit_carelessly, swap_out_ailing, well_in
from tests.crash.away import CONTAINER, mount, occupy, unmount
from tests.support import ManualClock, committing, event_store
from ullage.engine.engine import Engine
from ullage.engine.history import Reason
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import Action, EventType, FlowFileRecord, Update
from ullage.engine.provenance.eventfiles import encode_tables
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.search import search
from ullage.engine.session import ProcessSession
from ullage.errors import ReplayRefused, UllageError
from ullage.testing.crashing import LOOKING, Call, CrashFiles
from ullage.wire.provenance import EventQuery

Step = Callable[[Engine, ManualClock], None]
P = ParamSpec("P")

KB = 1024
LARGE = 6 * KB
"""Large enough for an aligned claim under `SPEC`, small enough to be copied a hundred thousand times."""


def deed(work: Callable[Concatenate[Engine, ManualClock, P], None]) -> Callable[P, Step]:
    """A script gives a deed what it is to do with; the repository and the clock come when the step is taken."""
    return lambda *given, **named: lambda repository, clock: work(repository, clock, *given, **named)


TENANT = "tenant"
"""The attribute that says whose a content is."""

LEFT: WeakKeyDictionary[Engine, list[ProcessSession]] = WeakKeyDictionary()
"""Sessions that are not to be collected before their process ends: what they hold would be given back."""


class Strike:
    """The first `times` calls of a kind on a path fail; late ones do their work all the same."""

    def __init__(self, kind: str, path: str, *, error: int = errno.EIO, is_late: bool = False, times: int = 1) -> None:
        self.kind = kind
        self.path = path
        self.error = error
        self.is_late = is_late
        self.is_over = False
        self._left = times

    def meet(self, call: Call, *, is_late: bool) -> None:
        """Fail if this is such a call."""
        if self._left == 0 or is_late != self.is_late or not fnmatch(call.kind, self.kind):
            return
        if fnmatch(call.path, self.path):
            self._left -= 1
            self.is_over = True
            raise OSError(self.error, os.strerror(self.error), call.path)


@deed
def put(repository: Engine, clock: ManualClock, queue: str, *sizes: int) -> None:
    """One commit of contents of these sizes."""
    with committing(repository) as session:
        for size in sizes:
            session.transfer(session.write(session.create(attributes={"n": str(size)}), patterned(size)), queue)


@deed
def put_by(repository: Engine, clock: ManualClock, tenant: str, queue: str, *sizes: int) -> None:
    """One commit of a tenant's contents, which say whose they are."""
    with repository.session(tenant=tenant) as session:
        for size in sizes:
            made = session.create(attributes={TENANT: tenant})
            session.transfer(session.write(made, patterned(size)), queue)
        session.commit()


@deed
def drop(repository: Engine, clock: ManualClock, queue: str) -> None:
    """Remove all of a queue."""
    repository.queues.drop(repository.queue(queue))


@deed
def change(
    repository: Engine,
    clock: ManualClock,
    source: str,
    target: str,
    edit: Callable[[ProcessSession, FlowFileRecord], FlowFileRecord],
) -> None:
    """One commit that edits the first FlowFile of a queue and moves it on."""
    with repository.session() as session:
        flow_file = session.get(source)
        if flow_file is not None:
            edit(session, flow_file)
            session.transfer(flow_file, target)
            session.commit()


@deed
def clone(repository: Engine, clock: ManualClock, source: str, target: str) -> None:
    """A clone and a slice of the first FlowFile, and one clone that dies in the same session."""
    with committing(repository) as session:
        flow_file = session.get(source)
        if flow_file is None:
            return
        session.transfer(session.clone(flow_file), target)
        session.transfer(session.clone(flow_file, 1, max(0, flow_file.size - 2)), target)
        session.remove(session.clone(flow_file))
        session.transfer(flow_file, source)


@deed
def merge(repository: Engine, clock: ManualClock, source: str, target: str) -> None:
    """Two FlowFiles become one; the originals go."""
    with committing(repository) as session:
        flow_files = session.get_many(source, 2)
        session.transfer(session.merge(flow_files, b"<", b"|", b">"), target)
        session.remove_many(flow_files)


@deed
def split(repository: Engine, clock: ManualClock, source: str, target: str) -> None:
    """A FlowFile becomes three slices; the original goes."""
    with committing(repository) as session:
        flow_file = session.get(source)
        if flow_file is None:
            return
        third = flow_file.size // 3
        for part in session.split(flow_file, [third, third, flow_file.size - 2 * third]):
            session.transfer(part, target)
        session.remove(flow_file)


@deed
def take(repository: Engine, clock: ManualClock, queue: str, count: int) -> None:
    """Poll and remove; swaps in on the way."""
    with committing(repository) as session:
        session.remove_many(session.get_many(queue, count))


@deed
def rollback(repository: Engine, clock: ManualClock, queue: str) -> None:
    """Write, change and roll back."""
    with repository.session() as session:
        session.write(session.create(), patterned(LARGE))
        session.get(queue)


def checkpoint(repository: Engine, clock: ManualClock) -> None:
    """A snapshot, in which the handles stand in packs."""
    repository.ledger.records.pack(0)
    repository.checkpoint()


def snapshot(repository: Engine, clock: ManualClock) -> None:
    """A snapshot that carries the events that are in no event file."""
    repository.checkpoint(drains=False)


def rollover(repository: Engine, clock: ManualClock) -> None:
    """Events leave the log."""
    repository.provenance.drain()


def index(repository: Engine, clock: ManualClock) -> None:
    """Event files are indexed, and what the index finds is what they hold."""
    while repository.provenance.index_step():
        continue
    for type in (EventType.CREATE, EventType.DROP):
        query = EventQuery(types=[type.name])
        assert repository.history.query(query) == search(event_store(repository), None, query)


def rewrite_events(repository: Engine, clock: ManualClock) -> None:
    """Each event file is written anew, with the events that it has."""
    store = event_store(repository)

    def anew(file: EventFile) -> memoryview:
        return encode_tables([table for _, table in store.event_files.scan(file)], compress=False)

    store.rewrite(anew)


def retain(repository: Engine, clock: ManualClock) -> None:
    """Events whose time is over go."""
    repository.provenance.retain()


@deed
def replay(repository: Engine, clock: ManualClock, type: EventType, queue: str = "") -> None:
    """The last event of a type is replayed if it still can be; a refusal changes nothing.

    No workload damages content: whatever cannot be read is the error that the disk was told to give.
    """
    page = repository.history.query(EventQuery(types=[type.name], newest_first=True, limit=1))
    for event in page.events:
        refusal = repository.history.refusal(event, queue)
        if refusal is None:
            repository.history.replay(event, queue)
        elif refusal.reason is Reason.UNREADABLE:
            raise ReplayRefused(refusal.reason, refusal.message)


def truncate(repository: Engine, clock: ManualClock) -> None:
    """Dead tails go."""
    repository.reclamation.truncate()


@deed
def compact(repository: Engine, clock: ManualClock, policy: str, *actions: Action) -> None:
    """One run of compaction, or of some of its actions."""
    compactor = repository.compactor
    compactor.execute(compactor.plan(policy=policy, actions=frozenset(actions) or None))


@deed
def lease(repository: Engine, clock: ManualClock, seconds: int) -> None:
    """A snapshot is leased, renewed, revoked, and leased again until its time is over; files are passed under a lease
    that grows and shrinks.
    """
    first = repository.leases.acquire("reader", seconds * 1000)
    repository.leases.renew(first.id, seconds * 500)
    repository.leases.revoke(first.id)
    last = repository.leases.acquire("reader", 1000)
    clock.advance(2)
    repository.leases.purge()
    repository.leases.release(last.id)
    alive = [entry.claim.index for entry in repository.ledger.entries() if not entry.is_free]
    passed = repository.leases.acquire("socket", 1000, alive[:1], holds_files=True) if alive else None
    if passed is not None:
        repository.leases.hold(passed.id, alive)
        for index in alive:  # what is rewritten or deleted from now on is gone, and open in their hands
            repository.reclamation.passed.passed(index, "socket")
        compactor = repository.compactor
        compactor.execute(compactor.plan(policy="CompactAll", actions=frozenset({Action.REWRITE})))
        repository.reclamation.passed.given_back(alive, "socket")
        repository.leases.hold(passed.id, alive[-1:])
        repository.leases.release(passed.id)


@deed
def spread(repository: Engine, clock: ManualClock, *contents: tuple[str, int]) -> None:
    """One commit of contents, by queue and size, into one file."""
    with committing(repository) as session:
        for queue, size in contents:
            session.transfer(session.write(session.create(), patterned(size)), queue)


def clean(repository: Engine, clock: ManualClock) -> None:
    """Free resource claims go to the archive or away; what the archive kept long enough goes."""
    repository.reclamation.clean()


def backup(repository: Engine, clock: ManualClock) -> None:
    """Begin the backup, or bring it up to date."""
    repository.backup("/b")


@deed
def wait(repository: Engine, clock: ManualClock, seconds: float) -> None:
    """Time passes."""
    clock.advance(seconds)


def handles(repository: Engine, clock: ManualClock) -> None:
    """Put, delete, undelete, delete and purge handles."""
    first, second = repository.handles.put_many([patterned(700), patterned(LARGE)], {"kind": "handle"})
    repository.handles.delete(first)
    repository.handles.undelete(first)
    repository.handles.delete(second)
    clock.advance(120)
    repository.handles.purge()
    repository.handles.put(b"short lived", ttl_millis=1000)
    clock.advance(2)
    repository.handles.purge()


@deed
def answered(repository: Engine, clock: ManualClock, first: int) -> None:
    """Writes with idempotency keys, and their repeats: each is carried out once."""
    for number in (first, first + 1, first + 1, first):
        with repository.idempotency.once(bytes([number]) * 32, b"put") as once:
            if once.first is None:
                put = repository.handles.begin()
                put.write(patterned(300 * number))
                put.commit(also=lambda made, once=once: once.remember(made.encode()))  # type: ignore[misc]
    with repository.idempotency.once(bytes([first + 2]) * 32, b"commit") as once, repository.session() as session:
        if once.first is None:
            session.transfer(session.write(session.create(), patterned(50)), "answered")
            session.commit(once.remember(b"done"))


@deed
def stage(repository: Engine, clock: ManualClock, write: int, attempt: int, number: int, *sizes: int) -> None:
    """One batch of an attempt of a staged write, which begins with it."""
    id, of = bytes([write]) * 16, bytes([attempt]) * 16
    repository.staging.begin(id, "crash", queue="staged" if write % 2 else "", ttl_millis=60_000)
    contents = [patterned(size) for size in sizes]
    # Where an error took a batch, its attempt goes on without it.
    number_now = min(number, staged_by(repository, id, of))
    repository.staging.stage(id, of, number_now, contents, {"write": str(write)})


def staged_by(repository: Engine, id: bytes, attempt: bytes) -> int:
    """How many batches of an attempt are there."""
    write = repository.ledger.writes.find(id)
    return 0 if write is None else write.transactions(attempt)


@deed
def settle(repository: Engine, clock: ManualClock, /, write: int, **attempts: int) -> None:
    """Commit a staged write with so many batches of each attempt (`a1` is attempt 1), or, after an error, with those
    that are there; without any, abort it.
    """
    id = bytes([write]) * 16
    if attempts:
        wanted = {bytes([int(name[1:])]) * 16: count for name, count in attempts.items()}
        named = {attempt: min(count, staged_by(repository, id, attempt)) for attempt, count in wanted.items()}
        repository.staging.begin(id, "crash", queue="staged" if write % 2 else "", ttl_millis=60_000)
        repository.staging.prepare(id, named)
        repository.staging.commit(id, named, b"decided")
    else:
        repository.staging.abort(id)


@deed
def feed(repository: Engine, clock: ManualClock, queue: str, count: int) -> None:
    """A stream takes so many of a queue after what it has read, and removes that first."""
    feeds = repository.feeds
    standing = feeds.records("s", queue, 0, (1 << 63) - 1)
    if standing:
        feeds.done("s", queue, standing[-1].queued)
    feeds.take("s", queue, 0, count, 60_000)


@deed
def refuse(repository: Engine, clock: ManualClock, queue: str) -> None:
    """A stream gives all back that it has taken of a queue."""
    repository.feeds.give_back("s", queue, 0)


def expire(repository: Engine, clock: ManualClock) -> None:
    """A queue whose FlowFiles live for a second."""
    repository.queues.define("brief", priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=1000)
    put("brief", 100, 200)(repository, clock)
    clock.advance(2)
    repository.queues.expire()


@deed
def brief(repository: Engine, clock: ManualClock, queue: str, seconds: float) -> None:
    """FlowFiles live so long in this queue."""
    repository.queues.define(
        queue, priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=round(seconds * 1000)
    )


@deed
def maintain(repository: Engine, clock: ManualClock, seconds: float) -> None:
    """What a repository does by itself, all that is due after such a time, in its order."""
    upkeep = MaintenanceRunner(repository)
    clock.advance(seconds)
    upkeep.run_due()
    for _, error in upkeep.failures:
        raise error


@deed
def lend(repository: Engine, clock: ManualClock, seconds: float) -> None:
    """A handle that ends by itself, and one that is deleted."""
    repository.handles.put(patterned(800), ttl_millis=round(seconds * 1000))
    repository.handles.delete(repository.handles.put(patterned(LARGE)))


def adopt(repository: Engine, clock: ManualClock) -> None:
    """Orphans get a record."""
    repository.reclamation.adopt_orphans()


@deed
def spoil(repository: Engine, clock: ManualClock, queue: str, *sizes: int) -> None:
    """Write these contents behind what others committed, so that they are on disk, and roll back."""
    with repository.session() as session:
        for size in sizes:
            _written(session, size)


@deed
def ail(repository: Engine, clock: ManualClock, queue: str) -> None:
    """The first FlowFile of a queue gets a place that no start can use."""
    for record in well_in(repository, queue)[:1]:
        commit_carelessly(repository, [Update(record.uuid, queued=-1)])


@deed
def ail_swapped(repository: Engine, clock: ManualClock, queue: str) -> None:
    """A swap file of which one FlowFile can't be used."""
    swap_out_ailing(repository, queue)


def unmounted(repository: Engine, clock: ManualClock) -> None:
    """The volume of the second container goes away."""
    unmount(repository)


def occupied(repository: Engine, clock: ManualClock) -> None:
    """Where it is to be made something else lies."""
    occupy(repository)


def mounted(repository: Engine, clock: ManualClock) -> None:
    """It is back, or nothing is in its way any more."""
    mount(repository)


def forget(repository: Engine, clock: ManualClock) -> None:
    """It is given up, with all that lies on it."""
    repository.volumes.forget(CONTAINER)


def give_up(repository: Engine, clock: ManualClock) -> None:
    """The first record that was set aside is dropped, if there is one."""
    repository.set_aside.drop([record.id for record in repository.set_aside.listed(1)])


@deed
def leave(repository: Engine, clock: ManualClock, *sizes: int) -> None:
    """Write these contents in a session that neither ends nor is ended: the process is killed next."""
    session = repository.session()
    LEFT.setdefault(repository, []).append(session)
    try:
        for size in sizes:
            _written(session, size)
    except BaseException:  # then it is not left: the process goes on
        session.rollback()
        raise


def broken(inner: Step, *strikes: Callable[[], Strike]) -> Step:
    """A step that meets errors: whatever it raises, the repository must go on."""

    def step(repository: Engine, clock: ManualClock) -> None:
        files = repository._files
        assert isinstance(files, CrashFiles)
        before, after, before_look = files.before, files.after, files.before_look
        made = [strike() for strike in strikes]

        def meet(call: Call, hook: Callable[[Call], None], *, is_late: bool) -> None:
            hook(call)
            for strike in made:
                if (call.kind in LOOKING) == (strike.kind in LOOKING):
                    strike.meet(call, is_late=is_late)

        files.before = lambda call: meet(call, before, is_late=False)
        files.after = lambda call: meet(call, after, is_late=True)
        files.before_look = lambda call: meet(call, before_look, is_late=False)
        try:
            inner(repository, clock)
        except (OSError, UllageError):
            # What the step meant to do failed: that is what it is for. The states that follow tell the rest.
            pass
        finally:
            files.before, files.after, files.before_look = before, after, before_look
        assert all(strike.is_over for strike in made), [strike.kind for strike in made if not strike.is_over]

    return step


def fails(
    kind: str, path: str, *, error: int = errno.EIO, is_late: bool = False, times: int = 1
) -> Callable[[], Strike]:
    """Each run of a workload makes its strikes anew."""
    return lambda: Strike(kind, path, error=error, is_late=is_late, times=times)


def _written(session: ProcessSession, size: int) -> None:
    """Reading back what is not committed puts it on disk."""
    flow_file = session.write(session.create(), patterned(size))
    assert session.read(flow_file).read() == patterned(size)


def patterned(size: int) -> bytes:
    """Content that says its size, so that a mix-up shows."""
    pattern = f"{size}:".encode()
    return (pattern * (size // len(pattern) + 1))[:size]
