"""The records of a share as of a point, without its content: for whoever wants some of it.

What lies in packs is fetched by whoever chooses of it; what rides in the log comes with the log.
"""

import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from ullage.contract import ContentRepositorySpec
from ullage.engine.backupdirectory import write_pieces
from ullage.engine.content.containers import directories_of
from ullage.engine.files import Files
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.lanes import in_lanes
from ullage.engine.model import ContentClaim
from ullage.engine.opening import RepositoryIdentity
from ullage.engine.shipping.basing import SNAPSHOT_MEMBER
from ullage.engine.shipping.contentpack import PackIndex, read_pack_index
from ullage.engine.shipping.history import base_head, base_reader
from ullage.engine.shipping.logobject import NamedPack
from ullage.engine.shipping.sharerestoring import Progress, ShareRestoration, ShareToRestore
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import ContentMissing, RepositoryDamaged

INDEXES_AT_ONCE: Final = 16
"""What one costs is the wait for an answer."""


class ShareRecords(NamedTuple):
    """What was fetched: as of which log object, and the packs in which content of that moment lies."""

    number: int
    packs: list[NamedPack]


def fetch_records(
    files: Files, asked: ShareToRestore, identity: RepositoryIdentity, spec: ContentRepositorySpec, told: Progress
) -> ShareRecords:
    """Write snapshot and log into an empty directory, as they lie in a repository, and the contents that ride in the
    log. RepositoryDamaged; ContentMissing.
    """
    containers = {container.name: container for container in directories_of(files, spec)}
    fetching = _Fetching(files, asked, identity, spec, containers, None, told)
    try:
        return fetching.records()
    finally:
        fetching.close()


def packed(
    asked: ShareToRestore, packs: Collection[NamedPack], wanted: Collection[ContentClaim]
) -> dict[ContentClaim, PackIndex]:
    """In which pack each of these contents lies, of those that lie in one."""
    found: dict[ContentClaim, PackIndex] = {}

    def read(pack: NamedPack) -> PackIndex:
        try:
            index = read_pack_index(asked.place, pack.name, asked.share)
        except (ContentMissing, RepositoryDamaged):  # what is in it is then found nowhere, and told by who wants it
            return PackIndex(pack.name, {})
        return PackIndex(index.name, {claim: at for claim, at in index.places.items() if claim in wanted})

    for _, index in in_lanes(packs, read, lambda _: 0, INDEXES_AT_ONCE, 1):
        found |= dict.fromkeys(index.places, index)
    return found


class _Fetching(ShareRestoration):
    """A restoration that ends before there is a repository."""

    def records(self) -> ShareRecords:
        self._make_directories()
        asked = self._asked
        _, packs = base_head(base_reader(asked.place, asked.base.name, asked.share))
        self._write_snapshot()
        _, number, _, log_packs = self._log()
        self._content.finish()
        return ShareRecords(number, [*packs, *log_packs])

    def _write_snapshot(self) -> None:
        """Whoever reads it finds its own checksums in it: what follows it in the base need not be read."""
        path = os.path.join(self._root, FLOWFILE, SNAPSHOT)
        if not write_pieces(self._files, path, self._snapshot_pieces()).length:
            raise RepositoryDamaged(f"{self._asked.base.name} has no snapshot")

    def _snapshot_pieces(self) -> Iterator[bytes]:
        has_begun = False
        for name, piece in base_reader(self._asked.place, self._asked.base.name, self._asked.share).members():
            if name == SNAPSHOT_MEMBER:
                has_begun = True
                if piece:
                    yield piece
            elif has_begun:
                return
