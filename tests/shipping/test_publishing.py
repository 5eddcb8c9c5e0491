"""What counts of a share, and what is removed, in every order of two writers and a reader, with puts gone wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from tests.proof.figures import note
from tests.shipping.explored import PUTS, Bucket, Replayed, Request, explore
from tests.shipping.test_objects import SHARE
from ullage.engine.opening import IDENTITY, RepositoryIdentity
from ullage.engine.shipping import pinning
from ullage.engine.shipping.baseobject import BaseHeader, base_pieces
from ullage.engine.shipping.history import PACKS_MEMBER, listed_bases
from ullage.engine.shipping.logobject import NOTHING, NamedPack, encode_log_object
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.publishing import collect, publish, take_manifest
from ullage.engine.shipping.sharedocs import (
    EpochDocument,
    ListedBase,
    ShareManifest,
    decode_document,
    encode_document,
)
from ullage.engine.shipping.shareplace import (
    EPOCH,
    MANIFEST,
    ShareWriter,
    base_name,
    base_of,
    log_name,
    log_number,
    pack_name,
)
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, RepositoryDamaged, ShareFenced

SERDE = SerDe()
DAY = 86_400_000
RETENTION = 5 * DAY
FIRST = ShareWriter(1, "1" * 16)
NOBODY = msgspec.json.encode(
    RepositoryIdentity(format=1, repository=SHARE, created_millis=0, sections=1, containers={})
)


def a_base(writer: ShareWriter, number: int, next_log: int, day: int) -> tuple[ListedBase, bytes]:
    """A base that needs the writer's pack of the same number, and its bytes."""
    transaction = 100 * writer.epoch + number
    name = base_name(transaction, writer, number)
    header = BaseHeader(
        format=1,
        share=SHARE,
        epoch=writer.epoch,
        nonce=writer.nonce,
        transaction=transaction,
        millis=day * DAY,
        next_log=next_log,
    )
    packs = msgspec.json.encode([NamedPack(pack_name(writer, number), 1)])
    data = b"".join(base_pieces(header, [(IDENTITY, [NOBODY]), (PACKS_MEMBER, [packs])]))
    listed = ListedBase(name=name, transaction=transaction, millis=day * DAY, next_log=next_log, next_pack=number + 1)
    return listed, data


def at_first() -> dict[str, bytes]:
    """Two bases of the first writer, of which the older is retained no longer once a third counts."""
    made = [a_base(FIRST, number, 2, 0) for number in (1, 2)]
    manifest = ShareManifest(share=SHARE, epoch=1, nonce=FIRST.nonce, bases=tuple(listed for listed, _ in made))
    return {
        EPOCH: encode_document(EpochDocument(share=SHARE, epoch=1, nonce=FIRST.nonce, owner="node-1")),
        log_name(1): encode_log_object(SHARE, FIRST, 1, NOTHING, SERDE),
        MANIFEST: encode_document(manifest),
        **{listed.name: data for listed, data in made},
        **{pack_name(FIRST, number): b"" for number in (1, 2)},
    }


def put_base(place: Replayed, told: list[bytes], writer: ShareWriter, number: int, next_log: int, day: int) -> None:
    listed, data = a_base(writer, number, next_log, day)
    place.put_pieces(pack_name(writer, number), [b""], 0)
    place.put_pieces(listed.name, [data], len(data))
    try:
        manifest = publish(place, SHARE, writer, listed, RETENTION)
    except BucketUnavailable:  # whether it counts nobody knows: the same is tried once more
        manifest = publish(place, SHARE, writer, listed, RETENTION)
    told.append(b"published " + listed.name.encode())
    if number % 2 == 0:
        collect(place, SHARE, writer, manifest)


def going_on(place: Replayed, told: list[bytes]) -> None:
    """The first writer, as a shipper that has begun: two bases more, and then what nothing needs is removed."""
    put_base(place, told, FIRST, 3, 2, 10)
    put_base(place, told, FIRST, 4, 2, 12)


def taking_over(place: Replayed, told: list[bytes]) -> None:
    """Another one, as a shipper begins: it goes on with what counts, and makes a base later."""
    writer = LogWriter.begin(place, SHARE, "node-2", SERDE, "2" * 16)
    take_manifest(place, SHARE, writer.writer)
    known = [each.name for each in listed_bases(place, SHARE)]
    told.append(" ".join([f"knows {writer.writer.epoch}", *known]).encode())
    put_base(place, told, writer.writer, 2, writer.number, 14)


def reading(place: Replayed, told: list[bytes]) -> None:
    """The oldest base that counts."""
    base = listed_bases(place, SHARE)[0]
    with pinned(place, SHARE, base, 0):
        told.append(b"reads " + base.name.encode())
    told.append(b"has read")


