"""The content repository: resource claims handed out for writing, and opened for reading.

A resource claim belongs to one session from `take` until that session's outcome: nobody else appends to it, so that a
failed sync concerns one session only. Given back below the limits it is appended to later (`maxAppendableSize`,
`maxFlowFiles`); otherwise it is sealed, and nothing is ever appended again. After a restart all are sealed.

Where files are needed again and again, the next ones are made ahead, empty: up to 16 of a container and a lifetime
class, whose names one sync of their directory makes durable. No record names them; a close removes them, and after a
crash they are orphans of no length.

    16 created, directory synced | content, file synced, frame | content, file synced, frame | ...
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import msgspec

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container, choose
from ullage_agent.engine.content.indexes import RUN, Indexes
from ullage_agent.engine.content.openfiles import OpenFiles
from ullage_agent.engine.errors import BackPressure, ContentWriteFailed, DiskFull, RepositoryDamaged
from ullage_agent.engine.files import File, Files, is_disk_full
from ullage_agent.engine.model import Lifetime, ResourceClaim

BACK_PRESSURE_WAIT_SECONDS = 10.0
"""How long a writer waits for room before it gets an error; cleaning runs every minute or when asked."""

BACK_PRESSURE_POLL_SECONDS = 0.05

RELIEF_SECONDS = 1.0
"""A waiting writer asks for cleaning this often: each time costs a survey."""


class WritableClaim:
    """A resource claim in the hands of one writer."""

    __slots__ = (
        "claim",
        "claims",
        "committed",
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
        self.committed = 0
        self.claims = 0
        self.is_new = True
        self.name_synced = False
        self.is_ended = False
        self.failed = False

    def commit(self) -> None:
        """All that was written belongs to a transaction that stands."""
        self.is_new = False
        self.committed = self.offset

    def end_at(self, length: int) -> None:
        """The file has exactly this length: after a failed write that is what counts, not what was meant."""
        self.container.add_bytes(length - self.offset)
        self.offset = length


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
        self._order = [container for container in containers if not container.evacuates]
        self._files = files
        self._clock = clock
        self._back_pressure = spec.archive.backpressure_percentage
        self._indexes = Indexes(containers[0].sections, reserve_indexes)
        self._lock = threading.Lock()
        self._turn = count(1)
        self._pool: dict[int, list[WritableClaim]] = {lifetime: [] for lifetime in Lifetime}
        self._spares: defaultdict[tuple[str, int], list[WritableClaim]] = defaultdict(list)
        self._made: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._active: dict[int, WritableClaim] = {}
        self._unsealed: list[ResourceClaim] = []
        self._open_files = OpenFiles(files)
        self._is_closed = False
        self.inherited_ceiling = 0
        self.on_pressure: Callable[[], None] = lambda: None

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New limits of claims and back-pressure, from the next claim on."""
        self.limits = spec.claims
        self._back_pressure = spec.archive.backpressure_percentage

    def start_after(self, ceiling: int) -> None:
        """Indexes up to `ceiling` may have been used before."""
        self.inherited_ceiling = ceiling
        self._indexes.start_after(ceiling)

    def take(self, lifetime: Lifetime, length: int = 0) -> WritableClaim:
        """A resource claim to append to, in a container whose quota has `length` bytes left.

        BackPressure if no container has room within a bounded wait, DiskFull if no quota allows `length`.
        """
        while True:
            writable = self._from_pool(lifetime, length)
            if writable is None:
                return self._create(lifetime, length)
            try:
                is_fit = writable.container.failure is None and self._admits(writable.container)
            except BaseException:
                self._return_to_pool(writable)
                raise
            if is_fit:
                return writable
            self._end(writable)

    def create_output(self, container: Container, lifetime: int, created_millis: int) -> WritableClaim:
        """A fresh file for what a rewrite keeps: never in the pool, so that no fresh write joins it. DiskFull if there
        is no room for its name. To be given back with `close_output`.
        """
        claim = ResourceClaim(self._indexes.take()[0], container.name, created_millis, lifetime)
        return self._open_new(claim, container)

    def target_of(self, source: Container, length: int) -> Container | None:
        """Where an output of so many bytes goes: beside its sources, or away from a container that is to be emptied, to
        the one with most room; None if none admits it.
        """
        if not source.evacuates:
            return source
        fit = [one for one in choose(self._order, 0) if self._admits(one) and one.has_room_for(length)]
        return max(fit, key=lambda one: one.usage().free_bytes, default=None)

    def close_output(self, writable: WritableClaim, *, committed: bool) -> None:
        """Close an output. Without a commit nothing names it, and it is removed."""
        self._end(writable, is_recorded=committed)

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

        Without a commit and never registered, no record can name the file: it is removed at once. Registered ones are
        cut back to what was committed, and sealed by the next transaction that passes by.
        """
        if self.must_end(writable) or self._is_closed:
            self._end(writable, is_recorded=committed)
        else:
            self._return_to_pool(writable)

    def take_seals(self) -> list[ResourceClaim]:
        """Seals that no transaction has carried yet, to be committed by the caller."""
        with self._lock:
            seals, self._unsealed = self._unsealed, []
            return seals

    def return_seals(self, seals: list[ResourceClaim]) -> None:
        """Their transaction failed: the next one is to carry them."""
        with self._lock:
            self._unsealed.extend(seals)

    def open_lengths(self) -> dict[int, int]:
        """The present length of each resource claim whose end no transaction has recorded yet."""
        with self._lock:
            lengths = {seal.index: seal.length for seal in self._unsealed}
            lengths.update((index, writable.offset) for index, writable in self._active.items())
            return lengths

    def open_claims(self) -> list[ResourceClaim]:
        """The resource claims being written, in the pool or by a session: not all are known to the ledger yet."""
        with self._lock:
            return [writable.claim for writable in self._active.values()]

    def retire_idle(self) -> None:
        """Close the pool's files; registered ones are sealed by `take_seals`, unused and spare ones vanish."""
        idle = self._empty_pool()
        try:
            while idle:
                self._end(idle.pop())
        finally:  # also of those that an interrupt kept from their end
            for writable in idle:
                writable.file.close()

    @contextmanager
    def reading(self, claim: ResourceClaim) -> Iterator[File]:
        """The resource claim's file, open for reading; ContentMissing if it is not there."""
        with self._open_files.reading(claim, self.container_of(claim)) as file:
            yield file

    def open_descriptor(self, claim: ResourceClaim) -> int:
        """A read-only descriptor of the resource claim's file, to be passed on and closed; ContentMissing.

        Whoever passes it has a lease that says so (`holds_files`): else the file may be changed in place under its
        reader.
        """
        return self._open_files.descriptor(claim, self.container_of(claim))

    def forget(self, index: int) -> None:
        """The file is gone: no descriptor is kept that would hold its blocks."""
        self._open_files.forget(index)

    def close(self) -> None:
        """Release all descriptors but those in sessions' and readers' hands, which are released when given back."""
        self._is_closed = True
        for writable in self._empty_pool():
            writable.file.close()
        self._open_files.close()

    def container_of(self, claim: ResourceClaim) -> Container:
        container = self.containers.get(claim.container)
        if container is None:
            raise RepositoryDamaged(
                f"resource claim {claim.index} lies in container {claim.container!r}, unknown to this repository"
            )
        return container

    def await_room(self) -> None:
        """Wait, within bounds, until some container is below its back-pressure threshold; else BackPressure."""
        deadline = self._clock.monotonic() + BACK_PRESSURE_WAIT_SECONDS
        relief = float("-inf")
        while not self.has_room():
            if not choose(self._order, 0):
                raise ContentWriteFailed(
                    "every container stopped writing after a failed sync: reopen the repository"
                ) from self._order[0].failure
            now = self._clock.monotonic()
            if now >= relief:
                relief = now + RELIEF_SECONDS
                self.on_pressure()
                continue
            if now >= deadline:
                figures = ", ".join(
                    f"{container.name} {container.usage().percentage:.1f}%" for container in self._order
                )
                raise BackPressure(
                    f"no container is below {self._back_pressure}% usage ({figures}): remove FlowFiles, shorten the "
                    "archive's retention or add space"
                )
            self._clock.sleep(BACK_PRESSURE_POLL_SECONDS)

    def has_room(self) -> bool:
        """Whether some container is below its back-pressure threshold, so that writers need not wait."""
        return any(self._admits(container) for container in choose(self._order, 0))

    def _admits(self, container: Container) -> bool:
        return container.usage().percentage < self._back_pressure

    def _return_to_pool(self, writable: WritableClaim) -> None:
        with self._lock:
            self._pool[writable.claim.lifetime].append(writable)

    def _from_pool(self, lifetime: Lifetime, length: int) -> WritableClaim | None:
        with self._lock:
            pool = self._pool[lifetime]
            for at in reversed(range(len(pool))):
                if pool[at].container.has_room_for(length):
                    return pool.pop(at)
        return None

    def _create(self, lifetime: Lifetime, length: int) -> WritableClaim:
        """A new file; once there have been some, one that was made ahead."""
        container = self._next_container(length)
        kind = container.name, lifetime
        with self._lock:
            if self._spares[kind]:
                return self._spares[kind].pop()
            count = min(max(1, self._made[kind]), RUN)
        made = self._make(container, lifetime, count)
        with self._lock:
            self._made[kind] += len(made)
            self._spares[kind] += made[1:]
        return made[0]

    def _make(self, container: Container, lifetime: Lifetime, count: int) -> list[WritableClaim]:
        """Up to `count` new files. Of a single one the writer syncs the name, after the bytes: that costs less."""
        millis = self._clock.now_millis()
        made: list[WritableClaim] = []
        try:
            for index in self._indexes.take(count):
                claim = ResourceClaim(index, container.name, millis, lifetime)
                writable = self._open_ahead(claim, container) if made else self._open_new(claim, container)
                if writable is None:
                    break
                made.append(writable)
            if len(made) > 1:
                self._sync_names(container, made)
        except BaseException:
            for writable in made:
                self._end(writable)
            raise
        return made

    def _sync_names(self, container: Container, made: Sequence[WritableClaim]) -> None:
        """They lie in one directory."""
        directory = os.path.dirname(made[0].path)
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            container.failure = error  # as where a writer syncs
            raise ContentWriteFailed(
                f"{directory} could not be synced ({error}): container {container.name} stops writing until the "
                "repository is reopened"
            ) from error
        for writable in made:
            writable.name_synced = True

    def _open_ahead(self, claim: ResourceClaim, container: Container) -> WritableClaim | None:
        """One that nobody waits for. None if it cannot be made: whoever needs it is told, if it fails then too."""
        try:
            return self._open_new(claim, container)
        except (DiskFull, ContentWriteFailed):
            return None

    def _open_new(self, claim: ResourceClaim, container: Container) -> WritableClaim:
        path = container.live_path(claim)
        try:
            container.ensure_directory(os.path.dirname(path))
            writable = WritableClaim(claim, container, self._files.create(path), path)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(f"no room to create {path}: nothing was committed; free space and retry") from error
            raise ContentWriteFailed(f"content file {path} could not be created: {error}") from error
        with self._lock:
            self._active[claim.index] = writable
        return writable

    def _next_container(self, length: int) -> Container:
        """The container whose turn it is, or the next one that admits writers and has room for `length` bytes."""
        turn = next(self._turn)
        while True:
            self.await_room()
            admitted = [container for container in choose(self._order, turn) if self._admits(container)]
            for container in admitted:
                if container.has_room_for(length):
                    return container
            if admitted:
                figures = ", ".join(f"{c.name} {c.bytes_used} of {c.capacity}" for c in admitted)
                raise DiskFull(f"no container's capacity has room for {length} bytes more (used: {figures})")

    def _end(self, writable: WritableClaim, *, is_recorded: bool = False) -> None:
        """Close a file that is never appended to again. `is_recorded`: a transaction holds its seal."""
        try:
            if self._is_closed:
                return
            if writable.is_new and not is_recorded:
                writable.end_at(0)
                self._unlink(writable.path)
            elif not is_recorded and not self._cut_back(writable):
                return
            with self._lock:
                del self._active[writable.claim.index]
                if not is_recorded and not writable.is_new:
                    self._unsealed.append(_sealed(writable))
        finally:
            writable.file.close()

    def _cut_back(self, writable: WritableClaim) -> bool:
        """Remove what no transaction named, so that the file ends, durably, where its seal will say; whether it does.

        These bytes were never synced, so a crash could make the file shorter than a seal that counts them.
        """
        try:
            if writable.file.size().length > writable.committed:
                writable.file.truncate(writable.committed)
                writable.file.sync()
        except OSError as error:
            # Left unsealed: the next start seals it where it then ends.
            writable.container.failure = error
            return False
        writable.end_at(writable.committed)
        return True

    def _unlink(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            # No record names the file, so it is an orphan now: surveyed, and adopted after the next start.
            return

    def _empty_pool(self) -> list[WritableClaim]:
        with self._lock:
            pools = [*self._pool.values(), *self._spares.values()]
            idle = [writable for pool in pools for writable in pool]
            for pool in pools:
                pool.clear()
            return idle


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


def sealed_as_is(files: Files, store: ContentRepository, claim: ResourceClaim) -> ResourceClaim:
    """The seal of a file that an earlier process left open: it ends where it ends."""
    path = store.container_of(claim).current_path(claim)
    length = claim.length
    if files.exists(path):
        file = files.open(path, writable=True)
        try:
            length = file.size().length
            file.sync()  # or a crash could make it shorter than its seal
        finally:
            file.close()
    return msgspec.structs.replace(claim, sealed=True, length=length, generation=claim.generation + 1)
