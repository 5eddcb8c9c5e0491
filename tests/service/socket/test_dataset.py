"""Contents as a training loop takes them: by number, in any order, in several processes."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.service.socket.node import Node
from ullage.client.dataset import AHEAD, ContentDataset
from ullage.errors import HandleDeleted, HandleNotFound

COUNT = 2 * AHEAD + 7


def contents() -> list[bytes]:
    chance = random.Random(5)
    return [chance.randbytes(chance.choice([0, 10, 3_000, 400_000 if at % 97 == 0 else 50])) for at in range(COUNT)]


@pytest.fixture
def dataset(node: Node) -> Iterator[ContentDataset[bytes]]:
    handles = node.repository.handles.put_many(contents())
    made: ContentDataset[bytes] = ContentDataset(node.path, [f"{handle}@here" for handle in handles])
    with made:
        yield made


def test_it_is_a_sequence_of_contents(dataset: ContentDataset[bytes]) -> None:
    """As a list of them would be."""
    wanted = contents()
    assert len(dataset) == COUNT
    assert list(dataset) == wanted
    assert [dataset[at] for at in (0, 5, -1, -COUNT)] == [wanted[at] for at in (0, 5, -1, -COUNT)]
    assert dataset[3:300:7] == wanted[3:300:7]
    assert dataset.__getitems__([9, 2, 2]) == [wanted[9], wanted[2], wanted[2]]
    assert dataset[COUNT:] == []
    for beyond in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=f"of a dataset of {COUNT}"):
            dataset[beyond]


def test_items_are_what_the_decoder_makes(node: Node) -> None:
    """Whatever that is."""
    handles = node.repository.handles.put_many([b"a", b"bcd"])
    with ContentDataset(node.path, handles, decode=len) as made:
        assert list(made) == [1, 3]


def test_what_is_no_handle_or_gone_is_told(node: Node) -> None:
    """By name: at once for a text that can be none, else when it is read."""
    (there, gone) = node.repository.handles.put_many([b"a", b"b"])
    node.repository.handles.delete(gone)
    with pytest.raises(HandleNotFound, match="nonsense"):
        ContentDataset(node.path, ["nonsense"])
    made: ContentDataset[bytes] = ContentDataset(node.path, [there, gone])
    with made:
        assert made[0] == b"a"
        with pytest.raises(HandleDeleted, match=gone.replace("-", "")):
            made[1]


def reads(dataset: ContentDataset[bytes], first: int, send: "multiprocessing.connection.Connection") -> None:
    """In a child: its share, over and over."""
    try:
        send.send([dataset[at] for _ in range(3) for at in range(first, COUNT, 2)])
    finally:
        send.close()
    os._exit(0)  # nothing of the parent's is closed here


def test_workers_read_beside_each_other_after_a_fork(dataset: ContentDataset[bytes]) -> None:
    """Each over a connection of its own, though the parent's stood when they began."""
    wanted = contents()
    assert dataset[0] == wanted[0]
    context = multiprocessing.get_context("fork")
    ends, workers = [], []
    for first in (0, 1):
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=reads, args=(dataset, first, send))
        worker.start()
        send.close()
        ends.append(receive)
        workers.append(worker)
    mine = [dataset[at] for at in range(COUNT)]
    found = [end.recv() for end in ends]
    for worker in workers:
        worker.join()
    assert found == [wanted[0::2] * 3, wanted[1::2] * 3]
    assert mine == wanted


def test_it_is_sent_without_its_connection(dataset: ContentDataset[bytes]) -> None:
    """To a process that is started anew."""
    assert dataset[1] == contents()[1]
    with pickle.loads(pickle.dumps(dataset)) as copy:
        assert copy[2] == contents()[2]


def test_a_child_of_a_fork_keeps_no_file_of_its_parents_open(dataset: ContentDataset[bytes]) -> None:
    """What the agent deletes would stay on the disk for as long as a worker lives."""
    wanted = contents()
    assert list(dataset) == wanted
    assert dataset._client is not None
    held = {os.readlink(f"/proc/self/fd/{each}") for each in dataset._client._descriptors.values()}
    assert held
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    if (child := os.fork()) == 0:
        dataset._connected()
        opened = [os.readlink(f"/proc/self/fd/{each}") for each in dataset._client._descriptors.values()]
        links = [place for place in Path("/proc/self/fd").iterdir() if place.is_symlink()]
        send.send((opened, [str(place.readlink()) for place in links if str(place.readlink()) in held]))
        os._exit(0)
    assert receive.recv() == ([], [])
    os.waitpid(child, 0)
    assert list(dataset) == wanted


def test_who_takes_all_holds_few_large_ones_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are asked for follows from how large the last ones were."""
    monkeypatch.setattr("ullage.client.dataset.AHEAD_BYTES", 1_000_000)
    handles = node.repository.handles.put_many([bytes([at]) * 300_000 for at in range(20)])
    held: list[int] = []

    class Counted(ContentDataset[bytes]):
        def _contents(self, numbers: Sequence[int]) -> list[bytes]:
            held.append(len(numbers))
            return super()._contents(numbers)

    with Counted(node.path, handles) as made:
        assert [each[0] for each in made] == list(range(20))
    assert held == [1, 2, *[3] * 5, 2]
