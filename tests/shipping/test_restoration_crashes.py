"""Crashes while a repository is made of its share, and while its node's own mark of what is shipped comes and goes."""

from tests.crash.explore import SEED, state_of
from tests.crash.failing import made
from tests.crash.steps import LARGE, checkpoint, clean, drop, put
from tests.crash.test_backup_crashes import COPY, Recorder, distinct
from tests.shipping.held import HeldShare
from tests.shipping.test_machine import LIMITS, SHIPPED
from tests.support import ManualClock
from ullage.embedded.replication import parts_of
from ullage.engine.engine import Engine
from ullage.engine.shipping.sharerestoring import identity_in, restore_share, share_to_restore
from ullage.engine.shipping.shipper import Shipper
from ullage.errors import DirectoryNotEmpty, NotARepository
from ullage.testing.crashing import CrashFiles

LONG = LIMITS._replace(log_bytes_min=1 << 20)
"""The log goes on behind the first base."""


def restore(files: CrashFiles, place: HeldShare, share: str) -> None:
    asked = share_to_restore(place, share, None)
    restore_share(files, asked, identity_in(asked), COPY, lambda _: None)


def test_a_crash_during_a_restoration_leaves_no_repository_or_a_whole_one() -> None:
    """Before its commit point there is nothing that opens, and whoever restores there again is told that something is
    left; behind it everything is there.
    """
    repository, files, clock = made(SHIPPED)
    place, recorder = HeldShare(), Recorder(files)
    with repository:
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
        expected, share = state_of(repository), repository.identity.repository
    recorder.start()
    restore(files, place, share)
    recorder.stop()
    whole = refused = left = 0

    for image in distinct(recorder.points):
        after = CrashFiles(image)
        try:
            again = Engine.open(COPY, after, ManualClock())
        except NotARepository:
            refused += 1
            try:
                restore(after, place, share)
            except DirectoryNotEmpty:
                left += 1
                continue
            again = Engine.open(COPY, after, ManualClock())
        else:
            whole += 1
        with again:
            assert again.check(deep=True).problems == ()
            assert state_of(again) == expected

    print(f"seed {SEED}: {len(recorder.points)} crash points, {whole} whole, {refused} none, {left} to be emptied")
    assert min(whole, refused, left) > 0


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
        recorder.start()
        shipper.close()
        Shipper(parts_of(repository), place, "node", LIMITS).begin()
        recorder.stop()
    objects = dict(place.objects)
    found: set[int] = set()

    for image in distinct(recorder.points):
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
