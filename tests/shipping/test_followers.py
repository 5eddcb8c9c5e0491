"""Who took a share from a root, whoever has it by now: what both have stands before that one's fence, where it is
proved that all was this root's own.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.shipping.test_fence import SERDE
from tests.shipping.test_fenced import Shipping, begun_again, shipping as shipping
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.support import spec_at
from ullage.embedded.replication import Replication
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.servingright import ServingRight
from ullage.engine.shipping.adopting import Follower, follower_of, owner_of
from ullage.engine.shipping.logobject import NOTHING
from ullage.engine.shipping.logreader import newest_log
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.ownwriters import NOTE, forget_writers, last_own_writer
from ullage.engine.shipping.shareplace import ShareWriter


class Started:
    """A copy of the root, at work."""

    def __init__(self, engine: Engine, made: Shipping) -> None:
        self.engine = engine
        self.replication = Replication(
            engine, made.place, "s3://held", "node-2", engine.spec.replication, lambda *_: None
        )
        self.repository = EmbeddedRepository(engine, replication=self.replication)


@contextmanager
def started(root: Path, made: Shipping) -> Iterator[Started]:
    with closing(Engine.open(spec_at(root, **SHIPPED), OsFiles(), made.clock)) as engine:
        yield Started(engine, made)
        engine.committer.right.end()


def shipped(made: Shipping, *contents: bytes) -> None:
    assert made.replication.step()
    for content in contents:
        made.repository.handles.put(content)
        assert made.replication.step()


def followed(made: Shipping, root: str | Path) -> Follower | None:
    wrote = last_own_writer(OsFiles(), str(root), made.place.name)
    return follower_of(made.place, made.share, wrote) if wrote else None


@pytest.mark.parametrize("is_earlier", [False, True])
def test_who_followed_a_root_is_told_by_its_note(shipping: Shipping, tmp_path: Path, is_earlier: bool) -> None:
    """Also once it has been started since. A copy of an earlier state does not go on with what was shipped. A fence of
    the root's own that came late, and an adoption behind, are none of it.
    """
    engine, place, share = shipping.engine, shipping.place, shipping.share
    shipped(shipping, b"one")
    for act in ("copy", "put") if is_earlier else ("put", "copy"):
        if act == "put":
            shipped(shipping, b"two")
        else:
            shutil.copytree(engine.root, tmp_path / "copy")
    assert followed(shipping, engine.root) is None
    fence = newest_log(place) + 1
    with started(tmp_path / "copy", shipping) as copy:
        assert copy.replication.step()
        for _ in range(2):
            shipping.replication.step()
            assert followed(shipping, engine.root) == Follower(fence, not is_earlier)
            shipping.replication = begun_again(shipping)
        late = ShareWriter(1, last_own_writer(engine.files, engine.root, place.name))
        LogWriter(place, share, late, SERDE, newest_log(place) + 1).append(NOTHING)
        shipping.adopted()
        assert followed(shipping, engine.root) == Follower(fence, not is_earlier)


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_copy_that_never_wrote_does_not_claim_what_was_put_by_its_name(
    shipping: Shipping, tmp_path: Path, is_behind: bool, is_idle: bool
) -> None:
    """It carries the note of the root. Only where its own log ends as what was shipped did, that is its own too."""
    shipped(shipping, b"one", b"two")
    shutil.copytree(shipping.engine.root, tmp_path / "copy")
    if is_behind:
        shipping.repository.handles.delete(shipping.repository.handles.put(b"three"))
        shipped(shipping)
    fence = newest_log(shipping.place) + 1
    LogWriter.begin(shipping.place, shipping.share, "node-1", SERDE)  # the root, started once more
    with started(tmp_path / "copy", shipping) as copy:
        if not is_idle:
            copy.repository.handles.put(b"of the copy alone")
        assert not copy.replication.step()
        assert followed(shipping, tmp_path / "copy") == (None if is_behind else Follower(fence, True))


def test_a_root_that_was_closed_when_all_was_shipped_has_all_of_it(shipping: Shipping, tmp_path: Path) -> None:
    """Its mark says so, as long as nothing was committed behind it that may have been shipped since."""
    shipped(shipping, b"one")
    root = tmp_path / "copy"
    shutil.copytree(shipping.engine.root, root)
    with started(root, shipping) as copy:
        copy.replication.start()
        copy.repository.handles.put(b"two")
        copy.repository.close()
    shutil.copytree(root, tmp_path / "closed")
    with started(root, shipping) as copy:
        handle = copy.repository.handles.put(b"without shipping")
    shutil.copytree(root, tmp_path / "back")
    fence = newest_log(shipping.place) + 1
    with started(root, shipping) as copy:
        assert copy.replication.step()
        copy.repository.handles.delete(handle)
        assert copy.replication.step()
    for closed, wanted in ((tmp_path / "closed", Follower(fence, True)), (tmp_path / "back", None)):
        with started(closed, shipping) as copy:
            assert not copy.replication.step()
            assert followed(shipping, closed) == wanted


@pytest.mark.parametrize("forget", [forget_writers, lambda files, root: files.unlink(os.path.join(root, NOTE))])
def test_who_was_noted_to_take_a_share_from_has_not_written_as_this_root(
    shipping: Shipping, forget: Callable[[OsFiles, str], None]
) -> None:
    """The note names whoever is in `epoch`, once somebody says that the share is to be taken; what that one put, and
    removed, this root never had.
    """
    engine = shipping.engine
    shipped(shipping, b"one")
    shipping.adopted()
    adopter = owner_of(shipping.place, shipping.share).nonce
    assert not shipping.replication.step()
    assert followed(shipping, engine.root) is not None
    forget(OsFiles(), engine.root)
    engine.committer.right = shipping.repository.acting.right = ServingRight()
    again = begun_again(shipping)
    assert not again.step()
    assert again.status().state == "fenced"
    assert last_own_writer(engine.files, engine.root, shipping.place.name) != adopter


def test_all_who_came_later_have_gone_on(shipping: Shipping, tmp_path: Path) -> None:
    """Else what the last lacks, an earlier one has shipped: it is not alone here, and not there."""
    shipped(shipping, b"one")
    shutil.copytree(shipping.engine.root, tmp_path / "earlier")
    shipped(shipping, b"two")
    shutil.copytree(shipping.engine.root, tmp_path / "copy")
    fence = newest_log(shipping.place) + 1
    with started(tmp_path / "copy", shipping) as copy:
        assert copy.replication.step()
        copy.repository.handles.put(b"three")
        assert copy.replication.step()
        shipping.replication.step()
        assert followed(shipping, shipping.engine.root) == Follower(fence, True)
    forget_writers(OsFiles(), str(tmp_path / "earlier"))
    with started(tmp_path / "earlier", shipping) as earlier:
        assert earlier.replication.step()
        assert followed(shipping, shipping.engine.root) == Follower(fence, False)
