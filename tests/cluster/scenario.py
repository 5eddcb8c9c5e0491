"""A day of one node, as the dashboards should tell it: half of its content dropped, a deferral, a run, a failed sync.

The agent is a real one in this process, with the certificate that the operator made for it and the token of its pod;
whoever scrapes it shows a token as well. What happens is done and counted here: the truth that panels are held against.
"""

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import ullage
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, objects, repository, token_of_pod
from tests.cluster.prometheus import Prometheus, scraping
from tests.cluster.release import account
from tests.support import RoomyFiles
from ullage import Retries
from ullage.contract import ContentRepository, audience_of, parse
from ullage.engine.files import File
from ullage.engine.provenance.holds import Hold
from ullage.errors import HandleNotFound, UllageError
from ullage.wire.provenance import EventQuery
from ullage_agent.node.certificate import NodeCertificate
from ullage_agent.node.node import NodeAgent
from ullage_agent.node.objects import NodeObjectClient
from ullage_agent.node.tickets import TicketHolder
from ullage_agent.service import server
from ullage_agent.service.kubernetes import ApiServer
from ullage_agent.service.metering import TimedFiles

NODE = "worker-0"
MIB = 1 << 20
SIZE = MIB // 4
"""Of one content: larger ones would end their file."""

BATCH = 32
"""Contents of one file."""

SCRAPE_SECONDS = 0.2
"""So often that what a rate adds or leaves out at the ends of its stretch is below a hundredth of it."""

REFUSALS = 10


class FailingSyncs(TimedFiles, RoomyFiles):
    """A disk whose syncs of content fail once `is_broken`."""

    is_broken = False

    def create(self, path: str) -> File:
        made = super().create(path)
        sync = made.sync

        def sync_or_fail() -> None:
            if FailingSyncs.is_broken and os.path.basename(path).replace("-", "").isdecimal():
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            sync()

        setattr(made, "sync", sync_or_fail)  # noqa: B010 - mypy would not let a method be replaced
        return made


