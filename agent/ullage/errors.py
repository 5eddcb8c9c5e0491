"""What can go wrong in a repository, one class for each thing a caller handles differently.

The classes are the same whether the repository is embedded or remote: ullage.wire.problems says how each crosses a
network. Every message names what it is about (claim, file, offset, transaction) and, where there is one, the way out.
Errors of the operating system that nobody handles apart stay what they are (`OSError`) or are chained as the cause.
"""

from typing import Self

SOON_SECONDS = 1
"""When to come again where something is in use for a moment."""

PRESSURE_SECONDS = 5
"""The same where a disk or a queue is full: somebody has to take something out first."""


DRAIN_SECONDS = 60
"""The same where a node is about to go: it may stay after all, and nobody is to ask it every moment."""


class UllageError(Exception):
    """Base of all errors that a repository raises on purpose.

    >>> try:
    ...     repository.queues.find("nowhere")
    ... except ullage.UllageError as error:
    ...     type(error).__name__, error.retry_after_seconds
    ('QueueNotFound', None)
    """

    retry_after_seconds: float | None = None
    """When the same call may succeed; None: not by waiting."""


class InvalidArgument(UllageError, ValueError):
    """The call contradicts itself, or what it is about: nothing was done."""


class RangeNotSatisfiable(InvalidArgument):
    """No byte of the content lies in the range that was asked for; `size` is what there is."""

    def __init__(self, message: str, size: int = 0) -> None:
        super().__init__(message)
        self.size = size


class UnknownPlugin(InvalidArgument):
    """A setting names something that there is not, or that cannot be loaded; the message says what there is."""


class NotFound(UllageError, LookupError):
    """There is no such thing here."""


class RequestTooLarge(UllageError):
    """One request brings, or asks for, more than a named limit allows."""


class DigestMismatch(UllageError):
    """The content is not the one whose digest came with it: nothing was stored."""


class NotReachable(UllageError):
    """The node does not answer, or went away amid the answer. Of a write without a key the outcome is not known."""

    retry_after_seconds = 0


class Refused(UllageError):
    """The node said no, for a reason that has no class of its own: `slug` is its name, `status` that of HTTP."""

    def __init__(self, message: str, slug: str = "unexpected", status: int = 500) -> None:
        super().__init__(message)
        self.slug = slug
        self.status = status

    def __str__(self) -> str:
        return f"{self.slug}: {super().__str__()}"


class Unauthenticated(UllageError):
    """No token, or one that nobody vouches for. The message never holds the token."""


class TooManyTokens(Unauthenticated):
    """From this peer came more tokens that nobody vouches for than are looked at: it waits before the next one."""

    retry_after_seconds = SOON_SECONDS


class Forbidden(UllageError):
    """Whoever asks is known and may not do this."""


class DescriptorRefused(Forbidden):
    """The content's file holds what the caller may not read, so it is not passed; the content may be read as bytes."""


class AccessUnknown(UllageError):
    """Whoever vouches for tokens cannot be asked now: neither yes nor no."""

    retry_after_seconds = PRESSURE_SECONDS


class ServiceBusy(UllageError):
    """A bound on what is under way is reached; a later try may succeed."""

    retry_after_seconds = SOON_SECONDS


class QuotaReached(UllageError):
    """Whoever asks has as much under way, or holds as much, as one principal may; what ends of it makes room."""

    retry_after_seconds = SOON_SECONDS

    @classmethod
    def of(cls, who: str, held: str, limit: str, then: str) -> Self:
        """The refusal, in one wording for all quotas: what they have, the limit's name, and what to do."""
        return cls(f"{who} has {held}, as many as one principal may ({limit}): {then}")


class ServiceStopping(UllageError):
    """The service is stopping, and takes nothing new."""

    retry_after_seconds = PRESSURE_SECONDS


class NodeDraining(UllageError):
    """The node is being drained and takes nothing new: write to another one. What it holds can still be taken out."""

    retry_after_seconds = DRAIN_SECONDS


class NodeFenced(UllageError):
    """Another node writes this repository by now, and nothing is changed here any more: what is here can be read. Says
    who writes it, and how what only this node has is brought over there. Nothing was done.
    """


class TransferStalled(UllageError):
    """Nothing came in, or nothing was taken, for too long."""


class RequestIncomplete(UllageError):
    """The client went away before its request was complete: nothing was stored."""


class Elsewhere(UllageError):
    """The handle names another node."""


class NotARepository(UllageError):
    """The directory holds no repository, or an `init` that was interrupted before its commit point."""


class RepositoryExists(UllageError):
    """The directory holds a repository already: open it."""


class DirectoryNotEmpty(UllageError):
    """The directory that is to be written holds something else: nothing was written."""


class DirectoryUnusable(UllageError):
    """The directory of a backup can't be read or written as it should: what the file system says of which path."""


class NotABackup(UllageError):
    """The directory holds no backup."""


class BackupOvertaken(UllageError):
    """Somebody else wrote a backup to the same place meanwhile, and that one counts: nothing of it was touched."""


class BackupStopped(UllageError):
    """Somebody stopped a backup, or looking at one, before its end. The last backup counts; the next one goes on where
    this one was.
    """


class ShareFenced(UllageError):
    """Somebody else writes this share of a bucket from now on: what was put since then counts for nothing."""


class LeaseLapsed(UllageError):
    """The node may not serve now: another may have the repository by now (`spec.replication.adoptAfter`). Nothing was
    done.
    """

    retry_after_seconds = SOON_SECONDS


class BucketRefused(UllageError):
    """A bucket is not there, or its server refuses what is asked of it: no waiting helps. Names the bucket and key."""


class BucketUnavailable(UllageError):
    """A bucket's server does not answer, or not now, for as long as it was asked again. Names the bucket and key."""

    retry_after_seconds = PRESSURE_SECONDS


