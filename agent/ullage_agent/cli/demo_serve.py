"""The end of the demo: what it made is served, for a person to look at, or for a moment to see that it works."""

import json
import logging
import socket
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ullage.contract import AuthMode, AuthSettings, ContentRepository, ServiceSettings, TlsMode, TlsSettings, load_yaml
from ullage_agent.cli.output import many, say, tell

PORT = 8480
ANSWER_SECONDS = 60


def serve_demo(config: Path) -> int:
    """Serve the demo's repository on loopback: until Ctrl-C on a terminal, else until it has answered once. Returns how
    many FlowFiles it said it holds; 0 on a terminal, where nobody asked.
    """
    from ullage_agent.service.log import configure
    from ullage_agent.service.server import Server

    configure(level=logging.ERROR)
    document = _for_this_machine(load_yaml(config.read_text(encoding="utf-8")))
    is_watched = sys.stdout.isatty() and sys.stdin.isatty()
    found: list[int] = []

    def ask(url: str) -> None:
        try:
            with urllib.request.urlopen(f"{url}v1/state", timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - our own
                state: dict[str, Any] = json.load(answer)
            found.append(int(state["flow_files"]))
        except (OSError, ValueError) as error:
            say(f"the server did not answer: {error}")
        finally:
            server.stop()

    def ready(urls: dict[str, str]) -> None:
        tell(f"   serving on {urls['http']}, its API described on {urls['http']}docs" + _hint(is_watched))
        if not is_watched:
            threading.Thread(target=ask, args=(urls["http"],), name="ullage-demo-ask").start()

    server = Server(lambda: document, node="demo", on_ready=ready)
    server.run()
    if found:
        tell(f"   asked it once: it holds {many(found[0], 'FlowFile')}")
    return found[0] if found else 0


def _hint(is_watched: bool) -> str:
    return "; Ctrl-C ends" if is_watched else ""


def _for_this_machine(document: ContentRepository) -> ContentRepository:
    service = ServiceSettings(http_port=_port(), flight_port=None, metrics_port=None, socket_path="")
    spec = msgspec.structs.replace(
        document.spec, service=service, tls=TlsSettings(mode=TlsMode.NONE), auth=AuthSettings(mode=AuthMode.NONE)
    )
    return msgspec.structs.replace(document, spec=spec)


def _port() -> int:
    """The usual one, or any other if somebody has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT
