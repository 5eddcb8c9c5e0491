"""Where what was built or is running lies: below `ULLAGE_CACHE`, or the user's cache."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """The project's own folder of the cache."""
    if chosen := os.environ.get("ULLAGE_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among all processes of this machine that name the same lock; the kernel frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
