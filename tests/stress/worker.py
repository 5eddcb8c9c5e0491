"""A process that uses every feature at once until it is killed: `python -m tests.stress.worker TASK`.

Beside what `tests.kill.worker` does it stages writes, puts handles that expire, takes lanes in their order, redefines
priorities, keeps streams and leases open for a while, compacts by both policies, drains and indexes provenance, proves
content, backs up, and changes its settings while it runs. A volume goes away now and then, and is back a moment later;
what a kill finds away the parent brings back.
"""

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from tests.faults.detached import Detached
from tests.kill.protocol import HANDLE, MORTAL, QUEUES, Change, Line, Task, sha_of
from tests.kill.worker import HANDLES_MAX, Hand, Worker, work_until_killed
from tests.stress.settings import spec_changed, spec_drawn
from ullage.contract import QueuePriority
from ullage.engine.model import format_uuid
from ullage.errors import ContentWriteFailed, HandleDeleted, HandleNotFound, LeaseRefused, VolumeAway, WriteClosed
from ullage.streams import ContentStream

HELD_MAX = 5
"""Streams that one thread keeps open."""


class BusyHand(Hand):
    """One thread's work, reading at length too."""

    def __init__(self, worker: Worker, number: int, handles: dict[str, bool]) -> None:
        super().__init__(worker, number, handles)
        self._streams: list[ContentStream] = []
        self._leases: list[bytes] = []

    def todo(self) -> list[tuple[int, Callable[[], None]]]:
        todo = [
            *super().todo(),
            *((3, self.read_on), (1, self.lease), (1, self.redefine)),
            *((2, self.take_lane), (2, self.put_mortals), (2, self.stage)),
        ]
        return [(weight, partial(self._but_for_volumes, act)) for weight, act in todo]

    def _but_for_volumes(self, act: Callable[[], None]) -> None:
        """What lies on a volume that is away can't be read, and what was being written there is refused."""
        with suppress(VolumeAway, ContentWriteFailed):  # the parent was told "refused", if it was a commit
            act()

    def take_lane(self) -> None:
        """The first of the lane, in their order, or a glance at them."""
        with self.repository.session() as session:
            taken = session.get_many(self.lane, self.random.randrange(1, 30))
            numbers = [int(flow_file.attribute_map()["number"]) for flow_file in taken]
            if numbers != sorted(numbers):
                raise AssertionError(f"queue {self.lane} gives {numbers}")
            if self.random.random() < 0.7:
                for flow_file in taken:
                    session.remove(flow_file)
                self._commit(session, {flow_file.id: None for flow_file in taken})

    def put_mortals(self) -> None:
        """Handles whose time is soon over."""
        contents = [self.content() for _ in range(self.random.randrange(1, 4))]
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, puts=[sha_of(content) for content in contents]))
        ids = self.repository.handles.put_many(contents, {"op": op}, self.random.choice((1, 100, 2_000)))
        made: dict[str, Change | None] = {
            id: Change(MORTAL, sha_of(content)) for id, content in zip(ids, contents, strict=True)
        }
        self.worker.say(Line("done", op, made))

    def stage(self) -> None:
        """A write of two attempts, of which one counts; some are never finished."""
        if self.worker.is_crowded() or len(self.handles) >= HANDLES_MAX:
            return
        staging, write, (good, bad) = self.repository.staging, self._uuid(), (self._uuid(), self._uuid())
        queue = self.random.choice(("", *QUEUES))
        staging.begin(write, "stress", queue=queue, lasts_millis=self.random.choice((500, 60_000)))
        changes: dict[str, Change | None] = {}
        try:
            for number in range(2):
                contents = [self.content() for _ in range(2)]
                shas = [sha_of(content) for content in contents]
                ids = staging.stage(write, good, number, contents, [{"sha256": sha} for sha in shas])
                staging.stage(write, bad, number, contents[:1])
                changes.update(
                    {format_uuid(id): Change(queue or HANDLE, sha) for id, sha in zip(ids, shas, strict=True)}
                )
            if self.random.random() < 0.4:
                if self.random.random() < 0.5:
                    staging.abort(write)
                return
            staging.prepare(write, {good: 2})
        except WriteClosed:
            return  # its time was over
        op = self.worker.new_op()
        self.worker.say(Line("intend", op, changes))
        staging.commit(write, [good])
        self.worker.say(Line("done", op))
        if not queue:
            self.handles.update(dict.fromkeys(changes, True))

    def _uuid(self) -> bytes:
        return self.random.randbytes(16)

    def read_on(self) -> None:
        """Open a stream, or read on in one, and close it some time."""
        live = [id for id, is_live in self.handles.items() if is_live]
        if live and len(self._streams) < HELD_MAX and self.random.random() < 0.5:
            try:
                self._streams.append(self.repository.handles.get(self.random.choice(live)))
            except (HandleNotFound, HandleDeleted):
                return
        elif self._streams:
            stream = self.random.choice(self._streams)
            if not stream.read(self.random.choice((1, 10_000, -1))):
                self._streams.remove(stream)
                stream.close()

    def lease(self) -> None:
        """Hold a snapshot for a moment."""
        if self._leases:
            self.repository.leases.release(self._leases.pop())
            return
        try:
            self._leases.append(self.repository.leases.acquire("stress", self.random.choice((1, 50, 1_000))).id)
        except LeaseRefused:
            return

    def redefine(self) -> None:
        """Another order for a queue that others use."""
        self.repository.queues.define(
            self.random.choice(QUEUES),
            priority=str(self.random.choice(list(QueuePriority))),
            priority_attribute="mark",
        )


def upkeep_of(worker: Worker, task: Task) -> list[Callable[[], object]]:
    """What goes on beside, each in turn at random."""
    repository = worker.repository
    chance = random.Random(f"{task.seed}/changes")
    volumes = [Detached(task.path, name) for name in repository.content.containers]

    def compact() -> None:
        policy = chance.choice(("CompactAll", "StatsBased"))
        repository.compactor.execute(repository.compactor.plan(policy=policy), bytes_per_second=0)

    def adopt() -> None:
        repository.adopt(spec_changed(repository.spec, task.path, chance.getrandbits(32)))

    def back_up() -> None:
        repository.backup(f"{task.path}.backup")

    def mount_or_unmount() -> None:
        away = [volume for volume in volumes if volume.is_away]
        if not away:
            chance.choice(volumes).take_away(leaves_mount_point=chance.random() < 0.5)
        elif chance.random() < 0.5:
            away[0].bring_back(covers=True)

    def expire_leases() -> None:
        repository.leases.purge()
        repository.idempotency.forget()
        repository.staging.expire()

    return [
        *(repository.checkpoint, repository.checkpoint),
        *(compact, compact, adopt, back_up, expire_leases),
        *(mount_or_unmount, mount_or_unmount, mount_or_unmount, repository.volumes.look),
        *(repository.reclamation.clean, repository.reclamation.truncate, repository.reclamation.adopt_orphans),
        *(repository.handles.purge, repository.queues.swap_out_all, repository.queues.expire),
        *(repository.provenance.step, repository.provenance.index_step, repository.proof.step),
        *(repository.spaces.blocks.merge_step, repository.spaces.blocks.merge_step),
        *(lambda: repository.ledger.records.pack(0), repository.spaces.handles.merge_step),
        *(repository.reclamation.survey, lambda: repository.account.dead(repository.spec)),
    ]


if __name__ == "__main__":
    the_task = msgspec.json.decode(sys.argv[1], type=Task)
    work_until_killed(the_task, spec_drawn(the_task.path, the_task.seed), BusyHand, upkeep_of)
