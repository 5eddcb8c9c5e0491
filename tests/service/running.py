"""A real server on a free port: in a thread of this process, or in a process of its own that can be killed."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import yaml

from tests.support import spec_at
from ullage.contract import AuthMode, ContentRepository, Duration, Metadata, ServiceSettings, TlsMode, dump
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage_agent.service.access import Actors, Anonymous, Authenticator
from ullage_agent.service.audit import AuditLine, AuditLog, lines_of
from ullage_agent.service.budget import ByteBudget
from ullage_agent.service.fairness import FairTurns
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_agent.service.listening import Listening, Terms, TlsFiles
from ullage_agent.service.quota import streams_of
from ullage_agent.service.server import Server
from ullage_agent.service.snapshots import Snapshots

START_SECONDS = 60.0
HERE = ServiceSettings(http_port=0, flight_port=None, metrics_port=None, health_port=None, socket_path="")
LOCAL: dict[str, Any] = {"tls": {"mode": TlsMode.NONE}, "auth": {"mode": AuthMode.NONE}}

UNGUARDED: dict[str, Any] = {"min_used_percentage": 0, "min_reclaim": 0, "deleted_retention": Duration(0)}
"""Of compaction: whatever is dead is worth giving back, at once."""


def document_at(path: Path, **sections: Any) -> ContentRepository:
    """A document for this machine alone, on a free port, with fields of sections replaced."""
    service = {name: getattr(HERE, name) for name in msgspec.structs.asdict(HERE)} | sections.pop("service", {})
    return ContentRepository(metadata=Metadata(name="flows"), spec=spec_at(path, service=service, **sections))


def half_dead(repository: Engine, size: int, count: int) -> list[str]:
    """So many contents put together, of which every second is deleted for good; the ids of the others."""
    handles = repository.handles
    ids = handles.put_many([secrets.token_bytes(size) for _ in range(count)])
    for id in ids[::2]:
        handles.delete(id)
    handles.purge()
    return ids[1::2]


def rest(repository: EmbeddedRepository) -> None:
    """No maintenance by itself from here on: the test says what is done, and when."""
    maintenance = repository._maintenance
    assert maintenance is not None
    maintenance.stop()


def terms_of(
    repository: EmbeddedRepository,
    failures: list[tuple[str, Exception]],
    authenticator: Authenticator | None = None,
    limits: Limits = DEFAULTS,
    socket_path: str = "",
    tls: TlsFiles | None = None,
) -> Terms:
    """Of one transport in the test's own process; what it would log is put with the failures."""
    here = Listening("127.0.0.1", 0, 0, None, None, socket_path, tls=tls, asks_for_metrics=False)

    def fail(what: str, error: Exception) -> None:
        failures.append((what, error))

    turns, known = FairTurns(limits, repository.clock), authenticator or Anonymous()
    actors = Actors(repository, known, limits)
    snapshots = Snapshots(repository, limits, actors)
    budget, streams = ByteBudget(limits), streams_of(limits)
    return Terms(repository, known, limits, here, fail, budget, turns, actors, snapshots, streams)


class Running:
    """A server in a thread. Leaving it stops it gracefully and checks what it leaves, deeply."""

    def __init__(self, document: ContentRepository, limits: Limits = DEFAULTS, node: str = "here") -> None:
        self.document = document
        self._ready = threading.Event()
        self.server = Server(
            lambda: self.document, node=node, limits=limits, makes=True, on_ready=lambda _: self._ready.set()
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server")
        self.client = httpx.Client()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the server did not start"
        if self._failure is not None:
            raise self._failure
        self.url = self.server.urls["http"].rstrip("/")
        self.client = httpx.Client(base_url=self.url, timeout=60.0)
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self.stop()
        with Engine.open(self.document.spec) as repository:
            assert repository.check(deep=True).problems == ()

    @property
    def repository(self) -> Engine:
        return self.server.host.repository.engine

    def stop(self) -> None:
        """Gracefully; waits."""
        if self._thread.is_alive():
            self.server.stop()
            self._thread.join()

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits
            self._failure = error
            self._ready.set()


class Process:
    """`ullage serve` as people run it. Each start of the same object serves the same repository on the same port."""

    def __init__(self, directory: Path, document: ContentRepository) -> None:
        self.config = directory / "repository.yaml"
        self.document = document
        self.write(document)
        self._process: subprocess.Popen[str] | None = None
        self.log: list[str] = []
        self.url = ""

    def write(self, document: ContentRepository) -> None:
        """A new configuration, at once and as a whole."""
        self.document = document
        fresh = self.config.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(dump(document)), encoding="utf-8")
        os.replace(fresh, self.config)

    def start(self) -> str:
        """Start it; the URL. RuntimeError with what it said if it does not come up."""
        command = [sys.executable, "-m", "ullage_agent", "serve", "--init", "--node", "here", "-c", str(self.config)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        stderr = self._process.stderr
        self._reader = threading.Thread(target=lambda: self.log.extend(stderr), daemon=True)
        self._reader.start()
        line = self._process.stdout.readline()
        if not line.startswith("serving on "):
            self._process.wait()
            self._reader.join()
            raise RuntimeError("".join(self.log))
        self.url = line.removeprefix("serving on ").strip().rstrip("/")
        return self.url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        code = self._process.wait(timeout=START_SECONDS)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def kill(self) -> None:
        """As the power does."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self.wait()


@contextlib.contextmanager
def process(directory: Path, **sections: Any) -> Iterator[Process]:
    """A server process that is gone when the block ends."""
    made = Process(directory, document_at(directory / "repository", **LOCAL | sections))
    try:
        yield made
    finally:
        made.kill()


def until(condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS) -> None:
    """Wait for something that another thread or process does."""
    gate = threading.Event()
    for _ in range(int(seconds_max * 50)):
        if condition():
            return
        gate.wait(0.02)
    raise AssertionError(f"waited {seconds_max} s for {what}")


def audited(running: Running, count: int) -> list[AuditLine]:
    """What stands in its audit log once there are so many lines: that of a request may come after the answer to it."""
    log = running.server.audit
    assert isinstance(log, AuditLog)

    def found() -> list[AuditLine]:
        log.settle()
        return list(lines_of(running.document.spec.storage.host_path.path))

    until(lambda: len(found()) >= count, f"{count} lines of the audit log")
    return found()
