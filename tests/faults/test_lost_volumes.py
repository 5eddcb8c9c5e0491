"""Each volume is a domain of its own: one that goes away, turns read-only or is swapped stops nothing on the others."""

import errno
import random
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.faults.detached import Detached
from tests.support import TWO, RoomyFiles, Workshop, content_sizes, drain, put_each
from tests.threads import begin
from ullage.engine import documents
from ullage.engine.content.containers import VolumeState
from ullage.engine.engine import Engine
from ullage.engine.files import File
from ullage.errors import ContentWriteFailed, VolumeAway
from ullage_agent.cli.space import survey_document, survey_table

COUNT = 12
SMALL = {"max_flow_files": 1}
"""A file for each content."""


def contents_of(seed: int, count: int = COUNT) -> list[bytes]:
    made = random.Random(seed)
    return [made.randbytes(made.randint(1, 200_000)) for _ in range(count)]


def state(repository: Engine, name: str = "c2") -> VolumeState:
    return repository.content.containers[name].condition.state


@pytest.mark.parametrize("leaves_mount_point", [True, False])
def test_writes_go_to_the_others_while_a_volume_is_away(workshop: Workshop, leaves_mount_point: bool) -> None:
    """Files that were open on it may refuse one write each; then all go to the other volume, and nothing is lost."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    before, meanwhile, after = contents_of(1), contents_of(2), contents_of(3)
    put_each(repository, "q", before)
    volume = Detached(workshop.path)
    volume.take_away(leaves_mount_point=leaves_mount_point)
    repository.volumes.look()
    assert state(repository) is VolumeState.AWAY

    put_each(repository, "q", meanwhile)
    volume.bring_back()
    repository.volumes.look()
    assert state(repository) is VolumeState.AVAILABLE
    put_each(repository, "q", after)

    assert drain(repository, "q") == before + meanwhile + after


def test_a_volume_that_went_away_unseen_is_found_by_the_first_write(workshop: Workshop) -> None:
    """A file that is to be made there is made on another volume instead, in the same call."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    before = contents_of(4, 2)
    put_each(repository, "q", before)
    repository.content.retire_idle()
    volume = Detached(workshop.path)
    volume.take_away()

    meanwhile = contents_of(5)
    put_each(repository, "q", meanwhile)

    assert state(repository) is VolumeState.AWAY
    volume.bring_back()
    repository.volumes.look()
    assert drain(repository, "q") == before + meanwhile


@pytest.mark.parametrize("archive", [True, False])
def test_reclamation_of_the_others_goes_on_and_nothing_vanished_is_freed(workshop: Workshop, archive: bool) -> None:
    """Runs clean the volume that is there. What is on the other one is neither archived nor freed before it is back."""
    repository = workshop.make(storage=TWO, claims=SMALL, archive={"enabled": archive, "backpressure_percentage": 100})
    put_each(repository, "q", contents_of(6))
    repository.content.retire_idle()
    repository.reclamation.clean()
    drain(repository, "q")
    volume = Detached(workshop.path)
    volume.take_away()
    on_it = set(content_sizes(volume.aside))

    report = repository.reclamation.clean()

    records = {entry.claim.container for entry in repository.ledger.entries() if not entry.claim.archived_millis}
    assert records == {"c2"}
    assert report.done.total() > 0
    repository.reclamation.truncate()
    repository.compactor.execute(repository.compactor.plan(policy="CompactAll"))
    assert set(content_sizes(volume.aside)) == on_it

    volume.bring_back()
    repository.volumes.look()
    repository.reclamation.clean()
    assert [entry for entry in repository.ledger.entries() if not entry.claim.archived_millis] == []
    if not archive:
        assert content_sizes(workshop.path) == {}


