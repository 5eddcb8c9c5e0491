"""Content that is damaged or missing keeps nobody from anything else, is named, and waits for a person's word."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, committing, content_sizes, drain, flip, put_all, put_each
from ullage.engine.engine import Engine
from ullage.engine.files import OsFile
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import FlowFileRecord
from ullage.errors import ContentCorrupt, ContentMissing, ContentWriteFailed, RepositoryDamaged
from ullage.wire.provenance import EventQuery

KB = 1 << 10
SMALL, LARGE = 100, 600 * KB


def spoil(workshop: Workshop, record: FlowFileRecord) -> None:
    """Turn a bit in the middle of a content over."""
    claim = claim_of(record)
    flip(workshop.content_file(claim.resource), claim.offset + claim.length // 2)


def cut(workshop: Workshop, record: FlowFileRecord) -> None:
    """End a file inside a content."""
    claim = claim_of(record)
    with workshop.content_file(claim.resource).open("r+b") as file:
        file.truncate(claim.offset + claim.length // 2)


def unlink(workshop: Workshop, record: FlowFileRecord) -> None:
    """Remove the file of a content."""
    workshop.content_file(claim_of(record).resource).unlink()


def contents(size: int, count: int = 5) -> list[bytes]:
    """Some that differ."""
    return [bytes([65 + number]) * size for number in range(count)]


def leave(workshop: Workshop, record: FlowFileRecord) -> None:
    """Nothing has happened to it."""


@pytest.mark.parametrize("damage", [leave, spoil, cut, unlink])
def test_a_start_after_a_kill_looks_at_no_content(
    workshop: Workshop, damage: Callable[[Workshop, FlowFileRecord], None]
) -> None:
    """However much was written since the last checkpoint, and whatever became of it: it is looked at afterwards."""
    repository = workshop.make(claims={"max_flow_files": 1})
    records = [put_all(repository, "q", [content])[0] for content in contents(SMALL * KB, 30)]
    written = {str(workshop.path / name) for name in content_sizes(workshop.path)}
    assert len(written) == 30
    for record in records[::2]:
        damage(workshop, record)
    workshop.kill()
    files = FailingFiles()

    repository = workshop.open(files)

    assert {path for _, path in files.calls} & written == set()
    repository.proof.run()
    assert {path for _, path in files.calls} >= written
    assert repository.availability.count == (0 if damage is leave else 15)
    workshop.expects_problems = damage is not leave


def named(repository: Engine) -> list[str]:
    """The FlowFiles that are known to be unavailable."""
    return sorted(each.record.id for each in repository.unavailable.listed(1_000))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("damage", [spoil, cut, unlink])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_damaged_content_stops_neither_the_start_nor_the_others(
    workshop: Workshop,
    damage: Callable[[Workshop, FlowFileRecord], None],
    size: int,
    swapped: bool,
    checkpointed: bool,
) -> None:
    """Flipped, cut or gone, before a checkpoint or after it, in memory or in a swap file."""
    workshop.expects_problems = True
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 1} if swapped else {})
    records = [put_all(repository, "q", [content], filename=f"{n}.bin")[0] for n, content in enumerate(contents(size))]
    bad = records[2]
    if checkpointed:
        repository.checkpoint()
    workshop.kill()
    damage(workshop, bad)
    lost = {record.id for record in records if claim_of(record).resource == claim_of(bad).resource}
    lost = {bad.id} if damage is spoil else lost if damage is unlink else lost - {r.id for r in records[:2]}

    repository = workshop.open()
    told: dict[str, str] = {}
    read: list[str] = []
    for _ in range(2 * len(records)):
        with repository.session() as session:
            record = session.get("q")
            if record is None:
                break
            try:
                session.read(record).read()
            except (ContentCorrupt, ContentMissing) as error:
                told[record.id] = str(error)
                session.rollback()
                continue
            read.append(record.id)
            session.remove(record)
            session.commit()

    assert read == [record.id for record in records if record.id not in lost]
    assert set(told) == lost or (damage is unlink and set(told) < lost)  # of a missing file the first tells of all
    names = {record.id: f"FlowFile {record.id} ('{n}.bin') of queue q: " for n, record in enumerate(records)}
    assert all(text.startswith(names[id]) for id, text in told.items())
    assert all(str(workshop.path) in text for text in told.values())
    repository.proof.run()
    assert set(named(repository)) == lost
    assert repository.queue("q").figures().flow_files == len(lost) == repository.queue("q").figures().unavailable
    for deep in (False, True):
        problems = repository.check(deep=deep).problems
        assert all(any(names[id].rstrip(": ") in problem for problem in problems) for id in lost)


def test_a_consumer_goes_on_past_it_without_a_proof(workshop: Workshop) -> None:
    """It meets the damage once: what it rolls back is not handed out again, and the next one comes."""
    workshop.expects_problems = True
    repository = workshop.make()
    first, *_ = put_all(repository, "q", contents(SMALL))
    spoil(workshop, first)
    with pytest.raises(ContentCorrupt, match=first.id), repository.session() as session:
        session.read(session.get_many("q", 1)[0]).read()

    assert drain(repository, "q") == contents(SMALL)[1:]
    assert named(repository) == [first.id]


def test_a_page_that_rotted_in_memory_is_no_damage(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read that fails proves nothing, if the disk says otherwise when it is asked again."""
    repository = workshop.make()
    put_all(repository, "q", contents(SMALL))
    read, lies = OsFile.read, [True]

    def lying(file: OsFile, count: int, offset: int) -> bytes:
        data = read(file, count, offset)
        return bytes(len(data)) if "/c1/" in file.path and lies and lies.pop() else data

    monkeypatch.setattr(OsFile, "read", lying)

    assert drain(repository, "q") == contents(SMALL)
    assert named(repository) == []


