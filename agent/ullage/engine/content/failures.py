"""Definite failures of content that was being written: nothing of it was committed."""

from ullage.engine.content.claims import WritableClaim
from ullage.engine.oserrors import SyncNotTried
from ullage.errors import ContentWriteFailed


def lost(writable: WritableClaim, reason: str) -> ContentWriteFailed:
    """Its volume went away before it was durable."""
    return ContentWriteFailed(
        f"{writable.path} went away before it was durable: nothing was committed; roll back and try again"
        + (f" ({reason})" if reason else "")
    )


def not_tried(path: str, error: SyncNotTried) -> ContentWriteFailed:
    """Nothing was committed and nothing is wrong with the disk: the same may succeed when there is a descriptor."""
    return ContentWriteFailed(f"{path} could not be synced now ({error}): nothing was committed; try again")
