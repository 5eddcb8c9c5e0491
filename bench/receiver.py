"""`python -m bench.receiver` takes bytes and throws them away until its stdin ends; its first line says where.

It imports nothing of ours: a bench starts one for each comparison, and a service takes more than a second to import.
"""

import json
import os
import socket
import sys
import threading


def receive() -> None:
    """From one connection: u64 of length, the bytes, then one byte back; and again."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    print(json.dumps({"port": str(listener.getsockname()[1])}), flush=True)
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(1 << 20))
    while head := connection.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "little")
        while left:
            left -= connection.recv_into(buffer[: min(left, len(buffer))])
        connection.sendall(b"!")


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    receive()
