"""Every allocated byte is accounted for: the sum is what the filesystem says, and each share is what it says."""

import os
import random
from pathlib import Path

import pytest

from tests.support import Workshop, containers, put_all
from ullage.contract import MaintenanceSettings
from ullage.engine.engine import Engine
from ullage.engine.reclaim.accounting import Share
from ullage.enums import SpaceUse

KB, MB = 1 << 10, 1 << 20
STEPS = 120


def allocated(path: Path) -> int:
    """Bytes that the filesystem has allocated for a directory and all below it."""
    below = [Path(top) / name for top, directories, files in os.walk(path) for name in (*directories, *files)]
    return sum(one.lstat().st_blocks * 512 for one in (path, *below))


def account(repository: Engine) -> list[Share]:
    """What the repository says of its disk."""
    return repository.account.explain(repository.spec)


def use_of(shares: list[Share], *uses: SpaceUse) -> int:
    """Bytes that are there for these reasons."""
    return sum(share.bytes for share in shares if share.use in uses)


def live_bytes(repository: Engine) -> int:
    """Bytes of the contents that records point at, each counted once."""
    records = list(repository.ledger.flow_files())
    for name in repository.ledger.swaps:
        records += repository.swap_files.read(name).records
    return sum(claim.length for claim in {record.claim for record in records if record.claim is not None})


class Life:
    """Random use of a repository: sessions, handles, clones, removals, reclamation of all kinds, crashes."""

    def __init__(self, workshop: Workshop, seed: int) -> None:
        self._workshop = workshop
        self._random = random.Random(seed)
        self._handles: list[str] = []

    @property
    def _repository(self) -> Engine:
        return self._workshop.repository

    def step(self) -> str:
        """Do one thing; its name."""
        do = self._random.choice(
            (
                *(self.put, self.put, self.clone, self.remove, self.remove, self.handle, self.delete, self.leave),
                *(self.clean, self.truncate, self.compact, self.checkpoint, self.crash, self.wait),
            )
        )
        do()
        return do.__name__

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice([0, 100, 5 * KB, 70 * KB, 3 * MB]))

    def put(self) -> None:
        put_all(self._repository, "q", [self._bytes() for _ in range(self._random.randint(1, 30))])

    def clone(self) -> None:
        with self._repository.session() as session:
            for flow_file in session.get_many("q", 3):
                session.transfer(session.clone(flow_file, 0, flow_file.size // 2), "q")
                session.transfer(flow_file, "q")
            session.commit()

    def remove(self) -> None:
        with self._repository.session() as session:
            session.remove_many(session.get_many("q", self._random.randint(1, 20)))
            session.commit()

    def handle(self) -> None:
        self._handles.append(self._repository.handles.put(self._bytes()))

    def delete(self) -> None:
        if self._handles:
            self._repository.handles.delete(self._handles.pop(self._random.randrange(len(self._handles))))

    def leave(self) -> None:
        """A session that a crash will cut short."""
        session = self._repository.session()
        session.ingest("q", [self._random.randbytes(MB)])
        self._workshop.crash()

    def clean(self) -> None:
        self._repository.reclamation.clean()

    def truncate(self) -> None:
        self._repository.reclamation.execute(self._repository.reclamation.plan_truncation(eager=True))

    def compact(self) -> None:
        self._repository.compactor.execute(self._repository.compactor.plan(policy="CompactAll"))

    def checkpoint(self) -> None:
        self._repository.checkpoint()

    def crash(self) -> None:
        self._workshop.crash()

    def wait(self) -> None:
        self._workshop.clock.advance(self._random.choice([60, 7_200, 100_000]))
        self._repository.reclamation.tend_orphans()


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_is_what_the_filesystem_says_after_each_step(workshop: Workshop, seed: int) -> None:
    """Whatever was done, to the block, in each container and in all; and what lives is never less than its bytes."""
    repository = workshop.make(
        storage=containers(c1=1 << 30, c2=1 << 30), flow_file={"swap_threshold": 40, "swap_batch": 20}
    )
    life = Life(workshop, seed)

    for number in range(STEPS):
        done = life.step()
        repository = workshop.repository
        shares = account(repository)
        assert sum(share.bytes for share in shares) == allocated(workshop.path), (seed, number, done)
        for name in ("c1", "c2"):
            told = sum(share.bytes for share in shares if share.container == name)
            assert told == allocated(workshop.path / name), (seed, number, done, name)
        assert use_of(shares, SpaceUse.LIVE, SpaceUse.TOMBSTONE) == live_bytes(repository), (seed, number, done)
        archived = sum(one.lstat().st_blocks * 512 for one in workshop.path.glob("c?/*/archive/*"))
        assert use_of(shares, SpaceUse.ARCHIVE) == archived, (seed, number, done)


def test_live_bytes_are_counted_once(workshop: Workshop) -> None:
    """A claim that a clone in memory and its original in a swap file share is live once."""
    repository = workshop.make(storage=containers(c1=1 << 30), flow_file={"swap_threshold": 10, "swap_batch": 10})
    put_all(repository, "q", [os.urandom(4 * KB)] * 30)
    with repository.session() as session:
        for flow_file in session.get_many("q", 5):
            session.transfer(session.clone(flow_file), "q")
            session.transfer(flow_file, "q")
        session.commit()
    repository = workshop.reopen()

    assert repository.ledger.swaps
    assert use_of(account(repository), SpaceUse.LIVE) == 30 * 4 * KB


def test_each_reason_is_told_with_its_date(workshop: Workshop) -> None:
    """Archive, tombstones, leases, writers and orphans, each with as many bytes as it keeps, and until when."""
    repository = workshop.make(storage=containers(c1=1 << 30))
    put_all(repository, "archived", [os.urandom(2 * MB)])
    with repository.session() as session:
        session.remove_many(session.get_many("archived", 1))
        session.commit()
    repository.reclamation.clean()
    handle = repository.handles.put(os.urandom(MB))
    repository.handles.delete(handle)
    now = workshop.clock.now_millis()

    told = {share.use: share for share in account(repository)}

    archive = now + repository.spec.archive.max_retention_period
    assert (told[SpaceUse.ARCHIVE].bytes, told[SpaceUse.ARCHIVE].until_millis) == (2 * MB, archive)
    retention = now + repository.spec.compaction.deleted_retention
    assert (told[SpaceUse.TOMBSTONE].bytes, told[SpaceUse.TOMBSTONE].until_millis) == (MB, retention)
    assert SpaceUse.THRESHOLD not in told


def test_what_windows_and_thresholds_keep_is_told_apart(workshop: Workshop) -> None:
    """Dead middles: due to nobody below minUsedPercentage, and waiting where a pause forbids every run."""
    repository = workshop.make(storage=containers(c1=1 << 30), compaction={"enabled": True, "min_used_percentage": 50})
    put_all(repository, "q", [os.urandom(MB // 2)] * 8)
    with repository.session() as session:
        session.remove_many(session.get_many("q", 6))
        session.commit()
    dead = use_of(account(repository), SpaceUse.THRESHOLD)
    assert dead >= 2 * MB

    paused = MaintenanceSettings(paused=True)
    repository.close()
    repository = workshop.open(storage=containers(c1=1 << 30), maintenance={"paused": paused.paused})
    (waiting,) = [share for share in account(repository) if share.use == SpaceUse.WINDOW]

    assert waiting.bytes >= dead // 2
    assert "paused" in waiting.reason
