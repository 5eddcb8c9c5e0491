"""Some of a backup: queues, FlowFiles and handles come back as a model has them, and nothing else does."""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import ullage
from tests.engine.test_cold_handles import cool
from tests.places import Place
from tests.service.running import document_at
from tests.support import flip
from ullage.contract import PunchSettings
from ullage.embedded.repository import EmbeddedRepository
from ullage.errors import DirectoryNotEmpty, InvalidArgument, NotFound, RepositoryDamaged
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode

KB = 1024
QUEUES = ("in", "out", "rest")
SMALL: dict[str, Any] = {
    "flow_file": {"swap_threshold": 6, "swap_batch": 2},
    "archive": {"enabled": False},
    "claims": {"max_flow_files": 3, "max_appendable_size": 1000 * KB},
    "compaction": {"punch": PunchSettings(enabled=False)},
}
"""Settings with which few records are swapped, and files are rewritten."""

Held = tuple[bytes, str]
"""A content, and the attribute `n`."""


class Model(NamedTuple):
    """What there is at one moment: the FlowFiles of each queue in their order, and the handles."""

    queues: dict[str, dict[str, Held]]
    handles: dict[str, Held]

    def copy(self) -> "Model":
        return Model({name: dict(found) for name, found in self.queues.items()}, dict(self.handles))


def lived(repository: ullage.Repository, model: Model, chooser: random.Random, steps: int) -> None:
    """Some of all that can happen to records, to both."""
    for number in range(steps):
        name = chooser.choice(QUEUES)
        what = chooser.random()
        content = chooser.randbytes(chooser.choice((0, 1, 300, 70 * KB, 300 * KB)))
        if what < 0.5:
            id = repository.queues.put(name, content, {"n": str(number)})
            model.queues[name][id] = content, str(number)
        elif what < 0.7:
            id = repository.handles.put(content, {"n": str(number)})
            model.handles[id] = content, str(number)
        elif what < 0.85 and model.queues[name]:
            with repository.session() as session:
                taken = session.get(name)
                assert taken is not None
                session.remove(taken)
                session.commit()
            del model.queues[name][taken.id]
        elif model.handles:
            gone = chooser.choice(sorted(model.handles))
            repository.handles.delete(gone)
            del model.handles[gone]
    repository.reclamation.reclaim(policy="CompactAll")
    assert isinstance(repository, EmbeddedRepository)
    cool(repository.engine)


def held_in(root: Path) -> Model:
    """All that a repository hands out, in its order."""
    queues: dict[str, dict[str, Held]] = {}
    with ullage.open(root) as repository, repository.session() as session:
        for queue in repository.queues.all():
            found = queues[queue.name] = {}
            while (each := session.get(queue.name)) is not None:
                found[each.id] = session.read(each).read(), each.attributes["n"]
        handles = {
            head.id: (repository.handles.get(head.id), head.attributes["n"]) for head in repository.handles.all()
        }
        session.rollback()
    return Model(queues, handles)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_chosen_comes_back_as_it_was_and_nothing_else(tmp_path: Path, place: Place, seed: int) -> None:
    """Of each generation, of a directory and of a bucket: queues with their order, some FlowFiles, some handles; with
    contents that were moved, FlowFiles that were swapped, handles that rest, and empty contents.
    """
    chooser = random.Random(seed)
    model = Model({name: {} for name in QUEUES}, {})
    moments: list[Model] = []
    where = place.bucket or str(place.folder)
    with ullage.open(None, create=True, config=document_at(tmp_path / "r", **SMALL)) as repository:
        for name in QUEUES:
            repository.queues.define(name)
        for _ in range(3):
            lived(repository, model, chooser, 25)
            repository.backup(where, keep=ullage.Keep(last=3))
            moments.append(model.copy())
        assert sum(run.report.done["rewrite"] for run in repository.reclamation.runs() if run.report) > 0
    assert all(any((place.folder / name).iterdir()) for name in ("swap", "runs"))

    for number, moment in enumerate(moments, 1):
        queues = {"in": moment.queues["in"]}
        single = chooser.sample(sorted(moment.queues["rest"]), min(2, len(moment.queues["rest"])))
        handles = chooser.sample(sorted(moment.handles), min(3, len(moment.handles)))
        root = tmp_path / f"some-{number}"
        made = ullage.restore_some(
            where, root, queues=["in"], ids=[*single, *handles], generation=None if number == 3 else number
        )
        if single:
            queues["rest"] = {id: held for id, held in moment.queues["rest"].items() if id in single}
        expected = Model(queues, {id: moment.handles[id] for id in handles})
        found = held_in(root)
        assert found == expected
        assert list(found.queues["in"]) == list(expected.queues["in"])
        assert (made.generation, made.check.problems, made.lost) == (number, (), ())
        assert made.queues.get("in", 0) == len(expected.queues["in"])
        assert made.handles == len(handles)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def written(tmp_path: Path) -> tuple[Path, str, str]:
    """A backup of a FlowFile and of a handle with large contents, each in a file of its own; and their ids."""
    with ullage.open(tmp_path / "r", create=True) as repository:
        first = repository.queues.put("in", b"a" * 2_000 * KB, {"n": "1"})
        handle = repository.handles.put(b"b" * 2_000 * KB)
        repository.backup(str(tmp_path / "b"))
    return tmp_path / "b", first, handle


