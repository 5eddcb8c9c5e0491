"""Two writers of one repository, a copy that went on by itself, into one bucket: random faults, and a reader."""

import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.remote.test_bucket_faults import changed, names
from tests.support import Workshop, drain, put_each, spec_at
from tests.threads import JOIN_SECONDS, begin, together
from ullage.clock import Clock
from ullage.engine import backupresume
from ullage.engine.backupgenerations import generations_at
from ullage.engine.backupverify import verify
from ullage.engine.engine import Engine
from ullage.errors import BackupOvertaken, BucketRefused, BucketUnavailable, NotABackup
from ullage.interface.buckets import Bucket
from ullage.remote.bucket import BucketPlace
from ullage.wire.upkeep import Keep

KB = 1024
RUNS = 7
SETTINGS = {"enabled": False}


def faults_of(seed: int) -> Callable[[str, str, int], str]:
    """One request of 25 goes wrong, and one put of 250 is the last that its writer sends."""
    chance = random.Random(seed)

    def fault(method: str, _path: str, _number: int) -> str:
        drawn = chance.random()
        if method == "PUT" and drawn < 0.004:
            return "denied"
        kinds = ("503", "lost", "cut", "conflict", "unanswered") if method == "PUT" else ("503", "lost", "cut")
        return chance.choice(kinds) if drawn < 0.04 else ""

    return fault


def write(root: Path, to: Place, told: list[str], seed: int) -> None:
    """So many backups of what changes at random, each of which may lose the race, or die."""
    chance = random.Random(seed)
    with Engine.open(spec_at(root, archive=SETTINGS, provenance=SETTINGS)) as repository:
        for _ in range(RUNS):
            if chance.random() < 0.4:
                drain(repository, "q")
                repository.reclamation.clean()
            put_each(repository, "q", [chance.randbytes(60 * KB) for _ in range(chance.randrange(4))])
            try:
                repository.backup(to.to, keep=Keep(last=chance.randrange(1, 4)))
                told.append("written")
            except (BackupOvertaken, BucketRefused, BucketUnavailable) as error:
                told.append(type(error).__name__)


def read(root: Path, bucket: Bucket, told: list[str], is_over: threading.Event, seed: int) -> None:
    """Verify what is listed and restore one of it, again and again."""
    chance = random.Random(seed)
    while not is_over.is_set():
        try:
            there = generations_at(BucketPlace(bucket))
            assert verify(BucketPlace(bucket), None, 1.0, 1).damaged == ()
            chosen = chance.choice([None, *(each.sequence for each in there)])
            Engine.restore_backup(BucketPlace(bucket), spec_at(root), generation=chosen)
        except NotABackup:  # none yet, or dropped before it was pinned
            continue
        with Engine.open(spec_at(root)) as again:
            assert again.check(deep=True).problems == ()
        told.append("restored")
        shutil.rmtree(root)


def test_of_writers_that_race_every_generation_that_is_listed_is_whole(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """At any moment, and what is being restored is restored; in the end nothing lies there that nobody needs."""
    monkeypatch.setattr(backupresume, "NOTED_FILES", 2)
    print(f"seed {seed}")
    assert bucket.bucket is not None
    put_each(workshop.make(clock=Clock(), archive=SETTINGS, provenance=SETTINGS), "q", [b"x" * 60 * KB] * 6)
    workshop.close()
    shutil.copytree(workshop.path, tmp_path / "twin")
    is_over, told = threading.Event(), list[str]()
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = faults_of(seed)
        to = changed(bucket, endpoint=url)
        reading = begin(partial(read, tmp_path / "r", bucket.bucket, told, is_over, seed))
        try:
            together(
                partial(write, workshop.path, to, told, seed), partial(write, tmp_path / "twin", to, told, seed + 1)
            )
        finally:
            is_over.set()
            reading.result(JOIN_SECONDS)
    with Engine.open(spec_at(workshop.path, archive=SETTINGS, provenance=SETTINGS)) as repository:
        repository.backup(bucket.to, keep=Keep(last=2))

    found = verify(BucketPlace(bucket.bucket), None, 1.0, 1)
    assert found.damaged == ()
    assert len(names(bucket)) == found.files + 2  # and the manifests of both generations
    assert {"written", "restored"} <= {*told}, told
