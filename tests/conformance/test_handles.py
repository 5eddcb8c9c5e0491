"""What handles promise, whichever way the repository is reached."""

import io
from collections.abc import Callable

import pytest

import ullage.testing
from tests.service.running import until
from ullage import Repository
from ullage.errors import (
    HandleDeleted,
    HandleNotDeleted,
    HandleNotFound,
    InvalidArgument,
    KeyReused,
    RangeNotSatisfiable,
)
from ullage.interface.values import AnyContent

UNKNOWN = "00000000-0000-0000-0000-000000000000"


def test_content_of_any_size_and_kind_is_stored_and_read(repository: Repository) -> None:
    """Bytes, files and pieces come back whole and in ranges, with their attributes."""
    handles = repository.handles
    large = bytes(range(256)) * 20_000

    kinds: list[tuple[AnyContent, int]] = [(b"", 0), (b"small", 5), (io.BytesIO(large), len(large))]
    for content, size in kinds:
        handle = handles.put(content, {"größe": str(size)})
        head = handles.head(handle)
        assert (head.size, head.attributes["größe"], head.expires_millis, head.deleted_millis) == (
            size,
            str(size),
            0,
            0,
        )
        assert len(handles.get(handle)) == size
    handle = handles.put(iter([large, b"end"]))
    with handles.stream(handle, 300_000, 100_000) as part:
        assert (part.size, part.read()) == (100_000, large[300_000:400_000])
    with handles.stream(handle, len(large)) as end, handles.stream(handle, len(large) + 3) as nothing:
        assert (end.read(), nothing.read()) == (b"end", b"")
    with pytest.raises(RangeNotSatisfiable):
        handles.stream(handle, len(large), 4)


def test_batches_are_stored_and_read_in_order(repository: Repository) -> None:
    """Attributes are for all, or one mapping each; small and large contents may stand side by side."""
    contents = [b"", b"one", b"x" * 1_000_000, *(str(n).encode() for n in range(40))]

    found = repository.handles.put_many(contents, [{"n": str(n)} for n in range(len(contents))])
    same = repository.handles.put_many([b"a", b"b"], {"kind": "pair"})

    assert repository.handles.get_many([*reversed(found)]) == contents[::-1]
    assert [repository.handles.head(handle).attributes["n"] for handle in found[:3]] == ["0", "1", "2"]
    assert [repository.handles.head(handle).attributes["kind"] for handle in same] == ["pair", "pair"]
    assert repository.handles.put_many([]) == []
    with pytest.raises(InvalidArgument):
        repository.handles.put_many([b"a", b"b"], [{}])
    with pytest.raises(HandleNotFound):
        repository.handles.get_many([found[0], UNKNOWN])


def test_a_repeat_with_its_key_stores_nothing_twice(repository: Repository) -> None:
    """The first handle is the answer, and the key is good for the same put alone."""
    puts: list[Callable[[bytes], object]] = [
        lambda content: repository.handles.put(content, key="one"),
        lambda content: repository.handles.put_many([content, content], key="many"),
        lambda content: repository.queues.put("in", content, key="queue"),
        lambda content: repository.queues.put_many("in", [content, content], key="queue many"),
    ]
    for put in puts:
        assert put(b"first") == put(b"first")
        with pytest.raises(KeyReused):
            put(b"another")
    assert len(list(repository.handles.all())) == 3
    assert repository.queues.find("in").flow_files == 3


def test_any_key_is_good_for_a_put_of_several_transactions(repository: Repository) -> None:
    """What each of them is known by is neither too long nor the key of another put."""
    contents = [b""] * 10_001
    for key in ("k" * 255, "many"):
        found = repository.handles.put_many(contents, key=key)
        assert repository.handles.put_many(contents, key=key) == found
    assert repository.handles.get(repository.handles.put(b"another", key="many-1")) == b"another"
    assert len(list(repository.handles.all())) == 2 * len(contents) + 1


def test_a_key_that_came_with_other_content_is_refused_however_long_that_was() -> None:
    """The second content would silently be stored nowhere. Of a stream only what is said of it can be compared."""
    with ullage.testing.open() as repository:
        puts: list[Callable[[bytes], object]] = [
            lambda content: repository.handles.put(content, key="one"),
            lambda content: repository.queues.put_many("in", [content], key="many"),
        ]
        for put in puts:
            assert put(b"one") == put(b"one")
            with pytest.raises(KeyReused):
                put(b"two")


def test_a_deleted_handle_can_be_read_on_request_and_brought_back(repository: Repository) -> None:
    """It is gone for whoever does not ask for deleted ones; undeleted it is as before."""
    handles = repository.handles
    handle = handles.put(b"content")
    with pytest.raises(HandleNotDeleted):
        handles.undelete(handle)

    handles.delete(handle)

    for call in (handles.get, handles.delete, lambda one: handles.set_ttl(one, 1)):
        with pytest.raises(HandleDeleted):
            call(handle)
    assert handles.head(handle).deleted_millis > 0
    assert handles.get(handle, include_deleted=True) == b"content"
    handles.undelete(handle)
    assert (handles.get(handle), handles.head(handle).deleted_millis) == (b"content", 0)


def test_an_expired_handle_can_be_read_on_request_only(repository: Repository) -> None:
    """Its time to live may be changed while it lasts; afterwards its bytes are there until it is purged."""
    handles = repository.handles
    kept, handle = handles.put_many([b"kept", b"content"], ttl_millis=3_600_000)
    assert handles.set_ttl(kept, 0).expires_millis == 0

    expires = handles.set_ttl(handle, 1).expires_millis
    until(lambda: repository.state().now_millis > expires, "the handle's time to be over")

    with pytest.raises(HandleDeleted):
        handles.get(handle)
    with pytest.raises(HandleDeleted):
        handles.set_ttl(handle, 0)
    assert handles.get(handle, include_deleted=True) == b"content"
    assert handles.get(kept) == b"kept"


@pytest.mark.parametrize("name", [UNKNOWN, "0" * 32, "no handle at all"])
def test_what_there_is_not_is_not_found(repository: Repository, name: str) -> None:
    """Every method that names a handle says so."""
    handles = repository.handles
    for call in (
        handles.get,
        handles.head,
        handles.delete,
        handles.undelete,
        lambda one: handles.set_ttl(one, 1),
        lambda one: handles.get_many([one]),
        lambda one: handles.get(one, include_deleted=True),
    ):
        with pytest.raises(HandleNotFound):
            call(name)


def test_handles_are_listed_in_pages(repository: Repository) -> None:
    """By id, deleted ones included, each once."""
    handles = repository.handles
    stored = handles.put_many([b"x"] * 7)
    handles.delete(stored[0])

    first = handles.page(limit=4)
    rest = handles.page(after=first.next or "", limit=4)

    ids = [head.id for head in (*first.handles, *rest.handles)]
    assert (len(first.handles), rest.next) == (4, None)
    assert ids == sorted(handle.partition("@")[0] for handle in stored) == [head.id for head in handles.all()]
    assert [head.handle for head in handles.all()] == sorted(stored)
