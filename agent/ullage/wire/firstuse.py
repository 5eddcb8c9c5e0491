"""Types that threads decode are made known to msgspec before there are any threads."""

from typing import Any

import msgspec


def prepare(*kinds: Any) -> None:
    """To be called when a module is imported, with types that several threads may decode.

    msgspec 0.22 takes a type apart at its first use. Where two threads use it first at a time, one sees what the other
    has not finished, and the process ends with a segmentation fault: an agent's did, of two threads that read and wrote
    its node's object.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)
