"""Who took a share from a root, whoever has it by now: what both have stands before that one's fence."""

import shutil
from pathlib import Path

import pytest

from tests.shipping.test_fence import SERDE
from tests.shipping.test_fenced import Shipping, begun_again, shipping as shipping
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.support import spec_at
from ullage.embedded.replication import Replication
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.shipping.adopting import Follower, follower_of
from ullage.engine.shipping.logobject import NOTHING
from ullage.engine.shipping.logreader import newest_log
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.ownwriters import noted, own_writers
from ullage.engine.shipping.shareplace import ShareWriter


@pytest.mark.parametrize("is_earlier", [False, True])
def test_who_followed_a_root_is_told_by_its_note(shipping: Shipping, tmp_path: Path, is_earlier: bool) -> None:
    """Also once the root is fenced, and has been started since. A copy of an earlier state does not go on with what was
    shipped. A fence of the root's own that came late, and an adoption behind, are none of it.
    """
    engine, place, share = shipping.engine, shipping.place, shipping.share

    def followed() -> Follower | None:
        return follower_of(place, share, own_writers(engine.files, engine.root, place.name))

    assert shipping.replication.step()
    shipping.repository.handles.put(b"one")
    shipping.replication.step()
    for act in ("copy", "put") if is_earlier else ("put", "copy"):
        if act == "put":
            shipping.repository.handles.put(b"two")
            shipping.replication.step()
        else:
            shutil.copytree(engine.root, tmp_path / "copy")
    assert followed() is None
    fence = newest_log(place) + 1
    spec = spec_at(tmp_path / "copy", **SHIPPED)
    copy = Engine.open(spec, OsFiles(), shipping.clock)
    other = Replication(copy, place, "s3://held", "node-2", spec.replication, shipping.tell)
    assert other.step()
    for _ in range(2):
        shipping.replication.step()
        assert followed() == Follower(fence, not is_earlier)
        shipping.replication = begun_again(shipping)
    note = noted(engine.files, engine.root, place.name)
    assert note is not None
    late = ShareWriter(1, note.nonces[-1])
    LogWriter(place, share, late, SERDE, newest_log(place) + 1).append(NOTHING)
    shipping.adopted()
    assert followed() == Follower(fence, not is_earlier)
    copy.committer.right.end()
    copy.close()
