"""The swap files that a backup is to have, and those that it can only name.

the last backup has it                | it is kept, for a swap file never changes; where it is gone, cut or known to be
                                      | damaged by now, it is named as kept
it reads back                         | it is copied
it can be copied, and not read        | its bytes are in the backup as they are, under another path, and it is named
it is missing, or the disk can't read | it is named
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ullage.engine.backupfiles import BackupFile
from ullage.engine.files import Files, length_of
from ullage.engine.flowfile.queues import PassedOver
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import HANDLE_QUEUE, NO_ATTRIBUTES, SetAside, SwapFirst, SwapOut
from ullage.engine.opening import SWAP
from ullage.errors import RepositoryDamaged


class SwapSources(NamedTuple):
    """Each file to have in a backup, with where it is now, and the swap files that can't be read, with their paths:
    those that the backup lacks, and those that it has because the last one had them.
    """

    sources: list[tuple[str, BackupFile]]
    unreadable: list[tuple[PassedOver, str]]
    saved: list[tuple[PassedOver, str]]


def swap_sources(
    files: Files,
    swap_files: SwapFiles,
    named: Iterable[SwapOut],
    set_aside: Collection[SetAside],
    had: Mapping[str, BackupFile],
    suspected: Collection[str],
    sequence: int,
) -> SwapSources:
    """What a snapshot names, and what a record that was set aside may mean; `had`: the last backup's files by path;
    `suspected`: names of those that did not read back at the last look.
    """
    found = SwapSources([], [], [])
    summaries = {summary.name: summary for summary in named}
    for name in (*summaries, *_meant(swap_files, set_aside, summaries)):
        path = swap_files.path(name)
        kept_as = os.path.join(SWAP, name)
        before = had.get(kept_as)
        # Of one that only a record set aside may mean nobody knows more than its name.
        summary = summaries.get(name, SwapOut(name, HANDLE_QUEUE, 0, 0, 0, 0, 0, (), SwapFirst(0, 0, 0, NO_ATTRIBUTES)))
        length = length_of(files, path)
        is_cut = before is not None and length != before.length
        error = _why_unreadable(swap_files, name) if before is None or is_cut or name in suspected else None
        if before is not None:
            found.sources.append((path, before))
            if error is not None:
                found.saved.append((PassedOver(summary, error, 0), path))
            continue
        if error is not None:
            found.unreadable.append((PassedOver(summary, error, 0), path))
            if isinstance(error.__cause__, OSError):
                continue
            # The path of a whole copy stays free: the next backup would take this one for it, and name nothing.
            kept_as = f"{kept_as}-{sequence}"
        if length is not None:
            found.sources.append((path, BackupFile(path=kept_as, length=length, crc=0, name=name)))
    return found


def _why_unreadable(swap_files: SwapFiles, name: str) -> RepositoryDamaged | None:
    try:
        swap_files.read(name)
    except RepositoryDamaged as error:
        return error
    return None


def _meant(swap_files: SwapFiles, set_aside: Collection[SetAside], known: Collection[str]) -> Iterator[str]:
    """Those that only records which were set aside may speak of: whoever mends one wants its file."""
    means_all = any(record.held_through for record in set_aside)
    meant = {record.swap_file for record in set_aside}
    yield from (name for name in sorted(swap_files.names()) if name not in known and (means_all or name in meant))
