"""A service that is killed, and finds its content damaged when it starts again: it serves all the rest."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import ullage
from tests.faults.test_failure_domains import cut_short, damaged, missing
from tests.service.running import process, until
from tests.support import content_sizes
from ullage.errors import ContentCorrupt, ContentMissing, InvalidArgument

COUNT = 24
QUEUE = "q"


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


WAYS: list[Callable[[Path], None]] = [damaged, cut_short, zero, missing]


def drain(repository: ullage.Repository) -> dict[str, bytes]:
    """What a consumer gets that gives back what it can't read, as flows do; it ends when nothing else is left."""
    found: dict[str, bytes] = {}
    refused = 0
    while refused <= COUNT:
        with repository.session() as session:
            flow_file = session.get(QUEUE)
            if flow_file is None:
                return found
            try:
                with session.read(flow_file) as content:
                    data = content.read()
            except (ContentCorrupt, ContentMissing):
                refused += 1
                continue
            session.remove(flow_file)
            session.commit()
            found[flow_file.id] = data
    raise AssertionError("what can't be read stands in the way of the others")


def test_a_killed_service_serves_all_but_what_is_damaged(tmp_path: Path, seed: int) -> None:
    """It starts, says by uuid, filename, queue and file what it can't read, and drops none of it unasked."""
    print("seed", seed)
    chance = random.Random(seed)
    with process(tmp_path, claims={"max_flow_files": 1}) as service:
        contents = [chance.randbytes(20_000) for _ in range(COUNT)]
        with ullage.connect(service.start()) as repository:
            ids = [
                repository.queues.put(QUEUE, content, {"filename": f"{number}.bin"})
                for number, content in enumerate(contents)
            ]
            handle = repository.handles.put(chance.randbytes(20_000))
        service.kill()
        root = tmp_path / "repository"
        files = {path.read_bytes(): path for path in map(root.joinpath, content_sizes(root))}
        harmed = chance.sample(range(COUNT), 12)
        for at, number in enumerate(harmed):
            WAYS[at % len(WAYS)](files[contents[number]])

        with ullage.connect(service.start()) as repository:
            assert drain(repository) == {ids[number]: contents[number] for number in set(range(COUNT)) - set(harmed)}
            until(lambda: len(repository.unavailable()) == len(harmed), "the damage is known")
            told = {each.id: each for each in repository.unavailable()}
            for number in harmed:
                named = told[ids[number]]
                assert (named.filename, named.queue) == (f"{number}.bin", QUEUE)
                assert Path(named.path) == files[contents[number]]
            problems = repository.check(deep=True).problems
            assert all(any(ids[number] in problem for problem in problems) for number in harmed)
            assert len(repository.handles.get(handle)) == 20_000
            with pytest.raises(InvalidArgument):
                repository.drop_unavailable([ids[harmed[0]]])
        service.kill()

        with ullage.connect(service.start()) as repository:
            repository.check(deep=True)
            assert {each.id for each in repository.unavailable()} == {ids[number] for number in harmed}
            assert repository.drop_unavailable([ids[number] for number in harmed], accept_loss=True) == len(harmed)
            assert repository.queues.find(QUEUE).flow_files == 0
