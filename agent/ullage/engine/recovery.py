"""After an unclean end: make durable what the log brought back, and mark what is to be proved, before serving.

The page cache may show what the disk does not hold: frames, names, the ends of open files. So the log publishes a fresh
snapshot, and files are sealed where they are synced to end. Content needs no sync here, only to be read against its
checksums, which is done in the background (`proof.py`): a frame is not written before the content and the names that it
speaks of are durable.

    content synced, name synced | frame written | killed | next start finds the frame: the content is on disk
"""

from collections.abc import Sequence

import msgspec

from ullage.engine.byteranges import overlaps
from ullage.engine.content.protocol import ContentStore
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import births, end_in_use, lost_by_move
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, ContentClaim, FlowFileRecord, Operation, Relocation, ResourceClaim, Update
from ullage.engine.wal.state import RecordUnusable
from ullage.errors import RepositoryDamaged


class Recovery:
    """Collects what the log replays, then takes up where the last process ended."""

    def __init__(self, ledger: Ledger, store: ContentStore) -> None:
        self._ledger = ledger
        self._store = store
        self._touched: set[int] = set()

    def collect(self, operations: Sequence[Operation]) -> None:
        """See one replayed transaction."""
        for operation in operations:
            claim: ContentClaim | None = None
            if type(operation) is FlowFileRecord:
                claim = operation.claim
            elif type(operation) is Update and operation.content is not None:
                claim = operation.content.claim
            elif type(operation) is Relocation:
                self._touched.add(operation.source)
            if claim is not None:
                self._touched.add(claim.resource)

    def require_fitting(self) -> None:
        """RecordUnusable, RepositoryDamaged if what came back is not all, or not of this repository."""
        self._require_ledger()
        for entry in self._ledger.entries():
            index = entry.claim.index
            if entry.claim.container not in self._store.containers:
                raise RecordUnusable(f"resource claim {index} lies in {entry.claim.container!r}, which is no container")
            if entry.is_overrun:
                raise RecordUnusable(
                    f"content at {end_in_use(self._ledger, entry)} is in use beyond the end of resource claim {index}"
                )

        for index in sorted(self._touched):
            lost = lost_by_move(self._ledger, index)
            if lost is not None:
                raise RecordUnusable(f"resource claim {index} was moved, and its content at offset {lost} was not")

    def mark(self) -> None:
        """Mark the files of whose content the replayed transactions tell as not proved, and those that were open, which
        nobody has sealed: of a share that was restored all. In memory only, as seals are.

        Not read here: that would take as long as writing it took, and one bad byte would keep all others away.
        """
        indexes = self._touched | {entry.claim.index for entry in self._ledger.entries() if not entry.claim.sealed}
        # The sources of a relocation may be unlinked by now: what moved lies where it went.
        for index in sorted(indexes):
            entry = self._ledger.entry(index)
            if entry is not None and entry.relocation is not None:
                indexes.remove(index)
                indexes.add(entry.relocation.output)
        found = [entry.claim for index in sorted(indexes) if (entry := self._ledger.entry(index)) is not None]
        self._ledger.apply(0, 0, [msgspec.structs.replace(claim, unproved=True) for claim in found])

    def seal_all(self) -> None:
        """Nothing is appended to after a restart: every open resource claim ends where its file ends.

        In memory only: the snapshot that follows makes it durable. Containers are charged later.
        """
        seals: list[Operation] = [
            self._seal(entry)
            for entry in self._ledger.entries()
            if not entry.claim.sealed and self._store.container_of(entry.claim).is_writable
        ]
        self._ledger.apply(0, 0, seals)

    def seals(self) -> list[ResourceClaim]:
        """The open resource claims as they are once sealed, for the caller to commit: also after a clean end one may
        be open, of a session that outlived the close. Their containers are charged for what is there. Those whose
        volume can't be written now are sealed when it can.
        """
        seals = []
        for entry in self._ledger.entries():
            if not entry.claim.sealed and not self._store.container_of(entry.claim).is_writable:
                self._store.seal_later(entry.claim, end_in_use(self._ledger, entry))
            elif not entry.claim.sealed:
                seal = self._seal(entry)
                self._store.container_of(seal).add_bytes(seal.length - entry.claim.length)
                seals.append(seal)
        return seals

    def _seal(self, entry: ResourceEntry) -> ResourceClaim:
        """Where its file ends; not before what is in use ends, or reads would take lost bytes for reclaimed ones."""
        seal = self._store.seal(entry.claim)
        return msgspec.structs.replace(seal, length=max(seal.length, end_in_use(self._ledger, entry)))

    def intents(self) -> list[ResourceClaim]:
        """Promised changes that a crash may have cut short. RecordUnusable if one would take live content away."""
        if unsafe := self.unsafe_intents():
            raise RecordUnusable(
                f"resource claim {unsafe[0].index} holds content that is in use, though the log promises to take some "
                "of it away; nothing was removed"
            )
        found = map(self._ledger.claim, sorted(self._ledger.intended))
        return [claim for claim in found if claim is not None]

    def unsafe_intents(self) -> list[ResourceClaim]:
        """Promised changes that would take away what is in use, or what a record that was set aside may point at."""
        return [entry.claim for entry in self._ledger.entries() if takes_what_lives(self._ledger, entry, entry.claim)]

    def _require_ledger(self) -> None:
        """RepositoryDamaged if nothing came back beside content: indexes are reserved before files are made."""
        if self._ledger.index_ceiling > 0:
            return
        for container in self._store.containers.values():
            if container.is_available and (found := container.content_files()):
                raise RepositoryDamaged(
                    f"snapshot and logs hold nothing, but container {container.name} holds {len(found)} content files "
                    f"({found[0]}): restore the flowfile directory from a backup; no content was removed"
                )


def takes_what_lives(ledger: Ledger, entry: ResourceEntry, claim: ResourceClaim) -> bool:
    """Whether what `claim` promises of this resource claim would take away what is in use, or what a record that was
    set aside may point at. Of a hole only resident claims can say so without swap files.
    """
    if claim.intent == Action.NONE:
        return False
    indexes = {claim.index, *(birth.claim.index for birth in births(ledger, entry))}
    if claim.intent != Action.ARCHIVE and any(map(ledger.set_aside.may_mean, indexes)):
        return True
    if claim.intent == Action.REWRITE:
        return entry.relocation is None
    if claim.intent == Action.PUNCH:
        return any(overlaps(claim.intent_holes, live.offset, live.length) for live in entry.residents().claims)
    if entry.relocation is not None:
        return not entry.is_free
    return end_in_use(ledger, entry) > (claim.intent_length if claim.intent == Action.TRUNCATE else 0)
