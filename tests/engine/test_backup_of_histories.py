"""A volume that was put back as it was goes on with another history: a backup tells the files of both apart."""

import shutil
from pathlib import Path

from tests.engine.provenance.history import history, told
from tests.engine.test_backup import MB, restored
from tests.support import Workshop, committing, drain, put_all
from ullage.contract import Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import Action


def put_back(workshop: Workshop, kept: Path) -> Engine:
    """The repository as it was when this was called first."""
    workshop.close()
    if kept.exists():
        shutil.rmtree(workshop.path)
        shutil.copytree(kept, workshop.path)
    else:
        shutil.copytree(workshop.path, kept)
    workshop.clock.advance(5)
    return workshop.open()


def test_event_files_of_one_first_number_are_told_apart(workshop: Workshop, tmp_path: Path) -> None:
    """Their numbers go on from the same place in both histories."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    repository.provenance.drain()
    repository.backup(str(tmp_path / "b"))
    for name in ("first", "other"):
        repository = put_back(workshop, tmp_path / "as it was")
        put_all(repository, name, [b"y"])
        repository.provenance.drain()
        repository.backup(str(tmp_path / "b"))
    expected = [told(event) for event in history(repository)]

    with restored(tmp_path / "b", tmp_path / "r") as again:
        assert [told(event) for event in history(again)] == expected


def test_files_with_other_holes_are_told_apart(workshop: Workshop, tmp_path: Path) -> None:
    """What one history has punched the other has kept, in a file of the same generation and length."""
    repository = workshop.make(
        archive={"enabled": False},
        claims={"max_appendable_size": Quantity(64 * MB), "large_claim": Quantity(64 * MB)},
        compaction={"min_used_percentage": 0, "min_reclaim": 0, "bytes_per_second": Quantity(0)},
    )
    contents = {name: name.encode() * MB for name in ("a", "b", "c")}
    with committing(repository) as session:
        for name, content in contents.items():
            session.ingest(name, [content])
        session.ingest("end", [b"end"])
    repository.content.retire_idle()
    for dropped in ("a", "b"):
        repository = put_back(workshop, tmp_path / "as it was")
        repository.queues.drop(repository.queue(dropped))
        repository.reclamation.clean()
        done = repository.compactor.execute(repository.compactor.plan())
        assert Action.PUNCH in done.done
        repository.backup(str(tmp_path / "b"))

    with restored(tmp_path / "b", tmp_path / "r") as again:
        assert drain(again, "a") == [contents["a"]]
        assert drain(again, "c") == [contents["c"]]
