"""An intent lies among NiFi's files, and root may be the one who reclaims: it leads nobody elsewhere."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nifi.stopped import DEAD, everything, of_nifi, path_of, stopped_nifi
from tests.nifi.test_reclaim import reclaim, reclaimer
from ullage.beneath import LeadsOut
from ullage.nifi.home import NiFiHome
from ullage.nifi.intent import NAME
from ullage.nifi.reclaimplan import Replays
from ullage.nifi.trouble import NotSurveyable

Planted = Callable[[dict[str, Any], str], object]
"""Changes an intent so that it names what lies in a folder elsewhere."""


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    """Of which something was reclaimed, so that there is an intent to be undone; beside it lies another folder."""
    found = stopped_nifi(tmp_path / "nifi")
    (tmp_path / "copies").mkdir()
    (tmp_path / "elsewhere" / "3").mkdir(parents=True)
    (tmp_path / "elsewhere" / "3" / "file").write_bytes(b"somebody else's")
    reclaim(found, tmp_path / "copies")
    return found


def deleted_step(intent: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in intent["steps"] if step["is_deleted"])


def rename(intent: dict[str, Any], file: str) -> None:
    step = deleted_step(intent)
    intent["owners"][file] = intent["owners"].pop(step["file"])
    step["file"] = file


PLANTED: list[tuple[str, Planted, str]] = [
    ("a file", lambda intent, _: rename(intent, "default/../../elsewhere/3/new"), "names files elsewhere"),
    ("a name", lambda intent, _: rename(intent, "default/../elsewhere"), "names files elsewhere"),
    ("another container", lambda intent, _: rename(intent, "third/1/new"), "names files elsewhere"),
    ("a container", lambda intent, place: intent["containers"].update(second=place), "other directories"),
    ("events", lambda intent, place: intent["set_aside"][0].update(directory=place), "other directories"),
    ("an event", lambda intent, _: intent["set_aside"][0].update(name="../../elsewhere/3"), "names files elsewhere"),
    ("a folder", lambda intent, _: intent.update(id="1/../../../elsewhere"), "names files elsewhere"),
    ("a checkpoint", lambda intent, _: intent.update(built=[["swap/../../../x", 1, 1]]), "names files elsewhere"),
    ("survivors", lambda intent, _: intent.update(new=[_new("default/1/..")]), "names files elsewhere"),
]


def _new(file: str) -> dict[str, Any]:
    return {"file": file, "size": 1, "like": DEAD}


@pytest.mark.parametrize("stage", ["copying", "changing", "done", "undoing"])
@pytest.mark.parametrize(("plant", "why"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_an_intent_that_leads_elsewhere_is_refused(
    home: NiFiHome, tmp_path: Path, plant: Planted, why: str, stage: str
) -> None:
    """By reclaim and undo, at each stage at which they would go on with it."""
    written = Path(home.flowfiles) / f"{NAME}.done"
    intent = json.loads(written.read_bytes())
    plant(intent, str(tmp_path / "elsewhere"))
    written.unlink()
    written.with_name(f"{NAME}.{stage}").write_text(json.dumps(intent))
    before, nifi = everything(tmp_path / "elsewhere"), of_nifi(home)

    acts: list[Callable[[], object]] = [reclaimer(home).undo]
    if stage != "done":  # then reclaim begins something new
        acts.append(lambda: reclaimer(home).reclaim(Replays.REFUSE, ""))
    for act in acts:
        with pytest.raises(NotSurveyable, match=why):
            act()

    assert (everything(tmp_path / "elsewhere"), of_nifi(home)) == (before, nifi)


def test_a_section_that_leads_elsewhere_gets_nothing_back(home: NiFiHome, tmp_path: Path) -> None:
    """NiFi makes no links: a file would be made in somebody else's folder."""
    section = path_of(home, DEAD).parent
    section.rmdir()
    section.symlink_to(tmp_path / "elsewhere" / "3")

    report = reclaimer(home).undo()

    assert [(each.file, each.why) for each in report.passed_over] == [(DEAD, "its section is a link to elsewhere")]
    assert os.listdir(tmp_path / "elsewhere" / "3") == ["file"]


def test_what_was_built_is_not_looked_for_behind_a_link(home: NiFiHome, tmp_path: Path) -> None:
    """All that lies there would be removed."""
    written = Path(home.flowfiles) / f"{NAME}.done"
    intent = json.loads(written.read_bytes())
    intent["new"] = [_new("default/1/new")]
    written.with_name(f"{NAME}.copying").write_text(json.dumps(intent))
    (Path(home.flowfiles) / f"{NAME}-{intent['id']}").symlink_to(tmp_path / "elsewhere" / "3")

    reclaim(home)

    assert os.listdir(tmp_path / "elsewhere" / "3") == ["file"]


def test_copies_are_not_dropped_behind_a_link(home: NiFiHome, tmp_path: Path) -> None:
    """What somebody else calls as copies are called would be removed."""
    written = Path(home.flowfiles) / f"{NAME}.done"
    intent = json.loads(written.read_bytes())
    intent["copies"] = str(tmp_path / "planted")
    written.with_name(f"{NAME}.copying").write_text(json.dumps(intent))
    (tmp_path / "elsewhere" / "3" / "contents").write_bytes(b"somebody else's")
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / f"{NAME}-{intent['id']}").symlink_to(tmp_path / "elsewhere" / "3")

    with pytest.raises(LeadsOut):
        reclaim(home)

    assert sorted(os.listdir(tmp_path / "elsewhere" / "3")) == ["contents", "file"]


def test_an_intent_that_is_a_pipe_is_not_waited_for(home: NiFiHome) -> None:
    """Nobody may ever write to it."""
    os.mkfifo(Path(home.flowfiles) / f"{NAME}.changing")

    with pytest.raises(NotSurveyable, match=r"ullage-reclaim\.changing can't be read: it is no file"):
        reclaim(home)
