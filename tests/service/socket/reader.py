"""A second, independent reader of the Unix socket: the least that docs/protocol.md asks for, none of our own code."""

import array
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from crc32c import crc32c

BLOCK = 262_144


class Refusal(Exception):
    """A PROBLEM or REVOKED: its slug."""


class Reader:
    """Speaks to the socket at `path`; `read` returns verified content by uuid."""

    def __init__(self, path: str, token: bytes = b"", proof: tuple[str, str] | None = None) -> None:
        """`proof`: the name that the agent's certificate must have, and the file of the authority."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.files: dict[int, int] = {}
        hello = b"ULLAGE\0\0" + struct.pack("<HHI", 1, 1, len(token)) + token
        try:
            body = self.greeted(hello) if proof is None else self.proven(hello, *proof)
        except BaseException:
            self.close()
            raise
        magic, self.version, _, self.body_max, self.resolve_max, self.files_max, _ = struct.unpack("<8sHHIIII", body)
        assert magic == b"ULLAGE\0\0"

    def greeted(self, hello: bytes) -> bytes:
        """Greet in the clear; the agent's WELCOME."""
        self.tell(1, 0, hello)
        kind, body = self.hear()
        assert kind == 128
        return body

    def proven(self, hello: bytes, name: str, authority: str) -> bytes:
        """Greet inside TLS, and move to the connection that comes back; the agent's WELCOME."""
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["ullage-socket/1"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
        end_a, end_b = socket.socketpair()
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", end_b.fileno()))]

        def until(work: Callable[[], Any]) -> Any:
            while True:
                with suppress(ssl.SSLWantReadError):  # more records have to come first
                    return work()
                if outgoing.pending:
                    records = outgoing.read()
                    frame = struct.pack("<IBBH", len(records), 9, 0, 0) + records
                    self.socket.sendmsg([frame], passed)
                    passed.clear()
                kind, body = self.hear()
                assert kind == 133
                incoming.write(body)

        try:
            until(tls.do_handshake)
            assert tls.selected_alpn_protocol() == "ullage-socket/1"
            tls.write(end_b.getsockopt(socket.SOL_SOCKET, 57, 8) + hello)
            answer: bytes = until(lambda: tls.read(36))
            _, beside, _, _ = end_a.recvmsg(1, socket.CMSG_SPACE(4))
        finally:
            for end in (end_a, end_b, self.socket):
                end.close()
        self.socket = socket.socket(fileno=struct.unpack("i", beside[0][2])[0])
        assert self.socket.getsockopt(socket.SOL_SOCKET, 57, 8) == answer[:8]
        return answer[8:]

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files = {}
        self.socket.close()

    def tell(self, kind: int, request: int, body: bytes) -> None:
        self.socket.sendall(struct.pack("<IBBH", len(body), kind, 0, request) + body)

    def hear(self) -> tuple[int, bytes]:
        """The next frame; files are kept, refusals raised."""
        header, beside, _, _ = self.socket.recvmsg(8, socket.CMSG_SPACE(64 * 4), socket.MSG_WAITALL)
        if len(header) < 8:
            raise EOFError
        length, kind, _, _ = struct.unpack("<IBBH", header)
        body = self.socket.recv(length, socket.MSG_WAITALL) if length else b""
        if kind == 129:
            passed = array.array("i", b"".join(data for _, _, data in beside))
            for (file, _), descriptor in zip(struct.iter_unpack("<QQ", body), passed, strict=True):
                self.files[file] = descriptor
        if kind >= 254:
            slug_bytes = struct.unpack_from("<H", body, 2)[0]
            raise Refusal(body[12 : 12 + slug_bytes].decode())
        return kind, body

    def ask(self, kind: int, body: bytes) -> bytes:
        """A request's last answer."""
        self.tell(kind, 1, body)
        while True:
            answer, found = self.hear()
            if answer != 129:
                return found

    def lost(self) -> bool:
        """Whether the lease is: the look that belongs after each read."""
        try:
            self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def place(self, uuid: bytes) -> tuple[int, int, int, int, int, int, bytes]:
        """File, offset, length, CRC, start, size, blocks of the first place."""
        body = self.ask(2, uuid)
        status, slug_bytes, blocks, *rest = struct.unpack_from("<HHIQQQIIQQ", body)
        if status:
            raise Refusal(body[56 : 56 + slug_bytes].decode())
        file, offset, length, crc, _, start, size = rest
        return file, offset, length, crc, start, size, body[56 + slug_bytes : 56 + slug_bytes + 4 * blocks]

    def read(self, uuid: bytes) -> bytes:
        file, offset, length, crc, start, size, blocks = self.place(uuid)
        if not length:
            return b""
        data = os.pread(self.files[file], length, offset)
        assert not self.lost()
        assert crc32c(data) == crc
        for number, (expected,) in enumerate(struct.iter_unpack("<I", blocks)):
            assert crc32c(data[number * BLOCK : (number + 1) * BLOCK]) == expected
        return data[start : start + size]
