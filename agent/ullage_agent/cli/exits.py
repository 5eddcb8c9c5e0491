"""Exit codes, which are part of the interface: scripts branch on them."""

import enum
from typing import Final


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
