"""Frames over one connected socket: whole ones, in bounded time, with descriptors beside them."""

import array
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Final

from ullage.wire.frames import HEADER, FrameKind, Header, pack_frame, pack_header, parse_header

PATIENCE_SECONDS: Final = 0.1
"""Longer than a send takes, unless the client does not receive."""

VECTORED_BYTES: Final = 64 << 10
"""A frame of so many bytes goes out from where its parts lie: to join them first took a tenth of a node's work for a
table. To copy fewer costs less than to name several places.
"""

VECTORED_PARTS: Final = 256
"""The kernel takes 1,024 places at a time (IOV_MAX), and a place costs about what it costs to copy a KiB."""


class Channel:
    """Receives in one thread; any thread may send. After an OSError (TimeoutError is one) it is of no more use."""

    def __init__(self, connection: socket.socket, stall_seconds: float) -> None:
        self._socket = connection
        self.stall_seconds = stall_seconds
        self._send_lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        limit_waits(connection, stall_seconds)

    def receive(self, body_bytes_max: int, *, waits: bool = True) -> tuple[Header, bytes] | None:
        """The next frame; None at the end of the stream. With `waits` it may take its time to begin. EOFError if the
        stream ends inside it, BadFrame if it is none.
        """
        if waits:
            self._poll.poll()
        begin = self._socket.recv(HEADER.size)  # descriptors that may come with it are dropped by the kernel
        return self._rest(begin, body_bytes_max) if begin else None

    def receive_passed(self, body_bytes_max: int) -> tuple[Header, bytes, list[int]] | None:
        """The same with a descriptor that came with it, if one did, for the caller to close."""
        begin, passed, _, _ = socket.recv_fds(self._socket, HEADER.size, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            return (*self._rest(begin, body_bytes_max), passed) if begin else None
        except BaseException:
            for descriptor in passed:
                os.close(descriptor)
            raise

    def send(
        self,
        kind: FrameKind,
        request: int,
        *parts: bytes | memoryview,
        descriptors: Sequence[int] = (),
        patience_seconds: float | None = None,
    ) -> None:
        """One frame, whole; the descriptors go with its first byte. TimeoutError if the client takes longer than the
        channel has, or than is said here.
        """
        size = sum(map(len, parts))
        frame = [pack_header(kind, request, size), *parts]
        if size < VECTORED_BYTES or len(parts) > VECTORED_PARTS:
            frame = [b"".join(frame)]
        with self._send_lock:
            self._send(frame, descriptors, patience_seconds or self.stall_seconds)

    def is_left(self) -> bool:
        """Whether the client has gone, and takes nothing any more."""
        return any(event & select.POLLHUP for _, event in self._poll.poll(0))

    def try_send(self, kind: FrameKind, request: int, *parts: bytes) -> bool:
        """The same unless another thread is sending for longer, or the client does not take it at once."""
        if not self._send_lock.acquire(timeout=PATIENCE_SECONDS):
            return False
        try:
            frame = pack_frame(kind, request, *parts)
            return self._socket.send(frame, socket.MSG_DONTWAIT) == len(frame)
        except OSError:
            return False  # the client learns it by the end of the stream
        finally:
            self._send_lock.release()

    def interrupt(self) -> None:
        """End what the receiving thread waits for. Whatever was sent still arrives."""
        self._shut(socket.SHUT_RD)

    def cut_off(self) -> None:
        """End whatever any thread waits for."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        try:
            self._socket.shutdown(how)
        except OSError:
            return  # it is closed already

    def close(self) -> None:
        """From here on the client sees the end of the stream."""
        with self._send_lock:
            self._socket.close()

    def _rest(self, begin: bytes, body_bytes_max: int) -> tuple[Header, bytes]:
        deadline = time.monotonic() + self.stall_seconds
        header = parse_header(begin + self._exactly(HEADER.size - len(begin), deadline), body_bytes_max)
        return header, self._exactly(header.body_bytes, deadline)

    def _send(self, frame: Sequence[bytes | memoryview], descriptors: Sequence[int], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        left = [memoryview(part) for part in frame]
        while left:
            _require_time(deadline)
            try:
                sent = self._socket.sendmsg(left, beside)
            except BlockingIOError:
                continue  # the kernel waits for no longer than `stall_seconds` at a time
            left, beside = _behind(left, sent), []

    def _exactly(self, count: int, deadline: float) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        got = 0
        while got < count:
            _require_time(deadline)
            received = self._socket.recv_into(view[got:])
            if not received:
                raise EOFError(f"the stream ended {count - got} bytes before the end of a frame")
            got += received
        return bytes(buffer)


def limit_waits(connection: socket.socket, seconds: float) -> None:
    """No call waits longer, in the kernel: Python's own timeout would turn MSG_DONTWAIT into waiting."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _behind(parts: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of them after so many bytes."""
    for number, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[number + 1 :]]
        count -= len(part)
    return []


def _require_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("a frame took too long")
