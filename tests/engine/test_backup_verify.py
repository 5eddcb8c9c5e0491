"""`ullage backup verify`: what a restoration would miss is told beforehand, and what it would not is not."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import ullage
from tests.engine.test_backup import files_below
from tests.engine.test_backup_generations import assert_exact, grown, made, opened
from tests.engine.test_cold_handles import cool, put
from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.remote.test_bucket_faults import changed
from tests.support import Workshop, flip, put_each
from ullage.engine.backupplace import GENERATIONS
from ullage.engine.backuptally import Tally
from ullage.engine.backupverify import OTHER_BYTES, verify
from ullage.errors import BucketUnavailable, InvalidArgument, NotABackup, RepositoryDamaged
from ullage.wire.upkeep import BackupVerification, Keep
from ullage_agent.cli.app import app

KB = 1024


def verified(place: Place, generation: int | None = None, sample: float = 1.0, seed: int = 1) -> BackupVerification:
    """What is found."""
    return verify(opened(place), generation, sample, seed)


def told(found: BackupVerification) -> dict[str, tuple[tuple[int, ...], str]]:
    """The damages by path."""
    assert found.damaged_files == len(found.damaged)
    return {each.path: (each.generations, each.reason) for each in found.damaged}


def contents_of(place: Place) -> list[Path]:
    return sorted(path for path in (place.folder / "content" / "c1").iterdir())


def test_of_a_whole_backup_all_is_read_and_nothing_told(workshop: Workshop, place: Place) -> None:
    """What generations have in common once; the sum is that of the files that lie there."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))
    before = files_below(place.folder)

    found = verified(place)

    files = {path for path in before if not path.startswith((f"{GENERATIONS}/", "backup.json"))}
    assert (found.damaged, found.generations) == ((), 3)
    assert found.files == found.read_files == len(files)
    assert found.bytes == found.read_bytes == sum(len(before[path]) for path in files)
    assert verified(place, 2).files < found.files
    assert files_below(place.folder) == before


def test_each_damage_is_told_with_the_generations_that_need_it(workshop: Workshop, place: Place) -> None:
    """A flipped bit, a missing file, one that is cut, one that has grown, a snapshot, a manifest of an older one."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))
    flipped, gone, cut, grown_one = contents_of(place)[-4:]
    (snapshot,) = (place.folder / "flowfile").glob("snapshot-2.*")
    (manifest,) = (place.folder / GENERATIONS).glob("1.*")
    flip(flipped, 40_000)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:100])
    grown_one.write_bytes(grown_one.read_bytes() + b"x")
    flip(snapshot, 10)
    flip(manifest, 10)

    found = told(verified(place))

    at = {str(path.relative_to(place.folder)): path for path in (flipped, gone, cut, grown_one, snapshot, manifest)}
    assert found.keys() == at.keys()
    assert {found[path][1] for path, file in at.items() if file in (flipped, snapshot)} == {OTHER_BYTES}
    assert found[str(gone.relative_to(place.folder))][1] == "it is missing"
    assert "it has 100 bytes" in found[str(cut.relative_to(place.folder))][1]
    assert "checksum" in found[str(manifest.relative_to(place.folder))][1]
    assert found[str(snapshot.relative_to(place.folder))][0] == (2,)
    assert found[str(gone.relative_to(place.folder))][0][-1] == 3


def test_a_sample_reads_a_share_and_looks_for_all(workshop: Workshop, place: Place) -> None:
    """The same seed draws the same; of many seeds each file that is drawn is drawn by about so many."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))
    flip(contents_of(place)[0], 1_000)
    contents_of(place)[1].unlink()

    found = [verified(place, sample=0.4, seed=seed) for seed in range(40)]

    finds = [len(each.damaged) for each in found]
    assert set(finds) == {1, 2}
    assert 6 <= finds.count(2) <= 26
    records = len(list((place.folder / "flowfile").iterdir()))
    assert 0.25 < sum(each.read_files - records for each in found) / sum(each.files - records for each in found) < 0.55
    assert verified(place, sample=0.4, seed=7) == found[7]
    for nonsense in (0, 0.0, -0.1, 1.1):
        with pytest.raises(InvalidArgument, match="above 0, up to 1"):
            ullage.verify_backup(place.folder, sample=nonsense)


