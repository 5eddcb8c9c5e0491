"""Where a client may say its token: to who has proved to be the node, or where nobody else could have put himself."""

import os
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ullage.contract import is_loopback
from ullage.errors import InvalidArgument
from ullage.wire import frames
from ullage.wire.frames import BadFrame
from ullage.wire.proof import ALPN, NUMBER, ProofRecords, number_of

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Send = Callable[[bytes, Sequence[int]], None]
"""TLS records, and the descriptors that go with them."""


class Identity(NamedTuple):
    """Who must answer: the name in the certificate, and the file of the authorities to believe (None: the system's)."""

    name: str
    ca_file: str | None = None


def identity_of(url: str, ca_file: str | None) -> Identity | None:
    """Of a node that is reached at this address over TLS (https, grpc+tls); None for one without a certificate."""
    parts = urlsplit(url)
    return Identity(parts.hostname, ca_file) if parts.scheme in ("https", "grpc+tls") and parts.hostname else None


def is_secret(url: str, token: str | None) -> bool:
    """Whether nobody on the way there learns the token: it goes inside TLS, or there is none. Where it is not, no proxy
    of the environment may be used: what was meant for this machine would be told to it in the clear.
    """
    return token is None or identity_of(url, None) is not None


def require_encrypted(url: str, token: str | None) -> None:
    """InvalidArgument if a token would leave the machine in the clear, for whoever answers there."""
    if is_secret(url, token):
        return
    if not is_loopback(urlsplit(url).hostname or ""):
        raise InvalidArgument(
            f"{url}: no token is sent over a connection that is not encrypted to another machine: use the node's https "
            "or grpc+tls address, and say with ca_file whose certificates are to be believed"
        )


def greet(
    identity: Identity, hello: bytes, send: Send, receive: Callable[[], bytes], timeout_seconds: float
) -> tuple[socket.socket, bytes]:
    """Let the agent prove who it is, greet it, and move to a connection that nobody else has a part in; that, and its
    WELCOME. BadFrame: this is not who it should be, or somebody stands between. OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        passed = [theirs.fileno()]

        def sent(data: bytes) -> None:
            send(data, passed)
            passed.clear()

        records = ProofRecords(_context(identity), sent, receive, identity.name)
        records.shake()
        records.write(number_of(theirs) + hello)
        number = records.read(NUMBER.size)
        welcome = records.read(frames.WELCOME.size)
        ours.settimeout(timeout_seconds)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise BadFrame("no connection came with the greeting")
    private = socket.socket(fileno=descriptors[0])
    if number_of(private) != number:
        private.close()
        raise BadFrame("the connection that came is not the one that the agent made: somebody stands between")
    return private, welcome


def require_private(path: str) -> None:
    """InvalidArgument unless only root and the client's own user can have put this socket where it is.

    What is asked of each folder above it is what sshd asks of the folders above its keys: the owner, and that nobody
    else may write there. In a sticky one like /tmp others may write, but not replace what is not theirs.
    """
    folder = os.path.dirname(os.path.realpath(path))
    is_last = True
    while True:
        found = os.stat(folder)
        is_writable = found.st_mode & OTHERS_WRITE and (is_last or not found.st_mode & stat.S_ISVTX)
        if found.st_uid not in (0, os.geteuid()) or is_writable:
            raise InvalidArgument(
                f"{path}: no token is sent to this socket. It proves nothing, because the client was given no https "
                f"address with it, and others than root and you could have put it there: see {folder}"
            )
        if folder == os.path.dirname(folder):
            return
        folder, is_last = os.path.dirname(folder), False


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=identity.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context
