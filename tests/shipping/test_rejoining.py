"""What a node acknowledged and had not shipped, when another has adopted its share: told, and brought over."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

import ullage
from tests.cli.test_commands import ullage as run
from tests.places import Place
from tests.service.running import Running, document_at, until
from tests.shipping.held import held_rounds
from tests.shipping.test_served import has_shipped, replicating, replication
from ullage.errors import InvalidArgument, RepositoryLocked
from ullage.uuids import new_uuids


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_a_node_has_alone_is_told_and_brought_over_once(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New FlowFiles behind those of their queue, new handles; what both had stays as the adopter has it, also what was
    taken on one side. Twice adopted, it is the first adoption that counts.
    """
    assert bucket.bucket is not None
    at, rounds = ("--endpoint", bucket.bucket.endpoint), held_rounds(monkeypatch)
    old = document_at(tmp_path / "old", **replicating(bucket))
    with Running(old) as running, ullage.connect(running.url) as repository:
        for number in range(3):
            repository.queues.put("q", b"both %d" % number, {"n": str(number)})
        both = repository.handles.put(b"both")
        until(lambda: has_shipped(repository), "all is shipped")
        share = replication(repository).url
        source = ullage.Bucket(url=share, endpoint=bucket.bucket.endpoint)
        with pytest.raises(RepositoryLocked):
            ullage.rejoin(tmp_path / "old", source)
        with rounds:
            ullage.adopt(source, tmp_path / "between", node="node-2", node_is_off=True)
            alone = repository.queues.put("q", b"alone", {"n": "3", "color": "red"})
            handle = repository.handles.put(b"handle alone", {"of": "node-1"})
            repository.queues.put("other", b"")
            write, attempt = new_uuids(2)
            running.repository.staging.begin(write, "spark", queue="q")
            running.repository.staging.stage(write, attempt, 0, [b"nobody was told that it is there"])
            with repository.session() as session:  # one that both have is taken
                flow_file = session.get("q")
                assert flow_file is not None
                session.remove(flow_file)
                session.commit()
        until(lambda: replication(repository).state == "fenced", "it is fenced")
    ullage.adopt(source, tmp_path / "new", node="node-3", node_is_off=True)
    with pytest.raises(InvalidArgument, match="by nobody"):
        ullage.rejoin(tmp_path / "new", source)
    before = files(tmp_path / "old")

    told = run("rejoin", tmp_path / "old", share, *at)
    assert "2 FlowFiles and 1 handle" in told.stdout
    assert "1 removed" in told.stdout
    assert "node-3" in told.stdout
    with Running(document_at(tmp_path / "new", **replicating(bucket))) as new, ullage.connect(new.url) as goes_on:
        until(lambda: replication(goes_on).epoch > 0, "it has the share")
        found = ullage.rejoin(tmp_path / "old", source, goes_on)
        assert ullage.rejoin(tmp_path / "old", source, goes_on).brought == found.brought
        assert (found.queues, found.handles, found.removed, found.lost) == ({"q": 1, "other": 1}, 1, 1, ())
        known = [goes_on.handles.get(id) for id in (found.brought[handle.partition("@")[0]], both)]
        assert known == [b"handle alone", b"both"]
        with goes_on.session() as session:
            taken = session.get_many("q")
            assert [each.attributes["n"] for each in taken] == list("0123")
            assert taken[3].attributes["color"] == "red"
            assert taken[3].id == found.brought[alone]
            with session.read(taken[3]) as content:
                assert b"".join(content) == b"alone"
        assert goes_on.queues.find("other").flow_files == 1
    assert before.keys() <= files(tmp_path / "old").keys()


def test_nothing_is_brought_to_a_node_that_did_not_adopt_it(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to another repository, where nobody looks for it, nor to one that was followed by another itself, whether
    it knows that by now or not, nor to one that ships nothing or elsewhere.
    """
    assert bucket.bucket is not None
    rounds = held_rounds(monkeypatch)
    old = document_at(tmp_path / "old", **replicating(bucket))
    with Running(old) as running, ullage.connect(running.url) as repository:
        repository.queues.put("q", b"both")
        until(lambda: has_shipped(repository), "all is shipped")
        source = ullage.Bucket(url=replication(repository).url, endpoint=bucket.bucket.endpoint)
    ullage.adopt(source, tmp_path / "first", node="node-2", node_is_off=True)
    first = document_at(tmp_path / "first", **replicating(bucket))
    with (
        Running(first) as running,
        ullage.connect(running.url) as followed,
        Running(document_at(tmp_path / "else")) as other,
        ullage.connect(other.url) as elsewhere,
    ):
        until(lambda: replication(followed).epoch == 3, "it has the share")
        with rounds:
            ullage.adopt(source, tmp_path / "second", node="node-3", node_is_off=True)
            with pytest.raises(
                InvalidArgument, match=r"written by node node-3 in epoch 4.*last in epoch 3: name node n"
            ):
                ullage.rejoin(tmp_path / "old", source, followed)
        until(lambda: replication(followed).state == "fenced", "it is fenced")

        with pytest.raises(InvalidArgument, match="was followed by another itself"):
            ullage.rejoin(tmp_path / "old", source, followed)
        with pytest.raises(InvalidArgument, match="name the node that has adopted it"):
            ullage.rejoin(tmp_path / "old", source, elsewhere)
    with ullage.open(tmp_path / "second") as alone, pytest.raises(InvalidArgument, match="ships nothing"):
        ullage.rejoin(tmp_path / "old", source, alone)


def test_what_a_copy_that_went_on_has_removed_does_not_come_back(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What parted them is where the copy took the share, whether anybody adopted it, and whoever has it by now. What
    both had is the copy's.
    """
    assert bucket.bucket is not None
    rounds = held_rounds(monkeypatch)
    copy = document_at(tmp_path / "copy", **replicating(bucket))
    old, served = document_at(tmp_path / "old", **replicating(bucket)), ExitStack()
    with Running(old) as running, ullage.connect(running.url) as repository:
        removed = repository.handles.put(b"removed by the copy")
        repository.queues.put("q", b"taken by the copy")
        until(lambda: has_shipped(repository), "all is shipped")
        source = ullage.Bucket(url=replication(repository).url, endpoint=bucket.bucket.endpoint)
        with rounds:
            shutil.copytree(tmp_path / "old", tmp_path / "copy")
            alone = [repository.queues.put("q", b"alone"), repository.handles.put(b"handle alone")]
            second = served.enter_context(Running(copy))
            goes_on = served.enter_context(ullage.connect(second.url))
            until(lambda: replication(goes_on).epoch > 0, "the copy has the share")
        until(lambda: replication(repository).state == "fenced", "it is fenced")
    with served:
        goes_on.handles.delete(removed)
        goes_on.queues.drop("q")
        goes_on.handles.put(b"of the copy")
        until(lambda: has_shipped(goes_on), "the copy has shipped")
        found = ullage.rejoin(tmp_path / "old", source, goes_on)
        assert found.brought.keys() == {id.partition("@")[0] for id in alone}
        assert goes_on.queues.find("q").flow_files == 1
    ullage.adopt(source, tmp_path / "new", node="node-3", node_is_off=True)
    told = ullage.rejoin(tmp_path / "old", source)
    assert (told.queues, told.handles, told.removed, told.owner) == ({"q": 1}, 1, 0, "node-3")