def test_what_is_mended_comes_back_to_its_place(workshop: Workshop) -> None:
    """The file is restored, somebody says retry, and the order is what it was; also over a restart in between."""
    workshop.expects_problems = True
    repository = workshop.make()
    records = put_all(repository, "q", contents(SMALL))
    workshop.kill()
    path = workshop.content_file(claim_of(records[0]).resource)
    whole = path.read_bytes()
    spoil(workshop, records[0])
    spoil(workshop, records[2])
    for expected in (records[1], records[3]):
        repository = workshop.open()
        repository.proof.run()
        with committing(repository) as session:
            (taken,) = session.get_many("q", 1)
            assert taken.id == expected.id
            session.transfer(taken, "q")
        workshop.shut()
    repository = workshop.open()
    repository.proof.run()
    with repository.session() as session:
        assert [record.id for record in session.get_many("q", 10)] == [records[n].id for n in (4, 1, 3)]
    assert repository.unavailable.retry() == 0

    path.write_bytes(whole)
    assert set(named(repository)) == {records[0].id, records[2].id}
    assert repository.unavailable.retry() == 2

    assert drain(repository, "q") == [contents(SMALL)[n] for n in (0, 2, 4, 1, 3)]
    assert named(repository) == []
    workshop.expects_problems = False


def test_time_stands_still_for_what_cannot_be_read(workshop: Workshop) -> None:
    """Neither a queue's expiration nor a handle's time takes it away; once it is mended, they do."""
    workshop.expects_problems = True
    repository = workshop.make()
    repository.queues.define("q", expiration_millis=1_000)
    records = put_all(repository, "q", contents(SMALL, 2))
    handle = repository.handles.put(b"h" * SMALL, ttl_millis=1_000)
    kept = {path: path.read_bytes() for path in workshop.path.glob("c1/*/*") if path.is_file()}
    bad = repository.handles.head(handle)
    spoil(workshop, records[0])
    spoil(workshop, bad)
    repository = workshop.crash()
    workshop.clock.advance(3_600)

    assert repository.queues.expire() == 1
    assert repository.handles.purge() == 0
    assert named(repository) == sorted([records[0].id, bad.id])
    for path, data in kept.items():
        path.write_bytes(data)
    repository.unavailable.retry()
    assert (repository.queues.expire(), repository.handles.purge()) == (1, 1)
    workshop.expects_problems = False


@pytest.mark.parametrize("swapped", [False, True])
def test_nothing_is_dropped_without_a_word(workshop: Workshop, swapped: bool) -> None:
    """Drop gives up what is unavailable, and nothing else, with an event that says why; out of swap files too."""
    workshop.expects_problems = True
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 4} if swapped else {})
    records = put_all(repository, "q", contents(SMALL))
    handle = repository.handles.put(b"h" * SMALL)
    spoil(workshop, records[1])
    spoil(workshop, repository.handles.head(handle))
    repository = workshop.crash()
    everything = [record.uuid for record in records] + [repository.handles.head(handle).uuid]

    assert repository.unavailable.drop(everything) == 2
    assert repository.unavailable.drop(everything) == 0

    assert drain(repository, "q") == [contents(SMALL)[n] for n in (0, 2, 3, 4)]
    told = repository.history.query(EventQuery(types=["DROP"], flow_file=records[1].id))
    assert [event.details for event in told.events] == ["its content could not be read, and its loss was accepted"]


