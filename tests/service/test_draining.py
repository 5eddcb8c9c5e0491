"""A node that is drained takes nothing new, over any transport, and gives up what it has as ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ullage
from tests.conformance.conftest import SECTIONS
from tests.service.running import Running, document_at
from tests.service.socket.conftest import short_path as short_path
from ullage import Repository
from ullage.errors import NodeDraining


@pytest.fixture(params=["embedded", "http", "all transports"])
def drained(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[tuple[Repository, Running]]:
    """As a program sees it, and the service, which says whether it is drained."""
    ways = {} if request.param == "http" else {"flight_port": 0, "socket_path": str(short_path / "socket")}
    with Running(document_at(tmp_path / "r", service=ways, **SECTIONS)) as running:
        if request.param == "embedded":
            yield running.server.host.repository, running
            return
        urls = running.server.urls
        with ullage.connect(urls["http"], flight=urls.get("flight"), socket=urls.get("socket")) as repository:
            yield repository, running


def test_nothing_new_is_taken_and_what_there_is_goes(drained: tuple[Repository, Running]) -> None:
    """What is refused leaves nothing behind, whether it has content or none; and uncordoned it is taken again."""
    repository, running = drained
    handle, gone = repository.handles.put(b"one"), repository.handles.put(b"two")
    repository.queues.put_many("q", [b"a", b"b", b"c"])
    before = repository.state().flow_files
    running.server.host.repository.drain(drains=True)

    for content in (b"new", b""):
        with pytest.raises(NodeDraining, match="write to another one"):
            repository.handles.put(content)
        with pytest.raises(NodeDraining):
            repository.queues.put("q", content)
    with pytest.raises(NodeDraining):
        repository.handles.put_many([b"x", b"y"])
    with repository.session() as session:
        session.transfer(session.create(), "q")
        with pytest.raises(NodeDraining):
            session.commit()

    assert repository.state().drains
    assert repository.state().flow_files == before
    assert repository.handles.get(handle) == b"one"
    repository.handles.delete(gone)
    with repository.session() as session:
        taken = session.get("q")
        assert taken is not None
        session.transfer(session.put_attributes(taken, {"seen": "yes"}), "other")
        session.commit()
    assert repository.queues.drop("q") == 2

    running.server.host.repository.drain(drains=False)
    assert repository.handles.get(repository.handles.put(b"new")) == b"new"


def test_a_session_that_began_before_commits_nothing_new(drained: tuple[Repository, Running]) -> None:
    """Its content was written already: the commit is what counts, and the FlowFile that it took goes back."""
    repository, running = drained
    repository.queues.put("q", b"a")
    with repository.session() as session:
        taken = session.get("q")
        assert taken is not None
        session.transfer(session.write(taken, b"b" * 1000), "other")
        running.server.host.repository.drain(drains=True)
        with pytest.raises(NodeDraining):
            session.commit()
    assert repository.queues.find("q").flow_files == 1


def test_an_upload_that_began_before_is_not_acknowledged(drained: tuple[Repository, Running]) -> None:
    """Its last piece came behind the drain: a node that was called drained held what only it had."""
    repository, running = drained

    def pieces() -> Iterator[bytes]:
        yield bytes(4 << 20)  # more than is held in memory: it has its file by now
        running.server.host.repository.drain(drains=True)
        yield b"b"

    with pytest.raises(NodeDraining):
        repository.handles.put(pieces())
    assert list(repository.handles.all()) == []
