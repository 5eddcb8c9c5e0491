"""Rewriting: bytes move, addresses stay, whatever happens in between."""

import errno
import os
import random
from typing import Any

import pytest

from tests.failing_files import FailingFiles
from tests.faults.detached import Detached
from tests.support import TWO, RoomyFiles, Workshop, claim_of, committing, content_sizes, drain, flip, put_all
from tests.threads import begin
from ullage.contract import Quantity
from ullage.engine.engine import Engine
from ullage.engine.files import File
from ullage.engine.model import Action, ContentClaim
from ullage.engine.reclaim.execute import UNKNOWN
from ullage.errors import ContentReclaimed

KB = 1024
MB = 1 << 20
CLAIMS = {"max_appendable_size": Quantity(MB), "max_flow_files": 50}
PLAIN: dict[str, Any] = {"claims": CLAIMS, "archive": {"enabled": False}}


def fill(repository: Engine, files: int = 6) -> list[bytes]:
    """Files of fifty claims each, of which every third lives, in queue `keep`; its contents."""
    chooser = random.Random(1)
    kept: list[bytes] = []
    for _ in range(files):
        with committing(repository) as session:
            for number in range(50):
                data = chooser.randbytes(chooser.randint(1, 9000))
                kept += [] if number % 3 else [data]
                session.ingest("drop" if number % 3 else "keep", [data])
    repository.queues.drop(repository.queue("drop"))
    return kept


def compact(repository: Engine, policy: str = "CompactAll") -> int:
    """One run without a limit; what it freed."""
    plan = repository.compactor.plan(policy=policy)
    return repository.compactor.execute(plan, bytes_per_second=0).freed_bytes


def in_queue(repository: Engine, queue: str) -> list[bytes]:
    """Contents of a queue's resident and swapped FlowFiles, by the reader, without polling."""
    number = repository.queue(queue).number
    records = [record for record in repository.ledger.flow_files() if record.queue == number]
    return sorted(repository.reader.read(r.claim, r.start, r.size) for r in records if r.claim is not None)


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**PLAIN)


@pytest.mark.parametrize("restart", ["none", "clean", "crash", "checkpoint"])
def test_survivors_keep_their_addresses_and_the_dead_come_back(workshop: Workshop, restart: str) -> None:
    """After a rewrite disk / live is near one, every FlowFile reads back, and its record is what it was."""
    repository = workshop.make(**PLAIN)
    kept = fill(repository)
    before = {record.uuid: record for record in repository.ledger.flow_files()}

    freed = compact(repository)
    figures = repository.reclamation.survey().containers[0]
    repository = workshop.restart(restart)

    after = {record.uuid: record for record in repository.ledger.flow_files()}
    assert freed > 0
    assert figures.disk_bytes <= 1.05 * figures.live_bytes
    assert sum(content_sizes(workshop.path).values()) == figures.live_bytes == sum(map(len, kept))
    assert after == before
    assert in_queue(repository, "keep") == sorted(kept)


def test_what_was_rewritten_twice_is_one_hop_away(workshop: Workshop, repository: Engine) -> None:
    """Maps of maps are composed: an output that is rewritten vanishes, and its sources point at the new one."""
    kept = fill(repository)
    compact(repository)
    with committing(repository) as session:
        held = session.get_many("keep", 10_000)
        session.remove_many(held[::2])
        session.transfer_many(held[1::2], "keep")

    compact(repository)
    outputs = {entry.relocation.output for entry in repository.ledger.entries() if entry.relocation is not None}
    files = content_sizes(workshop.path)

    assert len(outputs) == len(files) == 1
    assert in_queue(workshop.crash(), "keep") == sorted(kept[1::2])


def test_everything_vanishes_with_the_last_claimant(workshop: Workshop, repository: Engine) -> None:
    """The output, and the records of the resource claims that were moved to it, go when nobody needs them."""
    fill(repository)
    compact(repository)
    drain(repository, "keep")

    repository.reclamation.clean()

    assert content_sizes(workshop.path) == {}
    assert list(repository.ledger.entries()) == []


def test_an_output_goes_to_the_archive_with_the_addresses_it_serves(workshop: Workshop) -> None:
    """What died after a rewrite is replayed from the archive by its birth address until the retention is over."""
    repository = workshop.make(claims=CLAIMS)
    kept = fill(repository)
    compact(repository)
    claims = [record.claim for record in repository.ledger.flow_files() if record.claim is not None]
    drain(repository, "keep")
    repository.reclamation.clean()
    repository = workshop.crash()

    replayed = sorted(repository.reader.read(claim, 0, claim.length) for claim in claims)
    workshop.clock.advance(13 * 3600)
    repository.reclamation.clean()

    assert replayed == sorted(kept)
    assert not any(entry.relocation for entry in repository.ledger.entries())
    with pytest.raises(ContentReclaimed):
        repository.reader.read(claims[0], 0, claims[0].length)