def test_a_damaged_swap_file_hides_no_damaged_content(workshop: Workshop) -> None:
    """What it holds of the same content file nobody knows; the rest is listed, and can be dropped."""
    workshop.expects_problems = True
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    records = put_all(repository, "q", contents(SMALL, 8))
    spoil(workshop, records[0])
    repository = workshop.crash()
    names = [summary.name for summary in repository.queue("q").swap_summaries()]
    (workshop.path / "swap" / names[0]).write_bytes(b"damaged")
    assert len(names) > 1

    assert named(repository) == [records[0].id]


def test_a_handle_whose_time_is_over_is_passed_over_by_a_drop(workshop: Workshop) -> None:
    """The purge takes it; what is named beside it is dropped."""
    workshop.expects_problems = True
    repository = workshop.make()
    expired, other = (repository.handles.put(b"h" * SMALL, ttl_millis=ttl) for ttl in (1_000, 0))
    for handle in (expired, other):
        spoil(workshop, repository.handles.head(handle))
    uuids = [repository.handles.head(handle).uuid for handle in (expired, other)]
    repository = workshop.crash()
    workshop.clock.advance(2)

    assert repository.unavailable.drop(uuids) == 1


def test_reclamation_leaves_a_file_with_damage_as_it_is(workshop: Workshop) -> None:
    """Its live neighbours are not moved and its dead ones not punched: who mends it wants it as it was."""
    workshop.expects_problems = True
    repository = workshop.make(archive={"enabled": False})
    records = put_all(repository, "q", [bytes([n]) * 200 * KB for n in range(30)])
    with repository.session() as session:
        session.remove_many(session.get_many("q", 28))
        session.commit()
    spoil(workshop, records[29])
    with pytest.raises(ContentCorrupt), repository.session() as session:
        session.read(session.get_many("q", 2)[1]).read()
    MaintenanceRunner(repository).run_due()
    workshop.clock.advance(2)
    repository.proof.step()
    before = workshop.content_file(claim_of(records[29]).resource).read_bytes()

    plan = repository.compactor.plan(policy="CompactAll")
    assert repository.compactor.execute(plan).freed_bytes == 0
    repository = workshop.crash()
    assert repository.compactor.execute(repository.compactor.plan(policy="CompactAll")).freed_bytes == 0

    assert workshop.content_file(claim_of(records[29]).resource).read_bytes() == before
    assert named(repository) == [records[29].id]
    assert drain(repository, "q") == [bytes([28]) * 200 * KB]


def test_one_error_of_the_disk_proves_nothing(workshop: Workshop) -> None:
    """EIO fails the read of neighbours together, and that of the first; the next one succeeds: all can be read."""
    files = FailingFiles()
    repository = workshop.make(files)
    put_all(repository, "q", contents(SMALL))
    workshop.kill()
    repository = workshop.open(files)
    files.fail("read", "*/c1/*/*", times=2)

    repository.proof.run()
    assert named(repository) == []
    assert repository.proof.files_left == 0
    assert drain(repository, "q") == contents(SMALL)


def test_a_bad_sector_keeps_nobody_from_the_rest(workshop: Workshop, tmp_path: Path) -> None:
    """Consumers go on past it, check and backup name it, and a retry brings it back once the disk reads it."""
    files = FailingFiles()
    repository = workshop.make(files, claims={"max_flow_files": 1})
    (bad,) = put_all(repository, "q", [b"0" * SMALL * KB])
    put_all(repository, "q", contents(SMALL))
    path = workshop.content_file(claim_of(bad).resource)
    files.fail("read", str(path), times=1_000)
    with pytest.raises(ContentCorrupt, match=r"can't be read: Input/output error"), repository.session() as session:
        session.read(session.get_many("q", 1)[0]).read()

    assert drain(repository, "q") == contents(SMALL)
    assert named(repository) == [bad.id]
    assert any(bad.id in problem for problem in repository.check(deep=True).problems)
    assert [each.id for each in repository.backup(str(tmp_path / "backup")).lost] == [bad.id]
    files.heal()
    assert repository.unavailable.retry() == 1
    assert drain(repository, "q") == [b"0" * SMALL * KB]


def a_directory(path: Path) -> None:
    path.mkdir()


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


