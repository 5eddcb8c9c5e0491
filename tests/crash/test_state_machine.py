"""Any order of public calls, several sessions open at once, over files that lose power: against a model of dicts."""

import os
import random
from dataclasses import dataclass, field
from itertools import islice

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.crash.failing import require_no_leaks
from tests.crash.resting import cool
from tests.crash.specs import SPEC
from tests.crash.steps import LARGE
from tests.proof.figures import note
from tests.support import ManualClock, abandon, committing
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord
from ullage.engine.session import ProcessSession
from ullage.errors import HandleDeleted, HandleNotFound
from ullage.testing.crashing import CrashFiles

EXAMPLES = int(os.environ.get("ULLAGE_MACHINE_EXAMPLES", "80"))

RETENTION_SECONDS = 60
"""`deletedRetention` of the workloads' spec."""

QUEUES = ("a", "b")
SESSIONS_MAX = 3
IMAGES_MAX = 40

queues = st.sampled_from(QUEUES)
sizes = st.sampled_from([0, 1, 40, 300, 1_500, LARGE])
choices = st.randoms(use_true_random=False)


@dataclass
class Holding:
    """One open session: what it took out of the queues, and what it is going to put there instead."""

    session: ProcessSession
    taken: dict[bytes, tuple[str, bytes]]
    flow_files: dict[bytes, FlowFileRecord]
    contents: dict[bytes, bytes] = field(default_factory=dict)