def test_what_is_committed_while_its_volume_vanishes_fails_definitely(workshop: Workshop) -> None:
    """The session is refused with one clear error, and the next one writes elsewhere."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    volume = Detached(workshop.path)
    kept, failed = [], 0
    for number, content in enumerate(contents_of(7)):
        with repository.session() as session:
            record = session.ingest("q", [content])[0]
            assert record.claim is not None
            if number == COUNT // 2:
                volume.take_away()
                repository.volumes.look()
            try:
                session.commit()
            except ContentWriteFailed:
                failed += 1
                session.rollback()
            else:
                kept.append(content)
    assert failed <= 1
    volume.bring_back()
    repository.volumes.look()
    assert drain(repository, "q") == kept


def test_another_repositorys_volume_is_neither_written_nor_cleaned(workshop: Workshop, tmp_path: Path) -> None:
    """It says whose it is; what lies on it stays as it is, and the others take the writes."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    before = contents_of(8)
    put_each(repository, "q", before)
    other = Workshop(tmp_path / "other")
    put_each(other.make(storage=TWO, claims=SMALL), "q", contents_of(9))
    other.shut()
    volume = Detached(workshop.path)
    volume.take_away(leaves_mount_point=False)
    (other.path / "c2").rename(volume.path)
    theirs = content_sizes(volume.path)

    put_each(repository, "q", contents_of(10))
    repository.reclamation.clean()
    assert state(repository) is VolumeState.FOREIGN
    assert "of repository" in repository.content.containers["c2"].condition.reason
    assert content_sizes(volume.path) == theirs

    volume.path.rename(other.path / "c2")
    volume.bring_back()
    repository.volumes.look()
    assert drain(repository, "q") == before + contents_of(10)


def test_what_was_open_on_a_volume_is_sealed_when_it_is_back(workshop: Workshop) -> None:
    """A file that is half written when its volume goes away is given back later as any other is, without a restart."""
    repository = workshop.make(storage=TWO, archive={"enabled": False})
    before, meanwhile, after = ([name + bytes([number]) for number in range(4)] for name in (b"a", b"b", b"c"))
    put_each(repository, "q", before)
    (half,) = (entry.claim for entry in repository.ledger.entries() if not entry.claim.sealed)
    volume = Detached(workshop.path, half.container)
    volume.take_away()
    repository.volumes.look()
    put_each(repository, "q", meanwhile)
    volume.bring_back()
    repository.volumes.look()
    put_each(repository, "q", after)

    assert drain(repository, "q") == before + meanwhile + after
    repository.content.retire_idle()
    for _ in range(2):
        repository.reclamation.clean()
    assert list(repository.ledger.entries()) == []


def test_what_was_open_on_a_volume_that_fails_when_it_is_back_stops_only_that_one(
    workshop: Workshop, files: FailingFiles
) -> None:
    """A sync may have failed: nothing more is written there until a restart, which seals the file."""
    repository = workshop.make(storage=TWO)
    put_each(repository, "q", [b"a%d" % number for number in range(4)])
    (half,) = (entry.claim for entry in repository.ledger.entries() if not entry.claim.sealed)
    volume = Detached(workshop.path, half.container)
    volume.take_away()
    repository.volumes.look()
    put_each(repository, "q", [b"b%d" % number for number in range(4)])
    files.fail("sync", f"*-{half.index}", times=1_000)
    volume.bring_back()
    repository.volumes.look()

    repository.reclamation.clean()

    assert repository.content.containers[half.container].failure is not None
    assert len(drain(workshop.reopen(), "q")) == 8


