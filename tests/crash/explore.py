"""Crash a workload at every call, and hold what comes back against what was acknowledged.

One run records, before and after each call that changes the disk, what the disk could hold, and how many commits had
been acknowledged. Recovery from any such image must give the state after the last acknowledged commit, or after the
one that was in flight, whole.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.workloads import Workload
from tests.support import ManualClock
from ullage_agent.engine.errors import NotARepository
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.testing import Call, CrashFiles, CrashPoint, Image

State = dict[bytes, tuple[object, ...]]


class Moment(NamedTuple):
    """One recorded crash point, how many commits were acknowledged by then, and where it was."""

    point: CrashPoint
    acknowledged: int
    call: str


@dataclass
class Recording:
    """One run of a workload."""

    workload: Workload
    moments: list[Moment] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    end_millis: int = 0


@dataclass
class Tally:
    """What an exploration saw."""

    states: int = 0
    recoveries: int = 0
    seen: set[bytes] = field(default_factory=set)


def state_of(repository: Repository) -> State:
    """All FlowFiles and handles, swapped ones included, with queue, attributes and content."""
    found: State = {}
    records = list(repository.ledger.flow_files())
    crcs = {}
    for name in sorted(repository.ledger.swaps):
        content = repository.swap_files.read(name)
        records.extend(content.records)
        crcs.update({(blocks.resource, blocks.offset): blocks.crcs for blocks in content.blocks})
    for record in records:
        claim = record.claim
        content_bytes = b""
        if claim is not None:
            content_bytes = repository.reader.read(
                claim, record.start, record.size, crcs.get((claim.resource, claim.offset))
            )
        assert record.uuid not in found, f"FlowFile {record.id} exists twice"
        found[record.uuid] = (
            record.queue,
            record.attributes,
            record.parents,
            record.expires_millis,
            record.deleted_millis,
            content_bytes,
        )
    return found


def record(workload: Workload) -> Recording:
    """Run the workload once over files that remember."""
    recording = Recording(workload)
    clock = ManualClock()
    files = CrashFiles()

    def remember(call: Call) -> None:
        moment = Moment(files.crash_point(), len(recording.states), f"{call.number} {call.kind} {call.path}")
        recording.moments.append(moment)

    files.before = files.after = remember
    Repository.initialize(workload.spec, files, clock)
    repository = Repository.open(workload.spec, files, clock)
    recording.states.append(state_of(repository))
    commit = repository.commit

    def committing(*arguments: object, **options: object) -> int:
        id = commit(*arguments, **options)  # type: ignore[arg-type]
        recording.states.append(state_of(repository))
        return id

    repository.commit = committing  # type: ignore[method-assign]
    for step in workload:
        step(repository, clock)
    assert repository.check(deep=True).problems == ()
    repository.close()
    recording.end_millis = clock.millis
    return recording


def allowed(recording: Recording, acknowledged: int) -> list[State]:
    """The states that a crash may leave: after the last acknowledged commit, or the one in flight."""
    return recording.states[max(0, acknowledged - 1) : acknowledged + 1]


def recover(recording: Recording, image: Image, acknowledged: int, files: CrashFiles | None = None) -> CrashFiles:
    """Open an image, check everything, compare with what is allowed, and close."""
    files = files or CrashFiles(image)
    clock = ManualClock(recording.end_millis)
    spec = recording.workload.spec
    try:
        repository = Repository.open(spec, files, clock)
    except NotARepository:
        # Only an init that never ended may leave no repository; doing it again must work.
        assert acknowledged == 0
        Repository.initialize(spec, files, clock)
        repository = Repository.open(spec, files, clock)
    report = repository.check(deep=True)
    assert report.problems == (), report.problems
    assert state_of(repository) in allowed(recording, acknowledged)
    repository.close()
    return files


def explore(recording: Recording, seed: int, tally: Tally, *, sample: float = 1.0, nested: float = 0.0) -> None:
    """Recover from the crash states of every moment (a seeded share of them), and from crashes during recovery."""
    chooser = random.Random(seed)
    for number, moment in enumerate(recording.moments):
        for image in moment.point.images(seed + number):
            if chooser.random() >= sample:
                continue
            key = image.digest() + moment.acknowledged.to_bytes(4, "little")
            if key in tally.seen:
                continue
            tally.seen.add(key)
            tally.states += 1
            try:
                recover(recording, image, moment.acknowledged)
                if chooser.random() < nested:
                    _explore_recovery(recording, image, moment, seed, tally)
            except BaseException as error:
                error.add_note(
                    f"workload {recording.workload.name}, seed {seed}, crash at moment {number} (call {moment.call}), "
                    f"{moment.acknowledged} commits acknowledged"
                )
                raise


def _explore_recovery(recording: Recording, image: Image, moment: Moment, seed: int, tally: Tally) -> None:
    """Crash the recovery too: with none, all and two random subsets of its pending changes, at each of its calls."""
    points: list[CrashPoint] = []
    files = CrashFiles(image)
    files.before = lambda call: points.append(files.crash_point())
    recover(recording, image, moment.acknowledged, files)
    chooser = random.Random(seed)
    for point in points:
        pending = point.pending
        choices = [(), pending] + [tuple(c for c in pending if chooser.random() < 0.5) for _ in range(2)]
        for kept in choices:
            second = point.image(kept)
            key = second.digest() + moment.acknowledged.to_bytes(4, "little")
            if key not in tally.seen:
                tally.seen.add(key)
                tally.states += 1
                recover(recording, second, moment.acknowledged)