def test_an_address_that_died_before_the_rewrite_says_so(repository: Engine) -> None:
    """An address in no run is reclaimed, by a transaction that is named, and not corrupt."""
    (dead,) = put_all(repository, "drop", [b"dead"])
    fill(repository, files=1)
    compact(repository)

    with pytest.raises(ContentReclaimed) as caught:
        repository.reader.read(claim_of(dead), 0, 1)
    relocated = next(entry.relocation for entry in repository.ledger.entries() if entry.relocation)
    assert caught.value.transaction == relocated.transaction > 0


def test_swapped_flow_files_and_slices_are_found_after_a_rewrite(workshop: Workshop) -> None:
    """Swap files hold birth addresses: they are read for the rewrite, and read by it afterwards."""
    repository = workshop.make(**PLAIN, flow_file={"swap_threshold": 10, "swap_batch": 5})
    kept = fill(repository)
    compact(repository)
    swapped = repository.queue("keep").figures().swapped
    repository = workshop.crash()

    found: list[bytes] = []
    while drained := drain(repository, "keep"):
        found.extend(drained)

    assert swapped > 0
    assert found == kept


def test_a_large_claim_moves_to_an_aligned_place(workshop: Workshop, repository: Engine) -> None:
    """Claims of several blocks are copied in pieces and verified; punching them later frees all of them."""
    large = random.Random(3).randbytes(3 * MB + 17)
    with committing(repository) as session:
        session.ingest("drop", [b"d" * 900 * KB])
        session.ingest("keep", [b"k" * 100])
        session.ingest("keep", [large])
    repository.queues.drop(repository.queue("drop"))
    compact(repository)

    assert sum(entry.relocation is not None for entry in repository.ledger.entries()) == 1
    repository = workshop.crash()
    assert repository.check(deep=True).problems == ()
    assert drain(repository, "keep") == [b"k" * 100, large]


def test_a_reader_in_the_middle_reads_on(workshop: Workshop, repository: Engine) -> None:
    """A stream that was opened before a rewrite, and a second one of its output, ends with the right bytes."""
    data = random.Random(4).randbytes(2 * MB)
    put_all(repository, "drop", [b"d" * 200 * KB])
    handle = repository.handles.put(data)
    repository.queues.drop(repository.queue("drop"))
    stream = repository.handles.get(handle)
    first = stream.read(100 * KB)
    workshop.forget(handle)

    compact(repository)
    second = stream.read(900 * KB)
    rest = stream.read()
    stream.close()

    assert first + second + rest == data


def test_a_source_that_does_not_read_back_stays_as_it_is(workshop: Workshop, repository: Engine) -> None:
    """One rotten byte in what lives keeps its file out of the rewrite; the others go on, and the report says so."""
    fill(repository, files=3)
    claim = claim_of(next(repository.ledger.flow_files()))
    path = workshop.content_file(claim.resource)
    flip(path, claim.offset)
    rotten = path.read_bytes()

    report = repository.compactor.execute(repository.compactor.plan(policy="CompactAll"))

    assert report.done == {Action.REWRITE: 2}
    assert [left.resource for left in report.left] == [claim.resource]
    assert "checksum" in report.problems[0]
    assert path.read_bytes() == rotten
    flip(path, claim.offset)


def test_an_output_that_finds_no_room_leaves_its_sources(workshop: Workshop, files: FailingFiles) -> None:
    """Also where the disk fills up in the middle of the copy; once there is room it is copied."""
    repository = workshop.make(**PLAIN)
    kept = fill(repository)
    plan = repository.compactor.plan(policy="CompactAll")
    files.fail("write*", "*/c1/*", error=errno.ENOSPC)

    report = repository.compactor.execute(plan, bytes_per_second=0)

    assert any("no room" in left.reason for left in report.left)
    assert compact(repository) > 0
    assert in_queue(repository, "keep") == sorted(kept)


