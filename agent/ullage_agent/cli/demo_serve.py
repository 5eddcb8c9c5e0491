"""The end of the demo: what it made is served, for a person to look at, or for a moment to see that it works."""

import logging
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import ullage
from ullage.contract import load_yaml
from ullage_agent.cli.output import many, tell

PORT = 8480


def service_sections() -> dict[str, Any]:
    """What of `spec` serves this machine alone, on the usual port, or on any other if somebody has it."""
    with socket.socket() as probe:
        port = PORT if probe.connect_ex(("127.0.0.1", PORT)) else 0
    service = {"httpPort": port, "flightPort": None, "metricsPort": None, "healthPort": None, "socketPath": ""}
    return {"service": service, "tls": {"mode": "None"}, "auth": {"mode": "None"}}


def serve_demo(config: Path) -> None:
    """Serve the demo's repository: until Ctrl-C on a terminal, else until it has answered once."""
    from ullage_agent.service.log import configure
    from ullage_agent.service.server import Server

    configure(level=logging.ERROR)
    is_watched = sys.stdout.isatty() and sys.stdin.isatty()

    def ask(url: str) -> None:
        try:
            with ullage.connect(url) as repository:
                tell(f"   asked it once: it holds {many(repository.state().flow_files, 'FlowFile')}")
        finally:
            server.stop()

    def ready(urls: dict[str, str]) -> None:
        hint = "; Ctrl-C ends" if is_watched else ""
        tell(f"   serving on {urls['http']}, its API described on {urls['http']}docs{hint}")
        if not is_watched:
            threading.Thread(target=ask, args=(urls["http"],), name="ullage-demo-ask").start()

    server = Server(lambda: load_yaml(config.read_text(encoding="utf-8")), node="demo", on_ready=ready)
    server.run()
