"""A survey while NiFi goes on: here NiFi does something just where the survey could go wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nifi.example import LONG_AGO, MIB, NOW_MILLIS, TO_KAFKA, TRANSACTION, write_content, write_nifi
from tests.nifi.written import Written, created, deleted, journal_header, transaction_of
from tests.support import ManualClock
from ullage.nifi.contents import ContentListing
from ullage.nifi.home import NiFiHome, find_home
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.survey import NiFiSurvey
from ullage.nifi.surveying import survey_nifi

OLD, KEPT, NEW = (f"default/1/{LONG_AGO}-{number}" for number in (1, 1025, 2049))


def place_of(nifi: Path, file: str) -> Path:
    return nifi / "content_repository" / file.partition("/")[2]


class Running:
    """A NiFi of two FlowFiles, each in a file of its own; the first one leaves and another one comes."""

    def __init__(self, nifi: Path) -> None:
        self.nifi = nifi
        write_nifi(nifi, [self.flowfile(1, OLD, MIB), self.flowfile(2, KEPT, 2 * MIB)], 2)
        (nifi / "conf" / "flow.json.gz").unlink(missing_ok=True)
        self.write_file(OLD, MIB)
        self.write_file(KEPT, 2 * MIB)
        self.journal = nifi / "flowfile_repository" / "journals" / f"{TRANSACTION + 1}.journal"
        self.journal.write_bytes(journal_header())
        self.next = TRANSACTION + 1

    @property
    def home(self) -> NiFiHome:
        found = find_home(str(self.nifi))
        return NiFiHome(found.flowfiles, found.containers)

    def flowfile(self, number: int, file: str, size: int) -> Written:
        return Written(number, TO_KAFKA, file, 0, size, LONG_AGO)

    def write_file(self, file: str, size: int) -> None:
        write_content(self.nifi, file, size)

    def transact(self, records: bytes) -> None:
        with self.journal.open("ab") as file:
            file.write(transaction_of(self.next, records))
        self.next += 1

    def archive(self, file: str) -> None:
        path = place_of(self.nifi, file)
        (path.parent / "archive").mkdir()
        path.rename(path.parent / "archive" / path.name)

    def survey(self) -> NiFiSurvey:
        return survey_nifi(self.home, ManualClock(NOW_MILLIS))


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path / "nifi")


def after(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, act: Callable[[], None]) -> None:
    """Once, when this was done for the first time, NiFi does something."""
    really = getattr(owner, name)
    done: list[bool] = []

    def also(self: object) -> object:
        result = really(self)
        if not done:
            done.append(True)
            act()
        return result

    monkeypatch.setattr(owner, name, also)


def test_files_that_come_and_go_while_they_are_listed_are_looked_at_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is written after its folder was listed is live, and one that is archived by then is in the archive."""

    def go_on() -> None:
        running.write_file(NEW, 4 * MIB)
        running.transact(created(running.flowfile(3, NEW, 4 * MIB)) + deleted(1))
        running.archive(OLD)

    after(monkeypatch, ContentListing, "read", go_on)

    found = running.survey()

    assert (found.is_in_use, found.missing, found.flowfiles) == (True, 0, 2)
    assert (found.space.live, found.space.archive, found.space.dead_files) == (6 * MIB, MIB, 0)
    assert (found.space.files, found.space.size) == (3, 7 * MIB)


def test_a_file_that_grows_while_it_is_listed_is_looked_at_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another content is appended to it."""

    def go_on() -> None:
        os.truncate(place_of(running.nifi, KEPT), 3 * MIB)
        running.transact(created(Written(3, TO_KAFKA, KEPT, 2 * MIB, MIB, LONG_AGO)))

    after(monkeypatch, ContentListing, "read", go_on)

    found = running.survey()

    assert (found.missing, found.space.live, found.space.size) == (0, 4 * MIB, 4 * MIB)


def test_a_file_that_is_missing_at_one_moment_is_sought_at_the_next_one(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after its folder was listed, and had gone again when it was looked for: so had its FlowFile."""

    def come() -> None:
        running.write_file(NEW, 4 * MIB)
        running.transact(created(running.flowfile(3, NEW, 4 * MIB)))

    def go() -> None:
        running.transact(deleted(3))
        place_of(running.nifi, NEW).unlink()

    after(monkeypatch, ContentListing, "read", come)
    after(monkeypatch, NiFiMoment, "advance", go)

    found = running.survey()

    assert (found.transaction, found.flowfiles, found.missing) == (TRANSACTION + 2, 2, 0)
    assert (found.space.live, found.space.dead_files) == (3 * MIB, 0)


def test_links_are_not_followed(running: Running) -> None:
    """NiFi makes none, and what they lead to is not in its repository."""
    elsewhere = running.nifi / "elsewhere"
    elsewhere.write_bytes(bytes(1_000))
    place_of(running.nifi, NEW).symlink_to(elsewhere)
    (running.nifi / "content_repository" / "2").symlink_to(running.nifi / "content_repository" / "1")

    found = running.survey()

    assert (found.space.files, found.space.size) == (2, 3 * MIB)
