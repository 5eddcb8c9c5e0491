"""Answers to requests leave memory at a checkpoint; what damage may have taken is refused, and nothing done twice."""

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine.test_cold_handles import cool, put, require
from tests.support import ManualClock, Workshop, cut, flip, spec_at
from tests.threads import begin
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.ledger.remembered import KEPT_MILLIS, RememberedAnswers
from ullage.engine.model import Answer, RunFile
from ullage.engine.runs.rows import BlockDamaged
from ullage.engine.salvaging import salvage
from ullage.errors import AnswerUnknown

COUNT = 200


def keys(name: str, count: int = COUNT) -> list[bytes]:
    return [random.Random(f"{name} {number}").randbytes(32) for number in range(count)]


def answer(repository: Engine, *keys: bytes, said: bytes = b"done") -> None:
    """Each in a transaction of its own would take longer, and be the same."""
    now = repository.clock.now_millis()
    repository.committer.commit([Answer(key, b"put", said + key, now) for key in keys], creates=True)


def told(repository: Engine, key: bytes, said: bytes = b"done") -> str:
    """What a repeat of the request meets."""
    try:
        found = repository.idempotency.first(key, b"put")
    except AnswerUnknown as error:
        return "unknown" if ".run" in str(error) else str(error)
    assert found in (None, said + key)
    return "new" if found is None else "answered"


def all_told(repository: Engine, keys: Sequence[bytes]) -> set[str]:
    return {told(repository, key) for key in keys}


def run_files(workshop: Workshop) -> list[Path]:
    return sorted((workshop.path / "flowfile" / "runs" / "answers").iterdir())


def block_ends(answers: AnswerRuns, run: RunFile) -> list[int]:
    return [0, *memoryview(answers.files.run(run).head.ends).cast("Q")]


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
def test_answers_leave_memory_and_snapshot_with_a_checkpoint(workshop: Workshop, how: str) -> None:
    """They are found on disk, those of every checkpoint and those in memory, after each way to end."""
    repository = workshop.make()
    answer(repository, *keys("first"))
    repository.checkpoint()
    small = repository.log.snapshot_bytes
    answer(repository, *keys("second"))
    repository.checkpoint()
    assert repository.ledger.answers.all() == []
    assert repository.ledger.answers.bytes == 0
    answer(repository, *keys("third"))

    repository = workshop.restart(how)

    assert all_told(repository, [*keys("first"), *keys("second"), *keys("third")]) == {"answered"}
    assert all_told(repository, keys("nobody")) == {"new"}
    assert len(repository.ledger.answers) == 3 * COUNT
    assert workshop.repository.log.snapshot_bytes < small + 500
    assert [answer.key for answer in repository.spaces.answers.all()] == [
        *(key for name in ("first", "second") for key in sorted(keys(name))),
        *(keys("third") if how != "crash" else sorted(keys("third"))),
    ]


def test_a_run_goes_whole_an_hour_after_its_newest_answer(workshop: Workshop, repository: Engine) -> None:
    """From disk with the checkpoint that no longer lists it; its answers are good for their hour, each."""
    answer(repository, *keys("old", 2))
    workshop.clock.advance(KEPT_MILLIS / 2_000)
    answer(repository, *keys("young", 2))
    repository.checkpoint()
    answer(repository, *keys("later", 2))
    workshop.clock.advance(KEPT_MILLIS / 2_000)
    repository.checkpoint()
    assert all_told(repository, keys("old", 2)) == {"new"}
    assert all_told(repository, [*keys("young", 2), *keys("later", 2)]) == {"answered"}
    (first, second) = run_files(workshop)

    workshop.clock.advance(KEPT_MILLIS / 2_000)
    answer(repository, *keys("newest", 2))
    assert run_files(workshop) == [first, second]
    repository.checkpoint()

    assert first not in run_files(workshop)
    assert len(run_files(workshop)) == 1
    assert all_told(repository, keys("later", 2)) == {"new"}


