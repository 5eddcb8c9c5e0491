"""Checkpoints at the same time, and what else ends or moves while they run."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, drain, put_all
from tests.threads import begin
from ullage.engine.engine import Engine
from ullage.errors import NotRestored, UllageError

A_MOMENT = 0.2
"""How long something that must not end is watched."""


class MeetingFiles(FailingFiles):
    """Two threads that look for the ballast at a time meet there, before either acts on what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        if path.endswith("flowfile/ballast") and not found and threading.current_thread().name.startswith("meets"):
            with suppress(threading.BrokenBarrierError):  # the other one is kept out, as it should be
                self.meeting.wait(1)
        return found


def at_once(*works: Callable[[], object]) -> list[Exception]:
    """Run each in a thread; what they raised."""
    failures: list[Exception] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except (UllageError, OSError, LookupError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), name=f"meets-{number}") for number, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_two_checkpoints_that_both_find_no_ballast(workshop: Workshop) -> None:
    """Both end well: one makes it, the other finds it."""
    files = MeetingFiles()
    repository = workshop.make(files=files)
    put_all(repository, "q", [b"content"])
    Path(workshop.path, "flowfile", "ballast").unlink()

    assert at_once(repository.checkpoint, repository.checkpoint) == []


def test_checkpoints_drains_backups_and_swapping_at_once(workshop: Workshop, tmp_path: Path) -> None:
    """None of them trips over what another has removed, and nothing is lost."""
    repository = workshop.make(flow_file={"swap_threshold": 6, "swap_batch": 3})
    put_all(repository, "kept", [b"kept"] * 5)

    def work() -> None:
        for _ in range(5):
            put_all(repository, "q", [b"x"] * 40)
            drain(repository, "q", 40)

    def repeat(what: Callable[[Engine], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(8):
                what(repository)

        return run

    assert (
        at_once(
            work,
            repeat(lambda each: each.checkpoint()),
            repeat(lambda each: each.checkpoint()),
            repeat(lambda each: each.provenance.drain()),
            repeat(lambda each: each.backup(str(tmp_path / "backup"))),
        )
        == []
    )

    assert drain(workshop.reopen(), "kept") == [b"kept"] * 5


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("rename", "*/provenance/manifest"),
        ("sync", "*/flowfile/snapshot.partial"),
        ("rename", "*/flowfile/snapshot"),
        ("unlink", "*.wal"),
        ("unlink", "*.swap"),
    ],
)
def test_a_close_waits_for_the_checkpoint_that_is_under_way(workshop: Workshop, kind: str, path: str) -> None:
    """Wherever it is. Else it would write on when another process has the repository open already."""
    files = FailingFiles()
    repository = workshop.make(files=files, flow_file={"swap_threshold": 4, "swap_batch": 2})
    put_all(repository, "q", [b"x"] * 12)
    assert len(drain(repository, "q", 12)) == 12  # of which some were swapped in
    put_all(repository, "kept", [b"kept"] * 3)
    assert repository.check(deep=True).problems == ()
    workshop.expects_problems = True
    gate = files.hold(kind, path)
    checkpoint = begin(repository.checkpoint)
    gate.wait_until_reached()

    closing = begin(workshop.shut)
    with pytest.raises(TimeoutError):
        closing.result(A_MOMENT)
    gate.open()
    checkpoint.result(60)
    closing.result(60)
    calls = len(files.calls)

    with pytest.raises(NotRestored):
        repository.checkpoint()
    repository.provenance.try_drain()
    assert len(files.calls) == calls
    again = workshop.open()
    assert again.check(deep=True).problems == ()
    assert drain(again, "kept") == [b"kept"] * 3


def test_a_close_waits_for_a_rollover(workshop: Workshop) -> None:
    """Its manifest would replace that of the next process."""
    files = FailingFiles()
    repository = workshop.make(files=files)
    put_all(repository, "kept", [b"kept"] * 3)
    gate = files.hold("rename", "*/provenance/manifest")
    draining = begin(repository.provenance.drain)
    gate.wait_until_reached()

    closing = begin(workshop.shut)
    with pytest.raises(TimeoutError):
        closing.result(A_MOMENT)
    gate.open()

    assert draining.result(60) > 0
    closing.result(60)
    assert drain(workshop.open(), "kept") == [b"kept"] * 3


def test_no_checkpoint_is_made_while_the_log_is_being_restored(workshop: Workshop) -> None:
    """It is refused at once: what is half read must not become the snapshot."""
    put_all(workshop.make(), "kept", [b"kept"] * 3)
    workshop.kill()
    files = FailingFiles()
    gate = files.hold("open", "*.wal")
    opened: list[Engine] = []
    made = Engine._restore

    def restoring(self: Engine) -> None:
        opened.append(self)
        made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_restore", restoring)
        opening = begin(lambda: workshop.open(files))
        gate.wait_until_reached()
        with pytest.raises(NotRestored):
            opened[0].checkpoint()
        gate.open()
        repository = opening.result(60)

    assert repository.check(deep=True).problems == ()
    assert drain(repository, "kept") == [b"kept"] * 3
