"""ENOSPC for real: ext4, XFS, btrfs and tmpfs, filled to the last block.

On tmpfs blocks are counted exactly; the others allocate late, keep journals, and need room even to free some. What
dies is deleted there, and goes through the archive on tmpfs.
Quotas with an empty archive are tested in tests/engine/content/test_pressure.py.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ullage
from tests.faults.volumes import MIB, Volume
from tests.service.running import until
from tests.support import ManualClock, abandon, drain, put_all, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE
from ullage.errors import BackPressure, DiskFull

SIZES = (8 * MIB, MIB, 100_000, 1_000, 0)
"""Put in turn, each until it finds no room; none at last needs room in the log only."""


def spec_on(volume: Volume) -> ContentRepositorySpec:
    return spec_at(
        volume.path / "repository",
        archive={"enabled": volume.is_exact, "max_usage_percentage": 50, "backpressure_percentage": 100},
        truncation={"usage_threshold_percentage": 10},
    )


@contextmanager
def opened(volume: Volume) -> Iterator[Engine]:
    """Every test ends with a deep check."""
    with Engine.open(spec_on(volume), clock=ManualClock()) as repository:
        yield repository
        assert repository.check(deep=True).problems == ()


@pytest.fixture
def repository(volume: Volume) -> Iterator[Engine]:
    """An empty one, all of the small volume before it."""
    Engine.initialize(spec_on(volume), clock=ManualClock())
    with opened(volume) as made:
        yield made


def content_of(number: int, size: int) -> bytes:
    """Cannot be compressed, and differs from all others."""
    return (number.to_bytes(8, "little") + os.urandom(4_096 - 8) * (size // 4_096 + 1))[:size]


def fill(repository: Engine, volume: Volume) -> list[str]:
    """Put handles until there is no room for the smallest; the ids of what was acknowledged."""
    ids: list[str] = []
    for size in SIZES:
        for number in range(200):
            try:
                ids.append(repository.handles.put(content_of(number, size)))
            except (DiskFull, BackPressure):
                break
    volume.fill()
    return ids


def sizes_of(repository: Engine) -> dict[str, int]:
    """Every handle's length, read to the end."""
    sizes = {}
    for record in [record for record in repository.ledger.flow_files() if record.queue == HANDLE_QUEUE]:
        with repository.handles.get(record.id) as content:
            sizes[record.id] = sum(map(len, content))
    return sizes


def test_a_refused_put_leaves_nothing(repository: Engine, volume: Volume) -> None:
    """On a full volume a put is a definite failure: all that was acknowledged reads, and there is nothing else."""
    ids = fill(repository, volume)

    assert volume.free_bytes < 4096 or not volume.is_exact
    with pytest.raises((DiskFull, BackPressure)):
        repository.handles.put(content_of(0, 4 * MIB))

    assert sizes_of(repository).keys() == set(ids)


def test_a_full_volume_is_emptied_and_used_again(repository: Engine, volume: Volume) -> None:
    """Removing, dropping, purging, checkpoint, truncation and cleaning all work without room, and make some."""
    kept = put_all(repository, "keep", [b"k" * 100])[0]
    put_all(repository, "tail", [b"t" * 8 * MIB])
    put_all(repository, "lane", [b"l" * 10_000] * 100)
    ids = fill(repository, volume)

    assert drain(repository, "tail") == [b"t" * 8 * MIB]
    assert repository.queues.drop(repository.queue("lane")) == 100
    for id in ids:
        repository.handles.delete(id)
    repository.checkpoint()
    repository.reclamation.truncate()
    repository.reclamation.clean()
    volume.unfill()

    assert volume.free_bytes > 2 * MIB
    repository.handles.put(content_of(1, MIB))
    assert drain(repository, "keep") == [b"k" * 100]
    assert kept.size == 100


def test_a_repository_on_a_full_volume_opens_after_a_crash(volume: Volume) -> None:
    """Recovery needs no room that it has not got, and what was acknowledged is there and can be removed."""
    Engine.initialize(spec_on(volume), clock=ManualClock())
    repository = Engine.open(spec_on(volume), clock=ManualClock())
    put_all(repository, "q", [b"x" * 1_000] * 20)
    ids = fill(repository, volume)
    abandon(repository)

    with opened(volume) as repository:
        assert sizes_of(repository).keys() >= set(ids)
        assert drain(repository, "q") == [b"x" * 1_000] * 20


def test_a_repository_on_a_full_volume_survives_a_power_cut(cuttable: Volume) -> None:
    """What was acknowledged while the volume filled up was durable, though blocks are allocated late."""
    Engine.initialize(spec_on(cuttable), clock=ManualClock())
    repository = Engine.open(spec_on(cuttable), clock=ManualClock())
    ids = fill(repository, cuttable)
    abandon(repository)
    cuttable.cut_power()

    with opened(cuttable) as repository:
        assert sizes_of(repository).keys() == set(ids)


def test_a_backup_that_finds_no_room_says_where(tmp_path: Path, volume: Volume) -> None:
    """Whoever waits for it and whoever looks at its run; once there is room, the next one goes on."""
    backups = str(volume.path / "backup")
    with ullage.open(tmp_path / "r", create=True, maintain=False) as repository:
        assert isinstance(repository, EmbeddedRepository)
        content = content_of(1, MIB)
        handle = repository.handles.put(content)
        volume.fill()
        with pytest.raises(DiskFull, match=f"no room for the backup in {backups}: {backups}.*can't grow"):
            repository.backup(backups)
        begun = repository.begin_backup(backups)
        until(lambda: repository.backup_run(begun.id).ended_millis is not None, "it has ended")
        ended = repository.backup_run(begun.id)
        assert (ended.slug, backups in (ended.problem or "")) == ("disk-full", True)
        volume.unfill()
        repository.backup(backups)
    ullage.restore(backups, tmp_path / "copy")
    with ullage.open(tmp_path / "copy") as restored:
        assert restored.handles.get(handle) == content
