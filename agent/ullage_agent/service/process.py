"""What holds for the whole process of an agent: how soon a thread gets Python's lock, and what memory it keeps."""

import ctypes
import sys
from typing import Final

MIB: Final = 1 << 20

ALONE_SECONDS: Final = 0.005
"""How long a thread keeps the lock that another one waits for: Python's own."""

SHARED_SECONDS: Final = 0.0001
"""The same in an agent that several principals use. A request takes the lock some ten times, each time behind every
thread that is at work, and so may wait for hundreds of such times. Threads that take turns so often take a fifth more
of the processor for a put of 1 KB where 32 put at once; so whoever is alone keeps Python's own.
"""

MALLOPT: Final = {-1: 32 * MIB, -3: 16 * MIB, -8: 4}
"""Of glibc: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX. By themselves they give the memory of each message
back to the system when it has been sent, and the next one costs 700 page faults: a quarter of the processor time of a
read of 1,000 contents of 1 KB over Flight. With these four arenas keep up to 32 MiB each at their ends, and messages of
16 MiB and more, which are rare, are given back at once.
"""


def share_interpreter(is_shared: bool) -> None:
    """For this process: whether several principals use it."""
    sys.setswitchinterval(SHARED_SECONDS if is_shared else ALONE_SECONDS)


def keep_freed_memory() -> None:
    """For this process: use memory of messages again, rather than ask the system for it each time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        for parameter, value in MALLOPT.items():
            mallopt(parameter, value)
