"""A register of erasures: what is restored from a backup of before an erasure has nothing of whom it names."""

import shutil
from pathlib import Path

import pytest

import ullage
from tests.engine.test_erasure import (
    CONTENT,
    PLAIN,
    SMALL,
    UNTOLD,
    VALUE,
    erase,
    files_with,
    opened_anew,
    others,
    plant,
    plant_everything,
)
from tests.engine.test_erasure_finder import CANARY, OTHER
from tests.shipping.held import HeldShare
from tests.shipping.test_shipper import SHIPPED, begun
from tests.support import Workshop, drain, put_all, spec_at
from ullage.embedded.erasure import erase_registered, keep_register, register_at
from ullage.embedded.repository import described
from ullage.embedded.upkeep import is_whole
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.registers import PendingErasure, pending_erasure, register_path
from ullage.engine.shipping.sharerestoring import identity_in, restore_share, share_to_restore
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.errors import DirectoryNotEmpty, InvalidArgument, NotARepository, RepositoryDamaged
from ullage.wire.upkeep import Keep

SECOND = {"customer": "canary-4713", "kind": "order"}


class Stopped(Exception):
    """Somebody pulled the plug between two steps."""


def test_what_was_erased_does_not_come_back(workshop: Workshop, tmp_path: Path) -> None:
    """Of two subjects, wherever they stood when it was backed up; all that is others' does. Without a register they
    come back, and are there.
    """
    repository = workshop.make(**PLAIN, **SMALL)
    plant_everything(repository)
    put_all(repository, "in", [b"of the second one"], **SECOND)
    put_all(repository, "in", [b"who has half of it"], kind="order", customer="canary-4714")
    repository.leases.acquire("reader", 60_000, [])
    repository.backup(str(tmp_path / "backup"))
    repository.leases.release(next(iter(repository.ledger.leases)))
    repository = opened_anew(workshop)
    erase(repository)
    repository = opened_anew(workshop)
    erase(repository, UNTOLD, **SECOND)
    before = others(opened_anew(workshop))
    register = tmp_path / "kept" / "register"
    register.parent.mkdir()
    keep_register(described(workshop.path, None), str(register))

    restored = ullage.restore(tmp_path / "backup", tmp_path / "again", registers=[register])

    assert sorted(each.attributes for each in restored.erased) == [("customer",), ("customer", "kind")]
    assert all(each.is_finished for each in restored.erased)
    assert restored.check.problems == ()
    assert files_with(tmp_path / "again", VALUE, CONTENT, SECOND["customer"].encode(), b"of the second one") == {}
    with Engine.open(spec_at(tmp_path / "again")) as again:
        assert others(again) == before
    assert {each.digest for each in register_at(register_path(str(tmp_path / "again")))} == {
        each.digest for each in register_at(str(register))
    }

    ullage.restore(tmp_path / "backup", tmp_path / "without")

    assert files_with(tmp_path / "without", VALUE)


@pytest.fixture(name="backed_up")
def _backed_up(workshop: Workshop, tmp_path: Path) -> Path:
    """A backup of before an erasure; `register` beside it."""
    repository = workshop.make(**PLAIN)
    plant(repository, "in")
    repository.provenance.drain()
    repository.backup(str(tmp_path / "backup"))
    repository = opened_anew(workshop)
    erase(repository)
    opened_anew(workshop)
    keep_register(described(workshop.path, None), str(tmp_path / "register"))
    return tmp_path / "backup"


