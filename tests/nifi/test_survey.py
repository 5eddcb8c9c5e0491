import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from tests.nifi.samples import NAMES, Told, home_of_sample, truth, unpacked
from tests.support import ManualClock
from ullage.nifi.home import NiFiHome
from ullage.nifi.survey import NiFiSpace, NiFiSurvey, shares
from ullage.nifi.surveying import survey_nifi

NAME = next(name for name in NAMES if name.endswith("stopped"))
LATER_MILLIS = 4_000_000_000_000
"""When every file of a sample has long been settled."""


def survey(home: NiFiHome, millis: int = LATER_MILLIS, listed: int = 100) -> NiFiSurvey:
    return survey_nifi(home, ManualClock(millis), listed)


def live_of(place: Path) -> dict[str, bytearray]:
    """A byte for each byte of each file that a FlowFile refers to, which is 1 where it is live."""
    marked: dict[str, bytearray] = {}
    for each in truth(place):
        if each.file:
            size = path_of(place, each.file).stat().st_size
            marked.setdefault(each.file, bytearray(size))[each.start : each.start + each.size] = b"\1" * each.size
    return marked


def path_of(place: Path, file: str) -> Path:
    container, below = file.split("/", 1)
    return Path(home_of_sample(place).containers[container]) / below


def sizes(place: Path) -> dict[str, int]:
    return {
        f"{name}/{path.relative_to(folder)}": path.stat().st_size
        for name, folder in home_of_sample(place).containers.items()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_uses_of_the_disk_are_what_a_byte_for_byte_count_finds(name: str, tmp_path: Path) -> None:
    """Of what NiFi wrote; nothing is counted twice, and nothing is left out."""
    place = unpacked(name, tmp_path)
    marked, files = live_of(place), sizes(place)
    archive = sum(size for file, size in files.items() if "/archive/" in file)

    found = survey(home_of_sample(place)).space

    tails = sum(len(bytes_) - (bytes_.rfind(1) + 1) for bytes_ in marked.values())
    live = sum(map(sum, marked.values()))
    held = sum(map(len, marked.values()))
    assert found == NiFiSpace(
        files=len(files),
        size=sum(files.values()),
        allocated=found.allocated,
        live=live,
        dead_middles=held - live - tails,
        dead_tails=tails,
        dead_files=sum(files.values()) - held - archive,
        archive=archive,
    )
    assert archive > 0
    assert live > 0
    assert found.dead_middles > 0
    assert tails > 0
    assert found.allocated >= found.size


@pytest.mark.parametrize("name", NAMES)
def test_queues_ages_and_sizes_add_up(name: str, tmp_path: Path) -> None:
    """Each FlowFile is in one queue, of one age and one size, in whatever file."""
    place = unpacked(name, tmp_path)
    by_queue: dict[str, list[Told]] = defaultdict(list)
    for each in truth(place):
        by_queue[each.queue].append(each)
    holders: dict[str, set[str]] = defaultdict(set)
    for each in truth(place):
        holders[each.file].add(each.queue)

    found = survey(home_of_sample(place))

    assert {queue.identifier: (queue.flowfiles, queue.size) for queue in found.queues} == {
        queue: (len(each), sum(flowfile.size for flowfile in each)) for queue, each in by_queue.items()
    }
    for queue in found.queues:
        alone = {file for file, queues in holders.items() if file and queues == {queue.identifier}}
        assert queue.alone == sum(path_of(place, file).stat().st_size for file in alone)
        assert queue.files == sum(queue.identifier in queues for file, queues in holders.items() if file)
    for bands in (found.ages, found.sizes):
        assert sum(band.flowfiles for band in bands) == found.flowfiles == len(truth(place))
        assert sum(band.dead for band in bands) == found.space.dead_middles + found.space.dead_tails
        assert sum(band.files for band in bands) == sum(1 for file in holders if file)
    dead = [file.dead_middles + file.dead_tails for file in found.files]
    assert dead == sorted(dead, reverse=True)
    assert sum(dead) == found.space.dead_middles + found.space.dead_tails


def test_a_survey_changes_nothing(tmp_path: Path) -> None:
    """Neither a byte, nor a name, nor a time of writing."""
    place = unpacked(NAME, tmp_path)

    def everything() -> dict[str, tuple[int, bytes]]:
        paths = sorted(place.rglob("*"))
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}

    before = everything()
    survey(home_of_sample(place))

    assert everything() == before


