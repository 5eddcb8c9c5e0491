"""Leases: what they hold, how long, and what happens to a reader that loses its own."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, committing, content_sizes, put_all
from tests.threads import in_thread, together
from ullage.contract import Duration, PunchSettings, Quantity
from ullage.engine import leases
from ullage.engine.engine import Engine
from ullage.engine.model import Action, ContentClaim, FlowFileRecord, LeaseRecord
from ullage.errors import ClaimGone, ContentReclaimed, LeaseLost, LeaseRefused, UllageError

KB = 1024
MB = 1 << 20
HOUR = 3_600_000
LOOSE: dict[str, Any] = {
    "claims": {"max_appendable_size": Quantity(MB), "max_flow_files": 40},
    "archive": {"enabled": False},
    "compaction": {"bytes_per_second": Quantity(0), "punch": PunchSettings(min_run=Quantity(64 * KB))},
}


def fill(repository: Engine, seed: int = 1) -> dict[ContentClaim, bytes]:
    """Two files in which `keep` and `drop` alternate; the contents of `drop` by claim."""
    chooser = random.Random(seed)
    dropped: dict[ContentClaim, bytes] = {}
    for _ in range(2):
        with committing(repository) as session:
            for number in range(40):
                data = chooser.randbytes(chooser.randint(1, 30_000))
                (record,) = session.ingest("drop" if number % 4 else "keep", [data])
                if number % 4 and record.claim is not None:
                    dropped[record.claim] = data
    return dropped


def reclaim(repository: Engine) -> int:
    """Everything that can be done; bytes freed."""
    compactor = repository.compactor
    freed = repository.reclamation.clean().freed_bytes
    freed += repository.reclamation.execute(repository.reclamation.plan_truncation(eager=True)).freed_bytes
    return freed + compactor.execute(compactor.plan(policy="CompactAll")).freed_bytes


def acquire(repository: Engine, scope: str, duration_millis: int = HOUR) -> LeaseRecord:
    """A lease on a snapshot, or on every resource claim by name."""
    indexes = [entry.claim.index for entry in repository.ledger.entries()] if scope == "resources" else []
    return repository.leases.acquire("reader", duration_millis, indexes)


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**LOOSE)


@pytest.mark.parametrize("restart", ["none", "clean", "crash", "checkpoint"])
@pytest.mark.parametrize("scope", ["snapshot", "resources"])
def test_what_a_lease_holds_is_read_after_its_death(workshop: Workshop, scope: str, restart: str) -> None:
    """Nothing of it is cut, punched, rewritten or deleted, over a restart too, until the lease is released."""
    repository = workshop.make(**LOOSE)
    dropped = fill(repository)
    lease = acquire(repository, scope)
    repository.queues.drop(repository.queue("drop"))
    repository = workshop.restart(restart)

    held = reclaim(repository)
    read = {claim: repository.leases.read(lease.id, claim, 0, claim.length) for claim in dropped}
    repository.leases.release(lease.id)
    freed = reclaim(repository)

    assert held == 0
    assert read == dropped
    assert freed > 0


@pytest.mark.parametrize("scope", ["snapshot", "resources"])
def test_what_was_dead_before_a_lease_is_rewritten_away(workshop: Workshop, scope: str) -> None:
    """Addresses stay: what the lease holds is read where it lies now, and what dies later stays there for it."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    repository.queues.drop(repository.queue("drop"))
    kept = {claim_of(record): b"" for record in repository.queue("keep").records()}
    kept = {claim: repository.reader.read(claim, 0, claim.length) for claim in kept}
    lease = acquire(repository, scope)

    freed = reclaim(repository)
    repository.queues.drop(repository.queue("keep"))
    held = reclaim(repository)

    assert (freed > 0, held) == (True, 0)
    assert {claim: repository.leases.read(lease.id, claim, 0, claim.length) for claim in kept} == kept
    repository.leases.release(lease.id)
    assert reclaim(repository) > 0


