"""From an error to the answer about it: the one mapping that all transports share.

HTTP makes RFC 9457 problem details of a `Problem`; Arrow Flight and the Unix socket put its slug into their own frames.
A slug is part of the interface: clients branch on it. What is not listed here is a bug of ours; its message may tell
more than a stranger should know, so it goes into the log and not into the answer.
"""

import errno
from typing import Final

import msgspec

from ullage_agent.engine import errors as engine
from ullage_agent.service import errors as service
from ullage_agent.service.limits import RETRY_PRESSURE_SECONDS, RETRY_SECONDS


class Problem(msgspec.Struct, frozen=True):
    """An answer that says no, and why."""

    status: int
    slug: str
    title: str
    detail: str
    retry_after_seconds: int | None = None


class _Kind(msgspec.Struct, frozen=True):
    status: int
    slug: str
    title: str
    retry_after_seconds: int | None = None


_PRESSURE = RETRY_PRESSURE_SECONDS
_SOON = RETRY_SECONDS

KINDS: Final[dict[type[Exception], _Kind]] = {
    service.Unauthenticated: _Kind(401, "unauthenticated", "Authentication is needed"),
    service.Forbidden: _Kind(403, "forbidden", "Not allowed"),
    service.AccessUnknown: _Kind(503, "access-unknown", "Permission cannot be checked now", _PRESSURE),
    service.BadRequest: _Kind(400, "bad-request", "The request is wrong"),
    service.TooMuch: _Kind(413, "too-much", "More than a limit allows"),
    service.TooManyRequests: _Kind(503, "busy", "Too much is under way", _SOON),
    service.DigestMismatch: _Kind(400, "digest-mismatch", "The content is not what its digest says"),
    service.SessionGone: _Kind(410, "session-gone", "The session has ended"),
    service.SessionBusy: _Kind(409, "session-busy", "The session is in use", _SOON),
    service.WindowClosed: _Kind(409, "window-closed", "Reclamation is not allowed now"),
    service.RunUnderWay: _Kind(409, "run-under-way", "A run is under way", _PRESSURE),
    service.Stalled: _Kind(408, "stalled", "The transfer stalled"),
    service.ClientGone: _Kind(400, "client-gone", "The request was not complete"),
    service.RangeRefused: _Kind(416, "range", "No such range"),
    service.Elsewhere: _Kind(421, "elsewhere", "Another node has it"),
    service.NotFound: _Kind(404, "not-found", "Not found"),
    service.Stopping: _Kind(503, "stopping", "The service is stopping", _PRESSURE),
    service.ReloadRefused: _Kind(409, "reload-refused", "These settings need a restart"),
    engine.SessionMisuse: _Kind(400, "misuse", "Not possible in this state"),
    engine.TransactionTooLarge: _Kind(413, "too-large", "Too much for one transaction"),
    engine.RepositoryLocked: _Kind(503, "locked", "The repository is open elsewhere", _PRESSURE),
    engine.NotARepository: _Kind(500, "no-repository", "There is no repository"),
    engine.ForeignContainer: _Kind(500, "foreign-container", "A container is missing or foreign"),
    engine.FormatTooNew: _Kind(500, "format-too-new", "Written by a newer version"),
    engine.RepositoryDamaged: _Kind(500, "damaged", "The repository is damaged"),
    engine.NotRestored: _Kind(503, "not-open", "The repository is not open", _PRESSURE),
    engine.RepositoryStopped: _Kind(503, "stopped", "The repository has stopped", _PRESSURE),
    engine.CommitOutcomeUnknown: _Kind(500, "outcome-unknown", "The commit may or may not be there"),
    engine.ContentWriteFailed: _Kind(503, "write-failed", "Content could not be written", _PRESSURE),
    engine.DiskFull: _Kind(507, "disk-full", "No room", _PRESSURE),
    engine.BackPressure: _Kind(429, "back-pressure", "Writers are asked to wait", _PRESSURE),
    engine.ContentMissing: _Kind(500, "content-missing", "Content is missing"),
    engine.ContentCorrupt: _Kind(500, "content-corrupt", "Content is damaged"),
    engine.ContentReclaimed: _Kind(410, "content-reclaimed", "The content was given back"),
    engine.ClaimGone: _Kind(410, "claim-gone", "The content is gone"),
    engine.ClaimTruncated: _Kind(410, "claim-truncated", "The content was given back"),
    engine.LeaseRefused: _Kind(429, "lease-refused", "The lease is refused", _PRESSURE),
    engine.LeaseLost: _Kind(410, "lease-lost", "The lease has ended"),
    engine.KeyInUse: _Kind(409, "key-in-use", "The same request is under way", _SOON),
    engine.KeyReused: _Kind(422, "key-reused", "The idempotency key belongs to another request"),
    engine.WriteClosed: _Kind(410, "write-closed", "The staged write is closed"),
    engine.HandleNotFound: _Kind(404, "no-such-handle", "No such handle"),
    engine.HandleDeleted: _Kind(410, "handle-deleted", "The handle was deleted"),
    engine.EventNotFound: _Kind(404, "no-such-event", "No such event"),
    engine.ProvenanceDamaged: _Kind(500, "provenance-damaged", "A part of the history is unreadable"),
    engine.ReplayRefused: _Kind(409, "replay-refused", "The event cannot be replayed"),
    engine.FlowFileNotFound: _Kind(404, "no-such-flowfile", "No such FlowFile or queue"),
}

UNEXPECTED: Final = _Kind(500, "unexpected", "Something went wrong here")
SLUGS: Final = tuple(sorted({kind.slug for kind in (*KINDS.values(), UNEXPECTED)}))
"""All there are."""

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def problem_of(error: Exception) -> Problem:
    """What to answer. An error that nobody foresaw becomes a 500 without its message."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return _problem(KINDS[engine.DiskFull], "the volume is full")
    for kind in type(error).__mro__:
        if kind in KINDS:
            return _problem(KINDS[kind], str(error))
    return _problem(UNEXPECTED, "the cause stands in the log")


def is_expected(error: Exception) -> bool:
    """Whether the mapping knows this error: others belong into the log, with their traceback."""
    return problem_of(error).slug != UNEXPECTED.slug


def _problem(kind: _Kind, detail: str) -> Problem:
    return Problem(kind.status, kind.slug, kind.title, detail, kind.retry_after_seconds)
