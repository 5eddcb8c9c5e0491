"""A share that is adopted: what anybody was told is there is found, and who wrote before cannot come back."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ullage
from tests.cli.test_commands import ullage as run
from tests.places import Place
from tests.proof.figures import note
from tests.service.running import Running, document_at, until
from tests.shipping import test_publishing
from tests.shipping.explored import Bucket, Program, Replayed, explore, is_epoch
from tests.shipping.held import held_rounds
from tests.shipping.test_fence import SERDE, SHARE, counting, holds, writing
from tests.shipping.test_publishing import at_first, going_on
from tests.shipping.test_served import has_shipped, replicating, replication
from ullage.engine.shipping import adopting
from ullage.engine.shipping.adopting import adopt_share
from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.shareplace import log_name
from ullage.errors import InvalidArgument


def adopting_as(number: int) -> Program:
    """One that adopts the share, and then tells all that counts in its log."""

    def run_it(place: Replayed, told: list[bytes]) -> None:
        _, fence = adopt_share(place, SHARE, f"node-{number}", SERDE, f"{number:016x}")
        found = {}
        for name in map(log_name, range(1, fence + 1)):
            there = place.get(name)
            assert there is not None, "the log has no holes"
            found[name] = there.data
        told.append(b"adopts " + b", ".join(said for _, said in counting(found)))

    return run_it


def nothing_is_left_behind(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
    """What any other writer was ever told is there, the adopter has found; and what holds of any writers."""
    *others, adopter = told
    holds(objects, others)
    for adoption in adopter:
        known = adoption.removeprefix(b"adopts ").split(b", ")
        for said in others:
            assert set(said) <= set(known), (told, counting(objects))


def test_who_adopts_has_all_that_anybody_was_told_and_none_of_them_comes_back() -> None:
    """A writer, a start of the same root at any moment, and an adopter, in every order; of two with every fault."""
    two = explore([writing(1, 1), adopting_as(2)], nothing_is_left_behind, faults=1)
    three = explore([writing(1, 1), writing(3, 1), adopting_as(2)], nothing_is_left_behind, faults=0)

    note(adoption_states=two.states + three.states)
    assert two.ends > 100
    assert three.ends > 100


def test_without_the_condition_of_epoch_a_root_that_was_left_behind_could_come_back() -> None:
    """It reads `epoch` before the adoption, and puts its own over it."""
    with pytest.raises(AssertionError):
        explore([writing(1, 1), writing(3, 1), adopting_as(2)], nothing_is_left_behind, 0, Bucket(ignores=is_epoch))


@pytest.mark.parametrize("lacking", ["_require_adoption", "require_epoch"])
def test_each_look_at_epoch_is_needed(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whose adoption it names, before it is taken; and whether it is still the own, after the fence."""
    if lacking == "require_epoch":
        monkeypatch.setattr(LogWriter, lacking, lambda _: None)
    else:
        monkeypatch.setattr(f"ullage.engine.shipping.logwriter.{lacking}", lambda *_: None)
    with pytest.raises((AssertionError, ValueError)):
        explore([writing(1, 1), writing(3, 1), adopting_as(2)], nothing_is_left_behind, faults=0)


def knowing(place: Replayed, told: list[bytes]) -> None:
    """One that adopts the share, and tells which bases count."""
    writer, _ = adopt_share(place, SHARE, "node-2", SERDE, "2" * 16)
    known = [each.name for each in listed_bases(place, SHARE)]
    told.append(" ".join([f"knows {writer.epoch}", *known]).encode())


