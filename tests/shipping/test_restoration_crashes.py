"""Crashes while a repository is made of its share, and while its node's own mark of what is shipped comes and goes."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.crash.explore import SEED, State, state_of
from tests.crash.failing import made
from tests.crash.steps import LARGE, checkpoint, clean, drop, put
from tests.crash.test_backup_crashes import COPY, Recorder, distinct
from tests.shipping.held import HeldShare
from tests.shipping.test_machine import LIMITS, SHIPPED
from tests.support import ManualClock
from ullage.embedded.replication import parts_of
from ullage.engine.engine import Engine
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.opening import IDENTITY
from ullage.engine.shipping.restoredbase import begun_restoration
from ullage.engine.shipping.shareplace import EPOCH
from ullage.engine.shipping.sharerestoring import identity_in, restore_share, share_to_restore
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import NotARepository
from ullage.testing.crashing import CrashFiles, Image
from ullage.wire.upkeep import BackupReport

LONG = LIMITS._replace(log_bytes_min=1 << 20)
"""The log goes on behind the first base."""

ROOT: Final = COPY.storage.host_path.path

TRIED, NESTED = 120, 40
"""So many states of a first crash are tried, and of a second one."""


def restore(files: CrashFiles, place: HeldShare, share: str) -> BackupReport:
    """The newest point, or the one that was begun there."""
    asked = share_to_restore(place, share, None, begun_restoration(files, ROOT))
    return restore_share(files, asked, identity_in(asked), COPY, lambda _: None)


def shipped_in_two(files: CrashFiles, repository: Engine, clock: ManualClock) -> tuple[HeldShare, HeldShare, State]:
    """A share as it is at a point, and later, with another base; and what the repository holds at the first."""
    place = HeldShare()
    shipper = Shipper(parts_of(repository), place, "node", LONG)
    for step in (put("a", 300, LARGE), put("b", 40), checkpoint):
        step(repository, clock)
    shipper.begin()
    for steps in (
        (put("c", *[20 + n for n in range(6)], LARGE),),
        (put("d", 700),),  # rides in the log
        (put("d", 4_000),),  # in the same file, which is full then
        (drop("b"), drop("d")),
        (clean, put("e", 500)),
    ):
        for step in steps:
            step(repository, clock)
        shipper.step()
    earlier, state = HeldShare(dict(place.objects)), state_of(repository)
    for step in (drop("a"), put("f", LARGE)):
        step(repository, clock)
    shipper.step()
    shipper._make_base()
    return earlier, place, state


def test_a_crash_during_a_restoration_leaves_no_repository_or_a_whole_one() -> None:
    """Before its commit point there is nothing that opens, and whoever restores there again goes on to the same point,
    whatever was shipped since, and wherever that one is killed; behind it everything is there.
    """
    repository, files, clock = made(SHIPPED)
    with repository:
        earlier, later, expected = shipped_in_two(files, repository, clock)
        newest, share = state_of(repository), repository.identity.repository
    recorder = Recorder(files)
    recorder.start()
    restore(files, earlier, share)
    recorder.stop()
    told: Counter[str] = Counter()

    def gone_on(image: Image, *, is_recorded: bool = False) -> list[Image]:
        """What the disk holds while somebody goes on: who asks finds the share as it is later."""
        after, again = CrashFiles(image), list[Image]()
        if after.exists(f"{ROOT}/{IDENTITY}"):
            told["whole"] += 1
            is_begun = True
        else:
            with pytest.raises(NotARepository):
                Engine.open(COPY, after, ManualClock())
            is_begun = begun_restoration(after, ROOT) is not None
            recorder = Recorder(after)
            if is_recorded:
                recorder.start()
            report = restore(after, later, share)
            recorder.stop()
            again = distinct(recorder.points)
            told["begun" if is_begun else "none"] += 1
            told["taken over"] += report.kept_bytes > 0
        with Engine.open(COPY, after, ManualClock()) as made_again:
            found = made_again.check(deep=True)
            assert (found.problems, found.orphans) == ((), ())
            assert state_of(made_again) == (expected if is_begun else newest)
        return again

    images = distinct(recorder.points)
    begun = [begun_restoration(CrashFiles(image), ROOT) is not None for image in images]
    chosen = set(random.Random(SEED).sample(range(len(images)), min(TRIED, len(images))))
    for number, image in enumerate(images):
        if number in chosen or not begun[number]:
            gone_on(image)
    first = dict(told)
    nested = [again for chosen in _worth_a_second(images) for again in gone_on(chosen, is_recorded=True)]
    for image in random.Random(SEED).sample(nested, min(NESTED, len(nested))):
        gone_on(image)

    print(f"seed {SEED}: {len(recorder.points)} crash points: {first}; {len(nested)} while it goes on: {dict(told)}")
    assert min(first[each] for each in ("whole", "none", "begun", "taken over")) > 0


def _worth_a_second(images: list[Image]) -> Iterator[Image]:
    """Where something lies there of which nothing is noted, where there is a log, and shortly before the end."""
    begun = [image for image in images if not CrashFiles(image).exists(f"{ROOT}/{IDENTITY}")]
    for name in (f"{ROOT}/{FLOWFILE}/{SNAPSHOT}", f"{ROOT}/{FLOWFILE}/partition-0"):
        yield next(image for image in begun if _has(CrashFiles(image), name))
    yield begun[-1]


def _has(files: CrashFiles, path: str) -> bool:
    return files.exists(path) and (not path.endswith("partition-0") or bool(files.list_directory(path)))


def test_a_crash_beside_the_mark_of_what_is_shipped_costs_nothing() -> None:
    """Whether it is there or not, the repository is as it was, and what is shipped from it restores to that."""
    repository, files, clock = made(SHIPPED)
    place, recorder = HeldShare(), Recorder(files)
    with repository:
        shipper = Shipper(parts_of(repository), place, "node", LIMITS)
        shipper.begin()
        put("a", 300, LARGE)(repository, clock)
        shipper.step()
        expected = state_of(repository)
        earlier, sent = dict(place.objects), list[int]()

        def note_when(kind: str, key: str) -> None:
            if (kind, key) == ("put", EPOCH):
                sent.append(len(recorder.points))

        place.fault = note_when
        recorder.start()
        shipper.close()
        Shipper(parts_of(repository), place, "node", LIMITS).begin()
        recorder.stop()
    found: set[int] = set()
    # The bucket has nothing of the next writer before its put; behind that it may, and whose that is must be durable.
    moments = [(image, earlier) for image in distinct(recorder.points)]
    moments += [(image, dict(place.objects)) for image in distinct(recorder.points[sent[0] - 1 :])]

    for image, objects in moments:
        after, held = CrashFiles(image), HeldShare(dict(objects))
        with Engine.open(SHIPPED, after, ManualClock()) as again:
            assert state_of(again) == expected
            shipper = Shipper(parts_of(again), held, "node", LIMITS)
            shipper.begin()
            shipper.step()
            restore(after, held, again.identity.repository)
        with Engine.open(COPY, after, ManualClock()) as restored:
            assert state_of(restored) == expected
        found.add(sum(key.startswith("base/") for key in held.objects))

    print(f"seed {SEED}: {len(recorder.points)} crash points, bases afterwards: {sorted(found)}")