def test_no_other_content_is_read(tmp_path: Path) -> None:
    """One that is damaged hinders nobody who wants another; who wants it is told, and gets the rest."""
    backup, first, handle = written(tmp_path)
    files = sorted((backup / "content" / "c1").iterdir())
    assert len(files) == 2
    for path in files:
        if b"a" in path.read_bytes()[:10]:
            flip(path, 1_000)

    alone = ullage.restore_some(backup, tmp_path / "one", ids=[handle])
    both = ullage.restore_some(backup, tmp_path / "both", queues=["in"], ids=[handle])

    assert (alone.handles, alone.queues, alone.lost_count) == (1, {}, 0)
    assert [each.id for each in both.lost] == [first]
    assert (both.handles, both.queues, both.check.problems) == (1, {}, ())


def test_what_is_not_there_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    """With the queues that there are; nor is anything made of records that are damaged, or where something lies."""
    backup, _, handle = written(tmp_path)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"queues": ["out"]}, "has no queue 'out'; it has: in"),
        ({"ids": [handle, "0" * 8 + "-0000-4000-8000-" + "0" * 12]}, "has no FlowFile or handle 0"),
        ({"ids": ["x"]}, "has no FlowFile or handle x"),
    )
    for asked, words in wrong:
        with pytest.raises(NotFound, match=words):
            ullage.restore_some(backup, tmp_path / "none", **asked)
    with pytest.raises(InvalidArgument, match="what is to be restored"):
        ullage.restore_some(backup, tmp_path / "none")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(DirectoryNotEmpty):
        ullage.restore_some(backup, tmp_path / "full", ids=[handle])
    (snapshot,) = (backup / "flowfile").iterdir()
    flip(snapshot, 50)
    with pytest.raises(RepositoryDamaged, match="checksum"):
        ullage.restore_some(backup, tmp_path / "none", ids=[handle])
    assert not (tmp_path / "none").exists()


def test_the_command_brings_some_back(tmp_path: Path) -> None:
    """Its figures, its exit codes, and what is there afterwards."""
    backup, first, handle = written(tmp_path)
    run = CliRunner().invoke
    root = str(tmp_path / "some")

    made = run(app, ["restore", str(backup), root, "--queue", "in", "--id", handle, "--json"])
    got = run(app, ["get", handle, "--root", root])
    missing = run(app, ["restore", str(backup), str(tmp_path / "none"), "--id", "x"])
    mixed = run(app, ["restore", str(backup), str(tmp_path / "none"), "--id", handle, "--container", "c1=d"])

    assert [each.exit_code for each in (made, got, missing, mixed)] == [0, 0, ExitCode.NOT_FOUND, ExitCode.USAGE]
    assert (json.loads(made.stdout)["queues"], json.loads(made.stdout)["handles"]) == ({"in": 1}, 1)
    assert got.stdout_bytes == b"b" * 2_000 * KB
    assert list(held_ids(Path(root))) == [first]


def held_ids(root: Path) -> list[str]:
    with ullage.open(root) as repository:
        return [each.id for each in repository.queues.all_flow_files("in")]
