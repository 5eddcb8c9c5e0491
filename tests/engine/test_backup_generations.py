"""Generations of a backup: each restores to its moment, and what goes is what nobody needs any more."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from crc32c import crc32c

import ullage
from tests.engine.test_backup import files_below, restored_queue
from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.remote.test_bucket_faults import changed
from tests.service.running import until
from tests.support import Workshop, drain, flip, put_all, put_each, spec_at
from ullage.engine import pins as pins_module
from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.backupfiles import all_files, decode_manifest
from ullage.engine.backupgenerations import generations_at, kept_sequences, reading
from ullage.engine.backupplace import GENERATIONS, NOTES, PINS, BackupPlace
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.pins import PIN_SECONDS
from ullage.errors import BackupOvertaken, BucketRefused, InvalidArgument, NotABackup, RepositoryDamaged
from ullage.remote.bucket import BucketPlace
from ullage.wire.upkeep import BackupGeneration, Keep
from ullage_agent.cli.app import app

KB = 1024
MONDAY = datetime(2026, 6, 1, 12, tzinfo=UTC)
RULES: dict[str, Callable[[datetime], object]] = {
    "hourly": lambda at: (at.date(), at.hour),
    "daily": lambda at: at.date(),
    "weekly": lambda at: at.isocalendar()[:2],
    "monthly": lambda at: (at.year, at.month),
    "yearly": lambda at: at.year,
}


def written(*times: datetime) -> list[BackupGeneration]:
    """Generations of these moments, in the order in which they were written."""
    return [
        BackupGeneration(sequence=number, created_millis=round(at.timestamp() * 1000), last_id=number, files=1, bytes=1)
        for number, at in enumerate(times, 1)
    ]


def days(*numbers: float) -> list[BackupGeneration]:
    """Of so many days after a Monday."""
    return written(*(MONDAY + timedelta(days=number) for number in numbers))


@pytest.mark.parametrize(
    ("numbers", "keep", "expected"),
    [
        (range(10), Keep(), {10}),
        (range(10), Keep(last=3), {8, 9, 10}),
        (range(10), Keep(daily=3), {8, 9, 10}),
        ([0, 0.1, 0.2, 1, 1.1], Keep(daily=7), {3, 5}),
        ([0, 0.1, 0.2, 0.201], Keep(hourly=2), {2, 4}),
        (range(15), Keep(weekly=2), {14, 15}),
        (range(70), Keep(daily=2, monthly=2), {61, 69, 70}),
        ([0, 1, 100, 400, 500], Keep(yearly=5), {3, 5}),
        ([0, 100, 200], Keep(daily=7), {1, 2, 3}),
        # The clock goes back: the newest stays whatever it says, and a day counts once.
        ([5, 6, 7, -1000], Keep(daily=2), {3, 4}),
        ([5, 6, 900, 6.1, 7], Keep(daily=3), {3, 4, 5}),
        ([5, 6, 5, 6, 5], Keep(daily=9), {4, 5}),
    ],
)
def test_a_rule_keeps_the_newest_of_each_period(numbers: list[float], keep: Keep, expected: set[int]) -> None:
    """As restic and borg have it; the newest of all always."""
    assert kept_sequences(days(*numbers), keep) == expected


def test_a_rule_keeps_what_a_plain_count_keeps(seed: int) -> None:
    """Of random moments, also far from any calendar: so many periods as are said, each by its newest."""
    source = random.Random(seed)
    for _ in range(200):
        found = days(*(source.choice([n, n, n * 30, -n]) * source.random() for n in range(source.randrange(1, 40))))
        counts = {name: source.randrange(4) for name in ("last", *RULES)}
        newest_first = found[::-1]
        expected = {newest_first[0].sequence, *(each.sequence for each in newest_first[: counts["last"]])}
        for name, period_of in RULES.items():
            periods: list[object] = []
            for each in newest_first:
                period = period_of(datetime.fromtimestamp(each.created_millis / 1000, UTC))
                if period not in periods and len(periods) < counts[name]:
                    expected.add(each.sequence)
                periods.append(period)
                periods = list(dict.fromkeys(periods))

        assert kept_sequences(found, Keep(**counts)) == expected, (seed, counts)


@pytest.mark.parametrize("millis", [-1, 0, 1 << 62, -(1 << 62)])
def test_no_clock_is_too_wrong_for_a_rule(millis: int) -> None:
    """A date that there is not is the last one, or the first."""
    (one,) = written(MONDAY)
    strange = BackupGeneration(sequence=2, created_millis=millis, last_id=2, files=1, bytes=1)

    assert kept_sequences([one, strange], Keep(daily=1, yearly=1)) == {2}


def opened(place: Place) -> BackupPlace:
    """As a restoration has it."""
    to = place.to
    return DirectoryPlace(OsFiles(), to) if isinstance(to, str) else to


def assert_exact(place: Place) -> list[int]:
    """Every file of every generation is there as its manifest has it, and nothing else; their numbers."""
    found = generations_at(opened(place))
    needed = {"backup.json"}
    for each in found:
        with reading(opened(place), each.sequence) as manifest:
            needed |= {file.lies_at for file in all_files(manifest)}
            needed |= {older.lies_at for older in manifest.older if each == found[-1]}
            for file in all_files(manifest):
                data = (place.folder / file.lies_at).read_bytes()
                assert (len(data), crc32c(data)) == (file.length, file.crc)
    assert set(files_below(place.folder)) == needed
    return [each.sequence for each in found]


def grown(workshop: Workshop, place: Place, count: int, keep: Keep | None) -> list[list[bytes]]:
    """So many generations, each a day after the one before; the contents of each: one new, the oldest gone."""
    repository = workshop.repository
    contents: list[list[bytes]] = []
    for number in range(count):
        put_each(repository, "q", [bytes([number + n]) * 60 * KB for n in range(3)])
        repository.backup(place.to, keep=keep)
        contents.append([bytes([number + n]) * 60 * KB for n in range(3)])
        assert drain(repository, "q") == contents[-1]
        repository.reclamation.clean()
        workshop.clock.advance(86_400)
    return contents


def made(workshop: Workshop) -> Engine:
    """One that gives back at once what is dead."""
    return workshop.make(archive={"enabled": False}, provenance={"enabled": False})


def test_each_generation_restores_to_its_moment(workshop: Workshop, tmp_path: Path, place: Place) -> None:
    """And what a generation that goes had for itself goes with it, no more and no less."""
    made(workshop)

    contents = grown(workshop, place, 6, Keep(last=3))

    assert assert_exact(place) == [4, 5, 6]
    for number in (4, 5, 6):
        root = tmp_path / f"r{number}"
        report = Engine.restore_backup(place.to, spec_at(root), generation=number)
        assert (report.generation, report.generations) == (number, 3)
        with Engine.open(spec_at(root)) as again:
            assert again.check(deep=True).problems == ()
            assert drain(again, "q") == contents[number - 1]
    with pytest.raises(NotABackup, match="has no generation 3, only 4, 5, 6"):
        Engine.restore_backup(place.to, spec_at(tmp_path / "none"), generation=3)


def test_a_rule_is_said_once_and_holds_until_another_is(workshop: Workshop, place: Place) -> None:
    """Whoever forgets it at one run drops nothing."""
    made(workshop)

    grown(workshop, place, 1, None)
    assert len(generations_at(opened(place))) == 1
    grown(workshop, place, 3, Keep(daily=2, weekly=1))
    assert assert_exact(place) == [3, 4]
    grown(workshop, place, 2, None)
    assert assert_exact(place) == [5, 6]
    grown(workshop, place, 1, Keep(last=1))
    assert assert_exact(place) == [7]


@contextmanager
def restoring(place: Place, root: Path, during: Callable[[], None], generation: int | None = None) -> Iterator[Engine]:
    """A restoration that something happens to when a file is there."""
    happened: list[int] = []

    def on_progress(done: int, _total: int) -> None:
        if not happened:
            happened.append(done)
            during()

    Engine.restore_backup(place.to, spec_at(root), on_progress=on_progress, generation=generation)
    assert happened
    with Engine.open(spec_at(root)) as again:
        assert again.check(deep=True).problems == ()
        yield again


@pytest.mark.parametrize("generation", [1, None])
def test_what_is_being_restored_stays_though_it_is_dropped(
    workshop: Workshop, tmp_path: Path, place: Place, generation: int | None
) -> None:
    """The run after the restoration removes it."""
    made(workshop)
    contents = grown(workshop, place, 2, Keep(last=2))

    def drop() -> None:
        grown(workshop, place, 2, Keep(last=1))
        assert [each.sequence for each in generations_at(opened(place))] == [4]

    with restoring(place, tmp_path / "r", drop, generation) as again:
        assert drain(again, "q") == contents[0 if generation else 1]

    assert not files_below(place.folder / PINS)
    grown(workshop, place, 1, None)
    assert assert_exact(place) == [5]


class PinnedLate(BucketPlace):
    """Something happens before a pin is there."""

    happens: Callable[[], object]

    @contextmanager
    def pinned(self, manifest: bytes) -> Iterator[None]:
        self.happens()
        with super().pinned(manifest):
            yield


def test_what_was_dropped_before_it_was_pinned_is_not_restored(
    workshop: Workshop, tmp_path: Path, bucket: Place
) -> None:
    """It may be about to go: the newest is restored in its stead, and one that was named is told to be gone."""
    assert bucket.bucket is not None
    made(workshop)
    contents = grown(workshop, bucket, 2, Keep(last=2))
    late = PinnedLate(bucket.bucket)
    runs = [lambda: contents.extend(grown(workshop, bucket, 1, Keep(last=1)))]
    late.happens = lambda: runs.pop()() if runs else None

    Engine.restore_backup(late, spec_at(tmp_path / "r"))

    with Engine.open(spec_at(tmp_path / "r")) as again:
        assert drain(again, "q") == contents[-1]
    runs.append(lambda: contents.extend(grown(workshop, bucket, 1, None)))
    with pytest.raises(NotABackup, match="has no generation 3, only 4"):
        Engine.restore_backup(late, spec_at(tmp_path / "s"), generation=3)


def test_a_pin_that_nobody_renews_expires(workshop: Workshop, bucket: Place) -> None:
    """By the server's clock; one that is nonsense keeps everything until then."""
    made(workshop)
    grown(workshop, bucket, 1, None)
    pins = bucket.folder / PINS
    pins.mkdir()
    (pins / "of-a-dead-one").write_bytes((bucket.folder / "backup.json").read_bytes())
    (pins / "nonsense").write_bytes(b"?")
    first = set(files_below(bucket.folder / "content"))

    grown(workshop, bucket, 1, None)
    kept_by_nonsense = set(files_below(bucket.folder / "content"))
    (pins / "nonsense").unlink()
    grown(workshop, bucket, 1, None)
    kept_by_pin = set(files_below(bucket.folder / "content"))
    past = datetime.now(UTC).timestamp() - PIN_SECONDS - 60
    os.utime(pins / "of-a-dead-one", (past, past))
    grown(workshop, bucket, 1, None)

    assert first < kept_by_nonsense
    assert first < kept_by_pin
    assert assert_exact(bucket) == [4]


