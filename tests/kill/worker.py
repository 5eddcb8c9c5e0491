"""A process that works a repository with several threads until it is killed: `python -m tests.kill.worker TASK`.

Each thread does one thing after the other, all of them what a flow does: ingest, route, remove, overwrite, clone,
slice, split, merge, roll back; put, delete and undelete handles; fill a queue past its swap threshold and drop it. One
more thread checkpoints, cleans, truncates, purges and swaps every few milliseconds. See `protocol` for what it says.
"""

import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable

import msgspec

from tests.kill.protocol import DELETED, HANDLE, LANE, QUEUES, Change, Line, Task, sha_of, spec_for, tell
from ullage.contract import ContentRepositorySpec
from ullage.engine.content import reserve
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE, FlowFileRecord, parse_uuid
from ullage.engine.session import ProcessSession
from ullage.errors import ContentWriteFailed, HandleNotFound, VolumeAway

SIZES = (0, 1, 300, 9_000, 70_000, 250_000, 1_200_000)
WEIGHTS = (2, 2, 12, 10, 5, 2, 1)

LIVE_BYTES_MAX = 24 << 20
"""Above it threads remove more than they make: a run of hours stays as small as one of seconds."""

LIVE_COUNT_MAX = 400
LANE_COUNT = 55

DERIVED = "derived"
"""The mark of what would otherwise inherit one."""

HANDLES_MAX = 12
"""Handles of one thread."""

RESERVE_BYTES = 256 << 10


class Worker:
    """What the threads share."""

    def __init__(self, repository: Engine, seed: int) -> None:
        self.repository = repository
        self.seed = seed
        self._count = 0
        self._lock = threading.Lock()

    def new_op(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self.seed}.{self._count}"

    def say(self, line: Line) -> None:
        """Lines of several threads never mix."""
        with self._lock:
            tell(line)

    def is_crowded(self) -> bool:
        figures = [queue.figures() for queue in self.repository.queues.all()]
        return (
            sum(f.flow_files for f in figures) > LIVE_COUNT_MAX or sum(f.size_bytes for f in figures) > LIVE_BYTES_MAX
        )