def test_descriptors_keep_no_file_from_being_rewritten(workshop: Workshop) -> None:
    """Only from being changed in place. Whatever the process comes to meanwhile, nothing of it is left behind."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    indexes = [entry.claim.index for entry in repository.ledger.entries()]
    lease = repository.leases.acquire("socket", HOUR, indexes, holds_files=True)
    for index in indexes:
        repository.reclamation.passed.passed(index, "socket: somebody")
    repository.queues.drop(repository.queue("drop"))

    compactor = repository.compactor
    report = compactor.execute(compactor.plan(policy="CompactAll"))

    assert report.done == {Action.REWRITE: 2}
    assert (report.freed_bytes, report.held_bytes > 0) == (0, True)
    assert {each.resource for each in repository.reclamation.passed.kept()} == set(indexes)
    assert all(each.holders == ("socket: somebody",) for each in repository.reclamation.passed.kept())
    repository = workshop.crash()
    assert repository.reclamation.passed.kept() == []
    assert [each.id for each in repository.leases.all()] == [lease.id]
    assert reclaim(repository) == 0


@pytest.mark.parametrize("end", ["release", "revoke", "expire"])
def test_a_reader_whose_lease_ended_gets_an_error(workshop: Workshop, repository: Engine, end: str) -> None:
    """Also where the bytes would still be there: what is read under a lost lease is discarded."""
    claim = next(iter(fill(repository)))
    lease = acquire(repository, "snapshot", 1000)
    if end == "expire":
        workshop.clock.advance(1)
    else:
        getattr(repository.leases, end)(lease.id)

    with pytest.raises(LeaseLost):
        repository.leases.read(lease.id, claim, 0, 10)
    with pytest.raises(LeaseLost):
        repository.leases.renew(lease.id, 1000)
    assert repository.leases.all() == []


def test_leases_are_told_in_the_order_of_their_beginning(repository: Engine) -> None:
    """That of their transactions: of one millisecond too, and after one of them was renewed."""
    begun = [acquire(repository, str(number), 60_000).id for number in range(9)]
    repository.leases.renew(begun[0], 30_000)

    assert [lease.id for lease in repository.leases.all()] == begun


def test_a_lease_that_ends_during_the_read_fails_the_read(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is asked for again after the bytes are there."""
    repository = workshop.make(**LOOSE)
    claim = next(iter(fill(repository)))
    lease = acquire(repository, "snapshot")
    read = repository.reader.read

    def reading(*arguments: Any) -> bytes:
        data = read(*arguments)
        repository.leases.revoke(lease.id)
        return data

    monkeypatch.setattr(repository.reader, "read", reading)

    with pytest.raises(LeaseLost):
        repository.leases.read(lease.id, claim, 0, 10)
    monkeypatch.undo()


def test_a_snapshot_knows_nothing_of_what_was_dead_before(repository: Engine) -> None:
    """Dead bytes of before the lease, and files born after it, come back all the same."""
    fill(repository)
    repository.queues.drop(repository.queue("drop"))
    repository.leases.acquire("reader", HOUR)

    freed = reclaim(repository)

    assert freed > 0


def test_heartbeats_prolong_within_the_bound(workshop: Workshop) -> None:
    """Each counts from now, and none goes beyond maxDuration of the beginning."""
    repository = workshop.make(**LOOSE, leases={"max_duration": Duration(10_000)})
    fill(repository)
    lease = acquire(repository, "snapshot", 4_000)
    workshop.clock.advance(3)
    renewed = repository.leases.renew(lease.id, 4_000)
    workshop.clock.advance(3)
    last = repository.leases.renew(lease.id, 9_000)
    workshop.clock.advance(3.9)
    standing = workshop.reopen().leases.all()
    workshop.clock.advance(0.2)

    repository = workshop.crash()

    assert renewed.expires_millis == lease.created_millis + 7_000
    assert last.expires_millis == lease.created_millis + 10_000
    assert [found.id for found in standing] == [lease.id]
    assert repository.leases.all() == []
    assert repository.leases.purge() == 1


def test_leases_are_bounded(workshop: Workshop) -> None:
    """In number, in length, and to what lives."""
    repository = workshop.make(**LOOSE, leases={"max_count": 2, "max_duration": Duration(1_000)})
    fill(repository)
    for _ in range(2):
        acquire(repository, "snapshot", 1_000)

    with pytest.raises(LeaseRefused, match="maxCount"):
        acquire(repository, "snapshot", 1_000)
    workshop.clock.advance(1)
    with pytest.raises(LeaseRefused, match="maxDuration"):
        acquire(repository, "snapshot", 1_001)
    with pytest.raises(ClaimGone):
        repository.leases.acquire("reader", 1_000, [99])
    assert acquire(repository, "snapshot", 1_000) == repository.leases.all()[0]


