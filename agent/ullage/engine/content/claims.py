"""Resource claims in the hands of writers, striped over containers: what content stores of ours have in common.

A resource claim belongs to one session from `take` until that session's outcome: nobody else appends to it, so that a
failed sync concerns one session only. Given back below the limits it is appended to later (`maxAppendableSize`,
`maxFlowFiles`); otherwise it is sealed, and nothing is ever appended again. After a restart all are sealed. Where
tenants are isolated it is one tenant's from its first byte on, and only that tenant's sessions append to it.

Their numbers are never used twice, whatever the clock and the crashes do. A block of them is reserved through the log
before one is handed out, and a start goes on behind the last block. In a block they are handed out section by section,
since a file's number says in which section's directory it lies:

    of 1,024 sections:   1, 1025, 2049 ... 15361 (section 1) | 2, 1026, 2050 ... (section 2) | 3 ...

Files that are made one after the other then share a directory, and one sync makes the names of many durable.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Generic, TypeVar

import msgspec

from ullage.contract import ContentRepositorySpec, Isolation
from ullage.engine.content.containers import Container
from ullage.engine.files import File
from ullage.engine.model import Lifetime, ResourceClaim
from ullage.engine.parts import RepositoryParts
from ullage.errors import ContentWriteFailed, DiskFull, RepositoryDamaged

RUN = 16
"""Numbers in a row of one section: at most so many files are made ahead of need."""

BLOCK_MIN = 4_096
"""Numbers reserved by one transaction: rarely enough to cost nothing, few enough that a crash wastes next to none."""

POOLS_MAX = 256
"""Tenants, times their lifetime classes, whose files wait open for the next writer: with more of them the file of
whoever wrote longest ago is sealed. A descriptor each, and after a crash as many files whose end has to be found.
"""

C = TypeVar("C", bound=Container)


class Indexes:
    """Hands out resource claim indexes. Thread-safe; the lock is held while a block is reserved."""

    def __init__(self, sections: int, reserve: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._stride = sections * max(1, -(-BLOCK_MIN // (RUN * sections)))
        self._block = RUN * self._stride
        self._lock = threading.Lock()
        self.start_after(0)

    def start_after(self, ceiling: int) -> None:
        """Numbers up to `ceiling` may have been used before."""
        self._base = ceiling + 1 - self._block
        self._taken = self._block

    def take(self, count: int = 1) -> list[int]:
        """One number, or up to `count` of one section."""
        with self._lock:
            if self._taken == self._block:
                base = self._base + self._block
                # Durable before the first file bears one: with a log that has lost its end, a number could come again,
                # and an address of a claim that was reclaimed would read another one's bytes.
                self._reserve(base + self._block - 1)
                self._base, self._taken = base, 0
            row, first = divmod(self._taken, RUN)
            count = min(count, RUN - first)
            self._taken += count
            return [self._base + row + step * self._stride for step in range(first, first + count)]

    def leave_section(self) -> None:
        """What is handed out next is of another section: something else may lie in the place of this one."""
        with self._lock:
            self._taken += -self._taken % RUN


@dataclass(slots=True, eq=False)
class WritableClaim:
    """A resource claim in the hands of one writer."""

    claim: ResourceClaim
    container: Container
    file: File
    path: str

    offset: int = 0
    """Where the next byte goes; what is gathered in memory counts already."""

    charged: int = 0
    """So many bytes of it its container is charged for."""

    committed: int = 0
    """Up to here a transaction stands that names what was written."""

    claims: int = 0
    """Content claims in it."""

    is_new: bool = True
    """No transaction has registered it: if its writer gives up, nobody can name it, and it goes."""

    name_synced: bool = False
    """A sync of its directory came after its creation."""

    is_ended: bool = False
    """Nothing is to follow what is in it."""

    failed: bool = False
    """A write or a sync failed: what the file holds is known after a restart."""

    is_sealed: bool = False
    """The transaction that names what was written last holds its seal."""

    is_lost: bool = False
    """Its volume went away meanwhile: what is there when it is back is known by then, and nothing more may be named."""

    def commit(self) -> None:
        """All that was written belongs to a transaction that stands."""
        self.is_new = False
        self.committed = self.offset

    def end_at(self, length: int) -> None:
        """The file has exactly this length: after a failed write that is what counts, not what was meant."""
        self.offset = length
        self.container.charge(self)

    def registration(self, *, is_sealed: bool) -> ResourceClaim:
        """The state to commit with the content just written."""
        self.is_sealed = is_sealed
        claim = self.claim
        place = claim.index, claim.container, claim.created_millis, claim.lifetime
        return ResourceClaim(*place, self.offset, is_sealed, claim.generation + is_sealed, tenant=claim.tenant)


class StripedStore(ABC, Generic[C]):
    """See `ContentStore`. Left to say is how a file is made, removed, read and changed."""

    def __init__(self, containers: Sequence[C], parts: RepositoryParts, reserve_indexes: Callable[[int], None]) -> None:
        self.containers = {container.name: container for container in containers}
        self.away: frozenset[str] = frozenset()
        self.inherited_ceiling = 0
        self._order = [container for container in containers if not container.evacuates]
        self._clock = parts.clock
        self._indexes = Indexes(parts.spec.storage.sections, reserve_indexes)
        self._lock = threading.Lock()
        self._pool: OrderedDict[tuple[str, int], list[WritableClaim]] = OrderedDict()
        self._active: dict[int, WritableClaim] = {}
        self._unsealed: list[ResourceClaim] = []
        self._adrift: dict[int, tuple[ResourceClaim, int]] = {}
        self._is_closed = False
        self.adopt(parts.spec)

    def adopt(self, spec: ContentRepositorySpec) -> None:
        self.limits = spec.claims
        self._back_pressure = spec.archive.backpressure_percentage
        self._isolates = spec.isolation == Isolation.PER_TENANT

    def start_after(self, ceiling: int) -> None:
        self.inherited_ceiling = ceiling
        self._indexes.start_after(ceiling)

    def take(self, lifetime: Lifetime, length: int, tenant: str) -> WritableClaim | None:
        if not self._isolates:
            tenant = ""
        while True:
            writable = self._from_pool((tenant, lifetime), length)
            if writable is None:
                return self._take_new(lifetime, length, tenant)
            try:  # asked outside the lock: how full a volume is is a system call
                is_fit = writable.container.is_writable and not writable.is_lost and self._admits(writable.container)
            except BaseException:
                self._return_to_pool(writable)
                raise
            # One of a container that is full, or stopped writing, is no use to the next writer either.
            if is_fit:
                return writable
            self._end(writable)

    def must_end(self, writable: WritableClaim) -> bool:
        return (
            writable.is_ended
            or writable.failed
            or writable.is_lost
            or writable.offset >= self.limits.max_appendable_size
            or writable.claims >= self.limits.max_flow_files
        )

    def give_back(self, writable: WritableClaim, *, committed: bool) -> None:
        # What the transaction says counts, not what `must_end` says now: limits, or its volume, may have changed since.
        # A sealed file that was appended to had live content behind its end, which read as reclaimed.
        #
        #     limit 8 KiB, seal at 9,008 logged | limit 64 KiB adopted | back to the pool | 300 more bytes committed
        writable.is_sealed &= committed
        # A session may outlive the close: its file is only released then, and the next start seals it.
        if writable.is_sealed or self.must_end(writable) or self._is_closed:
            self._end(writable, is_recorded=writable.is_sealed)
        else:
            self._return_to_pool(writable)

    def retire_idle(self) -> None:
        """Close the pool's files; registered ones are sealed by `take_seals`, unused ones vanish."""
        idle = self._empty_pool()
        try:
            while idle:
                self._end(idle.pop())
        finally:  # also of those that an interrupt kept from their end
            for writable in idle:
                writable.file.close()

    def seal_later(self, claim: ResourceClaim, end_in_use: int) -> None:
        with self._lock:
            self._adrift[claim.index] = claim, end_in_use

    def take_seals(self) -> list[ResourceClaim]:
        for claim, end_in_use in list(self._adrift.values()):
            self._seal_adrift(claim, end_in_use)
        with self._lock:
            seals, self._unsealed = self._unsealed, []
            return seals

    def return_seals(self, seals: list[ResourceClaim]) -> None:
        with self._lock:
            self._unsealed.extend(seals)

    def open_lengths(self) -> dict[int, int]:
        with self._lock:
            lengths = {claim.index: claim.length for claim, _ in self._adrift.values()}
            lengths.update((seal.index, seal.length) for seal in self._unsealed)
            lengths.update((index, writable.offset) for index, writable in self._active.items())
            return lengths

    def open_claims(self) -> list[ResourceClaim]:
        with self._lock:
            return [writable.claim for writable in self._active.values()]

    def begin_output(self, source: ResourceClaim, length: int, created_millis: int) -> WritableClaim | None:
        container = self._target_of(self.container_of(source), length)
        if container is None or not self._make_room(container, length):
            return None
        place = self._indexes.take()[0], container.name, created_millis, source.lifetime
        claim = ResourceClaim(*place, tenant=source.tenant)
        return self._opened(claim, container)

    def close_output(self, output: WritableClaim, *, committed: bool) -> None:
        self._end(output, is_recorded=committed)

    def close(self) -> None:
        self._is_closed = True
        for writable in self._empty_pool():
            writable.file.close()

    def container_of(self, claim: ResourceClaim) -> C:
        container = self.containers.get(claim.container)
        if container is None:
            raise RepositoryDamaged(
                f"resource claim {claim.index} lies in container {claim.container!r}, unknown to this repository"
            )
        return container

    def forget(self, name: str) -> None:
        del self.containers[name]
        self._order = [container for container in self._order if container.name != name]
        with self._lock:
            self._adrift = {index: found for index, found in self._adrift.items() if found[0].container != name}
            self.away -= {name}

    def is_there(self, claim: ResourceClaim) -> bool:
        return True

    @property
    def pressure(self) -> str:
        figures = ", ".join(
            f"{each.name} {f'{each.usage().percentage:.1f}%' if each.is_writable else 'not written'}"
            for each in self._order
        )
        return f"{self._back_pressure}% usage ({figures})"

    def require_writing(self) -> None:
        if not self._writing():
            raise ContentWriteFailed(
                "no container can be written: each stopped after a failed sync, which takes reopening the repository, "
                "or its volume is away or read-only"
            ) from next((each.failure for each in self._order if each.failure is not None), None)

    def has_room(self) -> bool:
        return any(self._admits(container) for container in self._writing())

    @abstractmethod
    def _make(self, claim: ResourceClaim, container: C) -> tuple[File, str]:
        """A new, empty file for a resource claim, and its path. DiskFull, ContentWriteFailed."""

    @abstractmethod
    def seal(self, claim: ResourceClaim) -> ResourceClaim:
        """See `ContentStore`."""

    @abstractmethod
    def _remove_file(self, writable: WritableClaim) -> None:
        """Remove what no record names; if that fails it is an orphan."""

    def _make_room(self, container: C, length: int) -> bool:
        """Whether there are so many bytes for an output; its sources go afterwards, so that quotas do not count."""
        return True

    def _create(self, container: C, lifetime: Lifetime) -> WritableClaim:
        return self._opened(self._new_claim(self._indexes.take()[0], container, lifetime), container)

    def _new_claim(self, index: int, container: C, lifetime: Lifetime) -> ResourceClaim:
        return ResourceClaim(index, container.name, self._clock.now_millis(), lifetime)

    def _opened(self, claim: ResourceClaim, container: C) -> WritableClaim:
        writable = WritableClaim(claim, container, *self._make(claim, container))
        with self._lock:
            self._active[claim.index] = writable
        return writable

    @cached_property
    def _turn(self) -> Iterator[int]:
        """Begins where least lies: programs that store one content each would else all fill the same container."""
        return count(min(range(len(self._order)), key=lambda at: self._order[at].bytes_used))

    def _writing(self, turn: int = 0) -> list[C]:
        """Round robin: the container whose turn it is first, then the others, without those that can't be written."""
        start = turn % len(self._order)
        return [one for one in (*self._order[start:], *self._order[:start]) if one.is_writable]

    def _admits(self, container: Container) -> bool:
        return container.usage().percentage < self._back_pressure

    def _take_new(self, lifetime: Lifetime, length: int, tenant: str) -> WritableClaim | None:
        """A new file for a tenant in the container whose turn it is, or the next one that admits writers, has room for
        `length` bytes and lets a file be made; None while none admits them.
        """
        self.require_writing()
        admitted = [container for container in self._writing(next(self._turn)) if self._admits(container)]
        failure: DiskFull | ContentWriteFailed | None = None
        for container in admitted:
            if not container.has_room_for(length):
                continue
            try:
                writable = self._create(container, lifetime)
            except (DiskFull, ContentWriteFailed) as error:
                failure = failure or error  # of one volume: nothing was written, and the others may have room
                if isinstance(error, ContentWriteFailed):
                    self._indexes.leave_section()  # or of one section: the next attempt is made in another one
            else:
                if tenant:
                    writable.claim = msgspec.structs.replace(writable.claim, tenant=tenant)
                return writable
        if failure is not None:
            raise failure
        if admitted:
            figures = ", ".join(f"{c.name} {c.bytes_used} of {c.capacity}" for c in admitted)
            raise DiskFull(f"no container's capacity has room for {length} bytes more (used: {figures})")
        return None

    def _target_of(self, source: C, length: int) -> C | None:
        """Where an output of so many bytes goes: beside its sources, or away from a container that is to be emptied, to
        the one with most room; None if none admits it.
        """
        if not source.evacuates:
            return source
        fit = [one for one in self._writing() if self._admits(one) and one.has_room_for(length)]
        return max(fit, key=lambda one: one.usage().free_bytes, default=None)

    def _return_to_pool(self, writable: WritableClaim) -> None:
        key = writable.claim.tenant, writable.claim.lifetime
        idle: list[WritableClaim] = []
        with self._lock:
            self._pool.setdefault(key, []).append(writable)
            if key[0]:
                self._pool.move_to_end(key)
                if len(self._pool) > POOLS_MAX:
                    idle = self._pool.popitem(last=False)[1]
        for each in idle:
            self._end(each)

    def _from_pool(self, key: tuple[str, int], length: int) -> WritableClaim | None:
        with self._lock:
            pool = self._pool.get(key, [])
            for at in reversed(range(len(pool))):
                if pool[at].container.has_room_for(length):
                    return pool.pop(at)
        return None

    def _empty_pool(self) -> list[WritableClaim]:
        """What nobody has in hand; it is not handed out any more."""
        with self._lock:
            idle = [writable for pool in self._pool.values() for writable in pool]
            self._pool.clear()
            return idle

    def _end(self, writable: WritableClaim, *, is_recorded: bool = False) -> None:
        """Close a file that is never appended to again. `is_recorded`: a transaction holds its seal."""
        try:
            if self._is_closed:  # the log may be closed, and another process have the files by now: nothing is touched
                return
            if writable.is_new and not is_recorded:
                writable.end_at(0)
                self._remove_file(writable)
            elif not is_recorded and not self._cut_back(writable):
                if writable.is_lost:
                    self._set_adrift(writable)
                return
            with self._lock:  # both at once: a survey between them would miss the length that a seal is to record
                del self._active[writable.claim.index]
                if not is_recorded and not writable.is_new:
                    self._unsealed.append(writable.registration(is_sealed=True))
        finally:
            writable.file.close()

    def _cut_back(self, writable: WritableClaim) -> bool:
        """Remove what no transaction named, so that the file ends, durably, where its seal will say; whether it does.

        These bytes were never synced, so a crash could make the file shorter than a seal that counts them.
        """
        if writable.is_lost:
            return False
        try:
            if writable.file.size().length > writable.committed:
                writable.file.truncate(writable.committed)
                writable.file.sync()
        except OSError as error:
            writable.is_lost = self._has_lost(writable.container, error)
            if not writable.is_lost:  # left unsealed: the next start seals it where it then ends
                writable.container.failure = error
            return False
        writable.end_at(writable.committed)
        return True

    def _has_lost(self, container: Container, error: OSError) -> bool:
        """Whether an operation met this error because the container's volume is away, or can't be written now."""
        return False

    def _set_adrift(self, writable: WritableClaim) -> None:
        """Where the file of a lost resource claim ends is known when its volume is back: it is sealed then."""
        writable.end_at(writable.committed)
        with self._lock:
            del self._active[writable.claim.index]
            self._adrift[writable.claim.index] = writable.registration(is_sealed=False), writable.committed

    def _seal_adrift(self, claim: ResourceClaim, end_in_use: int) -> None:
        """Seal what was left open on a volume that was away, if it is back."""
        container = self.container_of(claim)
        if not container.is_writable:
            return
        try:
            seal = self.seal(claim)
        except OSError as error:
            if not self._has_lost(container, error):
                container.failure = error  # a sync may have failed: the next start seals it
            return
        seal = msgspec.structs.replace(seal, length=max(seal.length, end_in_use))
        with self._lock:  # both at once, as in `_end`
            del self._adrift[claim.index]
            self._unsealed.append(seal)
        container.add_bytes(seal.length - claim.length)