@pytest.mark.parametrize("phases", range(8))
def test_one_that_was_interrupted_goes_on(backed_up: Path, tmp_path: Path, phases: int) -> None:
    """Until it is through, nobody opens what was restored; the register needs not be said again."""
    told, root = list[str](), tmp_path / "again"

    def on_phase(words: str) -> None:
        told.append(words)
        if len(told) > phases:
            raise Stopped

    with pytest.raises(Stopped):
        ullage.restore(backed_up, root, registers=[tmp_path / "register"], on_phase=on_phase)
    with pytest.raises(NotARepository, match="run `ullage restore` again"):
        Engine.open(spec_at(root))
    with pytest.raises(NotARepository, match="run `ullage restore` again"):
        ullage.open(root)
    assert not is_whole(str(root))
    with pytest.raises(DirectoryNotEmpty, match="say that place"):
        ullage.restore(tmp_path / "another", root)

    restored = ullage.restore(backed_up, root)

    assert [each.is_finished for each in restored.erased] == [True]
    assert restored.backup.copied_files > 0
    assert files_with(root, VALUE, CONTENT) == {}
    assert is_whole(str(root))
    with Engine.open(spec_at(root)) as again:
        assert {each.attribute_map()["customer"] for each in again.ledger.flow_files()} == {OTHER["customer"]}


def test_what_cannot_all_be_erased_stays_closed(backed_up: Path, tmp_path: Path) -> None:
    """Until somebody has mended it: then it goes on from the intent, though the records are gone."""
    root, told = tmp_path / "again", list[str]()

    def stop(_words: str) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        ullage.restore(backed_up, root, registers=[tmp_path / "register"], on_phase=stop)
    (path,) = root.glob("provenance/events/*.parquet")
    whole = path.read_bytes()
    path.write_bytes(b"\0" * len(whole))

    (erased,) = ullage.restore(backed_up, root, on_phase=told.append).erased

    assert not erased.is_finished
    assert [path.name in each for each in erased.remains] == [True]
    assert [each for each in told if each.startswith("could not be read")]
    with pytest.raises(NotARepository, match="run `ullage restore` again"):
        Engine.open(spec_at(root))
    path.write_bytes(whole)
    assert [each.is_finished for each in ullage.restore(backed_up, root).erased] == [True]
    assert files_with(root, VALUE, CONTENT) == {}
    assert is_whole(str(root))


def test_each_later_backup_has_the_register(workshop: Workshop, tmp_path: Path) -> None:
    """So whichever of its generations is restored, nobody has to say a file, also where the disk is lost. Who came anew
    stays: of what a generation holds that is of after the erasure, nothing is looked at.
    """
    repository, backup = workshop.make(**PLAIN), tmp_path / "backup"
    plant(repository, "in")
    repository.backup(str(backup), keep=Keep(last=9))
    repository = opened_anew(workshop)
    erase(repository)
    repository = opened_anew(workshop)
    repository.backup(str(backup))
    put_all(repository, "in", [b"come anew"], **CANARY)
    repository.backup(str(backup))
    workshop.shut()
    shutil.rmtree(workshop.path)
    came = []

    for generation in (1, 2, 3):
        root = tmp_path / f"of {generation}"
        came.append([each.uuids for each in ullage.restore(backup, root, generation=generation).erased])
        assert bool(files_with(root, VALUE)) == (generation == 3)
        assert register_at(register_path(str(root)))

    assert came == [[1], [], []]
    for generation, count in ((1, 2), (3, 3)):
        some = ullage.restore_some(backup, tmp_path / f"some of {generation}", queues=["in"], generation=generation)
        assert some.queues == {"in": count}
    assert files_with(tmp_path / "some of 1", VALUE, CONTENT) == {}
    with Engine.open(spec_at(tmp_path / "of 3")) as again:
        assert drain(again, "in") == [b"theirs, before", b"theirs, behind", b"come anew"]