def test_a_source_that_a_damaged_swap_file_may_point_into_is_left(workshop: Workshop) -> None:
    """A plan was made while the swap file could be read; the report says why nothing is done."""
    repository = workshop.make(**PLAIN, flow_file={"swap_threshold": 10, "swap_batch": 5})
    fill(repository, 2)
    plan = repository.compactor.plan(policy="CompactAll")
    repository = workshop.reopen()
    swap_files = sorted((workshop.path / "swap").iterdir())
    kept = [path.read_bytes() for path in swap_files]
    for path in swap_files:
        path.write_bytes(b"damaged")

    report = repository.compactor.execute(plan, bytes_per_second=0)

    assert {left.reason for left in report.left} == {UNKNOWN}
    for path, data in zip(swap_files, kept, strict=True):
        path.write_bytes(data)


def test_a_swap_file_that_comes_back_under_a_plan_is_no_damage(workshop: Workshop, files: FailingFiles) -> None:
    """Its file went while it was looked for: what it held is in memory now."""
    repository = workshop.make(**PLAIN, flow_file={"swap_threshold": 10, "swap_batch": 5})
    kept = fill(repository, 2)
    workshop.shut()
    repository = workshop.open(files)
    plan = repository.compactor.plan(policy="CompactAll")
    gate = files.hold("open", "*.swap")

    running = begin(lambda: repository.compactor.execute(plan, bytes_per_second=0))
    gate.wait_until_reached()
    with repository.session() as session:
        while session.get_many("keep", 10):
            pass
        repository.checkpoint()
    gate.open()

    assert running.result(60).problems == []
    assert sorted(drain(repository, "keep")) == sorted(kept)


def test_a_volume_that_vanishes_before_the_run_stops_no_other_volume(workshop: Workshop) -> None:
    """Nobody has looked yet, so its disk does not answer: its sources are left, and all others are rewritten."""
    repository = workshop.make(storage=TWO, **PLAIN)
    fill(repository, 8)
    plan = repository.compactor.plan(policy="CompactAll")
    volume = Detached(workshop.path)
    volume.take_away(leaves_mount_point=False)

    report = repository.compactor.execute(plan, bytes_per_second=0)

    assert report.done[Action.REWRITE] > 0
    assert any("c2" in left.reason for left in report.left)
    volume.bring_back()
    repository.volumes.look()


class Vanishing(RoomyFiles):
    """Once armed, c1's directory goes away like a volume that is unplugged: when an output is begun there ("create"),
    or when its name is synced ("sync_directory").
    """

    armed = ""

    def create(self, path: str) -> File:
        created = super().create(path)
        self._vanish("create", path)
        return created

    def sync_directory(self, path: str) -> None:
        self._vanish("sync_directory", path)
        super().sync_directory(path)

    def _vanish(self, call: str, path: str) -> None:
        if self.armed == call and "/c1/" in path:
            self.armed = ""
            place = path[: path.index("/c1/") + 3]
            os.rename(place, place + ".away")


@pytest.mark.parametrize("call", ["create", "sync_directory"])
def test_an_output_whose_volume_vanishes_stops_no_other_volume(workshop: Workshop, call: str) -> None:
    """Its sources are left, with the reason; all others are rewritten, and nothing that vanished counts as freed."""
    files = Vanishing()
    repository = workshop.make(files, storage=TWO, **PLAIN)
    kept = fill(repository, 8)
    used = {claim.container: 0 for claim in (entry.claim for entry in repository.ledger.entries())}
    assert set(used) == {"c1", "c2"}
    plan = repository.compactor.plan(policy="CompactAll")
    files.armed = call

    report = repository.compactor.execute(plan, bytes_per_second=0)

    assert not files.armed, "no output was begun in c1"
    assert report.done[Action.REWRITE] > 0
    assert any("c1" in step.reason for step in report.left)
    (workshop.path / "c1.away").rename(workshop.path / "c1")
    repository.volumes.look()
    assert in_queue(repository, "keep") == sorted(kept)
    assert compact(repository) > 0
    assert in_queue(workshop.crash(), "keep") == sorted(kept)


def test_a_plan_of_an_older_generation_is_skipped(repository: Engine) -> None:
    """A plan chooses, it never authorises: run twice it does nothing the second time."""
    fill(repository)
    plan = repository.compactor.plan(policy="CompactAll")

    first = repository.compactor.execute(plan)
    second = repository.compactor.execute(plan)

    assert first.done == {Action.REWRITE: len(plan.steps)}
    assert (second.done, second.skipped, second.copied_bytes) == ({}, len(plan.steps), 0)


def test_addresses_never_collide_with_what_never_was(repository: Engine) -> None:
    """Only an index that was given out can have been reclaimed."""
    with pytest.raises(Exception, match="never was"):
        repository.reader.read(ContentClaim(10**9, 0, 5, 0), 0, 5)
