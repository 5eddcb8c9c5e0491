"""The one place that turns errors into exit codes: a line or two on stderr, never a traceback.

What is not listed here is a bug of ours, and keeps its traceback. Imported when something has failed.
"""

import os
from typing import Final

from ullage import errors
from ullage.contract import ContractError
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.writing import DISK_FAILED, DISK_FULL, OutputFailed
from ullage_agent.service.errors import CannotListen

CODES: Final[dict[type[Exception], ExitCode]] = {
    ContractError: ExitCode.USAGE,
    CannotListen: ExitCode.USAGE,
    errors.InvalidArgument: ExitCode.USAGE,
    errors.SessionMisuse: ExitCode.USAGE,
    errors.KeyReused: ExitCode.USAGE,
    errors.DigestMismatch: ExitCode.USAGE,
    errors.TransactionTooLarge: ExitCode.USAGE,
    errors.RequestTooLarge: ExitCode.USAGE,
    errors.RepositoryExists: ExitCode.USAGE,
    errors.DirectoryNotEmpty: ExitCode.USAGE,
    errors.DirectoryUnusable: ExitCode.USAGE,
    errors.NotABackup: ExitCode.USAGE,
    errors.HandleNotDeleted: ExitCode.USAGE,
    errors.QueueNotEmpty: ExitCode.USAGE,
    errors.WriteIncomplete: ExitCode.USAGE,
    errors.RepositoryLocked: ExitCode.LOCKED,
    errors.BackupOvertaken: ExitCode.LOCKED,
    errors.ShareFenced: ExitCode.LOCKED,
    errors.NodeFenced: ExitCode.LOCKED,
    errors.NotARepository: ExitCode.REPOSITORY,
    errors.ForeignContainer: ExitCode.REPOSITORY,
    errors.FormatTooNew: ExitCode.REPOSITORY,
    errors.RepositoryDamaged: ExitCode.REPOSITORY,
    errors.AnswerUnknown: ExitCode.REPOSITORY,
    errors.ContentMissing: ExitCode.REPOSITORY,
    errors.ContentCorrupt: ExitCode.REPOSITORY,
    errors.ProvenanceDamaged: ExitCode.REPOSITORY,
    errors.NotRestored: ExitCode.REPOSITORY,
    errors.RepositoryClosed: ExitCode.REPOSITORY,
    errors.ForkedRepository: ExitCode.REPOSITORY,
    errors.Refused: ExitCode.REPOSITORY,
    errors.DiskFull: ExitCode.NO_ROOM,
    errors.BackPressure: ExitCode.NO_ROOM,
    errors.ContentWriteFailed: ExitCode.NO_ROOM,
    errors.LeaseRefused: ExitCode.NO_ROOM,
    errors.QuotaReached: ExitCode.NO_ROOM,
    errors.KeyInUse: ExitCode.NO_ROOM,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.Elsewhere: ExitCode.NOT_FOUND,
    errors.HandleDeleted: ExitCode.NOT_FOUND,
    errors.ContentReclaimed: ExitCode.NOT_FOUND,
    errors.ClaimGone: ExitCode.NOT_FOUND,
    errors.LeaseLost: ExitCode.NOT_FOUND,
    errors.SessionGone: ExitCode.NOT_FOUND,
    errors.WriteClosed: ExitCode.NOT_FOUND,
    errors.ReplayRefused: ExitCode.NOT_FOUND,
    errors.CommitOutcomeUnknown: ExitCode.UNKNOWN,
    errors.RepositoryStopped: ExitCode.UNKNOWN,
    errors.WindowClosed: ExitCode.CLOSED,
    errors.CompactionRefused: ExitCode.CLOSED,
    errors.RunUnderWay: ExitCode.CLOSED,
    errors.NotReachable: ExitCode.UNREACHABLE,
    errors.BucketUnavailable: ExitCode.UNREACHABLE,
    errors.LeaseLapsed: ExitCode.UNREACHABLE,
    errors.ServiceBusy: ExitCode.UNREACHABLE,
    errors.ServiceStopping: ExitCode.UNREACHABLE,
    errors.NodeDraining: ExitCode.UNREACHABLE,
    errors.BackupStopped: ExitCode.UNREACHABLE,
    errors.SessionBusy: ExitCode.UNREACHABLE,
    errors.AccessUnknown: ExitCode.UNREACHABLE,
    errors.TransferStalled: ExitCode.UNREACHABLE,
    errors.RequestIncomplete: ExitCode.UNREACHABLE,
    errors.Unauthenticated: ExitCode.DENIED,
    errors.Forbidden: ExitCode.DENIED,
    errors.BucketRefused: ExitCode.DENIED,
}
"""Of these classes and of those below them."""

GATEWAY: Final = frozenset({502, 503, 504})
"""What a proxy says whose service does not answer."""


def code_of(error: Exception) -> ExitCode | None:
    """The exit code of an error that a repository, the configuration or the system raised; None for any other."""
    if isinstance(error, OutputFailed):
        return ExitCode.OUTPUT
    if isinstance(error, OSError):
        if error.errno in DISK_FULL:
            return ExitCode.NO_ROOM
        return ExitCode.REPOSITORY if error.errno in DISK_FAILED else ExitCode.USAGE
    if isinstance(error, errors.Refused) and error.status in GATEWAY:
        return ExitCode.UNREACHABLE
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)


def message_of(error: Exception) -> str:
    """What went wrong."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def notes_of(error: Exception) -> list[str]:
    """What the command adds to it, each on a line of its own."""
    return list(getattr(error, "__notes__", ()))
