"""Whoever may write among NiFi's files may swap a folder for a link at any moment of a reclaim: nothing that lies
elsewhere is removed, made, read or given to anybody.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.nifi.samples import NAMES as SAMPLES, home_of_sample, unpacked
from tests.nifi.stopped import BLOCK, DEAD, OLD_NS, SHARED, everything, path_of, stopped_nifi
from tests.nifi.test_reclaim import reclaim, reclaimer
from tests.nifi.test_rewrite import rewrite
from ullage.beneath import LeadsOut
from ullage.errors import UllageError
from ullage.nifi.changes import Changes, Likeness
from ullage.nifi.home import NiFiHome
from ullage.nifi.intent import NAME, Stage
from ullage.nifi.opened import open_regular
from ullage.nifi.reclaimplan import Replays

FILES = 120
ROUNDS = 20
"""Reclaims at the most until all these files are gone; each leaves those alone that lay behind the link just then."""

THEIRS = b"somebody else's"

ATTACKER = """
import ctypes, os, sys
section, elsewhere = sys.argv[1:]
link = section + ".link"
os.symlink(elsewhere, link)
exchange = ctypes.CDLL(None, use_errno=True).renameat2
names = (-100, link.encode(), -100, section.encode(), 2)
done = exchange(*names)
sys.stdout.write("no\\n" if done else "ready\\n")
sys.stdout.flush()
while not done:
    exchange(*names)
"""
"""Each of two names has the other's file at once: there is no moment at which one is missing."""


