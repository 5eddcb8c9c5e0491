"""What a long step says of itself: what it does, and how long that took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """One line for whoever waits."""
    print(f"cluster: {line}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what begins, and when it has ended how many seconds it took, also when it failed."""
    say(f"{what} ...")
    began = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{what}: failed after {time.monotonic() - began:.1f} s")
        raise
    say(f"{what}: {time.monotonic() - began:.1f} s")
