"""Exit codes, and the one place that turns errors into them: a line or two on stderr, never a traceback.

What is not listed here is a bug of ours, and keeps its traceback.
"""

import enum
import errno
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperGroup

from ullage_agent.cli.output import say, tell
from ullage_agent.contract import ContractError
from ullage_agent.engine import errors
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.service.errors import CannotListen


class ExitCode(enum.IntEnum):
    """Part of the interface: scripts branch on them."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    LOCKED = 3
    REPOSITORY = 4
    NO_ROOM = 5
    NOT_FOUND = 6
    UNKNOWN = 7
    CLOSED = 8
    UNREACHABLE = 9
    DENIED = 10
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.PROBLEMS: "`check` found problems, or the demo a mismatch",
    ExitCode.USAGE: "wrong usage, unreadable input or bad configuration",
    ExitCode.LOCKED: "another process has the repository open",
    ExitCode.REPOSITORY: "no repository, a damaged one, a foreign or missing container, or a newer format",
    ExitCode.NO_ROOM: "disk full, back-pressure or a failed write: nothing of that commit was stored",
    ExitCode.NOT_FOUND: "no such FlowFile, queue, handle or event, or its content is gone",
    ExitCode.UNKNOWN: "outcome unknown: the last commit may or may not be there, look before trying again",
    ExitCode.CLOSED: "nothing was given back: paused, or no window of spec.maintenance is open",
    ExitCode.UNREACHABLE: "the service of --url does not answer, or not now",
    ExitCode.DENIED: "the service of --url wants a token, or one that may do more",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C; what was committed stays",
    ExitCode.BROKEN_PIPE: "whoever read the output went away",
}


class ServiceFailed(Exception):
    """A running service refused something, or does not answer."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


CODES: Final[dict[type[Exception], ExitCode]] = {
    ContractError: ExitCode.USAGE,
    CannotListen: ExitCode.USAGE,
    errors.SessionMisuse: ExitCode.USAGE,
    errors.TransactionTooLarge: ExitCode.USAGE,
    errors.RepositoryLocked: ExitCode.LOCKED,
    errors.NotARepository: ExitCode.REPOSITORY,
    errors.ForeignContainer: ExitCode.REPOSITORY,
    errors.FormatTooNew: ExitCode.REPOSITORY,
    errors.RepositoryDamaged: ExitCode.REPOSITORY,
    errors.ContentMissing: ExitCode.REPOSITORY,
    errors.ContentCorrupt: ExitCode.REPOSITORY,
    errors.ContentReclaimed: ExitCode.NOT_FOUND,
    errors.NotRestored: ExitCode.REPOSITORY,
    errors.DiskFull: ExitCode.NO_ROOM,
    errors.BackPressure: ExitCode.NO_ROOM,
    errors.ContentWriteFailed: ExitCode.NO_ROOM,
    errors.ProvenanceDamaged: ExitCode.REPOSITORY,
    errors.LeaseRefused: ExitCode.NO_ROOM,
    errors.LeaseLost: ExitCode.NOT_FOUND,
    errors.ClaimGone: ExitCode.NOT_FOUND,
    errors.ClaimTruncated: ExitCode.NOT_FOUND,
    errors.EventNotFound: ExitCode.NOT_FOUND,
    errors.ReplayRefused: ExitCode.NOT_FOUND,
    errors.FlowFileNotFound: ExitCode.NOT_FOUND,
    errors.KeyInUse: ExitCode.NO_ROOM,
    errors.KeyReused: ExitCode.USAGE,
    errors.WriteClosed: ExitCode.NOT_FOUND,
    errors.HandleNotFound: ExitCode.NOT_FOUND,
    errors.HandleDeleted: ExitCode.NOT_FOUND,
    errors.CommitOutcomeUnknown: ExitCode.UNKNOWN,
    errors.RepositoryStopped: ExitCode.UNKNOWN,
}

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FAILED: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EROFS})


def code_of(error: Exception) -> ExitCode:
    """The exit code of an error that the engine, the configuration or the system raised."""
    if isinstance(error, OSError):
        if error.errno in DISK_FULL:
            return ExitCode.NO_ROOM
        return ExitCode.REPOSITORY if error.errno in DISK_FAILED else ExitCode.USAGE
    if isinstance(error, ServiceFailed):
        return error.code
    return CODES[type(error)]


def message_of(error: Exception) -> str:
    """What went wrong, and on further lines what the command adds to it."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        text = str(error)
    return "\n".join([text, *getattr(error, "__notes__", ())])


def end_if_closed(report: Report) -> None:
    """Say why a run was not permitted, and end with the code for it; nothing if something was done."""
    if report.is_closed:
        reasons = report.refusal or "; ".join(dict.fromkeys(left.reason for left in report.left))
        say(f"ullage: closed: {reasons}; `ullage windows` shows the windows, --override passes over them")
        raise typer.Exit(ExitCode.CLOSED)


class Commands(TyperGroup):
    """The group of all commands; every error passes here on its way out."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help with the exit codes, a line each, which an epilog would not keep."""
        super().format_help(ctx, formatter)
        tell(" Exit codes:")
        for code, meaning in MEANINGS.items():
            tell(f"  {code:3d}  {meaning}")

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None
        except (errors.UllageError, ContractError, CannotListen, ServiceFailed, OSError) as error:
            say(f"ullage: {message_of(error)}")
            raise typer.Exit(code_of(error)) from error
        except Exception as error:
            if not _is_about_a_service(error):
                raise
            raise typer.BadParameter(
                "this command works on a repository's files: run it where they are, with --root or --config",
                getattr(error, "ctx", None),
            ) from error
        return result


def _is_about_a_service(error: Exception) -> bool:
    """An option of --url on a command that has none; told by its name, because typer has its own copy of click."""
    return getattr(error, "option_name", None) in ("--url", "--token-file", "--ca")


def _discard_output() -> None:
    """Python flushes stdout once more when it ends, which would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
