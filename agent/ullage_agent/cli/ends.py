"""How a command ends early: a line on stderr and an exit code, never a traceback."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.output import say, visible


@contextmanager
def plain_ends(program: str = "ullage") -> Iterator[None]:
    """What ends a command early is told in a line, and is its exit code."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as error:
        # Click would say 1, with which `check` says that it found problems.
        raise _interrupted(getattr(error, "__notes__", ())) from None
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None
    except click.ClickException as error:
        # It repeats what was typed, and a shell's * types names of others.
        error.message = visible(error.message)  # type: ignore[misc]  # Click reads it of the error that it caught
        raise
    except (click.exceptions.Exit, ModuleNotFoundError):
        raise
    except Exception as error:
        from ullage_agent.cli.failures import code_of, message_of, notes_of

        code = code_of(error)
        if code is None:
            raise
        say(f"{program}: {message_of(error)}", *notes_of(error))
        try:
            sys.stdout.flush()
        except OSError:  # what could not be written is told of already
            _discard_output()
        raise click.exceptions.Exit(code) from error


def _interrupted(notes: Iterable[str]) -> click.exceptions.Exit:
    """How a command ends after Ctrl-C, with what it says of the work so far."""
    say("interrupted", *notes)
    return click.exceptions.Exit(ExitCode.INTERRUPTED)


def _discard_output() -> None:
    """Python flushes stdout once more when it ends, which would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
