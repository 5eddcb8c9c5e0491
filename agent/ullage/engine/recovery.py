"""After an unclean end: prove that what the log brought back is on disk, before anything is served.

The page cache may show what the disk does not hold: frames, names, the ends of open files. So the log publishes a fresh
snapshot, and files are sealed where they are synced to end. Content needs no sync here, only to be read against its
checksums: a frame is not written before the content and the names that it speaks of are durable.

    content synced, name synced | frame written | killed | next start finds the frame: the content is on disk
"""

from collections.abc import Sequence

from ullage.engine.byteranges import overlaps
from ullage.engine.content.protocol import ContentStore
from ullage.engine.content.reader import ContentReader
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import end_in_use
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, ContentClaim, FlowFileRecord, Operation, Relocation, ResourceClaim, Update
from ullage.errors import ContentCorrupt, ContentMissing, ContentReclaimed, RepositoryDamaged


class Recovery:
    """Collects what the log replays, then proves it."""

    def __init__(self, ledger: Ledger, store: ContentStore) -> None:
        self._ledger = ledger
        self._store = store
        self._claims: dict[tuple[int, int], ContentClaim] = {}
        self._moved: set[int] = set()

    def collect(self, operations: Sequence[Operation]) -> None:
        """See one replayed transaction."""
        for operation in operations:
            claim: ContentClaim | None = None
            if type(operation) is FlowFileRecord:
                claim = operation.claim
            elif type(operation) is Update and operation.content is not None:
                claim = operation.content.claim
            elif type(operation) is Relocation:
                self._moved.add(operation.source)
            if claim is not None:
                self._claims[claim.resource, claim.offset] = claim

    def prove(self, reader: ContentReader) -> None:
        """Read the collected claims that are still live. RepositoryDamaged names the first that fails."""
        self._require_ledger()
        # A relocation names no claims, and its sources may be unlinked by now: what moved is read where it went.
        for index in self._moved:
            moved = self._ledger.entry(index)
            if moved is not None:
                self._claims.update(((index, claim.offset), claim) for claim in moved.live.values())
        # In the order of the files, so that neighbours are read together. What died since may be gone by right.
        live = [claim for _, claim in sorted(self._claims.items()) if self._is_live(claim)]
        for claim in reader.unproven(live):
            try:
                reader.verify(claim)
            except (ContentMissing, ContentCorrupt, ContentReclaimed) as error:
                if isinstance(error, ContentReclaimed) and not self._is_resident(claim):
                    continue  # of a swap file's reach we know no more; what took these bytes away had read the file
                raise RepositoryDamaged(
                    f"content that was acknowledged before the unclean end does not read back: {error}; restore the "
                    "file from a backup, or the log, if that has lost its end since the file was rewritten"
                ) from error

    def seal_all(self) -> None:
        """Nothing is appended to after a restart: every open resource claim ends where its file ends.

        In memory only: the snapshot that follows makes it durable. Containers are charged later.
        """
        seals: list[Operation] = [
            self._store.seal(entry.claim) for entry in self._ledger.entries() if not entry.claim.sealed
        ]
        self._ledger.apply(0, 0, seals)

    def seals(self) -> list[ResourceClaim]:
        """The open resource claims as they are once sealed, for the caller to commit: also after a clean end one may
        be open, of a session that outlived the close. Their containers are charged for what is there.
        """
        seals = []
        for entry in self._ledger.entries():
            if not entry.claim.sealed:
                seal = self._store.seal(entry.claim)
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
        if claim.offset in entry.live:
            return True
        return claim.end <= max((share.end for share in (entry.swapped or {}).values()), default=0)

    def _is_resident(self, claim: ContentClaim) -> bool:
        entry = self._ledger.entry(claim.resource)
        return entry is not None and claim.offset in entry.live
