"""The client's end of a connection: whole frames, and the descriptors that come with them."""

import array
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Final

from ullage.wire import frames
from ullage.wire.frames import BadFrame, FrameKind, Header

ANCILLARY_BYTES: Final = socket.CMSG_SPACE(frames.FILES_MAX * array.array("i").itemsize)


class FrameStream:
    """Sends and receives frames. After an OSError, EOFError or BadFrame only `close` is left."""

    def __init__(self, connection: socket.socket, timeout_seconds: float) -> None:
        self._socket = connection
        # In the kernel, because Python's own timeout would make MSG_DONTWAIT wait.
        limit = struct.pack("ll", int(timeout_seconds), int(timeout_seconds % 1 * 1_000_000))
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def close(self) -> None:
        """The node releases what was held."""
        self._socket.close()

    def stands(self) -> bool:
        """Whether the node is there and has said nothing: one system call, so that every read can afford it.

        `poll`, because a `recv` that would block costs an exception, four times as much.
        """
        return self._socket.fileno() >= 0 and not self._poll.poll(0)

    def send(self, kind: FrameKind, request: int, *parts: bytes, descriptors: Sequence[int] = ()) -> None:
        """One frame, whole; the descriptors go with its first byte."""
        frame = frames.pack_frame(kind, request, *parts)
        if descriptors:
            frame = frame[socket.send_fds(self._socket, [frame], list(descriptors)) :]
        self._socket.sendall(frame)

    def receive(self) -> tuple[Header, bytes, list[tuple[int, int]]]:
        """The next frame, and of a FILES the resource claims with their descriptors, for the caller to close."""
        descriptors = array.array("i")
        try:
            begin, ancillary, flags, _ = self._socket.recvmsg(
                frames.HEADER.size, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
            for level, type, data in ancillary:
                if (level, type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            header = frames.parse_header(begin + self._exactly(frames.HEADER.size - len(begin)))
            body = self._exactly(header.body_bytes)
            files = frames.parse_files(body) if header.kind == FrameKind.FILES else []
            if flags & socket.MSG_CTRUNC or len(files) != len(descriptors):
                raise BadFrame(f"{len(descriptors)} descriptors came for {len(files)} files")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        named = [(resource, descriptor) for (resource, _), descriptor in zip(files, descriptors, strict=True)]
        return header, body, named

    def _exactly(self, count: int) -> bytes:
        data = self._socket.recv(count, socket.MSG_WAITALL) if count else b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError("the node closed the connection")
            data += more
        return data
