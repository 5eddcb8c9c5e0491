"""What can go wrong in a repository, one class for each thing a caller handles differently.

Every message names what it is about (claim, file, offset, transaction) and, where there is one, the way out.
Errors of the operating system that nobody handles apart stay what they are (`OSError`) or are chained as the cause.
"""


class UllageError(Exception):
    """Base of all errors that a repository raises on purpose."""


class NotARepository(UllageError):
    """The directory holds no repository, or an `init` that was interrupted before its commit point."""


class RepositoryLocked(UllageError):
    """Another process has this repository open."""


class ForeignContainer(UllageError):
    """A container is missing, unknown, or belongs to another repository: perhaps a volume is not mounted."""


class FormatTooNew(UllageError):
    """The files were written by a newer format or SerDe version than this code reads."""


class RepositoryDamaged(UllageError):
    """Something that was acknowledged cannot be read back: the start stops rather than lose it."""


class NotRestored(UllageError):
    """The write-ahead log was used before it was restored (seed 003, step 1), or after it was closed."""


class RepositoryStopped(UllageError):
    """An earlier failure of the write-ahead log stopped the repository; reopen it to learn what disk holds."""


class CommitOutcomeUnknown(UllageError):
    """The transaction's frame was written but its sync failed: it may or may not be there after a restart.

    Never retry such a commit elsewhere: it could apply twice. Reopen the repository and look.
    """


class TransactionTooLarge(UllageError):
    """A transaction has more operations or bytes than one frame may carry; nothing of it was applied."""


class ContentWriteFailed(UllageError):
    """Content could not be written or synced: a definite failure, nothing was committed."""


class DiskFull(UllageError):
    """The volume, or the container's capacity quota, has no room: a definite failure, nothing was committed."""


class BackPressure(UllageError):
    """A limit asks writers to wait: disk usage, the log's size, or a queue's count or bytes."""


class ContentMissing(UllageError):
    """A claim's file is absent or too short to hold the claim."""


class ContentCorrupt(UllageError):
    """A claim's bytes do not match the CRC-32C recorded when they were written."""


class ContentReclaimed(UllageError):
    """A claim's bytes were given back on purpose, after its last claimant went: expected, and no damage.

    `transaction` is the one that promised it; 0 where that is no longer known.
    """

    def __init__(self, message: str, transaction: int) -> None:
        super().__init__(message)
        self.transaction = transaction


class ClaimGone(UllageError):
    """A transaction named a content claim that is neither live nor pinned."""


class ClaimTruncated(ClaimGone):
    """The claim's bytes were given back while the rest of its file stayed."""


class LeaseRefused(UllageError):
    """A lease that is too long, names too much, or is one too many."""


class LeaseLost(UllageError):
    """The lease has expired, or was revoked or released: what was read under it must be discarded."""


class KeyInUse(UllageError):
    """A request with this idempotency key is under way: its outcome is not known yet."""


class KeyReused(UllageError):
    """The idempotency key belongs to another request, whose answer would be wrong for this one."""


class WriteClosed(UllageError):
    """The staged write is committed, aborted or unknown: what comes late is refused, and nothing of it is kept."""


class HandleNotFound(UllageError):
    """No handle with this id was ever stored, or it was purged and forgotten."""


class HandleDeleted(UllageError):
    """The handle was deleted or has expired; while its retention lasts, a deleted one can be undeleted."""


class EventNotFound(UllageError):
    """No provenance event has this number or id, or retention has removed it."""


class ProvenanceDamaged(UllageError):
    """An event file is missing or unreadable: the history in it is gone unless it comes back, all else is well."""


class ReplayRefused(UllageError):
    """A provenance event cannot be replayed; `reason` says which of the known reasons it is."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FlowFileNotFound(UllageError):
    """No FlowFile with this uuid is resident: it was removed, never existed, or is swapped out."""


class SessionMisuse(UllageError):
    """A session was asked for something its FlowFiles' state does not allow; nothing was changed."""
