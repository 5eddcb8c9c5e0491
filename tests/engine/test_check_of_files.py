"""A deep check reads, of an open repository, every file that its next start will read, though memory has what is in it.

Else damage there is found when it is too late: by the start that stops at it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from tests.fuzz.corpus import header_of, with_header
from tests.support import Workshop, event_store, put_all
from ullage.engine.files import OsFile
from ullage.errors import RepositoryDamaged


@pytest.fixture
def busy(workshop: Workshop) -> Workshop:
    """A repository with a snapshot, two partitions' logs, a manifest, events, swap files, and a retired one."""
    repository = workshop.make(
        flow_file={"swap_threshold": 4, "swap_batch": 2, "partitions": 2}, provenance={"rollover_events": 4}
    )
    put_all(repository, "q", [b"x" * 100] * 3)
    put_all(repository, "swapped", [b"y" * 100] * 8)
    repository.checkpoint()
    for _ in range(4):  # several frames in each partition
        put_all(repository, "q", [b"z" * 100] * 2)
    with repository.session() as session:
        while session.get("swapped"):  # swaps in again
            pass
        session.rollback()
    assert repository.ledger.swaps or repository.ledger.retired_swaps
    assert repository.check(deep=True).problems == ()
    workshop.expects_problems = True
    return workshop


def flipped(path: Path, offset: int) -> Callable[[], None]:
    """Flip one bit of a file; what is returned flips it back."""

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << offset % 8]))

    flip()
    return flip


def files_of(workshop: Workshop) -> Iterator[tuple[Path, int]]:
    """Every file that a start reads but content, and how many bytes of it count."""
    repository, path = workshop.repository, workshop.path
    yield path / "ullage.json", (path / "ullage.json").stat().st_size
    for found in [path / "flowfile" / "snapshot", *(path / "flowfile").glob("partition-*/*.wal")]:
        yield found, len(found.read_bytes().rstrip(b"\0"))
    yield path / "provenance" / "manifest", (path / "provenance" / "manifest").stat().st_size
    for event_file in event_store(repository).manifest.files:
        yield path / event_file.directory / event_file.name, event_file.bytes
    for name in [*repository.ledger.swaps, *repository.ledger.retired_swaps]:
        yield path / "swap" / name, (path / "swap" / name).stat().st_size


def test_a_flipped_bit_of_any_file_is_named(busy: Workshop) -> None:
    """Whatever bit it is, by the file's path; and nothing is wrong again when it is flipped back."""
    random = Random(seed := 20)
    print(f"seed {seed}")
    kinds = set()
    for path, length in files_of(busy):
        kinds.add(path.suffix or path.name)
        for offset in {0, length - 1, *(random.randrange(length) for _ in range(4))}:
            flip_back = flipped(path, offset)
            problems = busy.repository.check(deep=True).problems
            flip_back()
            assert any(str(path) in problem for problem in problems), (path, offset, problems)
    assert kinds == {".json", "snapshot", ".wal", "manifest", ".parquet", ".swap"}
    assert busy.repository.check(deep=True).problems == ()


def test_damage_of_the_log_is_named_with_its_offset_and_mended_by_a_checkpoint(busy: Workshop) -> None:
    """Memory has what the log lost. Without the checkpoint the next start would stop."""
    (path, *_) = sorted((busy.path / "flowfile").glob("partition-*/*.wal"))
    first = path.read_bytes().index(b"ULLt")
    flipped(path, first + 60)

    (problem,) = busy.repository.check(deep=True).problems
    assert problem.startswith(f"{path}: the frame at offset {first} is damaged")
    assert "ullage checkpoint" in problem

    busy.repository.checkpoint()
    assert busy.repository.check(deep=True).problems == ()
    busy.kill()
    assert busy.open().check(deep=True).problems == ()


def test_damage_of_snapshot_and_manifest_is_mended_by_a_checkpoint(busy: Workshop) -> None:
    """Both are written anew from memory, the manifest though no event waits for a rollover."""
    busy.repository.checkpoint()
    for name in ("flowfile/snapshot", "provenance/manifest"):
        flipped(busy.path / name, 70)
    problems = busy.repository.check(deep=True).problems
    assert len(problems) == 2
    assert all("ullage checkpoint" in problem for problem in problems)

    busy.repository.checkpoint()
    assert busy.repository.check(deep=True).problems == ()
    busy.kill()
    assert busy.open().check(deep=True).problems == ()


def test_a_start_stops_at_what_the_check_has_named(busy: Workshop) -> None:
    """The same damage, not mended."""
    flipped(busy.path / "flowfile" / "snapshot", 70)
    assert busy.repository.check(deep=True).problems
    busy.kill()

    with pytest.raises(RepositoryDamaged, match="snapshot"):
        busy.open()


def test_each_log_file_whose_header_was_written_wrong_is_named(busy: Workshop) -> None:
    """Its checksum is right, and what it says does not decode: that keeps the check from no other file."""
    whole = {path: path.read_bytes() for path in (busy.path / "flowfile").glob("partition-*/*.wal")}
    assert len(whole) > 1
    for path, data in whole.items():
        path.write_bytes(with_header(data, b"\xc1" * len(header_of(data))))

    problems = busy.repository.check(deep=True).problems

    assert all(any(str(path) in problem for problem in problems) for path in whole)
    for path, data in whole.items():
        path.write_bytes(data)


def test_a_damaged_snapshot_keeps_no_log_file_from_being_read(busy: Workshop) -> None:
    """Its header tells which log files count, and damage behind that is no reason to leave them out."""
    snapshot = busy.path / "flowfile" / "snapshot"
    (log, *_) = sorted((busy.path / "flowfile").glob("partition-*/*.wal"))
    flipped(snapshot, len(snapshot.read_bytes()) - 1)
    flipped(log, log.read_bytes().index(b"ULLt") + 60)

    problems = busy.repository.check(deep=True).problems

    assert all(any(str(path) in problem for problem in problems) for path in (snapshot, log))


def test_a_log_file_that_is_gone_is_named(busy: Workshop) -> None:
    """The open repository goes on writing to a file that has no name any more."""
    (path, *_) = sorted((busy.path / "flowfile").glob("partition-*/*.wal"))
    path.unlink()

    assert any(f"{path} is missing" in problem for problem in busy.repository.check(deep=True).problems)


def test_commits_go_on_while_the_files_are_read(busy: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep check of gigabytes of log takes minutes."""
    reached, go_on = Event(), Event()
    forget = OsFile.drop_cache

    def held(self: OsFile, offset: int, count: int) -> None:
        if self.path.endswith("snapshot"):
            reached.set()
            assert go_on.wait(60)
        forget(self, offset, count)

    monkeypatch.setattr(OsFile, "drop_cache", held)
    found: list[str] = []
    repository = busy.repository
    thread = Thread(target=lambda: found.extend(repository.log.problems()))
    thread.start()
    assert reached.wait(60)
    put_all(repository, "q", [b"meanwhile"])
    go_on.set()
    thread.join(60)

    assert found == []
    assert repository.check(deep=True).problems == ()
