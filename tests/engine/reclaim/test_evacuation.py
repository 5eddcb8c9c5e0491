"""Taking a container away, and losing one."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import Workshop, committing, content_sizes, put_all, put_each
from ullage.contract import CompactionTrigger, ContainerSettings, Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import Action
from ullage.errors import ForeignContainer

KB = 1 << 10
C1, C2 = ContainerSettings(name="c1", sub_path="c1"), ContainerSettings(name="c2", sub_path="c2")
LEAVING = ContainerSettings(name="c2", sub_path="c2", evacuate=True)
ARCHIVE = {"backpressure_percentage": 100}
SECTIONS: dict[str, Any] = {
    "archive": ARCHIVE,
    "claims": {"max_appendable_size": Quantity(1), "max_flow_files": 3},
    "compaction": {"output_size": Quantity(200 * KB), "bytes_per_second": Quantity(0)},
    "flow_file": {"swap_threshold": 4, "swap_batch": 2},
}


def stored(*containers: ContainerSettings) -> dict[str, Any]:
    return {**SECTIONS, "storage": {"containers": containers}}


def contents_of(repository: Engine, queue: str) -> list[bytes]:
    """Every content of a queue, which stays as it is."""
    with repository.session() as session:
        records = session.get_many(queue, 100)
        found = [session.read(record).read() for record in records]
        session.rollback()
    return found


def fill(repository: Engine) -> list[bytes]:
    """Contents on both containers, some of them swapped out, with dead ones between, a handle and archived ones."""
    contents = [bytes([number]) * (10 * KB + number) for number in range(12)]
    for content in contents:
        with committing(repository) as session:
            session.ingest("drop", [b"d" * (5 * KB)])
            session.ingest("keep", [content])
    repository.handles.put(b"h" * KB)
    repository.handles.put(b"i" * KB)
    put_each(repository, "gone", [b"g" * KB] * 2)
    repository.queues.drop(repository.queue("drop"))
    repository.queues.drop(repository.queue("gone"))
    repository.reclamation.clean()
    return contents


def on(workshop: Workshop, container: str) -> list[str]:
    return [path for path in content_sizes(workshop.path) if path.startswith(f"{container}/")]


def test_a_container_is_emptied_and_then_taken_away(workshop: Workshop) -> None:
    """What lives is rewritten elsewhere, what is archived goes, the plan says what is left, and nobody notices."""
    contents = fill(workshop.make(**stored(C1, C2)))
    assert len(on(workshop, "c2")) >= 6
    assert any("archive" in path for path in on(workshop, "c2"))
    repository = workshop.reopen(**stored(C1, LEAVING))
    before = repository.compactor.plan(keeps_guards=True)
    other = on(workshop, "c1")

    repository.compactor.run(CompactionTrigger.PERIODIC)
    repository.reclamation.clean()

    after = repository.compactor.plan(keeps_guards=True)
    assert before.notes[-1].startswith("container c2 is evacuated: ")
    assert after.notes[-1] == "container c2 is empty and may be removed from spec.storage.containers"
    assert {step.container for step in before.steps if step.action == Action.REWRITE} == {"c2"}
    assert on(workshop, "c2") == []
    assert set(other) <= set(on(workshop, "c1"))

    workshop.close()
    shutil.rmtree(workshop.path / "c2")
    repository = workshop.open(**stored(C1))
    assert sorted(contents_of(repository, "keep")) == sorted(contents)
    assert list(repository.identity.containers) == ["c1"]
    repository = workshop.crash()
    assert sorted(contents_of(repository, "keep")) == sorted(contents)
    put_all(repository, "keep", [b"more"])


def test_nothing_new_is_placed_where_it_must_leave(workshop: Workshop) -> None:
    """Writers and rewrites go to the others."""
    workshop.make(**stored(C1, LEAVING))

    put_each(workshop.repository, "q", [b"x" * KB] * 5)

    assert on(workshop, "c2") == []
    assert len(on(workshop, "c1")) == 5


def test_what_was_moved_before_leaves_too(workshop: Workshop) -> None:
    """An output is evacuated like any file, and the records of what it took name its new container."""
    contents = fill(workshop.make(**stored(C1, C2)))
    compactor = workshop.repository.compactor
    compactor.execute(compactor.plan(policy="CompactAll"))
    moved = {e.claim.index for e in workshop.repository.ledger.entries() if e.relocation and e.claim.container == "c2"}
    assert moved

    repository = workshop.reopen(**stored(C1, LEAVING))
    repository.compactor.run(CompactionTrigger.ADMIN)
    repository.reclamation.clean()
    places = {entry.claim.container for entry in repository.ledger.entries()}
    repository = workshop.reopen(**stored(C1))

    assert places == {"c1"}
    assert sorted(contents_of(repository, "keep")) == sorted(contents)


def test_one_that_the_settings_no_longer_list_is_emptied(workshop: Workshop) -> None:
    """Left out while it holds something it is read and emptied as with `evacuate: true`, and forgotten when empty."""
    contents = fill(workshop.make(**stored(C1, C2)))

    repository = workshop.reopen(**stored(C1))
    assert on(workshop, "c2") != []
    assert sorted(contents_of(repository, "keep")) == sorted(contents)
    assert "c2" in repository.reclamation.survey().evacuated
    repository.compactor.run(CompactionTrigger.ADMIN)
    repository.reclamation.clean()
    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1"}

    repository = workshop.reopen(**stored(C1))
    assert set(repository.identity.containers) == set(repository.content.containers) == {"c1"}
    assert sorted(contents_of(repository, "keep")) == sorted(contents)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_lost_container_is_told_with_what_it_held(workshop: Workshop, is_foreign: bool) -> None:
    """Claims, bytes, FlowFiles by queue and handles, those in swap files too; and nothing is made in its place."""
    repository = workshop.make(**stored(C1, C2))
    for number in range(8):
        put_all(repository, "a" if number < 6 else "b", [bytes([number]) * KB])
    repository.handles.put(b"h" * 10)
    repository.handles.put(b"i" * 10)
    places = {entry.claim.index: entry.claim.container for entry in repository.ledger.entries()}
    held = list(places.values()).count("c2")
    workshop.close()
    (workshop.path / "c2").rename(workshop.path / "unmounted")
    (workshop.path / "c1").rename(workshop.path / "away")  # as long as one is there the start serves it
    if is_foreign:
        other = Workshop(workshop.path.parent / "other")
        other.make(**stored(C1, C2))
        other.close()
        shutil.copytree(other.path / "c2", workshop.path / "c2")

    with pytest.raises(ForeignContainer, match="volume mounted" if not is_foreign else "of repository") as raised:
        workshop.open()

    told = str(raised.value)
    assert held == 5
    assert "It held 5 resource claims (0 archived); in use 5 content claims, 4106 bytes" in told
    assert "of 4 FlowFiles (a 3, b 1) and 1 handles" in told
    assert is_foreign or not (workshop.path / "c2").exists()
    shutil.rmtree(workshop.path / "c2", ignore_errors=True)
    (workshop.path / "unmounted").rename(workshop.path / "c2")
    (workshop.path / "away").rename(workshop.path / "c1")
    workshop.open()


def test_a_full_target_leaves_what_has_no_room(workshop: Workshop) -> None:
    """An evacuation never overfills the containers that stay."""
    fill(workshop.make(**stored(C1, C2)))
    small = ContainerSettings(name="c1", sub_path="c1", capacity=Quantity(80 * KB))
    repository = workshop.reopen(**stored(small, LEAVING) | {"archive": ARCHIVE | {"max_usage_percentage": 99}})

    before = on(workshop, "c2")

    report = repository.compactor.run(CompactionTrigger.PERIODIC)

    containers = {entry.claim.index: entry.claim.container for entry in repository.ledger.entries()}
    assert {containers[left.resource] for left in report.left} == {"c2"}
    assert {left.reason.split(" of ")[0] for left in report.left} == {"no room for an output"}
    assert on(workshop, "c2") == before


def test_evacuation_keeps_to_its_budget(workshop: Workshop) -> None:
    """It is paced like every rewrite."""
    fill(workshop.make(**stored(C1, C2)))
    paced = {"compaction": {"output_size": Quantity(20 * KB), "bytes_per_second": Quantity(10 * KB)}}
    repository = workshop.reopen(**stored(C1, LEAVING) | paced)

    report = repository.compactor.run(CompactionTrigger.PERIODIC)

    assert report.copied_bytes / report.seconds <= 1.5 * 10 * KB
    assert report.copied_bytes > 50 * KB


def test_a_restored_backup_of_moved_content_needs_only_what_stays(workshop: Workshop, tmp_path: Path) -> None:
    """After the evacuation a backup names the emptied container no more."""
    contents = fill(workshop.make(**stored(C1, C2)))
    repository = workshop.reopen(**stored(C1, LEAVING))
    repository.compactor.run(CompactionTrigger.ADMIN)
    repository.reclamation.clean()
    repository = workshop.reopen(**stored(C1))
    repository.backup(str(tmp_path / "backup"))
    copy = Workshop(tmp_path / "copy")
    copy.spec = workshop.spec.__class__.embedded(copy.path)

    Engine.restore_backup(str(tmp_path / "backup"), copy.spec)

    assert sorted(contents_of(copy.open(), "keep")) == sorted(contents)
    copy.close()
