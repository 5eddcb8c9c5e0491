"""After an unclean end: prove that what the log brought back is on disk, before anything is served.

The page cache may show what the disk does not hold: frames, names, the ends of open files. So the log publishes a fresh
snapshot, and files are sealed where they are synced to end. Content needs no sync here, only to be read against its
checksums: a frame is not written before the content and the names that it speaks of are durable.

    content synced, name synced | frame written | killed | next start finds the frame: the content is on disk

So what is read back guards against disks that did not do what they said, whose losses are in what was written last.
All that no later frame proves is read, and of what is proved the newest: how long a start takes does not grow with the
log's contents.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from ullage_agent.engine.content.reader import ContentReader
from ullage_agent.engine.content.store import ContentRepository, sealed_as_is
from ullage_agent.engine.errors import ContentCorrupt, ContentMissing, ContentReclaimed, RepositoryDamaged
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.placement import end_in_use
from ullage_agent.engine.flowfile.resources import ResourceEntry
from ullage_agent.engine.model import Action, ContentClaim, FlowFile, Operation, Relocation, ResourceClaim, Update
from ullage_agent.engine.runs import overlaps

PROVED_OPERATIONS_MAX = 10_000
PROVED_BYTES_MAX = 64 << 20
"""How much is read back of what later frames prove: a tenth of a second, and more than a disk's cache holds of it."""


class Recovery:
    """Collects the newest of what the log replays, then proves it."""

    def __init__(self, files: Files, ledger: Ledger, store: ContentRepository) -> None:
        self._files = files
        self._ledger = ledger
        self._store = store
        self._newest: deque[tuple[Sequence[Operation], bool]] = deque()
        self._operations = 0

    def collect(self, operations: Sequence[Operation], is_proved: bool) -> None:
        """See one replayed transaction; `is_proved`: a later frame says that it was durable."""
        newest = self._newest
        newest.append((operations, is_proved))
        self._operations += len(operations)
        while newest[0][1] and self._operations - len(newest[0][0]) >= PROVED_OPERATIONS_MAX:
            self._operations -= len(newest.popleft()[0])

    def prove(self, reader: ContentReader) -> None:
        """Read the collected claims that are still live. RepositoryDamaged names the first that fails."""
        self._require_ledger()
        for claim in sorted(self._wanted(), key=lambda claim: (claim.resource, claim.offset)):
            try:
                reader.verify(claim)
            except (ContentMissing, ContentCorrupt, ContentReclaimed) as error:
                if isinstance(error, ContentReclaimed) and not self._is_resident(claim):
                    continue  # of a swap file's reach we know no more; what took these bytes away had read the file
                raise RepositoryDamaged(
                    f"content that was acknowledged before the unclean end does not read back: {error}; restore the "
                    "file from a backup, or the log, if that has lost its end since the file was rewritten"
                ) from error

    def _wanted(self) -> list[ContentClaim]:
        """The live claims to be read: of the newest transactions first, until there are enough that are proved."""
        wanted: dict[tuple[int, int], ContentClaim] = {}
        length = 0
        while self._newest:
            operations, is_proved = self._newest.pop()
            if is_proved and length >= PROVED_BYTES_MAX:
                break
            for claim in self._claims_of(operations):
                if (claim.resource, claim.offset) not in wanted and self._is_live(claim):
                    wanted[claim.resource, claim.offset] = claim
                    length += claim.length
        self._newest.clear()
        return list(wanted.values())

    def _claims_of(self, operations: Sequence[Operation]) -> Iterator[ContentClaim]:
        """What a transaction put somewhere: content that FlowFiles point at anew, or that a rewrite moved."""
        for operation in operations:
            if type(operation) is FlowFile:
                if operation.claim is not None:
                    yield operation.claim
            elif type(operation) is Update:
                if operation.content is not None and operation.content.claim is not None:
                    yield operation.content.claim
            elif type(operation) is Relocation:
                moved = self._ledger.entry(operation.source)
                if moved is not None:
                    yield from moved.live.values()

    def seal_all(self) -> None:
        """Nothing is appended to after a restart: every open resource claim ends where its file ends.

        In memory only: the snapshot that follows makes it durable. Containers are charged later.
        """
        seals: list[Operation] = [
            sealed_as_is(self._files, self._store, entry.claim)
            for entry in self._ledger.entries()
            if not entry.claim.sealed
        ]
        self._ledger.apply(0, 0, seals)

    def seals(self) -> list[ResourceClaim]:
        """The open resource claims as they are once sealed, for the caller to commit: also after a clean end one may
        be open, of a session that outlived the close. Their containers are charged for what is there.
        """
        seals = []
        for entry in self._ledger.entries():
            if not entry.claim.sealed:
                seal = sealed_as_is(self._files, self._store, entry.claim)
                self._store.container_of(seal).add_bytes(seal.length - entry.claim.length)
                seals.append(seal)
        return seals

    def intents(self) -> list[ResourceClaim]:
        """Promised changes that a crash may have cut short. RepositoryDamaged if one would take live content away."""
        for entry in self._ledger.entries():
            if entry.has_intent and not self._is_safe(entry):
                raise RepositoryDamaged(
                    f"resource claim {entry.claim.index}: its content up to {entry.end_in_use()} is in use, though the "
                    "log promises to take some of it away; nothing was removed: restore the flowfile directory from a "
                    "backup"
                )
        return [entry.claim for entry in self._ledger.entries() if entry.claim.intent != Action.NONE]

    def _is_safe(self, entry: ResourceEntry) -> bool:
        """Whether an intent leaves alone what lives. Of a hole only resident claims can say so without swap files."""
        claim = entry.claim
        if claim.intent == Action.REWRITE:
            return entry.relocation is not None
        if claim.intent == Action.PUNCH:
            return not any(overlaps(claim.intent_holes, live.offset, live.length) for live in entry.live.values())
        if entry.relocation is not None:
            return entry.is_free
        return end_in_use(self._ledger, entry) <= (claim.intent_length if claim.intent == Action.TRUNCATE else 0)

    def _require_ledger(self) -> None:
        """RepositoryDamaged if nothing came back beside content: indexes are reserved before files are made."""
        if self._ledger.index_ceiling > 0:
            return
        for container in self._store.containers.values():
            if found := container.content_files():
                raise RepositoryDamaged(
                    f"snapshot and logs hold nothing, but container {container.name} holds {len(found)} content files "
                    f"({found[0]}): restore the flowfile directory from a backup; no content was removed"
                )

    def _is_live(self, claim: ContentClaim) -> bool:
        """Whether it has a claimant, or may have one in a swap file: a summary says only how far its claims reach."""
        entry = self._ledger.entry(claim.resource)
        if entry is None:
            return False
        reach = max((share.end for share in (entry.swapped or {}).values()), default=0)
        return claim.offset in entry.live or claim.end <= reach

    def _is_resident(self, claim: ContentClaim) -> bool:
        entry = self._ledger.entry(claim.resource)
        return entry is not None and claim.offset in entry.live