class Hand:
    """One thread's work."""

    def __init__(self, worker: Worker, number: int, handles: dict[str, bool]) -> None:
        self.worker = worker
        self.repository = worker.repository
        self.random = random.Random(f"{worker.seed}/{number}")
        self.lane = f"{LANE}{number}"
        self.handles = handles

    def run(self) -> None:
        """One thing after the other, until the process is killed."""
        todo = self.todo()
        weights = [weight for weight, _ in todo]
        while True:
            (_, act) = self.random.choices(todo, weights)[0]
            act()

    def todo(self) -> list[tuple[int, Callable[[], None]]]:
        """What it does, and how often each."""
        return [
            (6, self.ingest),
            (12, self.work),
            (1, self.roll_back),
            (3, self.put_handles),
            (3, self.change_handle),
            (1, self.import_handle),
            (1, self.fill_lane),
            (1, self.drop_lane),
        ]

    def content(self) -> bytes:
        return self.random.randbytes(self.random.choices(SIZES, WEIGHTS)[0])

    def queue(self) -> str:
        return self.random.choice(QUEUES)

    def ingest(self) -> None:
        """New FlowFiles in one go."""
        if self.worker.is_crowded():
            self.work()
            return
        contents = [self.content() for _ in range(self.random.randrange(1, 7))]
        self._ingest(self.queue(), contents)

    def fill_lane(self) -> None:
        """Enough for the lane to swap out."""
        contents = [self.random.randbytes(self.random.choice((0, 40, 3_000))) for _ in range(LANE_COUNT)]
        first = time.time_ns()  # after those of all earlier processes
        self._ingest(self.lane, contents, [{"number": f"{first + n}"} for n in range(LANE_COUNT)])

    def drop_lane(self) -> None:
        """Nothing of the lane is left; each FlowFile goes by itself."""
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, drops=self.lane))
        self.repository.queues.drop(self.repository.queue(self.lane))
        self.worker.say(Line("done", op))

    def work(self) -> None:
        """Take some FlowFiles and do something different to each, in one transaction."""
        changes: dict[str, Change | None] = {}
        with self.repository.session() as session:
            taken = session.get_many(self.queue(), self.random.randrange(1, 7))
            if len(taken) > 1 and self.random.random() < 0.2:
                self._merge(session, taken, changes)
            else:
                share = 0.8 if self.worker.is_crowded() else 0.3
                for flow_file in taken:
                    if self.random.random() < share:
                        session.remove(flow_file)
                        changes[flow_file.id] = None
                    else:
                        self._change(session, flow_file, changes)
            self._commit(session, changes)

    def roll_back(self) -> None:
        """Much ado, and nothing of it stays."""
        with self.repository.session() as session:
            for flow_file in session.get_many(self.queue(), 3):
                session.write(flow_file, self.content())
            session.ingest(self.queue(), [self.content()])

    def put_handles(self) -> None:
        """One batch of handles, which says whose it is in an attribute: its ids are not known before."""
        if len(self.handles) >= HANDLES_MAX:
            self.change_handle()
            return
        contents = [self.content() for _ in range(self.random.randrange(1, 4))]
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, puts=[sha_of(content) for content in contents]))
        ids = self.repository.handles.put_many(contents, {"op": op})
        made: dict[str, Change | None] = {
            id: Change(HANDLE, sha_of(content)) for id, content in zip(ids, contents, strict=True)
        }
        self.worker.say(Line("done", op, made))
        self.handles.update(dict.fromkeys(ids, True))

    def change_handle(self) -> None:
        """Delete a handle, or bring a deleted one back, if it was not purged."""
        if not self.handles:
            return
        id = self.random.choice(list(self.handles))
        is_live = self.handles[id]
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, {id: Change(DELETED if is_live else HANDLE)}))
        try:
            (self.repository.handles.delete if is_live else self.repository.handles.undelete)(id)
        except HandleNotFound:
            self.worker.say(Line("refused", op))
            del self.handles[id]
            return
        self.worker.say(Line("done", op))
        self.handles[id] = not is_live

    def import_handle(self) -> None:
        """A FlowFile over a handle's content."""
        live = [id for id, is_live in self.handles.items() if is_live]
        if not live or self.worker.is_crowded():
            return
        with self.repository.session() as session:
            flow_file = session.import_handle(parse_uuid(self.random.choice(live)))
            changes: dict[str, Change | None] = {}
            self._send(session, flow_file, changes, sha=sha_of(session.read(flow_file).read()))
            self._commit(session, changes)

    def _ingest(self, queue: str, contents: list[bytes], attributes: list[dict[str, str]] | None = None) -> None:
        shas = [sha_of(content) for content in contents]
        told = [{"sha256": sha, **more} for sha, more in zip(shas, attributes or [{}] * len(shas), strict=True)]
        with self.repository.session() as session:
            made = session.ingest(queue, contents, told)
            self._commit(session, {record.id: Change(queue, sha) for record, sha in zip(made, shas, strict=True)})

    def _change(self, session: ProcessSession, flow_file: FlowFileRecord, changes: dict[str, Change | None]) -> None:
        """Route, mark, overwrite, append, clone, slice or split."""
        old = session.read(flow_file).read()
        if sha_of(old) != flow_file.attribute_map()["sha256"]:
            raise AssertionError(f"FlowFile {flow_file.id} reads as something else")
        match self.random.randrange(7):
            case 0:
                self._send(session, flow_file, changes)
            case 1:
                mark = f"{self.random.random()}"
                self._send(session, flow_file, changes, mark=mark)
            case 2:
                new = self.content()
                session.write(flow_file, new)
                self._send(session, flow_file, changes, sha=sha_of(new))
            case 3 if len(old) < 500_000:
                session.append(flow_file, b"and more")
                self._send(session, flow_file, changes, sha=sha_of(old + b"and more"))
            case 4:
                self._send(session, session.clone(flow_file), changes, sha=sha_of(old), mark=DERIVED)
                self._send(session, flow_file, changes)
            case 5:
                start = self.random.randrange(len(old) + 1)
                size = self.random.randrange(len(old) - start + 1)
                part = session.clone(flow_file, start, size)
                self._send(session, part, changes, sha=sha_of(old[start : start + size]), mark=DERIVED)
                session.remove(flow_file)
                changes[flow_file.id] = None
            case _:
                half = len(old) // 2
                for part, bytes_ in zip(
                    session.split(flow_file, [half, len(old) - half]), (old[:half], old[half:]), strict=True
                ):
                    self._send(session, part, changes, sha=sha_of(bytes_), mark=DERIVED)
                session.remove(flow_file)
                changes[flow_file.id] = None

    def _merge(self, session: ProcessSession, taken: list[FlowFileRecord], changes: dict[str, Change | None]) -> None:
        content = b"|".join(session.read(flow_file).read() for flow_file in taken)
        merged = session.merge(taken, demarcator=b"|")
        if len(content) > LIVE_BYTES_MAX // 8:
            session.remove(merged)
        else:
            self._send(session, merged, changes, sha=sha_of(content), mark=DERIVED)
        for flow_file in taken:
            session.remove(flow_file)
            changes[flow_file.id] = None

    def _send(
        self,
        session: ProcessSession,
        flow_file: FlowFileRecord,
        changes: dict[str, Change | None],
        *,
        sha: str = "",
        mark: str = "",
    ) -> None:
        if sha:
            session.put_attribute(flow_file, "sha256", sha)
        if mark:
            session.put_attribute(flow_file, "mark", mark)
        queue = self.queue()
        session.transfer(flow_file, queue)
        changes[flow_file.id] = Change(queue, sha, mark)

    def _commit(self, session: ProcessSession, changes: dict[str, Change | None]) -> None:
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, changes))
        try:
            session.commit()
        except (ContentWriteFailed, VolumeAway):  # only the stress takes volumes away
            self.worker.say(Line("refused", op))
            raise
        self.worker.say(Line("done", op))


