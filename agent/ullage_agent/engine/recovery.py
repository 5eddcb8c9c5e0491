"""After an unclean end: prove that what the log brought back is on disk, before anything is served.

The page cache may show what the disk does not hold. So every file that frames after the snapshot name is synced, its
directory too, and those claims are read against their checksums; then the log publishes a fresh snapshot.
"""

import os
from collections.abc import Sequence

import msgspec

from ullage_agent.engine.content.reader import ContentReader
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.errors import ContentCorrupt, ContentMissing, RepositoryDamaged
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import Action, ContentClaim, FlowFile, Operation, ResourceClaim, Update


class Recovery:
    """Collects what the log replays, then proves it."""

    def __init__(self, files: Files, ledger: Ledger, store: ContentRepository) -> None:
        self._files = files
        self._ledger = ledger
        self._store = store
        self._claims: dict[tuple[int, int], ContentClaim] = {}

    def collect(self, operations: Sequence[Operation]) -> None:
        """See one replayed transaction."""
        for operation in operations:
            claim: ContentClaim | None = None
            if type(operation) is FlowFile:
                claim = operation.claim
            elif type(operation) is Update and operation.content is not None:
                claim = operation.content.claim
            if claim is not None:
                self._claims[claim.resource, claim.offset] = claim

    def prove(self, reader: ContentReader) -> None:
        """Sync and verify the collected claims that are still live. RepositoryDamaged names the first that fails."""
        live = [claim for claim in self._claims.values() if self._is_live(claim)]
        directories: set[str] = set()
        for index in sorted({claim.resource for claim in live}):
            entry = self._ledger.entry(index)
            assert entry is not None
            path = self._store.container_of(entry.claim).current_path(entry.claim)
            directories.add(os.path.dirname(path))
            self._sync(path, index)
        for directory in sorted(directories):
            self._files.sync_directory(directory)
        for claim in sorted(live, key=lambda claim: (claim.resource, claim.offset)):
            try:
                reader.verify(claim)
            except (ContentMissing, ContentCorrupt) as error:
                raise RepositoryDamaged(
                    f"content that was acknowledged before the unclean end does not read back: {error}"
                ) from error

    def seal_all(self) -> None:
        """Nothing is appended to after a restart: every open resource claim ends where its file ends.

        In memory only: the snapshot that follows makes it durable.
        """
        seals: list[Operation] = []
        for entry in self._ledger.entries():
            claim = entry.claim
            if claim.sealed:
                continue
            path = self._store.container_of(claim).current_path(claim)
            length = self._files.size(path).length if self._files.exists(path) else claim.length
            seals.append(msgspec.structs.replace(claim, sealed=True, length=length, generation=claim.generation + 1))
        self._ledger.apply(0, 0, seals)

    def intents(self) -> list[ResourceClaim]:
        """Promised changes that a crash may have cut short."""
        return [entry.claim for entry in self._ledger.entries() if entry.claim.intent != Action.NONE]

    def _is_live(self, claim: ContentClaim) -> bool:
        entry = self._ledger.entry(claim.resource)
        return entry is not None and claim.offset in entry.live

    def _sync(self, path: str, index: int) -> None:
        try:
            file = self._files.open(path, writable=True)
        except FileNotFoundError as error:
            raise RepositoryDamaged(
                f"resource claim {index} has live content, but {path} is missing: restore it from a backup"
            ) from error
        try:
            file.sync()
        finally:
            file.close()
