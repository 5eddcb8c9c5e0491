"""Every feature at once, killed at any moment, judged from outside: `make stress-full MINUTES=40`.

As RocksDB's db_stress: settings drawn at random, several threads, a kill every second or so, half of them with the
power cut. A failing seed is printed and replays.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.faults import volumes
from tests.faults.detached import Detached
from tests.kill.oracle import ROOT, Oracle, Seen, observe
from tests.kill.protocol import MORTAL, Line
from tests.proof.figures import note
from tests.service.running import LOCAL, Process, document_at
from tests.stress.client import ClientTask
from tests.stress.settings import spec_drawn
from tests.support import abandon, containers, drain, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.content import reserve
from ullage.engine.engine import Engine

MINUTES = float(os.environ.get("ULLAGE_STRESS_MINUTES", "0"))
KILLS = 5
"""Of a bounded sample."""

CLIENTS = 3
"""Processes that use one service; every second one over its socket too."""

VOLUME_BYTES = 1024 * volumes.MIB


@pytest.fixture(autouse=True)
def _small_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the worker."""
    monkeypatch.setattr(reserve, "LOG_RESERVE_BYTES", 256 << 10)
    monkeypatch.setattr(reserve, "CONTENT_RESERVE_BYTES", 256 << 10)


@pytest.fixture(params=[name for name in volumes.filesystems() if name in volumes.CAN_SHUT_DOWN])
def cuttable(request: pytest.FixtureRequest) -> Iterator[volumes.Volume]:
    """Each filesystem whose power can be cut."""
    with volumes.volume(request.param, VOLUME_BYTES) as made:
        yield made


class StressOracle(Oracle):
    """Also counts the disk, backs up and restores."""

    worker = "tests.stress.worker"

    def __init__(self, path: Path, seed: int, cut_power: volumes.Volume | None = None) -> None:
        self._volume = cut_power
        self.restored = self.opened_without = 0
        self._volumes = [Detached(path, container.name) for container in spec_drawn(path, seed).storage.containers]
        super().__init__(path, seed, self._after_kill)

    def spec_of(self, seed: int) -> ContentRepositorySpec:
        return spec_drawn(self.path, seed)

    def _after_kill(self) -> None:
        if self._volume is not None and self.random.random() < 0.5:
            self._volume.cut_power()
        for volume in self._volumes:
            if volume.is_away:
                if self.random.random() < 0.5:
                    self._open_without()
                volume.bring_back(covers=True)

    def _open_without(self) -> None:
        """A start without a volume serves the rest."""
        repository = Engine.open(self.spec_of(self.random.getrandbits(32)))
        try:
            with repository.session() as session:
                session.ingest("elsewhere", [b"on a volume that is there"])
                session.commit()
            assert drain(repository, "elsewhere") == [b"on a volume that is there"]
            repository.checkpoint()
            repository.reclamation.clean()
        finally:
            abandon(repository)
        self.opened_without += 1

    def look(self, repository: Engine) -> None:
        """Every allocated byte is accounted for, and the last backup is whole."""
        shares = repository.account.explain(repository.spec)
        assert sum(share.bytes for share in shares) == allocated(self.path)
        if self.random.random() < 0.2:
            self._restore(repository)

    def told(self) -> str:
        return f", {self.restored} backups restored, {self.opened_without} starts without a volume"

    def _restore(self, repository: Engine) -> None:
        """A backup, over what killed workers left of theirs, restored: it has the same contents."""
        backup, target = Path(f"{self.path}.backup"), Path(f"{self.path}.restored")
        repository.backup(str(backup))
        shutil.rmtree(target, ignore_errors=True)  # a power cut brings back what was removed before it
        spec = spec_at(target, storage=containers(c1=None, c2=None))
        try:
            Engine.restore_backup(str(backup), spec)
            with Engine.open(spec) as restored:
                assert restored.check(deep=True).problems == ()
                assert _lasting(observe(restored)) == _lasting(observe(repository))
        finally:
            shutil.rmtree(target, ignore_errors=True)
        self.restored += 1