def test_a_later_answer_of_a_key_counts(workshop: Workshop, repository: Engine) -> None:
    """Of a repeat after the hour, in a newer run than the first one."""
    (key,) = keys("one", 1)
    answer(repository, key, said=b"first")
    repository.checkpoint()
    workshop.clock.advance(KEPT_MILLIS / 1_000 - 1)
    answer(repository, key, said=b"second")
    repository.checkpoint()

    for how in ("none", "crash"):
        assert told(workshop.restart(how), key, b"second") == "answered"


def test_a_key_in_a_damaged_block_is_refused_and_all_others_are_served(workshop: Workshop) -> None:
    """Also one whose older answer stands in a run that is whole: a later one may have replaced it."""
    repository = workshop.make()
    answer(repository, *keys("a"))
    ids = put(repository, 0, 20)
    cool(repository)
    answer(repository, *keys("a")[:1], *keys("b"))
    ids |= put(repository, 20, 20)
    cool(repository)
    run = repository.ledger.answers.runs()[1]
    opened = repository.spaces.answers.files.run(run)
    places = {key: int.from_bytes(key[:8], "big") for key in keys("b")}
    damaged = opened.block_of((places[keys("b")[0]], int.from_bytes(keys("b")[0][8:16], "big")))
    assert damaged is not None
    lost = {each.key for row in opened.block(damaged) for each in repository.spaces.answers._answers(run, row.value, 0)}
    assert 5 < len(lost) < COUNT / 2
    offset = block_ends(repository.spaces.answers, run)[damaged] + 100
    workshop.close()
    flip(run_files(workshop)[1], offset)

    workshop.expects_problems = True
    repository = workshop.open()

    for key in (*keys("a"), *keys("b")):
        assert told(repository, key) == ("unknown" if key in lost else "answered"), key
    assert [told(repository, key) for key in keys("nobody")].count("unknown") < 10
    with pytest.raises(AnswerUnknown, match="nothing was done"), repository.idempotency.once(min(lost), b"put"):
        pytest.fail("a request whose answer may be lost was carried out")
    (problem,) = repository.check(deep=True).problems
    assert f"block {damaged} at offset" in problem
    (aside,) = repository.set_aside.listed(10)
    assert repository.set_aside.count == 1
    assert str(run_files(workshop)[1]) in aside.place

    assert repository.set_aside.drop([aside.id]) == 1
    assert repository.set_aside.listed(10) == []
    for how in ("none", "crash", "clean", "checkpoint"):
        repository = workshop.restart(how)
        assert repository.check(deep=True).problems == ()
        assert all_told(repository, [key for key in keys("b") if key not in lost]) == {"answered"}
        assert all_told(repository, sorted(lost & set(keys("b")))) == {"new"}
        require(repository, ids)  # in runs of the same numbers


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "older"])
def test_without_its_head_all_that_a_run_may_hold_is_refused(workshop: Workshop, how: str) -> None:
    """Start and check name it, other runs are served where it is not asked first, and giving it up ends it."""
    repository = workshop.make()
    answer(repository, *keys("a"))
    ids = put(repository, 0, 20)
    cool(repository)
    answer(repository, *keys("b"))
    repository.checkpoint()
    workshop.close()
    first, second = run_files(workshop)
    if how == "flipped":
        flip(first, first.stat().st_size - 30)
    elif how == "cut":
        cut(first, 1_000)
    elif how == "missing":
        first.unlink()
    else:
        first.write_bytes(second.read_bytes())

    workshop.expects_problems = True
    repository = workshop.open()

    assert all_told(repository, keys("b")) == {"answered"}
    assert all_told(repository, [*keys("a"), *keys("nobody")]) == {"unknown"}
    (problem,) = repository.check().problems
    assert str(first) in problem
    (aside,) = repository.set_aside.listed(10)
    assert repository.set_aside.drop([aside.id]) == 1
    workshop.expects_problems = False
    for how_to_end in ("none", "crash", "checkpoint"):
        repository = workshop.restart(how_to_end)
        assert all_told(repository, keys("b")) == {"answered"}
        assert all_told(repository, keys("a")) == {"new"}
        require(repository, ids)  # in a run of the same number
    assert run_files(workshop) == [second]


