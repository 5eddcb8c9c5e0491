"""The note of who has the share of a root that was fenced: damaged, unreadable for a moment, or without room."""

import errno
import os
from collections.abc import Callable

import pytest

from tests.service.running import until
from tests.shipping.held import gone
from tests.shipping.test_fenced import Shipping, begun_again, shipping as shipping
from ullage.engine.servingright import ServingRight
from ullage.engine.shipping import ownwriters
from ullage.engine.shipping.ownwriters import NOTE, forget_writers, noted_fence
from ullage.engine.shipping.shareplace import EPOCH
from ullage.errors import NodeFenced


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def too_many_open(*_: object) -> bytes:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("damage", [lambda data: b"{", lambda data: data.replace(b"fenced_by", b"fenced_bz")])
def test_a_note_that_is_damaged_takes_nothing_until_somebody_says_so(
    shipping: Shipping, damage: Callable[[bytes], bytes]
) -> None:
    """Nobody knows what it said. It stays damaged, whatever the bucket says: that may have been this root itself."""
    shipping.replication.step()
    handle = shipping.repository.handles.put(b"kept")
    shipping.replication.step()
    path = os.path.join(shipping.engine.root, NOTE)
    with open(path, "rb") as note:
        damaged = damage(note.read())
    for _ in range(2):
        with open(path, "wb") as note:
            note.write(damaged)
        shipping.engine.committer.right = shipping.repository.acting.right = ServingRight()
        again = begun_again(shipping)
        with pytest.raises(NodeFenced, match=r"share-writer.json in the root .* is damaged.*says which node wrote it"):
            shipping.repository.handles.put(b"more")
        assert not again.step()
        with pytest.raises(NodeFenced, match=r"s3://held .*node-1.* wrote it last.*--take-share.*read-only"):
            shipping.repository.handles.put(b"more")
        assert shipping.repository.handles.get(handle) == b"kept"
        with open(path, "rb") as note:
            assert note.read() == damaged

    forget_writers(shipping.engine.files, shipping.engine.root)
    shipping.engine.committer.right = shipping.repository.acting.right = ServingRight()
    assert begun_again(shipping).step()
    assert shipping.repository.handles.put(b"more")


def test_a_full_disk_delays_shipping_and_says_so(shipping: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the note the next start would be fenced by the try of this one."""
    with monkeypatch.context() as patch:
        patch.setattr(ownwriters, "replace_file", full)
        for _ in range(2):
            assert not shipping.replication.step()
        assert shipping.replication.status().state == "failing"
        assert "share-writer.json can't be written (No space left" in shipping.replication.status().problem
        assert "make room" in shipping.replication.status().problem
        assert EPOCH not in shipping.place.objects
        assert shipping.repository.handles.put(b"it serves on")
    assert shipping.replication.step()


def test_a_fence_that_finds_a_full_disk_is_noted_once_there_is_room(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the thread of shipping, as long as the node runs: else a start without spec.replication would lift it."""
    shipping.replication.step()
    shipping.copied()
    monkeypatch.setattr("ullage.embedded.replication.PAUSES", (0.001,))
    with monkeypatch.context() as patch:
        patch.setattr(ownwriters, "replace_file", full)
        shipping.replication.start()
        until(lambda: bool(shipping.told), "it is fenced")
        assert "share-writer.json can't be written" in shipping.told[0]
        assert noted_fence(shipping.engine.files, shipping.engine.root) is None
    until(lambda: noted_fence(shipping.engine.files, shipping.engine.root) is not None, "it is noted")
    assert len(shipping.told) == 1
    until(lambda: "can't be written" not in shipping.replication.status().problem, "that is told no more")
    shipping.replication.stop()


def test_a_fence_is_noted_also_where_the_note_could_not_be_read(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what it says then: it is read again until somebody does, at the latest by the stop; a fence that is
    seen behind failures too.
    """
    shipping.replication.step()
    shipping.place.fault = gone
    shipping.replication.step()
    shipping.place.fault = lambda _kind, _key: None
    shipping.copied()
    with monkeypatch.context() as patch:
        patch.setattr(ownwriters, "read_file", too_many_open)
        shipping.replication.start()
        until(lambda: bool(shipping.told[1:]), "it is fenced")
        assert "Too many open files" in shipping.replication.status().problem
    shipping.replication.stop()
    found = noted_fence(shipping.engine.files, shipping.engine.root)
    assert found is not None
    assert found.fenced_by == "node node-2"


def test_nothing_is_acknowledged_while_it_is_asked_who_wrote_a_note_that_is_damaged(shipping: Shipping) -> None:
    """Damaged since the start: the fence is the first to be said."""
    shipping.replication.step()
    shipping.copied()
    with open(os.path.join(shipping.engine.root, NOTE), "wb") as note:
        note.write(b"{")
    looks: list[str] = []

    def asked(kind: str, key: str) -> None:
        if (kind, key) == ("get", EPOCH) and shipping.place.requests.count((kind, key)) == before + 2:
            with pytest.raises(NodeFenced, match="is damaged"):
                shipping.repository.handles.put(b"more")
            looks.append(key)

    before = shipping.place.requests.count(("get", EPOCH))
    shipping.place.fault = asked
    assert not shipping.replication.step()
    assert looks
