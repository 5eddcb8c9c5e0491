"""The same repository for programs of asyncio: every method of the interface, to be awaited.

Each call runs in a thread of the repository's own, so that the event loop never waits for a disk or a network. Threads
rather than a second implementation, because most of what a repository does waits for syncs, which no event loop makes
asynchronous; and because one description of each verb, with one implementation behind it, cannot come apart.

>>> import asyncio
>>> async def main() -> bytes:
...     async with await ullage.aio.open("casks", create=True) as repository:
...         async with repository.session() as session:
...             report = await session.write(await session.create(), b"a,b")
...             await session.transfer(report, "inbox")
...             await session.commit()
...         handle = await repository.handles.put(b"content")
...         async with await repository.handles.stream(handle) as content:
...             return b"".join([piece async for piece in content])
>>> asyncio.run(main())
b'content'

Names, parameters, results and errors are those of `Repository` and of what it has; `open` and `connect` are those of
`ullage`. What is an iterator there is an asynchronous iterator here. One task uses a session at a time.
"""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import ullage
from ullage.errors import RepositoryClosed
from ullage.interface.handles import Handles
from ullage.interface.leases import Leases
from ullage.interface.provenance import Provenance
from ullage.interface.queues import Queues
from ullage.interface.reclamation import Reclamation
from ullage.interface.reporter import Reporter
from ullage.interface.repository import Repository
from ullage.interface.session import Session
from ullage.interface.values import Subjects
from ullage.streams import ContentStream

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

THREADS: Final = 32
"""Calls at a time of one repository: those that wait for the disk share its syncs."""


