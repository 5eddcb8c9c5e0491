"""The three repositories that a `Repository` is made of, as protocols: content, FlowFiles, provenance.

They are NiFi's three, and like there another implementation can take the place of ours. A setting names it
(`spec.content.repository`, `spec.flowFile.repository`, `spec.provenance.repository`), an entry point of the groups
below leads to it, and `tests/repositories` holds the suite that each has to pass. An entry point leads to a class, or a
function with `is_volatile`; it is called with what its factory's type says, and gives the repository, not yet restored.

What transactions mean is not theirs: that is the ledger's, in memory, the same for all. A FlowFile repository keeps the
transactions and brings them back; a content repository keeps bytes; a provenance repository keeps what happened.

    open    make provenance, FlowFile and content repository | restore: transactions, with their events, come back in
            order | content starts behind the last index | provenance starts
    commit  content.sync() | append: the transaction is applied, its events taken | wait_durable | content.release()
    close   content.retire_idle() | FlowFile, content and provenance repository close
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from ullage.contract import ContentRepositorySpec
from ullage.engine.content.protocol import ContentStore as ContentStore
from ullage.engine.model import Operation
from ullage.engine.parts import RepositoryParts
from ullage.engine.plugins import Plugins
from ullage.engine.provenance.events import EventId, ProvenanceEvent, RecordedTransaction
from ullage.engine.provenance.holds import Holds
from ullage.engine.provenance.query import Page
from ullage.engine.provenance.scan import EventColumns
from ullage.engine.wal.loading import Watcher
from ullage.engine.wal.restore import RestoreReport
from ullage.engine.wal.state import LoggedState
from ullage.errors import InvalidArgument
from ullage.wire.provenance import EventQuery

T = TypeVar("T")


class FlowFileRepository(Protocol):
    """The transactions, and with them all that exists in a repository: FlowFiles, handles, queues, what is known of
    content, and provenance events. Thread-safe once restored.

    Each transaction is applied to the state that the factory was given: at `restore` those that were kept, in the order
    of their ids, then each as it is appended. The state says what exists; this says what survives.
    """

    is_volatile: bool
    """Nothing is there after a restart, and ids begin with 1 again."""

    @property
    def last_id(self) -> int:
        """The id of the last transaction that was applied; ids are 1, 2, 3 … without a gap."""
        ...

    @property
    def durable(self) -> int:
        """Every transaction up to this id survives what this repository can survive."""
        ...

    @property
    def is_running(self) -> bool:
        """Restored, not closed, not stopped by a failure."""
        ...

    @property
    def log_bytes(self) -> int:
        """What the next checkpoint will make unnecessary; new content is refused beyond `spec.flowFile.walMaxBytes`."""
        ...

    @property
    def snapshot_id(self) -> int:
        """The last transaction that a checkpoint has covered."""
        ...

    @property
    def snapshot_millis(self) -> int:
        """When that was, in milliseconds since the epoch."""
        ...

    @property
    def snapshot_bytes(self) -> int:
        """The size of the last snapshot, for which a reserve is kept on the disk; 0 where there is none."""
        ...

    @property
    def sync_count(self) -> int:
        """How often this waited for a disk, to count."""
        ...

    def restore(
        self, before_serving: Callable[[RestoreReport], None] | None = None, on_replayed: Watcher | None = None
    ) -> RestoreReport:
        """Bring everything back, once, before anything else; whatever it raises, everything is released.

        After an end without `close`, `on_replayed` sees the operations of each transaction that no snapshot covered.
        `before_serving` runs when all are applied, before anything is written; what it raises ends the restoration.
        """
        ...

    def append(self, operations: Sequence[Operation], millis: int, validate: Callable[[], None] | None = None) -> int:
        """Apply one transaction and have it written; returns its id. It is acknowledged after `wait_durable(id)` only.

        Right before the id is taken `validate` runs, then the state's `require_applicable`: what they raise is raised
        here, with nothing applied or written. So are TransactionTooLarge and DiskFull. CommitOutcomeUnknown if it fails
        later: the repository stops.
        """
        ...

    def wait_durable(self, id: int) -> None:
        """Return when every transaction up to `id` is durable. CommitOutcomeUnknown if nobody can say so any more."""
        ...

    def still(self, freeze: Callable[[], T]) -> AbstractContextManager[tuple[int, T]]:
        """What `freeze` makes of a moment when everything up to an id, and nothing beyond it, is applied; and that id,
        durable by now.
        """
        ...

    def checkpoint(self, on_progress: Callable[[int], None] | None = None) -> int:
        """Make a restart short; returns the id up to which it needs no log any more. Commits go on meanwhile.

        A failure leaves everything as it was: DiskFull, OSError.
        """
        ...

    def problems(self) -> list[str]:
        """What `check --deep` has to say: whatever would keep the next start from bringing everything back. All that is
        kept is read, from where a start would read it. Commits go on meanwhile.
        """
        ...

    def close(self) -> None:
        """Make durable what can be, and release everything; safe to call twice, and before `restore`."""
        ...

    def abandon(self) -> None:
        """Release everything as the end of the process would, without anything that `close` does beyond it."""
        ...


class FlowFileFactory(Protocol):
    """Gets the state that transactions are applied to, and what makes room on a full disk, for one that has its id."""

    is_volatile: bool

    def __call__(
        self, parts: RepositoryParts, state: LoggedState, on_full: Callable[[], object], /
    ) -> FlowFileRepository: ...


FLOWFILE_REPOSITORIES: Plugins[FlowFileFactory] = Plugins(
    "ullage.flowfile_repositories",
    "FlowFile repository",
    {
        "": "ullage.engine.flowfile_repository:FileFlowFileRepository",
        "memory": "ullage.memory.flowfile:MemoryFlowFileRepository",
    },
)


class ProvenanceRepository(Protocol):
    """What happened to FlowFiles. Thread-safe.

    Events arrive inside the transactions that cause them: none is lost, and none tells of what did not happen.
    """

    is_volatile: bool
    """Events are gone when the process ends. `undrained` then is empty, and sequence numbers begin with 1 again."""

    holds: Holds
    """Which events readers have not got to yet: retention spares them, within bounds."""

    def take(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        """A transaction was applied; its last operation may be `TransactionEvents`. It counts once `durable()` has
        reached its id. Called in order while the log is restored, and by any thread, out of order, afterwards.

        A transaction that was restored again, though its events are kept already, passes by.
        """
        ...

    def undrained(self) -> list[RecordedTransaction]:
        """The transactions that a snapshot has to carry, because nothing else keeps their events."""
        ...

    def start(self, last_id: int) -> None:
        """Everything up to transaction `last_id` has been taken. RepositoryDamaged if what is kept does not fit it."""
        ...

    def query(self, query: EventQuery) -> Page:
        """A page of the durable events that match, in order of their sequence numbers, which begin with 1 and leave no
        gap. InvalidArgument for an impossible query. What cannot be read is passed over, and told.
        """
        ...

    def columns(self, query: EventQuery) -> Iterator[EventColumns]:
        """Runs of durable events, column by column, oldest first, in which those are that match; others may be, too.
        InvalidArgument as for `query`; ProvenanceDamaged for one that cannot be read.
        """
        ...

    def find(self, id: EventId) -> ProvenanceEvent:
        """One event by its id; EventNotFound."""
        ...

    def span(self) -> tuple[int, int]:
        """The sequence numbers of the first event that is kept and of the last; the first above the last: none is."""
        ...

    def waiting(self) -> tuple[int, int]:
        """How many events, and about how many bytes, only the log and memory hold."""
        ...

    def admit(self) -> None:
        """New content is about to be committed: raises what keeps events from finding room, if so many wait."""
        ...

    def drain(self) -> int:
        """Move every durable event to where it stays; returns how many. An error leaves the rest with the log."""
        ...

    def try_drain(self) -> None:
        """The same for a checkpoint, which never fails for it: its snapshot carries what is left (`undrained`)."""
        ...

    def set_aside_by(self, keep: Callable[[RecordedTransaction, str], None]) -> None:
        """Called once, before anything is drained: `keep` sets a transaction aside, durably, whose events cannot be
        told, with the reason why. It is passed over then, so that it keeps no others from being drained.
        """
        ...

    def step(self) -> None:
        """What is due by now: draining, and the end of some events' retention. Called every second."""
        ...

    def retain(self) -> int:
        """Remove what `spec.provenance` keeps no longer, oldest first; above 0 if anything went."""
        ...

    def index_step(self) -> int:
        """Make searching quicker, for a second at most; returns how many events were indexed."""
        ...

    def problems(self, *, deep: bool) -> list[str]:
        """What `check` has to say of events that are missing or damaged; `deep`: reads all of them."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice, and before `start`."""
        ...