class Scenario:
    """One agent, its clients, and a Prometheus that scrapes it and the operator."""

    def __init__(self, fleet: Fleet, operator: Operator, place: str, home: Path, size_mib: int) -> None:
        self.fleet, self.operator, self.place = fleet, operator, place
        self.capacity = 4 * size_mib * MIB
        self.batches = size_mib * MIB // (BATCH * SIZE)
        self.kept: list[str] = []
        self.dropped: list[str] = []
        self._home = home
        self._joined: list[NodeAgent] = []
        self._office = TicketHolder()
        self._secure()
        self.server = server.Server(
            self._document,
            node=NODE,
            makes=True,
            on_ready=lambda _: self._ready.set(),
            on_stop=self._leave,
            permission=self._office.permission_of,
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self.server.run, name="agent")

    @property
    def content(self) -> Path:
        return self._home / "r" / "c1"

    @property
    def log_bytes(self) -> int:
        """Of the write-ahead log, as the disk has it: its files are longer than what was written, with zeros behind."""
        return sum(len(path.read_bytes().rstrip(b"\0")) for path in (self._home / "r" / "flowfile").rglob("*.wal"))

    def certificate_ends(self) -> float:
        """The agent's, in seconds since 1970."""
        made = x509.load_pem_x509_certificate((self._home / "tls" / "tls.crt").read_bytes())
        return made.not_valid_after_utc.timestamp()

    def disk_bytes(self) -> int:
        """Blocks of content files, from outside."""
        return sum(path.stat().st_blocks * 512 for path in self._content_files())

    def file_count(self) -> int:
        """How many content files there are."""
        return len(self._content_files())

    def _content_files(self) -> list[Path]:
        return [path for path in self.content.rglob("*-*") if path.is_file()]

    def _secure(self) -> None:
        """What the kubelet would mount: authority and the pod's token; the agent's certificate, which it asks for; and
        tokens of two clients.
        """
        here = ("--namespace", self.place)
        tls = self._home / "tls"
        tls.mkdir(parents=True)
        (tls / "ca.crt").write_text(self.fleet.get("configmap", "flows-ullage-ca", *here)["data"]["ca.crt"])
        self.token = self._home / "token"
        self.token.write_text(token_of_pod(self.fleet, self.place, NODE))
        server = ApiServer(self.fleet.url, str(self.token), str(self.fleet.ca))
        self._api = NodeObjectClient(server, self.place, "flows", NODE)
        self._certificate = NodeCertificate(self._api, NODE, str(tls))
        self._certificate.obtain()
        for name, role in (("flow", "writer"), ("prometheus", "scraper")):
            self.fleet.apply(*account(self.place, name, role))
            audience = f"--audience={audience_of(self.place, 'flows')}"
            made = self.fleet.kubectl("create", "token", name, *here, "--duration=2h", audience).strip()
            (self._home / name).write_text(made)

    def _document(self) -> ContentRepository:
        """As the operator would have it mounted, but for where it lies and listens."""
        container = {"name": "c1", "subPath": "c1", "capacity": self.capacity}
        spec = {
            "storage": {"hostPath": {"path": str(self._home / "r")}, "containers": [container]},
            "service": {
                "address": "127.0.0.1",
                "httpPort": 0,
                "metricsPort": 0,
                "healthPort": None,
                "flightPort": None,
                "socketPath": "",
            },
            "tls": {"directory": str(self._home / "tls")},
            "archive": {"enabled": False},
            "compaction": {"minUsedPercentage": 0, "minReclaim": 0, "deletedRetention": "0s", "bytesPerSecond": 0},
            "flowFile": {"checkpointInterval": "1h"},
            "provenance": {"rolloverTime": "1h"},
        }
        return parse({**repository(self.place), "spec": spec})

    def start(self) -> None:
        """Serve, and be scraped."""
        self._thread.start()
        assert self._ready.wait(60), "the agent does not serve"
        authority = str(self._home / "tls" / "ca.crt")
        self.repository = ullage.connect(
            self.server.urls["http"].replace("127.0.0.1", "localhost"),
            token=(self._home / "flow").read_text(),
            ca_file=authority,
            retries=Retries(attempts=1),
        )
        config = scraping(
            [self.server.urls["metrics"].split("/")[2]],
            f"127.0.0.1:{self.operator.metrics_port}",
            tls={"ca_file": authority, "server_name": "localhost"},
            token=str(self._home / "prometheus"),
            every=f"{int(SCRAPE_SECONDS * 1000)}ms",
            alerts=str(Path(__file__).parents[2] / "charts/ullage/files/alerts.yaml"),
        )
        self.prometheus = Prometheus(self.fleet, self._home / "prometheus-data", config)
        self.until("both are scraped", lambda: len(self.prometheus.query("up == 1")) == 2)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        self.operator.until(what, holds)

    def end(self) -> None:
        """Those first who keep connections open: the agent would wait for them."""
        if hasattr(self, "repository"):
            self.repository.close()
        if hasattr(self, "prometheus"):
            self.prometheus.end()
        if self._thread.is_alive():
            self.server.stop()
            self._thread.join()

    def _leave(self) -> None:
        for joined in self._joined:
            joined.stop()

    def fill(self) -> None:
        """So many files of contents, of which every second goes at once."""
        for _ in range(self.batches):
            contents = [secrets.token_bytes(SIZE) for _ in range(BATCH)]
            ids = self.repository.handles.put_many(contents)
            self.kept += ids[::2]
            self.dropped += ids[1::2]
        for id in self.dropped:
            self.repository.handles.delete(id)
        engine = self.server.host.repository.engine
        engine.handles.purge()
        now = engine.clock.now_millis()
        engine.provenance.holds.set("\0audit", Hold(0, now + 3_600_000), now)
        (self.first_event,) = engine.history.query(EventQuery(limit=1)).events

    def join(self) -> None:
        """The agent begins to report, and to want what there is to do."""
        generation = self.fleet.get("contentrepository", "flows", "--namespace", self.place)["metadata"]["generation"]
        heed = self._certificate.heed
        joined = NodeAgent(self.server.host, self._api, self._office, lambda: generation, heed)
        self._joined.append(joined)
        joined.start()

    def refuse(self) -> None:
        """Requests for what is not there."""
        for _ in range(REFUSALS):
            with pytest.raises(HandleNotFound):
                self.repository.handles.head("0" * 32)

    def break_disk(self) -> None:
        """The next content's sync fails, and with it the request."""
        FailingSyncs.is_broken = True
        with pytest.raises(UllageError):
            self.repository.handles.put(b"x" * SIZE)

    def report(self) -> dict[str, Any]:
        """What the agent said of its last ticket."""
        found: dict[str, Any] = (objects(self.fleet, self.place)[NODE].get("status") or {}).get("ticket") or {}
        return found

    def conditions(self) -> dict[str, bool]:
        """Of the repository, by type: whether each is True."""
        found = self.fleet.get("contentrepository", "flows", "--namespace", self.place)
        return {each["type"]: each["status"] == "True" for each in found["status"]["conditions"]}

    def scraped(self) -> float:
        """A moment of which everything that has happened so far was scraped."""
        asked = time.time()

        def is_seen() -> bool:
            # Times the 0 of a scrape that took too long on a busy machine: its series are gone until the next one.
            times = self.prometheus.query("min(timestamp(up) * up)")
            return bool(times) and times[0].value > asked + SCRAPE_SECONDS

        self.until("it was scraped", is_seen)
        return time.time()

    def quiet(self) -> "Quiet":
        """Waits until the operator rests and all that it did was scraped."""
        found: list[Quiet] = []

        def is_quiet() -> bool:
            reconciles, since = self.operator.counted("reconciles"), time.time()
            found.append(Quiet(since, self.scraped(), reconciles))
            return reconciles == self.operator.counted("reconciles")

        self.until("the operator is quiet", is_quiet)
        return found[-1]


