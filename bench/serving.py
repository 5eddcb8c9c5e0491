"""A node, nginx and a bare receiver in processes of their own, so that client and server do not share an interpreter.

`python -m bench.serving DIRECTORY SECTIONS LIMITS` serves a new repository there, with fields of its spec's
sections replaced by those of a JSON object, within limits, until its stdin ends. The first line says where.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.workbench import spec_at
from ullage.client.node import Node
from ullage.contract import AuthMode, ContentRepository, Metadata, TlsMode
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_agent.service.log import configure
from ullage_agent.service.server import Server

NGINX = """
worker_processes 1; daemon off; pid {place}/pid; error_log {place}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; client_max_body_size 0;
  client_body_temp_path {place}/body; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;
  uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  server {{ listen 127.0.0.1:{port}; root {place}/files; }}
}}
"""


@contextmanager
def node(
    directory: Path, limits: Limits = DEFAULTS, /, **sections: dict[str, int | bool | str]
) -> Iterator[tuple[Node, int]]:
    """A running node, and its process id; `sections` replace fields of its spec."""
    said = msgspec.json.encode(limits).decode()
    with _process("bench.serving", str(directory), json.dumps(sections), said) as (urls, pid):
        yield Node(url=urls["http"], flight=urls["flight"], socket=urls["socket"]), pid


@contextmanager
def receiver() -> Iterator[socket.socket]:
    """A connection to a process that receives: `send_whole` gives it something."""
    with (
        _process("bench.receiver") as (address, _),
        socket.create_connection(("127.0.0.1", int(address["port"]))) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def send_whole(sock: socket.socket, pieces: Iterable[bytes], size: int) -> None:
    """All of it, until the receiver says that it has come."""
    sock.sendall(size.to_bytes(8, "little"))
    for piece in pieces:
        sock.sendall(piece)
    sock.recv(1)


@contextmanager
def nginx(place: Path, program: str) -> Iterator[tuple[str, int]]:
    """Nginx serving `place`/files on loopback, where this says; nothing is encrypted or logged."""
    (place / "files").mkdir(parents=True)
    place.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    (place / "nginx.conf").write_text("user root;\n" + NGINX.format(place=place, port=address[1]), encoding="utf-8")
    process = subprocess.Popen([program, "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")])
    try:
        while not _answers(address):
            assert process.poll() is None, (place / "error.log").read_text(encoding="utf-8")
        yield address
    finally:
        process.terminate()
        process.wait()


def nginx_program() -> str | None:
    """Where nginx is, if it is installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[tuple[dict[str, str], int]]:
    """One of ours: what it said of itself, and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def serve(directory: Path, sections: dict[str, dict[str, int | bool | str]], limits: Limits) -> None:
    """See the module's text."""
    configure()  # to stderr: stdout is ours
    off = {"tls": {"mode": TlsMode.NONE}, "auth": {"mode": AuthMode.NONE}, "archive": {"enabled": False}}
    listens = {
        "http_port": 0,
        "flight_port": 0,
        "metrics_port": None,
        "health_port": None,
        "socket_path": str(directory / "u.sock"),
    }
    spec = spec_at(directory)
    typed = {
        section: {name: type(getattr(getattr(spec, section), name))(value) for name, value in fields.items()}
        for section, fields in sections.items()
    }
    spec = spec_at(directory, service=listens, **{**off, **typed})
    document = ContentRepository(metadata=Metadata(name="bench"), spec=spec)

    def ready(urls: dict[str, str]) -> None:
        print(json.dumps(urls), flush=True)
        threading.Thread(target=wait, daemon=True).start()

    def wait() -> None:
        sys.stdin.read()
        server.stop()

    server = Server(lambda: document, node="bench", limits=limits, makes=True, on_ready=ready)
    server.run()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Limits))
