"""Handles that rest leave memory for runs at a checkpoint: whoever looks finds them, and whoever changes them may."""

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import Workshop, flip, spec_at
from tests.threads import in_thread
from ullage.engine.engine import Engine
from ullage.engine.ledger import handleruns
from ullage.engine.ledger.aside import named_by
from ullage.engine.ledger.coldhandles import ColdRun
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import Operation, parse_uuid
from ullage.engine.salvaging import salvage
from ullage.errors import HandleDeleted, HandleNotFound


def cold_of(repository: Engine) -> int:
    return repository.ledger.cold.count


def in_memory(repository: Engine) -> int:
    return len(repository.ledger.records)


def cool(repository: Engine) -> None:
    """Have all that rests leave memory, once."""
    repository.spaces.handles.rows_min = 1
    repository.ledger.records.pack(0)
    repository.checkpoint()


def merge(repository: Engine) -> None:
    """Merge until there is nothing to do, and count it."""
    while True:
        while repository.spaces.handles.merge_step():
            continue
        if repository.ledger.cold.merged is None:
            return
        repository.checkpoint()


def seal(repository: Engine) -> None:
    repository.content.retire_idle()
    repository.committer.commit(repository.content.take_seals(), creates=False)


def run_files(workshop: Workshop) -> list[Path]:
    folder = workshop.path / "flowfile" / "runs" / "handles"
    return sorted(folder.iterdir()) if folder.exists() else []


def put(repository: Engine, first: int, count: int = 300) -> dict[str, bytes]:
    """Handles by id, with what they hold, in files that are sealed."""
    contents = [b"%d" % number * 3 for number in range(first, first + count)]
    found = dict(zip(repository.handles.put_many(contents, {"a": "b"}), contents, strict=True))
    seal(repository)
    return found


def require(repository: Engine, ids: dict[str, bytes], *gone: str) -> None:
    """They are there, in every way of looking, and these are not."""
    for id, content in ids.items():
        with repository.handles.get(id) as stream:
            assert stream.read() == content
        assert repository.handles.head(id).size == len(content)
    for id in gone:
        with pytest.raises((HandleDeleted, HandleNotFound)):
            repository.handles.get(id)
    listed: list[str] = []
    while page := repository.handles.page(parse_uuid(listed[-1]) if listed else b"", 70):
        listed += [record.id for record in page]
    assert [id for id in listed if id not in gone] == sorted(ids)
    snapshot = repository.snapshot().flow_files
    assert {record.id for record in snapshot} - set(gone) == set(ids)
    assert [r for at in range(0, len(snapshot), 50) for r in snapshot[at : at + 50]] == list(snapshot)
    assert {record.id for record in repository.ledger.everything()} - set(gone) == set(ids)