class _Facade(Generic[S]):
    """Something of the interface, and the threads that call it."""

    def __init__(self, sync: S, threads: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._threads = threads

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Shielded, because a thread cannot be cancelled: what a task gave up goes on to its end all the same."""
        loop = asyncio.get_running_loop()
        try:
            begun = loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))
        except RuntimeError as error:  # the threads end with the repository
            raise RepositoryClosed("the repository is closed") from error
        return await asyncio.shield(begun)


class _OneByOne(_Facade[S]):
    """One call after the other: that of a task that was cancelled goes on, and the next one waits for its end."""

    def __init__(self, sync: S, threads: ThreadPoolExecutor) -> None:
        super().__init__(sync, threads)
        self._last = threading.Event()
        self._last.set()

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Not a lock: of two that wait for one, either may get it first.
        before, mine = self._last, threading.Event()
        self._last = mine

        def in_turn() -> T:
            before.wait()
            try:
                return call(*args, **kwargs)
            finally:
                mine.set()

        return await super()._run(in_turn)


def _awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, T]]:
    """A method of the interface, to be awaited: the same name, parameters and text."""

    @functools.wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(_of(self, method), *args, **kwargs)

    return call


def _streamed(
    method: Callable[Concatenate[S, P], ContentStream],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, "AsyncContentStream"]]:
    """One that gives a stream."""

    @functools.wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncContentStream:
        return AsyncContentStream(await self._run(_of(self, method), *args, **kwargs), self._threads)

    return call


def _iterated(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[_Facade[S], P], AsyncIterator[T]]:
    """One that gives an iterator: each step is a call in a thread."""

    @functools.wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items = _of(self, method)(*args, **kwargs)
        while step := await self._run(lambda: list(islice(items, 1))):
            yield step[0]

    return call


def _of(facade: _Facade[S], method: Callable[Concatenate[S, P], T]) -> Callable[P, T]:
    """By name, so that the implementation is called and not the abstract method."""
    found: Callable[P, T] = getattr(facade._sync, method.__name__)  # noqa: SLF001 - the other half of one thing
    return found


class AsyncContentStream(_OneByOne[ContentStream]):
    """A content as it is read: `ContentStream`, whose pieces are awaited."""

    read = _awaited(ContentStream.read)
    close = _awaited(ContentStream.close)
    __aiter__ = _iterated(ContentStream.__iter__)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._sync.size

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncHandles(_Facade[Handles]):
    """`Handles`, to be awaited."""

    put = _awaited(Handles.put)
    put_many = _awaited(Handles.put_many)
    get = _awaited(Handles.get)
    get_many = _awaited(Handles.get_many)
    stream = _streamed(Handles.stream)
    head = _awaited(Handles.head)
    page = _awaited(Handles.page)
    all = _iterated(Handles.all)
    delete = _awaited(Handles.delete)
    undelete = _awaited(Handles.undelete)
    set_ttl = _awaited(Handles.set_ttl)


class AsyncQueues(_Facade[Queues]):
    """`Queues`, to be awaited."""

    all = _awaited(Queues.all)
    find = _awaited(Queues.find)
    define = _awaited(Queues.define)
    remove = _awaited(Queues.remove)
    flow_files = _awaited(Queues.flow_files)
    all_flow_files = _iterated(Queues.all_flow_files)
    drop = _awaited(Queues.drop)
    put = _awaited(Queues.put)
    put_many = _awaited(Queues.put_many)


class AsyncProvenance(_Facade[Provenance]):
    """`Provenance`, to be awaited."""

    search = _awaited(Provenance.search)
    event = _awaited(Provenance.event)
    content = _streamed(Provenance.content)
    lineage = _awaited(Provenance.lineage)
    replayability = _awaited(Provenance.replayability)
    replay = _awaited(Provenance.replay)


class AsyncReclamation(_Facade[Reclamation]):
    """`Reclamation`, to be awaited. `on_progress` is called in a thread."""

    survey = _awaited(Reclamation.survey)
    explain = _awaited(Reclamation.explain)
    forecast = _awaited(Reclamation.forecast)
    goal = _awaited(Reclamation.goal)
    resources = _iterated(Reclamation.resources)
    resource = _awaited(Reclamation.resource)
    policies = _awaited(Reclamation.policies)
    windows = _awaited(Reclamation.windows)
    openings = _awaited(Reclamation.openings)
    maintenance = _awaited(Reclamation.maintenance)
    plan = _awaited(Reclamation.plan)
    reclaim = _awaited(Reclamation.reclaim)
    begin = _awaited(Reclamation.begin)
    run = _awaited(Reclamation.run)
    stop = _awaited(Reclamation.stop)
    clean = _awaited(Reclamation.clean)
    runs = _awaited(Reclamation.runs)


class AsyncLeases(_Facade[Leases]):
    """`Leases`, to be awaited."""

    acquire = _awaited(Leases.acquire)
    renew = _awaited(Leases.renew)
    release = _awaited(Leases.release)
    revoke = _awaited(Leases.revoke)
    find = _awaited(Leases.find)
    all = _awaited(Leases.all)


class AsyncSession(_OneByOne[Session]):
    """`Session`, to be awaited. Its reports, which only wait for the commit, are not."""

    get = _awaited(Session.get)
    get_many = _awaited(Session.get_many)
    create = _awaited(Session.create)
    ingest = _awaited(Session.ingest)
    import_handle = _awaited(Session.import_handle)
    read = _streamed(Session.read)
    write = _awaited(Session.write)
    append = _awaited(Session.append)
    clone = _awaited(Session.clone)
    split = _awaited(Session.split)
    merge = _awaited(Session.merge)
    put_attributes = _awaited(Session.put_attributes)
    remove_attributes = _awaited(Session.remove_attributes)
    transfer = _awaited(Session.transfer)
    remove = _awaited(Session.remove)
    penalize = _awaited(Session.penalize)
    adjust_counter = _awaited(Session.adjust_counter)
    require_room = _awaited(Session.require_room)
    commit = _awaited(Session.commit)
    rollback = _awaited(Session.rollback)
    close = _awaited(Session.close)

    @property
    def provenance(self) -> Reporter[Subjects]:
        """What only the program knows; see `Session.provenance`."""
        return self._sync.provenance

    async def __aenter__(self) -> Self:
        await self._run(self._sync.__enter__)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._run(self._sync.__exit__, *exception)


class AsyncRepository(_Facade[Repository]):
    """`Repository`, to be awaited."""

    content = _streamed(Repository.content)
    state = _awaited(Repository.state)
    holders = _awaited(Repository.holders)
    check = _awaited(Repository.check)
    unavailable = _awaited(Repository.unavailable)
    retry_unavailable = _awaited(Repository.retry_unavailable)
    drop_unavailable = _awaited(Repository.drop_unavailable)
    set_aside = _awaited(Repository.set_aside)
    drop_set_aside = _awaited(Repository.drop_set_aside)
    volumes = _awaited(Repository.volumes)
    forget_volume = _awaited(Repository.forget_volume)
    accept_clock = _awaited(Repository.accept_clock)
    checkpoint = _awaited(Repository.checkpoint)
    backup = _awaited(Repository.backup)
    generations = _awaited(Repository.generations)
    verify_backup = _awaited(Repository.verify_backup)
    backup_runs = _awaited(Repository.backup_runs)
    backup_run = _awaited(Repository.backup_run)
    stop_backup = _awaited(Repository.stop_backup)

    def __init__(self, repository: Repository) -> None:
        """Calls a repository that is open; `close` closes it."""
        super().__init__(repository, ThreadPoolExecutor(THREADS, "ullage-aio"))
        self.handles = AsyncHandles(repository.handles, self._threads)
        self.queues = AsyncQueues(repository.queues, self._threads)
        self.provenance = AsyncProvenance(repository.provenance, self._threads)
        self.reclamation = AsyncReclamation(repository.reclamation, self._threads)
        self.leases = AsyncLeases(repository.leases, self._threads)

    def session(self, component: str = "", component_type: str = "", *, lease_seconds: float = 30.0) -> AsyncSession:
        """A new session, to be used with `async with` by one task; see `Repository.session`."""
        return AsyncSession(self._sync.session(component, component_type, lease_seconds=lease_seconds), self._threads)

    async def close(self) -> None:
        """Let calls under way end, also those of cancelled tasks, and let go of everything; see `Repository.close`."""

        def end() -> None:
            self._threads.shutdown()
            self._sync.close()

        await asyncio.shield(asyncio.to_thread(end))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _opened(
    function: Callable[P, Repository],
) -> Callable[P, Coroutine[Any, Any, AsyncRepository]]:
    """One that gives a repository."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncRepository:
        return AsyncRepository(await asyncio.to_thread(function, *args, **kwargs))

    return call


connect = _opened(ullage.connect)
open = _opened(ullage.open)
