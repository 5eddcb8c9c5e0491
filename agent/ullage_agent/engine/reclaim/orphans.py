"""Orphans: content files that no record names, left by a crash before their first commit.

A start never removes one (NiFi does, and with a lost FlowFile repository that is all content). They are surveyed, and
only `Reclamation.adopt_orphans` takes them up: as sealed resource claims without claimants, which then go the way of
everything dead, through the archive.

Adopted is only what an earlier process of this repository made for certain: the name is one it would have given, in
the section where it would have put it, with an index that the log had reserved when this process started. So neither
files being written now, nor the content of a ledger that was lost, are ever taken for orphans.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import COPY_BYTES, File, Files
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import ResourceClaim


class Orphan(NamedTuple):
    """One file. `is_adoptable`: an earlier process of this repository left it behind."""

    path: str
    container: str
    length: int
    claim: ResourceClaim | None

    @property
    def is_adoptable(self) -> bool:
        return self.claim is not None


def find_orphans(files: Files, ledger: Ledger, store: ContentRepository) -> list[Orphan]:
    """All orphans: a walk over every section of every container."""
    return [
        orphan
        for container in store.containers.values()
        for path in container.content_files()
        if (orphan := _orphan(files, ledger, store, container, path)) is not None
    ]


def make_durable(files: Files, store: ContentRepository, orphans: Iterable[Orphan]) -> None:
    """Sync what was found, and the names that lead to it: who left it there may have been killed before that, and a
    record must not outlive its file.

    The bytes are written once more before: after a sync that failed, in this process or the last one, the kernel holds
    pages that it calls clean and the disk never got.
    """
    directories: set[str] = set()
    for orphan in orphans:
        file = files.open(orphan.path, writable=True)
        try:
            _write_again(file, orphan.length)
            file.sync()
        finally:
            file.close()
        top = store.containers[orphan.container].path
        directory = os.path.dirname(orphan.path)
        while directory != top:
            directories.add(directory)
            directory = os.path.dirname(directory)
        directories.add(top)
    for directory in sorted(directories):
        files.sync_directory(directory)


def _write_again(file: File, length: int) -> None:
    for offset in range(0, length, COPY_BYTES):
        file.write(file.read(min(COPY_BYTES, length - offset), offset), offset)


def _orphan(files: Files, ledger: Ledger, store: ContentRepository, container: Container, path: str) -> Orphan | None:
    claim = container.claim_at(path)
    if claim is not None and path in _paths_of(ledger, store, container, claim):
        return None
    try:
        length = files.size(path).length
    except FileNotFoundError:
        # Unlinked, or moved to the archive, since the directory was listed.
        return None
    is_ours = claim is not None and claim.index <= store.inherited_ceiling and ledger.entry(claim.index) is None
    return Orphan(path, container.name, length, claim if is_ours else None)


def _paths_of(ledger: Ledger, store: ContentRepository, container: Container, claim: ResourceClaim) -> Iterator[str]:
    """Where the resource claim of this index is known to lie: being written, else by the ledger.

    In this order: a session's file is in the ledger before it leaves the session's hands.
    """
    for open_claim in store.open_claims():
        if open_claim.index == claim.index and open_claim.container == container.name:
            yield container.live_path(open_claim)
    entry = ledger.entry(claim.index)
    if entry is not None and entry.claim.container == container.name:
        yield container.current_path(entry.claim)
