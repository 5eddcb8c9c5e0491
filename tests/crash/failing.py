"""Let one call of a workload fail, and hold everything after it against what was promised.

    open, step, step, ... the n-th call fails ... | reopen if the repository stopped | step, ... | close, reopen
                                                  `- crash images at each of these ------------'

An error must surface. A definite failure has changed nothing, an unknown one all or nothing; the steps after it find a
healthy disk and must all succeed. What the repository has served must then survive a loss of power, with no file left
behind.
"""

import errno
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.crash.away import ASIDE, CONTAINER, STRANGER, VOLUME, is_out_of_reach
from tests.crash.explore import SEED, some_images
from tests.crash.model import State, records_of, state_after
from tests.crash.specs import SPEC, Restart
from tests.crash.workloads import Workload
from tests.support import ManualClock, abandon, collect_now_and_then, event_store, let_go
from ullage.contract import ContentRepositorySpec
from ullage.engine.content.containers import IDENTITY
from ullage.engine.engine import Engine
from ullage.engine.ledger.keyspaces import SPACES
from ullage.engine.model import Operation, ResourceClaim
from ullage.engine.provenance.shard import SUFFIX
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.session import ProcessSession
from ullage.engine.shipping.history import MARK
from ullage.engine.shipping.lastlook import KNOWN
from ullage.engine.shipping.ownwriters import NOTE
from ullage.errors import CommitOutcomeUnknown, NotARepository, RepositoryExists, RepositoryStopped, UllageError
from ullage.testing.crashing import CHANGING, Call, CrashFiles, CrashPoint, Fault
from ullage.wire.upkeep import CheckReport

HANG_SECONDS = 60
"""A run takes a tenth of a second. Who is not done after so long waits for something that will not come."""