def maintenance_of(worker: Worker, _: Task) -> list[Callable[[], object]]:
    """What Maintenance does."""
    repository = worker.repository
    return [
        repository.checkpoint,
        lambda: repository.ledger.records.pack(0),
        repository.spaces.blocks.merge_step,
        repository.spaces.handles.merge_step,
        repository.reclamation.clean,
        repository.reclamation.truncate,
        repository.reclamation.adopt_orphans,
        repository.handles.purge,
        repository.queues.swap_out_all,
    ]


def keep_up(worker: Worker, todo: list[Callable[[], object]]) -> None:
    """One of these every few milliseconds."""
    chance = random.Random(f"{worker.seed}/upkeep")
    pause = threading.Event()
    while True:
        chance.choice(todo)()
        pause.wait(chance.uniform(0, 0.02))


def work_until_killed(
    task: Task,
    spec: ContentRepositorySpec,
    hand: type[Hand] = Hand,
    upkeep_of: Callable[[Worker, Task], list[Callable[[], object]]] = maintenance_of,
) -> None:
    """Work until killed; a thread that fails says so and ends the process."""
    reserve.LOG_RESERVE_BYTES = RESERVE_BYTES
    reserve.CONTENT_RESERVE_BYTES = RESERVE_BYTES
    tell(Line("opening"))
    worker = Worker(Engine.open(spec), task.seed)
    worker.repository.spaces.handles.rows_min = 1  # so that its few handles leave memory, too
    handles: list[dict[str, bool]] = [{} for _ in range(task.threads)]
    for record in worker.repository.ledger.everything():
        if record.queue == HANDLE_QUEUE and not record.expires_millis:
            handles[record.uuid[0] % task.threads][record.id] = not record.deleted_millis
    hands = [hand(worker, number, own) for number, own in enumerate(handles)]
    upkeep = upkeep_of(worker, task)
    failed = threading.Event()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent is to know
            worker.say(Line("trouble", text=traceback.format_exc()))
            failed.set()

    worker.say(Line("ready"))
    for work in [*(hand.run for hand in hands), lambda: keep_up(worker, upkeep)]:
        threading.Thread(target=guarded, args=(work,), daemon=True).start()
    failed.wait()
    os._exit(3)


if __name__ == "__main__":
    the_task = msgspec.json.decode(sys.argv[1], type=Task)
    work_until_killed(the_task, spec_for(the_task.path))
