"""What a node says of itself to programs that read in bulk: its name, its epoch, and which socket is its own."""

import os

from ullage_agent.engine.repository import Repository
from ullage_agent.service.flight.forms import About, SocketShown


def about(repository: Repository, node: str, socket_path: str) -> About:
    """Cheap: it may be asked before every read."""
    manifest, newest = repository.provenance.moment()
    return About(
        node=node,
        repository=repository.identity.repository,
        millis=repository.clock.now_millis(),
        first_sequence=manifest.removed_through + 1,
        last_sequence=newest[-1].last_sequence if newest else manifest.next_sequence - 1,
        socket=_socket(socket_path),
    )


def _socket(path: str) -> SocketShown | None:
    """A program may see a socket of this path that is another node's: inode and birth tell them apart."""
    try:
        found = os.stat(path)
    except OSError:  # not listened on, or not yet
        return None
    return SocketShown(path=path, inode=found.st_ino, changed_nanos=found.st_ctime_ns)
