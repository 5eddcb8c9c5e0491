"""Which contents can't be read now: their bytes are damaged, their file is gone or ends too soon, or their volume is
away.

What proves damage is a second look at the disk: a checksum that does not match after the page cache was told to forget
the bytes, a file that is not there though its container is, one that ends inside a claim, or a read that the system
refuses once more. One error of the disk proves nothing; the next read may succeed. What lies on a volume that is away
is no damage: it is back with the volume.

Nothing here is on disk. A file with damage keeps its mark (`ResourceClaim.unproved`), so that it is not reclaimed, and
the next start proves it again.
"""

import threading
from typing import NamedTuple

from ullage.engine.content.protocol import ContentStore
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import ContentClaim

DAMAGED_MAX = 100_000
"""Damaged claims known one by one, some 30 MB; of a file with more, the whole file counts as damaged: its others are
then passed over too, until somebody has them looked at again.
"""


class Damage(NamedTuple):
    """What is wrong with a content: the resource claim of its file, where it lies, and why it can't be read; `is_away`
    if nothing is wrong but that its volume is not there.
    """

    file: int
    path: str
    reason: str
    is_away: bool = False


class Availability:
    """Thread-safe. False as long as everything can be read, which is all that a poll asks then."""

    def __init__(self, ledger: Ledger, content: ContentStore) -> None:
        self._ledger = ledger
        self._content = content
        self._lock = threading.Lock()
        self._claims: dict[tuple[int, int], Damage] = {}
        self._files: dict[int, Damage] = {}

    def __bool__(self) -> bool:
        return bool(self._claims or self._files or self._content.away)

    @property
    def count(self) -> int:
        """Damaged claims, and files that are damaged as a whole or away."""
        return len(self._claims) + len(self._files) + len(self.files_away())

    def note(self, claim: ContentClaim, damage: Damage) -> None:
        """The bytes of a claim proved damaged."""
        if len(self._claims) >= DAMAGED_MAX:
            self.note_file(damage)
            return
        with self._lock:
            self._claims[claim.resource, claim.offset] = damage

    def note_file(self, damage: Damage) -> None:
        """Nothing in the file of this resource claim can be read."""
        with self._lock:
            self._files[damage.file] = damage

    def damage(self, claim: ContentClaim | None) -> Damage | None:
        """Why the bytes of a claim can't be read; None if nothing speaks against it."""
        if claim is None or not self:
            return None
        file = self._file_of(claim)
        return self._away(file) or self._claims.get((claim.resource, claim.offset)) or self._files.get(file)

    def files(self) -> set[int]:
        """The resource claims in whose files something is damaged."""
        with self._lock:
            return {damage.file for damage in self._claims.values()} | set(self._files)

    def files_away(self) -> set[int]:
        """The resource claims on volumes that are away."""
        away = self._content.away
        if not away:
            return set()
        return {entry.claim.index for entry in self._ledger.entries() if entry.claim.container in away}

    def clear(self, files: set[int]) -> None:
        """Forget what was wrong in these files: they are about to be proved again."""
        with self._lock:
            self._claims = {key: damage for key, damage in self._claims.items() if damage.file not in files}
            self._files = {index: damage for index, damage in self._files.items() if index not in files}

    def _away(self, file: int) -> Damage | None:
        away = self._content.away
        entry = self._ledger.entry(file) if away else None
        if entry is None or entry.claim.container not in away:
            return None
        container = self._content.container_of(entry.claim)
        return Damage(file, container.path, container.condition.reason, is_away=not container.is_forgotten)

    def _file_of(self, claim: ContentClaim) -> int:
        entry = self._ledger.entry(claim.resource)
        relocation = None if entry is None else entry.relocation
        return claim.resource if relocation is None else relocation.output
