"""Who is at the other end of the socket, for the log: nobody is let in by it.

A number of a user says nothing across containers: two images may well have the same one.
"""

import socket
import struct
from typing import Final

import msgspec

_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid, as `int` of the machine."""


class Peer(msgspec.Struct, frozen=True):
    """A process as it was when it connected."""

    pid: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"uid {self.uid}, process {self.pid}"


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED: the kernel says it, nobody can pretend."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))