def test_who_restores_for_long_says_so_again(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pin is put anew while it lasts, and gone when it is over."""
    monkeypatch.setattr(pins_module, "PIN_SECONDS", 0.3)
    made(workshop)
    grown(workshop, bucket, 1, None)
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = lambda method, path, _number: "pinned" if method == "PUT" and f"/{PINS}/" in path else ""
        Engine.restore_backup(
            changed(bucket, endpoint=url).to,
            spec_at(tmp_path / "r"),
            on_progress=lambda _done, _total: until(lambda: len(flaky.done) > 3, "the pin is put anew"),
        )

    assert not files_below(bucket.folder / PINS)


def test_credentials_that_may_only_read_restore(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path
) -> None:
    """Without a pin: nothing is promised but that what is missing then is told."""
    made(workshop)
    (contents,) = grown(workshop, bucket, 1, None)
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = lambda method, _path, _number: "denied" if method in ("PUT", "POST", "DELETE") else ""
        assert restored_queue(changed(bucket, endpoint=url), tmp_path / "r", "q") == contents

    assert flaky.done == ["denied"]


def test_a_backup_that_dies_between_any_two_requests_costs_no_generation(
    workshop: Workshop, gateway: Gateway, bucket: Place
) -> None:
    """Each listed one is whole after each death, and the run that comes to its end leaves nothing else behind."""
    made(workshop)
    keep = Keep(last=2)
    grown(workshop, bucket, 2, keep)
    put_each(workshop.repository, "q", [bytes([n]) * 60 * KB for n in range(7, 10)])
    deaths, first = 0, 1
    with flaky_running(gateway) as (flaky, url):
        place = changed(bucket, endpoint=url)
        for number in range(1, 60):
            last = flaky.count + number

            def die(_method: str, _path: str, count: int, last: int = last) -> str:
                return "denied" if count > last else ""

            flaky.fault = die
            try:
                workshop.repository.backup(place.to, keep=keep)
            except BucketRefused:
                deaths += 1
            listed = generations_at(opened(bucket))
            first = max(first, listed[0].sequence)
            for each in listed:
                with reading(opened(bucket), each.sequence) as manifest:
                    held = files_below(bucket.folder)
                    assert all(crc32c(held[file.lies_at]) == file.crc for file in all_files(manifest))
            if flaky.count < last:
                break

    assert deaths > 10
    assert first > 1
    assert len(assert_exact(bucket)) == 2


def test_a_damaged_manifest_of_an_older_generation_costs_that_one_alone(
    workshop: Workshop, tmp_path: Path, place: Place
) -> None:
    """While nobody can say what it needs nothing is removed; once the rule drops it, all is as it should be."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))
    contents = len(files_below(place.folder / "content"))
    (manifest,) = [path for path in (place.folder / GENERATIONS).iterdir() if path.name.startswith("1.")]
    flip(manifest, 100)

    with pytest.raises(RepositoryDamaged, match="checksum"):
        Engine.restore_backup(place.to, spec_at(tmp_path / "none"), generation=1)
    grown(workshop, place, 1, Keep(last=9))
    assert len(files_below(place.folder / "content")) > contents
    (latest,) = grown(workshop, place, 1, Keep(last=2))

    assert assert_exact(place) == [4, 5]
    assert restored_queue(place, tmp_path / "r", "q") == latest


def test_of_two_that_write_to_one_directory_the_second_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    """The same repository on two disks: the first one's files are left alone, and its backup is whole."""
    place = Place(tmp_path / "b")
    put_all(made(workshop), "q", [b"1" * 60 * KB])
    workshop.close()
    shutil.copytree(workshop.path, tmp_path / "twin")
    repository = workshop.open()
    refused: list[object] = []
    with Engine.open(spec_at(tmp_path / "twin")) as twin:

        def race(_: Tally) -> None:
            with pytest.raises(BackupOvertaken, match="at this moment"):
                twin.backup(place.to)
            refused.append(twin)

        repository.backup(place.to, race)
        twin.backup(place.to)

    assert refused
    assert restored_queue(place, tmp_path / "r", "q") == [b"1" * 60 * KB]


def test_the_commands_list_generations_and_restore_one(workshop: Workshop, tmp_path: Path) -> None:
    """`ullage backup DEST` writes, `ullage backup list` tells which there are, and a directory may have that name."""
    made(workshop)
    workshop.close()
    run, root = CliRunner().invoke, ["--root", str(workshop.path)]
    first = run(app, ["backup", str(tmp_path / "list"), *root, "--keep-daily", "7", "--keep-last", "2", "--json"])
    second = run(app, ["backup", "write", str(tmp_path / "list"), *root])
    listed = run(app, ["backup", "list", str(tmp_path / "list"), "--json"])
    table = run(app, ["backup", "list", str(tmp_path / "list")])
    older = run(app, ["restore", str(tmp_path / "list"), str(tmp_path / "r"), "--generation", "1", "--json"])
    none = run(app, ["restore", str(tmp_path / "list"), str(tmp_path / "s"), "--generation", "7"])
    help = run(app, ["backup", "--help"])

    assert [each.exit_code for each in (first, second, listed, table, older, help)] == [0] * 6
    assert (none.exit_code, "only 1, 2" in none.stderr) == (2, True)
    assert '"sequence": 2' in listed.stdout
    assert "generation 2, 2 generations in all" in second.stdout
    assert "verify" in help.stdout or "list" in help.stdout
    assert decode_manifest((tmp_path / "list" / "backup.json").read_bytes(), "x").keep == Keep(daily=7, last=2)
    assert not files_below(tmp_path / "list" / NOTES)


def test_a_moment_means_the_newest_generation_that_is_not_later(workshop: Workshop, tmp_path: Path) -> None:
    """Before the first there is none."""
    repository, target, times = workshop.make(), str(tmp_path / "b"), list[int]()
    for _ in range(3):
        workshop.clock.advance(60_000)
        times.append(repository.clock.now_millis())
        repository.backup(target, keep=Keep(last=3))

    for number, millis in enumerate(times, 1):
        assert [ullage.generation_at(target, millis + later) for later in (0, 59_999)] == [number, number]
    with pytest.raises(InvalidArgument, match="goes back to 20"):
        ullage.generation_at(target, times[0] - 1)
