"""A volume that nobody can bring back is given up by a person's word, with what lies on it; everything else stays."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.provenance.history import history
from tests.failing_files import FailingFiles
from tests.faults.detached import Detached
from tests.faults.test_lost_volumes import SMALL, contents_of
from tests.support import TWO, Workshop, claim_of, drain, entry_of, put_all, put_each, spec_at
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord
from ullage.errors import InvalidArgument

SWAPPING = {"swap_threshold": 6, "swap_batch": 3}


def records_of(repository: Engine) -> dict[str, FlowFileRecord]:
    return {record.id: record for record in repository.ledger.flow_files()}


def files_below(path: Path) -> dict[Path, bytes]:
    return {found: found.read_bytes() for found in path.rglob("*") if found.is_file()}


def on_c2(repository: Engine) -> set[str]:
    """Resident FlowFiles and handles whose content lies in c2."""
    found = set()
    for id, record in records_of(repository).items():
        entry = repository.ledger.entry(claim_of(record).resource)
        assert entry is not None
        if entry.claim.container == "c2":
            found.add(id)
    return found


def test_it_says_what_would_be_lost_and_that_is_lost_and_nothing_else(workshop: Workshop) -> None:
    """By queue, with a DROP event each that names who did it; what lies elsewhere is served, and the space account
    still adds up.
    """
    repository = workshop.make(storage=TWO, claims=SMALL)
    kept = contents_of(1)
    for queue in ("a", "b"):
        put_each(repository, queue, kept)
    handles = [repository.handles.put(content) for content in contents_of(2)]
    repository.handles.delete(handles[0])
    lost = on_c2(repository)
    Detached(workshop.path).take_away()
    repository.volumes.look()
    (held,) = [held for container, held in repository.volumes.listed() if container.name == "c2"]
    assert sum(held.flow_files.values()) + held.handles == len(lost) > 4

    _, told = repository.volumes.forget("c2", "ann")

    assert told == held
    assert not lost & records_of(repository).keys()
    assert list(repository.content.containers) == ["c1"]
    assert "c2" not in repository.identity.containers
    dropped = {event.flow_file: event.component_type for event in history(repository) if event.type.name == "DROP"}
    dropped.pop(handles[0])
    assert dropped == dict.fromkeys(lost - {handles[0]}, "ann")
    assert repository.check(deep=True).problems == ()
    assert len(records_of(repository)) == 3 * len(kept) - len(lost)
    assert sum(share.bytes for share in repository.account.explain(repository.spec)) > 0
    assert set(drain(repository, "a")) < set(kept)
    put_each(repository, "q", contents_of(3))
    assert sorted(drain(repository, "q")) == sorted(contents_of(3))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_forgotten_volume_stays_forgotten_when_it_comes_back(workshop: Workshop, is_clean: bool) -> None:
    """Nothing on it is read, written, adopted or cleaned, though the spec still lists it."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))
    volume = Detached(workshop.path)
    volume.take_away()
    repository.volumes.forget("c2")
    volume.bring_back()
    before = files_below(workshop.path / "c2")
    assert before

    repository = workshop.reopen() if is_clean else workshop.crash()

    assert list(repository.content.containers) == ["c1"]
    put_each(repository, "q", contents_of(2))
    repository.reclamation.adopt_orphans()
    repository.reclamation.clean()
    repository.volumes.look()
    assert files_below(workshop.path / "c2") == before
    assert repository.check(deep=True).problems == ()
    assert set(contents_of(2)) <= set(drain(repository, "q"))


def test_what_swap_files_hold_is_dropped_too(workshop: Workshop) -> None:
    """They are written anew without it; the others keep their order."""
    repository = workshop.make(storage=TWO, claims=SMALL, flow_file=SWAPPING)
    contents = contents_of(1, 30)
    put_each(repository, "q", contents)
    repository.queues.swap_out_all()
    assert repository.queue("q").swap_summaries()
    Detached(workshop.path).take_away()
    repository.volumes.look()
    (held,) = [held for container, held in repository.volumes.listed() if container.name == "c2"]

    repository.volumes.forget("c2")

    assert list(repository.content.containers) == ["c1"]
    found = drain(repository, "q")
    assert len(found) == 30 - held.flow_files["q"]
    assert found == [content for content in contents if content in found]