def test_damage_is_over_when_the_run_is(workshop: Workshop, repository: Engine) -> None:
    """After its hour nobody is refused, and nothing is left to be given up."""
    answer(repository, *keys("a"))
    repository.checkpoint()
    repository.spaces.answers.files.close()
    cut(run_files(workshop)[0], 50)
    assert all_told(repository, keys("a")) == {"unknown"}

    workshop.clock.advance(KEPT_MILLIS / 1_000)

    assert all_told(repository, keys("a")) == {"new"}
    repository.idempotency.forget()
    assert repository.set_aside.listed(10) == []


def test_a_disk_that_gives_the_block_again_ends_the_doubt(workshop: Workshop, repository: Engine) -> None:
    """A mended file is read again, without a restart."""
    answer(repository, *keys("a"))
    repository.checkpoint()
    (path,) = run_files(workshop)
    whole = path.read_bytes()
    flip(path, 100)
    assert "unknown" in all_told(repository, keys("a"))
    assert repository.set_aside.count == 1

    path.write_bytes(whole)

    assert all_told(repository, keys("a")) == {"answered"}
    assert repository.set_aside.count == 0


def test_a_run_that_no_snapshot_lists_is_removed_at_start(workshop: Workshop) -> None:
    """What a checkpoint that was cut short left behind; whatever else lies there is somebody's, and stays."""
    repository = workshop.make()
    answer(repository, *keys("a"))
    repository.checkpoint()
    workshop.close()
    (listed,) = run_files(workshop)
    (listed.parent / "00000000000000000009.run").write_bytes(b"leftover")
    (listed.parent / "9.run").write_bytes(b"not ours")
    (listed.parent / "00000000000000000008.run").mkdir()

    repository = workshop.open()

    assert [path.name for path in run_files(workshop)] == [listed.name, "00000000000000000008.run", "9.run"]
    assert all_told(repository, keys("a")) == {"answered"}
    answer(repository, *keys("b"))
    repository.checkpoint()
    assert (listed.parent / "00000000000000000009.run").stat().st_size > 1_000
    os.rmdir(listed.parent / "00000000000000000008.run")


def test_a_backup_carries_runs_and_a_restored_repository_answers(workshop: Workshop, tmp_path: Path) -> None:
    """A second backup copies those only that are new; another repository's run of the same number is no copy."""
    repository = workshop.make()
    answer(repository, *keys("a"))
    first = repository.backup(str(tmp_path / "b"))
    answer(repository, *keys("b"))
    repository.checkpoint()
    report = repository.backup(str(tmp_path / "b"))
    assert first.last_id < report.last_id
    assert len(list((tmp_path / "b" / "runs").iterdir())) == 2
    assert report.kept_files >= 1
    spec = spec_at(tmp_path / "copy")
    Engine.restore_backup(str(tmp_path / "b"), spec)

    with Engine.open(spec, clock=ManualClock()) as copy:
        assert copy.check(deep=True).problems == ()
        assert all_told(copy, [*keys("a"), *keys("b")]) == {"answered"}


def test_a_backup_keeps_the_runs_that_it_is_about_to_copy(workshop: Workshop, tmp_path: Path) -> None:
    """Also where their hour is over meanwhile, and a checkpoint lists them no more; the next one removes them."""
    repository = workshop.make()
    for name in "ab":
        answer(repository, *keys(name))
        repository.checkpoint()

    def forget(_: Tally) -> None:
        workshop.clock.advance(KEPT_MILLIS / 1_000)
        repository.checkpoint()

    report = repository.backup(str(tmp_path / "b"), forget)

    assert report.lost == ()
    assert len(list((tmp_path / "b" / "runs").iterdir())) == 2
    repository.checkpoint()
    assert run_files(workshop) == []


def test_a_backup_names_a_run_that_is_gone(workshop: Workshop, tmp_path: Path) -> None:
    """All else is in it; in the restored repository its answers are unknown for their hour."""
    repository = workshop.make()
    answer(repository, *keys("a"))
    repository.checkpoint()
    repository.spaces.answers.files.close()
    run_files(workshop)[0].unlink()
    workshop.expects_problems = True

    report = repository.backup(str(tmp_path / "b"))

    (lost,) = report.lost
    assert "answers to requests" in lost.reason
    spec = spec_at(tmp_path / "copy")
    Engine.restore_backup(str(tmp_path / "b"), spec)
    with Engine.open(spec, clock=ManualClock()) as copy:
        assert all_told(copy, keys("a")) == {"unknown"}


