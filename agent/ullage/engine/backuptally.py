"""How far a backup is that is being written, or looked at."""

from collections.abc import Callable
from typing import NamedTuple


class Tally(NamedTuple):
    """What is done, of how much."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int


Progress = Callable[[Tally], None]
"""Is told before the first file, and after each."""


def untold(_: Tally) -> None:
    """For whoever does not want to know."""