class ProvenanceFactory(Protocol):
    """Gets what says up to which transaction all are durable, and what says the name of the queue of a number."""

    is_volatile: bool

    def __call__(
        self, parts: RepositoryParts, durable: Callable[[], int], queue_name: Callable[[int], str], /
    ) -> ProvenanceRepository: ...


PROVENANCE_REPOSITORIES: Plugins[ProvenanceFactory] = Plugins(
    "ullage.provenance_repositories",
    "provenance repository",
    {
        "": "ullage.engine.provenance.repository:FileProvenanceRepository",
        "memory": "ullage.memory.provenance:MemoryProvenanceRepository",
    },
)


class ContentFactory(Protocol):
    """Gets what reserves indexes up to a number, durably, before any of them is used. What a `ContentStore` promises is
    written in `content/protocol.py`.
    """

    is_volatile: bool

    def __call__(self, parts: RepositoryParts, reserve_indexes: Callable[[int], None], /) -> ContentStore: ...


CONTENT_REPOSITORIES: Plugins[ContentFactory] = Plugins(
    "ullage.content_repositories",
    "content repository",
    {
        "": "ullage.engine.content.store:FileContentStore",
        "memory": "ullage.memory.content:MemoryContentStore",
    },
)


class Chosen(NamedTuple):
    """What makes the three repositories."""

    content: ContentFactory
    flow_file: FlowFileFactory
    provenance: ProvenanceFactory


def chosen(spec: ContentRepositorySpec) -> Chosen:
    """Those that the spec names. UnknownPlugin; InvalidArgument if one would forget what another goes on naming.

    FlowFiles forgotten, content kept: transactions begin with 1 again, and with them the numbers of files
    content forgotten, FlowFiles kept: every one of them points at nothing
    """
    found = Chosen(
        CONTENT_REPOSITORIES.load(spec.content.repository),
        FLOWFILE_REPOSITORIES.load(spec.flow_file.repository),
        PROVENANCE_REPOSITORIES.load(spec.provenance.repository),
    )
    content, flow_file, provenance = (made.is_volatile for made in found)
    if content != flow_file or flow_file > provenance:
        kinds = ", ".join(
            f"{setting}.repository {'forgets' if is_volatile else 'keeps'} it"
            for setting, is_volatile in (("content", content), ("flowFile", flow_file), ("provenance", provenance))
        )
        raise InvalidArgument(
            f"what one repository forgets with the end of the process, no other may keep ({kinds}): content and "
            "FlowFiles go together, and provenance does not outlive them"
        )
    return found
