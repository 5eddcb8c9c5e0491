"""A node and nginx in processes of their own, so that client and server do not share an interpreter.

`python -m bench.serving DIRECTORY` serves a new repository there until its stdin ends; its first line says where.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.workbench import spec_at
from ullage_agent.client import Node
from ullage_agent.contract import AuthMode, ContentRepository, Metadata, TlsMode
from ullage_agent.service.log import configure
from ullage_agent.service.server import Server

NGINX = """
worker_processes 1; daemon off; pid {place}/pid; error_log {place}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; client_max_body_size 0;
  client_body_temp_path {place}/body; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;
  uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  server {{ listen unix:{place}/nginx.sock; root {place}/files; }}
}}
"""


@contextmanager
def node(directory: Path) -> Iterator[tuple[Node, int]]:
    """A running node, and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.serving", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        urls = json.loads(process.stdout.readline())
        yield Node(url=urls["http"], flight=urls["flight"], socket=urls["socket"]), process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def nginx(place: Path, program: str) -> Iterator[Path]:
    """Nginx serving `place`/files on a Unix socket, whose path this is; nothing is encrypted or logged."""
    (place / "files").mkdir(parents=True)
    place.chmod(0o755)
    (place / "nginx.conf").write_text("user root;\n" + NGINX.format(place=place), encoding="utf-8")
    process = subprocess.Popen([program, "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")])
    try:
        while not _answers(place / "nginx.sock"):
            assert process.poll() is None, (place / "error.log").read_text(encoding="utf-8")
        yield place / "nginx.sock"
    finally:
        process.terminate()
        process.wait()


def nginx_program() -> str | None:
    """Where nginx is, if it is installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def serve(directory: Path) -> None:
    """See the module's text."""
    configure()  # to stderr: stdout is ours
    off = {"tls": {"mode": TlsMode.NONE}, "auth": {"mode": AuthMode.NONE}, "archive": {"enabled": False}}
    listens = {"http_port": 0, "flight_port": 0, "metrics_port": None, "socket_path": str(directory / "u.sock")}
    document = ContentRepository(metadata=Metadata(name="bench"), spec=spec_at(directory, service=listens, **off))

    def ready(urls: dict[str, str]) -> None:
        print(json.dumps(urls), flush=True)
        threading.Thread(target=wait, daemon=True).start()

    def wait() -> None:
        sys.stdin.read()
        server.stop()

    server = Server(lambda: document, node="bench", makes=True, on_ready=ready)
    server.run()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