class ServiceOracle(Oracle):
    """Kills the service that several processes use, over HTTP and over its socket."""

    def __init__(self, directory: Path, seed: int) -> None:
        path = directory / "repository"
        document = document_at(path, **LOCAL, service={"socket_path": str(directory / "socket")})
        here = {name: getattr(document.spec, name) for name in ("service", "tls", "auth")}
        spec = msgspec.structs.replace(spec_drawn(path, seed), **here)
        document = msgspec.structs.replace(document, spec=spec)
        self._process = Process(directory, document)
        super().__init__(path, seed)

    def spec_of(self, seed: int) -> ContentRepositorySpec:
        return self._process.document.spec

    def _run_worker(self, seed: int) -> list[Line]:
        url, socket = self._process.start(), str(self._process.document.spec.service.socket_path)
        tasks = [ClientTask(url, socket if number % 2 else "", seed, number) for number in range(CLIENTS)]
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.stress.client", msgspec.json.encode(task).decode()],
                bufsize=0,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for task in tasks
        ]
        try:
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()  # it is ready
            threading.Event().wait(self.random.uniform(0, 1.5))
            early = [client.args for client in clients if client.poll() is not None]
        finally:
            self._process.kill()
            said = [client.communicate() for client in clients]  # each ends once no answer comes
        lines = [msgspec.json.decode(line, type=Line) for out, _ in said for line in out.splitlines()]
        assert [error.decode() for _, error in said if error] == []
        assert not early, [line.text for line in lines if line.kind == "gone"]
        return lines


def _lasting(seen: dict[str, Seen]) -> dict[str, Seen]:
    return {id: found for id, found in seen.items() if found.state.place != MORTAL}


def allocated(path: Path) -> int:
    """Bytes that the filesystem has allocated for a directory and all below it."""
    below = [Path(top) / name for top, directories, files in os.walk(path) for name in (*directories, *files)]
    return sum(one.lstat().st_blocks * 512 for one in (path, *below))


def stress(oracle: Oracle, seed: int, minutes: float) -> None:
    """Kill it so long, or KILLS times."""
    end = time.monotonic() + minutes * 60
    kills = 0
    while kills < KILLS or time.monotonic() < end:
        try:
            oracle.kill_once()
        except BaseException:
            print(f"kill {kills + 1} of seed {seed} failed: ULLAGE_SEED={seed} ULLAGE_STRESS_MINUTES={minutes}")
            raise
        kills += 1
    note(stress_kills=kills, acknowledged=oracle.acknowledged, in_flight=oracle.in_flight)
    print(
        f"seed {seed}: {kills} kills survived, {oracle.acknowledged} transactions acknowledged, {oracle.in_flight} in "
        f"flight when killed{oracle.told()}"
    )


@pytest.mark.timeout(14_400 if MINUTES else 300)
def test_every_feature_at_once_survives_kills(tmp_path: Path, seed: int) -> None:
    """Acknowledged is there, removed stays away, the disk is accounted for, backups are whole, kill after kill."""
    stress(StressOracle(tmp_path / "repository", seed), seed, MINUTES / 4)


@pytest.mark.timeout(14_400 if MINUTES else 300)
def test_a_service_that_several_processes_use_survives_kills(tmp_path: Path, seed: int) -> None:
    """What each of them was told stands, whatever was under way when the service was killed."""
    stress(ServiceOracle(tmp_path, seed), seed, MINUTES / 4)


@pytest.mark.timeout(14_400 if MINUTES else 300)
def test_every_feature_at_once_survives_power_cuts(cuttable: volumes.Volume, seed: int) -> None:
    """The same on filesystems that forget, at every other kill, what no sync made durable."""
    stress(StressOracle(cuttable.path / "repository", seed, cuttable), seed, MINUTES / 4)