class Swapping(Changes):
    """Just before its first call of a kind about something below these folders, what holds that becomes a link."""

    def __init__(self, kind: str, folders: Iterable[str], elsewhere: Path) -> None:
        self.swapped = ""
        self._kind = kind
        self._folders = [str(folder) for folder in folders]
        self._elsewhere = elsewhere

    def unlink(self, path: str) -> None:
        self._swap("unlink", path)
        super().unlink(path)

    def create(self, path: str, mode: int) -> int:
        self._swap("create", path)
        return super().create(path, mode)

    def write_new(
        self, path: str, pieces: Iterable[bytes], like: Likeness | None = None, *, is_synced: bool = True
    ) -> None:
        self._swap("write_new", path)
        super().write_new(path, pieces, like, is_synced=is_synced)

    def rename(self, source: str, target: str) -> None:
        self._swap("rename", target)
        super().rename(source, target)

    def names(self, path: str) -> list[str]:
        self._swap("names", os.path.join(path, "any"))
        return super().names(path)

    def _swap(self, kind: str, path: str) -> None:
        folder = os.path.dirname(path)
        if kind == self._kind and not self.swapped and os.path.dirname(folder) in self._folders:
            self.swapped = path
            (self._elsewhere / os.path.basename(path)).write_bytes(THEIRS)
            os.rename(folder, f"{folder}.away")
            os.symlink(self._elsewhere, folder)


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    return stopped_nifi(tmp_path / "nifi")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def test_an_attacker_who_swaps_a_section_all_the_time_gains_nothing(home: NiFiHome, elsewhere: Path) -> None:
    """A process of its own, as fast as it can, while hundreds of dead files of that section go."""
    section = path_of(home, "default/9/any").parent
    section.mkdir()
    names = [f"1700000000000-{number}" for number in range(FILES)]
    for name in names:
        (section / name).write_bytes(bytes(BLOCK))
        (elsewhere / name).write_bytes(THEIRS)
    before = everything(elsewhere)
    section_folder = os.open(section, os.O_RDONLY)
    command = [sys.executable, "-c", ATTACKER, str(section), str(elsewhere)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert attacker.stdout is not None
    try:
        if attacker.stdout.readline() != b"ready\n":
            pytest.skip("this filesystem exchanges no names")
        for _ in range(ROUNDS):
            with suppress(OSError, UllageError):  # what leads elsewhere just now is refused
                reclaim(home)
            if not os.listdir(section_folder):
                break
    finally:
        attacker.kill()
        attacker.communicate()
        left = os.listdir(section_folder)
        os.close(section_folder)

    assert everything(elsewhere) == before
    assert len(left) < FILES  # the two did meet


def test_a_section_that_becomes_a_link_loses_no_file(home: NiFiHome, elsewhere: Path) -> None:
    """Between the look at a dead file and its removal."""
    changes = Swapping("unlink", home.containers.values(), elsewhere)

    report = reclaimer(home, changes).reclaim(Replays.REFUSE, "")

    assert changes.swapped == str(path_of(home, DEAD))
    assert [each.file for each in report.passed_over] == [DEAD]
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [THEIRS]


def test_a_section_that_becomes_a_link_gets_no_file_back(home: NiFiHome, tmp_path: Path, elsewhere: Path) -> None:
    """Just before what was deleted is made again."""
    (tmp_path / "copies").mkdir()
    reclaim(home, tmp_path / "copies")
    changes = Swapping("create", home.containers.values(), elsewhere)

    report = reclaimer(home, changes).undo()

    assert changes.swapped == str(path_of(home, DEAD))
    assert [each.file for each in report.passed_over] == [DEAD]
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [THEIRS]


def test_events_are_set_aside_into_no_folder_elsewhere(home: NiFiHome, elsewhere: Path) -> None:
    """The folder that gets them lies where others may write."""
    changes = Swapping("rename", home.provenance or (), elsewhere)

    with pytest.raises(LeadsOut):
        reclaimer(home, changes).reclaim(Replays.REFUSE, "")

    assert [path.read_bytes() for path in elsewhere.iterdir()] == [THEIRS]


@pytest.mark.parametrize("kind", ["write_new", "rename", "names"])
def test_a_rewrite_puts_nothing_elsewhere(kind: str, tmp_path: Path, elsewhere: Path) -> None:
    """Neither survivors nor a checkpoint; and what lies there is not taken for what it has built."""
    home = home_of_sample(unpacked(SAMPLES[0], tmp_path))
    home = msgspec.structs.replace(home, provenance=(), appendable=50_000)
    changes = Swapping(kind, [home.flowfiles, *home.containers.values()], elsewhere)
    if kind == "names":
        _leave_built(home)

    with suppress(OSError, UllageError):  # what it is refused with is no matter here
        rewrite(home, changes=changes)

    assert changes.swapped
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [THEIRS]


def test_nothing_comes_back_that_runs_as_its_owner(home: NiFiHome, tmp_path: Path) -> None:
    """An intent is a file among NiFi's: whoever writes one may not have root make a program of root's."""
    (tmp_path / "copies").mkdir()
    reclaim(home, tmp_path / "copies")
    written = Path(home.flowfiles) / f"{NAME}.{Stage.DONE}"
    intent = msgspec.json.decode(written.read_bytes())
    intent["owners"][DEAD][2] = 0o6755
    written.write_bytes(msgspec.json.encode(intent))

    reclaimer(home).undo()

    assert path_of(home, DEAD).stat().st_mode & 0o7777 == 0o755
    assert path_of(home, DEAD).stat().st_mtime_ns == OLD_NS


def test_a_file_is_not_read_through_a_link_below_its_folder(home: NiFiHome, elsewhere: Path) -> None:
    """Its bytes would come among NiFi's. Above the folder links are the user's own, and followed."""
    path = path_of(home, SHARED)
    root = Path(home.containers["second"])
    (elsewhere / "root").symlink_to(root)
    os.close(open_regular(str(elsewhere / "root" / path.relative_to(root)), str(elsewhere / "root")))
    path.parent.rename(elsewhere / "section")
    path.parent.symlink_to(elsewhere / "section")

    os.close(open_regular(str(path)))
    with pytest.raises(LeadsOut):
        open_regular(str(path), str(root))


def _leave_built(home: NiFiHome) -> None:
    """As a rewrite leaves it that was killed before its files took their places."""

    class Stopping(Changes):
        def rename(self, source: str, target: str) -> None:
            if source.endswith(Stage.COPYING):
                raise KeyboardInterrupt
            super().rename(source, target)

    with pytest.raises(KeyboardInterrupt):
        rewrite(home, changes=Stopping())
