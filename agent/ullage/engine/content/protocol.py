"""What the engine needs of content: the third of the protocols in `repositories.py`, whose words this page uses."""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ullage.contract import ClaimSettings, ContentRepositorySpec
from ullage.engine.content.claims import WritableClaim
from ullage.engine.content.containers import Container
from ullage.engine.files import File
from ullage.engine.model import Lifetime, ResourceClaim


class IntentOutcome(enum.Enum):
    """What became of an intent that was carried out."""

    DONE = enum.auto()
    """It is so, durably; an earlier process may have done it."""

    MISSING = enum.auto()
    """There is nothing that it could be done to."""

    IMPOSSIBLE = enum.auto()
    """What keeps the bytes cannot do it, and never will: nothing was changed."""

    LATER = enum.auto()
    """Its volume is away or read-only. Nothing is known to be freed: the intent stands, to be carried out once the
    volume is back.
    """


class Orphan(NamedTuple):
    """Content that no record names. `claim` is what it was of, where an earlier process of this repository left it
    behind for certain: then it may be adopted.
    """

    path: str
    container: str
    length: int
    allocated_bytes: int
    claim: ResourceClaim | None
    is_archived: bool = False

    @property
    def is_adoptable(self) -> bool:
        return self.claim is not None


class ContentStore(Protocol):
    """Bytes, in resource claims, which lie in containers. Thread-safe.

    What lives is not known here: the ledger says it, and nothing is cut, punched or removed but by `carry_out`, whose
    intents are durable. A resource claim belongs to one writer from `take` to `give_back`. What a writer wrote counts
    once `sync` has returned and a transaction names it: it then reads back, the same bytes at the same offsets, until
    an intent takes it away.
    """

    is_volatile: bool
    """Content is gone when the process ends, and everything that knows of it must be as well."""

    limits: ClaimSettings

    @property
    def containers(self) -> Mapping[str, Container]:
        """Those of the spec, and others that still hold something, by name, with their figures."""
        ...

    @property
    def away(self) -> frozenset[str]:
        """The containers whose volumes are not there, as of the last look: what lies on them can't be read."""
        ...

    def forget(self, name: str) -> None:
        """A container that holds nothing any more is none of ours."""
        ...

    @property
    def pressure(self) -> str:
        """From where on writers wait, and how full each container is, for a message."""
        ...

    def prepare(self, known: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        """Make the containers that are not `known` yet, durably, and see which of the known ones are there
        (`Container.condition`). One that the spec does not list is taken up where it is known to lie, to be emptied.
        One that is `forgotten` is not looked for, and is none once it is not known any more.
        Called before anything else; for a new repository nothing is known, and one that can't be made is a
        ForeignContainer or OSError. Beside known ones it is `Container.unmade`.
        """
        ...

    def make(self, name: str) -> None:
        """Try again to make one that is `Container.unmade`, durably, which it stays until the caller has recorded that
        the repository has it. ForeignContainer, OSError.
        """
        ...

    def look_at_volumes(self) -> None:
        """See which containers' volumes are there: `Container.condition`. Called now and then; what meets an error
        that looks like it asks by itself.
        """
        ...

    def start_after(self, ceiling: int) -> None:
        """Indexes up to `ceiling` may have been used before: hand out higher ones. Each block of them is reserved with
        the factory's function before one is used.
        """
        ...

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New limits of claims and back-pressure, from the next claim on."""
        ...

    def close(self) -> None:
        """Release everything, what is in writers' and readers' hands when they give it back; safe to call twice."""
        ...

    def take(self, lifetime: Lifetime, length: int, tenant: str) -> WritableClaim | None:
        """A resource claim to append to, with spec.isolation PerTenant one of this tenant's alone, in a container whose
        quota has `length` bytes left; None while every container is too full for writers. DiskFull if no quota allows
        `length`, ContentWriteFailed once none writes.
        """
        ...

    def has_room(self) -> bool:
        """Whether some container is below its back-pressure threshold, so that writers need not wait."""
        ...

    def require_writing(self) -> None:
        """ContentWriteFailed once every container has stopped writing: then waiting for room is vain."""
        ...

    def sync(self, writable: WritableClaim) -> None:
        """Make what was written durable, and that it is there at all. ContentWriteFailed: the writer may name nothing
        of it, and the container stops writing (poisoned).
        """
        ...

    def must_end(self, writable: WritableClaim) -> bool:
        """Whether the limits end this resource claim, tested when it is about to be given back."""
        ...

    def give_back(self, writable: WritableClaim, *, committed: bool) -> None:
        """The writer's outcome is known. Without a commit and never registered, no record can name the claim: it is
        removed. Registered ones are cut back to what was committed, and sealed by the next transaction that passes by.
        """
        ...

    def retire_idle(self) -> None:
        """End what is given back and may be appended to; it is sealed by `take_seals`."""
        ...

    def take_seals(self) -> list[ResourceClaim]:
        """Seals that no transaction has carried yet, to be committed by the caller."""
        ...

    def seal_later(self, claim: ResourceClaim, end_in_use: int) -> None:
        """An earlier process left it open on a volume that can't be written now: once it can be, `take_seals` has its
        seal, not below `end_in_use`.
        """
        ...

    def return_seals(self, seals: list[ResourceClaim]) -> None:
        """Their transaction failed: the next one is to carry them."""
        ...

    def open_lengths(self) -> dict[int, int]:
        """The present length of each resource claim whose end no transaction has recorded yet."""
        ...

    def open_claims(self) -> list[ResourceClaim]:
        """The resource claims that may be appended to: not all are known to the ledger yet."""
        ...

    def container_of(self, claim: ResourceClaim) -> Container:
        """RepositoryDamaged if it is none of this repository's."""
        ...

    def path_of(self, claim: ResourceClaim) -> str:
        """Where its bytes lie, for people."""
        ...

    def is_there(self, claim: ResourceClaim) -> bool:
        """Whether the volume that it lies on is there at this moment."""
        ...

    def length_of(self, claim: ResourceClaim) -> int | None:
        """How many bytes are there, holes included; None if it is missing where the ledger says that it is."""
        ...

    def reading(self, claim: ResourceClaim) -> AbstractContextManager[File]:
        """The resource claim, open for reading wherever it lies; ContentMissing if it is not there."""
        ...

    def open_descriptor(self, claim: ResourceClaim) -> int:
        """A read-only descriptor of it, to be passed on and closed; ContentMissing.

        Whoever passes it has a lease that says so (`holds_files`): else the file may be changed in place under its
        reader.
        """
        ...

    def carry_out(self, intents: Sequence[ResourceClaim]) -> list[IntentOutcome | OSError]:
        """Archive, truncate, punch or remove, as each intent says, and durably when this returns; may be repeated after
        any crash. An error is that of one intent, and keeps none of the others from being carried out.
        """
        ...

    def begin_output(self, source: ResourceClaim, length: int, created_millis: int) -> WritableClaim | None:
        """A resource claim for what a rewrite keeps of `source` and others of its lifetime and tenant: beside it, or
        elsewhere if its container is to be emptied. No fresh content joins it. None if there is no room for `length`
        bytes.
        """
        ...

    def sync_output(self, output: WritableClaim) -> None:
        """As `sync`, up to `output.offset`: what lies behind it is cut off. OSError; without room nothing is poisoned,
        for nobody relies on it.
        """
        ...

    def close_output(self, output: WritableClaim, *, committed: bool) -> None:
        """Give an output back. Without a commit nothing names it, and it is removed."""
        ...

    def seal(self, claim: ResourceClaim) -> ResourceClaim:
        """The seal of what an earlier process left open, or of another length than was known: it ends where it ends,
        durably.
        """
        ...

    def orphans(self, recorded: Callable[[int], ResourceClaim | None]) -> list[Orphan]:
        """All content that no record names: `recorded` says what the ledger has of an index. It may read everything."""
        ...

    @property
    def left_behind(self) -> int:
        """How many files this process could not remove that no record names: each is an orphan that was not there at
        the start.
        """
        ...

    def make_durable(self, orphans: Iterable[Orphan]) -> None:
        """Have what was found survive what the store can survive: a record must not outlive its content."""
        ...

    def grow_reserve(self) -> None:
        """Keep room that only what makes room may use; where there is none to keep, the next call tries again."""
        ...

    def spend_reserve(self) -> None:
        """Give that room to what makes room."""
        ...
