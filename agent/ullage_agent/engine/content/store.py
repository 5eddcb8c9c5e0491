"""The content repository: resource claims handed out for writing, and opened for reading.

A resource claim belongs to one session from `take` until that session's outcome: nobody else appends to it, so that a
failed sync concerns one session only. Given back below the limits it is appended to later (`maxAppendableSize`,
`maxFlowFiles`); otherwise it is sealed, and nothing is ever appended again. After a restart all are sealed.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container, choose
from ullage_agent.engine.errors import BackPressure, ContentMissing, ContentWriteFailed
from ullage_agent.engine.files import File, Files
from ullage_agent.engine.model import Lifetime, ResourceClaim

INDEX_BLOCK = 4_096
"""Indexes reserved by one transaction: rarely enough to cost nothing, few enough that a crash wastes next to none."""

OPEN_FILES_MAX = 256
"""Descriptors kept open for reading."""

BACK_PRESSURE_WAIT_SECONDS = 10.0
"""How long a writer waits for room before it gets an error; cleaning runs every minute or when asked."""

BACK_PRESSURE_POLL_SECONDS = 0.05


class WritableClaim:
    """A resource claim in the hands of one writer."""

    __slots__ = (
        "claim",
        "claims",
        "container",
        "failed",
        "file",
        "is_ended",
        "is_new",
        "name_synced",
        "offset",
        "path",
    )

    def __init__(self, claim: ResourceClaim, container: Container, file: File, path: str) -> None:
        self.claim = claim
        self.container = container
        self.file = file
        self.path = path
        self.offset = 0
        self.claims = 0
        self.is_new = True
        self.name_synced = False
        self.is_ended = False
        self.failed = False


class ContentRepository:
    """All content files of a repository. Thread-safe."""

    def __init__(
        self,
        files: Files,
        containers: Sequence[Container],
        spec: ContentRepositorySpec,
        clock: Clock,
        reserve_indexes: Callable[[int], None],
    ) -> None:
        self.containers = {container.name: container for container in containers}
        self.limits = spec.claims
        self._order = list(containers)
        self._files = files
        self._clock = clock
        self._back_pressure = spec.archive.backpressure_percentage
        self._reserve_indexes = reserve_indexes
        self._lock = threading.Lock()
        self._index_lock = threading.Lock()
        self._next_index = 1
        self._index_ceiling = 0
        self._pool: dict[int, list[WritableClaim]] = {lifetime: [] for lifetime in Lifetime}
        self._unsealed: list[ResourceClaim] = []
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._open_lock = threading.Lock()
        self.on_pressure: Callable[[], None] = lambda: None

    def start_after(self, ceiling: int) -> None:
        """Indexes up to `ceiling` may have been used before."""
        self._next_index = ceiling + 1
        self._index_ceiling = ceiling

    def take(self, lifetime: Lifetime) -> WritableClaim:
        """A resource claim to append to. BackPressure if no container has room within a bounded wait."""
        with self._lock:
            pool = self._pool[lifetime]
            while pool:
                writable = pool.pop()
                if writable.container.failure is None and self._admits(writable.container):
                    return writable
                self._retire(writable)
        return self._create(lifetime)

    def must_end(self, writable: WritableClaim) -> bool:
        """Whether the limits end this resource claim, tested when it is about to return to the pool."""
        return (
            writable.is_ended
            or writable.failed
            or writable.offset >= self.limits.max_appendable_size
            or writable.claims >= self.limits.max_flow_files
        )

    def give_back(self, writable: WritableClaim, *, committed: bool) -> None:
        """The writer's outcome is known: back to the pool, or closed.

        Without a commit and never registered, no record can name the file: it is removed at once. Registered ones keep
        their dead bytes until reclamation, sealed by the next transaction that passes by.
        """
        if not self.must_end(writable):
            with self._lock:
                self._pool[writable.claim.lifetime].append(writable)
            return
        if writable.failed:
            writable.offset = max(writable.offset, writable.file.size().length)
        writable.file.close()
        if committed:
            return
        if writable.is_new:
            writable.container.add_bytes(-writable.offset)
            self._files.unlink(writable.path)
        else:
            with self._lock:
                self._unsealed.append(_sealed(writable))

    def take_seals(self) -> list[ResourceClaim]:
        """Seals that no transaction has carried yet, to be committed by the caller."""
        with self._lock:
            seals, self._unsealed = self._unsealed, []
            return seals

    def open_lengths(self) -> dict[int, int]:
        """The present length of each pooled resource claim."""
        with self._lock:
            return {writable.claim.index: writable.offset for pool in self._pool.values() for writable in pool}

    def open_paths(self) -> list[str]:
        """The files in the pool: not all of them are known to the ledger yet."""
        with self._lock:
            return [writable.path for pool in self._pool.values() for writable in pool]

    def idle_claims(self) -> list[WritableClaim]:
        """Take everything out of the pool, to be sealed at close."""
        with self._lock:
            idle = [writable for pool in self._pool.values() for writable in pool]
            for pool in self._pool.values():
                pool.clear()
            return idle

    def retire_idle(self) -> None:
        """Close the pool's files; registered ones are sealed by `take_seals`, unused ones vanish."""
        for writable in self.idle_claims():
            self._retire(writable, locked=False)

    @contextmanager
    def reading(self, claim: ResourceClaim) -> Iterator[File]:
        """The resource claim's file, open for reading; ContentMissing if it is not there."""
        opened = self._acquire(claim)
        try:
            yield opened.file
        finally:
            with self._open_lock:
                opened.users -= 1
                if opened.is_doomed and opened.users == 0:
                    opened.file.close()

    def forget(self, index: int) -> None:
        """The file moves or goes: readers open it anew."""
        with self._open_lock:
            opened = self._open.pop(index, None)
            if opened is not None:
                opened.doom()

    def close(self) -> None:
        """Release all descriptors."""
        for writable in self.idle_claims():
            writable.file.close()
        with self._open_lock:
            for opened in self._open.values():
                opened.doom()
            self._open.clear()

    def container_of(self, claim: ResourceClaim) -> Container:
        return self.containers[claim.container]

    def await_room(self) -> None:
        """Wait, within bounds, until some container is below its back-pressure threshold; else BackPressure."""
        deadline = self._clock.monotonic() + BACK_PRESSURE_WAIT_SECONDS
        while not any(self._admits(container) for container in choose(self._order, 0)):
            if not choose(self._order, 0):
                raise ContentWriteFailed(
                    "every container stopped writing after a failed sync: reopen the repository"
                ) from self._order[0].failure
            self.on_pressure()
            if self._clock.monotonic() >= deadline:
                figures = ", ".join(
                    f"{container.name} {container.usage().percentage:.1f}%" for container in self._order
                )
                raise BackPressure(
                    f"no container is below {self._back_pressure}% usage ({figures}): remove FlowFiles, shorten the "
                    "archive's retention or add space"
                )
            self._clock.sleep(BACK_PRESSURE_POLL_SECONDS)

    def _admits(self, container: Container) -> bool:
        return container.usage().percentage < self._back_pressure

    def _create(self, lifetime: Lifetime) -> WritableClaim:
        self.await_room()
        index = self._take_index()
        container = next(c for c in choose(self._order, index) if self._admits(c))
        claim = ResourceClaim(index, container.name, self._clock.now_millis(), lifetime)
        path = container.live_path(claim)
        try:
            container.ensure_directory(os.path.dirname(path))
            return WritableClaim(claim, container, self._files.create(path), path)
        except OSError as error:
            raise ContentWriteFailed(f"content file {path} could not be created: {error}") from error

    def _take_index(self) -> int:
        """An index that was never used, whatever the clock and the crashes did: ceilings go through the log first."""
        with self._index_lock:
            if self._next_index > self._index_ceiling:
                ceiling = self._next_index + INDEX_BLOCK - 1
                self._reserve_indexes(ceiling)
                self._index_ceiling = ceiling
            index = self._next_index
            self._next_index += 1
            return index

    def _retire(self, writable: WritableClaim, *, locked: bool = True) -> None:
        """Close a pooled file for good."""
        writable.file.close()
        if writable.is_new:
            writable.container.add_bytes(-writable.offset)
            self._files.unlink(writable.path)
        elif locked:
            self._unsealed.append(_sealed(writable))
        else:
            with self._lock:
                self._unsealed.append(_sealed(writable))

    def _acquire(self, claim: ResourceClaim) -> "_OpenFile":
        with self._open_lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                self._open.move_to_end(claim.index)
                opened.users += 1
                return opened
        container = self.container_of(claim)
        try:
            file = self._open_anywhere(container, claim)
        except FileNotFoundError as error:
            raise ContentMissing(
                f"resource claim {claim.index} is missing: {container.live_path(claim)} does not exist"
            ) from error
        with self._open_lock:
            opened = self._open.get(claim.index)
            if opened is not None:
                file.close()
            else:
                opened = self._open[claim.index] = _OpenFile(file)
                if len(self._open) > OPEN_FILES_MAX:
                    self._open.popitem(last=False)[1].doom()
            opened.users += 1
            return opened

    def _open_anywhere(self, container: Container, claim: ResourceClaim) -> File:
        """Open the live path, else the archived one: the file may move between the two at any time."""
        try:
            return self._files.open(container.live_path(claim))
        except FileNotFoundError:
            return self._files.open(container.archive_path(claim))


class _OpenFile:
    """A shared descriptor; closed when the last reader has left after it was doomed."""

    __slots__ = ("file", "is_doomed", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_doomed = False

    def doom(self) -> None:
        self.is_doomed = True
        if self.users == 0:
            self.file.close()


def _sealed(writable: WritableClaim) -> ResourceClaim:
    """The state of a resource claim that is never appended to again."""
    claim = writable.claim
    return ResourceClaim(
        claim.index,
        claim.container,
        claim.created_millis,
        claim.lifetime,
        writable.offset,
        True,
        claim.generation + 1,
    )


def registration(writable: WritableClaim, *, is_sealed: bool) -> ResourceClaim:
    """The state to commit with the content just written."""
    if is_sealed:
        return _sealed(writable)
    claim = writable.claim
    return ResourceClaim(claim.index, claim.container, claim.created_millis, claim.lifetime, writable.offset)