@pytest.mark.parametrize("how", ["clean", "crash"])
def test_no_run_gets_the_number_of_one_that_was_read(workshop: Workshop, how: str) -> None:
    """What memory has of the first one's blocks says nothing of handles that lie in the second."""
    repository = workshop.make()
    old = put(repository, 0)
    cool(repository)
    repository = workshop.restart(how)
    require(repository, old)
    before = run_files(workshop)
    repository.handles.forget([parse_uuid(id) for id in old], "not needed")
    repository.checkpoint()
    assert run_files(workshop) == []

    new = put(repository, 1_000)
    cool(repository)

    assert cold_of(repository) == 300
    require(repository, new)
    assert set(before).isdisjoint(run_files(workshop))


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
def test_handles_that_rest_leave_memory(workshop: Workshop, how: str) -> None:
    """They are read, listed, deleted, undeleted, given an end, purged and forgotten, before and after a start."""
    repository = workshop.make(compaction={"deleted_retention": 10_000})
    ids = put(repository, 0)
    cool(repository)
    assert (cold_of(repository), in_memory(repository)) == (300, 0)
    require(repository, ids)
    repository = workshop.restart(how)
    assert (cold_of(repository), in_memory(repository)) == (300, 0)
    require(repository, ids)

    deleted, undeleted, dying, forgotten, *_ = chosen = sorted(ids)[:: len(ids) // 10]
    repository.handles.delete(deleted)
    repository.handles.delete(undeleted)
    repository.handles.undelete(undeleted)
    repository.handles.set_ttl(dying, 5_000)
    assert repository.handles.forget([parse_uuid(forgotten)], "not needed") == 1
    assert (cold_of(repository), in_memory(repository)) == (296, 3)
    del ids[deleted], ids[forgotten]
    require(repository, ids, deleted, forgotten)
    repository = workshop.restart(how)
    assert (cold_of(repository), in_memory(repository)) == (296, 3)
    require(repository, ids, deleted, forgotten)
    cool(repository)
    assert (cold_of(repository), in_memory(repository)) == (297, 2)
    workshop.clock.advance(12)
    assert repository.handles.purge() == 2
    del ids[dying]
    repository = workshop.restart(how)
    require(repository, ids, deleted, forgotten, dying)
    assert (cold_of(repository), in_memory(repository)) == (297, 0)
    assert chosen


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
def test_runs_of_handles_become_one(workshop: Workshop, how: str) -> None:
    """Those that left their runs before, during and after the merge are where they were."""
    repository = workshop.make(compaction={"deleted_retention": 10_000})
    ids: dict[str, bytes] = {}
    for number in range(6):
        ids |= put(repository, 1_000 * number)
        cool(repository)
    assert len(run_files(workshop)) == 6
    before, during, between, after = random.Random(1).sample(sorted(ids), 4)
    repository.handles.delete(before)
    assert repository.spaces.handles.merge_step(4_000)
    repository.handles.delete(during)
    while repository.spaces.handles.merge_step(4_000):
        continue
    repository.handles.delete(between)
    repository.handles.undelete(between)
    repository.checkpoint()
    repository.handles.delete(after)
    repository = workshop.restart(how)
    assert len(run_files(workshop)) == 1
    for id in (before, during, after):
        del ids[id]
    require(repository, ids, before, during, after)
    assert cold_of(repository) == 6 * 300 - 4


def test_what_changes_while_a_checkpoint_writes_it_stays_in_memory(workshop: Workshop) -> None:
    """And what did not leaves it."""
    repository = workshop.make()
    ids = put(repository, 0)
    deleted, undeleted, *_ = sorted(ids)
    written = repository.spaces.handles.written

    def changing(view: LedgerView) -> Iterator[Sequence[Operation]]:
        yield from written(view)
        repository.handles.delete(deleted)
        repository.handles.delete(undeleted)
        repository.handles.undelete(undeleted)
        repository.ledger.records.pack(0)

    repository.spaces.handles.written = changing  # type: ignore[method-assign]
    cool(repository)
    assert (cold_of(repository), in_memory(repository)) == (299, 1)
    del ids[deleted]
    require(repository, ids, deleted)
    repository = workshop.restart("crash")
    require(repository, ids, deleted)


def test_what_comes_back_while_a_checkpoint_writes_is_in_one_place(workshop: Workshop) -> None:
    """In its run, as it was at the checkpoint's moment, and not in the snapshot as well."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    changed = sorted(ids)[5]
    written = repository.spaces.handles.written

    def changing(view: LedgerView) -> Iterator[Sequence[Operation]]:
        repository.handles.delete(changed)
        repository.handles.undelete(changed)
        yield from written(view)

    repository.spaces.handles.written = changing  # type: ignore[method-assign]
    repository.checkpoint()
    repository = workshop.restart("crash")
    assert (cold_of(repository), in_memory(repository)) == (299, 1)
    require(repository, ids)


def test_a_run_that_empties_while_a_checkpoint_writes_counts_for_its_snapshot(workshop: Workshop) -> None:
    """Its last handle is nowhere else as of the snapshot's moment; it was lost with the next start."""
    repository = workshop.make()
    ids = put(repository, 0, 1)
    cool(repository)
    (last,) = ids
    written = repository.spaces.handles.written

    def changing(view: LedgerView) -> Iterator[Sequence[Operation]]:
        repository.handles.delete(last)
        yield from written(view)

    repository.spaces.handles.written = changing  # type: ignore[method-assign]
    repository.checkpoint()
    repository = workshop.restart("crash")
    assert repository.set_aside.count == 0
    repository.handles.undelete(last)
    require(repository, ids)


def test_no_merge_begins_while_handles_leave_memory(workshop: Workshop) -> None:
    """Those that come to be shown behind its reading were in no run any more."""
    repository = workshop.make()
    ids = put(repository, 0, 100)
    repository.ledger.records.pack(0)
    ids |= put(repository, 100, 500)
    handles = repository.spaces.handles
    let_go = handles._let_go
    steps: list[bool] = []

    def merging(run: ColdRun, moved: Any) -> None:
        let_go(run, moved)
        steps.append(handles.merge_step())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(handles, "_let_go", merging)
        cool(repository)
    assert len(steps) > 1
    assert not any(steps)
    merge(repository)
    require(repository, ids)


def test_what_somebody_is_about_to_change_stays_in_memory(workshop: Workshop) -> None:
    """Or its transaction would not find it."""
    repository = workshop.make()
    ids = [parse_uuid(id) for id in sorted(put(repository, 0))]
    with repository.ledger.staying(ids[3:4]):
        cool(repository)
        assert (cold_of(repository), in_memory(repository)) == (299, 1)
        cool(repository)
        assert (cold_of(repository), in_memory(repository)) == (299, 1)
    cool(repository)
    assert (cold_of(repository), in_memory(repository)) == (300, 0)
    with repository.ledger.staying(ids[3:5]):
        assert in_memory(repository) == 2


def test_what_is_written_to_or_ends_stays_in_memory(workshop: Workshop) -> None:
    """A backup asks the one how far its file reaches; the other is looked for when its time comes."""
    repository = workshop.make()
    repository.handles.put(b"in an open file")
    cool(repository)
    assert cold_of(repository) == 0
    repository.handles.put(b"ends", ttl_millis=100_000)
    seal(repository)
    cool(repository)
    assert (cold_of(repository), in_memory(repository)) == (1, 1)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_ends_and_is_in_a_run_ends_all_the_same(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """Nobody writes such a run: a start takes the handle back into memory, where it is looked for."""
    repository = workshop.make(compaction={"deleted_retention": 60_000})
    ids = put(repository, 0, 20)
    ending = min(ids)
    if is_deleted:
        repository.handles.delete(ending)
    else:
        repository.handles.set_ttl(ending, 60_000)
    monkeypatch.setattr(handleruns, "_resting", lambda rows, _: [True] * len(rows.uuids))
    cool(repository)
    assert cold_of(repository) == 20
    for how in ("clean", "crash"):
        repository = workshop.restart(how)
        assert (cold_of(repository), in_memory(repository)) == (19, 1)
    workshop.clock.advance(200)
    repository.handles.purge()
    workshop.clock.advance(200)
    repository.handles.purge()
    assert in_memory(repository) == 0
    with pytest.raises((HandleDeleted, HandleNotFound)):
        repository.handles.get(ending)


def test_readers_and_writers_go_on_beside_checkpoints_and_merges(workshop: Workshop) -> None:
    """Nobody misses a handle that is there."""
    repository = workshop.make()
    ids = put(repository, 0, 600)
    stop = threading.Event()
    known = sorted(ids)

    def look(seed: int) -> None:
        choose = random.Random(seed)
        while not stop.is_set():
            id = choose.choice(known)
            assert repository.handles.head(id).size == len(ids[id])
            if choose.random() < 0.2 and int(id[:2], 16) % 2 == seed:
                repository.handles.delete(id)
                repository.handles.undelete(id)

    with in_thread(lambda: look(0), lambda: look(1)):
        for number in range(12):
            put(repository, 10_000 * (number + 1), 50)
            cool(repository)
            repository.spaces.handles.merge_step()
        stop.set()
    assert cold_of(repository) + in_memory(repository) == 600 + 12 * 50


def test_a_backup_has_the_runs_of_handles(workshop: Workshop, tmp_path: Path) -> None:
    """And what left them since; another run of a number is another file."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    gone = sorted(ids)[7]
    repository.handles.forget([parse_uuid(gone)], "not needed")
    del ids[gone]
    repository.backup(str(tmp_path / "backup"))
    Engine.restore_backup(str(tmp_path / "backup"), spec_at(tmp_path / "again"))
    with Engine.open(spec_at(tmp_path / "again"), clock=workshop.clock) as again:
        assert again.ledger.cold.count == 299
        require(again, ids, gone)
        assert again.check(deep=True).problems == ()


@pytest.mark.parametrize("lost", ["nothing", "block", "head", "list"])
def test_a_salvage_brings_handles_of_runs_back(workshop: Workshop, tmp_path: Path, lost: str) -> None:
    """As far as their blocks prove themselves; what may have been deleted is held."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    cool(repository)
    gone = sorted(ids)[-7]
    repository.handles.forget([parse_uuid(gone)], "not needed")
    del ids[gone]
    repository.checkpoint()
    workshop.close()
    workshop.expects_problems = True
    path = run_files(workshop)[0]
    if lost == "block":
        flip(path, 40)
    elif lost == "head":
        flip(path, 40)
        path.write_bytes(path.read_bytes()[:-7])
    elif lost == "list":
        snapshot = workshop.path / "flowfile" / "snapshot"
        data = snapshot.read_bytes()
        flip(snapshot, data.index(b"handles"))
    report = salvage(str(workshop.path), spec_at(tmp_path / "again"), clock=workshop.clock)
    with Engine.open(spec_at(tmp_path / "again"), clock=workshop.clock) as again:
        there = {record.id for record in again.handles.page(b"", 1_000)}
        assert again.check(deep=True).problems == ()
    if lost == "nothing":
        assert there == set(ids)
    elif lost == "block":
        assert set(ids) > there > set()
    else:
        assert there == set()
        assert report.held > 100


def test_nothing_is_given_up_of_a_run_that_no_snapshot_lists(workshop: Workshop) -> None:
    """A start would set such a record aside."""
    repository = workshop.make()
    put(repository, 0)
    cool(repository)
    (run,) = repository.ledger.runs_of("handles")
    with pytest.raises(LookupError, match="no snapshot"):
        repository.ledger.apply(1, 1, [msgspec.structs.replace(run, number=9, rows=0)])


def test_a_record_of_a_run_that_cannot_be_used_may_mean_all(workshop: Workshop) -> None:
    """Nobody knows what its handles keep alive."""
    repository = workshop.make()
    put(repository, 0)
    cool(repository)
    (run,) = repository.ledger.runs_of("handles")
    for space, is_all in (("handles", True), ("blocks", False), ("answers", False)):
        assert named_by(msgspec.msgpack.encode(msgspec.structs.replace(run, space=space))).is_all is is_all