def test_one_empty_flowfile_holds_a_whole_file(tmp_path: Path) -> None:
    """The survey names the file, and shows that the largest FlowFile in it has no bytes."""
    place = unpacked(NAME, tmp_path)
    empty = [each for each in truth(place) if each.file and not each.size]
    together: dict[str, list[int]] = {each.file: [] for each in empty}
    for each in truth(place):
        if each.file in together:
            together[each.file].append(each.size)

    found = {file.file: file for file in survey(home_of_sample(place)).files}

    assert empty
    for file, all_sizes in together.items():
        assert (found[file].flowfiles, found[file].largest) == (len(all_sizes), max(all_sizes))


def test_what_was_written_lately_is_not_called_dead(tmp_path: Path) -> None:
    """A session of NiFi may have written it and commit it in a moment."""
    place = unpacked(NAME, tmp_path)
    settled = survey(home_of_sample(place)).space
    newest = max(path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()) // 1_000_000

    found = survey(home_of_sample(place), newest).space

    assert found.dead_tails == found.dead_files == 0
    assert found.unsettled == settled.dead_tails + settled.dead_files
    assert found.dead_middles == settled.dead_middles


def test_files_that_nobody_refers_to_and_files_that_are_not_nifis_are_told_apart(tmp_path: Path) -> None:
    """NiFi removes the former when it starts."""
    place = unpacked(NAME, tmp_path)
    before = survey(home_of_sample(place)).space
    section = place / "content_repository" / "77"
    section.mkdir()
    (section / "1795718170790-77").write_bytes(bytes(1_000))
    (section / "notes.txt").write_bytes(bytes(20))
    (section / "deeper" / "down").mkdir(parents=True)
    (section / "deeper" / "down" / "1795718170790-78").write_bytes(bytes(3))

    found = survey(home_of_sample(place)).space

    assert found.dead_files - before.dead_files == 1_000
    assert found.foreign - before.foreign == 23
    assert found.files - before.files == 3


def test_content_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A file that is gone, and one that is too short: what is left of both is live all the same."""
    place = unpacked(NAME, tmp_path)
    before = survey(home_of_sample(place))
    largest = max((each for each in truth(place) if each.file), key=lambda each: each.size)
    path = path_of(place, largest.file)
    os.truncate(path, largest.start + 10)

    short = survey(home_of_sample(place))
    path.unlink()
    gone = survey(home_of_sample(place))

    behind = [each for each in truth(place) if each.file == largest.file and each.size]
    assert short.missing == sum(each.start + each.size > largest.start + 10 for each in behind)
    assert gone.missing == len(behind)
    assert gone.missing_bytes == sum(each.size for each in behind)
    assert gone.space.live < short.space.live < before.space.live
    assert (short.is_complete, gone.is_complete) == (True, True)


def test_what_a_replay_refers_to_is_found_in_the_archive(tmp_path: Path) -> None:
    """NiFi reads it there; it is live, and counted once."""
    place = unpacked(NAME, tmp_path)
    before = survey(home_of_sample(place)).space
    file = next(each.file for each in truth(place) if each.size)
    path = path_of(place, file)
    (path.parent / "archive").mkdir(exist_ok=True)
    path.rename(path.parent / "archive" / path.name)

    found = survey(home_of_sample(place))

    assert found.space == before
    assert found.missing == 0


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """The other containers are surveyed."""
    place = unpacked(NAME, tmp_path)
    home = home_of_sample(place)
    (place / "content_second").rename(place / "away")

    found = survey(home)

    assert [damage.file for damage in found.damages] == [home.containers["second"]]
    assert found.missing > 0
    assert found.space.live > 0


def test_shares_are_what_marking_each_byte_finds(seed: int) -> None:
    """Ranges overlap, touch, are empty, and go beyond the end."""
    chance = random.Random(seed)
    for _ in range(500):
        size = chance.randrange(60)
        ranges = [(start, start + chance.randrange(20)) for start in (chance.randrange(70) for _ in range(5))]
        marked = bytearray(size)
        for start, stop in ranges:
            marked[start : min(stop, size)] = b"\1" * len(marked[start : min(stop, size)])
        end = marked.rfind(1) + 1

        assert shares(size, ranges) == (sum(marked), end - sum(marked), size - end)
