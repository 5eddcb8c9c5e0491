"""How much of its disks a rewrite may take, and which names are free there."""

import os
from collections.abc import Callable
from typing import Final

from ullage.nifi.changes import Changes
from ullage.nifi.home import NiFiHome
from ullage.nifi.rewriteplan import Rooms

ORDINARY: Final = 20
"""Characters that names have which NiFi gives at the most, in whose place those of a rewrite come, which are longer."""

MARGIN: Final = 4 << 20
"""Bytes of each disk that stay free: for intents, and for what others write meanwhile."""


def repository_size(flowfiles: str) -> int:
    """Bytes of checkpoint, journals and swap files: what is written in their place is not larger."""
    found = 0
    for folder, _, names in os.walk(flowfiles):
        for name in names:
            found += os.lstat(os.path.join(folder, name)).st_size
    return found


def rooms_of(home: NiFiHome, changes: Changes) -> tuple[Rooms, str]:
    """What is free for survivors, and why nothing can be rewritten at all; empty: it can."""
    need = repository_size(home.flowfiles)
    disks: dict[str, int] = {}
    free: dict[int, int] = {}
    for name, path in home.containers.items():
        if os.path.isdir(path):
            disks[name], room = changes.free(path)
            free[disks[name]] = max(0, room - MARGIN)
    disk, room = changes.free(home.flowfiles)
    if room < need + MARGIN:
        return Rooms(disks, free), f"{home.flowfiles} needs {need + MARGIN:,} bytes for its new files and has {room:,}"
    if disk in free:
        free[disk] -= need
    return Rooms(disks, free), ""


def is_taken(home: NiFiHome) -> Callable[[str], bool]:
    """Whether any section of any container has a file of this name, or has one in its archive."""
    found: set[str] = set()
    for root in home.containers.values():
        for _, _, names in os.walk(root):
            found.update(name for name in names if len(name) > ORDINARY)
    return found.__contains__