@dataclass(frozen=True)
class Quiet:
    """A stretch in which the operator reconciled nothing: Unix seconds, and its reconciliations by outcome."""

    since: float
    scraped: float
    """At least one scrape lies between both: a rate from `since` on begins with what is true here."""

    reconciles: dict[str, float]


@contextlib.contextmanager
def playing(
    fleet: Fleet, operator: Operator, place: str, home: Path, size_mib: int, patch: pytest.MonkeyPatch
) -> Iterator[Scenario]:
    """The repository exists, the agent serves, nothing has happened yet."""
    operator.runs(place, {"maintenance": {"maxConcurrentNodes": "100%"}})
    token = home / "token"
    of_this_pod = classmethod(lambda cls, _environment: cls(fleet.url, str(token), str(fleet.ca)))
    patch.setattr(ApiServer, "of_this_pod", of_this_pod)  # the kubelet's folder is not here
    patch.setattr(server, "TimedFiles", FailingSyncs)
    patch.setattr(FailingSyncs, "is_broken", False)
    made = Scenario(fleet, operator, place, home, size_mib)
    try:
        made.start()
        yield made
    finally:
        made.end()


def panels() -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """Every panel of the dashboards: its expression, and the labels that its legend names. What is shown of a NiFi is
    no node's or operator's: tests/nifi asks for it.
    """
    found = {}
    for path in sorted((Path(__file__).parents[2] / "charts/ullage/files/dashboards").glob("*.json")):
        if path.stem == "nifi":
            continue
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            [target] = panel["targets"]
            legend = tuple(part.split("}}")[0] for part in target["legendFormat"].split("{{")[1:])
            found[path.stem, panel["title"]] = (target["expr"], legend)
    return found
