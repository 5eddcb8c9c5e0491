"""The asynchronous repository is the other one, awaited."""

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage import Repository, aio
from ullage.errors import HandleNotFound, RepositoryClosed
from ullage.interface.repository import Repository as Interface

PAIRS: dict[type, type] = {
    Interface: aio.AsyncRepository,
    ullage.Session: aio.AsyncSession,
    ullage.Handles: aio.AsyncHandles,
    ullage.Queues: aio.AsyncQueues,
    ullage.Provenance: aio.AsyncProvenance,
    ullage.Reclamation: aio.AsyncReclamation,
    ullage.Leases: aio.AsyncLeases,
    ullage.ContentStream: aio.AsyncContentStream,
}


def names(kind: type) -> Iterator[str]:
    yield from (name for name in vars(kind) if not name.startswith("_"))


def parameters(function: object) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults, without `self`."""
    assert callable(function)
    found = list(inspect.signature(function).parameters.values())[1:]
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize("interface", PAIRS, ids=lambda kind: str(kind.__name__))
def test_each_name_has_the_same_parameters_awaited(interface: type) -> None:
    """Nothing is missing, nothing is called otherwise, and each has a text."""
    awaited = PAIRS[interface]
    assert parameters(aio.open) == parameters(ullage.open)
    assert parameters(aio.connect) == parameters(ullage.connect)
    given = {*names(awaited), "handles", "queues", "provenance", "reclamation", "leases", "size"}

    assert set(names(interface)) <= given
    for name in names(interface):
        if callable(getattr(interface, name)):
            assert parameters(getattr(awaited, name)) == parameters(getattr(interface, name)), name
            assert inspect.getdoc(getattr(awaited, name)), name


def test_it_does_what_the_other_does(repository: Repository) -> None:
    """Sessions, streams and iterators; errors are raised where they are awaited."""

    async def use() -> None:
        both = aio.AsyncRepository(repository)
        async with both.session("fetcher") as session:
            one = await session.write(await session.create(), b"content")
            session.provenance.receive(one, "http://from/")
            await session.transfer(one, "in")
            await session.commit()
            found = await session.get("in")
            assert found is not None
            async with await session.read(found, 3) as content:
                assert (content.size, [piece async for piece in content]) == (4, [b"tent"])
        handles = await asyncio.gather(*(both.handles.put(b"%d" % number) for number in range(40)))
        assert await both.handles.get_many(handles) == [b"%d" % number for number in range(40)]
        assert {head.handle async for head in both.handles.all()} == set(handles)
        with pytest.raises(HandleNotFound):
            await both.handles.get("nothing")

    asyncio.run(use())

    assert repository.queues.find("in").flow_files == 1
    assert repository.provenance.event(1).component == "fetcher"


class Gated:
    """A content that begins, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.begun.set()
        assert self.may_go_on.wait(60)
        yield b"late"

    async def cancelled(self, call: Coroutine[Any, Any, object]) -> None:
        """Begin a call that reads this, and cancel its task in the middle."""
        task = asyncio.create_task(call)
        await asyncio.to_thread(self.begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_what_follows_a_cancelled_call_of_a_session_waits_for_its_end(repository: Repository) -> None:
    """A thread cannot be cancelled, and a session is for one at a time."""

    async def use() -> None:
        both, content = aio.AsyncRepository(repository), Gated()
        async with both.session() as session:
            made = await session.create()
            await content.cancelled(session.write(made, content))
            following = asyncio.gather(session.transfer(made, "in"), session.commit())
            content.may_go_on.set()
            await following

    asyncio.run(use())

    assert [one.size for one in repository.queues.flow_files("in")] == [4]


def test_what_comes_after_the_end_is_told(tmp_path: Path) -> None:
    """The threads are gone by then, which is nobody's business."""

    async def use() -> None:
        both = await aio.open(tmp_path / "r", create=True)
        await both.close()
        with pytest.raises(RepositoryClosed):
            await both.state()

    asyncio.run(use())


def test_closing_waits_for_the_call_of_a_cancelled_task(tmp_path: Path) -> None:
    """What it stores is there, rather than half of it."""

    async def use() -> None:
        content = Gated()
        async with await aio.open(tmp_path / "r", create=True) as both:
            await content.cancelled(both.handles.put(content))
            closing = asyncio.create_task(both.close())
            content.may_go_on.set()
            await closing

    asyncio.run(use())

    with ullage.open(tmp_path / "r") as repository:
        assert [head.size for head in repository.handles.all()] == [4]