def test_a_volume_that_does_not_answer_is_away(workshop: Workshop, files: FailingFiles) -> None:
    """The disk gives no identity; that there are too many open files says nothing of the volume."""
    repository = workshop.make(storage=TWO)
    identity = str(workshop.path / "c2" / "ullage.json")
    files.fail("open", identity, error=errno.EMFILE)
    repository.volumes.look()
    assert state(repository) is VolumeState.AVAILABLE
    files.fail("open", identity)
    repository.volumes.look()
    assert state(repository) is VolumeState.AWAY
    repository.volumes.look()
    assert state(repository) is VolumeState.AVAILABLE


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO])
def test_a_volume_that_goes_away_during_a_checkpoint_fails_it_for_nobody(
    workshop: Workshop, files: FailingFiles, error: int
) -> None:
    """Its reserve is made when it is back; until then its directory is not there, or answers no more."""
    repository = workshop.make(storage=TWO)
    volume = Detached(workshop.path)
    reserve = volume.path / "ballast"
    reserve.unlink()
    gate = files.hold("create", str(reserve))
    files.fail("create", str(reserve), error=error)

    checkpoint = begin(repository.checkpoint)
    gate.wait_until_reached()
    volume.take_away(leaves_mount_point=False)
    gate.open()

    checkpoint.result(60)
    volume.bring_back()
    repository.volumes.look()
    repository.checkpoint()
    assert reserve.exists()


def test_files_made_ahead_on_a_volume_that_went_away_are_not_left_there(workshop: Workshop) -> None:
    """They are empty, and orphans once the volume is back: they are found and given back by the running process."""
    repository = workshop.make(storage=TWO, claims=SMALL, archive={"enabled": False})
    put_each(repository, "q", contents_of(14, 40))
    volume = Detached(workshop.path)
    volume.take_away()
    repository.volumes.look()
    assert [claim for claim in repository.content.open_claims() if claim.container == "c2"] == []
    volume.bring_back()
    repository.volumes.look()

    drain(repository, "q")
    repository.reclamation.adopt_orphans()
    repository.reclamation.clean()
    assert {name for name in content_sizes(workshop.path) if name.startswith("c2")} == set()


def on_volume(repository: Engine, name: str = "c2") -> set[int]:
    return {entry.claim.index for entry in repository.ledger.entries() if entry.claim.container == name}


@pytest.mark.parametrize("how", ["clean", "crash"])
def test_a_start_without_a_volume_serves_the_rest_and_takes_it_up_when_it_is_back(workshop: Workshop, how: str) -> None:
    """What lies there is passed over and named, and nothing of it dropped or given back; then it is in its place."""
    repository = workshop.make(storage=TWO, claims=SMALL, archive={"enabled": False})
    before = contents_of(21)
    put_each(repository, "q", before)
    with repository.session() as session:
        for record in session.get_many("q", 4):
            session.remove(record)
        session.commit()
    workshop.shut() if how == "clean" else workshop.kill()
    volume = Detached(workshop.path)
    volume.take_away()
    on_it = set(content_sizes(volume.aside))

    repository = workshop.open()
    there = on_volume(repository)
    live = [record for record in repository.ledger.flow_files() if record.claim and record.claim.resource in there]
    named = repository.unavailable.listed(100)
    assert {each.record.uuid for each in named} == {record.uuid for record in live} != set()
    assert all(each.damage.is_away and "mounted" in each.damage.reason for each in named)
    with pytest.raises(VolumeAway):
        repository.unavailable.drop({each.record.uuid for each in named})
    problems = repository.check(deep=True).problems
    assert "container c2 is away" in problems[0]
    assert len(problems) == 1 + len(live)

    repository.proof.run()
    repository.reclamation.clean()
    assert on_volume(repository) == there
    with repository.session() as session:
        served = [session.read(record).read() for record in session.get_many("q", COUNT)]
        session.rollback()
    assert served == [content for content in before[4:] if content in served]
    assert len(served) == len(before) - 4 - len(live)
    with repository.session() as session:
        meanwhile = contents_of(22, 6)
        session.ingest("q", meanwhile)
        session.commit()
    assert set(content_sizes(volume.aside)) == on_it

    volume.bring_back()
    repository.volumes.look()
    repository.proof.run()
    assert drain(repository, "q") == before[4:] + meanwhile
    repository.content.retire_idle()
    repository.reclamation.clean()
    assert list(repository.ledger.entries()) == []


