"""What is shipped, when, and what becomes of it: against a bucket in memory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.rot.specimen import shown
from tests.shipping.held import HeldShare, gone
from tests.shipping.test_objects import SHARE
from tests.support import TWO, Workshop, claim_of, committing, containers, drain, event_store, flip, put_each, spec_at
from ullage.contract import ContentRepositorySpec, ReplicationMode, ReplicationSettings
from ullage.embedded.replication import parts_of
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.pins import PIN_SECONDS
from ullage.engine.shipping.history import listed_bases
from ullage.engine.shipping.logobject import LogBatch
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.publishing import DROPPED_MILLIS, publish
from ullage.engine.shipping.sharedocs import (
    BASES_MAX,
    DroppedBase,
    ListedBase,
    ShareManifest,
    decode_document,
    encode_document,
)
from ullage.engine.shipping.shareplace import MANIFEST, ShareWriter, base_name
from ullage.engine.shipping.sharerestoring import identity_in, restore_points, restore_share, share_to_restore
from ullage.engine.shipping.shipper import BASES_A_DOUBLING, Shipper
from ullage.engine.shipping.shippingparts import ShippingLimits
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, ContentMissing, DirectoryNotEmpty, InvalidArgument, NotABackup, ShareFenced
from ullage.wire.provenance import EventQuery

KB = 1024
SHIPPED: dict[str, Any] = {"replication": ReplicationSettings(mode=ReplicationMode.ASYNC, url="s3://flows/replicas")}
UNARCHIVED: dict[str, Any] = {"archive": {"enabled": False}}


@pytest.fixture
def place() -> HeldShare:
    return HeldShare()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**SHIPPED, **UNARCHIVED)


def begun(repository: Engine, place: HeldShare, **limits: int) -> Shipper:
    """A shipper that has shipped what there was."""
    shipper = Shipper(parts_of(repository), place, "node-1", ShippingLimits(**limits))
    shipper.begin()
    shipper.step()
    return shipper


def restored(place: HeldShare, share: str, to: Path, point: int | None = None) -> ContentRepositorySpec:
    asked = share_to_restore(place, share, point)
    spec = spec_at(to)
    restore_share(OsFiles(), asked, identity_in(asked), spec, lambda _: None)
    return spec


def contents(place: HeldShare, share: str, to: Path, point: int | None = None) -> list[bytes]:
    """What queue `q` holds in a restored repository, which is sound."""
    with Engine.open(restored(place, share, to, point)) as again:
        assert again.check(deep=True).problems == ()
        return drain(again, "q")


def packs(place: HeldShare) -> list[str]:
    return sorted(place.lengths("content"))


def test_each_log_object_is_a_point_to_restore_to(repository: Engine, place: HeldShare, tmp_path: Path) -> None:
    """With attributes, large and small contents, and handles; nothing of what came later."""
    share, seen = repository.identity.repository, list[object]()
    shipper = begun(repository, place)
    for number in range(3):
        put_each(repository, "q", [b"small %d" % number, os.urandom(300 * KB)], n=str(number))
        repository.handles.put(b"handle %d" % number)
        shipper.step()
        seen.append(shown(repository))

    points = list(restore_points(place, share, SerDe()))
    assert [point.number for point in points] == [1, 2, 3, 4]
    assert points[-1].transaction == repository.log.durable
    for point, expected in zip(points[1:], seen, strict=True):
        with Engine.open(restored(place, share, tmp_path / str(point.number), point.number)) as again:
            assert shown(again) == expected
    with pytest.raises(InvalidArgument, match="goes back to"):
        share_to_restore(place, share, 0)


def test_content_that_is_dead_does_not_travel(repository: Engine, place: HeldShare) -> None:
    """Neither what died before it was shipped, nor what a base finds dead."""
    put_each(repository, "q", [os.urandom(400 * KB), b"x"])
    drain(repository, "q")
    shipper = begun(repository, place)
    put_each(repository, "q", [os.urandom(500 * KB)])
    drain(repository, "q")
    shipper.step()

    assert packs(place) == []
    assert shipper.figures.shipped_bytes < 20 * KB


def test_what_dies_stays_on_the_disk_until_what_had_it_is_shipped(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """A log object ends before the death: so what lived there can be read, however eager reclamation is."""
    shipper = begun(repository, place, batch_payload_bytes=1)
    data = os.urandom(300 * KB)
    put_each(repository, "q", [data])
    born = repository.log.durable
    shipper.absorb()
    drain(repository, "q")
    repository.reclamation.clean()
    shipper.step()
    assert sum(os.path.getsize(path) for path in files_of(workshop)) >= len(data)
    repository.reclamation.adopt_orphans()
    repository.reclamation.clean()
    assert sum(os.path.getsize(path) for path in files_of(workshop)) < len(data)

    (point,) = [p for p in restore_points(place, repository.identity.repository, SerDe()) if p.transaction == born]
    assert contents(place, repository.identity.repository, tmp_path / "r", point.number) == [data]


def files_of(workshop: Workshop) -> Iterator[Path]:
    """The content files."""
    return (path for path in (workshop.path / "c1").rglob("*-*") if path.is_file())


def test_a_bucket_that_is_gone_stops_nothing_and_gets_a_new_base_after_too_long(
    repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """What waits is bounded; beyond that nothing is held for it any more."""
    shipper = begun(repository, place, held_bytes=500 * KB)
    place.fault = gone
    for number in range(4):
        put_each(repository, "q", [os.urandom(200 * KB)])
        with suppress(BucketUnavailable):  # or, with too much that waits, nothing is asked
            shipper.step()
        shipper.absorb()
        assert (shipper.figures.waiting_bytes > 0) == (number < 2)
        assert shipper.figures.awaits_base == (number >= 2)
    assert repository.ledger.shipping_since == 0
    place.fault = lambda _kind, _key: None
    shipper.step()

    assert (shipper.figures.bases, shipper.figures.through) == (2, repository.log.durable)
    assert not shipper.figures.awaits_base
    expected = shown(repository)
    with Engine.open(restored(place, repository.identity.repository, tmp_path / "r")) as again:
        assert shown(again) == expected


def test_a_bucket_that_is_gone_at_the_start_holds_no_more_than_it_may(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """What the log brought back does not count, for it may be shipped; what is committed from then on does."""
    begun(repository, place)
    put_each(repository, "q", [os.urandom(300 * KB), os.urandom(300 * KB)])
    begun(repository, place)
    workshop.kill()
    repository = workshop.open()
    shipper = Shipper(parts_of(repository), place, "node-1", ShippingLimits(held_bytes=500 * KB))
    place.fault, held = gone, list[bool]()
    for _ in range(4):
        with pytest.raises(BucketUnavailable):
            shipper.begin()
        shipper.absorb()
        held.append(repository.ledger.shipping_since > 0)
        put_each(repository, "q", [os.urandom(200 * KB)])
    assert held == [True, True, True, False]

    place.fault = lambda _kind, _key: None
    shipper.begin()
    assert shipper.figures.awaits_base
    shipper.step()
    assert (shipper.figures.bases, shipper.figures.through) == (1, repository.log.durable)
    assert len(contents(place, repository.identity.repository, tmp_path / "r")) == 6


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_after_a_restart_it_goes_on_behind_what_is_there(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path, how: str
) -> None:
    """Without a new base, and without a content twice; a copy of it that went on by itself is told from it."""
    shipper = begun(repository, place)
    put_each(repository, "q", [os.urandom(300 * KB)])
    shipper.step()
    if how == "clean":
        shipper.close()
        repository.checkpoint()
        workshop.reopen()
    else:
        workshop.kill()
        workshop.open()
    put_each(workshop.repository, "q", [b"later"])
    again = Shipper(parts_of(workshop.repository), place, "node-1")
    again.begin()
    assert not again.figures.awaits_base
    again.step()

    assert (again.figures.bases, again.figures.packs, again.figures.log_objects) == (0, 0, 1)
    assert (again.figures.epoch, again.figures.through) == (2, workshop.repository.log.durable)
    assert shipper._writer is not None
    with pytest.raises(ShareFenced):
        shipper._writer.append(LogBatch(1, 0, [b"of the process that was killed"]))
    assert len(contents(place, workshop.repository.identity.repository, tmp_path / "r")) == 2


def test_a_writer_that_knows_of_no_successor_has_no_base_counted(repository: Engine, place: HeldShare) -> None:
    """It holds what its successor has never seen, and would be in the way of what that one puts."""
    share = repository.identity.repository
    shipper = begun(repository, place, held_bytes=1)
    Shipper(parts_of(repository), place, "node-2").begin()
    before = listed_bases(place, share)
    put_each(repository, "q", [b"too much to hold"])
    shipper.absorb()
    with pytest.raises(ShareFenced):
        shipper.step()
    assert listed_bases(place, share) == before


def test_another_history_of_the_repository_gets_a_base_with_all_its_content(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """It may have other bytes under the same address; the points of the first one stay."""
    share = repository.identity.repository
    shipper = begun(repository, place)
    put_each(repository, "q", [b"first"])
    shipper.step()
    put_each(repository, "q", [b"lost to the second"])
    shipper.step()
    spec = msgspec.structs.replace(restored(place, share, tmp_path / "second", 2), **SHIPPED)
    with Engine.open(spec) as second:
        put_each(second, "q", [b"only in the second"])
        assert begun(second, place).figures.bases == 1

    assert contents(place, share, tmp_path / "a") == [b"first", b"only in the second"]
    assert contents(place, share, tmp_path / "b", 3) == [b"first", b"lost to the second"]


def test_content_that_cannot_be_read_is_counted_and_keeps_nothing_back(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """It is unavailable where it is restored, as it is here; the rest of its pack is there."""
    shipper = begun(repository, place)
    large = put_each(repository, "q", [os.urandom(100 * KB), os.urandom(100 * KB)])
    small = put_each(repository, "q", [b"small and damaged"])
    for record in (large[0], small[0]):
        claim = claim_of(record)
        flip(workshop.content_file(claim.resource), claim.offset)
    shipper.step()
    workshop.expects_problems = True

    assert shipper.figures.unreadable == 2
    with Engine.open(restored(place, repository.identity.repository, tmp_path / "r")) as again:
        assert len(shown(again)[0]) == 1
        assert again.queue("q").figures().flow_files == 3


@pytest.mark.parametrize("is_based_before", [True, False])
def test_what_was_dropped_on_the_disk_is_dropped_there(
    workshop: Workshop, place: HeldShare, tmp_path: Path, is_based_before: bool
) -> None:
    """A queue whose FlowFiles lie in swap files, some since before the base, is emptied without reading them."""
    swapping: dict[str, Any] = {"flow_file": {"swap_threshold": 4, "swap_batch": 2}}
    repository = workshop.make(**SHIPPED, **UNARCHIVED, **swapping)
    shipper = begun(repository, place) if is_based_before else None
    put_each(repository, "q", [b"%d" % number for number in range(12)])
    shipper = shipper or begun(repository, place)
    shipper.step()
    full = shipper._next_log + shipper.figures.log_objects
    assert len(repository.ledger.swaps) > 2
    assert repository.queues.drop(repository.queue("q")) == 12
    put_each(repository, "q", [b"last"])
    shipper.step()

    share = repository.identity.repository
    assert contents(place, share, tmp_path / "r") == [b"last"]
    assert len(contents(place, share, tmp_path / "full", full - 1)) == 12


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_dropped_before", [True, False])
def test_what_was_swapped_before_a_restart_is_dropped_there(
    workshop: Workshop, place: HeldShare, tmp_path: Path, is_killed: bool, is_dropped_before: bool
) -> None:
    """A drop of a swap file does not say whose it is, and the start's log not either: by the file, or by a new base
    where that is gone as well.
    """
    swapping: dict[str, Any] = {"flow_file": {"swap_threshold": 4, "swap_batch": 2}}
    repository = workshop.make(**SHIPPED, **UNARCHIVED, **swapping)
    share = repository.identity.repository
    put_each(repository, "q", [b"%d" % number for number in range(12)])
    shipper = begun(repository, place)
    shipper.close()
    repository.checkpoint()
    if is_dropped_before:
        assert repository.queues.drop(repository.queue("q")) == 12
    if is_killed:
        workshop.kill()
        again = workshop.open()
    else:
        again = workshop.reopen()
    after = begun(again, place)
    if not is_dropped_before:
        assert after.figures.bases == 0
        assert again.queues.drop(again.queue("q")) == 12
    put_each(again, "q", [b"last"])
    after.step()

    assert contents(place, share, tmp_path / "r") == [b"last"]


def test_a_container_that_was_appended_gets_a_base(workshop: Workshop, place: HeldShare, tmp_path: Path) -> None:
    """Else what lies in it had no place where it is restored: before that nothing of it is shipped."""
    repository = workshop.make(**SHIPPED, storage=containers(c1=None))
    begun(repository, place).close()
    repository.checkpoint()
    spread = workshop.reopen(**SHIPPED, storage=TWO, claims={"max_flow_files": 1})
    put_each(spread, "q", [b"one", b"two", b"three"])
    shipper = Shipper(parts_of(spread), place, "node-1")
    shipper.begin()
    place.fault = base_is_lost
    for _ in range(2):
        with pytest.raises(BucketUnavailable):
            shipper.step()
    assert contents(place, spread.identity.repository, tmp_path / "before") == []
    place.fault = lambda _kind, _key: None
    shipper.step()

    assert shipper.figures.bases == 1
    asked = share_to_restore(place, spread.identity.repository, None)
    assert sorted(identity_in(asked).containers) == ["c1", "c2"]
    spec = spec_at(tmp_path / "r", storage=TWO)
    restore_share(OsFiles(), asked, identity_in(asked), spec, lambda _: None)
    with Engine.open(spec) as again:
        assert drain(again, "q") == [b"one", b"two", b"three"]


def base_is_lost(kind: str, key: str) -> None:
    """A bucket to which no base gets."""
    if (kind, key.partition("/")[0]) == ("put", "base"):
        raise BucketUnavailable(f"{key}: it was cut off")


def test_events_are_there_as_of_the_point(repository: Engine, place: HeldShare, tmp_path: Path) -> None:
    """Those in event files, and those that the log tells."""
    put_each(repository, "q", [b"in a file"])
    event_store(repository).drain()
    shipper = begun(repository, place)
    put_each(repository, "q", [b"in the log"])
    shipper.step()
    expected = [(event.sequence, event.type, event.uuid) for event in repository.history.query(EventQuery()).events]

    with Engine.open(restored(place, repository.identity.repository, tmp_path / "r")) as again:
        assert [
            (event.sequence, event.type, event.uuid) for event in again.history.query(EventQuery()).events
        ] == expected


def test_what_nothing_needs_goes_after_a_day_and_fences_stay(
    workshop: Workshop, repository: Engine, place: HeldShare, tmp_path: Path
) -> None:
    """Old bases with their log objects and packs, of which little lives; what is pinned stays as long as it is."""
    share = repository.identity.repository
    limits = {"retention_millis": 1_000, "log_objects_max": 0, "small_bytes": 1}
    shipper = begun(repository, place, **limits)
    (old,) = listed_bases(place, share)
    kept = os.urandom(70 * KB)
    with pinned(place, share, old, 0):
        for number in range(4):
            drain(repository, "q")
            put_each(repository, "q", [kept, os.urandom(200 * KB)] if not number else [kept, b"%d" % number])
            workshop.clock.advance(60)
            shipper.step()
        workshop.clock.advance(DROPPED_MILLIS / 1_000 + 60)
        put_each(repository, "q", [b"a day later"])
        shipper.step()
        assert old.name in place.objects
    for _ in range(3):
        workshop.clock.advance(DROPPED_MILLIS / 1_000 + 60)
        put_each(repository, "q", [b"last"])
        shipper.step()

    assert len(place.lengths("base")) == 3  # two count, and one was dropped just now
    assert old.name not in place.objects
    assert "log/00000000000000000001" in place.objects
    assert "log/00000000000000000002" not in place.objects
    live = sum(map(len, (data for data, _ in shown_contents(repository))))
    assert sum(place.lengths("content").values()) <= 1.2 * live + 2 * KB
    assert contents(place, share, tmp_path / "r")[-1] == b"last"


def shown_contents(repository: Engine) -> list[tuple[bytes, object]]:
    return [(data, queue) for queue, _, _, data in shown(repository)[0].values()]


def test_a_reader_that_died_pins_nothing_for_long(repository: Engine, place: HeldShare) -> None:
    """By the age that the bucket tells; nor does what is no pin at all."""
    begun(repository, place)
    (base,) = listed_bases(place, repository.identity.repository)
    with pinned(place, repository.identity.repository, base, 0):
        assert list(place.lengths("pins"))
        place.age_seconds = PIN_SECONDS + 1
        place.objects["pins/nonsense"] = b"?"
        shipper = begun(repository, place)
        shipper._make_base()
        assert place.lengths("pins") == {}
    dropped = msgspec.structs.replace(base, next_log=9)
    with pytest.raises(NotABackup, match="dropped just now"), pinned(place, repository.identity.repository, dropped, 0):
        raise AssertionError("it is not there to be read")


def test_a_manifest_lists_no_more_bases_than_its_readers_take(place: HeldShare) -> None:
    """The oldest are dropped before their time, and of those that were dropped the oldest are forgotten."""
    writer = ShareWriter(1, "0" * 16)
    listed = [
        ListedBase(name=base_name(n, writer, n), transaction=n, millis=n, next_log=n, next_pack=1)
        for n in range(1, 2 * BASES_MAX + 2)
    ]
    full = ShareManifest(
        share=SHARE,
        epoch=1,
        nonce=writer.nonce,
        bases=tuple(listed[BASES_MAX:-1]),
        dropped=tuple(DroppedBase(base=each, millis=each.millis) for each in listed[:BASES_MAX]),
    )
    place.objects[MANIFEST] = encode_document(full)
    publish(place, SHARE, writer, listed[-1], 86_400_000)

    found = decode_document(place.objects[MANIFEST], ShareManifest, SHARE, MANIFEST)
    assert found.bases == tuple(listed[BASES_MAX + 1 :])
    assert [each.base for each in found.dropped] == listed[1 : BASES_MAX + 1]


@pytest.mark.parametrize(("count", "made"), [(BASES_A_DOUBLING - 1, 1), (BASES_A_DOUBLING, 0)])
def test_the_more_bases_count_the_more_log_lies_behind_each(
    workshop: Workshop, repository: Engine, place: HeldShare, count: int, made: int
) -> None:
    """A share that has many goes on where one with fewer gets another base."""
    limits = {"log_bytes_min": 40 * KB}
    begun(repository, place, **limits).close()
    manifest = decode_document(place.objects[MANIFEST], ShareManifest, repository.identity.repository, MANIFEST)
    place.objects[MANIFEST] = encode_document(msgspec.structs.replace(manifest, bases=manifest.bases * count))
    again = workshop.reopen()
    put_each(again, "q", [os.urandom(30 * KB), os.urandom(30 * KB)])

    assert begun(again, place, **limits).figures.bases == made


def test_a_share_that_lacks_something_makes_no_repository(repository: Engine, place: HeldShare, tmp_path: Path) -> None:
    """A restoration that fails says what is missing, and leaves what no open takes for a repository, and the next one
    goes on with.
    """
    put_each(repository, "q", [os.urandom(100 * KB)])
    begun(repository, place)
    share = repository.identity.repository
    (pack,) = packs(place)
    whole = place.objects.pop(pack)
    with pytest.raises(ContentMissing, match=pack):
        restored(place, share, tmp_path / "r")
    assert not (tmp_path / "r" / "ullage.json").exists()
    place.objects[pack] = whole
    assert len(contents(place, share, tmp_path / "r")) == 1
    with pytest.raises(DirectoryNotEmpty):
        restored(place, share, tmp_path / "r")
    with pytest.raises(NotABackup, match="no base"):
        share_to_restore(HeldShare(), share, None)


def test_commits_that_are_not_shipped_cost_nothing_where_nobody_asked(workshop: Workshop) -> None:
    """Without spec.replication nothing is noted and nothing held back."""
    repository = workshop.make()
    with committing(repository) as session:
        session.ingest("q", [b"x"])

    assert (repository.tap.through(repository.log.durable), repository.ledger.shipping_since) == ([], 0)