def test_a_salvage_takes_every_answer_that_proves_itself(workshop: Workshop, tmp_path: Path) -> None:
    """With a damaged block, a damaged head, and no snapshot that lists the runs."""
    repository = workshop.make()
    for name in "abc":
        answer(repository, *keys(name))
        repository.checkpoint()
    ends = block_ends(repository.spaces.answers, repository.ledger.answers.runs()[0])
    workshop.close()
    first, second, _ = run_files(workshop)
    flip(first, ends[1] + 20)
    flip(second, second.stat().st_size - 20)
    cut(workshop.path / "flowfile" / "snapshot", 60)
    spec = spec_at(tmp_path / "new")

    report = salvage(str(workshop.path), spec, clock=ManualClock())

    assert {each.path for each in report.damaged} >= {str(first), str(second)}
    with Engine.open(spec, clock=ManualClock()) as new:
        found = [told(new, key) for key in keys("a")]
        assert 0 < found.count("new") < COUNT / 2
        assert found.count("answered") == COUNT - found.count("new")
        assert all_told(new, [*keys("b"), *keys("c")]) == {"answered"}
    workshop.expects_problems = True


def test_memory_and_disk_of_answers_are_bounded() -> None:
    """The oldest go first, runs whole; a checkpoint is due before memory is full."""
    remembered = RememberedAnswers(bytes_max=10_000, run_bytes_max=1_000)
    for number in range(20):
        remembered.add(Answer(bytes([number]), b"", b"", 0), number + 1)
    assert remembered.is_large
    runs = [RunFile(number, "answers", 1, 400, 0, bytes(16), bytes(16), 0, number) for number in (1, 2, 3)]

    frozen, _ = remembered.freeze()
    assert [answer.key[0] for answer in frozen] == list(range(20))
    remembered.settle(runs[0], ())
    assert remembered.bytes == 0
    for run in runs[1:]:
        remembered.take_run(run)
    remembered.forget(1)

    assert remembered.runs() == (*runs[1:],)


def test_what_a_failed_checkpoint_froze_is_written_by_the_next(workshop: Workshop, repository: Engine) -> None:
    """With what came since, and each key's later answer."""
    answer(repository, *keys("a", 3))
    repository.ledger.answers.freeze()
    answer(repository, *keys("b", 3))
    assert all_told(repository, [*keys("a", 3), *keys("b", 3)]) == {"answered"}

    repository.checkpoint()

    assert repository.ledger.answers.bytes == 0
    assert all_told(workshop.crash(), [*keys("a", 3), *keys("b", 3)]) == {"answered"}
    assert not any(isinstance(block, BlockDamaged) for block in _blocks(workshop.repository))


def test_an_answer_is_found_at_each_moment_of_a_checkpoint(repository: Engine) -> None:
    """Whoever asks while it goes from memory to disk finds it in one of the two."""
    answer(repository, *keys("a"))
    is_over = threading.Event()

    def ask() -> set[str]:
        found: set[str] = set()
        while not is_over.is_set():
            found |= all_told(repository, keys("a", 20))
        return found

    asking = [begin(ask) for _ in range(2)]
    for number in range(20):
        answer(repository, *keys(f"more {number}", 30))
        repository.checkpoint()
    is_over.set()

    assert [each.result() for each in asking] == [{"answered"}] * 2
    assert len(repository.ledger.answers.runs()) == 20


def test_the_reserve_has_room_for_the_next_run(workshop: Workshop, repository: Engine) -> None:
    """Half as large again as the last one and the snapshot: on a full disk a checkpoint is what lets logs go."""
    repository.checkpoint()
    ballast = workshop.path / "flowfile" / "ballast"
    before = ballast.stat().st_size

    answer(repository, *keys("a", 5_000))
    repository.checkpoint()

    assert ballast.stat().st_size - before > run_files(workshop)[0].stat().st_size > 500_000


def _blocks(repository: Engine) -> list[object]:
    files = repository.spaces.answers.files
    return [block for run in repository.ledger.answers.runs() for block in files.blocks(run)]
