"""Processes that are killed at any moment, on real filesystems; `ULLAGE_KILLS` says how often, `ULLAGE_SEED` how."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import failing_disk, volumes
from tests.kill.oracle import Oracle
from tests.proof.figures import note
from ullage.engine.content import reserve

KILLS = int(os.environ.get("ULLAGE_KILLS", "0"))
CAN_FAIL = not failing_disk.missing()
VOLUME_BYTES = 512 * volumes.MIB


@pytest.fixture(autouse=True)
def _small_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the worker."""
    monkeypatch.setattr(reserve, "LOG_RESERVE_BYTES", 256 << 10)
    monkeypatch.setattr(reserve, "CONTENT_RESERVE_BYTES", 256 << 10)


@pytest.fixture(params=volumes.filesystems())
def volume(request: pytest.FixtureRequest) -> Iterator[volumes.Volume]:
    """Each filesystem that can be had here."""
    with volumes.volume(request.param, VOLUME_BYTES) as made:
        yield made


@pytest.fixture(params=[name for name in volumes.filesystems() if name in volumes.CAN_SHUT_DOWN or CAN_FAIL])
def cuttable(request: pytest.FixtureRequest) -> Iterator[volumes.Volume]:
    """Each filesystem whose power can be cut: by its own shutdown, or by a disk that takes nothing any more."""
    if request.param in volumes.CAN_SHUT_DOWN:
        with volumes.volume(request.param, VOLUME_BYTES) as made:
            yield made
    else:
        with failing_disk.failing_disk(request.param, VOLUME_BYTES) as disk:
            yield disk


def kill(oracle: Oracle, seed: int, kills: int) -> None:
    for number in range(kills):
        try:
            oracle.kill_once()
        except BaseException:
            print(f"kill {number + 1} of seed {seed} failed: ULLAGE_SEED={seed} ULLAGE_KILLS={kills}")
            raise
    note(kills=kills, acknowledged=oracle.acknowledged, in_flight=oracle.in_flight)
    print(
        f"seed {seed}: {kills} kills survived, {oracle.acknowledged} transactions acknowledged, "
        f"{oracle.in_flight} in flight when killed"
    )


@pytest.mark.timeout(3600 if KILLS else 300)
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path, seed: int) -> None:
    """Acknowledged is there byte for byte, removed stays away, in flight is all or nothing, kill after kill."""
    oracle = Oracle(tmp_path / "repository", seed)

    kill(oracle, seed, KILLS or 10)


@pytest.mark.timeout(3600 if KILLS else 300)
def test_what_was_acknowledged_survives_sigkill_on_each_filesystem(volume: volumes.Volume, seed: int) -> None:
    """The same on a filesystem of its own."""
    oracle = Oracle(volume.path / "repository", seed)

    kill(oracle, seed, KILLS or 2)

    note(filesystems=1)


@pytest.mark.timeout(3600 if KILLS else 300)
def test_what_was_acknowledged_survives_a_power_cut(cuttable: volumes.Volume, seed: int) -> None:
    """After the kill the filesystem forgets everything that no sync made durable."""
    oracle = Oracle(cuttable.path / "repository", seed, cuttable.cut_power)

    kill(oracle, seed, KILLS or 3)

    note(cuts=KILLS or 3)