def test_who_came_anew_after_a_restoration_stays(workshop: Workshop, tmp_path: Path) -> None:
    """Its transactions are numbered from an older one on again: what was backed up before has higher numbers, and the
    subject, and what is backed up now has lower ones, and who came anew.
    """
    repository, backup, again = workshop.make(**PLAIN), tmp_path / "backup", tmp_path / "again"
    plant(repository, "in")
    repository.backup(str(backup), keep=Keep(last=9))
    for _ in range(20):
        put_all(repository, "in", [b"theirs"], **OTHER)
    later = repository.backup(str(backup))
    erase(opened_anew(workshop))
    opened_anew(workshop).backup(str(backup))
    ullage.restore(backup, again, generation=1)
    with ullage.open(again) as restored:
        restored.queues.put_many("in", [b"come anew"], CANARY)
        made = restored.backup(str(backup))
    assert made.last_id < later.last_id

    for generation in (2, made.generation):
        ullage.restore(backup, tmp_path / f"of {generation}", generation=generation)

    assert files_with(tmp_path / "of 2", VALUE, CONTENT) == {}
    with Engine.open(spec_at(tmp_path / "of 4")) as of_now:
        assert drain(of_now, "in") == [b"theirs, before", b"theirs, behind", b"come anew"]


def test_what_is_no_register_is_told_before_anything_is_made(backed_up: Path, tmp_path: Path) -> None:
    """Else it would come back, and nobody would know."""
    for path, match in ((tmp_path / "missing", "is not there"), (backed_up / "backup.json", "no register")):
        with pytest.raises(InvalidArgument, match=match):
            ullage.restore(backed_up, tmp_path / "again", registers=[path])

    assert not (tmp_path / "again").exists()


def test_a_register_names_nobody_and_grows(backed_up: Path, workshop: Workshop, tmp_path: Path) -> None:
    """Who is erased once more is in it once; it is read by its owner only; one that is damaged stops an erasure."""
    register = tmp_path / "register"
    assert VALUE not in register.read_bytes()
    assert register.stat().st_mode & 0o777 == 0o600
    plant(workshop.repository, "in", content=b"once more")
    put_all(workshop.repository, "in", [b"of the second one"], **SECOND)
    erase(opened_anew(workshop))
    erase(opened_anew(workshop), UNTOLD, **SECOND)
    opened_anew(workshop)

    keep_register(described(workshop.path, None), str(register))

    first, second = register_at(str(register))
    assert (first.attributes, second.attributes) == (("customer",), ("customer", "kind"))
    assert first.key == second.key
    path = Path(register_path(str(workshop.path)))
    path.write_bytes(path.read_bytes()[:-1])
    plant(workshop.repository, "in")
    with pytest.raises(RepositoryDamaged, match="is damaged"):
        erase(opened_anew(workshop))
    assert files_with(workshop.path, CONTENT)


def test_what_was_erased_does_not_come_back_from_a_share(workshop: Workshop, tmp_path: Path) -> None:
    """Its log is replayed as after an unclean end, and then what the register names goes."""
    repository, place = workshop.make(**PLAIN, **SHIPPED), HeldShare()
    put_all(repository, "in", [CONTENT], **CANARY)
    shipper = begun(repository, place)
    put_all(repository, "in", [CONTENT], **CANARY)
    put_all(repository, "in", [b"theirs"], **OTHER)
    shipper.step()
    repository = opened_anew(workshop)
    erase(repository)
    repository = opened_anew(workshop)
    subjects = register_at(register_path(str(workshop.path)))
    asked = share_to_restore(place, repository.identity.repository, None)
    wanted = PendingErasure(format=FORMAT_VERSION, source="s3://here", asked=None, subjects=subjects)
    root = tmp_path / "again"

    made = restore_share(OsFiles(), asked, identity_in(asked), spec_at(root), lambda _: None, wanted)

    noted = pending_erasure(OsFiles(), str(root))
    assert noted is not None
    assert (noted.subjects, noted.made) == (subjects, made)
    assert files_with(root, VALUE)
    (erased,) = erase_registered(described(root, None), noted, UNTOLD)
    assert (erased.uuids, erased.is_finished) == (2, True)
    assert files_with(root, VALUE, CONTENT) == {}
    with Engine.open(spec_at(root)) as again:
        assert again.check(deep=True).problems == ()
        assert [each.attribute_map()["customer"] for each in again.ledger.flow_files()] == [OTHER["customer"]]
