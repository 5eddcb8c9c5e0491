"""How the Unix socket proves whose it is, before anything is said to it; docs/protocol.md says the same in prose.

    client                                            agent
    connect to the path
    PROVE (TLS 1.3: ClientHello) + end B of a pair A-B -->
                                                  <-- PROOF (its certificate, signed)
    PROVE (number of B, HELLO)                        -->
                                                      C-D is made, D goes into B, so it comes out of A and nowhere else
                                                  <-- PROOF (number of D, WELCOME)
    D ------------------------ everything else ------------------------ C

What lies at the path may be a false socket that passes everything on to the real one. It can't read what is said inside
TLS, so it learns no token. But it sits on a connection that the agent takes for its client's, and descriptors that are
passed over that would be its own. Hence the move to C-D, whose ends nobody else has: only A, which never leaves the
client, hears what is written into B, and by the number that came inside TLS each side knows that the socket it was
given is the one that the other side meant.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from ullage.wire.frames import HEADER, BadFrame

T = TypeVar("T")

ALPN: Final = "ullage-socket/1"
"""So that a handshake that is passed on to another listener with the same certificate, HTTPS say, does not succeed."""

RECORD_BYTES_MAX: Final = 64 << 10
"""Of TLS, from one side: a chain of certificates, or a token, and what surrounds them."""

SO_COOKIE: Final = 57
"""A socket's number, from the kernel, which gives it to no other as long as it runs (of the whole machine since 5.4).
Python has no name for it; it is the same on all architectures but PA-RISC and SPARC.
"""

NUMBER: Final = struct.Struct("=Q")
"""As the kernel gives it: both ends are on one machine."""


def number_of(connection: socket.socket) -> bytes:
    """What tells this socket from every other one of the machine, through whichever descriptor it is seen."""
    return connection.getsockopt(socket.SOL_SOCKET, SO_COOKIE, NUMBER.size)


class ProofRecords:
    """One end of TLS whose records travel in frames. BadFrame for what is not TLS, or too much of it."""

    def __init__(
        self,
        context: ssl.SSLContext,
        send: Callable[[bytes], None],
        receive: Callable[[], bytes],
        server_name: str | None = None,
    ) -> None:
        """The client's with the name that the certificate must have, the server's without."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._send = send
        self._receive = receive
        self._left = RECORD_BYTES_MAX

    def shake(self) -> None:
        """Agree on keys. For a client the server has proved its name afterwards. BadFrame: it has not."""
        self._finish(self._tls.do_handshake)
        if self._tls.version() != "TLSv1.3" or self._tls.selected_alpn_protocol() != ALPN:
            raise BadFrame(f"the other side does not speak {ALPN} inside TLS 1.3")

    def write(self, data: bytes) -> None:
        """Say something that only the other end can read."""
        self._finish(lambda: self._tls.write(data))

    def read(self, count: int) -> bytes:
        """Exactly so many bytes of what the other end says."""
        data = b""
        while len(data) < count:
            piece = self._finish(lambda: self._tls.read(count - len(data)))  # noqa: B023 - called at once
            if not piece:
                raise BadFrame("TLS ended in the middle of a greeting")
            data += piece
        return data

    def _finish(self, work: Callable[[], T]) -> T:
        """Do it, with as many records in both directions as it takes."""
        while True:
            try:
                done = work()
            except ssl.SSLWantReadError:
                self._flush()
                self._incoming.write(self._next())
            except ssl.SSLError as error:
                self._flush()  # the alert, which tells the other side why
                # Not as it is: SSLError is an OSError, which would read as a connection that broke.
                raise BadFrame(f"no proof by TLS: {getattr(error, 'verify_message', '') or error.reason}") from error
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        if records := self._outgoing.read():
            self._send(records)

    def _next(self) -> bytes:
        records = self._receive()
        self._left -= HEADER.size + len(records)
        if self._left < 0:
            raise BadFrame(f"more than {RECORD_BYTES_MAX} bytes of TLS before the greeting was over")
        return records
