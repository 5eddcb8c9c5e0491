"""Content that is damaged, as a program meets it, here and over HTTP."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import opened
from tests.service.running import until
from tests.service.socket.conftest import short_path as short_path
from tests.support import flip
from ullage import Repository
from ullage.errors import ContentCorrupt, InvalidArgument, RepositoryDamaged


@pytest.fixture(params=["embedded", "http", "all transports"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path, short_path: Path) -> Iterator[Repository]:
    """Two FlowFiles in a queue, the first of which does not read back, and a handle that does not."""
    with opened(request.param, tmp_path / "repository", short_path) as repository:
        repository.queues.put("in", b"spoiled" * 10, {"filename": "first.txt"})
        repository.queues.put("in", b"whole" * 10)
        repository.handles.put(b"spoiled" * 10, {"filename": "handle.txt"})
        for path in (tmp_path / "repository").glob("c1/*/*"):
            data = path.read_bytes()
            path.write_bytes(data.replace(b"spoiled", b"SPOILED"))
        yield repository


def mend(tmp_path: Path) -> None:
    """Put the files back as they were."""
    for path in (tmp_path / "repository").glob("c1/*/*"):
        path.write_bytes(path.read_bytes().replace(b"SPOILED", b"spoiled"))


def consume(repository: Repository) -> tuple[list[bytes], list[str]]:
    """What a consumer gets out of a queue, and the errors it meets."""
    contents: list[bytes] = []
    errors: list[str] = []
    for _ in range(5):
        with repository.session() as session:
            flow_file = session.get("in")
            if flow_file is None:
                break
            try:
                with session.read(flow_file) as content:
                    contents.append(content.read())
            except ContentCorrupt as error:
                errors.append(str(error))
                session.rollback()
                continue
            session.remove(flow_file)
            session.commit()
    return contents, errors


def test_a_consumer_goes_on_and_everything_is_named(damaged: Repository, tmp_path: Path) -> None:
    """One error, which says what and where; then the next FlowFile. Mended, it comes back."""
    contents, errors = consume(damaged)
    assert contents == [b"whole" * 10]
    (error,) = errors
    assert "first.txt" in error
    (handle,) = damaged.handles.all()
    with pytest.raises(ContentCorrupt, match=r"handle\.txt"):
        damaged.handles.get(handle.id)

    first, second = sorted(damaged.unavailable(), key=lambda each: each.filename)
    assert (first.filename, first.queue, first.id in error) == ("first.txt", "in", True)
    assert (second.filename, second.queue, second.id) == ("handle.txt", "", handle.id)
    assert Path(first.path).is_file()
    assert damaged.state().unavailable_contents == 2
    assert damaged.queues.find("in").unavailable == 1
    assert len([problem for problem in damaged.check().problems if "unavailable" in problem]) == 2
    assert damaged.retry_unavailable() == 0

    mend(tmp_path)
    assert damaged.retry_unavailable() == 1
    assert consume(damaged) == ([b"spoiled" * 10], [])
    assert damaged.handles.get(handle.id) == b"spoiled" * 10
    assert damaged.unavailable() == []


def test_only_an_accepted_loss_drops_it(damaged: Repository, tmp_path: Path) -> None:
    """And only what is unavailable; ids that are none are refused before anything is done."""
    consume(damaged)
    ids = [each.id for each in damaged.unavailable()]
    (id,) = ids
    whole = damaged.queues.put("other", b"fine")

    with pytest.raises(InvalidArgument, match="accept_loss"):
        damaged.drop_unavailable(ids)
    with pytest.raises(InvalidArgument, match="no uuid"):
        damaged.drop_unavailable([id, "nothing"], accept_loss=True)
    assert [each.id for each in damaged.unavailable()] == ids
    assert damaged.drop_unavailable([id, whole], accept_loss=True) == 1

    assert damaged.unavailable() == []
    assert [each.id for each in damaged.queues.flow_files("other")] == [whole]
    assert damaged.queues.find("in").flow_files == 0
    mend(tmp_path)


@pytest.mark.parametrize("way", ["embedded", "http", "all transports"])
def test_a_consumer_goes_on_past_a_swap_file_that_is_lost(way: str, tmp_path: Path, short_path: Path) -> None:
    """What stands behind it is served, then an error names it; it is listed, and back when the file is."""
    swapping = {"swap_threshold": 6, "swap_batch": 3}
    with opened(way, tmp_path / "repository", short_path, flow_file=swapping) as repository:
        for number in range(9):
            repository.queues.put("in", str(number).encode())
        (lost,) = (tmp_path / "repository" / "swap").iterdir()
        for number in range(9, 12):
            repository.queues.put("in", str(number).encode())
        whole = lost.read_bytes()
        lost.unlink()

        assert take(repository, 9) == [0, 1, 2, 3, 4, 5, 9, 10, 11]
        with pytest.raises(RepositoryDamaged, match=f"{lost.name} is missing"):
            take(repository, 1)
        assert repository.queues.find("in").unavailable == 3
        (told,) = repository.unavailable()
        assert (told.id, told.filename, told.queue, told.path) == ("", lost.name, "in", str(lost))
        assert "3 FlowFiles are in a swap file that can't be read" in told.reason

        lost.write_bytes(whole)
        assert repository.retry_unavailable() == 3
        assert repository.unavailable() == []
        assert take(repository, 3) == [6, 7, 8]


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_a_swap_file_that_was_damaged_meanwhile_is_listed_before_anybody_needs_it(
    damage: str, tmp_path: Path, short_path: Path
) -> None:
    """A start does not read it; what is read in the background after it finds it, without a poll."""
    swapping = {"swap_threshold": 6, "swap_batch": 3}
    root = tmp_path / "repository"
    with opened("embedded", root, short_path, flow_file=swapping) as repository:
        for number in range(12):
            repository.queues.put("in", str(number).encode())
        assert repository.state().unavailable_swap_files == 0
    lost, _ = sorted((root / "swap").iterdir())
    whole = lost.read_bytes()
    if damage == "missing":
        lost.unlink()
    elif damage == "flipped":
        flip(lost, lost.stat().st_size // 2)
    else:
        os.truncate(lost, 300)

    with opened("http", root, short_path, flow_file=swapping) as repository:
        until(lambda: bool(repository.unavailable()), "the swap file to be read")
        (told,) = repository.unavailable()
        assert (told.filename, told.queue, told.path) == (lost.name, "in", str(lost))
        assert repository.state().unavailable_swap_files == 1
        assert take(repository, 9) == [0, 1, 2, 3, 4, 5, 9, 10, 11]
        lost.write_bytes(whole)
        assert take(repository, 3) == [6, 7, 8]


def take(repository: Repository, count: int) -> list[int]:
    with repository.session() as session:
        taken = session.get_many("in", count)
        contents = [int(session.read(flow_file).read()) for flow_file in taken]
        for flow_file in taken:
            session.remove(flow_file)
        session.commit()
    return contents
