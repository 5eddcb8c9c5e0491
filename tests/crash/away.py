"""A volume that goes away and comes back in a filesystem in memory: its identity is moved aside, and its files stay."""

import os
from contextlib import closing

from ullage.engine.content.containers import IDENTITY
from ullage.engine.engine import Engine
from ullage.engine.files import make_directories, read_file
from ullage.engine.model import FlowFileRecord
from ullage.errors import VolumeAway

CONTAINER = "c2"
"""The second one of `specs.TWO_CONTAINERS`."""

VOLUME = "/r/volumes/c2"
"""Where it is mounted."""

ASIDE = "aside"
"""What its identity is called while it is away."""

STRANGER = os.path.join(VOLUME, "7", "1700000000000-7")
"""Somebody else's content, over which no container is made."""

_HERE, _ASIDE = os.path.join(VOLUME, IDENTITY), os.path.join(VOLUME, ASIDE)


def unmount(repository: Engine) -> None:
    """Take it away, unless it is: an error may have kept it from coming back."""
    files = repository._files
    if files.exists(_HERE):
        files.rename(_HERE, _ASIDE)
        files.sync_directory(VOLUME)
    repository.volumes.look()


def occupy(repository: Engine) -> None:
    """Have something in the way where it is to be made."""
    files = repository._files
    make_directories(files, os.path.dirname(STRANGER))
    with closing(files.create(STRANGER)) as file:
        file.write(b"somebody's", 0)
        file.sync()
    files.sync_directory(os.path.dirname(STRANGER))


def mount(repository: Engine) -> None:
    """Bring it back, if it is away, or clear the way for it, and let the repository see that."""
    files = repository._files
    if files.exists(STRANGER):
        files.unlink(STRANGER)
        files.sync_directory(os.path.dirname(STRANGER))
        repository.volumes.look()
    if files.exists(_ASIDE):
        files.rename(_ASIDE, _HERE)
        files.sync_directory(VOLUME)
        repository.volumes.look()


def is_out_of_reach(repository: Engine) -> bool:
    """Whether a workload has taken it away, or is giving it up."""
    container = repository.content.containers.get(CONTAINER)
    files = repository._files
    return files.exists(_ASIDE) or files.exists(STRANGER) or (container is not None and container.is_forgotten)


def content_of(repository: Engine, record: FlowFileRecord) -> bytes:
    """The content of a FlowFile; of one whose volume is away what a process would read that still has the file open."""
    claim = record.claim
    if claim is None:
        return b""
    try:
        return repository.reader.read(claim, record.start, record.size)
    except VolumeAway:
        entry = repository.ledger.entry(claim.resource)
        assert entry is not None, f"FlowFile {record.id} points at nothing"
        held = read_file(repository._files, repository.content.path_of(entry.claim))
        return held[claim.offset + record.start :][: record.size]
