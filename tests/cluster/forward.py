"""Listens on this machine's loopback and passes connections on to an address of another network namespace.

`python -m tests.cluster.forward PID PORT ADDRESS ADDRESS_PORT`: a socket belongs to the namespace it was made in, so
the listening one is made first and the process enters the namespace of PID afterwards; of 0, none. Nothing of the
machine's own network is changed.

At SIGUSR1 the connections that there are go silent, neither closed nor answered, as behind a balancer that died; new
ones work.
"""

import asyncio
import ctypes
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 65536


def enter_network_of(pid: int) -> None:
    """Make the sockets that this process makes from now on those of that process's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"entering the network of process {pid}")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # either side may go away at any time; the other then hears of the end
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def forward(listening: socket.socket, address: str, port: int) -> None:
    """Pass on every connection, until the process ends."""
    ends: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # nobody there: the caller finds its connection closed, as without us
            there_reader, there_writer = await asyncio.open_connection(address, port)
            ends.update((writer, there_writer))
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            ends.difference_update((writer, there_writer))
            there_writer.close()
        writer.close()

    def silence() -> None:
        for each in ends:
            cast("asyncio.Transport", each.transport).pause_reading()
        print("silent", len(ends) // 2, flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, silence)

    server = await asyncio.start_server(connected, sock=listening)
    await server.serve_forever()


def main() -> None:
    """Listen, enter, forward."""
    pid, listen_port, address, port = sys.argv[1:]
    listening = socket.create_server(("127.0.0.1", int(listen_port)))
    if int(pid):
        enter_network_of(int(pid))
    print("listening", flush=True)
    asyncio.run(forward(listening, address, int(port)))


if __name__ == "__main__":
    main()
