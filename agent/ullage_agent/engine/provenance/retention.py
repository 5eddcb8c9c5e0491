"""Which event files go: whole ones, oldest first, by age and by bytes. Pure."""

from collections.abc import Sequence

import msgspec

from ullage_agent.engine.provenance.holds import BYTES_SHARE_MAX
from ullage_agent.engine.provenance.manifest import EventFile, Manifest


def expired_files(
    files: Sequence[EventFile], now_millis: int, age_millis_max: int, bytes_max: int, wanted_after: int | None = None
) -> int:
    """How many of the oldest files have to go. Counted once from figures, so it ends whatever can be removed.

    A file goes by age when its newest event is too old, and by bytes while all files together are too many. Events
    that are not in a file yet are never touched; the last file may go. What a reader wants still, the events after
    `wanted_after`, stays in either case, until all files together are `BYTES_SHARE_MAX` times too many.
    """
    total = sum(file.bytes for file in files)
    count = 0
    for file in files:
        if file.millis_max > now_millis - age_millis_max and total <= bytes_max:
            break
        if wanted_after is not None and file.last_sequence > wanted_after and total <= BYTES_SHARE_MAX * bytes_max:
            break
        total -= file.bytes
        count += 1
    return count


def without(manifest: Manifest, count: int) -> Manifest:
    """The manifest once its first `count` files are gone, and what was lost before or between them."""
    removed_through = manifest.files[count - 1].last_sequence
    files = manifest.files[count:]
    lost = tuple(lost for lost in manifest.lost if lost.first_sequence > removed_through)
    while lost and lost[0].first_sequence == removed_through + 1:
        # Reported as removed from now on: nothing older is left that they could be a gap in.
        removed_through += lost[0].events
        lost = lost[1:]
    return msgspec.structs.replace(manifest, files=files, lost=lost, removed_through=removed_through)
