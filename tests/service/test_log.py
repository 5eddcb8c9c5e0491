"""What is logged, and how often."""

import ast
import errno
from pathlib import Path

import ullage_agent
from tests.support import ManualClock
from ullage_agent.service.log import TOLD_AGAIN_SECONDS, Sparing

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_failure_of_every_second_is_told_once_a_minute() -> None:
    """The first at once, then one for each minute that it lasts."""
    clock = ManualClock()
    sparing = Sparing(clock)
    told = 0
    for _ in range(3 * round(TOLD_AGAIN_SECONDS)):
        told += sparing.is_due("provenance", OSError(*FULL.args))
        clock.advance(1)

    assert told == 3


def test_a_failure_that_is_new_is_told_at_once() -> None:
    """Another task's, and another one of the same task, also when the first comes back."""
    sparing = Sparing(ManualClock())

    assert sparing.is_due("provenance", FULL)
    assert sparing.is_due("index", FULL)
    assert not sparing.is_due("index", FULL)
    assert sparing.is_due("provenance", ValueError("a record that cannot be read"))
    assert sparing.is_due("provenance", FULL)


def test_no_logger_is_bound_at_import() -> None:
    """Bound before `configure`, it would go on writing to stdout, with the local variables of each frame."""
    package = Path(ullage_agent.__file__).parent
    bound = [
        f"{path}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "logger"
    ]
    assert bound == []