def test_a_file_whose_descriptor_was_passed_is_never_changed_in_place(workshop: Workshop) -> None:
    """Not even after the lease was revoked: such a file is rewritten, until the holder says that it closed it."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    indexes = [entry.claim.index for entry in repository.ledger.entries()]
    lease = repository.leases.acquire("reader", HOUR, indexes, holds_files=True)
    repository.queues.drop(repository.queue("drop"))
    repository.leases.revoke(lease.id)
    repository = workshop.crash()
    compactor = repository.compactor
    in_place = frozenset({Action.PUNCH, Action.TRUNCATE})

    punched = repository.reclamation.execute(compactor.plan(actions=in_place))
    kept = content_sizes(workshop.path)
    rewritten = compactor.execute(compactor.plan(policy="CompactAll"))
    repository.leases.release(lease.id)

    assert punched.done == {}
    assert len(kept) == 2
    assert rewritten.done == {Action.REWRITE: 2}
    assert repository.ledger.leases == {}


@pytest.mark.parametrize("action", [Action.TRUNCATE, Action.PUNCH, Action.REWRITE])
def test_a_reader_without_a_lease_that_is_overtaken_is_told_so(workshop: Workshop, action: Action) -> None:
    """Bytes that go between the look-up and the read are reclaimed, neither missing nor corrupt."""
    files = FailingFiles()
    repository = workshop.make(files, **LOOSE | {"compaction": LOOSE["compaction"] | {"min_reclaim": 0}})
    with committing(repository) as session:
        session.ingest("keep", [b"k" * 10_000])
        (record,) = session.ingest("drop", [b"d" * 2_000_000])
        if action != Action.TRUNCATE:
            session.ingest("keep", [b"l" * 10_000])
    repository.content.retire_idle()
    repository.reclamation.clean()  # which seals it
    claim = claim_of(record)
    found: list[object] = []

    def read() -> None:
        try:
            found.append(repository.reader.read(claim, 0, claim.length))
        except UllageError as error:
            found.append(type(error))

    gate = files.hold("read", "*/c1/*")
    with in_thread(read):
        gate.wait_until_reached()
        repository.queues.drop(repository.queue("drop"))
        compactor = repository.compactor
        report = compactor.execute(compactor.plan(policy="CompactAll", actions=frozenset({action})))
        gate.open()

    assert report.done == {action: 1}
    # Whoever has the old file of a rewrite open still reads it.
    assert found == [b"d" * 2_000_000 if action == Action.REWRITE else ContentReclaimed]


class Crowd:
    """Writers, readers under leases, and one who reclaims and revokes, all at once."""

    def __init__(self, repository: Engine) -> None:
        self.repository = repository
        self.is_written = False
        self.has_failed = False
        self.read_count = 0
        self.freed_bytes = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until the writers have written; what anybody raises ends them all."""
        others = [partial(self._work, self.read, seed) for seed in range(4)]
        with in_thread(*others, partial(self._work, self.reclaim, 9)):
            together(*(partial(self._work, self.write, seed) for seed in range(3)))
            self.is_written = True

    def write(self, chooser: random.Random) -> None:
        """Put, and from time to time remove half of what there is."""
        for number in range(25):
            queue = f"q{chooser.randint(1, 3)}"
            sizes = [chooser.randint(1, 60_000) for _ in range(12)]
            put_all(self.repository, queue, [bytes([size % 251]) * size for size in sizes])
            if number % 3 == 2:
                with committing(self.repository) as session:
                    held = session.get_many(queue, 20)
                    session.remove_many(held[::2])
                    session.transfer_many(held[1::2], queue)

    def read(self, chooser: random.Random) -> None:
        """Lease after lease; most are released, some are left to their end."""
        while not self._is_done():
            known = {record.uuid for record in self.repository.ledger.flow_files()}
            lease = self.repository.leases.acquire("reader", HOUR)
            records = [record for record in self.repository.ledger.flow_files() if record.claim is not None]
            for record in chooser.sample(records, min(20, len(records))):
                if not self._read_one(lease, record, record.uuid in known):
                    break
            if chooser.random() < 0.8:
                self.repository.leases.release(lease.id)

    def reclaim(self, chooser: random.Random) -> None:
        """Everything that can be done, over and over; half of the leases in the way are revoked."""
        while not self._is_done():
            for lease in self.repository.leases.all():
                if chooser.random() < 0.5:
                    with suppress(LeaseLost):  # its holder was quicker
                        self.repository.leases.revoke(lease.id)
            self.freed_bytes += reclaim(self.repository)

    def _is_done(self) -> bool:
        """The writers have ended, and not before something was seen; or somebody failed."""
        has_seen = self.read_count > 100 and self.freed_bytes > 0
        return self.has_failed or (self.is_written and has_seen)

    def _read_one(self, lease: LeaseRecord, record: FlowFileRecord, is_older: bool) -> bool:
        """Right bytes, or an error that says why not; False once the lease is lost."""
        try:
            data = self.repository.leases.read(lease.id, claim_of(record), record.start, record.size)
        except LeaseLost:
            return False
        except ContentReclaimed:
            assert not is_older, "a snapshot holds what was there when it was given"
            return True
        assert data == bytes([record.size % 251]) * record.size
        with self._lock:
            self.read_count += 1
        return True

    def _work(self, work: Callable[[random.Random], None], seed: int) -> None:
        try:
            work(random.Random(seed))
        except BaseException:
            self.has_failed = True
            raise


