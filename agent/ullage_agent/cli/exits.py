"""Exit codes, which are part of the interface: scripts branch on them."""

import enum
from typing import Self


class ExitCode(enum.IntEnum):
    """What the help says of each stands beside it."""

    meaning: str

    OK = 0, "done"
    PROBLEMS = 1, "`check` or `backup verify` found problems, or the demo a mismatch"
    USAGE = 2, "wrong usage, unreadable input or bad configuration"
    LOCKED = 3, "another process has the repository open, another node writes it, or somebody wrote the same backup"
    REPOSITORY = 4, "no repository, a damaged one, a foreign or missing container, or a newer format"
    NO_ROOM = 5, "disk full, back-pressure or a failed write: nothing of that commit was stored"
    NOT_FOUND = 6, "no such FlowFile, queue, handle or event, or its content is gone"
    UNKNOWN = 7, "outcome unknown: the last commit may or may not be there, look before trying again"
    CLOSED = 8, "nothing was given back: paused, no window of spec.maintenance is open, or spec.compaction refuses it"
    UNREACHABLE = 9, "the service of --url, or a bucket, does not answer, or not now"
    DENIED = 10, "the service of --url wants a token, or one that may do more; a bucket refuses"
    INCOMPLETE = 11, "the backup, export, salvage or survey is done without what can't be read: it names what"
    OUTPUT = 12, "the output found no room, or its disk fails or is read-only: the repository is whole"
    INTERRUPTED = 130, "interrupted with Ctrl-C; what was committed stays"
    BROKEN_PIPE = 141, "whoever read the output went away"

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member