class RepositoryLocked(UllageError):
    """Another process has this repository open."""

    retry_after_seconds = PRESSURE_SECONDS


class ForeignContainer(UllageError):
    """A container is missing, unknown, or belongs to another repository: perhaps a volume is not mounted."""


class FormatTooNew(UllageError):
    """The files were written by a newer format or SerDe version than this code reads."""


class RepositoryDamaged(UllageError):
    """Something that was acknowledged cannot be read back: the start stops rather than lose it."""


class RepositoryClosed(UllageError, ValueError):
    """This program has closed the repository; what it got from it before is of no more use."""


class NotRestored(RepositoryClosed):
    """The repository is not open yet (docs/storage.md, Restore, step 1), or not any more: nothing was changed."""

    retry_after_seconds = PRESSURE_SECONDS


class ForkedRepository(RepositoryClosed):
    """The repository was opened by the parent of this process, whose it stays: open it anew in the child."""


class RepositoryStopped(UllageError):
    """An earlier failure of the write-ahead log stopped the repository; reopen it to learn what disk holds."""

    retry_after_seconds = PRESSURE_SECONDS


class CommitOutcomeUnknown(UllageError):
    """The transaction's frame was written but its sync failed: it may or may not be there after a restart.

    Never retry such a commit elsewhere: it could apply twice. Reopen the repository and look.
    """


class TransactionTooLarge(UllageError):
    """A transaction has more operations or bytes than one frame may carry; nothing of it was applied."""


class ContentWriteFailed(UllageError):
    """Content could not be written or synced: a definite failure, nothing was committed."""

    retry_after_seconds = PRESSURE_SECONDS


class DiskFull(UllageError):
    """The volume, or the container's capacity quota, has no room: a definite failure, nothing was committed."""

    retry_after_seconds = PRESSURE_SECONDS


class BackPressure(UllageError):
    """A limit asks writers to wait: disk usage, the log's size, or a queue's count or bytes."""

    retry_after_seconds = PRESSURE_SECONDS


class ContentMissing(UllageError):
    """A claim's file is absent or too short to hold the claim."""


class VolumeAway(ContentMissing):
    """The content lies on a volume that is away: it can be read again when the volume is back."""

    retry_after_seconds = PRESSURE_SECONDS


class ContentCorrupt(UllageError):
    """A claim's bytes do not match the CRC-32C recorded when they were written, or the disk refuses to read them."""


class ContentReclaimed(UllageError):
    """A claim's bytes were given back on purpose, after its last claimant went: expected, and no damage.

    `transaction` is the one that promised it; 0 where that is no longer known.
    """

    def __init__(self, message: str, transaction: int = 0) -> None:
        super().__init__(message)
        self.transaction = transaction


class ClaimGone(UllageError):
    """A transaction named a content claim that is neither live nor pinned."""


class ClaimTruncated(ClaimGone):
    """The claim's bytes were given back while the rest of its file stayed."""


class LeaseRefused(UllageError):
    """A lease that is too long, names too much, or is one too many."""

    retry_after_seconds = PRESSURE_SECONDS


class LeaseLost(UllageError):
    """The lease has expired, or was revoked or released: what was read under it must be discarded."""


class KeyInUse(UllageError):
    """A request with this idempotency key is under way: its outcome is not known yet."""

    retry_after_seconds = SOON_SECONDS


class KeyReused(UllageError):
    """The idempotency key belongs to another request, whose answer would be wrong for this one."""


class AnswerUnknown(UllageError):
    """Whether a request with this idempotency key was carried out can't be read any more: it is not carried out now."""


class WriteIncomplete(UllageError):
    """Attempts of the staged write have not staged what was said of them: nothing was changed."""


class WriteClosed(UllageError):
    """The staged write is committed, aborted or unknown: what comes late is refused, and nothing of it is kept."""


class HandleNotFound(NotFound):
    """No handle with this id was ever stored, or it was purged and forgotten."""


class HandleDeleted(UllageError):
    """The handle was deleted or has expired; while its retention lasts, a deleted one can be undeleted."""


class HandleNotDeleted(UllageError):
    """The handle lives, so there is nothing to undelete."""


class EventNotFound(NotFound):
    """No provenance event has this number or id, or retention has removed it."""


class ProvenanceDamaged(UllageError):
    """An event file is missing or unreadable: the history in it is gone unless it comes back, all else is well."""


class ReplayRefused(UllageError):
    """A provenance event cannot be replayed; `reason` says which of the known reasons it is."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class FlowFileNotFound(NotFound):
    """No FlowFile with this uuid is resident: it was removed, never existed, or is swapped out."""


class QueueNotFound(NotFound):
    """There is no queue of this name."""


class QueueNotEmpty(UllageError):
    """FlowFiles stand in the queue, held ones included: drop them, or move them."""


class SessionMisuse(UllageError):
    """A session was asked for something its FlowFiles' state does not allow; nothing was changed."""


class SessionGone(UllageError):
    """The session ended: committed, rolled back, or its time was over."""


class SessionBusy(UllageError):
    """Another request works in this session."""

    retry_after_seconds = SOON_SECONDS


class WindowClosed(UllageError):
    """Reclamation is not allowed now; `opens_millis` is when it will be, None: not in sight."""

    def __init__(self, message: str, opens_millis: int | None = None) -> None:
        super().__init__(message)
        self.opens_millis = opens_millis


class CompactionRefused(UllageError):
    """The settings of the repository do not let anybody compact it by hand: deleting and truncating are still free."""


class RunUnderWay(UllageError):
    """A run of reclamation, a backup or a verification is under way: one of each at a time."""

    retry_after_seconds = PRESSURE_SECONDS
