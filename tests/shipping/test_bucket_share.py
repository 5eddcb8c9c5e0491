"""A share in a bucket of a real server, and what goes wrong on the way there."""

import os
from collections.abc import Callable, Iterator

import msgspec
import pytest
from crc32c import crc32c

from tests.places import Gateway, Place
from tests.remote.flaky import Flaky, flaky_running
from tests.shipping.test_objects import SERDE, SHARE
from ullage.engine.model import ContentClaim
from ullage.engine.shipping.contentpack import pack_length, pack_pieces, read_pack_index, read_packed
from ullage.engine.shipping.logobject import LogBatch
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.probing import probe
from ullage.engine.shipping.publishing import publish
from ullage.engine.shipping.sharedocs import ListedBase
from ullage.engine.shipping.shareplace import PINS, PROBES, SharePlace, ShareWriter, Taken, base_name, pack_name
from ullage.errors import BucketRefused, BucketUnavailable, RepositoryDamaged, ShareFenced
from ullage.remote.share import BucketShare

MB = 1 << 20


@pytest.fixture
def place(bucket: Place) -> SharePlace:
    assert bucket.bucket is not None
    return BucketShare(bucket.bucket)


@pytest.fixture
def shaken(bucket: Place, gateway: Gateway) -> Iterator[tuple[Flaky, SharePlace]]:
    """The same by way of a proxy that does some requests wrong."""
    assert bucket.bucket is not None
    with flaky_running(gateway) as (flaky, url):
        yield flaky, BucketShare(msgspec.structs.replace(bucket.bucket, endpoint=url, patience_seconds=1))


def payloads(place: SharePlace) -> list[bytes]:
    return [payload for each in read_log(place, SHARE, SERDE) for payload in each.payloads]


def test_a_probe_leaves_nothing_and_tells_a_server_that_keeps_no_conditions(
    place: SharePlace, shaken: tuple[Flaky, SharePlace]
) -> None:
    """Of either kind: a put where there is nothing, and one in the place of what was read."""
    flaky, through = shaken
    probe(place)
    for ignored in ("if-none-match", "if-match"):
        flaky.fault = ignoring(flaky, ignored)
        with pytest.raises(BucketRefused, match="win at once"):
            probe(through)
    assert place.lengths(PROBES) == {}


def ignoring(flaky: Flaky, condition: str) -> Callable[[str, str, int], str]:
    """The 32 puts of the first race have the one condition, those of the second the other."""
    before, puts = flaky.count, list[int]()

    def fault(method: str, _path: str, number: int) -> str:
        if method == "PUT":
            puts.append(number - before)
        is_first = len(puts) <= 32
        return "ignored" if method == "PUT" and is_first == (condition == "if-none-match") else ""

    return fault


def test_a_successor_ends_its_predecessor_and_goes_on_behind_it(place: SharePlace) -> None:
    """What each was told is there is read by whoever comes later."""
    first = LogWriter.begin(place, SHARE, "a", SERDE)
    first.append(LogBatch(1, 0, [b"one"]))
    second = LogWriter.begin(place, SHARE, "b", SERDE)
    with pytest.raises(ShareFenced, match="another writer"):
        first.append(LogBatch(2, 0, [b"never"]))
    second.append(LogBatch(2, 0, [b"two", b"three"]))

    assert payloads(place) == [b"one", b"two", b"three"]
    with pytest.raises(ShareFenced):
        first.require_epoch()


def test_a_put_whose_answer_was_lost_is_there_once(shaken: tuple[Flaky, SharePlace], place: SharePlace) -> None:
    """The condition of its second try fails, and the nonce says that what lies there is the same."""
    flaky, through = shaken
    for kind in ("unanswered", "cut", "lost", "503", "conflict"):
        flaky.fault = once(kind)
        writer = LogWriter.begin(through, SHARE, "a", SERDE)
        flaky.fault = once(kind)
        last = len(payloads(place))
        writer.append(LogBatch(last + 1, 0, [kind.encode()]))

    assert payloads(place) == [b"unanswered", b"cut", b"lost", b"503", b"conflict"]
    assert set(flaky.done) == {"unanswered", "cut", "lost", "503", "conflict"}


def once(kind: str) -> Callable[[str, str, int], str]:
    """The next put goes wrong."""
    left = [kind]
    return lambda method, _path, _number: left.pop() if method == "PUT" and left else ""


def test_while_the_bucket_is_gone_nothing_counts_and_then_it_goes_on(shaken: tuple[Flaky, SharePlace]) -> None:
    """The same batch is given again, and is there once."""
    flaky, through = shaken
    writer = LogWriter.begin(through, SHARE, "a", SERDE)
    batch = LogBatch(1, 0, [b"one"])
    flaky.fault = lambda *_: "503"
    with pytest.raises(BucketUnavailable):
        writer.append(batch)
    flaky.fault = lambda *_: ""
    number = writer.append(batch)

    assert (number, payloads(through)) == (2, [b"one"])


def test_a_pin_whose_answer_was_lost_is_there(shaken: tuple[Flaky, SharePlace], place: SharePlace) -> None:
    """Once, while something is read."""
    flaky, through = shaken
    writer = ShareWriter(1, "0" * 16)
    base = ListedBase(name=base_name(1, writer, 1), transaction=1, millis=1, next_log=1, next_pack=1)
    publish(place, SHARE, writer, base, 0)
    flaky.fault = once("unanswered")
    with pinned(through, SHARE, base, 0):
        assert len(place.lengths(PINS)) == 1

    assert (flaky.done, place.lengths(PINS)) == (["unanswered"], {})


def test_a_pack_is_put_in_parts_while_it_is_read(place: SharePlace) -> None:
    """And one of its contents is read without the others."""
    contents = [os.urandom(20 * MB), b"small", os.urandom(9 * MB)]
    claims = [ContentClaim(n, 0, len(data), crc32c(data)) for n, data in enumerate(contents, 1)]
    writer = ShareWriter(1, "0" * 16)

    def read(claim: ContentClaim) -> Iterator[bytes]:
        data = contents[claim.resource - 1]
        return (data[at : at + MB] for at in range(0, len(data), MB))

    name = pack_name(writer, 1)
    place.put_pieces(name, pack_pieces(SHARE, writer, 1, claims, read), pack_length(claims))
    index = read_pack_index(place, name, SHARE)

    assert [b"".join(read_packed(place, index, claim)) for claim in claims] == contents
    assert list(place.lengths("content")) == [name]


def test_what_is_there_is_not_put_again(place: SharePlace) -> None:
    """Nor in the place of what is not there any more."""
    place.put_new("epoch", b"a")
    found = place.get("epoch")
    assert found is not None
    with pytest.raises(Taken):
        place.put_new("epoch", b"b")
    place.put_over("epoch", b"b", found.tag)
    with pytest.raises(Taken):
        place.put_over("epoch", b"c", found.tag)
    assert place.read("nothing", 0, 10) == b""
    with pytest.raises(RepositoryDamaged):
        LogWriter.begin(place, SHARE, "a", SERDE)  # what lies there is no epoch