@pytest.mark.parametrize(
    "place", ["c1/ballast", "flowfile/ballast", "c1/7", "c1/0/9-9", "swap/1-2-3.swap", "provenance/events/9.parquet"]
)
@pytest.mark.parametrize("put", [a_directory, a_loop, a_pipe, a_link_to_nothing])
def test_whatever_lies_where_nothing_of_anybody_lies_stops_nothing(
    workshop: Workshop, put: Callable[[Path], None], place: str
) -> None:
    """A reserve, or a section that holds nothing: it is not removed, and all goes on without it."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_all(repository, "q", [b"before"])
    workshop.kill()
    at = workshop.path / place
    at.unlink(missing_ok=True)
    at.parent.mkdir(exist_ok=True)
    put(at)

    repository = workshop.open()
    put_each(repository, "q", [b"%d" % number for number in range(20)])
    repository.checkpoint()
    told = ("swap file 1-2-3.swap is in no queue",) if "swap" in place and put is a_directory else ()
    assert repository.check(deep=True).problems == told
    workshop.expects_problems = bool(told)
    repository.reclamation.clean()
    repository = workshop.crash()
    assert drain(repository, "q") == [b"before", *(b"%d" % number for number in range(20))]
    assert "events" in place or "swap" in place or at.is_symlink() or not at.is_file()


@pytest.mark.parametrize("put", [a_directory, a_loop, a_pipe, a_link_to_nothing, Path.touch, None])
def test_a_lost_swap_directory_takes_what_was_swapped_alone(
    workshop: Workshop, put: Callable[[Path], None] | None
) -> None:
    """What stood in memory is served; a directory that is gone is made anew by the next swap file."""
    workshop.expects_problems = True
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    put_each(repository, "q", contents(SMALL, 6))
    repository.checkpoint()
    workshop.kill()
    swap = workshop.path / "swap"
    lost = 2 * len(list(swap.iterdir()))
    assert lost
    shutil.rmtree(swap)
    if put is not None:
        put(swap)

    repository = workshop.open()
    assert repository.queue("q").figures().flow_files == 6
    assert len(drain(repository, "q")) == 6 - lost
    put_each(repository, "r", contents(SMALL, 6))
    repository.checkpoint()
    repository = workshop.crash()
    assert len(repository.flow_files.listed(repository.queue("r"), 0, 10)) == 6


@pytest.mark.parametrize("name", ["ullage.json", "flowfile/snapshot", "provenance/manifest"])
@pytest.mark.parametrize("put", [a_directory, a_loop, a_pipe])
def test_what_lies_in_the_place_of_what_a_start_needs_is_named(
    workshop: Workshop, put: Callable[[Path], None], name: str
) -> None:
    """The start is refused as for a damaged one, and does not wait."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    repository.checkpoint()
    workshop.close()
    (workshop.path / name).unlink()
    put(workshop.path / name)

    with pytest.raises(RepositoryDamaged, match=name):
        workshop.open()


@pytest.mark.parametrize("part", ["content", "section", "swap"])
@pytest.mark.parametrize("put", [a_directory, a_loop, a_pipe])
def test_whatever_lies_in_the_place_of_a_file_is_a_missing_file(
    workshop: Workshop, put: Callable[[Path], None], part: str, tmp_path: Path
) -> None:
    """No open waits for the other end of a pipe, no start and no run fails, and all that is not in it is there."""
    workshop.expects_problems = True
    repository = workshop.make(
        claims={"max_flow_files": 1},
        archive={"enabled": False},
        flow_file={"swap_threshold": 2, "swap_batch": 2},
    )
    first, *_ = put_all(repository, "q", contents(SMALL * KB, 4))
    handle = repository.handles.put(b"h" * SMALL * KB)
    repository.handles.delete(handle)
    repository.checkpoint()
    workshop.kill()
    file = workshop.content_file(claim_of(first).resource)
    place = {"content": file, "section": file.parent, "swap": next((workshop.path / "swap").iterdir())}[part]
    shutil.rmtree(place) if part == "section" else place.unlink()
    put(place)

    repository = workshop.open()
    repository.proof.run()
    for deep in (False, True):
        problems = repository.check(deep=deep).problems
        assert any(str(place if part == "swap" else file) in problem for problem in problems)
    repository.reclamation.clean()
    repository.compactor.execute(repository.compactor.plan(policy="CompactAll", empties_archive=True))
    report = repository.backup(str(tmp_path / "backup"))
    assert report.lost
    if part == "section" and put is not a_directory:  # of which the next file would be
        with pytest.raises(ContentWriteFailed):
            put_all(repository, "other", [b"other"])
    put_all(repository, "other", [b"other"])
    listed = repository.flow_files.listed(repository.queue("q"), 0, 100)
    assert len(listed) == 2 if part == "swap" else 4
    repository = workshop.crash()
    repository.proof.run()
    assert drain(repository, "other") == [b"other"]
    assert drain(repository, "q") == contents(SMALL * KB, 4)[:2] if part == "swap" else contents(SMALL * KB, 4)[1:]
