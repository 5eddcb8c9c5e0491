"""A node that is stopped, killed, replaced or slow in each phase of a read, a write and a stream: nobody waits without
end, nothing is lost, nothing comes twice.

Two real agents, of which one is struck, and the driver's and the tasks' own code, in this process: a job is repeated as
Spark repeats it. The seed chooses some cases; `make spark-full MINUTES=` goes through all of them, as far as time goes.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import ullage.client.flight as flight_client
import ullage_spark
from pyspark_ullage import DefaultSource
from tests.service.running import Process, process
from tests.service.test_kill import free_port
from tests.spark.fleet import fleet_at
from tests.spark.test_missing import CONTENT
from ullage.client.flight import FlightClient
from ullage.errors import NotReachable, UllageError
from ullage.wire.tickets import RENEW, SnapshotRenewal
from ullage_spark import fleet as asking, snapshot
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions
from ullage_spark.writer import ContentBatchWriter

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".proof" / "spark.kept"
MINUTES = float(os.environ.get("ULLAGE_SPARK_MINUTES", "0"))
SAMPLE = 5
"""Cases of a run of CI: half a minute."""

SECONDS_MAX = 60.0
"""Of one try of a job: several calls, each of which may find out anew that nobody answers."""

TRIES = 4
"""Of a task, as Spark has it, and of a job."""

CHANCES: Final = 5
"""Of a case to come: for each scan a node is drawn, and in one life of eight it never is the one that is struck."""

MOMENT_SECONDS: Final = 1.0
OWN: Final = (UllageError, SparkSourceError)
"""What may fail a job: nothing else, and nothing that only looks like a result."""

PHASES: Final = {
    "read": ("about", "snapshot", "scan", "bind", "first batch", "middle", "renew", "release"),
    "write": ("about", "write-begin", "stage", "middle", "write-prepare", "write-commit"),
    "queue": ("about", "feed-take", "first batch", "middle", "feed-done", "beat"),
    "events": ("about", "first batch", "middle", "hold-events"),
}
"""Of each use the calls that it makes of a node, by the names of their actions, and stretches of its streams."""

FAULTS: Final = ("stopped for a moment", "stopped", "killed", "killed, its answer lost", "replaced", "slow")


class Case(NamedTuple):
    """One fault in one phase."""

    use: str
    phase: str
    fault: str

    @property
    def name(self) -> str:
        return ": ".join(self)


CASES: Final = [Case(use, phase, fault) for use in PHASES for phase, fault in product(PHASES[use], FAULTS)]


class Struck:
    """The node that things happen to, once, when a phase comes."""

    def __init__(self, agent: Process, url: str, case: Case) -> None:
        self._agent, self.url, self._case = agent, url, case
        self._threads: list[threading.Thread] = []
        self._healed = threading.Event()
        self.is_struck = False
        self.is_replaced = False

    def at(self, phase: str) -> bool:
        """Strike if it is time to; whether it was, and what was asked for is lost."""
        if self.is_struck or phase != self._case.phase:
            return False
        self.is_struck = True
        fault = self._case.fault
        if fault == "stopped for a moment":
            self._agent.signal(signal.SIGSTOP)
            self._later(lambda: self._healed.wait(MOMENT_SECONDS), lambda: self._agent.signal(signal.SIGCONT))
        elif fault == "stopped":
            self._agent.signal(signal.SIGSTOP)
        elif fault == "slow":
            self._later(self._limp)
        else:
            self._agent.kill()
            if fault == "replaced":
                self.is_replaced = True
                shutil.rmtree(self._agent.config.parent / "repository")
            self._later(self._agent.start)
        return fault == "killed, its answer lost"

    @property
    def strikes_after(self) -> bool:
        """Whether the call is carried out before."""
        return self._case.fault == "killed, its answer lost"

    def heal(self) -> None:
        """It answers again."""
        self._healed.set()
        for thread in self._threads:
            thread.join()
        self._agent.signal(signal.SIGCONT)

    def _later(self, *steps: Callable[[], object]) -> None:
        def run() -> None:
            for step in steps:
                step()

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def _limp(self) -> None:
        """It runs a tenth of the time."""
        while not self._healed.wait(0.02):
            self._agent.signal(signal.SIGSTOP)
            self._healed.wait(0.2)
            self._agent.signal(signal.SIGCONT)

    def acting(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Each action goes by it."""

        def acted(client: FlightClient, action: Any, request: Any, **more: Any) -> Any:
            if client.url == self.url and not self.strikes_after:
                self.at(action.name)
            found = act(client, action, request, **more)
            if client.url == self.url and self.strikes_after and self.at(action.name):
                raise NotReachable("the answer is lost")
            return found

        return acted

    def reading(self, table: Callable[..., Any]) -> Callable[..., Any]:
        """Each stream of a table does, before its first batch and between two."""

        def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
            for batch in reader:
                for at in range(0, batch.num_rows, 1 + batch.num_rows // 2):
                    yield batch.slice(at, 1 + batch.num_rows // 2)
                    self.at("middle")

        def read(client: FlightClient, wanted: Any) -> Any:
            if client.url != self.url:
                return table(client, wanted)
            self.at("first batch")
            reader = table(client, wanted)
            return pa.RecordBatchReader.from_batches(reader.schema, batches(reader))

        return read

    def staging(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        """And each stream of what is written."""

        def sent(client: FlightClient, given: Any) -> Iterator[pa.RecordBatch]:
            for batch in given:
                yield batch
                if client.url == self.url:
                    self.at("middle")

        def staged(client: FlightClient, write: str, attempt: str, given: Any, *more: Any) -> Any:
            if client.url == self.url:
                self.at("stage")
            return stage(client, write, attempt, sent(client, given), *more)

        return staged

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Every call of the node goes by it."""
        for name, wrap in (("act", self.acting), ("table", self.reading), ("stage", self.staging)):
            patch.setattr(FlightClient, name, wrap(getattr(FlightClient, name)))


def task(work: Callable[[], Any]) -> Any:
    """As Spark runs it: again if it fails, and the job fails if it fails too often."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(*OWN):  # the last try raises it
            return work()
    return work()


def rows_of(reader: Any, parts: Any) -> list[dict[str, Any]]:
    """Of all tasks."""
    found: list[dict[str, Any]] = []
    for part in parts:
        found += task(partial(_rows, reader, part))
    return found


def _rows(reader: Any, part: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def read_table(options: dict[str, str]) -> list[dict[str, Any]]:
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    return rows_of(reader, reader.partitions())


def contents_of(endpoint: str, queue: str) -> list[bytes]:
    """What stands in a queue of both nodes."""
    rows = read_table({"endpoint": endpoint, "table": "content", "payload": "true"})
    return sorted(row["content"] for row in rows if row["queue"] == queue)


class Life:
    """One use of the two nodes, which is tried until it succeeds. `run` is one try; `judge` says what must hold at the
    end, and may be told that one node has lost everything that it had.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.at: Callable[[str], object] = lambda _: None
        """Told of a phase that no call of its own shows."""

    def run(self) -> None:
        raise NotImplementedError

    def judge(self, *, is_replaced: bool, last: Exception | None) -> None:
        raise NotImplementedError


class Reading(Life):
    """A job over a snapshot: all rows of all nodes at one moment, or an error."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.before = self._uuids({"endpoint": endpoint})
        self.found: list[list[str]] = []

    def run(self) -> None:
        nobody: Any = None
        options: dict[str, Any] = {"endpoint": self.endpoint, "pushdown": "false"}
        with snapshot(nobody, ttl_seconds=60, **options) as moment:
            # Which node keeps a scan's list is drawn anew for each.
            rows = [self._uuids({**options, "snapshot": moment.id, "parts": "2"}) for _ in range(3)]
            self.heart(moment)
        self.found += rows

    def heart(self, moment: Any) -> None:
        """One of its beats, which come by themselves every quarter of a minute."""
        settings = SourceOptions.of({"endpoint": self.endpoint})
        for node in moment.nodes:
            renewal = SnapshotRenewal(id=json.loads(moment.id)[node.name]["id"], ttl_millis=60_000)
            with contextlib.suppress(UllageError):  # as the driver's own beats: the next one may arrive
                asking.flight_of(settings, node).act(RENEW, renewal, timeout_seconds=10)

    def judge(self, *, is_replaced: bool, last: Exception | None) -> None:
        assert last is None
        allowed = [self.before]
        if is_replaced:
            allowed.append(self._uuids({"endpoint": self.endpoint}))
        assert all(rows in allowed for rows in self.found)

    def _uuids(self, options: dict[str, str]) -> list[str]:
        return sorted(row["uuid"] for row in read_table({**options, "columns": "uuid"}))


class Writing(Life):
    """A write with a name, on both nodes; repeated under its name it is there once."""

    CONTENTS: Final = [bytes([number]) * 50_000 for number in range(24)]

    def run(self) -> None:
        options = {"endpoint": self.endpoint, "queue": "out", "write": "w", "stageBytes": "100000"}
        writer = ContentBatchWriter(options, CONTENT, overwrite=False)
        messages: list[Any] = []
        try:
            messages += (self._task(writer, number) for number in (0, 1))
            writer.commit(messages)
        except OWN:
            with contextlib.suppress(*OWN):  # Spark tells of it, and raises what failed first
                writer.abort(messages)
            raise

    def _task(self, writer: ContentBatchWriter, number: int) -> Any:
        rows = [pa.record_batch({"content": [each]}) for each in self.CONTENTS[number::2]]
        retries = iter(range(TRIES))

        def attempt() -> Any:
            node = writer._node_for(number, next(retries))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ContentBatchWriter, "_node_for", lambda *_: node)
                return writer.write(iter(rows))

        return task(attempt)

    def judge(self, *, is_replaced: bool, last: Exception | None) -> None:
        there = contents_of(self.endpoint, "out")
        if not is_replaced:
            assert last is None
            assert there == self.CONTENTS
        else:
            # What a lost disk had is gone; nothing else is, and who repeats the write is not told that all is there.
            assert len(set(there)) == len(there)
            assert last is not None or len(there) in (len(self.CONTENTS), len(self.CONTENTS) // 2)


class Following(Life):
    """A stream, as Spark leads it: a batch is planned, written down, carried out, written down."""

    OPTIONS: ClassVar[dict[str, str]] = {}

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.expected = self.keys_of(read_table({"endpoint": endpoint, **self.TABLE}))
        stream = self._stream()
        self.planned: list[dict[str, Any]] = [stream.initialOffset()]
        self.batches: dict[int, list[Any]] = {}
        stream.stop()

    TABLE: ClassVar[dict[str, str]] = {}

    def keys_of(self, rows: list[dict[str, Any]]) -> list[Any]:
        """What tells rows apart."""
        raise NotImplementedError

    def _stream(self) -> Any:
        source = DefaultSource({"endpoint": self.endpoint, **self.OPTIONS})
        return source.streamReader(source.schema())

    def run(self) -> None:
        stream = self._stream()
        try:
            for _ in range(3):
                number = len(self.batches)
                if len(self.planned) == number + 1:
                    end = stream.latestOffset(self.planned[-1], ReadAllAvailable())
                    if end == self.planned[-1]:
                        break
                    self.planned.append(json.loads(json.dumps(end)))
                start, end = self.planned[number : number + 2]
                rows = rows_of(stream, stream.partitions(start, end))
                self.at("beat")
                stream._beat()
                self.batches[number] = self.keys_of(rows)
                stream.commit(end)
        finally:
            stream.stop()

    def judge(self, *, is_replaced: bool, last: Exception | None) -> None:
        seen = sorted(key for rows in self.batches.values() for key in rows)
        assert len(set(seen)) == len(seen)
        if not is_replaced:
            assert last is None
            assert [key for key in seen if key in set(self.expected)] == self.expected
        else:
            lost = set(self.expected) - set(seen)
            assert not lost or last is not None, "what is lost is told"


class FollowingQueue(Following):
    """FlowFiles of a queue."""

    OPTIONS: ClassVar = {"queue": "in", "application": "test"}
    TABLE: ClassVar = {"where": "queue = 'in'"}

    def keys_of(self, rows: list[dict[str, Any]]) -> list[Any]:
        return sorted(row["uuid"] for row in rows)


class FollowingEvents(Following):
    """Events of all nodes."""

    OPTIONS: ClassVar = {"table": "provenance"}
    TABLE: ClassVar = {"table": "provenance"}

    def keys_of(self, rows: list[dict[str, Any]]) -> list[Any]:
        return sorted((row["node"], row["uuid"], row["sequence"]) for row in rows)


LIVES: Final = {"read": Reading, "write": Writing, "queue": FollowingQueue, "events": FollowingEvents}


def judged(case: Case, place: Path, patch: pytest.MonkeyPatch) -> bool:
    """Whether it was struck at all; AssertionError if something is lost, or there twice, or waited for too long."""
    place.mkdir()
    port = free_port()
    with fleet_at(place, "a") as fleet, process(place, service={"flight_port": port}) as agent:
        agent.start()
        url = f"grpc://127.0.0.1:{port}"
        with FlightClient(url) as client:
            for queue in ("in", "other"):
                fill(client, queue)
        with fleet.repository("a").session() as session:
            session.ingest("in", [b"a"] * 5)
            session.commit()
        life = LIVES[case.use](f"{fleet.endpoint},{url}")
        struck = Struck(agent, url, case)
        life.at = struck.at
        last: Exception | None = None
        with patch.context() as patched:
            struck.watch(patched)
            for _ in range(TRIES):
                began = time.monotonic()
                try:
                    life.run()
                except OWN as error:
                    last = error
                else:
                    last = None
                took = time.monotonic() - began
                assert took < SECONDS_MAX, f"{case.name}: it took {took:.0f} s"
                struck.heal()
                if last is None:
                    break
        life.judge(is_replaced=struck.is_replaced, last=last)
        return struck.is_struck


def fill(client: FlightClient, queue: str) -> None:
    """Some FlowFiles of a queue, through the door that Spark uses."""
    writer = ContentBatchWriter({"endpoint": client.url, "queue": queue}, CONTENT, overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch({"content": [b"here"] * 5})]))])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nodes count as missing sooner; no sooner than agents allow pings."""
    monkeypatch.setattr(asking, "MISSING_SECONDS", 3.0)
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 2.0)
    times = {"grpc.keepalive_time_ms": 5_500, "grpc.keepalive_timeout_ms": 2_000, "grpc.http2.ping_timeout_ms": 2_000}
    monkeypatch.setattr(flight_client, "KEEPALIVE", [(n, times.get(n, value)) for n, value in flight_client.KEEPALIVE])
    return monkeypatch


@pytest.mark.timeout(14_400 if MINUTES else 600)
def test_no_fault_of_a_node_loses_or_repeats_anything(impatient: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> None:
    """One case of each use, which the seed chooses, and some more; or all, as far as time goes."""
    chance = random.Random(seed)
    cases = CASES[:]
    chance.shuffle(cases)
    print(f"seed {seed}: {len(cases)} cases")
    if MINUTES:
        judge_all(cases, impatient, tmp_path)
        return
    # One that is stopped for good is waited for by each call in turn: those are left to the full run.
    quick = [case for case in cases if case.fault != "stopped"]
    chosen = [next(case for case in quick if case.use == use) for use in LIVES]
    chosen += [case for case in quick if case not in chosen][: SAMPLE - len(chosen)]
    for number, case in enumerate(chosen):
        print(case.name)
        judged(case, tmp_path / str(number), impatient)


def judge_all(cases: list[Case], patch: pytest.MonkeyPatch, place: Path) -> None:
    """Those that were not judged at this version before; says what share it covered."""
    version = hashlib.sha256()
    for path in sorted(Path(ullage_spark.__file__).parent.rglob("*.py")):
        version.update(path.read_bytes())
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found: dict[str, bool] = kept.get("judged", {}) if kept.get("version") == version.hexdigest() else {}
    end = time.monotonic() + MINUTES * 60
    for number, case in enumerate(cases):
        if found.get(case.name):
            continue
        if time.monotonic() > end:
            break
        print(case.name, flush=True)
        for _ in range(CHANCES):
            found[case.name] = judged(case, place / str(number), patch)
            shutil.rmtree(place / str(number))  # a quarter of a GiB each, reserves above all: together they fill a disk
            if found[case.name]:
                break
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps({"version": version.hexdigest(), "judged": found}, indent=1))
    missed = [name for name, is_struck in found.items() if not is_struck]
    print(f"{100 * len(found) // len(cases)} % of {len(cases)} cases")
    assert missed == [], "their phase never came"