def test_many_readers_writers_and_a_reclaimer(workshop: Workshop) -> None:
    """While files are cut, punched, rewritten and deleted, every read is right or says that its lease is lost."""
    crowd = Crowd(workshop.make(**LOOSE))

    crowd.run()

    print(f"{crowd.read_count} reads, {crowd.freed_bytes} bytes freed")
    assert crowd.read_count > 100
    assert crowd.freed_bytes > 0


def test_a_lease_grows_and_shrinks(workshop: Workshop, repository: Engine) -> None:
    """What it takes in is held from then on, over a restart too; what it leaves out is given back."""
    dropped = fill(repository)
    first, second = sorted({claim.resource for claim in dropped})
    lease = repository.leases.acquire("reader", HOUR, [first])

    repository.leases.hold(lease.id, [first, second])
    repository = workshop.crash()
    repository.queues.drop(repository.queue("drop"))
    held = reclaim(repository)
    repository.leases.hold(lease.id, [second])
    freed = reclaim(repository)

    assert (held, freed > 0) == (0, True)
    assert [found.resources for found in repository.leases.all()] == [(second,)]
    repository.leases.release(lease.id)
    assert reclaim(repository) > 0


def test_a_lease_does_not_grow_over_what_is_gone(repository: Engine) -> None:
    """Nothing new that is dead, nothing at all once it has ended, and no snapshot in disguise."""
    fill(repository)
    lease = acquire(repository, "resources")
    snapshot = acquire(repository, "snapshot")

    with pytest.raises(ClaimGone):
        repository.leases.hold(lease.id, [*lease.resources, 99])
    with pytest.raises(LeaseRefused, match="0 resource claims"):
        repository.leases.hold(lease.id, [])
    with pytest.raises(LeaseRefused, match="snapshot"):
        repository.leases.hold(snapshot.id, lease.resources)
    repository.leases.revoke(lease.id)
    with pytest.raises(LeaseLost):
        repository.leases.hold(lease.id, lease.resources)


def test_leases_of_one_owner_name_so_many_resource_claims(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All together, of whoever has a quota; one on a snapshot names none, and what is released is room again."""
    fill(repository)
    indexes = [entry.claim.index for entry in repository.ledger.entries()]
    monkeypatch.setattr(leases, "NAMED_MAX", 2 * len(indexes))

    def take(owner: str, resources: list[int]) -> LeaseRecord:
        return repository.leases.acquire("reader", HOUR, resources, owner=owner, each_max=10)

    first, _ = take("one", indexes), take("one", indexes)
    with pytest.raises(LeaseRefused, match="name 4 resource claims already, of 4"):
        take("one", indexes[:1])
    take("one", [])
    take("other", indexes)
    repository.leases.acquire("reader", HOUR, indexes, owner="one")  # who has no quota
    repository.leases.release(first.id)
    with pytest.raises(LeaseRefused):
        take("one", indexes[:1])
    repository.leases.release(repository.leases.all()[-1].id)
    assert take("one", indexes[:1]).resources == tuple(indexes[:1])