def test_no_base_is_published_behind_an_adopter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be one that the adopter has not restored; without a claim on the manifest it could be."""
    explore([going_on, knowing], test_publishing.holds, faults=0, begins=at_first())
    monkeypatch.setattr(adopting, "take_manifest", lambda *_: None)
    with pytest.raises(AssertionError):
        explore([going_on, knowing], test_publishing.holds, faults=0, begins=at_first())


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.embedded.replication.PAUSES", (0.05,))


def state_is(repository: ullage.Repository, state: str) -> Callable[[], bool]:
    return lambda: replication(repository).state == state


def test_a_repository_goes_on_elsewhere_and_its_old_node_stays_fenced(
    bucket: Place, tmp_path: Path, no_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlowFiles in their order with their attributes, handles under their ids; the new one ships, and the old one says
    whose the share is, also when it is started again.
    """
    rounds = held_rounds(monkeypatch)
    assert bucket.bucket is not None
    at = ("--endpoint", bucket.bucket.endpoint)
    old = document_at(tmp_path / "old", **replicating(bucket))
    with Running(old) as running, ullage.connect(running.url) as repository:
        with repository.session() as session:
            for number in range(5):
                flow_file = session.create(attributes={"n": str(number)})
                session.transfer(session.write(flow_file, b"%d" % number), "q")
            session.commit()
        handle = repository.handles.put(b"kept")
        until(lambda: has_shipped(repository), "all is shipped")
        share = replication(repository).url
        refused = run("adopt", share, tmp_path / "new", *at, expect=2)
        with rounds:
            said = run("adopt", share, tmp_path / "new", *at, "--node-is-off", "--node", "node-2", "--check")
            repository.handles.put(b"only here")
        until(state_is(repository, "fenced"), "it is fenced")
        shown = run("status", "--url", running.url).stdout

    assert "only this node has 1 transaction" in shown
    assert "--node-is-off" in refused.stderr
    assert "0 problems" in said.stdout + said.stderr
    new = document_at(tmp_path / "new", **replicating(bucket))
    with Running(new) as running, ullage.connect(running.url) as repository:
        assert repository.handles.get(handle) == b"kept"
        with repository.session() as session:
            taken = [session.get("q") for _ in range(5)]
            assert [each.attributes["n"] for each in taken if each is not None] == list("01234")
        until(lambda: has_shipped(repository), "the new one ships")
        assert replication(repository).url == share
        with Running(old) as again, ullage.connect(again.url) as left:
            until(state_is(left, "fenced"), "the old one is fenced when it starts, too")
            assert "was adopted" in replication(left).problem
            assert left.handles.get(handle) == b"kept"
        repository.handles.put(b"more")
        until(lambda: has_shipped(repository), "the new one ships on")


def test_nobody_is_fenced_for_a_directory_that_is_not_empty(bucket: Place, tmp_path: Path) -> None:
    """What would not be adopted is not taken, nor is a share whose node nobody has said is off."""
    assert bucket.bucket is not None
    old = document_at(tmp_path / "old", **replicating(bucket))
    with Running(old) as running, ullage.connect(running.url) as repository:
        repository.handles.put(b"kept")
        until(lambda: has_shipped(repository), "all is shipped")
        epoch, share = replication(repository).epoch, replication(repository).url
        source = ullage.Bucket(url=share, endpoint=bucket.bucket.endpoint)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "something").write_text("of somebody")
        with pytest.raises(ullage.errors.DirectoryNotEmpty):
            ullage.adopt(source, tmp_path / "full", node_is_off=True)
        with pytest.raises(ullage.errors.DirectoryUnusable):
            ullage.adopt(source, tmp_path / "full" / "something" / "below a file", node_is_off=True)
        with pytest.raises(InvalidArgument, match="node_is_off"):
            ullage.adopt(source, tmp_path / "new", node_is_off=False)
        with pytest.raises(InvalidArgument, match="owner"):  # an `epoch` that nobody reads ends the share for everybody
            ullage.adopt(source, tmp_path / "new", node="n" * 256, node_is_off=True)
        repository.handles.put(b"more")
        until(lambda: has_shipped(repository), "it ships on")
        assert (replication(repository).state, replication(repository).epoch) == ("shipping", epoch)


def test_an_adoption_that_is_cut_short_goes_on_and_fences_nobody_twice(bucket: Place, tmp_path: Path) -> None:
    """In its directory, by the word that was said once; a second adopter's share it leaves alone."""
    assert bucket.bucket is not None
    old = document_at(tmp_path / "old", **replicating(bucket))
    with Running(old) as running, ullage.connect(running.url) as repository:
        handle = repository.handles.put(b"kept" * 1024)
        until(lambda: has_shipped(repository), "all is shipped")
        source = ullage.Bucket(url=replication(repository).url, endpoint=bucket.bucket.endpoint)

    def cut(_done: int, _total: int) -> None:
        raise InterruptedError

    for name in ("one", "two"):
        with pytest.raises(InterruptedError):
            ullage.adopt(source, tmp_path / name, node="node-2", node_is_off=True, on_progress=cut)
    with pytest.raises(ullage.errors.DirectoryNotEmpty, match="something else"):
        ullage.adopt(source, tmp_path / "one", node_is_off=True)
    made = ullage.adopt(source, tmp_path / "two", node_is_off=True)

    assert (made.epoch, made.owner, made.check) == (3, "node-2", None)
    with ullage.open(tmp_path / "two") as adopted:
        assert adopted.handles.get(handle) == b"kept" * 1024
