"""A backup or a restoration that was cut short goes on where it was, and nothing of it is believed unproved."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests.engine.test_backup import files_below, restored_queue
from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.remote.test_bucket_faults import changed
from tests.support import Workshop, drain, flip, put_all, put_each, spec_at
from ullage.engine import backupresume
from ullage.engine.backupplace import NOTES
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.errors import BucketRefused, DirectoryNotEmpty, NotARepository, RepositoryLocked
from ullage.remote.bucket import BucketPlace

KB = 1024
COUNT = 8
CONTENTS = [bytes([n]) * 60 * KB for n in range(COUNT)]


class CutShortError(Exception):
    """Where a process would be killed."""


def cut_after(files: int) -> Callable[..., None]:
    """Ends whatever reports to it when so many files are done."""
    done: list[object] = []

    def on_progress(reached: Tally | int, _total: int = 0) -> None:
        if not isinstance(reached, Tally) or reached.files_done:
            done.append(reached)
        if len(done) == files:
            raise CutShortError

    return on_progress


@pytest.fixture(autouse=True)
def noted_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing so small is noted before it is over."""
    monkeypatch.setattr(backupresume, "NOTED_FILES", 2)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_backup_that_was_cut_short_goes_on_where_it_was(
    workshop: Workshop, tmp_path: Path, place: Place, is_first: bool
) -> None:
    """Twice: what is noted and there is not copied again."""
    repository = workshop.make(provenance={"enabled": False})
    put_each(repository, "q", CONTENTS[:1])
    if not is_first:
        repository.backup(place.to)
    put_each(repository, "q", CONTENTS[1:])

    with pytest.raises(CutShortError):
        repository.backup(place.to, cut_after(5))
    with pytest.raises(CutShortError):
        repository.backup(place.to, cut_after(2))
    noted = len(files_below(place.folder / NOTES))
    report = repository.backup(place.to)

    assert noted >= 3
    assert report.kept_files >= 6
    assert report.copied_files + report.kept_files == COUNT
    assert restored_queue(place, tmp_path / "r", "q") == CONTENTS
    assert not files_below(place.folder / NOTES)
    assert len([path for path in files_below(place.folder) if path.startswith("content")]) == COUNT


