"""Crash a workload at every call, and hold what comes back against what was promised.

One run records, before and after each call that changes the disk, what the disk could hold, and what the repository
had promised by then. Three explorations start from these moments:

    power loss   what the disk could hold                     -> recover
    crash twice  the same, and power loss during the recovery  -> recover
    kill         the page cache as it was: a new process sees what the disk may lack, opens, serves and commits;
                 then power loss                              -> recover

Recovery must give the state after the last acknowledged commit, or after the one in flight, whole; what a process has
served must be there afterwards; what was reported as freed must stay freed; a close that returned was clean.
"""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeGuard

from tests.crash.ailing import AILING, ailing_of, is_ailing, read_ailing
from tests.crash.away import content_of, mount
from tests.crash.history import EVENTS, History, history_after, history_of
from tests.crash.model import left_of_closed_writes, mixed
from tests.crash.specs import Restart
from tests.crash.steps import forget, put
from tests.crash.workloads import INIT, Workload
from tests.support import ManualClock, abandon, collect_now_and_then
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.ledger.remembered import is_over
from ullage.engine.model import (
    STAGED_QUEUE,
    Action,
    Delete,
    Operation,
    ResourceClaim,
    ResourceClaimGone,
    StagedWrite,
    TransactionEvents,
)
from ullage.errors import NotARepository
from ullage.testing import crashing as testing
from ullage.testing.crashing import Call, CrashFiles, CrashPoint, Image
from ullage.testing.images import OF_BYTES, change_bytes, change_names

SEED = int(os.environ.get("ULLAGE_CRASH_SEED", "20261121"))
"""Printed with every failure; the environment repeats or varies a run."""

State = dict[bytes, tuple[object, ...]]

UUID_BYTES = 16
ANSWER = b"answer "


class Promises(NamedTuple):
    """What must hold after a crash: one of `states`, and no file of a resource claim in `gone`.

    `is_made`: the init has returned; `is_closed`: a close has, and nothing was done since.
    """

    states: tuple[State, ...]
    gone: frozenset[int]
    spec: ContentRepositorySpec
    is_made: bool = True
    is_closed: bool = False


class Moment(NamedTuple):
    """One recorded crash point, how many commits were acknowledged by then, and where it was."""

    point: CrashPoint
    acknowledged: int
    attempted: State | None
    promises: Promises
    call: str


@dataclass
class Tally:
    """What an exploration saw: distinct states after one crash, after a second one, and after a kill."""

    once: int = 0
    twice: int = 0
    killed: int = 0
    seen: set[bytes] = field(default_factory=set)

    @property
    def states(self) -> int:
        return self.once + self.twice + self.killed

    def is_new(self, image: Image, promises: Promises) -> bool:
        """Count an image together with what is expected of it; whether it was not seen before."""
        expected = blake2b(digest_size=16)
        expected.update(repr((sorted(promises.gone), promises.is_made, promises.is_closed)).encode())
        for state in promises.states:
            expected.update(repr(sorted(state.items())).encode())
        key = image.digest() + expected.digest()
        is_new = key not in self.seen
        self.seen.add(key)
        return is_new

    def __str__(self) -> str:
        return (
            f"{self.states} distinct crash states ({self.once} crashed once, {self.twice} twice, {self.killed} killed)"
        )


def state_of(repository: Engine) -> State:
    """All FlowFiles and handles, swapped ones included, with queue, attributes and content, and their history."""
    found: State = {}
    records = list(repository.ledger.everything())
    for name in sorted(repository.ledger.swaps):
        records.extend(repository.swap_files.read(name).records)
    left = left_of_closed_writes(repository)
    for record in records:
        if is_ailing(record) or (record.queue == STAGED_QUEUE and record.uuid in left):
            continue
        content_bytes = content_of(repository, record)
        assert record.uuid not in found, f"FlowFile {record.id} exists twice"
        found[record.uuid] = (
            record.queue,
            record.attributes,
            record.parents,
            record.expires_millis,
            record.deleted_millis,
            content_bytes,
        )
    for each in ailing_of(repository):
        found[AILING + each.uuid] = (read_ailing(repository, each),)
    for answer in repository.spaces.answers.all():
        found[ANSWER + answer.key] = (answer.request, answer.answer, answer.millis)
    for write in repository.ledger.writes.operations():
        if isinstance(write, StagedWrite):
            found[b"write " + write.id] = (write.state, write.attempts, write.decision)
    found[EVENTS] = (history_of(repository),)
    return found


def _good_at(clock: ManualClock, state: State) -> State:
    """The state without answers whose hour is over: they go when it suits."""
    over = {key for key, found in state.items() if key.startswith(ANSWER) and is_over(int(str(found[2])), clock.millis)}
    return {key: found for key, found in state.items() if key not in over}


