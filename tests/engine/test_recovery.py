"""After an unclean end: what the log brought back is proved before anything is served."""

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, drain, entry_of, flip, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import Action
from ullage.errors import RepositoryDamaged

MB = 1 << 20


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("offset", [10, 300_000])
def test_corrupt_content_of_frames_after_the_snapshot_stops_the_start(
    workshop: Workshop, offset: int, swapped: bool
) -> None:
    """The error names resource claim, offset and file; also where the FlowFiles are in a swap file by now."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 1} if swapped else {})
    record = put_all(repository, "q", [b"x" * MB])[0]
    if swapped:
        put_all(repository, "q", [b"y"] * 5)
        assert repository.queue("q").figures().swapped > 0
    workshop.kill()
    path = workshop.content_file(claim_of(record).resource)
    flip(path, claim_of(record).offset + offset)

    with pytest.raises(RepositoryDamaged, match=f"resource claim {claim_of(record).resource} .*{path}"):
        workshop.open()


@pytest.mark.parametrize("spoiled", [0, 7, 19])
def test_one_spoiled_content_among_neighbours_is_named(workshop: Workshop, spoiled: int) -> None:
    """Small contents side by side are read back together; the one that fails is still told by its offset."""
    repository = workshop.make()
    claims = [record.claim for record in put_all(repository, "q", [bytes([n]) * 100 for n in range(20)])]
    workshop.kill()
    claim = claims[spoiled]
    assert claim is not None
    flip(workshop.content_file(claim.resource), claim.offset + 50)

    with pytest.raises(RepositoryDamaged, match=f"100 bytes at offset {claim.offset} do not match"):
        workshop.open()


def test_missing_content_of_frames_after_the_snapshot_stops_the_start(workshop: Workshop) -> None:
    """A file whose name never became durable is found out now, not by a reader next year."""
    repository = workshop.make()
    record = put_all(repository, "q", [b"x"])[0]
    workshop.kill()
    path = workshop.content_file(claim_of(record).resource)
    path.unlink()

    with pytest.raises(RepositoryDamaged, match=f"resource claim {claim_of(record).resource} .*{path} does not exist"):
        workshop.open()


@pytest.mark.parametrize("action", [Action.PUNCH, Action.REWRITE])
def test_a_start_goes_past_what_reclamation_took_from_swapped_neighbours(workshop: Workshop, action: Action) -> None:
    """Swap, removal and reclamation since the last checkpoint, then a kill: what is dead and gone is nobody's loss."""
    repository = workshop.make(flow_file={"swap_threshold": 100, "swap_batch": 50})
    contents = [b"%04d" % number * 1_500 for number in range(600)]
    put_all(repository, "q", contents)
    with repository.session() as session:
        session.remove_many(session.get_many("q", 330))
        session.commit()
    plan = repository.compactor.plan(policy="CompactAll", actions=frozenset({action}))
    assert repository.compactor.execute(plan).freed_bytes > 0

    repository = workshop.crash()

    assert drain(repository, "q") == contents[330:]


def test_dead_content_is_not_asked_for(workshop: Workshop, repository: Engine) -> None:
    """What nobody needs any more cannot stop a start."""
    record = put_all(repository, "q", [b"x" * MB])[0]
    drain(repository, "q")
    workshop.kill()
    flip(workshop.content_file(claim_of(record).resource), 5)

    assert workshop.open().restored.clean is False


def test_every_file_is_sealed_with_its_real_length(workshop: Workshop, repository: Engine) -> None:
    """Also with bytes of a session that never committed, which are dead from now on."""
    record = put_all(repository, "q", [b"committed"])[0]
    session = repository.session()
    session.write(session.create(), b"L" * (2 * MB))

    repository = workshop.crash()

    entry = entry_of(repository, record)
    assert entry.claim.sealed
    assert entry.claim.length == workshop.content_file(claim_of(record).resource).stat().st_size == 4096 + 2 * MB
    assert repository.content.containers["c1"].bytes_used == 4096 + 2 * MB


def test_an_open_file_is_synced_before_a_snapshot_seals_it(workshop: Workshop, repository: Engine) -> None:
    """The page cache may show more of it than the disk holds: a seal must never count bytes that a crash takes away."""
    put_all(repository, "q", [b"x"])
    workshop.kill()
    files = FailingFiles()

    workshop.open(files)

    order = [
        files.calls.index(("sync", str(workshop.content_file(1)))),
        files.calls.index(("rename", str(workshop.path / "flowfile" / "snapshot"))),
    ]
    assert order == sorted(order)


def test_a_clean_end_needs_no_proof(workshop: Workshop, repository: Engine) -> None:
    """The log's close frame says that nothing was in flight."""
    put_all(repository, "q", [b"x"])
    workshop.close()
    files = FailingFiles()

    repository = workshop.open(files)

    assert repository.restored.clean
    assert files.count("sync", "*/c1/*") == 0


def test_what_a_clean_close_left_open_is_sealed_by_the_next_start(workshop: Workshop, repository: Engine) -> None:
    """A session that outlived its repository keeps a file from being sealed at close, but not for ever."""
    record = put_all(repository, "q", [b"x"])[0]
    session = repository.session()
    session.ingest("q", [b"never committed"])
    workshop.shut()
    session.rollback()
    repository = workshop.open()
    assert repository.restored.clean
    entry = entry_of(repository, record)

    assert entry.claim.sealed
    assert entry.claim.length == repository.content.containers["c1"].bytes_used
    assert repository.check(deep=True).problems == ()
