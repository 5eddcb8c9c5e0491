"""Errors on demand, for the files of testing.py: which call fails, how, and what of it happens all the same."""

from dataclasses import dataclass

CHANGING = frozenset(
    {
        "create",
        "make_directory",
        "rename",
        "unlink",
        "sync_directory",
        "write",
        "allocate",
        "truncate",
        "punch",
        "sync",
    }
)
"""Calls that change or sync something, by the names of the methods of `Files` and `File`."""

LOOKING = frozenset({"open", "exists", "size", "list_directory", "mark", "usage", "can_punch", "lock", "read"})
"""Calls that change nothing. A hint (`start_writeback`, `expect_reads`, `drop_cache`) has no error, and closing
promises nothing.
"""


@dataclass(slots=True)
class Call:
    """One call that changes or syncs something, as hooks see it."""

    number: int
    kind: str
    path: str


@dataclass(slots=True)
class Fault:
    """An error on demand: the `at`-th call of these kinds, counted from when the fault is set, fails once.

    Of a failing write the first `keeps` (a share of its bytes) reach the file. With `is_late` the call does its work
    and fails all the same: a sync whose error was another's, or a signal's exception after the call.
    """

    at: int
    error: BaseException
    kinds: frozenset[str] = CHANGING | LOOKING
    keeps: float = 0.0
    is_late: bool = False
    seen: int = 0
    struck: Call | None = None

    def strikes(self, call: Call) -> bool:
        """Count the call; whether it is the one."""
        if self.struck is not None or call.kind not in self.kinds:
            return False
        self.seen += 1
        if self.seen == self.at:
            self.struck = call
        return self.struck is not None