def test_files_that_are_open_for_writing_there_are_given_up_too(workshop: Workshop) -> None:
    """Those that wait for the next writer at once, one in a session's hand with the session."""
    repository = workshop.make(storage=TWO)
    sessions = [repository.session() for _ in range(2)]
    for session in sessions:
        session.ingest("q", [b"content"])
    sessions.pop(0).commit()
    put_all(repository, "q", [b"more"])
    volumes = {claim.container for claim in repository.content.open_claims()}
    assert volumes == {"c1", "c2"}
    Detached(workshop.path).take_away()

    repository.volumes.forget("c2")
    sessions[0].rollback()
    repository.volumes.look()

    assert list(repository.content.containers) == ["c1"]
    assert repository.check(deep=True).problems == ()
    put_all(repository, "q", [b"later"])
    assert b"later" in drain(workshop.crash(), "q")


def test_what_a_session_holds_keeps_the_container_and_its_account_in_order(workshop: Workshop) -> None:
    """Until it is given back, the container is charged for that file alone."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))
    session = repository.session()
    held = session.get_many("q", 2)
    assert {entry_of(repository, record).claim.container for record in held} == {"c1", "c2"}
    Detached(workshop.path).take_away()

    repository.volumes.forget("c2")

    problems = repository.check().problems
    assert all("was given up" in problem for problem in problems), problems
    assert "c2" in repository.content.containers
    session.rollback()
    repository.volumes.look()
    assert list(repository.content.containers) == ["c1"]


@pytest.mark.parametrize(("put", "claims"), [(put_each, SMALL), (put_all, {"max_flow_files": 4})])
def test_a_swap_file_that_cannot_be_read_keeps_nothing_else(
    workshop: Workshop, put: Callable[[Engine, str, list[bytes]], object], claims: dict[str, int]
) -> None:
    """It is named beforehand; when it is back, or its queue is dropped, the container goes. So it is where files that
    can be read share content files with it.
    """
    repository = workshop.make(storage=TWO, claims=claims, flow_file=SWAPPING)
    contents = contents_of(1, 30)
    put(repository, "before", contents[:4])  # so that c2 has the turn
    put(repository, "q", contents)
    put(repository, "other", contents)
    repository.queues.swap_out_all()
    (name, *_) = [summary.name for summary in repository.queue("q").swap_summaries()]
    swap_file = workshop.path / "swap" / name
    kept = swap_file.read_bytes()
    swap_file.write_bytes(b"damaged")
    Detached(workshop.path).take_away()
    repository.volumes.look()
    (held,) = [held for container, held in repository.volumes.listed() if container.name == "c2"]
    assert held.unread == (name,)

    repository.volumes.forget("c2")

    assert sorted(repository.content.containers) == ["c1", "c2"]
    assert len(drain(repository, "other")) == 30 - held.flow_files.get("other", 0)
    swap_file.write_bytes(kept)
    repository.volumes.look()
    assert list(repository.content.containers) == ["c1"]
    assert len(drain(repository, "q")) < 30


def test_what_a_session_holds_goes_when_it_is_given_back(workshop: Workshop) -> None:
    """The container stays until then, forgotten; a start in between goes on with it."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))
    session = repository.session()
    session.get_many("q", 100)
    Detached(workshop.path).take_away()
    repository.volumes.forget("c2")
    assert sorted(repository.content.containers) == ["c1", "c2"]
    assert not repository.content.containers["c2"].is_available

    session.rollback()
    repository.volumes.look()

    assert list(repository.content.containers) == ["c1"]
    assert repository.check(deep=True).problems == ()


