"""Who is at the other end of the socket: the kernel says which process connected, nobody can pretend."""

import os
import socket
import struct
from typing import Final

import msgspec

from ullage.errors import Unauthenticated
from ullage_agent.service.access import Authenticator, Principal

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
    """SO_PEERCRED."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def trusted_uids() -> frozenset[int]:
    """Root, and the agent's own user: they could read the files anyway, so the socket asks them for no token."""
    return frozenset({0, os.geteuid()})


def admit(peer: Peer, token: str | None, authenticator: Authenticator, trusted: frozenset[int]) -> Principal:
    """Who this is. Unauthenticated for an untrusted user without a token that the authenticator vouches for."""
    if token is not None:
        return authenticator.authenticate(token, f"uid {peer.uid}")
    if peer.uid in trusted:
        return Principal(f"uid:{peer.uid}")
    raise Unauthenticated(f"{peer} is not trusted by its user alone: greet with a bearer token")