class Recording:
    """One run of a workload over files that remember."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.moments: list[Moment] = []
        self.states: list[State] = []
        self._spec = workload.spec
        self._clock = ManualClock()
        self._files = CrashFiles()
        self._gone: set[int] = set()
        self._is_made = False
        self._attempted: State | None = None
        self._ended_by_starts: dict[int, int] = {}
        """Moments in which a volume was being given up, and how many states there were in the end."""
        self._files.before = self._files.after = self._remember
        self._run()
        self.end_millis = self._clock.millis

    def _run(self) -> None:
        Engine.initialize(self._spec, self._files, self._clock)
        self._is_made = True
        if self.workload.name != INIT:
            self._skip_init()
        repository = self._open()
        for step in self.workload:
            if isinstance(step, Restart):
                repository = self._restart(repository, step)
            else:
                begun = len(self.moments)
                step(repository, self._clock)
                if step is forget:
                    self._ended_by_starts.update(dict.fromkeys(range(begun, len(self.moments)), len(self.states)))
        mount(repository)
        assert repository.check(deep=True).problems == ()
        self._close(repository)

    def _skip_init(self) -> None:
        """All workloads begin with the same one."""
        self.moments.clear()

    def _open(self) -> Engine:
        repository = Engine.open(self._spec, self._files, self._clock)
        state = state_of(repository)
        if not self.states:
            self.states.append(state)
        assert state == self.states[-1]
        commit = repository.committer.commit

        def committing(operations: Sequence[Operation], **options: object) -> int:
            self._attempted = _without(self.states[-1], operations)
            try:
                id = commit(operations, **options)  # type: ignore[arg-type]
            finally:
                self._attempted = None
            self.states.append(state_of(repository))
            for operation in operations:
                if isinstance(operation, ResourceClaimGone) or (
                    isinstance(operation, ResourceClaim) and _is_moved(operation)
                ):
                    self._gone.add(operation.index)
                elif isinstance(operation, ResourceClaim):
                    self._gone.discard(operation.index)
            return id

        repository.committer.commit = committing  # type: ignore[method-assign]
        return repository

    def _restart(self, repository: Engine, step: Restart) -> Engine:
        if step.is_kill:
            abandon(repository)
        else:
            self._close(repository)
        self._spec = step.spec or self._spec
        return self._open()

    def _close(self, repository: Engine) -> None:
        repository.close()
        self._remember(Call(self._files.calls, "closed", ""), is_closed=True)

    def _remember(self, call: Call, *, is_closed: bool = False) -> None:
        acknowledged = len(self.states)
        promises = Promises((), frozenset(self._gone), self._spec, self._is_made, is_closed)
        point = self._files.crash_point()
        name = f"{call.number} {call.kind} {call.path}"
        self.moments.append(Moment(point, acknowledged, self._attempted, promises, name))

    def promises_at(self, number: int) -> Promises:
        """With the states that a crash at this moment may leave: after the last acknowledged commit, or the one in
        flight, or the last one of what the next start brings to its end.
        """
        moment = self.moments[number]
        at = moment.acknowledged
        end = self._ended_by_starts.get(number, at + 1)
        states = self.states[max(0, at - 1) : end] or [{EVENTS: (History(()),)}]
        if moment.attempted is not None:
            states = [*states, moment.attempted]
        return moment.promises._replace(states=tuple(states))


def _is_moved(operation: Operation) -> TypeGuard[ResourceClaim]:
    """Whether this says that a rewrite has moved everything away, and unlinked the file."""
    if not isinstance(operation, ResourceClaim):
        return False
    return operation.sealed and operation.length == 0 and operation.intent == Action.NONE


def _without(state: State, operations: Sequence[Operation]) -> State | None:
    """The state that a commit of nothing but removals makes: such a one may fail, and its frame still be whole."""
    if not all(isinstance(operation, Delete | TransactionEvents) for operation in operations):
        return None
    removed = b"".join(operation.uuids for operation in operations if isinstance(operation, Delete))
    uuids = {removed[at : at + UUID_BYTES] for at in range(0, len(removed), UUID_BYTES)}
    after = {uuid: record for uuid, record in state.items() if uuid not in uuids}
    (events,) = state[EVENTS]
    assert isinstance(events, History)
    return after | {EVENTS: (history_after(events, operations),)}


class Process:
    """A process that opens what an earlier one left. `points`: where it may crash, and what must hold then."""

    def __init__(self, files: CrashFiles, promises: Promises, millis: int) -> None:
        self.promises = promises
        self.points: list[tuple[CrashPoint, Promises]] = []
        self.clock = ManualClock(millis)
        self._files = files
        self.repository = self._open()

    def _open(self) -> Engine:
        spec, files, clock = self.promises.spec, self._files, self.clock
        collect_now_and_then()
        try:
            return Engine.open(spec, files, clock)
        except NotARepository:
            # Only an init that never ended may leave no repository; doing it again must work.
            assert not self.promises.is_made, "the repository that an init made is gone"
        Engine.initialize(spec, files, clock)
        self.promises = self.promises._replace(is_made=True)
        return Engine.open(spec, files, clock)

    def require(self) -> None:
        """Check everything, and compare with what was promised; from here on the state that was found is served."""
        repository, promises = self.repository, self.promises
        mount(repository)
        repository.proof.run()
        assert not repository.availability, "a crash alone made content unavailable"
        report = repository.check(deep=True)
        assert report.problems == (), report.problems
        assert mixed(repository) == []
        state = _good_at(self.clock, state_of(repository))
        states = [_good_at(self.clock, each) for each in promises.states]
        assert state in states, "the state is neither that of the last acknowledged commit nor the next one"
        back = [path for path in report.orphans if int(path.rsplit("-", 1)[1]) in promises.gone]
        assert back == [], f"removed files came back: {back}"
        assert repository.restored.clean or not promises.is_closed, "what was closed is not clean"
        self.promises = promises._replace(states=(state,), is_closed=False)


def recover(image: Image, promises: Promises, millis: int) -> None:
    """Open an image, check everything, compare with what is promised, and close."""
    process = Process(CrashFiles(image), promises, millis)
    process.require()
    process.repository.close()


def explore(
    recording: Recording,
    seed: int,
    tally: Tally,
    *,
    sample: float = 1.0,
    nested: float = 0.0,
    kills: float = 0.0,
    moments: Iterable[int] | None = None,
) -> None:
    """Recover from a seeded share of the crash states of every moment, or of these, crash some of the recoveries, and
    kill.
    """
    chooser = random.Random(seed)
    millis = recording.end_millis
    for number in range(len(recording.moments)) if moments is None else moments:
        moment = recording.moments[number]
        promises = recording.promises_at(number)
        try:
            for image in moment.point.images(seed + number):
                if chooser.random() < sample and tally.is_new(image, promises):
                    tally.once += 1
                    recover(image, promises, millis)
                    if chooser.random() < nested:
                        tally.twice += _explore_process(CrashFiles(image), promises, millis, seed, tally)
            if chooser.random() < kills:
                tally.killed += _explore_process(resumed(moment.point), promises, millis, seed, tally)
        except BaseException as error:
            error.add_note(
                f"workload {recording.workload.name}, seed {seed}, crash at moment {number} (call {moment.call}), "
                f"{moment.acknowledged} commits acknowledged"
            )
            raise


def _explore_process(files: CrashFiles, promises: Promises, millis: int, seed: int, tally: Tally) -> int:
    """Lose power at each call of the next process, when it serves, and after a commit; returns how many were new."""
    opening: list[CrashPoint] = []
    files.before = lambda call: opening.append(files.crash_point())
    process = Process(files, promises, millis)
    files.before = lambda call: None
    chooser = random.Random(seed)
    found = 0
    for point in opening:
        found += _lose_power(some_images(point, chooser), promises._replace(is_closed=False), millis, tally)
    process.require()
    served = process.promises
    found += _lose_power(_singles(files.crash_point()), served, millis, tally)
    put("after", 30)(process.repository, process.clock)
    grown = served._replace(states=(state_of(process.repository),))
    return found + _lose_power(some_images(files.crash_point(), chooser), grown, millis, tally)


def _lose_power(images: Iterable[Image], promises: Promises, millis: int, tally: Tally) -> int:
    found = 0
    for image in images:
        if tally.is_new(image, promises):
            found += 1
            recover(image, promises, millis)
    return found


def some_images(point: CrashPoint, chooser: random.Random) -> list[Image]:
    """None, all and two random subsets of the pending changes."""
    pending = point.pending
    kept = [(), pending, *(tuple(c for c in pending if chooser.random() < 0.5) for _ in range(2))]
    images = {image.digest(): image for image in map(point.image, kept)}
    return list(images.values())


def _singles(point: CrashPoint) -> Iterator[Image]:
    """None and all of the pending changes, and each alone dropped or kept."""
    pending = point.pending
    yield point.image(())
    yield point.image(pending)
    for at in range(len(pending)):
        yield point.image(pending[:at] + pending[at + 1 :])
        yield point.image(pending[at : at + 1])


def resumed(point: CrashPoint) -> CrashFiles:
    """The files as another process finds them after a kill: the page cache is whole, and what is pending still is."""
    files = CrashFiles()
    files._durable_inodes = dict(point.inodes)
    files._durable_names = dict(point.names)
    files._durable_directories = set(point.directories)
    files._pending = list(point.pending)
    contents = {number: bytearray(data) for number, data in point.inodes.items()}
    names, directories = dict(point.names), set(point.directories)
    for change in point.pending:
        if change.kind in OF_BYTES:
            change_bytes(contents.setdefault(change.inode, bytearray()), change)
        else:
            change_names(names, directories, change)
    numbers = {*contents, *names.values()}
    files._inodes = {number: testing._Inode(number, contents.get(number, bytearray())) for number in numbers}
    files._names = {path: files._inodes[number] for path, number in names.items()}
    files._directories = directories
    files._next = max(numbers, default=0) + 1
    return files
