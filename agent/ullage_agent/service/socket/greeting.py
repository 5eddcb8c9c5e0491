"""The greeting of a connection: in the clear where the agent has no certificate, else after it has proved itself.

See `ullage/wire/proof.py` for what is proved, and why the connection that came over the path is left for another one.
"""

import os
import socket
import time
from typing import Protocol

from ullage.errors import Unauthenticated
from ullage.wire import frames
from ullage.wire.frames import HELLO, TOKEN_BYTES_MAX, BadFrame, FrameKind, Hello
from ullage.wire.proof import ALPN, NUMBER, RECORD_BYTES_MAX, ProofRecords, number_of
from ullage_agent.service.listening import Certificate, TlsFiles
from ullage_agent.service.socket.channel import Channel

GREETING_BYTES_MAX = max(HELLO.size + TOKEN_BYTES_MAX, RECORD_BYTES_MAX)


class Greeting(Protocol):
    """What a client said first, and the way to answer it."""

    hello: Hello

    def welcome(self, body: bytes) -> Channel:
        """Answer; the channel on which the conversation goes on. BadFrame, OSError."""
        ...

    def close(self) -> None:
        """Let go of what came with the greeting."""
        ...


def proving(files: TlsFiles) -> Certificate:
    """What the agent proves itself with at the socket: the same certificate and key as for HTTPS."""
    certificate = Certificate(files, ALPN)
    certificate.context.num_tickets = 0  # nothing of a handshake is used again
    return certificate


def read_greeting(channel: Channel, certificate: Certificate | None) -> Greeting | None:
    """What the client says; None if it has gone. Unauthenticated if it would greet an agent that could prove itself
    without asking for the proof; BadFrame, EOFError, OSError.
    """
    received = channel.receive_passed(GREETING_BYTES_MAX)
    if received is None:
        return None
    header, body, passed = received
    try:
        if header.kind == FrameKind.HELLO:
            if certificate is not None:
                raise Unauthenticated(
                    "this agent has a certificate: ask for its proof (PROVE) before you say who you are, and renew a "
                    "token that you sent in the clear"
                )
            return PlainGreeting(channel, frames.parse_hello(body))
        if header.kind != FrameKind.PROVE:
            raise BadFrame(f"a {header.kind.name} before the greeting")
        if certificate is None:
            raise BadFrame("this agent has no certificate (spec.tls.mode None): there is nothing that it could prove")
        if len(passed) != 1:
            raise BadFrame("no socket came with the first PROVE")
        theirs = _socket_of(passed[0])
        passed.clear()
    finally:
        for descriptor in passed:
            os.close(descriptor)
    try:
        return ProvenGreeting(channel, theirs, certificate, body)
    except BaseException:
        theirs.close()
        raise


class PlainGreeting:
    """Over the connection as it came."""

    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.hello = hello
        self._channel = channel

    def welcome(self, body: bytes) -> Channel:
        self._channel.send(FrameKind.WELCOME, 0, body)
        return self._channel

    def close(self) -> None:
        return


class ProvenGreeting:
    """Inside TLS; the conversation goes on over a pair of sockets that nobody else has an end of."""

    def __init__(self, channel: Channel, theirs: socket.socket, certificate: Certificate, begin: bytes) -> None:
        """`theirs` came with the first records, `begin`. Unauthenticated if the client meant another one."""
        self._channel = channel
        self._theirs = theirs
        self._begin = begin
        self._ends = time.monotonic() + channel.stall_seconds
        self._records = ProofRecords(certificate.context, self._send, self._receive)
        self._records.shake()
        number = self._records.read(NUMBER.size)
        head = self._records.read(HELLO.size)
        token_bytes = HELLO.unpack(head)[3]
        if token_bytes > TOKEN_BYTES_MAX:
            raise BadFrame(f"a token of {token_bytes} bytes, at most {TOKEN_BYTES_MAX} are allowed")
        self.hello = frames.parse_hello(head + self._records.read(token_bytes))
        if theirs.family != socket.AF_UNIX or number_of(theirs) != number:
            raise Unauthenticated("the socket that came is not the one that the client passed: somebody stands between")

    def welcome(self, body: bytes) -> Channel:
        ours, private = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with private:
                number = number_of(private)
                socket.send_fds(self._theirs, [b"\0"], [private.fileno()], socket.MSG_DONTWAIT)
            self._records.write(number + body)
            channel = Channel(ours, self._channel.stall_seconds)
        except BaseException:
            ours.close()
            raise
        self._channel.close()
        return channel

    def close(self) -> None:
        self._theirs.close()

    def _send(self, records: bytes) -> None:
        self._channel.send(FrameKind.PROOF, 0, records)

    def _receive(self) -> bytes:
        begin, self._begin = self._begin, b""
        if begin:
            return begin
        received = self._channel.receive(RECORD_BYTES_MAX, waits=False)
        if time.monotonic() > self._ends:  # or many small frames would keep a stranger's connection for days
            raise TimeoutError("the greeting took too long")
        if received is None:
            raise EOFError("the client went away before it had greeted")
        header, body = received
        if header.kind != FrameKind.PROVE:
            raise BadFrame(f"a {header.kind.name} before the greeting")
        return body


def _socket_of(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadFrame(f"what came with the first PROVE is no socket: {error}") from error