def test_what_was_noted_and_is_gone_or_cut_is_copied_again(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """And what a note says that is not as it was written is not believed."""
    repository = workshop.make(provenance={"enabled": False})
    put_each(repository, "q", CONTENTS)
    with pytest.raises(CutShortError):
        repository.backup(place.to, cut_after(COUNT))
    for cut in (place.folder / "content" / "c1").iterdir():
        cut.write_bytes(b"")
    with pytest.raises(CutShortError):
        repository.backup(place.to, cut_after(COUNT))
    lists = [each for each in (place.folder / NOTES).iterdir() if not each.name.startswith(f"{backupresume.BEGIN}.")]
    for number, note in enumerate(sorted(lists)):
        note.write_bytes(note.read_bytes().replace(b'"crc":', b'"crc":1') if number % 3 else b"")

    report = repository.backup(place.to)

    assert report.kept_files == 0
    assert restored_queue(place, tmp_path / "r", "q") == CONTENTS


def test_what_another_repository_began_is_left_to_it(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """Its files may have the very same names: made at the same moment, numbered from 1, of the same length."""
    first = workshop.make(provenance={"enabled": False})
    put_each(first, "q", CONTENTS)
    with pytest.raises(CutShortError):
        first.backup(place.to, cut_after(6))
    spec = spec_at(tmp_path / "second", provenance={"enabled": False})
    Engine.initialize(spec, clock=workshop.clock)

    with Engine.open(spec, clock=workshop.clock) as second:
        put_each(second, "q", [b"s" * 60 * KB] * COUNT)
        with pytest.raises(DirectoryNotEmpty, match="this repository did not begin it"):
            second.backup(place.to)

    assert first.backup(place.to).kept_files > 0
    assert restored_queue(place, tmp_path / "r", "q") == CONTENTS


class SlowlyRemoving(BucketPlace):
    """Removes when it is told to: the requests of a process that hangs."""

    def remove_unlisted(self, listed: Collection[str], listed_in: Callable[[bytes], Collection[str]]) -> None:
        self.listed = (listed, listed_in)

    def remove(self) -> None:
        """At last."""
        super().remove_unlisted(*self.listed)


def test_what_a_slow_backup_is_about_to_remove_is_not_taken_up(
    workshop: Workshop, bucket: Place, tmp_path: Path
) -> None:
    """It had listed the files of a run that was cut short before it published: they are about to go."""
    assert bucket.bucket is not None
    put_all(workshop.make(provenance={"enabled": False}), "q", CONTENTS[:1])
    workshop.repository.backup(bucket.to)
    workshop.close()
    shutil.copytree(workshop.path, tmp_path / "twin")
    repository = workshop.open()
    put_each(repository, "q", CONTENTS[1:])
    with pytest.raises(CutShortError):
        repository.backup(bucket.to, cut_after(5))
    slow = SlowlyRemoving(bucket.bucket)
    with Engine.open(spec_at(tmp_path / "twin", provenance={"enabled": False})) as twin:
        twin.backup(slow)

    repository.backup(bucket.to)
    slow.remove()

    assert restored_queue(bucket, tmp_path / "r", "q") == CONTENTS


def test_a_backup_that_dies_between_any_two_requests_is_gone_on_with(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path
) -> None:
    """Every run gets one request further than the one before, until one has come to its end."""
    repository = workshop.make(provenance={"enabled": False})
    put_each(repository, "q", CONTENTS[:4])
    runs = 0
    with flaky_running(gateway) as (flaky, url):
        place = changed(bucket, endpoint=url)
        while runs < 100:
            runs += 1
            first = flaky.count

            def die(_method: str, _path: str, number: int, last: int = first + runs) -> str:
                return "denied" if number > last else ""

            flaky.fault = die
            try:
                repository.backup(place.to)
                break
            except BucketRefused:  # as every run but the last
                continue

    assert 5 < runs < 100
    assert restored_queue(bucket, tmp_path / "r", "q") == CONTENTS[:4]
    repository.backup(bucket.to)
    assert not files_below(bucket.folder / NOTES)


KILLED = """
import os, signal, sys, ullage
from ullage.engine import backupresume
backupresume.NOTED_FILES = 2
what, root, url, endpoint, after = sys.argv[1:]
bucket, done = ullage.Bucket(url=url, endpoint=endpoint), []

def on_progress(reached, total):
    done.append(reached)
    if len(done) == int(after):
        os.kill(os.getpid(), signal.SIGKILL)

if what == "backup":
    with ullage.open(root, maintain=False) as repository:
        repository.backup(bucket, on_progress=on_progress)
else:
    ullage.restore(bucket, root, on_progress=on_progress)
"""


def test_what_a_kill_leaves_is_gone_on_with(workshop: Workshop, bucket: Place, tmp_path: Path) -> None:
    """SIGKILL, in the middle of a backup and of the restoration of the next one."""
    assert bucket.bucket is not None
    put_each(workshop.make(provenance={"enabled": False}), "q", CONTENTS)
    workshop.close()
    at = (bucket.bucket.url, bucket.bucket.endpoint, "5")

    def killed(what: str, root: Path) -> None:
        run = subprocess.run([sys.executable, "-c", KILLED, what, str(root), *at], capture_output=True, check=False)
        assert run.returncode == -signal.SIGKILL, run.stderr

    killed("backup", workshop.path)
    backed_up = workshop.open().backup(bucket.to)
    killed("restore", tmp_path / "r")
    report = Engine.restore_backup(bucket.to, spec_at(tmp_path / "r"))

    assert backed_up.kept_files >= 4
    assert report.kept_files >= 4
    with Engine.open(spec_at(tmp_path / "r")) as again:
        assert again.check(deep=True).problems == ()
        assert drain(again, "q") == CONTENTS


def cut_restoration(place: Place, root: Path) -> None:
    """Five files of one."""
    with pytest.raises(CutShortError):
        Engine.restore_backup(place.to, spec_at(root), on_progress=cut_after(5))


def test_a_restoration_that_was_cut_short_goes_on_where_it_was(
    workshop: Workshop, tmp_path: Path, place: Place
) -> None:
    """What is there is read and not fetched; what of it is damaged is fetched again."""
    repository, root = workshop.make(), tmp_path / "r"
    put_each(repository, "q", CONTENTS)
    repository.backup(place.to)
    cut_restoration(place, root)
    with pytest.raises(NotARepository, match="run `ullage restore` again"):
        Engine.open(spec_at(root))
    there = [path for path in (root / "c1").rglob("*-*") if path.stat().st_size == 60 * KB]
    flip(there[0], 1_000)
    there[1].write_bytes(b"cut")

    seen: list[tuple[int, int]] = []
    report = Engine.restore_backup(place.to, spec_at(root), on_progress=lambda *each: seen.append(each))

    assert report.kept_files >= 3
    assert report.copied_bytes >= 2 * 60 * KB
    assert seen[-1][0] == seen[-1][1] == report.copied_bytes + report.kept_bytes
    assert not list(root.glob("*.partial*"))
    with Engine.open(spec_at(root)) as again:
        assert again.check(deep=True).problems == ()
        assert drain(again, "q") == CONTENTS
    with pytest.raises(DirectoryNotEmpty, match="it holds a repository, whole"):
        Engine.restore_backup(place.to, spec_at(root))


def test_a_restoration_goes_on_with_no_other_backup(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """Nor with the same one once it was brought up to date: the message says what to do."""
    repository, root = workshop.make(), tmp_path / "r"
    put_each(repository, "q", CONTENTS)
    repository.backup(place.to)
    cut_restoration(place, root)
    repository.backup(place.to)

    with pytest.raises(DirectoryNotEmpty, match=r"Say that one .*, or remove what is there"):
        Engine.restore_backup(place.to, spec_at(root))


def test_two_restorations_into_one_directory_are_one_too_many(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """The second is refused, and the first has its files for itself."""
    repository, root = workshop.make(), tmp_path / "r"
    put_each(repository, "q", CONTENTS)
    repository.backup(place.to)
    refused: list[Exception] = []

    def again(_done: int, _total: int) -> None:
        if not refused:
            with pytest.raises(RepositoryLocked) as raised:
                Engine.restore_backup(place.to, spec_at(root))
            refused.append(raised.value)

    Engine.restore_backup(place.to, spec_at(root), on_progress=again)

    assert re.search("open in another process", str(refused[0]))
    with Engine.open(spec_at(root)) as whole:
        assert whole.check(deep=True).problems == ()
