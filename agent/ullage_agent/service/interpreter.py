"""Python's lock, which one thread of a process has at a time: how soon whoever wants it gets it."""

import sys
from typing import Final

ALONE_SECONDS: Final = 0.005
"""How long a thread keeps the lock that another one waits for: Python's own."""

SHARED_SECONDS: Final = 0.0001
"""The same in an agent that several principals use. A request takes the lock some ten times, each time behind every
thread that is at work, and so may wait for hundreds of such times. Threads that take turns so often take a fifth more
of the processor for a put of 1 KB where 32 put at once; so whoever is alone keeps Python's own.
"""


def share_interpreter(is_shared: bool) -> None:
    """For this process: whether several principals use it."""
    sys.setswitchinterval(SHARED_SECONDS if is_shared else ALONE_SECONDS)
