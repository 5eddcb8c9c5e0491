"""`ullage nifi reclaim` and `undo`, as people and scripts have them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from tests.nifi.stopped import DEAD, NAMED, contents, of_nifi, path_of, stopped_nifi
from tests.nifi.test_running import journal_of
from ullage.nifi.home import NiFiHome
from ullage_agent.cli.app import app

RUNNER = CliRunner(env={"COLUMNS": "400"})


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    home = stopped_nifi(tmp_path / "nifi")
    (tmp_path / "nifi" / "conf").mkdir()
    (tmp_path / "nifi" / "conf" / "nifi.properties").write_text(
        "nifi.flowfile.repository.directory=./flowfile_repository\n"
        "nifi.content.repository.directory.default=./content_repository\n"
        "nifi.content.repository.directory.second=./content_second\n"
        "nifi.provenance.repository.directory.default=./provenance_repository\n"
    )
    return home


@pytest.fixture
def elsewhere(home: NiFiHome) -> Iterator[Path]:
    """Another disk."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no other disk")
    with TemporaryDirectory(dir="/dev/shm", prefix="ullage-copies-") as folder:
        yield Path(folder)


def run(home: NiFiHome, command: str, *arguments: object, expect: int = 0) -> Result:
    conf = Path(home.flowfiles).parent
    result = RUNNER.invoke(app, ["nifi", command, str(conf), *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result


def test_reclaim_and_undo_say_what_they_did(home: NiFiHome, elsewhere: Path) -> None:
    """How much came back, where copies are, and how to go back; then everything is as before."""
    before = of_nifi(home)

    done = run(home, "reclaim", "--save", elsewhere, "--replay", "refuse").stdout
    undone = run(home, "undo").stdout

    assert "came back from 5 files. NiFi can be started." in done
    assert "Provenance events that NiFi does not see any more: " in done
    assert str(elsewhere) in done
    assert undone.startswith("Taken back: 5 files have all bytes again that they had")
    assert of_nifi(home) == before
    assert "taken back already" in run(home, "undo", expect=6).stderr


def test_replays_are_kept_unless_they_are_refused(home: NiFiHome) -> None:
    """What stays for them is told."""
    shown = run(home, "plan").stdout
    done = run(home, "reclaim", "--for-good").stdout

    assert "is dead, but provenance events name it, so it stays for replays" in shown
    assert "--replay refuse gives it back too" in done
    assert path_of(home, DEAD).exists()


def test_programs_get_a_document(home: NiFiHome) -> None:
    """With the plan that was carried out."""
    document = json.loads(run(home, "reclaim", "--for-good", "--replay", "refuse", "--json").stdout)

    assert (document["outcome"], document["files"]) == ("done", 5)
    assert document["freed"] >= document["plan"]["freed"] > 0
    again = json.loads(run(home, "reclaim", "--for-good", "--replay", "refuse", "--json").stdout)
    assert again["outcome"] == "nothing"


def test_it_has_to_be_said_whether_it_can_be_undone(home: NiFiHome, tmp_path: Path) -> None:
    """One or the other; and copies on the same disk give nothing back."""
    before = of_nifi(home)

    for arguments in ((), ("--for-good", "--save", tmp_path)):
        assert "say --save DIR, or --for-good" in run(home, "reclaim", *arguments, expect=2).stderr
    assert "nothing would come back" in run(home, "reclaim", "--save", tmp_path, expect=2).stderr
    assert "no directory" in run(home, "reclaim", "--save", tmp_path / "none", expect=2).stderr
    assert of_nifi(home) == before


def test_a_nifi_that_may_run_has_its_own_code(home: NiFiHome) -> None:
    """And a word for those who know better."""
    journal_of(home).write_bytes(journal_of(home).read_bytes().rstrip(b"\x7f"))
    before = contents(home)

    refused = run(home, "reclaim", "--for-good", expect=3)

    assert "--not-running" in refused.stderr
    run(home, "reclaim", "--for-good", "--not-running")
    assert contents(home) == before


def test_what_lives_is_brought_together(home: NiFiHome, elsewhere: Path) -> None:
    """What it brings and what it needs is told before, what it did after; undo takes everything back."""
    before = of_nifi(home)

    shown = run(home, "plan", "--rewrite", "--replay", "refuse").stdout
    document = json.loads(run(home, "plan", "--rewrite", "--replay", "refuse", "--json").stdout)["rewrite"]
    done = run(home, "reclaim", "--rewrite", "--replay", "refuse", "--save", elsewhere).stdout
    undone = run(home, "undo").stdout

    assert f"would be brought together in {document['new']} new file" in shown
    assert "of free room for a while to do it at once" in shown
    assert f"of live content were brought together in {document['new']} new file" in done
    assert done.count(str(elsewhere)) == 2
    assert undone.startswith("Taken back: ")
    assert of_nifi(home) == before


def test_what_replays_need_is_not_brought_together(home: NiFiHome) -> None:
    """The reason is told."""
    shown = run(home, "plan", "--rewrite").stdout

    assert "can't be brought together: provenance events name contents in it" in shown


def test_files_that_are_left_are_named_with_their_own_code(home: NiFiHome, elsewhere: Path) -> None:
    """A copy that was damaged: the others are back."""
    run(home, "reclaim", "--save", elsewhere, "--replay", "refuse")
    (kept,) = elsewhere.glob("*/contents")
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)

    result = run(home, "undo", expect=11)

    assert "its copy is damaged" in result.stderr
    assert "Still set aside, because something is missing" in result.stdout
    assert path_of(home, NAMED).exists()


def test_nothing_is_reclaimed_where_flowfiles_are_missing(home: NiFiHome) -> None:
    """With the code of a survey that is not complete."""
    for swap in (Path(home.flowfiles) / "swap").iterdir():
        swap.unlink()

    result = run(home, "reclaim", "--for-good", expect=11)

    assert result.stdout.startswith("Nothing comes back.")
    assert "it can't be known what is alive" in result.stderr
