"""Refusals: what a node answers instead, over every transport, and the error that it becomes again at the other end.

HTTP and Arrow Flight send problem details (RFC 9457) as they are, the Unix socket in frames of its own. The slug is
part of the interface: clients branch on it, ours by raising the error that the table has beside it. An error that is
not in the table is a bug of ours; its message may tell more than a stranger should know, so it is not sent.
"""

import errno
from typing import Final

import msgspec

from ullage import errors

PROBLEM_TYPE: Final = "application/problem+json"
PROBLEM_URI: Final = "https://ullage.dev/problems/"
"""What the slug is put behind; docs/api.md lists them."""


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal, as RFC 9457 has it. Programs branch on the slug."""

    type: str
    """PROBLEM_URI and the slug."""

    title: str

    status: int
    """That of HTTP, whatever the transport."""

    detail: str
    """What is wrong this time."""

    slug: str

    retry_after_seconds: float | None = None
    """When the same request may succeed, the same as the header Retry-After; None: not by waiting."""

    reason: str | None = None
    """Of `replay-refused`: why, in a word."""

    opens_millis: int | None = None
    """Of `window-closed`: when reclamation is allowed again; None: not in sight."""

    size: int | None = None
    """Of `range-not-satisfiable`: bytes of the content."""

    transaction: int | None = None
    """Of `content-reclaimed`: the transaction that gave the content back; 0: not known any more."""


class Problem(msgspec.Struct, frozen=True):
    """A row of the table. `extra` are attributes of the error that its details have too."""

    error: type[errors.UllageError]
    slug: str
    status: int
    title: str
    extra: tuple[str, ...] = ()

    def details(self, detail: str, error: Exception | None = None) -> ProblemDetails:
        """The answer; what is in `extra` comes from the error."""
        extra = {name: getattr(error, name, None) for name in self.extra}
        return ProblemDetails(
            type=PROBLEM_URI + self.slug,
            title=self.title,
            status=self.status,
            detail=detail,
            slug=self.slug,
            retry_after_seconds=(error if isinstance(error, self.error) else self.error).retry_after_seconds,
            **extra,
        )


PROBLEMS: Final = (
    Problem(errors.InvalidArgument, "invalid-argument", 400, "The request is wrong"),
    Problem(errors.UnknownPlugin, "unknown-plugin", 400, "Nothing is called like this"),
    Problem(errors.SessionMisuse, "session-misuse", 400, "Not possible in this state of the session"),
    Problem(errors.DigestMismatch, "digest-mismatch", 400, "The content is not what its digest says"),
    Problem(errors.RequestIncomplete, "request-incomplete", 400, "The request was not complete"),
    Problem(errors.Unauthenticated, "unauthenticated", 401, "Authentication is needed"),
    Problem(errors.Forbidden, "forbidden", 403, "Not allowed"),
    Problem(errors.DescriptorRefused, "descriptor-refused", 403, "The file holds more than you may read"),
    Problem(errors.NotFound, "not-found", 404, "Not found"),
    Problem(errors.HandleNotFound, "no-such-handle", 404, "No such handle"),
    Problem(errors.FlowFileNotFound, "no-such-flowfile", 404, "No such FlowFile"),
    Problem(errors.QueueNotFound, "no-such-queue", 404, "No such queue"),
    Problem(errors.EventNotFound, "no-such-event", 404, "No such event"),
    Problem(errors.Refused, "method-not-allowed", 405, "No such method"),
    Problem(errors.TransferStalled, "transfer-stalled", 408, "The transfer stalled"),
    Problem(errors.KeyInUse, "key-in-use", 409, "The same request is under way"),
    Problem(errors.SessionBusy, "session-busy", 409, "The session is in use"),
    Problem(errors.RunUnderWay, "run-under-way", 409, "A run is under way"),
    Problem(errors.CompactionRefused, "compaction-refused", 409, "Compaction by hand is not allowed"),
    Problem(errors.WindowClosed, "window-closed", 409, "Reclamation is not allowed now", ("opens_millis",)),
    Problem(errors.QueueNotEmpty, "queue-not-empty", 409, "FlowFiles stand in the queue"),
    Problem(errors.HandleNotDeleted, "handle-not-deleted", 409, "The handle is not deleted"),
    Problem(errors.ReplayRefused, "replay-refused", 409, "The event cannot be replayed", ("reason",)),
    Problem(errors.WriteIncomplete, "write-incomplete", 409, "The staged write is not complete"),
    Problem(errors.RepositoryExists, "repository-exists", 409, "There is a repository already"),
    Problem(errors.DirectoryNotEmpty, "directory-not-empty", 409, "The directory holds something else"),
    Problem(errors.DirectoryUnusable, "directory-unusable", 409, "The directory can't be used"),
    Problem(errors.NotABackup, "no-backup", 409, "The directory holds no backup"),
    Problem(errors.BackupOvertaken, "backup-overtaken", 409, "Another backup was written there meanwhile"),
    Problem(errors.ShareFenced, "share-fenced", 409, "Another writer has taken over"),
    Problem(errors.BackupStopped, "backup-stopped", 409, "The backup was stopped"),
    Problem(errors.HandleDeleted, "handle-deleted", 410, "The handle was deleted"),
    Problem(errors.SessionGone, "session-gone", 410, "The session has ended"),
    Problem(errors.WriteClosed, "write-closed", 410, "The staged write is closed"),
    Problem(errors.LeaseLost, "lease-lost", 410, "The lease has ended"),
    Problem(errors.ClaimGone, "claim-gone", 410, "The content is gone"),
    Problem(errors.ClaimTruncated, "claim-truncated", 410, "The content was given back"),
    Problem(errors.ContentReclaimed, "content-reclaimed", 410, "The content was given back", ("transaction",)),
    Problem(errors.RequestTooLarge, "request-too-large", 413, "More than a limit allows"),
    Problem(errors.TransactionTooLarge, "transaction-too-large", 413, "Too much for one transaction"),
    Problem(errors.RangeNotSatisfiable, "range-not-satisfiable", 416, "No such range", ("size",)),
    Problem(errors.Elsewhere, "elsewhere", 421, "Another node has it"),
    Problem(errors.NodeFenced, "node-fenced", 421, "Another node writes this repository"),
    Problem(errors.KeyReused, "key-reused", 422, "The idempotency key belongs to another request"),
    Problem(errors.BackPressure, "back-pressure", 429, "Writers are asked to wait"),
    Problem(errors.QuotaReached, "quota-reached", 429, "A quota is reached"),
    Problem(errors.LeaseRefused, "lease-refused", 429, "The lease is refused"),
    Problem(errors.TooManyTokens, "too-many-tokens", 429, "Too many tokens that nobody vouches for"),
    Problem(errors.Refused, "unexpected", 500, "Something went wrong here"),
    Problem(errors.CommitOutcomeUnknown, "outcome-unknown", 500, "The commit may or may not be there"),
    Problem(errors.AnswerUnknown, "answer-unknown", 500, "The first answer cannot be read"),
    Problem(errors.ContentCorrupt, "content-corrupt", 500, "Content is damaged"),
    Problem(errors.ContentMissing, "content-missing", 500, "Content is missing"),
    Problem(errors.ProvenanceDamaged, "provenance-damaged", 500, "A part of the history is unreadable"),
    Problem(errors.RepositoryDamaged, "repository-damaged", 500, "The repository is damaged"),
    Problem(errors.NotARepository, "no-repository", 500, "There is no repository"),
    Problem(errors.ForeignContainer, "foreign-container", 500, "A container is missing or foreign"),
    Problem(errors.FormatTooNew, "format-too-new", 500, "Written by a newer version"),
    Problem(errors.BucketRefused, "bucket-refused", 502, "The bucket refuses"),
    Problem(errors.LeaseLapsed, "lease-lapsed", 503, "The node may not serve now"),
    Problem(errors.BucketUnavailable, "bucket-unavailable", 503, "The bucket does not answer"),
    Problem(errors.ServiceBusy, "busy", 503, "Too much is under way"),
    Problem(errors.ServiceStopping, "stopping", 503, "The service is stopping"),
    Problem(errors.NodeDraining, "node-draining", 503, "The node takes nothing new"),
    Problem(errors.AccessUnknown, "access-unknown", 503, "Permission cannot be checked now"),
    Problem(errors.RepositoryLocked, "repository-locked", 503, "The repository is open elsewhere"),
    Problem(errors.NotRestored, "not-open", 503, "The repository is not open"),
    Problem(errors.RepositoryStopped, "repository-stopped", 503, "The repository has stopped"),
    Problem(errors.ContentWriteFailed, "write-failed", 503, "Content could not be written"),
    Problem(errors.VolumeAway, "volume-away", 503, "The volume of the content is away"),
    Problem(errors.DiskFull, "disk-full", 507, "No room"),
)
"""The one table of slugs, by status."""

BY_SLUG: Final = {problem.slug: problem for problem in PROBLEMS}
UNEXPECTED: Final = BY_SLUG["unexpected"]
_BY_ERROR: Final = {problem.error: problem for problem in PROBLEMS if problem.error is not errors.Refused}
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def problem_of(error: Exception) -> ProblemDetails:
    """What to answer. An error that nobody foresaw becomes a 500 without its message."""
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return _BY_ERROR[errors.DiskFull].details("the volume is full")
    for kind in type(error).__mro__:
        if kind in _BY_ERROR:
            return _BY_ERROR[kind].details(str(error), error)
    return UNEXPECTED.details("the cause stands in the log")


def is_expected(error: Exception) -> bool:
    """Whether the table knows this error: others belong into the log, with their traceback."""
    return problem_of(error).slug != UNEXPECTED.slug


def error_of(details: ProblemDetails) -> errors.UllageError:
    """The error that became these details; Refused if its slug is not known here, or has no class of its own."""
    problem = BY_SLUG.get(details.slug, UNEXPECTED)
    if problem.error is errors.Refused:
        error: errors.UllageError = errors.Refused(details.detail, details.slug, details.status)
    else:
        error = problem.error(details.detail, *(getattr(details, name) for name in problem.extra))
    error.retry_after_seconds = details.retry_after_seconds
    return error


def error_of_slug(slug: str, detail: str) -> errors.UllageError:
    """The same where a transport says no more than the slug: of one content among many."""
    return error_of(BY_SLUG.get(slug, UNEXPECTED).details(detail))
