"""What is told of a share before the bucket has answered: what was known of it, and what was committed since."""

import errno
import os

import pytest

from tests.failing_files import FailingFiles
from tests.shipping.held import HeldShare, gone
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.support import Workshop, put_each
from ullage.embedded.replication import Replication, parts_of
from ullage.engine.engine import Engine
from ullage.engine.shipping.lastlook import KNOWN, KNOWN_MILLIS
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.shipping.shippingparts import ShippingFigures
from ullage.errors import BucketUnavailable

KB = 1024


@pytest.fixture
def place() -> HeldShare:
    return HeldShare()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(**SHIPPED)


def begun(repository: Engine, place: HeldShare) -> Shipper:
    shipper = Shipper(parts_of(repository), place, "node")
    shipper.begin()
    shipper.step()
    return shipper


def told(repository: Engine, place: HeldShare) -> ShippingFigures:
    """By a shipper that can't begin."""
    shipper = Shipper(parts_of(repository), place, "node")
    shipper.absorb()
    place.fault = gone
    with pytest.raises(BucketUnavailable):
        shipper.begin()
    place.fault = lambda _kind, _key: None
    return shipper.figures


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_committed_since_waits(
    workshop: Workshop, repository: Engine, place: HeldShare, is_closed: bool
) -> None:
    """Through as many starts as there are until the bucket answers; then the share says with what it is gone on."""
    put_each(repository, "q", [os.urandom(100 * KB)])
    shipper = begun(repository, place)
    through = shipper.figures.through
    if is_closed:
        put_each(repository, "q", [b"within ten seconds of the first note"])
        shipper.step()
        through = shipper.figures.through
        shipper.close()
    put_each(repository, "q", [os.urandom(30 * KB)])
    for starts in (1, 2):
        again = workshop.crash()
        found = told(again, place)
        assert (found.awaits_base, found.through) == (False, through)
        assert found.waiting_transactions == again.log.durable - through
        assert starts * 30 * KB < found.waiting_bytes < starts * 31 * KB
        put_each(again, "q", [os.urandom(30 * KB)])
        workshop.clock.advance(KNOWN_MILLIS)
    assert begun(workshop.crash(), place).figures.waiting_bytes == 0


def test_what_waits_is_noted_while_the_bucket_does_not_answer(
    workshop: Workshop, repository: Engine, place: HeldShare
) -> None:
    """So a checkpoint, behind which the log tells it no more, loses nothing of it."""
    shipper = begun(repository, place)
    put_each(repository, "q", [os.urandom(30 * KB)])
    workshop.clock.advance(KNOWN_MILLIS)
    shipper.absorb()
    repository.checkpoint()
    shipper.absorb()
    found = told(workshop.crash(), place)

    assert not found.awaits_base
    assert 30 * KB < found.waiting_bytes < 31 * KB


def test_what_is_not_known_is_not_told(workshop: Workshop, repository: Engine, place: HeldShare) -> None:
    """Of another bucket, by a note that is none, and where a checkpoint came after it: all that lives counts then."""
    begun(repository, place)
    note, elsewhere = workshop.path / KNOWN, HeldShare()
    kept, elsewhere.name = note.read_bytes(), "s3://elsewhere"
    assert told(repository, elsewhere).awaits_base
    note.write_bytes(b"{")
    assert told(repository, place).awaits_base
    note.write_bytes(kept)
    put_each(repository, "q", [b"two"])
    repository.checkpoint()
    assert told(workshop.crash(), place).awaits_base


def test_shipping_goes_on_where_nothing_can_be_noted(workshop: Workshop, place: HeldShare) -> None:
    """A full disk is when the bucket matters most: neither a step nor the count of what waits fails for the note."""
    files = FailingFiles()
    repository = workshop.make(files, **SHIPPED)
    files.fail("create", f"*/{KNOWN}*", times=1_000, error=errno.ENOSPC)
    failures: list[Exception] = []
    replication = Replication(
        repository,
        place,
        place.name,
        "node",
        repository.spec.replication,
        lambda _task, error: failures.append(error),
    )
    for content in (b"one", b"two"):
        put_each(repository, "q", [content])
        workshop.clock.advance(KNOWN_MILLIS)
        assert replication.step()
        assert replication.status().lag_transactions == 0

    put_each(repository, "q", [b"three"])
    workshop.clock.advance(KNOWN_MILLIS)
    place.fault = gone
    assert not replication.step()
    place.fault = lambda _kind, _key: None
    assert replication.step()

    assert [type(error) for error in failures] == [BucketUnavailable]
    assert files.count("create", f"*/{KNOWN}*") >= 3