GROWING = frozenset({"create", "make_directory", "rename", "write", "allocate", "sync", "sync_directory"})
"""Calls that may find no room; a sync may, where blocks are only allocated when data is written back."""


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(slots=True)
class TracedFault(Fault):
    """A fault that knows who made the call, and how many calls of each kind there were."""

    callers: tuple[str, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def strikes(self, call: Call) -> bool:
        before = self.struck
        self.counts[call.kind] += 1
        strikes = Fault.strikes(self, call)
        if before is not self.struck:
            frame = sys._getframe(1)
            names = []
            while frame.f_back is not None:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            self.callers = tuple(names)
        return strikes


WAYS: dict[str, Callable[[int], TracedFault]] = {
    "EIO": lambda at: TracedFault(at, _os_error(errno.EIO)),
    "ENOSPC": lambda at: TracedFault(at, _os_error(errno.ENOSPC), GROWING),
    "short write": lambda at: TracedFault(at, _os_error(errno.EIO), frozenset({"write"}), keeps=0.5),
    "full write": lambda at: TracedFault(at, _os_error(errno.ENOSPC), frozenset({"write"}), keeps=0.9),
    "late sync": lambda at: TracedFault(at, _os_error(errno.EIO), frozenset({"sync", "sync_directory"}), is_late=True),
    "late write": lambda at: TracedFault(at, _os_error(errno.EIO), frozenset({"write"}), is_late=True),
    "signal": lambda at: TracedFault(at, KeyboardInterrupt(), CHANGING),
    "late signal": lambda at: TracedFault(at, KeyboardInterrupt(), CHANGING, is_late=True),
}
"""How a call may fail. A signal is what Python makes of EINTR when its handler raises."""

FULL = "a full disk makes it spend the reserve and try again"

ABSORBED: Mapping[str, str] = {
    "poll": "what was found is handed out, and the next poll meets the error again",
    "_cut_back": "what it could not cut off belongs to nobody; the next start seals the file where it ends",
    "_unlink": "what it could not remove belongs to nobody, and is an orphan after the next start",
    "_remove_file": "the same",
    "prepare": "a container that can't be added is away, its condition says why, and the next start tries again",
    "look": "a volume that does not answer is away, its condition says why, and the next look asks again",
    "_make_some": "a file that was to be made ahead of need is made when it is needed, and the error is met then",
    "try_drain": "the logs stay, `failure` says why, and the next rollover tries again",
}
"""Functions that may keep an error to themselves, each with its reason; everywhere else it must surface."""

ABSORBED_FULL: Mapping[str, str] = {
    "_append_close": "an end without a close frame is unclean, and the next start proves what is there",
    "grow": "a reserve that finds no room is grown by the next checkpoint",
    "checkpoint": FULL,
    "_checkpoint": FULL,
    "commit": FULL,
    "open": FULL,
    "_spending_reserve": FULL,
    "_copy_to_output": "an output that finds no room is given up, and the report says what was left and why",
    "_commit_output": "the same",
}
"""The same, of errors that say that there is no room."""


class Trial:
    """One run of a workload in which one call fails."""

    def __init__(self, workload: Workload, fault: TracedFault, seed: int) -> None:
        self.fault = fault
        self.reports: list[ReclamationReport] = []
        self.states: list[State] = [{}]
        self.images = 0
        self._workload = workload
        self._spec = workload.spec
        self._clock = ManualClock()
        self._files = CrashFiles()
        self._files.fault = fault
        self._is_made = False
        self._chooser = random.Random(seed)
        self._repository: Engine | None = None

    @property
    def repository(self) -> Engine:
        assert self._repository is not None
        return self._repository

    @property
    def state(self) -> State:
        """Where nothing is unknown, the one state there is."""
        assert len(self.states) == 1, "the outcome of a commit is unknown, and the repository goes on"
        return self.states[0]

    def run(self) -> None:
        """All of it."""
        self._begin()
        for step in self._workload:
            if isinstance(step, Restart):
                self._attempt(self._shut if not step.is_kill else self._kill)
                self._spec = step.spec or self._spec
                self._reopen()
            else:
                self._attempt(lambda step=step: step(self.repository, self._clock))  # type: ignore[misc]
        self._attempt(self._shut)
        self._lose_power()
        self._reopen()
        with self._quiet():
            require_no_leaks(self.repository, self._files)
        self._attempt(self._shut)

    def _begin(self) -> None:
        """Make and open; an init that failed at its last step is as good as done once an open has returned."""
        try:
            Engine.initialize(self._spec, self._files, self._clock)
            self._is_made = True
        except (UllageError, OSError, KeyboardInterrupt):
            assert self.fault.struck is not None, "an error without a fault"
            self._lose_power()
            try:
                Engine.initialize(self._spec, self._files, self._clock)
                self._is_made = True
            except RepositoryExists:
                self._lose_power()
        self._reopen()

    def _reopen(self) -> None:
        was_struck = self.fault.struck is not None
        try:
            self._open()
        except (UllageError, OSError, KeyboardInterrupt) as error:
            if was_struck or self.fault.struck is None:
                raise AssertionError("an open failed on a healthy disk") from error
        else:
            return
        assert self._files.held == 0, "an open that failed holds files"
        self._lose_power()
        self._open()

    def _open(self) -> None:
        was_struck = self.fault.struck is not None
        self._repository = None
        repository = Engine.open(self._spec, self._files, self._clock)
        with self._quiet():
            if self.fault.struck is not None and not repository.ledger.cold.is_whole:
                # A run of handles was not read: all others are served, it is told of, and the next start has it.
                assert repository.set_aside.count > 0
                assert any(records_of(repository).items() <= state.items() for state in self.states)
                repository.close()
                repository = Engine.open(self._spec, self._files, self._clock)
            is_in_the_way = is_out_of_reach(repository)
        if any(container.unmade for container in repository.content.containers.values()) and not is_in_the_way:
            assert self.fault.struck is not None, "a container could not be made on a healthy disk"
            repository.volumes.look()
            assert not repository.content.away
        self._is_made = True
        self._watch(repository)
        self._repository = repository
        with self._quiet():
            found = records_of(repository)
            assert found in self.states, "what was opened is neither the state before nor the one after"
            self.states = [found]
            if self.fault.struck is not None:
                require_sound(repository)
                self._lose_power()
        if not was_struck and self.fault.struck is not None:
            self._require_surfaced()

    def _attempt(self, step: Callable[[], None]) -> None:
        """One step; after the fault, look closely, and start anew if the repository stopped."""
        was_struck = self.fault.struck is not None
        error: BaseException | None = None
        try:
            step()
        except (UllageError, OSError, KeyboardInterrupt) as caught:
            if was_struck or self.fault.struck is None:
                raise AssertionError("a step failed on a healthy disk") from caught
            error = caught
            let_go(caught)
        if was_struck or self.fault.struck is None:
            return
        with self._quiet():
            if error is None:
                self._require_surfaced()
            self._lose_power()
            if self._repository is None:
                assert self._files.held == 0, "a closed repository holds files"
                return  # it was being closed, and is opened next
            if len(self.states) > 1 or isinstance(error, KeyboardInterrupt) or self._has_stopped():
                self._shut()
                self._reopen()
            else:
                require_sound(self.repository)

    def _has_stopped(self) -> bool:
        containers = self.repository.content.containers.values()
        return not self.repository.log.is_running or any(each.failure is not None for each in containers)

    def _shut(self) -> None:
        repository, self._repository = self.repository, None
        repository.close()
        let_go(self.fault.error)
        assert self._files.held == 0, "a closed repository holds files"

    def _kill(self) -> None:
        repository, self._repository = self.repository, None
        abandon(repository)
        self._files.held = 0  # what its sessions held open ends with the process

    def _require_surfaced(self) -> None:
        """Without an exception, something else must tell; or the function is one that may keep it."""
        is_full = isinstance(self.fault.error, OSError) and self.fault.error.errno == errno.ENOSPC
        keepers = ABSORBED.keys() | (ABSORBED_FULL.keys() if is_full else set())
        is_absorbed = not keepers.isdisjoint(self.fault.callers)
        assert is_absorbed or self._is_reported(), (
            f"an injected error went unreported, in {' < '.join(self.fault.callers[:12])}"
        )

    def _is_reported(self) -> bool:
        if self._repository is None:
            return False
        return (
            self._has_stopped()
            or self.repository.queues.swap_failure is not None
            or any(report.problems for report in self.reports)
            or bool(self.repository.check().orphans)
        )

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """What the test looks at is no call of the workload."""
        fault, self._files.fault = self._files.fault, None
        try:
            yield
        finally:
            self._files.fault = fault

    def _lose_power(self) -> None:
        """Recover from some of what the disk could now hold."""
        if self.fault.struck is None:
            return
        for image in some_images(self._files.crash_point(), self._chooser):
            self.images += 1
            files = CrashFiles(image)
            clock = ManualClock(self._clock.millis)
            collect_now_and_then()
            try:
                repository = Engine.open(self._spec, files, clock)
            except NotARepository:
                assert not self._is_made, "the repository is gone"
                Engine.initialize(self._spec, files, clock)
                repository = Engine.open(self._spec, files, clock)
            require_sound(repository)
            assert records_of(repository) in self.states, "power was lost, and with it what was acknowledged"
            require_no_leaks(repository, files)
            repository.close()

    def _watch(self, repository: Engine) -> None:
        """See each commit, and which calls promise to do all or nothing."""
        commit = repository.committer.commit

        def committing(operations: Sequence[Operation], **options: Any) -> int:
            if len(self.states) > 1:
                id = commit(operations, **options)
                # An interrupt before an id was taken stops nothing: closing may still commit seals.
                is_seal = all(isinstance(operation, ResourceClaim) for operation in operations)
                assert is_seal, "the outcome of a commit is unknown, and the repository goes on"
                return id
            before = self.state
            with self._quiet():
                after = state_after(before, operations, repository)
            try:
                id = commit(operations, **options)
            except BaseException as error:
                if isinstance(error, CommitOutcomeUnknown) or not isinstance(error, Exception):
                    self.states = [before, after]
                elif not self._is_as_before(repository, before):
                    raise AssertionError("a definite failure changed something") from error
                raise
            with self._quiet():
                found = records_of(repository)
            assert found == after, "a commit did not do what it says"
            self.states = [found]
            return id

        repository.committer.commit = committing  # type: ignore[method-assign]
        session = repository.session

        def sessions(
            component: str = "", component_type: str = "", depth: int = 1, *given: Any, **named: Any
        ) -> ProcessSession:
            made = session(component, component_type, depth + 1, *given, **named)
            self._require_atomic(made, "commit")
            return made

        repository.session = sessions  # type: ignore[method-assign]
        for name in ("put", "put_many", "delete", "undelete"):
            self._require_atomic(repository.handles, name)
        self._require_atomic(repository.queues, "define")
        for name in ("clean", "truncate", "execute", "resume"):
            self._collect(repository.reclamation, name)

    def _is_as_before(self, repository: Engine, before: State) -> bool:
        with self._quiet():
            return records_of(repository) == before

    def _require_atomic(self, owner: object, name: str) -> None:
        method = getattr(owner, name)

        def checked(*arguments: Any, **options: Any) -> Any:
            before = self.states
            try:
                return method(*arguments, **options)
            except (CommitOutcomeUnknown, RepositoryStopped):
                raise
            except Exception as error:
                if self.states != before:
                    raise AssertionError(f"{name} failed, but what it did stands") from error
                raise

        setattr(owner, name, checked)

    def _collect(self, owner: object, name: str) -> None:
        method = getattr(owner, name)

        def collecting(*arguments: Any, **options: Any) -> ReclamationReport:
            report: ReclamationReport = method(*arguments, **options)
            self.reports.append(report)
            return report

        setattr(owner, name, collecting)


def require_sound(repository: Engine) -> None:
    """Everything agrees with everything, and nobody holds anything."""
    problems = problems_of(repository, repository.check(deep=True))
    assert problems == [], problems
    for queue in repository.queues.all():
        assert queue.figures().held == 0, f"queue {queue.name} counts FlowFiles that nobody holds"


def problems_of(repository: Engine, report: CheckReport) -> list[str]:
    """But for what a workload has taken away itself."""
    if not is_out_of_reach(repository):
        return list(report.problems)
    own = (
        f"{VOLUME} has no {IDENTITY}",
        f"{VOLUME} holds content files",
        f"what lay on container {CONTAINER} was given up",
    )
    return [problem for problem in report.problems if not any(reason in problem for reason in own)]


def require_no_leaks(repository: Engine, files: CrashFiles) -> None:
    """After the usual upkeep there is no file that the repository does not need."""
    repository.reclamation.adopt_orphans()
    repository.reclamation.clean()
    repository.checkpoint()
    repository.provenance.index_step()
    report = repository.check()
    assert report.orphans == (), f"orphans that nobody adopts: {report.orphans}"
    assert problems_of(repository, report) == [], report.problems
    needed = {repository.content.path_of(entry.claim) for entry in repository.ledger.entries()}
    needed |= {event_store(repository).event_files.path(file) for file in event_store(repository).manifest.files}
    needed |= {
        repository.swap_files.path(name) for name in (*repository.ledger.swaps, *repository.ledger.retired_swaps)
    }
    runs = [run for space in SPACES for run in repository.ledger.runs_of(space)]
    needed |= {repository.spaces.path(run) for run in runs}
    # A write that nobody acknowledged may have left a file on a container that was taken away since, or is away now.
    marked = {
        os.path.dirname(path) + "/" for path in files.image().files if os.path.basename(path) in (IDENTITY, ASIDE)
    }
    reached = [
        each
        for each in repository.content.containers.values()
        if each.name != CONTAINER or not is_out_of_reach(repository)
    ]
    present = [each.path + "/" for each in reached]
    gone = tuple(mark for mark in marked if not any(path.startswith(mark) for path in present))
    left = [
        path
        for path in files.image().files
        if path not in needed
        and path != STRANGER
        and not path.startswith(gone)
        and os.path.basename(path) not in (IDENTITY, ASIDE, MARK, KNOWN, NOTE, "snapshot", "ballast", "manifest")
        and not path.endswith((".wal", SUFFIX))
    ]
    assert left == [], f"files that nobody needs: {left}"
    names = [os.path.basename(path).removesuffix(SUFFIX) for path in files.image().files if path.endswith(SUFFIX)]
    shards = sorted(tuple(map(int, name.split("-"))) for name in names)
    assert all(last > event_store(repository).manifest.removed_through for _, last in shards), (
        f"shards of nothing: {shards}"
    )
    assert all(one[1] < other[0] for one, other in pairwise(shards)), f"shards of the same events: {shards}"
    logs = [path for path in files.image().files if path.endswith(".wal")]
    assert len(logs) <= repository.spec.flow_file.partitions, f"logs that a checkpoint left: {logs}"


def made(spec: ContentRepositorySpec = SPEC) -> tuple[Engine, CrashFiles, ManualClock]:
    """A new repository, open, on files that can fail and lose power."""
    files, clock = CrashFiles(), ManualClock()
    Engine.initialize(spec, files, clock)
    return Engine.open(spec, files, clock), files, clock


def recoveries(point: CrashPoint, spec: ContentRepositorySpec = SPEC) -> Iterator[tuple[Engine, CrashFiles]]:
    """What starts from each thing that the disk could hold, all of them sound."""
    for image in point.images(SEED):
        files = CrashFiles(image)
        with Engine.open(spec, files, ManualClock()) as repository:
            require_sound(repository)
            yield repository, files


@contextmanager
def watchdog(what: str) -> Iterator[None]:
    """A wait that never ends becomes a failure that says where."""

    def hung(number: int, frame: object) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fail_once(workload: Workload, way: str, at: int, seed: int) -> Trial:
    """Run a workload with its `at`-th call failing in this way."""
    trial = Trial(workload, WAYS[way](at), seed)
    what = f"workload {workload.name}, {way} at call {at}, seed {seed}"
    try:
        with watchdog(what):
            trial.run()
    except BaseException as error:
        struck = trial.fault.struck
        where = "" if struck is None else f": {struck.kind} {struck.path} in {' < '.join(trial.fault.callers[1:9])}"
        error.add_note(what + where)
        raise
    return trial


def count_calls(workload: Workload) -> dict[str, int]:
    """For each way, how many calls of a workload can fail so."""
    counts = fail_once(workload, "EIO", sys.maxsize, 0).fault.counts
    return {way: sum(counts[kind] for kind in make(1).kinds) for way, make in WAYS.items()}