def test_a_start_goes_on_where_a_kill_interrupted_it(workshop: Workshop) -> None:
    """Its name is forgotten durably before anything is dropped."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))
    lost = on_c2(repository)
    volume = Detached(workshop.path)
    volume.take_away()
    session = repository.session()
    session.get_many("q", 100)
    repository.volumes.forget("c2")
    volume.bring_back()

    repository = workshop.crash()
    assert repository.content.containers["c2"].is_forgotten
    repository.volumes.look()

    assert list(repository.content.containers) == ["c1"]
    assert not lost & records_of(repository).keys()
    assert len(drain(repository, "q")) == 12 - len(lost)


def test_what_a_rewrite_moved_there_is_lost_with_it(workshop: Workshop) -> None:
    """Addresses that were born elsewhere and moved to the volume end with their file."""
    repository = workshop.make(storage=TWO, compaction={"min_used_percentage": 0, "min_reclaim": 0})
    put_all(repository, "q", contents_of(1, 40))
    drain_some = random.Random(1)
    with repository.session() as session:
        for record in session.get_many("q", 100):
            if drain_some.random() < 0.5:
                session.remove(record)
            else:
                session.transfer(record, "q")
        session.commit()
    repository.compactor.execute(repository.compactor.plan(policy="CompactAll"))
    repository.reclamation.clean()
    Detached(workshop.path).take_away()

    repository.volumes.forget("c2")

    assert list(repository.content.containers) == ["c1"]
    assert repository.check(deep=True).problems == ()
    assert workshop.crash().check(deep=True).problems == ()


@pytest.mark.parametrize("how", ["running", "in two steps", "closed", "killed"])
def test_a_container_that_was_never_made_is_forgotten_at_once(workshop: Workshop, how: str) -> None:
    """Nothing lies there, so nothing is lost, and nothing is made in its place any more."""
    repository = workshop.make(claims=SMALL)
    put_each(repository, "q", contents_of(1))
    workshop.close()
    (workshop.path / "c2").write_text("in the way")
    files = FailingFiles()
    repository = workshop.open(files, storage=TWO, claims=SMALL)
    (_, (_, held)) = repository.volumes.listed()

    if how == "in two steps":
        files.fail("create", "*/snapshot.partial")
        with pytest.raises(OSError, match="Input/output"):
            repository.volumes.forget("c2")
    else:
        repository.volumes.forget("c2")

    assert (held.flow_files, held.handles, held.live_bytes) == ({}, 0, 0)
    (workshop.path / "c2").unlink()
    if how in ("closed", "killed"):
        repository = workshop.reopen() if how == "closed" else workshop.crash()
    repository.volumes.look()
    assert list(repository.content.containers) == ["c1"]
    assert repository.identity.forgotten == ("c2",)
    assert not (workshop.path / "c2").exists()
    assert drain(repository, "q") == contents_of(1)


def refused(workshop: Workshop) -> dict[str, Callable[[Engine], object]]:
    def only_one_left(repository: Engine) -> None:
        Detached(workshop.path, "c1").take_away()
        Detached(workshop.path).take_away()
        repository.volumes.forget("c2")

    return {
        "there is no container 'c3': c1, c2": lambda repository: repository.volumes.forget("c3"),
        "the volume of c2 is there": lambda repository: repository.volumes.forget("c2"),
        "no other volume than that of c2 is there": only_one_left,
    }


@pytest.mark.parametrize(
    "why",
    ["there is no container 'c3': c1, c2", "the volume of c2 is there", "no other volume than that of c2 is there"],
)
def test_what_must_not_be_forgotten_is_refused(workshop: Workshop, why: str) -> None:
    """With nothing changed."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))

    with pytest.raises(InvalidArgument, match=why):
        refused(workshop)[why](repository)

    for name in ("c1", "c2"):
        volume = Detached(workshop.path, name)
        if volume.is_away:
            volume.bring_back()
    repository.volumes.look()
    assert sorted(drain(repository, "q")) == sorted(contents_of(1))
    assert repository.identity.forgotten == ()


def test_the_backup_of_it_restores_onto_volumes_of_the_same_names(workshop: Workshop, tmp_path: Path) -> None:
    """A new repository has forgotten nothing."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(1))
    Detached(workshop.path).take_away()
    repository.volumes.forget("c2")
    repository.backup(str(tmp_path / "backup"))
    spec = spec_at(tmp_path / "again", storage=TWO)

    Engine.restore_backup(str(tmp_path / "backup"), spec)

    with Engine.open(spec) as again:
        assert sorted(again.content.containers) == ["c1", "c2"]
        put_each(again, "new", contents_of(2))
        assert sorted(drain(again, "new")) == sorted(contents_of(2))
        assert again.check(deep=True).problems == ()