def holds(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
    """What is listed can be restored, as can what is read; what was said to count does; and nothing of a writer counts
    that its successor has not seen.
    """
    if MANIFEST not in objects:
        assert not any(said.startswith(b"published") for each in told for said in each)
        return
    manifest = decode_document(objects[MANIFEST], ShareManifest, SHARE, MANIFEST)
    names = {each.name for each in manifest.bases}
    for each in manifest.bases:
        require_whole(objects, each.name)
    numbers = {number for key in objects if (number := log_number(key)) is not None}
    assert numbers == set(range(1, len(numbers) + 1)), "a log has no hole"
    for said in told:
        if said and said[-1].startswith(b"reads "):
            require_whole(objects, said[-1].decode().removeprefix("reads "))
        for each_said in said:
            kind, *rest = each_said.decode().split()
            if kind == "published":
                assert rest[0] in names, (told, names)
            if kind == "knows":
                older = {each.name for each in manifest.bases if each.writer.epoch < int(rest[0])}
                assert older <= set(rest[1:]), (told, older)


def require_whole(objects: dict[str, bytes], name: str) -> None:
    """A base of these tests needs one pack, of its own number."""
    found = base_of(name)
    assert found is not None
    assert name in objects, f"{name} is gone"
    assert pack_name(found.writer, found.number) in objects, f"the pack of {name} is gone"


@pytest.fixture(autouse=True)
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is replayed: the reader's pin has one name, and no thread renews it."""
    monkeypatch.setattr("ullage.engine.shipping.pinning.secrets.token_hex", lambda _: "f" * 16)
    monkeypatch.setattr(pinning, "pin_held", held_still)


@contextmanager
def held_still(put: Callable[[], None], remove: Callable[[], None]) -> Iterator[None]:
    put()
    try:
        yield
    finally:
        with suppress(BucketUnavailable):  # then it expires
            remove()


def is_of_manifest(request: Request) -> bool:
    return request.key == MANIFEST and request.kind in PUTS


def is_removal(request: Request) -> bool:
    return request.kind == "delete"


def test_what_counts_can_be_restored_whoever_takes_over_and_whatever_becomes_of_puts() -> None:
    """The first writer knows nothing of its successor; a put of the manifest may be lost, unanswered, late or twice."""
    two = explore([going_on, taking_over], holds, 1, begins=at_first(), is_faulty=is_of_manifest)
    note(publishing_states=two.states)
    assert two.ends > 10


def test_where_nothing_counts_yet_a_successor_is_in_the_way_as_well() -> None:
    """Of a writer that is about to publish its first base: there is no manifest to be read."""

    def first_base(place: Replayed, told: list[bytes]) -> None:
        put_base(place, told, FIRST, 3, 2, 10)

    begins = at_first()
    del begins[MANIFEST]
    assert explore([first_base, taking_over], holds, 1, begins=begins, is_faulty=is_of_manifest).ends > 10
    with pytest.raises((AssertionError, RepositoryDamaged)):
        explore([first_base, taking_over], holds, 0, Bucket(is_of_manifest), begins=begins)


@pytest.mark.parametrize("is_faulty", [is_of_manifest, is_removal])
def test_what_is_read_stays(is_faulty: Callable[[Request], bool]) -> None:
    """A reader that has pinned a base reads all of it, though it is dropped meanwhile; a removal may come late."""
    oldest, removed = a_base(FIRST, 1, 2, 0)[0].name, set[bool]()

    def look(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
        holds(objects, told)
        removed.add(oldest not in objects)

    two = explore([going_on, reading], look, 1, begins=at_first(), is_faulty=is_faulty)
    note(pinning_states=two.states)
    assert removed == {True, False}
    assert two.ends > 10


def test_a_writer_alone_is_never_told_of_another() -> None:
    """What lies in its way is its own put, whose answer was lost or which came late."""

    def alone(place: Replayed, told: list[bytes]) -> None:
        try:
            taking_over(place, told)
        except ShareFenced:
            told.append(b"fenced")

    def is_not_fenced(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
        holds(objects, told)
        assert b"fenced" not in told[0]

    assert explore([alone], is_not_fenced, 2, begins=at_first(), is_faulty=is_of_manifest).ends > 10


def test_each_condition_of_the_manifest_is_needed() -> None:
    """With a bucket that takes no notice of them a base counts that its writer's successor has not seen."""
    with pytest.raises(AssertionError):
        explore([going_on, taking_over], holds, 0, Bucket(is_of_manifest), begins=at_first())


def test_a_successor_must_take_the_manifest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its predecessor publishes what it has never seen, or what makes the order of the bases another."""
    monkeypatch.setattr(f"{__name__}.take_manifest", lambda *_: None)
    with pytest.raises((AssertionError, RepositoryDamaged)):
        explore([going_on, taking_over], holds, 0, begins=at_first())