def test_what_is_read_from_a_volume_that_is_away_is_no_damage(workshop: Workshop) -> None:
    """The error says that the volume is away, and the same read succeeds when it is back."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    handles = [repository.handles.put(content) for content in contents_of(23)]
    volume = Detached(workshop.path)
    volume.take_away()

    refused = []
    for handle in handles:
        try:
            with repository.handles.get(handle) as stream:
                stream.read()
        except VolumeAway:
            refused.append(handle)
    assert 0 < len(refused) < COUNT
    assert repository.availability.files() == set()

    volume.bring_back()
    repository.volumes.look()
    assert repository.unavailable.listed(100) == []
    assert repository.check(deep=True).problems == ()


def test_the_survey_of_a_volume_that_is_away_does_not_call_it_full(workshop: Workshop) -> None:
    """It has no size, and nobody is to make room on it; what the disk holds is explained for the others."""
    repository = workshop.make(storage=TWO, claims=SMALL)
    put_each(repository, "q", contents_of(24))
    volume = Detached(workshop.path)
    volume.take_away(leaves_mount_point=False)
    assert repository.content.containers["c2"].usage().total_bytes == 0
    repository.volumes.look()

    there, gone = (documents.container_usage(each, 0) for each in repository.reclamation.survey().containers)
    assert (there.volume, gone.volume, gone.used_percentage) == ("available", "away", 0.0)
    assert gone.resource_claims > 0
    assert {share.container for share in repository.account.explain(repository.spec)} == {"", "c1"}
    shown = survey_document([there, gone])
    assert survey_table(shown).columns[-1].header == "volume"
    assert len(survey_table(survey_document([there])).columns) == len(survey_table(shown).columns) - 1
    volume.bring_back()


class Blinking(RoomyFiles):
    """A volume that is away just while a file is made on it, or from then on."""

    blinks = False
    returns = True
    away: Detached | None = None
    """The volume that is not back yet."""

    def create(self, path: str) -> File:
        if not self.blinks or "/c2/" not in path:
            return super().create(path)
        self.blinks = False
        volume = Detached(Path(path).parents[2])
        volume.take_away()
        Path(path).parent.mkdir()
        try:
            return super().create(path)
        finally:
            if self.returns:
                volume.bring_back(covers=True)
            else:
                self.away = volume


def put_or_refused(repository: Engine, acknowledged: list[bytes]) -> int:
    """Put some more, one after the other, and note which were acknowledged; how many were refused."""
    refused = 0
    for content in contents_of(6):
        try:
            put_each(repository, "q", [content])
            acknowledged.append(content)
        except ContentWriteFailed:
            refused += 1
    return refused


@pytest.mark.parametrize("ahead", [False, True])
def test_a_file_that_was_made_while_its_volume_was_away_holds_nothing_acknowledged(
    workshop: Workshop, ahead: bool
) -> None:
    """Made at the mount point, it is hidden by the volume that came back a moment later, which all looks find there."""
    files = Blinking()
    repository = workshop.make(files, storage=TWO, claims=SMALL)
    contents = contents_of(5, 4 if ahead else 1)
    put_each(repository, "q", contents)
    repository.content.retire_idle()
    files.blinks = True

    refused = put_or_refused(repository, contents)

    assert not files.blinks
    assert refused <= 1
    assert drain(repository, "q") == contents


def test_a_file_whose_volume_is_away_when_it_is_synced_holds_nothing_acknowledged(workshop: Workshop) -> None:
    """No look was between its making and its sync, which both go to the mount point."""
    files = Blinking()
    repository = workshop.make(files, storage=TWO, claims=SMALL)
    contents = contents_of(5, 1)
    put_each(repository, "q", contents)
    repository.content.retire_idle()
    files.blinks, files.returns = True, False

    refused = put_or_refused(repository, contents)

    assert files.away is not None
    files.away.bring_back(covers=True)
    repository.volumes.look()
    assert refused <= 1
    assert drain(repository, "q") == contents