def test_the_smallest_sample_reads_all_records_and_one_content_at_least(workshop: Workshop, place: Place) -> None:
    """Damage of a snapshot, of what was swapped out, or of handles that rest is found by any sample; of content, and of
    events, some sample finds it.
    """
    small = {"swap_threshold": 2, "swap_batch": 1}
    repository = workshop.make(claims={"max_flow_files": 1}, flow_file=small, archive={"enabled": False})
    put_each(repository, "q", [bytes([number]) * KB for number in range(12)])
    put(repository, 0)
    cool(repository)
    repository.backup(place.to, keep=Keep(last=2))
    put_each(repository, "q", [b"later"])
    repository.backup(place.to)
    folders = [list((place.folder / name).iterdir()) for name in ("flowfile", "swap", "runs", "provenance")]
    assert min(map(len, folders)) > 0
    *of_records, _ = folders
    records = [path for found in of_records for path in found]

    seen = [verified(place, sample=1e-9, seed=seed) for seed in range(30)]
    assert min(each.read_files for each in seen) >= len(records) + len(["a content", "a file of events"])
    assert max(each.read_files for each in seen) < seen[0].files
    for path in records:
        flip(path, 10)
    assert {each.path for each in verified(place, sample=1e-9).damaged} == {
        str(path.relative_to(place.folder)) for path in records
    }


def test_each_file_is_drawn_whatever_becomes_of_the_others(workshop: Workshop, place: Place) -> None:
    """A half of them is now more, now fewer: with a CRC two halves took turns, whatever the seed."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))

    counts = {verified(place, sample=0.5, seed=seed).read_files for seed in range(60)}

    assert max(counts) - min(counts) >= 5


def test_what_the_next_backup_copies_again_is_whole(workshop: Workshop, place: Place) -> None:
    """Moved away, as the command says: the newest generation has it, an older one lacks it still."""
    repository = made(workshop)
    put_each(repository, "q", [bytes([n]) * 60_000 for n in range(3)])
    repository.backup(place.to, keep=Keep(last=2))
    flip(contents_of(place)[1], 1_000)
    path = str(contents_of(place)[1].relative_to(place.folder))
    assert told(verified(place)) == {path: ((1,), OTHER_BYTES)}
    (place.folder / path).unlink()

    repository.backup(place.to)
    assert told(verified(place)) == {path: ((1,), "it is missing")}
    assert verified(place, 2).damaged == ()
    repository.backup(place.to)

    assert verified(place).damaged == ()
    assert assert_exact(place) == [2, 3]


def test_what_a_backup_drops_meanwhile_is_no_damage(workshop: Workshop, place: Place) -> None:
    """Its files go while they are read: nobody needs them any more."""
    made(workshop)
    grown(workshop, place, 3, Keep(last=3))
    drops = [Keep(last=1)]

    def drop(_: Tally) -> None:
        if drops:
            grown(workshop, place, 1, drops.pop())
            for path in contents_of(place):
                path.unlink()

    found = verify(opened(place), 1, 1.0, 1, drop)

    assert not drops
    assert found.damaged == ()


def test_a_bucket_that_goes_away_is_no_damage(workshop: Workshop, gateway: Gateway, bucket: Place) -> None:
    """It ends there: what was not read is not told to be damaged, and not to be whole."""
    made(workshop)
    grown(workshop, bucket, 1, None)
    with flaky_running(gateway) as (flaky, url):
        place = changed(bucket, endpoint=url, patience_seconds=0.5)
        flaky.fault = lambda _method, path, _number: "503" if "content" in path and "list-type" not in path else ""
        with pytest.raises(BucketUnavailable):
            verified(place)


def test_where_there_is_no_backup_or_no_such_generation_it_is_said(workshop: Workshop, place: Place) -> None:
    """A manifest that is damaged itself is an error, for nobody knows what belongs there, until an older one is it."""
    made(workshop)
    with pytest.raises(NotABackup, match="holds no backup"):
        verified(place)
    grown(workshop, place, 2, Keep(last=2))
    with pytest.raises(NotABackup, match="has no generation 7, only 1, 2"):
        verified(place, 7)
    flip(place.folder / "backup.json", 20)
    with pytest.raises(RepositoryDamaged, match="checksum"):
        verified(place)

    (former,) = (place.folder / GENERATIONS).iterdir()
    shutil.copy(former, place.folder / "backup.json")
    assert (verified(place).generations, verified(place).damaged) == (1, ())


def test_the_command_tells_damage_by_its_exit_code(workshop: Workshop, tmp_path: Path) -> None:
    """0, 1 with each file named on stderr, 2 for nonsense, and 4 where the manifest is damaged."""
    place = Place(tmp_path / "b")
    made(workshop)
    grown(workshop, place, 2, Keep(last=2))
    run, verify = CliRunner().invoke, ["backup", "verify", str(place.folder)]

    whole = run(app, [*verify, "--json"])
    sample = run(app, [*verify, "--sample", "5%", "--seed", "3"])
    nonsense = run(app, [*verify, "--sample", "150%"])
    flip(contents_of(place)[0], 1_000)
    damaged = run(app, verify)
    flip(place.folder / "backup.json", 20)
    broken = run(app, verify)

    assert [each.exit_code for each in (whole, sample, nonsense, damaged, broken)] == [0, 0, 2, 1, 4]
    assert json.loads(whole.stdout)["damaged"] == []
    assert "(seed 3): 0 damaged" in sample.stdout
    assert f"damaged: {contents_of(place)[0].relative_to(place.folder)}, of generation" in damaged.stderr
