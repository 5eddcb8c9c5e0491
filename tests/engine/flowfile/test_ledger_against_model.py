"""The property test of claimant counts: any sequence of sessions, against a model that knows only bytes."""

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import Workshop, committing, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, parse_uuid
from ullage.engine.session import ProcessSession
from ullage.errors import HandleDeleted, HandleNotFound

LARGE = 300_000
"""Above one checksum block, so that block CRCs travel too."""

QUEUES = ("a", "b")
sizes = st.sampled_from([0, 1, 10, 700, 1_100, LARGE])
counts = st.integers(1, 7)
queues = st.sampled_from(QUEUES)


def change(
    session: ProcessSession,
    record: FlowFileRecord,
    contents: dict[bytes, bytes],
    held: list[FlowFileRecord],
    deeds: random.Random,
) -> None:
    """Do something to one FlowFile; `contents` and `held` say what then is in the session."""
    deed = deeds.choice(["keep", "remove", "overwrite", "clone", "split", "clone of a clone", "append"])
    data = contents[record.uuid]
    if deed == "remove":
        session.remove(record)
        del contents[record.uuid]
    elif deed == "overwrite":
        contents[record.uuid] = data[: len(data) // 2]
        session.write(record, contents[record.uuid])
    elif deed == "append":
        session.append(record, b"tail")
        contents[record.uuid] = data + b"tail"
    elif deed == "clone":
        held.append(session.clone(record))
        contents[held[-1].uuid] = data
    elif deed == "clone of a clone":
        clone = session.clone(record)
        held.append(session.clone(clone))
        contents[held[-1].uuid] = data
        session.remove(clone)
    elif deed == "split":
        middle = deeds.randint(0, len(data))
        parts = session.split(record, [middle, len(data) - middle])
        contents.update(zip((part.uuid for part in parts), (data[:middle], data[middle:]), strict=True))
        held.extend(parts)


class LedgerMachine(RuleBasedStateMachine):
    """Every rule is one session or one deed; after each the whole repository is checked and recounted."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.workshop = Workshop(Path(self._directory.name) / "repository")
        self.queued: dict[bytes, tuple[str, bytes]] = {}
        self.handles: dict[str, bytes] = {}
        self.deleted: dict[str, bytes] = {}
        self.chooser = random.Random(0)

    @property
    def repository(self) -> Engine:
        return self.workshop.repository

    @initialize()
    def make(self) -> None:
        self.workshop.make(
            flow_file={"swap_threshold": 4, "swap_batch": 2},
            claims={"max_appendable_size": 4_096, "max_flow_files": 5, "large_claim": 1_000_000},
        )

    def content(self, size: int) -> bytes:
        return self.chooser.randbytes(size)

    @rule(queue=queues, wanted=st.lists(sizes, min_size=1, max_size=5))
    def ingest(self, queue: str, wanted: list[int]) -> None:
        contents = [self.content(size) for size in wanted]
        records = put_all(self.repository, queue, contents)
        self.queued.update({record.uuid: (queue, data) for record, data in zip(records, contents, strict=True)})

    @rule(source=queues, into=queues, count=counts, size=sizes, commits=st.booleans(), seed=st.integers(0, 1 << 32))
    def work(self, source: str, into: str, count: int, size: int, commits: bool, seed: int) -> None:
        """One session that does something to each FlowFile it gets, then commits or rolls back."""
        deeds = random.Random(seed)
        after = dict(self.queued)
        with self.repository.session() as session:
            own = self.content(size)
            new = session.write(session.create(), own)
            assert session.read(new).read() == own
            changed = {new.uuid: own}
            held: list[FlowFileRecord] = [new]
            for record in session.get_many(source, count):
                queue, data = after.pop(record.uuid)
                assert queue == source
                assert session.read(record).read() == data
                changed[record.uuid] = data
                held.append(record)
            for record in tuple(held):  # it grows meanwhile
                change(session, record, changed, held, deeds)
            for record in held:
                if record.uuid in changed:
                    session.transfer(record, into)
                    after[record.uuid] = (into, changed[record.uuid])
            if commits:
                session.commit()
                self.queued = after

    @rule(size=sizes)
    def put_handle(self, size: int) -> None:
        data = self.content(size)
        self.handles[self.repository.handles.put(data)] = data

    @precondition(lambda self: self.handles)
    @rule(choice=st.randoms(use_true_random=False))
    def delete_handle(self, choice: random.Random) -> None:
        id = choice.choice(sorted(self.handles))
        self.repository.handles.delete(id)
        self.deleted[id] = self.handles.pop(id)

    @precondition(lambda self: self.deleted)
    @rule(choice=st.randoms(use_true_random=False))
    def undelete_handle(self, choice: random.Random) -> None:
        id = choice.choice(sorted(self.deleted))
        self.repository.handles.undelete(id)
        self.handles[id] = self.deleted.pop(id)

    @precondition(lambda self: self.handles)
    @rule(into=queues, purges=st.booleans(), choice=st.randoms(use_true_random=False))
    def import_handle(self, into: str, purges: bool, choice: random.Random) -> None:
        id = choice.choice(sorted(self.handles))
        data = self.handles[id]
        with committing(self.repository) as session:
            record = session.import_handle(parse_uuid(id))
            if purges:
                self.repository.handles.delete(id)
                del self.handles[id]
                self.purge()
            clone = session.clone(record)
            session.transfer_many([record, clone], into)
        self.queued[record.uuid] = self.queued[clone.uuid] = (into, data)

    @rule()
    def purge(self) -> None:
        self.workshop.clock.advance(8 * 86_400)
        self.repository.handles.purge()
        for id in self.deleted:
            try:
                self.repository.handles.get(id)
            except HandleNotFound:
                continue  # gone, as it must be
            raise AssertionError(id)
        self.deleted = {}

    @rule(queue=queues)
    def drop(self, queue: str) -> None:
        gone = [uuid for uuid, (name, _) in self.queued.items() if name == queue]
        assert self.repository.queues.drop(self.repository.queue(queue)) == len(gone)
        for uuid in gone:
            del self.queued[uuid]

    @rule()
    def checkpoint(self) -> None:
        self.repository.checkpoint()

    @rule()
    def reclaim(self) -> None:
        self.repository.reclamation.clean()
        self.repository.reclamation.execute(self.repository.reclamation.plan_truncation(eager=True))

    @rule(policy=st.sampled_from(["StatsBased", "CompactAll"]))
    def compact(self, policy: str) -> None:
        compactor = self.repository.compactor
        compactor.execute(compactor.plan(policy=policy), bytes_per_second=0)

    @rule()
    def reopen(self) -> None:
        self.workshop.reopen()
        self.read_everything()

    @rule()
    def crash(self) -> None:
        self.workshop.crash()
        self.read_everything()

    def read_everything(self) -> None:
        """All that was committed is there, byte for byte, and nothing else."""
        found: dict[bytes, tuple[str, bytes]] = {}
        with self.repository.session() as session:
            for queue in QUEUES:
                for record in session.get_many(queue, 10_000):
                    found[record.uuid] = (queue, session.read(record).read())
        assert found == self.queued

    @invariant()
    def counts_equal_a_recount(self) -> None:
        """`check` recounts claimants from the FlowFiles, resident and swapped, and reads every live byte."""
        if not self.workshop.is_open:
            return
        assert self.repository.check(deep=True).problems == ()
        for queue in QUEUES:
            of_queue = [data for name, data in self.queued.values() if name == queue]
            figures = self.repository.queue(queue).figures()
            assert (figures.flow_files, figures.size_bytes) == (len(of_queue), sum(map(len, of_queue)))
        for id, data in self.handles.items():
            with self.repository.handles.get(id) as stream:
                assert stream.read() == data
        for id in self.deleted:
            try:
                self.repository.handles.get(id)
            except HandleDeleted:
                continue  # as it must be
            raise AssertionError(id)
        claimants = sum(entry.claimants for entry in self.repository.ledger.entries())
        with_content = [data for _, data in self.queued.values() if data]
        with_content += [data for data in [*self.handles.values(), *self.deleted.values()] if data]
        assert claimants == len(with_content)

    def teardown(self) -> None:
        try:
            if self.workshop.is_open:
                self.read_everything()
                self.workshop.close()
        finally:
            self._directory.cleanup()


LedgerMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


TestLedgerAgainstModel = LedgerMachine.TestCase