class RepositoryMachine(RuleBasedStateMachine):
    """`free`: what the queues show, by uuid; `live` and `deleted`: the handles."""

    spec = SPEC

    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.clock = ManualClock()
        self.free: dict[bytes, tuple[str, bytes]] = {}
        self.holdings: list[Holding] = []
        self.live: dict[str, bytes] = {}
        self.deleted: dict[str, tuple[bytes, int]] = {}
        self.repository: Engine | None = None
        self.steps = 0

    @property
    def open(self) -> Engine:
        assert self.repository is not None
        return self.repository

    @initialize()
    def make(self) -> None:
        Engine.initialize(self.spec, self.files, self.clock)
        self.repository = Engine.open(self.spec, self.files, self.clock)

    @rule(queue=queues, wanted=st.lists(sizes, min_size=1, max_size=6), choice=choices)
    def ingest(self, queue: str, wanted: list[int], choice: random.Random) -> None:
        contents = [choice.randbytes(size) for size in wanted]
        with committing(self.open) as session:
            records = session.ingest(queue, contents)
        self.free.update({record.uuid: (queue, data) for record, data in zip(records, contents, strict=True)})

    @precondition(lambda self: len(self.holdings) < SESSIONS_MAX)
    @rule(queue=queues, count=st.integers(1, 6))
    def begin(self, queue: str, count: int) -> None:
        """A session takes what nobody else holds, and reads it."""
        session = self.open.session()
        records = session.get_many(queue, count)
        assert len(records) == min(count, sum(name == queue for name, _ in self.free.values()))
        holding = Holding(session, {}, {record.uuid: record for record in records})
        for record in records:
            name, data = holding.taken[record.uuid] = self.free.pop(record.uuid)
            assert (name, data) == (queue, session.read(record).read())
            holding.contents[record.uuid] = data
        self.holdings.append(holding)

    @precondition(lambda self: self.holdings)
    @rule(size=sizes, choice=choices)
    def write(self, size: int, choice: random.Random) -> None:
        """A session writes something new, which only it can read."""
        holding = choice.choice(self.holdings)
        data = choice.randbytes(size)
        record = holding.session.write(holding.session.create(), data)
        assert holding.session.read(record).read() == data
        holding.flow_files[record.uuid] = record
        holding.contents[record.uuid] = data

    @precondition(lambda self: any(holding.flow_files for holding in self.holdings))
    @rule(deed=st.sampled_from(["remove", "overwrite", "append", "clone", "slice"]), choice=choices)
    def change(self, deed: str, choice: random.Random) -> None:
        """A session does something to a FlowFile that it holds."""
        holding = choice.choice([holding for holding in self.holdings if holding.flow_files])
        session, record = holding.session, choice.choice(list(holding.flow_files.values()))
        data = holding.contents[record.uuid]
        if deed == "remove":
            session.remove(record)
            del holding.flow_files[record.uuid], holding.contents[record.uuid]
            return
        if deed == "overwrite":
            data = choice.randbytes(len(data) // 2 + 1)
            record = session.write(record, data)
        elif deed == "append":
            data += b"tail"
            record = session.append(record, b"tail")
        elif deed == "clone":
            record = session.clone(record)
        else:
            data = data[len(data) // 3 :]
            record = session.clone(record, record.size // 3)
        holding.flow_files[record.uuid] = record
        holding.contents[record.uuid] = data

    @precondition(lambda self: self.holdings)
    @rule(into=queues, choice=choices)
    def commit(self, into: str, choice: random.Random) -> None:
        holding = self.holdings.pop(choice.randrange(len(self.holdings)))
        holding.session.transfer_many(holding.flow_files.values(), into)
        holding.session.commit()
        self.free.update({uuid: (into, data) for uuid, data in holding.contents.items()})

    @precondition(lambda self: self.holdings)
    @rule(choice=choices)
    def roll_back(self, choice: random.Random) -> None:
        holding = self.holdings.pop(choice.randrange(len(self.holdings)))
        holding.session.rollback()
        self.free.update(holding.taken)

    @rule(size=sizes, choice=choices)
    def put_handle(self, size: int, choice: random.Random) -> None:
        data = choice.randbytes(size)
        self.live[self.open.handles.put(data)] = data

    @precondition(lambda self: self.live)
    @rule(choice=choices)
    def delete_handle(self, choice: random.Random) -> None:
        id = choice.choice(sorted(self.live))
        self.open.handles.delete(id)
        self.deleted[id] = (self.live.pop(id), self.clock.millis)

    @precondition(lambda self: self.deleted)
    @rule(choice=choices)
    def undelete_handle(self, choice: random.Random) -> None:
        id = choice.choice(sorted(self.deleted))
        data, since = self.deleted.pop(id)
        try:
            self.open.handles.undelete(id)
        except HandleNotFound:
            assert self.is_over(since)
            self.deleted[id] = (data, since)
        else:
            assert not self.is_over(since)
            self.live[id] = data

    @rule()
    def purge(self) -> None:
        gone = {id for id, (_, since) in self.deleted.items() if self.is_over(since)}
        assert self.open.handles.purge() == len(gone)
        self.deleted = {id: kept for id, kept in self.deleted.items() if id not in gone}

    @rule(seconds=st.sampled_from([1, 30, 70]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(queue=queues)
    def drop(self, queue: str) -> None:
        """Dropping takes what no session holds."""
        gone = [uuid for uuid, (name, _) in self.free.items() if name == queue]
        assert self.open.queues.drop(self.open.queue(queue)) == len(gone)
        for uuid in gone:
            del self.free[uuid]

    @rule()
    def checkpoint(self) -> None:
        self.open.checkpoint()

    @rule()
    def pack(self) -> None:
        self.open.ledger.records.pack(0)

    @rule()
    def rest(self) -> None:
        """Handles leave memory, the files that they are in being sealed."""
        self.open.content.retire_idle()
        if seals := self.open.content.take_seals():
            self.open.committer.commit(seals, creates=False)
        cool(self.open, self.clock)

    @rule()
    def truncate(self) -> None:
        self.open.reclamation.truncate()

    @rule(policy=st.sampled_from(["StatsBased", "CompactAll"]))
    def compact(self, policy: str) -> None:
        compactor = self.open.compactor
        compactor.execute(compactor.plan(policy=policy))

    @rule()
    def clean(self) -> None:
        self.open.reclamation.clean()

    @rule()
    def adopt(self) -> None:
        self.open.reclamation.adopt_orphans()

    @rule()
    def reopen(self) -> None:
        """Sessions are rolled back, then the repository is closed cleanly."""
        for holding in self.holdings:
            holding.session.rollback()
        self.open.close()
        assert self.files.held == 0
        self.start()

    @rule()
    def kill(self) -> None:
        """The process dies; the next one finds the page cache as it was."""
        abandon(self.open)
        self.files.held = 0  # the system closes what the sessions of a dead process had open
        self.start()

    @rule(choice=choices)
    def lose_power(self, choice: random.Random) -> None:
        """The machine dies; the next process finds something that the disk could hold."""
        images = self.files.crash_point().images(choice.randrange(1 << 32))
        found = list(islice(images, choice.randint(1, IMAGES_MAX)))
        self.files = CrashFiles(found[-1])
        self.start()

    def start(self) -> None:
        """Open, and find all that was committed: what sessions held is in the queues again."""
        for holding in self.holdings:
            self.free.update(holding.taken)
        self.holdings = []
        self.repository = Engine.open(self.spec, self.files, self.clock)
        self.require_sound()
        with self.open.session() as session:
            found = {
                record.uuid: (queue, session.read(record).read())
                for queue in QUEUES
                for record in session.get_many(queue, 10_000)
            }
        assert found == self.free

    def is_over(self, since_millis: int) -> bool:
        return self.clock.millis >= since_millis + RETENTION_SECONDS * 1_000

    def require_sound(self) -> None:
        assert self.open.check(deep=True).problems == ()

    @invariant()
    def queues_and_handles_are_the_models(self) -> None:
        if self.repository is None:
            return
        self.steps += 1
        self.require_sound()
        for queue in QUEUES:
            held = [data for holding in self.holdings for name, data in holding.taken.values() if name == queue]
            contents = [*held, *(data for name, data in self.free.values() if name == queue)]
            figures = self.open.queue(queue).figures()
            assert (figures.flow_files, figures.held) == (len(contents), len(held))
            assert figures.size_bytes == sum(map(len, contents))
        for id, data in self.live.items():
            with self.open.handles.get(id) as stream:
                assert stream.read() == data
        for id in self.deleted:
            try:
                self.open.handles.get(id)
            except HandleDeleted:
                continue  # as it must be
            raise AssertionError(id)

    def teardown(self) -> None:
        if self.repository is not None:
            self.reopen()
            require_no_leaks(self.open, self.files)
            self.open.close()
        note(runs=1, steps=self.steps)


RepositoryMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


TestRepositoryAgainstModel = RepositoryMachine.TestCase
